"""Audits of documents drawn of a corpus: what they say of all, what a plan binds, how they grow."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mia_batch.errors import SettingsError
from mia_batch.pipeline import plan
from mia_batch.pipeline.run import Run
from mia_batch.settings import load_settings
from tests.runs import audit, planned, rescore, said_of
from tests.texts import invent_text

N_WORDS = 24


def write_texts(folder: Path, name: str, n: int, **columns) -> str:
    texts = [invent_text(N_WORDS, f"{name} {i}") for i in range(n)]
    names = [f"{name}{i}" for i in range(n)]
    path = folder / f"{name}.parquet"
    table = {"document_id": names, "text": texts, **columns}
    pl.DataFrame(table).write_parquet(path)
    return str(path)


def write_logprobs(folder: Path, known_texts: set[str], texts: list[str]) -> str:
    """Log-probabilities of a model that knows some texts, with words as tokens."""
    path = folder / "logprobs.jsonl"
    with path.open("w") as file:
        for text in texts:
            first, *later_words = text.split(" ")
            rng = np.random.default_rng(zlib.crc32(text.encode()))
            logprobs = rng.normal(
                -3 + (text in known_texts), 0.3, len(later_words)
            ).round(4)
            row = {
                "text": text,
                "view": "text",
                "tokens": [first, *(f" {word}" for word in later_words)],
                "logprob": [None, *logprobs.tolist()],
            }
            file.write(json.dumps(row) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """An audit of 120 documents of 600, half of them of a source of which most are known."""
    folder = tmp_path_factory.mktemp("drawn")
    sources = ["known" if i % 6 == 0 else "new" for i in range(600)]
    corpus = write_texts(folder, "corpus", 600, source=sources)
    comparison = write_texts(folder, "others", 80)
    labels = [i % 2 for i in range(80)]
    calibration = write_texts(folder, "calibration", 80, label=labels)
    texts = [
        pl.read_parquet(path)["text"] for path in (corpus, comparison, calibration)
    ]
    known_texts = {*texts[0].gather_every(6), *texts[2].filter(pl.Series(labels) == 1)}
    return {
        "input": corpus,
        "documents": 60,
        "draw_by": "source",
        "non_members": comparison,
        "non_members_known": "invented for this test",
        "calibration": calibration,
        "logprobs_from": write_logprobs(
            folder, known_texts, pl.concat(texts).to_list()
        ),
        "attacks": "loss_v1",
        "report": False,
    }


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    return audit(**settings, out=tmp_path_factory.mktemp("finished") / "run")


def test_the_first_sentence_is_about_all_documents(run):
    # 100 of 600 are known
    assert run.answer.startswith(
        "About 16.7 % of these 600 documents are known to the model (95 % CI 11.6 to"
        " 21.5; 120 drawn). Among those drawn: "
    )
    doubt = " In doubt, because training may not be the only difference"
    assert run.answer.count(doubt) == 1
    shares = run.shares.filter(check="known_share")
    assert shares.select("source", "n_documents", "n_drawn").rows() == [
        (None, 600, 120),
        ("known", 100, 60),
        ("new", 500, 60),
    ]
    assert shares["share"].to_list() == pytest.approx([1 / 6, 1, 0], abs=0.05)
    assert shares["low"][0] < 1 / 6 < shares["high"][0]
    sentences = said_of(run)
    assert (
        "120 of 600 documents were drawn by lot, so many of each value of 'source':"
        " what follows of single documents is about these." in sentences
    )
    lines = [line for line in sentences if line.startswith("source = ")]
    assert [line.split(":")[0] for line in lines] == ["source = known", "source = new"]


def test_the_run_records_the_draw(run):
    draw = run.manifest.input["draw"]
    assert (draw["asked"], draw["by"], draw["column"]) == (60, "source", "source")
    assert (draw["n_documents"], draw["n_drawn"]) == (600, 120)
    assert draw["sources"] == [["known", 100, 60], ["new", 500, 60]]
    assert len(run["targets"].filter(role="target")) == 120
    assert run.manifest.input["n_documents"] == 120


def test_a_dry_run_says_what_is_drawn_and_its_plan_binds_it(settings, tmp_path):
    lines = planned(settings | {"out": str(tmp_path / "run")})
    assert lines["documents"] == (
        "120 of 600 documents are drawn, at most 60 of each of 2 values of column 'source'"
    )


def test_other_draws_differ_from_the_plan(settings, tmp_path):
    path = tmp_path / "run"
    list(
        plan(load_settings(settings | {"out": str(path)}, use_config=False), write=True)
    )
    plan_written = json.loads((path / "plan.json").read_text())
    assert plan_written["draw"]["rows_sha256"]
    assert (
        plan_written["settings"]["documents"],
        plan_written["settings"]["seed"],
    ) == (60, 0)
    lodged = str(path / "plan.json")
    for changes in ({"documents": 61}, {"seed": 1}, {"draw_by": None}):
        other_settings = (
            settings | changes | {"plan": lodged, "out": str(tmp_path / "other")}
        )
        with pytest.raises(SettingsError) as refusal:
            planned(other_settings)
        assert "draw: planned " in str(refusal.value)


def test_scoring_anew_keeps_the_shares(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    shares_before = run["findings"].filter(check="known_share")
    again = rescore(folder, attacks="loss_v1,min_k_20_v1", report=False)
    assert again["findings"].filter(check="known_share").equals(shares_before)


def test_a_larger_draw_adds_to_a_run_and_is_not_as_planned(settings, tmp_path):
    run_folder = str(tmp_path / "run")
    small = {"non_members", "non_members_known", "calibration"}
    alone = {name: value for name, value in settings.items() if name not in small}
    first = audit(**alone | {"documents": 5, "out": run_folder})
    targets_before = {*first["targets"]["target_id"]}
    assert first.answer == (
        "Scores only rank your texts: without comparison texts there is no answer. What"
        " share of the 600 documents is known, of which 10 were drawn, is not said."
    )
    grown = audit(**alone | {"documents": 8, "out": run_folder})
    assert targets_before < {*grown["targets"]["target_id"]}
    assert grown["targets"].height == 16
    assert grown.manifest.input["draw"]["n_drawn"] == 16
    changed = grown["findings"].filter(check="plan", statistic="changed")["subject"]
    assert [*changed] == ["draw"]
    again = audit(**alone | {"documents": 8, "out": run_folder})
    assert again["targets"].equals(grown["targets"])


def test_without_comparison_texts_the_share_is_one_of_what_comes_out(tmp_path):
    corpus = write_texts(tmp_path, "verbatim", 60)
    rows = []
    for number, text in enumerate(pl.read_parquet(corpus)["text"]):
        words = text.split()
        # Of every third document the rest comes out
        rest = " ".join(words[3:]) if number % 3 == 0 else "none of these words"
        rows.append((f"verbatim{number}", rest))
    recording = tmp_path / "recording.parquet"
    columns = ["document_id", "candidate"]
    pl.DataFrame(rows, schema=columns, orient="row").write_parquet(recording)
    settings = {
        "input": corpus,
        "samples_from": str(recording),
        "prefix_ratio": 0.15,
        "report": False,
    }
    run = audit(**settings, documents=30, out=str(tmp_path / "run"))
    (row,) = run.shares.filter(check="verbatim_share").to_dicts()
    n_out = sum(
        int(name.removeprefix("verbatim")) % 3 == 0
        for name in run["targets"]["document_id"]
    )
    assert row["share"] == n_out / 30
    assert row["low"] < 1 / 3 < row["high"]
    assert run.answer.startswith(
        f"About {100 * n_out / 30:.1f} % of these 60 documents"
    )


def test_a_draw_needs_a_corpus_of_ones_own(settings, tmp_path):
    with pytest.raises(SettingsError, match="draw_by= needs documents= as well"):
        audit(**settings | {"documents": None, "out": str(tmp_path / "run")})
    with pytest.raises(SettingsError, match="leave one of the two out"):
        audit(
            dataset="wikimia:64",
            documents=5,
            model="m",
            out=str(tmp_path / "run"),
        )


def test_a_run_reads_its_shares_by_itself(run):
    assert Run(run.folder).shares.equals(run.shares)
