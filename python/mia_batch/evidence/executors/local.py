"""The executor of one process, and what every executor promises."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import polars as pl

from mia_batch.errors import EngineError
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mia_batch.evidence.collect import Task, Told
    from mia_batch.evidence.parts import Block
    from mia_batch.evidence.request import Request, Source


# What every executor promises.


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


# Blocks in hand, and what is tried again of them where an engine has ended.


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
        """Whether anything is to be worked on."""
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
        """Take in the rows of what was handed out; yield the block that they complete, if any."""
        piece = self._in_hand.pop(id(block))
        if piece.deaths < _MOST_DEATHS:
            self._in_vain = 0
        whole = piece.whole
        whole.rows[piece.first] = rows
        if len(whole.rows) == 1 and block is whole.block:
            yield block, rows
        elif not any(each.whole is whole for each in (*self._suspects, *self._in_hand.values())):
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
            self._suspects.extendleft(reversed([*_split(piece)]))
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
        """Take in all at once."""
        return True

    def submit(self, request: Request) -> None:
        """Remember what was asked."""
        self._asked.append(request)

    def results(self, timeout: float | None = None) -> list[Answer]:  # noqa: ARG002 - of the protocol
        """Refuse what was asked."""
        asked, self._asked = self._asked, []
        return [Answer(request_id=each.request_id, passes=0, error=self._reason) for each in asked]


def _split(piece: _Piece) -> Iterator[_Piece]:
    units = piece.block.units
    for start in range(0, units.height, size := -(-units.height // _SPLIT)):
        block = replace(piece.block, units=units[start : start + size])
        yield _Piece(piece.whole, block, piece.first + start, suspect=True)


# The executor of one process: a single source, an engine's process or an endpoint.


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Asks one source about all blocks.

    With ``restart`` an engine that ends in the middle is started again, and ``say`` is told; texts
    that end it are found, and their rows have the reason.
    """

    source: Source
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
        while pieces.left:
            progress = _Progress(told)
            try:
                asked = Collector(self.source, task, progress.told).collect(pieces.hand_out())
                yield from _kept(progress.complete(asked), pieces, keep)
            except EngineError as error:
                if self.restart is None:
                    raise
                progress.take_back()
                refused = pieces.failed(error)
                self.restart()
                self.say(f"the engine has been started again, because it ended: {error}")
                yield from _kept(Collector(Refusals(), task, told).collect(refused), pieces, keep)


def _kept(
    found: Iterable[tuple[Block, pl.DataFrame]],
    pieces: Pieces,
    keep: Callable[[Block, pl.DataFrame], Kept],
) -> Iterator[tuple[Block, Kept]]:
    """Keep the rows of whole blocks."""
    for block, rows in found:
        for whole, whole_rows in pieces.done(block, rows):
            yield whole, keep(whole, whole_rows)


class _Progress:
    """What was told of blocks that are not complete, to be taken back where they are lost."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._units: Counter[str] = Counter()

    def told(self, label: str, units: int, tokens: int, passes: int) -> None:
        self._units[label] += units
        self._told(label, units, tokens, passes)

    def complete(
        self, found: Iterable[tuple[Block, pl.DataFrame]]
    ) -> Iterator[tuple[Block, pl.DataFrame]]:
        for block, rows in found:
            self._units[block.label] -= block.units.height
            yield block, rows

    def take_back(self) -> None:
        for label, units in self._units.items():
            self._told(label, -units, 0, 0)
