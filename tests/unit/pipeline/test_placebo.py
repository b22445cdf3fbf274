"""The planned test on a reference model beside that on the audited one."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch.pipeline import plan
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.settings import load_settings
from tests.checkpoints import TEXTS, save_checkpoint


@pytest.fixture(scope="module")
def given(checkpoint, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("placebo")
    texts = [" ".join(text.split()[:30]) for text in TEXTS[:10]]
    pl.DataFrame({"text": texts[:4]}).write_parquet(folder / "asked.parquet")
    pl.DataFrame({"text": texts[4:]}).write_parquet(folder / "new.parquet")
    return {
        "input": str(folder / "asked.parquet"),
        "non_members": str(folder / "new.parquet"),
        "non_members_known": "written later",
        "model": str(checkpoint),
        "engine": "transformers",
        "probes": 3,
        "anyway": True,
    }


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    return str(save_checkpoint(tmp_path_factory.mktemp("reference") / "other"))


@pytest.mark.parametrize(
    ("attacks", "evidence"),
    [("probe_leading_rarity_v1", "samples"), ("min_k_plus_plus_20_v1,loss_zlib_v1", "logprobs")],
)
def test_the_placebo_is_an_audit_of_the_reference_model(given, other, attacks, evidence, tmp_path):
    asked = given | {"attacks": attacks, "evidence": evidence}
    out = {name: str(tmp_path / name) for name in ("both", "alone")}
    wanted = load_settings(asked | {"reference_model": other, "out": out["both"]})
    assert any(name.startswith("reference") for name, _ in plan(wanted))
    run = mia_batch.audit(**asked, reference_model=other, out=out["both"])
    alone = mia_batch.audit(**asked | {"model": other}, out=out["alone"])
    primary = attacks.split(",")[0]
    scores = run["scores"][f"placebo_of_{primary}"]
    assert scores.null_count() == 0
    assert scores.to_list() == pytest.approx(alone["scores"][primary].to_list(), rel=1e-4)
    found = {
        check: dict(run_of["findings"].filter(check=check).select("statistic", "value").iter_rows())
        for check, run_of in (("placebo", run), ("reported", alone))
    }
    assert found["placebo"].pop("collection") is None
    assert found["placebo"] == found["reported"]
    said = " ".join(conclusions(run, wanted, attacks.split(",")))
    smallest = found["reported"]["smallest_q"]
    assert (
        "The same test on the reference model (which cannot know these texts) reports 0 of 4 "
        f"targets (smallest q {smallest:.2g})."
    ) in said
    assert not run["verdicts"]["attack"].str.starts_with("placebo").any()


def test_no_placebo_without_non_members_or_of_an_attack_that_reads_the_reference(given, other):
    for changed in (
        {"non_members": None, "non_members_known": None, "attacks": "loss_zlib_v1"},
        {"attacks": "reference_difference_v1"},
    ):
        settings = load_settings(
            given | {"evidence": "logprobs", "reference_model": other} | changed
        )
        names = [name for name, _ in plan(settings)]
        assert ("reference text" in names) == (changed["attacks"] != "loss_zlib_v1")
