"""Texts that end an engine: found, refused, and no other text is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.errors import EngineError
from mia_batch.evidence.collect import Asked
from mia_batch.evidence.executor import REFUSED, LocalExecutor
from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import Answer, Continuation, EvidenceKind, Request

N_UNITS = 64


class Echo:
    """A task whose rows name the text and what came of it."""

    kind: EvidenceKind = "samples"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[Any]]]:
        for unit, text in enumerate(block.units["text"]):
            yield Asked(unit=unit, request=Request(request_id=0, kind="samples", text=text)), []

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Any], list[Asked]]:
        text = block.units["text"][asked.unit]
        return [{"text": text, "reason": answer.error}], []

    def table(self, block: Block, rows: list[tuple[int, Any]]) -> pl.DataFrame:
        schema = {"text": pl.String, "reason": pl.String}
        return pl.DataFrame([row for _, row in sorted(rows, key=lambda row: row[0])], schema=schema)


class Fragile:
    """A source that ends when it comes to one of these texts, or after so many answers."""

    def __init__(self, deadly: Collection[str], room: int, ends_after: Collection[int] = ()):
        self.deadly = deadly
        self.room = room
        self.ends_after = {*ends_after}
        self.open: list[Request] = []
        self.starts = 1
        self.answered = 0

    def has_room(self, *, requests: int, samples: int) -> bool:
        return requests < self.room

    def submit(self, request: Request) -> None:
        self.open.append(request)

    def results(self, timeout: float | None = None) -> list[Answer]:
        request = self.open.pop(0)
        if request.text in self.deadly or self.answered in self.ends_after:
            self.ends_after.discard(self.answered)
            msg = "the engine's process was ended by SIGSEGV"
            raise EngineError(msg)
        self.answered += 1
        return [Answer(request_id=request.request_id, continuations=[Continuation(text="")])]

    def restart(self) -> None:
        self.open.clear()
        self.starts += 1


def blocks(n: int) -> list[Block]:
    return [
        Block(
            index=index,
            first=0,
            last=1,
            attempt=0,
            label="target-text",
            units=pl.DataFrame({"text": [f"{index}:{unit}" for unit in range(N_UNITS)]}),
        )
        for index in range(n)
    ]


def collected(source: Fragile, asked: list[Block]) -> tuple[dict[int, pl.DataFrame], int]:
    """Rows of each block, and how many texts the observer believes to be complete."""
    said: list[str] = []
    told: list[int] = []
    executor = LocalExecutor(source, source.restart, said.append)
    done = executor.collect(
        Echo(), iter(asked), lambda _label, units, *_: told.append(units), lambda _, rows: rows
    )
    tables = {block.index: rows for block, rows in done}
    assert len(said) == source.starts - 1
    return tables, sum(told)


@pytest.mark.parametrize("room", [1, 100, 1000])
def test_a_text_that_ends_the_engine_is_set_aside_and_all_others_are_answered(room):
    source = Fragile({"1:37"}, room)
    tables, told = collected(source, blocks(3))
    assert told == 3 * N_UNITS
    for index, rows in tables.items():
        assert rows["text"].to_list() == [f"{index}:{unit}" for unit in range(N_UNITS)]
    reasons = pl.concat(tables.values()).drop_nulls("reason")
    assert reasons.rows() == [("1:37", REFUSED)]
    # Together with others, its block alone, a piece of 8, the text alone twice.
    assert source.starts <= 6


def test_what_it_costs_stays_within_its_block():
    source = Fragile({"2:5"}, room=N_UNITS)
    collected(source, blocks(6))
    again = source.answered - (6 * N_UNITS - 1)
    assert again <= 2 * N_UNITS


@settings(deadline=None, max_examples=60)
@given(
    deadly=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 20).map(lambda i: 3 * i))),
    room=st.integers(1, 300),
    ends_after=st.sets(st.integers(0, 200), max_size=3),
)
def test_each_text_has_one_row_whatever_ends_the_engine(deadly, room, ends_after):
    names = {f"{index}:{unit}" for index, unit in deadly}
    tables, told = collected(Fragile(names, room, ends_after), blocks(4))
    rows = pl.concat(tables[index] for index in range(4))
    assert told == rows.height == 4 * N_UNITS
    assert rows["text"].to_list() == [f"{i}:{unit}" for i in range(4) for unit in range(N_UNITS)]
    refused = set(rows.filter(pl.col("reason").is_not_null())["text"])
    assert names <= refused
    assert len(refused - names) <= len(ends_after)


def test_an_engine_that_ends_whatever_it_is_asked_stops_the_run():
    source = Fragile({f"0:{unit}" for unit in range(N_UNITS)}, room=10)
    with pytest.raises(EngineError, match="SIGSEGV"):
        collected(source, blocks(1))
    assert source.starts < 12
    source = Fragile({"0:3"}, room=10)  # without a restart the error is the run's
    with pytest.raises(EngineError, match="SIGSEGV"):
        list(LocalExecutor(source).collect(Echo(), blocks(1), lambda *_: None, lambda *_: None))
