"""Whole audits of a tiny model: what they give, and how they go on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock

import mia_batch
from mia_batch.attacks import defaults
from mia_batch.errors import RequestError, RunFolderError
from mia_batch.schemas import Metrics, Samples, Scores, Targets, Unscored
from tests.unit.pipeline.conftest import documents


@pytest.fixture
def copied(small_audit, tmp_path):
    """A copy of the finished audit that a test may change."""
    settings, run = small_audit
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.copy(settings["input"], tmp_path / "corpus.parquet")
    return settings | {
        "input": str(tmp_path / "corpus.parquet"),
        "out": str(tmp_path / "run"),
        "report": False,
    }


def parts(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path("samples").glob("*.parquet")}


def test_every_table_is_there_and_no_target_is_lost(small_audit):
    _, run = small_audit
    n_targets = documents().height
    assert run["targets"]["document_id"].to_list() == documents()["document_id"].to_list()
    assert run["scores"]["document_id"].to_list() == documents()["document_id"].to_list()
    assert run["scores"]["shelf"].to_list() == list(range(n_targets))
    assert run["scores"]["n_samples"].to_list() == [3] * (n_targets - 2) + [0, 0]
    assert run["samples"].height == 3 * (n_targets - 2)
    assert run["features"].height == run["samples"].height
    assert run["scores"].select(defaults("matched")).null_count().row(0) == (2,) * len(
        defaults("matched")
    )
    for schema in (Targets, Samples, Scores, Unscored, Metrics):
        table = run[schema.__name__.lower()]
        assert schema.validate(table).height == table.height


def test_a_table_that_no_run_has_or_that_is_missing_is_said(tmp_path):
    run = mia_batch.Run(tmp_path)
    with pytest.raises(RequestError, match=r"^a run has no table 'score'; its tables are targets,"):
        run["score"]
    with pytest.raises(RunFolderError, match=r"scores.parquet cannot be read as a table: No such"):
        run["scores"]
    assert run["set_aside"].is_empty()  # all files were read


def test_texts_that_cannot_be_scored_are_counted_with_their_reasons(small_audit):
    _, run = small_audit
    counted = run["unscored"].group_by("reason").agg(pl.col("target_id").n_unique()).sort("reason")
    reasons = run["targets"]["reason"].drop_nulls().to_list()
    assert counted.rows() == [(reason, 1) for reason in sorted(reasons)]
    assert len(reasons) == 2
    assert run.manifest.targets == {"total": 8} | dict.fromkeys(sorted(reasons), 1)


def test_labelled_targets_without_a_score_are_counted_beside_every_metric(small_audit):
    _, run = small_audit
    auc = run["metrics"].filter(metric="roc_auc", slice="all", attack="samia_matched_v1")
    assert auc.select("n_members", "n_nonmembers", "n_unscored").row(0) == (3, 3, 2)


def test_the_manifest_says_what_made_the_tables(small_audit):
    settings, run = small_audit
    manifest = run.manifest
    assert manifest.models["target"]["source"]["name"] == settings["model"]
    assert len(manifest.models["target"]["source"]["digest"]) == 64
    assert len(manifest.models["target"]["tokenizer"]) == 64
    assert manifest.evidence["decode"] == "matched"
    assert manifest.engines["samples of target"]["dtype"] == "float32"
    stored = json.loads((run.folder / "run.json").read_text())
    assert stored["versions"]["polars"] == pl.__version__


def test_a_finished_run_samples_nothing_and_says_the_same(copied, capfd):
    settings, run = copied, mia_batch.Run(Path(copied["out"]))
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.parquet")}
    log = run.engine_log.read_bytes(), run.engine_log.stat().st_mtime_ns
    again = mia_batch.audit(**settings)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.parquet")} == before
    assert (again.engine_log.read_bytes(), again.engine_log.stat().st_mtime_ns) == log
    assert capfd.readouterr() == ("", "")


def test_the_same_request_elsewhere_gives_the_same_tables(small_audit, tmp_path):
    settings, run = small_audit
    other = mia_batch.audit(
        **settings | {"out": str(tmp_path / "run"), "engine_arg": {"batch_size": 5}}
    )
    assert parts(other) == parts(run)
    assert other.path("scores").read_bytes() == run.path("scores").read_bytes()
    assert other.path("metrics").read_bytes() == run.path("metrics").read_bytes()


def test_more_samples_keep_those_that_are_there_and_equal_a_run_at_once(copied, small_audit):
    _, run = small_audit
    more = mia_batch.audit(**copied | {"samples": 5})
    assert parts(run).items() <= parts(more).items()
    assert more["scores"]["n_samples"].max() == 5
    at_once = mia_batch.audit(**copied | {"samples": 5, "out": copied["out"] + "2"})
    assert more["scores"].equals(at_once["scores"])
    fewer = mia_batch.audit(**copied | {"samples": 3})
    assert fewer["scores"].equals(run["scores"])


def test_a_longer_corpus_keeps_the_samples_of_the_shorter_one(copied, small_audit):
    _, run = small_audit
    longer = pl.concat([documents(), documents(12).slice(6, 4).with_columns(member=None)])
    longer = longer.with_columns(document_id=pl.format("d{}", pl.int_range(pl.len())))
    longer.write_parquet(copied["input"])
    extended = mia_batch.audit(**copied)
    assert parts(run).items() <= parts(extended).items()
    assert extended["scores"].height == 12
    assert extended["scores"].head(8).equals(run["scores"])
    assert extended["scores"]["n_samples"].tail(4).to_list() == [3, 3, 3, 3]


def test_unlabelled_corpora_have_scores_and_no_metrics(copied):
    documents().drop("member").write_parquet(copied["input"])
    run = mia_batch.audit(**copied)
    assert run["metrics"].is_empty()
    assert run["scores"]["samia_matched_v1"].null_count() == 2


def test_features_that_a_killed_run_had_not_made_are_made(copied, small_audit):
    _, run = small_audit
    whole = mia_batch.Run(Path(copied["out"]))
    for part in whole.path("features").glob("*.parquet"):
        part.unlink()
    whole.path("scores").unlink()
    again = mia_batch.audit(**copied)
    assert again["features"].equals(run["features"])
    assert again["scores"].equals(run["scores"])


def test_other_settings_in_the_same_folder_are_refused_with_old_and_new_value(copied):
    with pytest.raises(mia_batch.SettingsError) as caught:
        mia_batch.audit(**copied | {"top_k": 40, "seed": 1})
    message = str(caught.value)
    assert "'top_k' was 50, is now 40" in message
    assert "'seed' was 0, is now 1" in message
    assert message.endswith("give the old values, or choose another --out")


def test_whole_candidates_in_a_folder_of_matched_ones_are_refused(copied):
    with pytest.raises(mia_batch.SettingsError, match="'decode' was 'matched', is now 'whole'"):
        mia_batch.audit(**copied | {"attacks": "samia_v1"})


def test_a_model_that_was_trained_on_is_refused(copied, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(copied["model"], model)
    assert mia_batch.audit(**copied | {"model": str(model)})["scores"].height == 8
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(
        mia_batch.SettingsError, match=r"'source' of model 'target' was .*, is now "
    ):
        mia_batch.audit(**copied | {"model": str(model)})


def test_a_prefix_that_moved_is_refused(copied, tmp_path):
    frame = pl.DataFrame({"text": ["one two three four"], "prefix": ["one two"]})
    frame = frame.with_columns(reference=pl.lit(" three four"))
    frame.write_parquet(copied["input"])
    recorded = pl.DataFrame({"prefix": ["one two"], "candidate": [" three"]})
    recorded.write_parquet(tmp_path / "recorded.parquet")
    settings = {
        "input": copied["input"],
        "samples_from": str(tmp_path / "recorded.parquet"),
        "out": str(tmp_path / "own"),
    }
    mia_batch.audit(**settings)
    moved = frame.with_columns(prefix=pl.lit("one"), reference=pl.lit(" two three four"))
    moved.write_parquet(copied["input"])
    with pytest.raises(mia_batch.SettingsError, match="prefix or reference of 1 targets differs"):
        mia_batch.audit(**settings)
    assert mia_batch.Run(tmp_path / "own")["targets"]["prefix"].to_list() == ["one two"]


def test_a_folder_that_a_live_run_holds_is_refused(copied):
    with (
        FileLock(Path(copied["out"]) / ".lock"),
        pytest.raises(mia_batch.RunFolderError, match="is held by another live run"),
    ):
        mia_batch.audit(**copied)


def test_a_broken_manifest_is_refused(copied):
    (Path(copied["out"]) / "run.json").write_text("{")
    with pytest.raises(mia_batch.RunFolderError, match=r"run\.json cannot be read"):
        mia_batch.audit(**copied)
    (Path(copied["out"]) / "run.json").write_text(json.dumps({"models": {}}))
    with pytest.raises(mia_batch.RunFolderError, match=r"run\.json is not a run's manifest"):
        mia_batch.audit(**copied)


def test_a_folder_of_another_version_is_refused_and_left_as_it_is(copied):
    path = Path(copied["out"]) / "run.json"
    old = json.loads(path.read_text())
    del old["format"]
    path.write_text(json.dumps(old))
    with pytest.raises(mia_batch.RunFolderError, match=r"another version .* choose another --out"):
        mia_batch.audit(**copied)
    assert json.loads(path.read_text()) == old


def test_a_wrong_request_leaves_no_folder_behind(copied, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    settings = copied | {"input": str(tmp_path / "empty.jsonl"), "out": str(tmp_path / "none")}
    with pytest.raises(mia_batch.CorpusError):
        mia_batch.audit(**settings)
    with pytest.raises(mia_batch.SettingsError):
        mia_batch.audit(**copied | {"model": str(tmp_path / "nowhere"), "out": settings["out"]})
    assert not Path(settings["out"]).exists()


def test_it_works_from_a_script_without_main_guard_that_imported_torch_before(copied, tmp_path):
    settings = copied | {"out": str(tmp_path / "script"), "samples": 1}
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nimport mia_batch\n"
        f"run = mia_batch.audit(**{settings!r})\n"
        "print(run['scores']['n_samples'].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("6\n", "", 0)
