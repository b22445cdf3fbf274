"""Ask a source about the units of blocks, and turn its answers into rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.request import Answer, EvidenceKind, Request, Source

__all__ = ["Asked", "Collector", "Row", "Task", "Told"]

Row: TypeAlias = dict[str, Any]
"""Values of a row of evidence by column."""

Told: TypeAlias = Callable[[str, int, int, int], None]
"""Takes a block's label, and units, tokens and forward passes since last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request about one unit of a block, before it has a number."""

    unit: int  # position in the block
    request: Request
    first: int = 0  # number of the first row that is asked for
    reference_words: int = 0  # words of what is to be reached
    attempts: int = 1


class Task(Protocol):
    """What is asked about units, and how answers become rows."""

    @property
    def kind(self) -> EvidenceKind:
        """What is asked."""

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Row]]]]:
        """Yield what to ask, and rows (with their unit) of what cannot be asked."""

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Row], list[Asked]]:
        """Turn an answer into rows, and ask again where it does not suffice."""

    def table(self, block: Block, rows: list[tuple[int, Row]]) -> pl.DataFrame:
        """Put the rows of a complete block, each with its unit, in order."""


@dataclass(slots=True)
class _Open:
    """A block on its way: rows so far, and how many rows of each unit are to come."""

    block: Block
    pending: list[int]
    rows: list[tuple[int, Row]] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.waiting = len(self.pending)


class Collector:
    """Keeps a source busy with the requests of successive blocks.

    ``told`` is called as answers arrive, with the block's label, and the units completed, the
    tokens decoded or read, and the forward passes made since last.
    """

    def __init__(self, source: Source, task: Task, told: Told) -> None:
        self._source = source
        self._task = task
        self._told = told
        self._in_flight: dict[int, tuple[_Open, Asked]] = {}
        self._samples = 0
        self._request_id = 0
        self._again: deque[tuple[_Open, Asked]] = deque()
        self._finished: deque[_Open] = deque()

    def collect(self, blocks: Iterable[Block | None]) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Yield each block as soon as it is complete, and its rows in the order of its units.

        Blocks are read only as far ahead as the source needs; None among them is none for now.
        Raises `EngineError` if the source as a whole cannot go on.
        """
        asked = self._requests(blocks)
        while True:
            while self._again:
                self._submit(*self._again.popleft())
            while self._has_room() and (request := next(asked, None)) is not None:
                self._submit(*request)
            while self._finished:
                done = self._finished.popleft()
                yield done.block, self._task.table(done.block, done.rows)
            if not self._in_flight:
                return
            for answer in self._source.results():
                self._take(answer)

    def _has_room(self) -> bool:
        return self._source.has_room(requests=len(self._in_flight), samples=self._samples)

    def _requests(self, blocks: Iterable[Block | None]) -> Iterator[tuple[_Open, Asked] | None]:
        for block in blocks:
            if block is None:
                yield None
                continue
            opened = _Open(block, [block.last - block.first] * block.units.height)
            for asked, refused in self._task.ask(block):
                self._keep(opened, refused)
                if asked is not None:
                    yield opened, asked

    def _submit(self, opened: _Open, asked: Asked) -> None:
        number = self._request_id
        self._request_id += 1
        self._in_flight[number] = opened, asked
        self._samples += asked.request.n
        self._source.submit(replace(asked.request, request_id=number))

    def _take(self, answer: Answer) -> None:
        opened, asked = self._in_flight.pop(answer.request_id)
        self._samples -= asked.request.n
        rows, again = self._task.read(opened.block, asked, answer)
        tokens = sum(given.n_tokens or 0 for given in answer.continuations)
        if answer.tokens is not None:
            tokens += answer.tokens["logprob"].size
        self._told(opened.block.label, 0, tokens, answer.passes)
        self._again.extend((opened, each) for each in again)
        self._keep(opened, [(asked.unit, row) for row in rows])

    def _keep(self, opened: _Open, rows: list[tuple[int, Row]]) -> None:
        for unit, row in rows:
            opened.rows.append((unit, row))
            opened.pending[unit] -= 1
            if opened.pending[unit] == 0:
                opened.waiting -= 1
                self._told(opened.block.label, 1, 0, 0)
        if rows and opened.waiting == 0:
            self._finished.append(opened)
