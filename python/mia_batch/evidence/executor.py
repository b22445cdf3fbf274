"""The executor of one process, and what every executor promises."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import polars as pl

from mia_batch.errors import EngineError
from mia_batch.evidence.collect import Collector, Task, Told
from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import Answer, AnswerSource, Request

Kept = TypeVar("Kept")


class Executor(Protocol):
    """Works on blocks; nothing outside it knows where."""

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete, with what ``keep`` returned for block and rows.

        ``keep`` may be called in another process or on another machine; it and ``task`` can be
        pickled. ``told`` is as in `Collector`.
        """


REFUSED = "the engine ended each time that it was asked about this text"

_SPLIT = 8  # pieces of a block, and of each of them: a start costs more than a few texts
_MOST_DEATHS = 2  # of engines with one text in hand and nothing else
_MOST_IN_VAIN = 3  # texts in a row that end the engine: then it is not the texts


@dataclass(slots=True)
class _Whole:
    """A block, and the rows of its complete pieces by their first unit."""

    block: Block
    rows: dict[int, pl.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some units of a block, worked on as a block of their own."""

    whole: _Whole
    block: Block
    first: int = 0
    suspect: bool = False
    deaths: int = 0


class Pieces:
    """Hands blocks out, and finds the texts that end an engine.

    Blocks in hand when it ends are suspect: each is tried alone, then in pieces. A single text that
    ends it twice is refused.
    """

    def __init__(self, blocks: Iterable[Block | None]) -> None:
        self._blocks = iter(blocks)
        self._suspects: deque[_Piece] = deque()
        self._in_hand: dict[int, _Piece] = {}
        self._in_vain = 0
        self._all_seen = False

    @property
    def left(self) -> bool:
        return not self._all_seen or bool(self._suspects or self._in_hand)

    def hand_out(self) -> Iterator[Block | None]:
        """Yield blocks; a suspect while nothing else is in hand, and None meanwhile."""
        while True:
            if self._suspects or any(each.suspect for each in self._in_hand.values()):
                if self._in_hand:
                    yield None
                else:
                    yield self._take(self._suspects.popleft())
                continue
            for block in self._blocks:
                yield None if block is None else self._take(_Piece(_Whole(block), block))
                break
            else:
                self._all_seen = True
                return

    def done(self, block: Block, rows: pl.DataFrame) -> Iterator[tuple[Block, pl.DataFrame]]:
        piece = self._in_hand.pop(id(block))
        if piece.deaths < _MOST_DEATHS:
            self._in_vain = 0
        whole = piece.whole
        whole.rows[piece.first] = rows
        if not any(each.whole is whole for each in (*self._suspects, *self._in_hand.values())):
            yield whole.block, pl.concat(whole.rows[first] for first in sorted(whole.rows))

    def failed(self, error: EngineError) -> list[Block]:
        """Decide what is tried again; return what is refused.

        Raises the error where nothing was in hand, or the engine ends whatever it is asked.
        """
        pieces, self._in_hand = [*self._in_hand.values()], {}
        if not pieces:
            raise error
        if len(pieces) > 1:
            self._suspects.extend(replace(each, suspect=True) for each in pieces)
            return []
        piece = replace(pieces[0], suspect=True, deaths=pieces[0].deaths + 1)
        if piece.block.units.height > 1:
            n_units = piece.block.units.height
            size = -(-n_units // _SPLIT)
            for start in reversed(range(0, n_units, size)):
                block = replace(piece.block, units=piece.block.units[start : start + size])
                first = piece.first + start
                self._suspects.appendleft(_Piece(piece.whole, block, first, suspect=True))
            return []
        if piece.deaths < _MOST_DEATHS:
            self._suspects.appendleft(piece)
            return []
        self._in_vain += 1
        if self._in_vain == _MOST_IN_VAIN:
            raise error
        return [self._take(piece)]

    def _take(self, piece: _Piece) -> Block:
        self._in_hand[id(piece.block)] = piece
        return piece.block


class Refusals:
    """A source that refuses all, so that texts which end an engine have rows with a reason."""

    def __init__(self, reason: str = REFUSED) -> None:
        self._reason = reason
        self._asked: list[Request] = []

    def has_room(self, **_: int) -> bool:
        return True

    def submit(self, request: Request) -> None:
        self._asked.append(request)

    def results(self, timeout: float | None = None) -> list[Answer]:  # noqa: ARG002 - of the protocol
        asked, self._asked = self._asked, []
        return [each.failed(self._reason, passes=0) for each in asked]


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Asks one source about all blocks.

    With ``restart`` an engine that ends in the middle is started again, and ``say`` is told; texts
    that end it are found, and their rows have the reason.
    """

    source: AnswerSource
    restart: Callable[[], None] | None = None
    say: Callable[[str], None] = lambda _: None

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block | None],
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete; see `Executor`. None among them is none for now."""
        pieces = Pieces(blocks)
        lost: Counter[str] = Counter()  # units that count as complete, of blocks that are not

        def note(label: str, units: int, tokens: int, passes: int) -> None:
            lost[label] += units
            told(label, units, tokens, passes)

        def kept(
            found: Iterable[tuple[Block, pl.DataFrame]],
        ) -> Iterator[tuple[Block, Kept]]:
            for block, rows in found:
                lost[block.label] -= block.units.height
                for whole, whole_rows in pieces.done(block, rows):
                    yield whole, keep(whole, whole_rows)

        while pieces.left:
            try:
                yield from kept(Collector(self.source, task, note).collect(pieces.hand_out()))
            except EngineError as error:
                if self.restart is None:
                    raise
                for label, units in lost.items():
                    told(label, -units, 0, 0)
                lost.clear()
                refused = pieces.failed(error)
                self.restart()
                self.say(f"the engine has been started again, because it ended: {error}")
                yield from kept(Collector(Refusals(), task, note).collect(refused))
