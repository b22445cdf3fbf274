"""What a run says to type next: how many comparison texts, and a whole command."""

import shlex
from itertools import pairwise

import polars as pl
import pytest

from mia_batch.inference.findings import finding_rows
from mia_batch.inference.power import nulls_to_name
from mia_batch.report.answer import find_answer
from mia_batch.report.next_step import find_next_step
from mia_batch.schemas import Rollup
from tests.unit.inference.scored import plan
from tests.unit.report.test_answer import (
    build_results,
    gate,
    labels,
    reported,
    roles,
    rollup,
    top,
)

RUN = [("--input", ["my books"]), ("--model", ["m"]), ("--out", ["elsewhere"])]


def power(n_tests, n_null=25):
    numbers = {"n_tests": n_tests, "n_null": n_null}
    rows = [{"statistic": name, "value": float(n)} for name, n in numbers.items()]
    rows.append({"statistic": "q", "value": 0.05, "verdict": "bh"})
    return finding_rows("power", rows, subject="group")


def step(rows, *findings, options=RUN, books=True, rule=None):
    results = build_results(findings=findings, plan=rule or plan(level="group"))
    return find_next_step(results, rows, books=books, options=options, folder="a run")


@pytest.mark.parametrize("n", [1, 4, 16])
def test_without_comparison_texts_it_says_how_many_would_give_an_answer(n):
    next_step = step(rollup(cannot_tell=n), roles(n, nulls=0))
    assert next_step.title == "To get an answer"
    n_nulls = nulls_to_name(min(5, n), n, 0.05, "bh")
    assert n_nulls == {1: 19, 4: 19, 16: 63}[n]
    assert f" {n_nulls} " in next_step.sentence
    words = shlex.split(next_step.command)
    assert words[:5] == ["mia-batch", "audit", "my books", "--model", "m"]
    options = {"--level": "group", "--non-members": "comparison-books/"}
    options["--out"] = "elsewhere-compared"  # the plan of this run's folder stays
    assert options.items() <= dict(pairwise(words)).items()
    assert words[-2] == "--non-members-known"


def test_where_some_came_out_the_answer_is_about_the_others():
    next_step = step(rollup(comes_out=1, cannot_tell=1), roles(2, nulls=0))
    assert next_step.title == "To get an answer about the others"


def test_texts_of_a_recording_need_answers_and_its_command_names_no_model():
    options = [*RUN, ("--samples-from", ["made.jsonl"])]
    next_step = step(
        Rollup.create_empty(), roles(30, nulls=0), options=options, books=False
    )
    assert "The recording must have answers about them, too." in next_step.sentence
    words = shlex.split(next_step.command)
    assert not {"--model", "--level"} & {*words}
    assert "comparison-texts/" in words


def test_where_a_bound_counts_books_more_comparison_books_would_name_them():
    findings = (roles(), reported(0), top(5, 8))
    rows = rollup(above_all=8, nothing_found=4)
    next_step = step(rows, *findings, power(16))
    assert next_step.title == "To name them"
    assert nulls_to_name(5, 16, 0.05 / 6, "bh") == 383  # the second attempt
    assert "takes at least 383 comparison books" in next_step.sentence
    assert "p and q are 6 times as large" in next_step.sentence
    answer = find_answer(
        build_results(findings=[*findings, power(16)]), rows, books=True
    )
    assert answer.verdict.endswith(
        "which 5 cannot be said with so few comparison books;"
        " nothing was found on the other 4."
    )
    assert (
        step(rows, *findings, power(16, n_null=400)) is None
    )  # there are enough of them


def test_what_was_found_has_a_page_and_labels_and_closed_gates_have_no_step():
    next_step = step(rollup(comes_out=1, nothing_found=3), roles(), reported(0))
    assert shlex.split(next_step.command)[1:] == [
        "report",
        "a run",
        "--document",
        "b0.txt",
    ]
    of_group = rollup("group", comes_out=1)
    assert shlex.split(step(of_group, roles()).command)[1:] == ["show", "a run"]
    assert step(rollup(nothing_found=3), roles(), labels("undecided")) is None
    closed = (roles(), gate("withheld"), top(5, 8), power(16))
    next_step = step(rollup(above_all=8), *closed)
    assert "Give other comparison books: of the same kind" in next_step.sentence
    assert "--non-members comparison-books/" in next_step.command
    change = {"statistic": "answer", "verdict": "withheld", "reason": "it changed"}
    changed = (roles(), finding_rows("order", [change]), top(5, 8), power(16))
    assert step(rollup(above_all=8), *changed) is None


def test_of_a_broken_model_no_other_text_makes_an_answer():
    chance = {"subject": "target", "verdict": "no_better", "value": 9.0, "high": 8.9}
    books = rollup(cannot_tell=4)
    assert step(books, roles(nulls=0)).title == "To get an answer"
    assert step(books, roles(nulls=0), finding_rows("chance", [chance])) is None


def test_as_many_are_named_as_score_above_all_and_no_more():
    too_few = (roles(), reported(0), power(16))
    rows = rollup(above_all=2, nothing_found=14)
    answer = find_answer(build_results(findings=too_few), rows, books=True).verdict
    assert nulls_to_name(2, 16, 0.05, "bh") == 159
    assert "2 score above every comparison book, which are too few to name" in answer
    assert "at least 959 comparison books" in step(rows, *too_few).sentence


def test_a_bound_says_nothing_of_books_that_come_out_or_where_it_counts_texts():
    findings = [roles(), reported(0), power(16), top(5, 8)]
    rows = rollup(comes_out=8, nothing_found=8)
    answer = find_answer(build_results(findings=findings), rows, books=True).verdict
    assert "the model knows" not in answer
    assert answer.endswith("; nothing was found on 8.")
    doubtful = build_results(findings=[*findings, gate("doubtful")])
    assert not find_answer(doubtful, rows, books=True).doubt
    of_texts = top(5, 8).with_columns(subject=pl.lit("target"))
    findings = [roles(), reported(0), of_texts]
    rows = rollup(above_all=8, nothing_found=8)
    answer = find_answer(build_results(findings=findings), rows, books=True).verdict
    assert answer == (
        "Of 16 books, 8 score above every comparison book, which are too few to name"
        " any; nothing was found on 8."
    )
    assert step(rows, *findings) is None


def test_names_are_those_that_the_bound_counts_though_another_has_a_higher_mean():
    rows = rollup(above_all=3, nothing_found=2)
    rows = rows.with_columns(mean=pl.col("mean").reverse())
    answer = find_answer(
        build_results(findings=[roles(), reported(0), top(2, 3)]), rows, books=True
    )
    assert ": b0.txt, b1.txt, b2.txt; which 2 cannot be said" in answer.verdict
    everyone = build_results(findings=[roles(), reported(0), top(3, 3)])
    verdict = find_answer(everyone, rows, books=True).verdict
    assert (
        "the model knows these 3 better than 25 comparison books (95 % con" in verdict
    )
    assert "cannot be said" not in verdict
    late = build_results(
        findings=[roles(), reported(0), top(2, 3), gate("exploratory")]
    )
    verdict = find_answer(late, rows, books=True).verdict
    assert "the model knows" not in verdict
