"""A dry run says what is left, and writes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

import mia_batch
from mia_batch.pipeline import plan
from mia_batch.settings import load_settings
from tests.unit.pipeline.conftest import documents


def planned(settings) -> dict[str, str]:
    return dict(plan(load_settings(settings)))


@pytest.fixture
def copied(small_audit, tmp_path):
    settings, run = small_audit
    shutil.copytree(run.folder, tmp_path / "run")
    return settings | {"out": str(tmp_path / "run")}


def test_a_run_that_has_not_begun_has_everything_left_and_gets_no_folder(small_audit, tmp_path):
    settings, run = small_audit
    found = planned(settings | {"out": str(tmp_path / "none")})
    assert not (tmp_path / "none").exists()
    assert (found["prompts"], found["samples"]) == ("6", "18")
    assert (found["documents"], found["targets"]) == ("8", "8")
    assert found["not sampled"].startswith("1: ")
    assert found["engine"] == "transformers (asked for)"
    decoded = int(found["tokens to decode"].partition(",")[0])
    assert run["samples"]["n_tokens"].sum() > 0
    assert decoded > 0


def test_of_a_finished_run_nothing_is_left(copied):
    found = planned(copied)
    assert (found["prompts"], found["samples"]) == ("0", "0")
    assert found["tokens to decode"] == "0, at most 0"


def test_more_samples_are_left_where_more_are_wanted(copied):
    found = planned(copied | {"samples": 5})
    assert (found["prompts"], found["samples"]) == ("6", "12")


def test_of_a_longer_corpus_what_is_new_is_left(copied, tmp_path):
    longer = pl.concat([documents(), documents(12).slice(6, 4)])
    longer = longer.with_columns(document_id=pl.format("d{}", pl.int_range(pl.len())))
    longer.write_parquet(tmp_path / "longer.parquet")
    before = {path: path.stat().st_mtime_ns for path in Path(copied["out"]).rglob("*")}
    found = planned(copied | {"input": str(tmp_path / "longer.parquet")})
    assert (found["documents"], found["prompts"]) == ("12", "4")
    assert {path: path.stat().st_mtime_ns for path in Path(copied["out"]).rglob("*")} == before


def test_forward_passes_that_are_left_are_counted(copied):
    wanted = copied | {"evidence": "logprobs", "attacks": "loss_v1,lowercase_ratio_v1"}
    found = planned(wanted)
    n_texts = documents()["text"].count()
    assert found["target text"] == f"{n_texts} forward passes"
    mia_batch.audit(**copied | {"evidence": "logprobs", "attacks": "loss_v1"})
    found = planned(wanted)
    assert found["target text"] == "0 forward passes"
    assert found["target lowercase"] == f"{n_texts} forward passes"
