"""The answer of a run, its table of books, its table of attacks, and the table of a paper."""

import io
from dataclasses import replace

import polars as pl
import pytest

from mia_batch.attacks import get
from mia_batch.errors import SettingsError
from mia_batch.inference.findings import finding_rows
from mia_batch.report.answer import (
    STRIP,
    answer,
    attack_rows,
    audited_books,
    shade_strip,
)
from mia_batch.report.paper import (
    PaperColumn,
    describe_missing_rows,
    paper_table,
)
from mia_batch.report.sentences import RunResults
from mia_batch.schemas import Curves, Metrics, Rollup, Samples, Scores, Verdicts
from tests.unit.inference.scored import plan

PRIMARY = "a_v1"
GROUPS = plan(level="group", null_set="written later")


def typed(schema, rows):
    return pl.DataFrame(rows, schema=schema.create_empty().schema)


def metric(attack, value, low=None, high=None, **columns):
    row = {"attack": attack, "slice": "all", "metric": "roc_auc", "value": value}
    return row | {"low": low, "high": high} | columns


def build_results(*, metrics=(), verdicts=(), findings=(), plan=GROUPS):
    return RunResults(
        typed(Metrics, list(metrics)),
        typed(Verdicts, list(verdicts)).lazy(),
        pl.concat(findings),
        plan,
    )


def roles(unknown=12, nulls=25, canaries=0):
    counts = {"n_unknown": unknown, "n_nulls": nulls, "n_canaries": canaries}
    return finding_rows(
        "roles", [{"statistic": k, "value": v} for k, v in counts.items()]
    )


def labels(verdict, value=0.52):
    columns = {
        "subject": "members",
        "statistic": "roc_auc",
        "value": value,
        "high": 0.58,
    }
    strongest = {
        "subject": "members",
        "statistic": "strongest",
        "verdict": "blind_year_v1",
    }
    return finding_rows(
        "blind_baseline", [columns | {"verdict": verdict, "p_value": 0.005}, strongest]
    )


def labelled(lead, *, verdict="not separable", findings=()):
    rows = [metric(PRIMARY, 0.9, 0.85, 0.95)]
    rows.append(
        metric(
            PRIMARY,
            *lead,
            metric="roc_auc_difference",
            versus="blind_year_v1",
            reason="few",
        )
    )
    run = build_results(
        metrics=rows, findings=[roles(unknown=0), labels(verdict), *findings]
    )
    return answer(run, Rollup.create_empty(), books=False)


def continued(**counts):
    """Texts of the highest scores that were continued, of which nothing came out."""
    rows = [
        {"subject": "targets", "statistic": name, "value": float(count)}
        for name, count in counts.items()
    ]
    return finding_rows("verbatim", rows)


REACHED = "a_v1 tells members from non-members with AUC 0.90 (95 % CI 0.85 to 0.95)"
THAN = "more than the best classifier that never sees the model"


@pytest.mark.parametrize(
    ("lead", "verdict", "answer_text"),
    [
        (
            (0.38, 0.3, 0.45),
            "not separable",
            (
                f"The model remembers members: {REACHED}, 0.38 (95 % CI 0.30 to 0.45)"
                f" {THAN}."
            ),
        ),
        (
            (0.03, -0.02, 0.08),
            "undecided",
            (
                f"No sign of memory: {REACHED}, 0.03 (95 % CI -0.02 to 0.08) {THAN},"
                " which chance explains."
            ),
        ),
        (
            (-0.1, -0.2, 0.05),
            "not separable",
            (
                f"No sign of memory: {REACHED}, 0.10 (95 % CI -0.05 to 0.20) less than"
                " the best classifier that never sees the model."
            ),
        ),
        (
            (0.38, 0.3, 0.45),
            "separable",
            (
                "No answer about memory: a classifier that never sees the model tells"
                " members from non-members, too (AUC 0.52), and a_v1 may see the same:"
                " its AUC is 0.90 (95 % CI 0.85 to 0.95), 0.38 (95 % CI 0.30 to 0.45)"
                " more."
            ),
        ),
        (
            (None,),
            "not separable",
            (
                f"{REACHED}; it is unknown whether that is memory, because it could not"
                " be compared with classifiers that never see the model (few)."
            ),
        ),
    ],
)
def test_where_the_truth_is_known_the_lead_over_blind_classifiers_decides(
    lead, verdict, answer_text
):
    assert labelled(lead, verdict=verdict) == answer_text


@pytest.mark.parametrize(
    ("attack", "begins"),
    [
        (
            "wbc_v1",
            "Compared with the reference model, the model remembers members: wbc",
        ),
        ("loss_v1", "The model remembers members: loss_v1 tells"),
    ],
)
def test_an_attack_that_compares_two_models_says_so(attack, begins):
    rows = [
        metric(attack, 0.9, 0.85, 0.95),
        metric(
            *(attack, 0.38, 0.3, 0.45),
            metric="roc_auc_difference",
            versus="blind_year_v1",
        ),
    ]
    plan = replace(GROUPS, primary=attack)
    findings = [roles(unknown=0), labels("not separable")]
    run = build_results(metrics=rows, findings=findings, plan=plan)
    assert answer(run, Rollup.create_empty(), books=False).startswith(begins)


@pytest.mark.parametrize("verdict", ["late", "changed", "as_planned"])
def test_an_analysis_that_was_not_planned_is_called_exploratory_where_the_truth_is_known(
    verdict,
):
    plan = finding_rows("plan", [{"statistic": "n_changed", "verdict": verdict}])
    late = "; exploratory: this was asked for or changed after scores had been made."
    sentence = (
        f"The model remembers members: {REACHED}, 0.38 (95 % CI 0.30 to 0.45) {THAN}"
    )
    answer_text = labelled((0.38, 0.3, 0.45), findings=[plan])
    assert answer_text == sentence + ("." if verdict == "as_planned" else late)


@pytest.mark.parametrize(("low", "is_said"), [(0.69, True), (0.57, False)])
def test_another_attack_is_named_where_it_holds_among_all_that_were_tried(low, is_said):
    simultaneous = {"metric": "roc_auc_simultaneous"}
    rows = [
        metric(PRIMARY, 0.48, 0.4, 0.57),
        metric(
            PRIMARY,
            -0.04,
            -0.1,
            0.02,
            metric="roc_auc_difference",
            versus="blind_year_v1",
        ),
        metric("b_v1", 0.79, low, 1.0, **simultaneous),
        metric(PRIMARY, 0.48, 0.38, 1.0, **simultaneous),
    ]
    run = build_results(
        metrics=rows, findings=[roles(unknown=0), labels("not separable")]
    )
    answer_text = answer(run, Rollup.create_empty(), books=False)
    assert answer_text.startswith("No sign of memory: a_v1 ") == (not is_said)
    assert (
        not is_said
        or answer_text
        == "The model remembers members, by b_v1: AUC at least 0.69 (95 % confidence,"
        " corrected for trying 2 attacks and slices), where classifiers that never"
        " see the model have at most 0.58; the primary attack a_v1 tells members"
        " from non-members with AUC 0.48 (95 % CI 0.40 to 0.57)."
    )


@pytest.mark.parametrize(
    ("primary", "other", "begins"),
    [
        ("wbc_v1", "loss_v1", "The model remembers members, by loss_v1: AUC at least"),
        (
            *("loss_v1", "wbc_v1"),
            "Compared with the reference model, the model remembers members, by wbc_v1:",
        ),
    ],
)
def test_the_attack_that_is_named_says_whether_it_compares_two_models(
    primary, other, begins
):
    rows = [
        metric(primary, 0.517, 0.4, 0.6),
        metric(
            *(primary, 0.0, -0.1, 0.1),
            metric="roc_auc_difference",
            versus="blind_year_v1",
        ),
        metric(other, 0.99, 0.97, 1.0, metric="roc_auc_simultaneous"),
    ]
    findings = [roles(unknown=0), labels("not separable")]
    run = build_results(
        metrics=rows, findings=findings, plan=replace(GROUPS, primary=primary)
    )
    said = answer(run, Rollup.create_empty(), books=False)
    assert said.startswith(begins)
    assert f"the primary attack {primary} tells" in said


def test_where_nothing_was_compared_an_auc_that_chance_explains_is_no_riddle():
    run = build_results(
        metrics=[metric(PRIMARY, 0.5, 0.3, 0.7)], findings=[roles(0), labels(None)]
    )
    reached = (
        f"{PRIMARY} tells members from non-members with AUC 0.50 (95 % CI 0.30 to 0.70)"
    )
    sentence = f"No sign of memory: {reached}, which chance explains."
    assert answer(run, Rollup.create_empty(), books=False) == sentence
    few_groups = [metric(PRIMARY, 0.9, reason="few groups")]
    sentence = answer(
        build_results(metrics=few_groups, findings=[roles(0), labels(None)]),
        Rollup.create_empty(),
        books=False,
    )
    assert "with AUC 0.90 (no interval: few groups); it is unknown whether" in sentence


@pytest.mark.parametrize("blind", ["separable", "not separable", None])
def test_an_attack_that_points_the_other_way_asks_whether_labels_are_swapped(blind):
    run = build_results(
        metrics=[metric(PRIMARY, 0.02, 0.0, 0.2)], findings=[roles(0), labels(blind)]
    )
    assert (
        answer(run, Rollup.create_empty(), books=False)
        == "No answer: a_v1 points the other way, AUC 0.02 (95 % CI 0.00 to 0.20):"
        " members score lower than non-members. Are the labels swapped? If they are"
        " right, this is no sign of memory."
    )


def test_without_an_auc_and_of_a_broken_model_there_is_no_answer():
    run = build_results(
        metrics=[metric(PRIMARY, None, reason="no members")],
        findings=[roles(0), labels(None)],
    )
    sentence = answer(run, Rollup.create_empty(), books=False)
    assert sentence == "No answer: a_v1 has no AUC (no members)."
    chance = {"subject": "target", "verdict": "no_better", "value": 9.0, "high": 8.9}
    run = build_results(findings=[roles(), finding_rows("chance", [chance])])
    sentence = answer(run, rollup(known_better=12), books=True)
    assert sentence.startswith(
        "No answer: the model predicts these texts no better than chance"
    )


def rollup(level="document", **counts):
    """Books with each verdict, so many; the first is the strongest."""
    rows: list[dict[str, object]] = []
    for verdict, n in counts.items():
        for _ in range(n):
            position = len(rows)
            row = {
                "level": level,
                "key": f"b{position}.txt",
                "attack": PRIMARY,
                "verdict": verdict,
            }
            row |= {
                "n_windows": 9,
                "n_asked": 8,
                "n_scored": 8,
                "mean": 1 - position / 100,
            }
            row |= {
                "p_value": position / 100,
                "q_value": position / 100,
                "longest_words": 1,
            }
            if verdict == "comes_out":
                row["longest_words"] = 20 + position
            if verdict == "cannot_tell":
                row |= {"p_value": None, "q_value": None, "reason": "too few windows"}
            rows.append(row)
    return typed(Rollup, rows).with_columns(title=pl.lit(None, pl.String))


def reported(n):
    counts = {
        "n_reported": n,
        "n_tests": 12,
        "n_null": 25,
        "n_without_p": 0,
        "smallest_q": 0.04,
    }
    rows = [{"statistic": k, "value": float(v)} for k, v in counts.items()]
    rows.append({"statistic": "q", "value": 0.05, "verdict": "bh"})
    return finding_rows("reported", rows, subject="group")


def gate(verdict):
    row = {"statistic": "roc_auc", "verdict": verdict, "value": 0.9, "p_value": 0.01}
    return finding_rows("gate", [row | {"reason": "withheld: they differ"}])


def top(fewest, highest):
    counts = {"at_least": fewest, "of_top": highest, "n_null": 25, "confidence": 0.95}
    rows = [{"statistic": k, "value": float(v)} for k, v in counts.items()]
    return finding_rows("top", rows, subject="group")


STAND = (
    "out from 25 comparison books, in a list of which at most 5 % are false on average"
)


def earlier(n):
    row = {"statistic": "primary", "verdict": PRIMARY}
    return finding_rows(
        "earlier_runs", [row | {"subject": f"run{number}"} for number in range(n)]
    )


COPIES = finding_rows(
    "duplicates", [{"statistic": "share", "value": 0.05}], subject="targets"
)
PLACEBO = finding_rows("placebo", [{"statistic": "n_reported", "verdict": "as_many"}])
UNDECIDED = "training may not be the only difference from the comparison texts"


@pytest.mark.parametrize(
    ("counts", "findings", "doubts"),
    [
        ({"above_all": 12}, [top(2, 5), gate("doubtful")], UNDECIDED),
        (
            {"above_all": 12},
            [top(2, 5), COPIES],
            "5% of the texts stand in the comparison texts, too",
        ),
        (
            {"known_better": 12},
            [reported(12), PLACEBO, gate("doubtful"), earlier(9)],
            (
                "the reference model, which cannot know these texts, gives as much and"
                f" {UNDECIDED}"
            ),
        ),
        ({"known_better": 12}, [reported(12), gate("open")], None),
        (
            {"nothing_found": 12},
            [reported(0), PLACEBO, gate("doubtful"), earlier(9)],
            None,
        ),
    ],
)
def test_what_else_could_explain_that_books_stand_out_is_in_the_first_sentence(
    counts, findings, doubts
):
    sentence = answer(
        build_results(findings=[roles(), *findings]), rollup(**counts), books=True
    )
    assert sentence.partition(" In doubt, because ")[2].removesuffix(".") == (
        doubts or ""
    )


@pytest.mark.parametrize(
    ("n", "runs", "factor"), [(1, "1 other run", 6), (9, "9 other runs", 110)]
)
def test_the_first_sentence_says_how_many_attempts_it_counts(n, runs, factor):
    sentence = answer(
        build_results(findings=[roles(), reported(0), earlier(n)]),
        rollup(nothing_found=12),
        books=True,
    )
    attempts = (
        f"; {runs} of these texts with this model counted: p and q are {factor} times"
        " as large"
    )
    assert sentence.endswith(f"{attempts}.")
    alone = answer(
        build_results(findings=[roles(), reported(0)]),
        rollup(nothing_found=12),
        books=True,
    )
    assert sentence == f"{alone[:-1]}{attempts}."


@pytest.mark.parametrize(
    ("counts", "findings", "sentence"),
    [
        (
            {"comes_out": 1, "known_better": 2, "nothing_found": 8, "cannot_tell": 1},
            [],
            (
                "Of 12 books, 1 comes out word for word, the longest passage 20 words in a row"
                f" (b0.txt); 2 stand {STAND} (b1.txt, b2.txt); 1 cannot be judged: too"
                " few windows; nothing was found on 8."
            ),
        ),
        (
            {"above_all": 2, "nothing_found": 10},
            [top(2, 5)],
            (
                "Of 12 books, the model knows at least 2 of these 5 better than 25"
                " comparison books (95 % confidence): b0.txt, b1.txt, b2.txt, b3.txt,"
                " b4.txt; which 2 cannot be said with so few comparison books; nothing was"
                " found on the other 7."
            ),
        ),
        (
            {"nothing_found": 12},
            [],
            (
                "Of 12 books, none stands out, which does not show that they were not"
                " learnt."
            ),
        ),
        (
            {"comes_out": 7, "cannot_tell": 5},
            [gate("withheld")],
            (
                "Of 12 books, 7 come out word for word, the longest passage 26 words in a row"
                " (b6.txt, b5.txt, b4.txt, b3.txt, b2.txt and 2 more); the others have"
                " no answer, because books and comparison books can be distinguished"
                " without the model."
            ),
        ),
        (
            {"known_better": 1},
            [finding_rows("plan", [{"statistic": "n_changed", "verdict": "changed"}])],
            (
                "The book stands out from 25 comparison books, in a list of which at"
                " most 5 % are false on average (b0.txt); exploratory: this was asked"
                " for or changed after scores had been made."
            ),
        ),
        (
            {"nothing_found": 1},
            [],
            "The book does not stand out, which does not show that it was not learnt.",
        ),
        (
            {"comes_out": 1},
            [gate("withheld")],
            (
                "The book comes out word for word, the longest passage 20 words in a row (b0.txt);"
                " there is no other answer, because books and comparison books can be"
                " distinguished without the model."
            ),
        ),
        (
            {"cannot_tell": 12},
            [gate("withheld")],
            (
                "Of 12 books, none comes out word for word, and there is no other"
                " answer: books and comparison books can be distinguished without the"
                " model."
            ),
        ),
        (
            {"cannot_tell": 12},
            [gate("withheld"), continued(n_texts=33, n_highest=64)],
            (
                "Of 12 books, none comes out word for word in the 33 windows of"
                " highest scores, and there is no other answer: books and comparison books"
                " can be distinguished without the model."
            ),
        ),
    ],
)
def test_books_are_counted_by_their_answer_and_the_strongest_are_named(
    counts, findings, sentence
):
    run = build_results(
        findings=[roles(), reported(counts.get("known_better", 0)), *findings]
    )
    assert answer(run, rollup(**counts), books=True) == sentence


UNSAID = "whether the model knows {} cannot be said without comparison texts"


@pytest.mark.parametrize(
    ("counts", "books", "sentence"),
    [
        (
            {"cannot_tell": 4},
            True,
            (
                f"Of 4 books, none comes out word for word; {UNSAID.format('them')};"
                " of these, b0.txt, b1.txt and b2.txt score highest."
            ),
        ),
        (
            {"cannot_tell": 1},
            True,
            f"The book does not come out word for word; {UNSAID.format('it')}.",
        ),
        (
            {"comes_out": 1, "cannot_tell": 1},
            False,
            (
                "Of 2 documents, 1 comes out word for word, the longest passage 20 words in a row"
                " (b0.txt); 1 is not judged, for want of comparison texts."
            ),
        ),
    ],
)
def test_without_comparison_texts_only_what_comes_out_is_an_answer(
    counts, books, sentence
):
    assert (
        answer(build_results(findings=[roles(nulls=0)]), rollup(**counts), books=books)
        == sentence
    )


def test_long_names_are_cut_in_the_middle_of_a_headline():
    name = "a_very_long_name_of_a_file_that_nobody_wants_to_read_in_a_headline.epub"
    rows = rollup(cannot_tell=4).with_columns(
        key=pl.when(key="b0.txt").then(pl.lit(name)).otherwise("key")
    )
    sentence = answer(build_results(findings=[roles(nulls=0)]), rows, books=True)
    assert (
        "a_very_long_name_of_…_in_a_headline.epub, b1.txt and b2.txt score" in sentence
    )
    titled = rows.with_columns(title=pl.lit("Swann"))
    assert "Swann, Swann and Swann score highest" in answer(
        build_results(findings=[roles(nulls=0)]), titled, books=True
    )


def test_where_nothing_was_sampled_nothing_is_said_to_come_out():
    run = build_results(findings=[roles(), gate("withheld")])
    unsampled = rollup(cannot_tell=2).with_columns(
        longest_words=pl.lit(None, pl.UInt32)
    )
    assert (
        answer(run, unsampled, books=True)
        == "Of 2 books, there is no answer: books and comparison books can be"
        " distinguished without the model."
    )


def test_a_collection_and_canaries_have_one_p_value():
    row = {
        "attack": PRIMARY,
        "level": "collection",
        "versus": "non_members",
        "p_value": 0.003,
    }
    together = plan(level="collection", null_set="written later")
    run = build_results(verdicts=[row], findings=[roles()], plan=together)
    sentence = (
        "the books together, by a_v1, score higher than chance explains (p = 0.003)"
    )
    assert (
        answer(run, rollup(nothing_found=12), books=True) == f"Of 12 books, {sentence}."
    )
    row |= {"versus": "controls", "p_value": 0.3}
    run = build_results(verdicts=[row], findings=[roles(0, 0, 9)], plan=together)
    sentence = answer(run, Rollup.create_empty(), books=False)
    assert sentence == "The canaries, by a_v1, show no sign of memory (p = 0.3)."
    # The key of a marked book: nothing else is needed to judge it.
    run = build_results(verdicts=[row], findings=[roles(1, 0, 9)], plan=together)
    assert answer(run, rollup(cannot_tell=1), books=True) == sentence


@pytest.mark.parametrize(
    ("n", "fewest", "sentence"),
    [
        (
            0,
            10,
            (
                "At least 10 of the 12 highest-scoring texts stand out beyond chance"
                " (95 % confidence); none of 12 texts can be named in a list of which"
                " at most 5 % are false on average."
            ),
        ),
        (
            0,
            0,
            (
                "None of 12 texts stands out from 25 comparison texts, which does not"
                " show that they were not learnt."
            ),
        ),
        (
            2,
            1,
            (
                "2 of 12 texts stand out from 25 comparison texts, in a list of which"
                " at most 5 % are false on average."
            ),
        ),
    ],
)
def test_texts_that_nobody_can_name_are_counted_where_a_bound_says_that_some_stand_out(
    n, fewest, sentence
):
    run = build_results(
        findings=[roles(12, 25), reported(n), top(fewest, 12)], plan=plan()
    )
    assert answer(run, Rollup.create_empty(), books=False) == sentence


def test_books_stand_by_strength_with_24_places_and_comparison_documents_last():
    rows = [
        rollup(nothing_found=1, above_all=1, comes_out=2),
        rollup("outside", cannot_tell=1),
    ]
    strip = {"curve": "strip", "attack": PRIMARY, "subject": "b2.txt"}
    points = [(0.0, 0.25, 3), (0.5, None, 0), (0.75, 1.0, 1)]
    curves = typed(
        Curves, [strip | dict(zip("xyn", point, strict=True)) for point in points]
    )
    books_table = audited_books(
        {"rollup": pl.concat(rows).lazy(), "curves": curves.lazy()}
    )
    assert books_table["key"].to_list() == [
        "b3.txt",
        "b2.txt",
        "b1.txt",
        "b0.txt",
        "b0.txt",
    ]
    assert books_table["answer"].to_list() == [
        *("comes out word for word",) * 2,
        *("above all comparison texts, which are too few", "nothing found", None),
    ]
    assert books_table["strip"][1].to_list() == [0.25] * 12 + [None] * 6 + [1.0] * 6
    assert (
        shade_strip(books_table["strip"].to_list()[1]) == "▃" * 12 + "·" * 6 + "█" * 6
    )
    assert len(shade_strip([0.0] * STRIP)) == STRIP
    assert audited_books({"rollup": Rollup.create_empty().lazy()}).is_empty()


FIGURES = (0.7, 0.6, 0.8, 0.25, 0.125)
LIMITS = (0.1, 0.4, None, None)
LEAD = {"lead": 0.18, "lead_low": 0.1, "lead_high": 0.2}


def attack_tables():
    counts = {"n_members": 9, "n_nonmembers": 9}
    blind = [metric("blind_year_v1", 0.52, 0.45, 0.58)]
    rows = [
        metric("samia_v1", 0.7, 0.6, 0.8),
        metric("samia_matched_v1", 0.9, 0.85, 0.95),
        *blind,
    ]
    rates = {"metric": "tpr_at_fpr", "versus": None}
    rows += [
        metric("samia_v1", 0.25, 0.1, 0.4, fpr=0.01, **rates),
        metric("samia_v1", 0.125, fpr=0.001, **rates),
        metric("samia_v1", 0.5, fpr=0.05, **rates),
        metric("samia_v1", 0.75, 0.5, 0.875, versus=None, metric="fpr_at_95_tpr"),
    ]
    lead = {"metric": "roc_auc_difference"}
    rows += [
        metric("samia_v1", 0.18, 0.1, 0.2, versus="blind_year_v1", **lead),
        metric("samia_v1", -0.2, -0.3, -0.1, versus="samia_matched_v1", **lead),
    ]
    draws = [
        {
            "target_id": f"{number:032x}",
            "model": "target",
            "view": "continuation",
            "n_tokens": 30,
        }
        | {"view_index": 0, "sample_index": sample}
        for number in range(2)
        for sample in range(2)
    ]
    scores = [{"target_id": f"{number:032x}", "role": "target"} for number in range(2)]
    tables = {
        "metrics": typed(Metrics, [row | counts for row in rows]),
        "blind_metrics": typed(Metrics, [row | counts for row in blind]),
        "samples": typed(Samples, draws),
        "scores": typed(Scores, scores),
    }
    return {name: frame.lazy() for name, frame in tables.items()}


def test_attacks_stand_best_first_with_their_lead_and_what_they_cost():
    attacks = [get("samia_v1"), get("samia_matched_v1")]
    table = attack_rows(attack_tables(), attacks, {"samples of target": 5.0})
    assert table["attack"].to_list() == [
        "samia_matched_v1",
        "samia_v1",
        "blind_year_v1",
    ]
    assert table.row(1, named=True) == {
        "attack": "samia_v1",
        "is_blind": False,
        "is_later": False,
        "tokens": 60.0,  # 120 of 2 texts
        "seconds": 2.5,
    } | dict(
        zip(("auc", "low", "high", "tpr_1", "tpr_01"), FIGURES, strict=True)
    ) | dict(
        zip(
            ("tpr_1_low", "tpr_1_high", "tpr_01_low", "tpr_01_high"),
            LIMITS,
            strict=True,
        )
    ) | LEAD | dict.fromkeys(
        ("tpr_1_reason", "tpr_01_reason", "tpr_5_reason", "fpr_95_reason")
    ) | {"tpr_5": 0.5, "tpr_5_low": None, "tpr_5_high": None} | {
        "fpr_95": 0.75,
        "fpr_95_low": 0.5,
        "fpr_95_high": 0.875,
    }
    # Three passes a text in all, of which one attack reads one and the other two.
    passes = {"target text": 2, "target lowercase": 4, "reference text": 2}
    read_attacks = [get("loss_v1"), get("lowercase_ratio_v1")]
    rows = pl.concat(
        [
            attack_tables()["metrics"].with_columns(attack=pl.lit(attack.name))
            for attack in read_attacks
        ]
    )
    costs = attack_rows(
        attack_tables() | {"metrics": rows},
        read_attacks,
        {"logprobs of target": 6.0},
        passes,
    )
    assert dict(costs.select("attack", "seconds").iter_rows()) == {
        "loss_v1": 1.0,
        "lowercase_ratio_v1": 3.0,
    }
    assert table["lead"].to_list() == [None, 0.18, None]
    unlabelled = attack_tables() | {"metrics": Metrics.create_empty().lazy()}
    assert attack_rows(unlabelled, attacks).is_empty()


def column(**columns):
    rows = attack_rows(attack_tables(), [get("samia_v1")])
    return PaperColumn(data="wiki_64", model="m|x", seed=1, rows=rows)._replace(
        **columns
    )


def test_the_table_of_a_paper_marks_what_is_best_beyond_its_interval():
    assert paper_table([column()], "md", "registry").splitlines()[2:] == [
        "| samia_matched_v1 | **0.900 (0.850, 0.950)** | -- | -- |",
        "| samia_v1 | 0.700 (0.600, 0.800) | 0.250 (0.100, 0.400) | 0.125 |",
        "| blind_year_v1 | 0.520 (0.450, 0.580) | -- | -- |",
        "",
        r"wiki_64, m\|x: seed 1.",
    ]
    noted = paper_table(
        [column(notes=("9 members", "No answer: x")), column(model="b")],
        names="registry",
    ).splitlines()[-1]
    assert (
        noted == r"wiki_64, m\|x: seed 1; 9 members; No answer: x; wiki_64, b: seed 1."
    )
    two_models = [column(), column(model="<b>")]
    latex = paper_table(two_models, "latex", "registry").splitlines()
    assert latex[3:7] == [
        r" & \multicolumn{3}{c}{wiki\_64, m|x} & \multicolumn{3}{c}{wiki\_64, <b>} \\",
        r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}",
        "Attack"
        + r" & AUC (95 \% CI) & TPR@1 \% (95 \% CI) & TPR@0.1 \% (95 \% CI)" * 2
        + r" \\",
        r"\midrule",
    ]
    assert latex[7].startswith(
        r"samia\_matched\_v1 & \textbf{0.900 (0.850, 0.950)} & -- & -- & "
    )
    html = paper_table([column(model="<b>")], "html")
    assert "<th>wiki_64, &lt;b&gt;: TPR@1 % (95 % CI)</th>" in html
    assert "<td><strong>0.900 (0.850, 0.950)</strong></td>" in html
    pasted = pl.read_csv(io.StringIO(paper_table([column(data="=1+1")], "csv")))
    assert pasted["data"].unique().to_list() == ["'=1+1"]
    assert pasted["auc"].to_list() == [0.9, 0.7, 0.52]


def test_a_table_has_the_names_of_papers_the_best_blind_row_and_why_rates_are_missing():
    extra = (
        column().rows.filter("is_blind").with_columns(attack=pl.lit("blind_ngrams_v1"))
    )
    reason = "a rate of 0.001 needs 1000 non-members, scored are 40"
    rows = pl.concat([column().rows, extra]).with_columns(
        tpr_01_reason=pl.lit(reason),
        tpr_1_reason=pl.lit("unstable: only about 32 independent non-members"),
    )
    lines = paper_table([column(rows=rows)]).splitlines()
    names = [line.split(" | ")[0] for line in lines[2:-2]]
    assert names == ["| samia_matched_v1", "| SaMIA", "| Text alone (year)"]
    assert lines[-1] == (
        r"wiki_64, m\|x: seed 1;"
        r" TPR\@1 % is unstable: only about 32 independent non-members;"
        rf" TPR\@0.1 %: {reason};"
        r" --attacks calls these rows samia_matched_v1, samia_v1, blind_year_v1;"
        r" of 2 classifiers that see the texts alone the best is shown."
    )
    every = paper_table([column(rows=rows)], blind="all")
    assert "| Text alone (ngrams) |" in every
    assert "the best is shown" not in every
    assert "Text alone" not in paper_table([column(rows=rows)], blind="none")


def test_the_table_of_a_presets_paper_has_its_rows_in_its_order_and_why_one_is_missing():
    names = {"decop_v1": "DE-COP", "min_k_20_v1": "Min-K%", "samia_v1": "SaMIA"}
    reasons = {"decop_v1": "needs --paraphrases-column", "min_k_20_v1": "needs weights"}
    of_paper = column(names=names, missing=reasons)
    lines = paper_table([of_paper]).splitlines()
    assert lines[2:6] == [
        "| DE-COP | -- | -- | -- |",
        "| Min-K% | -- | -- | -- |",
        "| SaMIA | **0.700 (0.600, 0.800)** | 0.250 (0.100, 0.400) | 0.125 |",
        "| Text alone (year) | 0.520 (0.450, 0.580) | -- | -- |",
    ]
    assert lines[-1] == (
        r"wiki_64, m\|x: seed 1; no figure of DE-COP, which needs --paraphrases-column;"
        " no figure of Min-K%, which needs weights; these rows are the paper's; --names"
        " registry has all 3 rows; --attacks calls these rows decop_v1, min_k_20_v1,"
        " samia_v1, blind_year_v1."
    )
    in_full = paper_table([of_paper], names="registry")
    assert "| samia_matched_v1 | **0.900" in in_full
    with_another = paper_table([of_paper, column(model="b")])
    assert "these rows are the paper's" not in with_another
    alike = describe_missing_rows(names, dict.fromkeys([*names][:2], "needs weights"))
    assert [*alike] == ["no figure of DE-COP, Min-K%, of which each needs weights"]


def test_a_table_has_the_figures_that_are_chosen():
    figures = ("fpr_95", "tpr_5", "auc")
    lines = paper_table([column()], names="registry", figures=figures).splitlines()
    heading = r"| Attack | wiki_64, m\|x: FPR@95 % TPR (95 % CI) |"
    assert lines[0].startswith(
        heading.replace("@", r"\@") if r"\@" in lines[0] else heading
    )
    assert (
        lines[3] == "| samia_v1 | 0.750 (0.500, 0.875) | 0.500 | 0.700 (0.600, 0.800) |"
    )
    with pytest.raises(SettingsError, match="no figure 'tpr'; choose of auc, tpr_5,"):
        paper_table([column()], figures=["tpr"])


def test_seeds_are_averaged_and_what_overlaps_is_not_best():
    second = column(seed=2)
    wider = second.rows.with_columns(
        pl.col("auc") - 0.2, pl.col("low") - 0.2, pl.col("high") - 0.2
    )
    columns = [column(), column(seed=2, rows=wider)]
    assert paper_table(columns, "md", "registry").splitlines()[2:4] == [
        "| samia_matched_v1 | 0.800 (0.650, 0.950) | -- | -- |",
        "| samia_v1 | 0.600 (0.400, 0.800) | 0.250 (0.100, 0.400) | 0.125 |",
    ]
    assert r"m\|x: means, within the outermost limits, of seeds 1, 2." in paper_table(
        columns, "md", "registry"
    )
    with pytest.raises(SettingsError, match="with the same seed; give one of them"):
        paper_table([column(), column()], "md")
    with pytest.raises(
        SettingsError, match="no format 'pdf'; choose one of md, latex, html, csv"
    ):
        paper_table([column()], "pdf")
