"""Sentences about the texts, from rows of findings as the checks make them."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch.diagnostics.preflight import check_targets
from mia_batch.diagnostics.unscored import uneven_findings
from mia_batch.inference.findings import finding_rows, gate_findings
from mia_batch.report.sentences import (
    copies_sentence,
    duplicates_sentence,
    exchangeability_sentence,
    excluded,
    gate_sentence,
    label_sentence,
    uneven_sentence,
)
from mia_batch.schemas import Findings

WORDS = [f"w{i}" for i in range(40)]


def targets(*rows):
    """Rows of text, role, member, group; ids are counted."""
    schema = {
        "target": pl.String,
        "role": pl.String,
        "member": pl.Boolean,
        "group": pl.String,
    }
    frame = pl.DataFrame(rows, schema, orient="row")
    frame = frame.with_columns(n_windows=pl.lit(1, pl.UInt32))
    return frame.with_row_index("target_id").cast({"target_id": pl.String}).lazy()


def findings(*rows):
    return check_targets(targets(*rows), seed=0).findings


def scores(n, lost):
    """Members 0 to n - 1, then as many non-members; ``lost``: rows without a score, by attack."""
    values = {
        name: pl.Series([None if row in rows else 1.0 for row in range(2 * n)], dtype=pl.Float64)
        for name, rows in lost.items()
    }
    return pl.LazyFrame(
        {
            "target_id": [str(row) for row in range(2 * n)],
            "role": ["target"] * 2 * n,
            "group": pl.Series([None] * 2 * n, dtype=pl.String),
            "member": [row < n for row in range(2 * n)],
            **values,
        }
    )


def blind(**row):
    of = {"check": "blind_baseline", "subject": "members"}
    rows = [of | {"statistic": "roc_auc"} | row]
    if row.get("value") is not None:
        rows.append(of | {"statistic": "strongest", "verdict": "blind_year_v1"})
    return pl.DataFrame(rows, schema=Findings.create_empty().schema)


def test_duplicates_of_both_classes_are_counted():
    found = findings(
        ("Once W0, w1\nw2. " + " ".join(WORDS[3:13]), "target", True, None),
        (" ".join(WORDS[:12]), "target", True, None),
        (" ".join(WORDS[20:34]), "target", True, None),
        ("says: " + " ".join(WORDS[:14]) + " and so on for words and words", "target", False, None),
        ("nothing of the kind at all in these nine words", "target", False, None),
    )
    assert list(duplicates_sentence(found, "members", ("members", "non-members"))) == [
        "Near-duplicates (a run of 13 words or 70% of the runs of 8 words are in the other set): "
        "2 of 3 members, 66.7%, 1 of 2 non-members, 50.0%; for example 0 has words of 3."
    ]
    assert list(duplicates_sentence(found, "targets", ("targets", "non-members"))) == []


def test_texts_without_duplicates_need_no_sentence():
    found = findings(("one two", "target", True, None), ("three four", "target", False, None))
    assert list(duplicates_sentence(found, "members", ("members", "non-members"))) == []


@pytest.mark.parametrize(("n_texts", "n_copies"), [(100, 0), (300, 2)])
def test_few_copies_are_not_worth_a_warning(n_texts, n_copies):
    texts = ["same"] * n_copies + [f"text {row}" for row in range(n_texts - n_copies)]
    found = findings(*((text, "target", None, None) for text in texts))
    assert list(copies_sentence(found)) == []


def test_many_copies_are_warned_of():
    texts = ["same"] * 20 + [f"text {row}" for row in range(1980)]
    found = findings(*((text, "target", None, f"g{row}") for row, text in enumerate(texts)))
    assert list(copies_sentence(found)) == [
        "20 of 2,000 texts stand in another group or document, too, word for word: their errors "
        "move together, but intervals and p-values count them as independent. Give copies the same "
        "group, or keep one of each."
    ]


def test_uneven_scores_name_classes_and_their_reason():
    lost = {"a_v1": range(70)}
    reason = "the reference has no words"
    unscored = pl.LazyFrame(
        [(str(row), "a_v1", reason) for row in range(70)],
        ["target_id", "attack", "reason"],
        orient="row",
    )
    found = uneven_findings(scores(1000, lost), list(lost), unscored)
    assert list(uneven_sentence(found)) == [
        "Members and non-members do not lack scores alike: no score by a_v1 for 70 of 1,000 "
        "members (7.0%; mostly: the reference has no words) and 0 of 1,000 non-members (0.0%). "
        "AUC and other metrics then describe a selected subset, and may show how it was selected "
        "instead of memory. Ask again for what failed (--retry-failed), leave such texts out of "
        "both classes by a rule that does not ask the model, or rest the answer on an attack that "
        "scores both."
    ]


def test_answers_that_would_be_the_same_again_are_not_offered_for_another_try():
    lost = {"a_v1": range(70)}
    reasons = pl.LazyFrame(schema=dict.fromkeys(("target_id", "attack", "reason"), pl.String))
    found = uneven_findings(scores(1000, lost), list(lost), reasons)
    for kind, advice in {"filtered": "Leave", "failed": "Ask again for what failed"}.items():
        rows = [
            {"subject": "continuation", "statistic": name, "value": 9} for name in (kind, "cut")
        ]
        (said,) = uneven_sentence(pl.concat([found, finding_rows("answers", rows)]))
        assert f"instead of memory. {advice}" in said


def test_uneven_scores_name_three_of_many_attacks():
    lost = {name: range(20) for name in ("a_v1", "b_v1", "c_v1", "d_v1", "e_v1")}
    lost |= {"f_v1": range(18), "g_v1": range(18)}
    unscored = pl.LazyFrame(schema=dict.fromkeys(("target_id", "attack", "reason"), pl.String))
    (said,) = uneven_sentence(uneven_findings(scores(20, lost), list(lost), unscored))
    assert "no score by a_v1, b_v1, c_v1 and 2 more for 20 of 20 members (100.0%) and" in said
    assert " Uneven, too: f_v1, g_v1. AUC " in said


def test_what_a_comparison_excludes():
    assert excluded(0.58) == "differences above AUC 0.58 are excluded"
    assert excluded(0.997) == excluded(None) == "too few texts to exclude any difference"


HOLDS = "what follows holds only if they differ in nothing but training."


@pytest.mark.parametrize(
    ("row", "verdict", "said"),
    [
        (
            {"value": 0.99, "p_value": 0.005, "high": 1.0, "verdict": "separable"},
            "withheld",
            "No answer: the audited texts and the comparison texts can be told apart without the "
            "model (AUC 0.99 by blind_year_v1, p = 0.005), so a high score may come from what else "
            "they differ in. p-values, lists, bounds and estimates are withheld. Give comparison "
            "texts of the same kind and time (mia-batch build-set matches them), or --exploratory "
            "to print the numbers, marked as such.",
        ),
        (
            {"value": 0.5, "p_value": 0.7, "high": 0.71, "verdict": "undecided"},
            "doubtful",
            "Whether the audited texts and the comparison texts can be told apart without the "
            f"model is undecided (an AUC up to 0.71 is not excluded): {HOLDS}",
        ),
        (
            {"reason": "each class needs texts of 5 clusters"},
            "doubtful",
            "Nobody checked whether the audited texts and the comparison texts differ (each class "
            f"needs texts of 5 clusters): {HOLDS}",
        ),
    ],
)
def test_how_unlike_targets_and_nulls_are(row, verdict, said):
    made = blind(**row).with_columns(subject=pl.lit("targets"))
    gate = gate_findings(made, exploratory=False)
    assert gate["verdict"].to_list() == [verdict]
    assert list(gate_sentence(pl.concat([made, gate]))) == [said]


def test_alike_they_need_no_warning_but_say_what_is_excluded():
    row = {"value": 0.5, "p_value": 0.7, "high": 0.56, "verdict": "not separable"}
    made = blind(**row).with_columns(subject=pl.lit("targets"))
    gate = gate_findings(made, exploratory=False)
    assert gate["verdict"].to_list() == ["open"]
    assert list(gate_sentence(pl.concat([made, gate]))) == []
    assert list(exchangeability_sentence(made)) == [
        "Classifiers that see only the texts do not tell targets from non-members: an AUC above "
        "0.56 is ruled out with 95 % confidence (0.50 is guessing)."
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"value": 0.99, "p_value": 0.005, "high": 1.0, "verdict": "separable"},
            "These labels can be told apart without the model (AUC 0.99 by blind_year_v1, "
            "p = 0.005): attack figures are not evidence of memory.",
        ),
        (
            {"value": 0.5, "p_value": 0.7, "high": 0.71, "verdict": "undecided"},
            "Whether these labels can be told apart without the model is undecided (an AUC up to "
            "0.71 is not excluded): what an attack is worth is its lead over blind_year_v1, which "
            "never sees the model.",
        ),
        (
            {"reason": "each class needs texts of 5 clusters"},
            "Whether these labels can be told apart without the model is unknown (each class needs "
            "texts of 5 clusters): attack figures alone are no evidence of memory.",
        ),
        (
            {"value": 0.5, "p_value": 0.7, "high": 0.56, "verdict": "not separable"},
            "These labels could not be told apart without the model: differences above AUC 0.56 "
            "are excluded.",
        ),
    ],
)
def test_the_blind_baseline_comes_first(row, said):
    assert list(label_sentence(blind(**row))) == [said]
