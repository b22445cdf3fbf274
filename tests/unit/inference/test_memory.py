from typing import Any

import polars as pl
import pytest

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.memory import (
    longest_stretches,
    verbatim_findings,
    verbatim_runs,
)
from mia_batch.report.sentences import foreseen_sentences, verbatim_sentences
from mia_batch.schemas import Controls, ExtractedDocuments, Extraction, Targets
from tests.frames import features, target_id
from tests.frames import table as table_of
from tests.unit.inference.scored import rows, table

PASSAGE = " ".join(f"word{n}" for n in range(25))


def find_memory(
    target_words,
    null_words=(),
    *,
    controls=None,
    walked=0,
    all_continued=True,
    cut_counts=None,
    stretch=None,
    **columns,
):
    """Findings of targets and non-members with such longest runs, None where nothing came."""
    scored = table(
        rows("target", target_words, **columns), rows("non_member", null_words)
    ).lazy()
    sets = read_comparison_sets(scored, with_names=False)
    longest = pl.Series("longest_words", [*target_words, *null_words], dtype=pl.UInt32)
    whole = {"copied": False, "run_words": longest, "foreseen_words": 0}
    runs = pl.DataFrame([longest, longest.alias("near_words")]).with_columns(
        **whole | (cut_counts or {})
    )
    targets_out = [n for n, words in enumerate(target_words) if (words or 0) >= 20]
    passages = pl.DataFrame(
        {
            "target_id": [f"t{n}" for n in targets_out] + ["t0"] * walked,
            "name": ["book.txt"] * (len(targets_out) + walked),
            "passage": [PASSAGE] * len(targets_out) + [f"{PASSAGE} end"] * walked,
            "text": [None] * len(targets_out) + [PASSAGE] * walked,
        },
        schema=dict.fromkeys(("target_id", "name", "passage", "text"), pl.String),
    )
    n_words = pl.col("passage").str.split(" ").list.len()
    passages = passages.with_columns(n_words=n_words, n_left=n_words)
    stretches = passages.clear() if stretch is None else stretch
    return verbatim_findings(
        runs, sets, passages, controls, stretches, all_continued=all_continued
    )


def control_samples(*common):
    """The controls table, where these targets' passages also follow an unrelated prefix."""
    schema = Controls.create_empty().schema
    blank = dict.fromkeys(schema)
    control_rows = [
        blank
        | {
            "target_id": name,
            "control": "unrelated_prefix",
            "common": name in common,
            "longest_words": 25 if name in common else 3,
        }
        for name in ("t0", "t1")
    ]
    return pl.DataFrame(control_rows, schema=schema)


def counts(rows, subject):
    return dict(rows.filter(subject=subject).select("statistic", "value").iter_rows())


def test_texts_and_documents_are_counted_of_both_sets():
    findings = find_memory([25, 20, 19, None, 0], [0] * 30 + [22])
    assert counts(findings, "targets") == {
        "n_texts": 4,
        "n_verbatim": 2,
        "n_copied": 0,
        "n_foreseen": 0,
        "run_words": 0,
        "foreseen_words": 0,
        "run_words_out": 45,
        "foreseen_words_out": 0,
        "n_near": 2,
        "n_units": 4,
        "n_units_verbatim": 2,
        "n_walked": 0,
        "fisher": None,
    }
    assert counts(findings, "non_members")["n_units_verbatim"] == 1
    # 3 of 35 have a passage, 2 of them among these 4: (C(4,2) C(31,1) + C(4,3)) /
    # C(35,3).
    p = findings.filter(statistic="fisher")["p_value"].item()
    assert p == pytest.approx((6 * 31 + 4) / 6545)
    in_one = find_memory([25, 20, 19, 0], [0], document_id="book.txt")
    assert counts(in_one, "targets")["n_units_verbatim"] == 1
    assert " in 1 of 1 documents (book.txt). The longest" in next(
        verbatim_sentences(in_one)
    )
    longest = findings.filter(statistic="longest").row(0, named=True)
    assert (longest["subject"], longest["value"], longest["reason"]) == (
        "book.txt",
        25,
        PASSAGE,
    )


def test_common_passages_and_no_continuations_are_no_evidence():
    findings = find_memory([25, 20], [0] * 9, controls=control_samples("t0"))
    assert counts(findings, "targets")["n_verbatim"] == 1
    assert counts(findings, "unrelated_prefix") == {"passages": 2, "repeated": 1}
    findings = find_memory([None, None], [None])
    assert findings.is_empty()
    assert [*verbatim_sentences(findings)] == []
    assert [*verbatim_sentences(find_memory([19, 3], [0]))] == []


def test_what_came_out_is_said_with_its_passage_and_what_chance_gives():
    first, second = verbatim_sentences(
        find_memory([25, 20] + [0] * 8, [0] * 40, controls=control_samples())
    )
    assert first == (
        "Word for word (at least 20 words in a row) the model gives back 2 of 10 texts"
        " asked "
        f'about. The longest passage, of book.txt, has 25 words: "{PASSAGE}"'
    )
    assert (
        second
        == "For comparison: 0 of 40 comparison texts come out; 0 of 2 passages come"
        " after an unrelated prefix, too (Fisher's exact test: p = 0.037)."
    )
    _, as_many = verbatim_sentences(find_memory([25] + [0] * 9, [30] * 4 + [0] * 36))
    assert as_many.endswith(
        "p = 0.69), so these counts alone do not tell the two apart."
    )
    first, unknown = verbatim_sentences(find_memory([25], walked=1))
    assert (
        "1 of 1 texts asked about and 1 more passages when the model is followed"
        in first
    )
    assert "has 26 words" in first
    assert unknown.startswith("How often chance gives as much was not measured")
    highest, by_chance = verbatim_sentences(
        find_memory([25, 0, None], [0, None], all_continued=False)
    )
    assert "gives back 1 of 2 texts of highest scores." in highest
    assert "0 of 1 comparison texts of highest scores come out" in by_chance
    (copied,) = foreseen_sentences(find_memory([3, 0], cut_counts={"copied": True}))
    assert copied.startswith(
        "Answers about 2 texts repeat 20 words or more of the given prefix"
    )
    assert [*foreseen_sentences(find_memory([25, 0]))] == []
    (foreseen,) = foreseen_sentences(
        find_memory([3, 25], cut_counts={"run_words": 32, "foreseen_words": 30})
    )
    assert (
        foreseen
        == "Answers about 1 text go on as anyone could who has read what stands before,"
        " by counting, by a table's rows or by repeating: 30 of 32 words in a row"
        " could be foreseen, so they do not count as word for word."
    )
    first, foreseen_note, _ = verbatim_sentences(
        find_memory([22, 3], cut_counts={"foreseen_words": 5})
    )
    assert "has 22 words, without 3 of stretches that could be foreseen:" in first
    assert (
        foreseen_note
        == "Of 22 words in a row that its answers give back, 5 could be foreseen by who"
        " has read what stands before."
    )
    long = find_memory([25]).with_columns(
        reason=pl.when(statistic="longest")
        .then(pl.lit("so " * 200))
        .otherwise("reason")
    )
    assert next(verbatim_sentences(long)).endswith('so so..."')


REFRAIN = "so we sang of the winter that went by in the old hotel above the snow and"

OWN_LINES = (
    "the lamps were lit late that year because nobody could find a ladder long enough"
    " for streets where an old tramway had once climbed"
)


@pytest.mark.parametrize(
    ("prefix", "reference", "expected"),
    [
        (f"{REFRAIN} {REFRAIN}", f"{REFRAIN} {REFRAIN}", (0, True, 34)),
        # Three words are the text's own: no 20 are left of 20.
        (REFRAIN, f"{REFRAIN} on we went", (3, True, 14)),
        # Who reads it again can go on with it, from its fifth word on.
        ("The book begins here.", f"{REFRAIN} {REFRAIN}", (21, False, 13)),
        # A run of 7 words that the prefix has, too, is no copy.
        ("so we sang of the winter that", f"{OWN_LINES} {REFRAIN}", (41, False, 3)),
        (REFRAIN, f"{REFRAIN} {OWN_LINES}", (28, False, 13)),
        (OWN_LINES, f"{REFRAIN} {PASSAGE}", (21, False, 21)),
    ],
)
def test_what_stands_in_the_prefix_is_copied_and_did_not_come_out(
    prefix, reference, expected
):
    text = [{"target_id": target_id(0), "prefix": prefix, "reference": reference}]
    n = len(reference.split())
    answer = {"target_id": target_id(0), "sample_index": 0, "longest_block_start": 0}
    answer |= {"longest_block_words": n, "near_verbatim_words": n}
    runs = verbatim_runs(
        table_of(Targets, text).lazy(), features(answer).lazy(), 1, "whitespace"
    )
    assert runs.select("longest_words", "copied", "foreseen_words").row(0) == expected
    assert runs.select("near_words", "run_words").row(0) == (expected[0], n)


def test_the_longest_passage_is_that_of_a_walk_where_it_is_longer():
    schema = {"name": pl.String, "passage": pl.String}
    walk = pl.DataFrame([("second.txt", f"{PASSAGE} and on")], schema, orient="row")
    walk = walk.with_columns(
        n_words=pl.lit(27, pl.UInt32), n_left=pl.lit(26, pl.UInt32)
    )
    for stretch, expected in ((None, ("book.txt", 25)), (walk, ("second.txt", 26))):
        rows = find_memory([25], stretch=stretch).filter(statistic="longest")
        assert rows.select("subject", "value").row(0) == expected
    sentence = next(verbatim_sentences(find_memory([25], stretch=walk)))
    assert "The longest passage, of second.txt, has 26 words, without 1 of" in sentence


def test_the_walk_of_the_longest_passage_is_found_with_its_text():
    """Of the second walk a passage is longer, though the first is the longer stretch."""
    text = " ".join(f"w{n:03d}" for n in range(200))
    walks: list[dict[str, Any]] = [
        {"walk": 0, "start": 0, "end": 500, "text": text[:500], "n_words": 100},
        {"walk": 1, "start": 600, "end": 900, "text": text[600:900], "n_words": 60},
        {"walk": 2, "start": 950, "end": 950, "text": None, "n_words": 0},
    ]
    walked = table_of(
        Extraction, walks, document_id="book", target_id="t", draw=0, n_rounds=1
    )
    places = [{"start": 100, "end": 200}, {"start": 700, "end": 880}]
    documents = table_of(
        ExtractedDocuments,
        [{"document_id": "book", "longest_words": 36, "passages_20": places}],
    )
    (row,) = longest_stretches(walked.lazy(), documents.lazy()).to_dicts()
    assert (row["walk"], row["n_left"], row["passage"]) == (1, 36, text[700:880])
    older = walked.with_columns(text=pl.lit(None, pl.String))
    (row,) = longest_stretches(older.lazy(), documents.lazy()).to_dicts()
    assert (row["walk"], row["passage"]) == (1, None)
