"""Samples that are drawn again on a CPU are those of the run, and the run stays as it was."""

from __future__ import annotations

import polars as pl
import pytest

import mia_batch
from mia_batch.observer import Observer
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.finished import choose_samples, draw_again
from mia_batch.pipeline.stages.views import answers_of
from mia_batch.prompts.views import sample_seed
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.unit.pipeline.conftest import documents

NAMES = ["target_id", "view", "view_index", "sample_index"]


def test_the_choice_follows_the_seed(small_audit):
    _, run = small_audit
    chosen = choose_samples(run, 5, 0)
    assert chosen.height == 5
    assert chosen.equals(choose_samples(run, 5, 0))
    assert not chosen.select(NAMES).equals(choose_samples(run, 5, 1).select(NAMES))
    assert choose_samples(run, 1000, 0).height == run["samples"].height == 18


def test_a_model_here_draws_the_same_whatever_is_drawn_beside_it(small_audit):
    _, run = small_audit
    before = verify(run.folder)
    chosen = choose_samples(run, 7, 0)
    drawn = draw_again(run, chosen, Observer())
    assert drawn["again"].to_list() == chosen["candidate"].to_list()
    assert drawn.drop("again").equals(chosen)
    assert verify(run.folder) == before


def test_an_answer_has_what_was_asked_and_its_seed(small_audit):
    _, run = small_audit
    targets = run["targets"].filter(document_id="d3")
    answers = answers_of(run, targets)
    target_id = targets["target_id"].item()
    assert answers["sample_index"].to_list() == [0, 1, 2]
    assert answers["seed"].to_list() == [sample_seed(0, target_id) + number for number in range(3)]
    assert answers["context"].unique().to_list() == targets["prefix"].to_list()
    assert answers["text"].unique().to_list() == targets["reference"].to_list()


@pytest.fixture
def asked(tmp_path):
    """Probes at an endpoint that answers the most likely word."""
    documents().write_parquet(tmp_path / "corpus.parquet")
    with HostileServer(TinyModel()) as server:
        run = mia_batch.audit(
            input=str(tmp_path / "corpus.parquet"),
            model=MODEL,
            base_url=server.url,
            probes=3,
            attacks=["probe_first_word_v1"],
            out=str(tmp_path / "run"),
        )
        yield run, server


def test_an_endpoint_is_asked_anew(asked):
    run, server = asked
    n = len(server.asked)
    drawn = draw_again(run, choose_samples(run, 4, 0), Observer(), base_url=server.url)
    assert drawn["again"].to_list() == drawn["candidate"].to_list()
    assert len(server.asked) >= n + 4
    assert answers_of(run, run["targets"].head(1))["seed"].null_count() == 3


def test_another_model_is_refused(small_audit, tmp_path):
    _, run = small_audit
    manifest = run.manifest
    manifest.models["target"]["source"]["digest"] = "0" * 64
    other = type(run)(tmp_path)
    for name in ("samples", "prompts"):
        other.path(name).symlink_to(run.path(name))
    other.path("targets").symlink_to(run.path("targets"))
    manifest.write(tmp_path)
    with pytest.raises(mia_batch.SettingsError, match=f"{tmp_path} holds evidence made with"):
        draw_again(other, choose_samples(other, 1, 0), Observer())


def test_a_recording_cannot_be_drawn_again(small_audit, tmp_path):
    settings, run = small_audit
    replayed = mia_batch.audit(
        input=settings["input"], samples_from=str(run.path("samples")), out=str(tmp_path)
    )
    with pytest.raises(mia_batch.SettingsError, match="came from a recording"):
        draw_again(replayed, choose_samples(replayed, 1, 0), Observer())


def test_a_run_without_samples_has_none_to_draw(small_audit):
    _, run = small_audit
    none = run["samples"].filter(pl.lit(value=False))
    with pytest.raises(mia_batch.SettingsError, match="nothing to draw again"):
        draw_again(run, none, Observer())
