"""Questions which of four passages is verbatim: orders, wording, what cannot be asked, answers."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.prompts.views import LABELS, MOST_ORDERS, choice, choices
from tests import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT, OTHERS = "the true one", ["one", "two", "three"]


def asked(
    paraphrases: Sequence[str | None] | None, n: int = MOST_ORDERS, **row: object
) -> pl.DataFrame:
    targets = frames.targets({"target": TEXT} | row)
    column = pl.Series([paraphrases], dtype=pl.List(pl.String))
    return choices(targets.with_columns(others=column), column="others", n=n)


def shown(context: str) -> tuple[str, ...]:
    """The passages, in the order of their labels."""
    options = context.split("Options:\n")[1].removesuffix("\n\nAnswer:").split("\n")
    assert [line[:3] for line in options] == [f"{label}. " for label in LABELS]
    return tuple(line[3:] for line in options)


def test_the_wording_is_that_of_the_paper_with_the_group_as_the_work():
    first = asked(OTHERS, group="Moby-Dick by Herman Melville")["context"][0]
    assert first == (
        "Answer the question with the letter of the right option alone.\n\n"
        'Question: Which of the following passages is verbatim from "Moby-Dick by Herman Melville"?'
        "\nOptions:\nA. the true one\nB. one\nC. two\nD. three\n\nAnswer:"
    )
    assert "verbatim from an existing text?" in asked(OTHERS)["context"][0]


def test_every_order_is_asked_once_and_label_k_modulo_4_is_right():
    found = asked(OTHERS)
    orders = [shown(context) for context in found["context"]]
    assert {*orders} == {*permutations([TEXT, *OTHERS])}
    assert [order.index(TEXT) for order in orders] == [index % 4 for index in range(24)]
    assert found["view_index"].to_list() == [*range(24)]
    assert {*found["text"]} == {" A B C D"}


@pytest.mark.parametrize("n", [4, 8, 20])
def test_fewer_orders_are_the_first(n: int):
    assert asked(OTHERS, n).equals(asked(OTHERS)[:n])


def test_further_paraphrases_are_not_shown():
    assert asked([*OTHERS, "four"]).equals(asked(OTHERS))


@pytest.mark.parametrize(
    ("paraphrases", "reason"),
    [
        (None, "fewer than three paraphrases"),
        ([], "fewer than three paraphrases"),
        (["one", "two"], "fewer than three paraphrases"),
        (["one", None, "three"], "fewer than three paraphrases"),
        (["one", " \n", "three"], "fewer than three paraphrases"),
        (["one", "two", "one"], "are equal"),
        (["one", TEXT, "three"], "are equal"),
    ],
)
def test_what_cannot_be_asked_has_a_reason(paraphrases: list[str | None] | None, reason: str):
    found = asked(paraphrases)
    assert found.height == 24
    assert all(reason in each for each in found["reason"])
    assert found["context"].is_null().all()
    assert found["text"].is_null().all()


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (" A", 0),
        ("B.", 1),
        ("(C)", 2),
        ("**D**", 3),
        ("The answer is B.", 1),
        ("Option A is", 0),
        ("A is verbatim", 0),
        ("A. It was the", 0),
        ("A careful reading suggests C", 2),
        ("B B", 1),
        ("A careful reading", None),
        ("B or C", None),
        ("D'Artagnan rode", None),
        ("D\N{RIGHT SINGLE QUOTATION MARK}Artagnan", None),
        ("b", None),
        ("ABCD", None),
        ("I cannot tell", None),
        ("", None),
        (None, None),
    ],
)
def test_an_answer_is_the_one_label_that_it_names(answer: str | None, label: int | None):
    frame = pl.DataFrame({"answer": [answer]}, schema={"answer": pl.String})
    assert frame.select(choice(pl.col("answer"))).unnest("choice")["choice"].to_list() == [label]


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.text("AB D.x'\n")), min_size=1))
def test_each_answer_is_read_alone(answers: list[str | None]):
    frame = pl.DataFrame({"answer": answers}, schema={"answer": pl.String})
    together = frame.select(choice(pl.col("answer"))).unnest("choice")["choice"]
    alone = [
        row.select(choice(pl.col("answer"))).unnest("choice")["choice"][0]
        for row in frame.iter_slices(1)
    ]
    assert together.to_list() == alone
