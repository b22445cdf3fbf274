"""What is said of verdicts: nothing that was asked for stays without an answer."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch.inference.findings import finding_rows, plan_findings, preregister, reported_findings
from mia_batch.inference.power import power_findings
from mia_batch.inference.verdicts import placebo_findings, verdicts
from mia_batch.report.unlabelled import (
    placebo_sentence,
    plan_sentence,
    power_sentences,
    unlabelled_sentences,
    weights_sentence,
)
from tests.unit.inference.scored import plan, rows, table

NULLS = rows("non_member", [0.1 * index for index in range(9)])


def said(*parts, **changes):
    planned = plan(**changes)
    made = pl.concat(verdicts(table(*parts).lazy(), ["a_v1"], planned)).lazy()
    return list(unlabelled_sentences(made, reported_findings(made, planned), planned))


def test_groups_that_are_reported_are_named():
    books = [rows("target", [n / 10] * 2, document_id=f"b{n}") for n in (9, 8, 0)]
    lines = said(*books, rows("non_member", [0.0] * 39), level="group", windows_per_group=1, q=0.1)
    assert lines[0].startswith("2 of 3 groups are reported at q = 0.1 ")
    assert lines[1] == "Reported: b9, b8."


def test_texts_without_groups_are_groups_of_their_own():
    lines = said(rows("target", [0.95, 0.05]), NULLS, level="group", q=0.2)
    assert lines[0].startswith("1 of 2 groups are reported at q = 0.2 ")
    assert lines[0].endswith("on average at most 20 % false.")
    assert "The null: known." in lines


def test_groups_that_cannot_be_compared_are_counted_with_their_reason():
    book = rows("target", [0.5, 0.6], group="b")
    lines = said(book, NULLS, level="group", windows_per_group=3)
    assert lines[0].startswith("None of 1 groups is reported")
    assert "against 0 independent units" in lines[0]
    assert lines[1] == "Without a p-value: 1 groups (mostly: the group has 2 of 3 windows)."


def test_a_collection_has_its_null_or_a_reason():
    lines = said(rows("target", [0.95]), NULLS, level="collection", null_set="new.")
    assert lines[:2] == [
        "All groups together, by a_v1: p = 0.1 (permutation_exact).",
        "The null: new.",
    ]
    none = said(rows("target", [0.95]), NULLS, level="collection", windows_per_group=2)
    assert none[0] == ("All groups together, by a_v1: no p-value (no null group has 2 windows).")


def test_what_the_plan_is_not_about_is_exploratory():
    lines = said(rows("target", [0.9, 0.8], group="b"), rows("non_member", [0.1], group="c"))
    assert lines[1] == (
        "All groups together, by a_v1: p = 0.5 "
        "(permutation_exact; exploratory, the plan is about each target)."
    )


def test_targets_without_score_or_without_a_null_of_their_length_are_counted():
    short = rows("target", [0.9], n_words=5)
    lines = said(short, rows("target", [None, 0.2]), NULLS, length_edges=(50,))
    assert lines[1] == "Without a p-value: 1 targets (mostly: the target has no score)."
    assert lines[2] == "Nothing to compare with, so never reported: 1 targets."


def test_a_small_q_is_not_rounded_away():
    lines = said(rows("target", [5.0]), rows("non_member", [0.0] * 999), q=0.001)
    assert lines[0].endswith("on average at most 0.1 % false.")


def power(n_targets, n_null, suffix=None, **changes):
    parts = ((role, n) for role, n in (("target", n_targets), ("non_member", n_null)))
    texts = [
        rows(role, [0] * 4, group=f"{role} {index}{suffix}") if suffix else rows(role, [0])
        for role, n in parts
        for index in range(n)
    ]
    return list(power_sentences(power_findings(table(*texts).lazy(), plan(**changes))))


@pytest.mark.parametrize(
    ("said", "asked", "changes"),
    [
        (
            "With 25 comparison books single books can be named only if 21 of your 27 stand out; "
            "to name five of them, give at least 107, or ask --level collection.",
            (27, 25, ".epub"),
            {"level": "group"},
        ),
        (
            "With 300 comparison texts single texts can be named only if 67 of your 1,000 stand "
            "out; to name five of them, give at least 3,999, or ask --level collection.",
            (1000, 300),
            {},
        ),
        (
            "With 18 comparison documents none of your 50 documents can be named at q = 0.05, "
            "whatever the scores; to name five of them, give at least 199, or ask --level "
            "collection.",
            (50, 18),
            {"level": "group"},
        ),
        (
            "With 199 comparison texts a single one of your 20 texts can be named, if it stands "
            "out.",
            (20, 199),
            {"q": 0.1},
        ),
        (
            "With at most 100 comparison texts of one length single texts can be named only if 2 "
            "of your 9 stand out; to name one of them, give at least 179 of each length, or ask "
            "--level collection.",
            (9, 100),
            {"length_edges": (50,)},
        ),
        (
            "With 2 comparison groups your group cannot be named at q = 0.05, whatever the scores; "
            "to name it, give at least 19.",
            (1, 2, "!"),
            {"level": "group"},
        ),
        (
            "With 30 comparison documents the p-value of your 3 documents together can be 0.00018 "
            "at best.",
            (3, 30),
            {"level": "collection"},
        ),
        (
            "With 3 comparison documents nothing can be shown at 0.05, for the p-value of your 2 "
            "documents together can be 0.1 at best: give at least 5.",
            (2, 3),
            {"level": "collection"},
        ),
        (
            "None of your 2 groups can be compared: too few windows, or of unknown length.",
            (2, 3, "!"),
            {"level": "group", "windows_per_group": 5},
        ),
    ],
)
def test_what_can_be_shown_at_best_is_said_first(said, asked, changes):
    assert power(*asked, **changes)[0] == said


def test_what_standing_out_means_and_what_a_bound_needs_is_said_next():
    assert power(27, 25, ".txt", level="group")[1:] == [
        "A book stands out where it scores higher than every comparison book: its p-value is then "
        "0.038. Those named are a list at q = 0.05 (Benjamini-Hochberg).",
        "That at least one of your 27 books is in the training data can be shown if 6 of them "
        "score higher than every comparison book.",
    ]
    assert power(1, 0) == []


BEFORE = {"samples": 5, "input": "1f", "non_member": "2e"}


def said_of_the_plan(rests_on=BEFORE, recorded=BEFORE, **changes):
    made = plan_findings(plan(**changes), preregister(plan(), recorded, ["a_v1"]), rests_on)
    return made, next(plan_sentence(made), None)


def test_answers_that_had_been_planned_need_no_sentence():
    made, sentence = said_of_the_plan()
    assert made.select("statistic", "value", "verdict").rows() == [("n_changed", 0, "as_planned")]
    assert sentence is None


def test_other_texts_or_another_plan_are_exploratory():
    made, sentence = said_of_the_plan({"samples": 6, "input": "1f", "calibration": "3d"})
    assert made["value"].to_list() == [3, None, None, None]
    assert sentence == (
        "These answers are exploratory: scores had been made before they were asked for. The plan "
        "made before is in run.json (primary attack a_v1). "
        "Changed since: calibration, non_member, samples."
    )
    _, sentence = said_of_the_plan(primary="b_v1")
    assert sentence is not None
    assert sentence.endswith("(primary attack a_v1).")


def test_a_plan_made_after_the_scores_is_exploratory():
    assert said_of_the_plan(recorded=None)[1] == (
        "These answers are exploratory: scores had been made before any plan was recorded."
    )


def test_every_number_of_a_report_is_a_finding():
    made = pl.concat(verdicts(table(rows("target", [0.95, None]), NULLS).lazy(), ["a_v1"], plan()))
    found = reported_findings(made.lazy(), plan())
    assert found["subject"].unique().to_list() == ["target"]
    assert {row["statistic"]: row["value"] for row in found.to_dicts()} == {
        "n_tests": 2,
        "n_reported": 0,
        "smallest_q": 0.2,
        "n_null": 9,
        "n_without_null": 0,
        "n_without_p": 1,
        "q": 0.05,
    }
    assert found.filter(statistic="n_without_p")["reason"].to_list() == ["the target has no score"]
    assert found.filter(statistic="q")["verdict"].to_list() == ["bh"]
    assert reported_findings(made.lazy(), plan(level="collection")).equals(
        finding_rows("reported", [])
    )


def of_few(at_least, of_top, noun="document", n=4):
    """What is said of books that score n, n - 1, ..., the first named b0."""
    book = [rows("target", [n - k] * 2, document_id=f"b{k}") for k in range(n)]
    made = pl.concat(verdicts(table(*book, NULLS).lazy(), ["a_v1"], plan()))
    numbers = {"n_null": 1040, "confidence": 0.95, "at_least": at_least, "of_top": of_top}
    top = [{"subject": noun, "statistic": name, "value": n} for name, n in numbers.items()]
    said = unlabelled_sentences(made.lazy(), finding_rows("top", top), plan())
    return "".join(line for line in said if "highest-scoring" in line)


def test_so_many_of_the_highest_are_named():
    assert of_few(2, 4) == (
        "At least 2 of the 4 highest-scoring documents stand out beyond chance from 1,040 "
        "documents outside the training data (95 % confidence, a_v1): b0, b1, b2, b3. "
        "The bound does not say which 2 they are."
    )
    assert of_few(2, 14, n=14).endswith(
        "b9, b10, b11 and 2 more. The bound does not say which 2 they are."
    )
    assert of_few(1, 2).startswith("At least 1 of the 2 highest-scoring documents stands out")
    assert of_few(3, 3).startswith("All 3 highest-scoring documents stand out")
    assert of_few(1, 1).startswith("The highest-scoring document stands out")
    assert of_few(3, 3, "text").endswith("(95 % confidence, a_v1).")
    assert not of_few(0, None)


def test_all_attacks_together_have_one_sentence():
    largest = {"subject": "b_v1", "statistic": "largest", "p_value": 0.004}
    count = {"subject": "document", "statistic": "n_attacks", "value": 9}
    nothing = table(rows("target", [0.1]), NULLS).lazy()
    made = pl.concat(verdicts(nothing, ["a_v1"], plan())).lazy()

    def said(verdict):
        found = finding_rows("max_t", [largest | {"verdict": verdict}, count])
        return next(iter(unlabelled_sentences(made, found, plan())))

    assert said("as_planned") == (
        "All 9 attacks together (largest rank sum, whole documents permuted): p = 0.004, "
        "strongest: b_v1."
    )
    assert "whole documents permuted; exploratory): p = 0.004" in said("exploratory")


def placebo(own, others, **changes):
    """What is said of the placebo, warnings and all else, by scores of targets."""
    planned = plan(**{"q": 0.2} | changes)
    frame = table(rows("target", own), NULLS)
    other = pl.Series("placebo_of_a_v1", [*others, *(row["a_v1"] for row in NULLS)], pl.Float64)
    made = pl.concat(verdicts(frame.lazy(), ["a_v1"], planned)).lazy()
    reported = reported_findings(made, planned)
    found = placebo_findings(frame.with_columns(other).lazy(), planned, reported, None)
    assert found["check"].unique().to_list() == ["placebo"]
    return [[*placebo_sentence(found, verdict)] for verdict in ("as_many", "fewer")]


def test_a_placebo_that_reports_nothing_is_said_and_one_that_reports_half_as_many_warns():
    same = "The same test on the reference model"
    known = f"{same} (which cannot know these texts)"
    none = f"{known} reports 0 of 4 targets (smallest q 1)."
    assert placebo([0.95] * 4, [0.0] * 4) == [[], [none]]
    assert placebo([0.95] * 4, [0.95, 0.95, 0, 0], q=0.2)[0] == [
        f"{same} reports 2 of 4 targets (smallest q 0.2): what is found on the audited model is no "
        "evidence of its memory."
    ]
    one = f"{known} reports 1 of 4 targets (smallest q 0.4)."
    assert placebo([0.95] * 4, [0.95, 0, 0, 0], q=0.4) == [[], [one]]
    assert placebo([0.0] * 4, [0.95, 0, 0, 0], q=0.4)[0]


def test_a_placebo_of_a_collection_has_a_p_value():
    high, low = (
        placebo([0.9] * 2, [0.95] * 2, level="collection")[0],
        placebo([0.9] * 2, [0.0, 0.1], level="collection"),
    )
    assert high[0].startswith("The same test on the reference model has p = 0.0182 for all groups")
    assert low[0] == []
    assert low[1][0].endswith(
        "(which cannot know these texts) has p = 0.982 for all groups together."
    )


def test_a_placebo_without_scores_is_not_made():
    assert placebo([0.9] * 2, [None] * 2)[1] != []
    none = pl.Series("placebo_of_a_v1", [None] * 10, pl.Float64)
    frame = table(rows("target", [0.9]), NULLS).with_columns(none).lazy()
    found = placebo_findings(frame, plan(), pl.DataFrame(), None)
    assert [*placebo_sentence(found, "as_many")] == []
    assert [*placebo_sentence(found, "fewer")] == [
        "The same test was not made on the reference model: the reference model has no answers "
        "that the primary attack can score."
    ]


def test_weights_are_said_with_their_assumption_or_what_prevents_them():
    used = finding_rows(
        "weights",
        [
            {"statistic": "n_effective", "value": 31.25, "verdict": "used"},
            {"statistic": "n_null", "value": 100},
        ],
    )
    (sentence,) = weights_sentence(used)
    assert "100 of them count as 31.2. p-values then hold if" in sentence
    none = {"statistic": "n_effective", "verdict": "no_overlap", "reason": "too few are alike"}
    assert [*weights_sentence(finding_rows("weights", [none]))] == [
        "Weights do not help: too few are alike."
    ]
    assert [*weights_sentence(finding_rows("weights", []))] == []
