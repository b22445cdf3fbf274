"""Which continuations are decoded in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.request import Request

__all__ = ["Row", "Shape", "take_batch"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """One continuation to decode: the ``index``-th of a request."""

    request: Request
    index: int
    max_tokens: int

    @property
    def seed(self) -> int | None:
        """Seed of this continuation; None where nothing is drawn."""
        return None if self.request.greedy else self.request.seed + self.index

    @property
    def prompt(self) -> list[int]:
        """Token ids to continue."""
        return self.request.context_ids or []


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Room that a batch takes: rows, the longest prompt, and the most tokens of any row."""

    n_rows: int = 0
    n_prompt: int = 0
    n_output: int = 0

    def plus(self, row: Row) -> Shape:
        """Shape of the batch with one more row."""
        return Shape(
            n_rows=self.n_rows + 1,
            n_prompt=max(self.n_prompt, len(row.prompt)),
            n_output=max(self.n_output, row.max_tokens),
        )


def take_batch(rows: list[Row], fits: Callable[[Shape], bool]) -> list[Row]:
    """Take the oldest row and those most like it out of a queue, as many as fit together.

    One row always fits; the queue is oldest first.
    """
    if not rows:
        return []
    oldest = rows[0]
    shape = Shape()
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: _difference(row, oldest)):
        larger = shape.plus(row)
        if batch and not fits(larger):
            break
        shape = larger
        batch.append(row)
    taken = {id(row) for row in batch}
    rows[:] = [row for row in rows if id(row) not in taken]
    return batch


def _difference(row: Row, other: Row) -> int:
    return abs(len(row.prompt) - len(other.prompt)) + abs(row.max_tokens - other.max_tokens)
