"""Whole audits of a tiny model: tables, what is left to do, refusals, samples drawn again."""

import json
from pathlib import Path

import polars as pl
import pytest

import mia_batch
from mia_batch.attacks import defaults
from mia_batch.errors import RequestError, RunFolderError
from mia_batch.models.tokens import Tokenizer
from mia_batch.observer import Observer
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.results import choose_samples, draw_again
from mia_batch.pipeline.stages.questions import read_answers
from mia_batch.prompts import sample_seed
from mia_batch.schemas import Metrics, Samples, Scores, Targets, Unscored
from tests.hostile_server import HostileServer, TinyModel
from tests.runs import audit, documents, planned, tables_of

NAMES = ["target_id", "view", "view_index", "sample_index"]


def test_every_table_is_there_and_no_target_is_lost_without_a_reason(small_audit):
    settings, run = small_audit
    n_targets = documents().height
    assert (
        run["targets"]["document_id"].to_list() == documents()["document_id"].to_list()
    )
    assert (
        run["scores"]["document_id"].to_list() == documents()["document_id"].to_list()
    )
    assert run["scores"]["shelf"].to_list() == list(range(n_targets))
    assert run["scores"]["n_samples"].to_list() == [3] * (n_targets - 2) + [0, 0]
    assert run["samples"].height == run["features"].height == 3 * (n_targets - 2)
    attacks = defaults("matched")
    assert run["scores"].select(attacks).null_count().row(0) == (2,) * len(attacks)
    for schema in (Targets, Samples, Scores, Unscored, Metrics):
        table = run[schema.__name__.lower()]
        assert schema.validate(table).height == table.height
    auc = run["metrics"].filter(
        metric="roc_auc", slice="all", attack="samia_matched_v1"
    )
    assert auc.select("n_members", "n_nonmembers", "n_unscored").row(0) == (3, 3, 2)
    manifest = run.manifest
    assert manifest.models["target"]["source"]["name"] == settings["model"]
    assert len(manifest.models["target"]["source"]["digest"]) == 64
    assert len(manifest.models["target"]["tokenizer"]) == 64
    assert manifest.evidence["decode"] == "matched"
    assert manifest.engines["samples of target"]["dtype"] == "float32"
    assert (
        json.loads((run.folder / "run.json").read_text())["versions"]["polars"]
        == pl.__version__
    )
    requests = manifest.requests
    assert (
        manifest.times["begin"]
        <= requests["times"]["first"]
        <= requests["times"]["last"]
    )
    assert requests["endpoint"] is None
    assert requests["tools"].startswith("none: the model ran on this machine")
    _, run = small_audit
    reason_counts = (
        run["unscored"]
        .group_by("reason")
        .agg(pl.col("target_id").n_unique())
        .sort("reason")
    )
    reasons = run["targets"]["reason"].drop_nulls().to_list()
    assert reason_counts.rows() == [(reason, 1) for reason in sorted(reasons)]
    assert len(reasons) == 2
    assert run.manifest.targets == {"total": 8} | dict.fromkeys(sorted(reasons), 1)


def test_a_table_that_no_run_has_or_that_is_missing_is_said(tmp_path):
    run = mia_batch.Run(tmp_path)
    with pytest.raises(
        RequestError, match=r"^a run has no table 'score'; its tables are targets,"
    ):
        run["score"]
    with pytest.raises(
        RunFolderError, match=r"scores.parquet cannot be read as a table: No such"
    ):
        run["scores"]
    assert run["set_aside"].is_empty()  # all files were read


def test_the_same_request_elsewhere_gives_the_same_tables_and_root(
    small_audit, tmp_path
):
    settings, run = small_audit
    run_folder = str(tmp_path / "run")
    other_run = audit(**settings | {"out": run_folder, "engine_arg": {"batch_size": 5}})
    for name in ("samples", "features"):
        assert tables_of(other_run.path(name)) == tables_of(run.path(name))
    custody = other_run.manifest.custody
    assert custody["tables"] == run.manifest.custody["tables"]
    assert custody["root"] == run.manifest.custody["root"]
    assert set(custody["files"]) == {"engine.log", "plan.json", "report.html"}
    assert str(tmp_path) not in json.dumps(custody)


def test_what_is_left_is_planned_and_a_run_that_has_not_begun_gets_no_folder(
    copied, tmp_path
):
    plan_lines = planned(copied | {"out": str(tmp_path / "none")})
    assert not (tmp_path / "none").exists()
    assert (plan_lines["prompts"], plan_lines["samples"]) == ("6", "18")
    assert (plan_lines["documents"], plan_lines["targets"]) == ("8", "8")
    assert plan_lines["not sampled"].startswith("1: ")
    assert plan_lines["engine"] == "transformers (asked for)"
    assert int(plan_lines["tokens to decode"].partition(",")[0]) > 0
    plan_lines = planned(copied)
    assert plan_lines["left"] == "nothing is left to ask: the run is finished"
    plan_lines = planned(copied | {"samples": 5})
    assert (plan_lines["prompts"], plan_lines["samples"]) == ("6", "12")
    logprobs_settings = copied | {
        "evidence": "logprobs",
        "attacks": "loss_v1,lowercase_ratio_v1",
    }
    texts = pl.read_parquet(copied["input"])["text"].drop_nulls().to_list()
    encode = Tokenizer.load(copied["model"]).encode_prompts
    n_read = sum(map(len, encode(texts)))
    n_lowercase = sum(map(len, encode([text.lower() for text in texts])))
    assert n_read != n_lowercase
    assert planned(logprobs_settings)["target text"] == (
        f"7 forward passes, {n_read:,} tokens to read"
    )
    audit(**copied | {"evidence": "logprobs", "attacks": "loss_v1"})
    plan_lines = planned(logprobs_settings)
    assert "target text" not in plan_lines
    assert plan_lines["target lowercase"] == (
        f"7 forward passes, {n_lowercase:,} tokens to read"
    )


def test_other_columns_of_the_same_corpus_make_other_tables(copied):
    pl.read_parquet(copied["input"]).rename({"member": "truth"}).write_parquet(
        copied["input"]
    )
    run = audit(**copied)
    assert run["metrics"].is_empty()
    assert run["scores"]["samia_matched_v1"].null_count() == 2
    assert audit(**copied, member_column="truth")["metrics"].height > 0
    assert audit(**copied)["metrics"].is_empty()


# Refusals: before anything starts, and nothing is changed.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"run\.json cannot be read .*; give another folder"),
        ('{"models": {}}', r"run\.json is not a run's manifest"),
        (None, r"another version .* use that version for it, or audit into another f"),
    ],
)
def test_a_manifest_that_cannot_be_resumed_is_refused_and_left(
    copied, content, message
):
    path = Path(copied["out"]) / "run.json"
    if content is None:
        manifest_fields = json.loads(path.read_text())
        del manifest_fields["format"]
        content = json.dumps(manifest_fields)
    path.write_text(content)
    with pytest.raises(mia_batch.RunFolderError, match=message):
        audit(**copied)
    assert path.read_text() == content


# Samples that are drawn again.


def test_samples_are_chosen_by_the_seed_and_drawn_again_the_same(small_audit):
    _, run = small_audit
    chosen_samples = choose_samples(run, 5, 0)
    assert chosen_samples.height == 5
    assert chosen_samples.equals(choose_samples(run, 5, 0))
    assert not chosen_samples.select(NAMES).equals(
        choose_samples(run, 5, 1).select(NAMES)
    )
    assert choose_samples(run, 1000, 0).height == run["samples"].height == 18
    targets = run["targets"].filter(document_id="d3")
    answers = read_answers(run, targets)
    target_id = targets["target_id"].item()
    assert answers["sample_index"].to_list() == [0, 1, 2]
    assert answers["seed"].to_list() == [
        sample_seed(0, target_id) + number for number in range(3)
    ]
    assert answers["context"].unique().to_list() == targets["prefix"].to_list()
    assert answers["text"].unique().to_list() == targets["reference"].to_list()
    _, run = small_audit
    verified_before = verify(run.folder)
    chosen_samples = choose_samples(run, 7, 0)
    drawn_samples = draw_again(run, chosen_samples, Observer())
    assert drawn_samples["again"].to_list() == chosen_samples["candidate"].to_list()
    assert drawn_samples.drop("again").equals(chosen_samples)
    assert verify(run.folder) == verified_before


def test_an_endpoint_is_asked_anew(request_for):
    """Probes at an endpoint that answers the most likely word."""
    with HostileServer(TinyModel()) as server:
        run = audit(**request_for(server, probes=3, attacks=["probe_first_word_v1"]))
        n = len(server.asked)
        drawn_samples = draw_again(
            run, choose_samples(run, 4, 0), Observer(), base_url=server.url
        )
        assert drawn_samples["again"].to_list() == drawn_samples["candidate"].to_list()
        assert len(server.asked) >= n + 4
    assert read_answers(run, run["targets"].head(1))["seed"].null_count() == 3


def test_other_models_recordings_and_nothing_are_not_drawn_again(
    small_audit, tmp_path, texts, books
):
    _, run = small_audit
    manifest = run.manifest
    manifest.models["target"]["source"]["digest"] = "0" * 64
    other_run = type(run)(tmp_path)
    for name in ("samples", "prompts"):
        other_run.path(name).symlink_to(run.path(name))
    other_run.path("targets").symlink_to(run.path("targets"))
    manifest.write(tmp_path)
    with pytest.raises(
        mia_batch.SettingsError, match=f"{tmp_path} holds evidence made with"
    ):
        draw_again(other_run, choose_samples(other_run, 1, 0), Observer())
    for run, samples_given, message in (
        (texts.run, texts.run["samples"].clear(), "nothing to draw again"),
        (books.run, choose_samples(books.run, 1, 0), "came from a recording"),
    ):
        with pytest.raises(mia_batch.SettingsError, match=message):
            draw_again(run, samples_given, Observer())
