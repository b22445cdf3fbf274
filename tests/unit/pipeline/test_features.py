"""Features of parts that are made together are those of each part alone, under its name."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch import tables
from mia_batch.features import build_features
from mia_batch.observer import Observer
from mia_batch.pipeline import Run
from mia_batch.pipeline.auditing import stages_of
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.stages import features
from mia_batch.pipeline.stages.features import FeaturesStage
from mia_batch.schemas import Prompts, Samples, Targets
from mia_batch.settings import load_settings
from tests import frames

TARGETS = frames.targets(*({"reference": "a b c d"[: 2 * n + 1]} for n in range(4)))
ROWS = frames.samples(*([f"a b{n}", None, "a b c"] for n in range(4)))
PARTS = {  # all but the first as of a corpus that has shrunk: their targets stand elsewhere now
    f"block-{number:08d}.target-continuation-00000-00003.attempt-0.parquet": rows
    for number, rows in enumerate((ROWS[:5], ROWS[5:9], ROWS[:0], ROWS[9:]))
}
PROMPTS = "block-00000000.target-continuation-00000-00001.attempt-0.parquet"


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    for name in ("prompts", "samples", "features", "logprobs"):
        run.path(name).mkdir()
    tables.sink(TARGETS, run.path("targets"), Targets)
    prompts = frames.table(Prompts, TARGETS.select("target_id").to_dicts(), **frames.CONTINUATION)
    tables.sink(prompts, run.path("prompts") / PROMPTS, Prompts)
    for name, rows in PARTS.items():
        tables.sink(rows, run.path("samples") / name, Samples)
    return run


def features_stage(run, attacks: str, groups: list[str]) -> FeaturesStage:
    given = {"input": "corpus.txt", "samples_from": "made.parquet", "attacks": attacks}
    Manifest(evidence={"engine": "replay"}, made={"features": {"groups": groups}}).write(run.folder)
    audit = Audit.finished(run, load_settings(given), Observer())
    (stage,) = (stage for stage in stages_of(audit) if isinstance(stage, FeaturesStage))
    return stage


@pytest.mark.parametrize(
    ("limit", "value"), [("_PARTS_AT_ONCE", 3), ("_PARTS_AT_ONCE", 8), ("_BYTES_AT_ONCE", 1)]
)
def test_parts_together_are_as_each_alone(run, monkeypatch, limit, value):
    monkeypatch.setattr(features, limit, value)
    features_stage(run, "samia_v1", ["unigrams"]).run()
    made = {path.name: pl.read_parquet(path) for path in run.path("features").iterdir()}
    assert made.keys() == PARTS.keys()
    for name, rows in PARTS.items():
        alone = build_features(
            rows,
            frames.units(TARGETS),
            words="whitespace",
            preset="default",
            text_length=None,
            groups=["unigrams"],
        )
        assert made[name].equals(alone)
    assert made[list(PARTS)[1]]["overlap_1"].to_list() == [2, 1, None, 3]


def test_features_of_a_group_that_is_no_more_are_made_anew(run):
    """The group "overlap" is of an earlier version."""
    old = run.path("features") / "block-00000000.target-continuation-00000-00003.attempt-0.parquet"
    old.write_bytes(b"of an earlier version")
    stage = features_stage(run, "samia_matched_v1", ["lcs", "overlap"])
    stage.prepare()
    assert run.manifest.made["features"] == {"groups": ["blocks", "lcs", "matched", "unigrams"]}
    assert not old.exists()
    old.write_bytes(b"of this version")
    stage.prepare()
    assert old.exists()
