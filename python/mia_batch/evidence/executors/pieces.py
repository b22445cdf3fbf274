"""Blocks in hand, and what is tried again of them where an engine has ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mia_batch.errors import EngineError
    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.request import Request

__all__ = ["Pieces", "Refusals"]

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
