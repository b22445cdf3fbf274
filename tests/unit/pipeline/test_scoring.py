"""Features of parts that are made together are those of each part alone, under its name."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch import tables
from mia_batch.attacks import get
from mia_batch.evidence.blocks import sample_parts
from mia_batch.features import build_features
from mia_batch.pipeline import Run, SilentObserver, scoring
from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.scoring import choose_features, make_missing_features
from mia_batch.schemas import Samples, Targets
from mia_batch.settings import load_settings
from tests import frames

TARGETS = frames.targets(*({"reference": "a b c d"[: 2 * n + 1]} for n in range(4)))
ROWS = frames.samples(*([f"a b{n}", None, "a b c"] for n in range(4)))
PARTS = {  # all but the first as of a corpus that has shrunk: their targets stand elsewhere now
    f"block-{number:08d}.samples-00000-00003.attempt-0.parquet": rows
    for number, rows in enumerate((ROWS[:5], ROWS[5:9], ROWS[:0], ROWS[9:]))
}


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    run.samples_folder.mkdir()
    run.features_folder.mkdir()
    tables.sink(TARGETS, run.targets_path, Targets)
    for name, rows in PARTS.items():
        tables.sink(rows, run.samples_folder / name, Samples)
    return run


@pytest.mark.parametrize(
    ("limit", "value"), [("_PARTS_AT_ONCE", 3), ("_PARTS_AT_ONCE", 8), ("_BYTES_AT_ONCE", 1)]
)
def test_parts_together_are_as_each_alone(run, monkeypatch, limit, value):
    monkeypatch.setattr(scoring, limit, value)
    settings = load_settings({"input": "corpus.txt", "samples_from": "made.parquet"}, None)
    manifest = Manifest(evidence={}, engine_choice="", features=["unigrams"])
    parts = sample_parts(run.samples_folder, recorded=True)
    make_missing_features(settings, manifest, run, parts, SilentObserver())
    made = {path.name: pl.read_parquet(path) for path in run.features_folder.iterdir()}
    assert made.keys() == PARTS.keys()
    for name, rows in PARTS.items():
        alone = build_features(
            rows,
            TARGETS,
            words="whitespace",
            preset="default",
            text_length=None,
            groups=["unigrams"],
        )
        assert made[name].equals(alone)
    assert made[list(PARTS)[1]]["overlap_1"].to_list() == [2, 1, None, 3]


def test_features_of_a_group_that_is_no_more_are_made_anew(run):
    attacks = [get("samia_matched_v1")]
    manifest = Manifest(evidence={}, engine_choice="", features=["lcs"])
    manifest.features.append("overlap")  # type: ignore[arg-type] # a name of an earlier version
    old = run.features_folder / "block-00000000.samples-00000-00003.attempt-0.parquet"
    old.write_bytes(b"of an earlier version")
    choose_features(attacks, manifest, run)
    assert manifest.features == ["lcs", "matched", "unigrams"]
    assert not old.exists()
    old.write_bytes(b"of this version")
    choose_features(attacks, manifest, run)
    assert old.exists()
