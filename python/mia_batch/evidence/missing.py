"""What the parts of a run lack, block by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence.blocks import Block, part_stem
from mia_batch.evidence.held import Held
from mia_batch.evidence.parts import TARGET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.parts import Parts
    from mia_batch.evidence.shard import Shard
    from mia_batch.evidence.units import Units

__all__ = ["PIECE_TOKENS", "Missing", "Work"]

PIECE_TOKENS = 1 << 18
"""Work of a piece, which is stored by itself: half a minute of a GPU and a model of 8 B."""
_MOST_PIECES = 10  # of a block; their names are in order
_NO_FAILED = pl.DataFrame(schema={"key": pl.UInt64, "index": pl.UInt32})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How many units lack rows, and how many have all of them."""

    left: int = 0
    done: int = 0

    def __add__(self, other: Work) -> Work:
        """Count both."""
        return Work(left=self.left + other.left, done=self.done + other.done)


class Missing:
    """What the parts of a run lack: ``n_rows`` of each unit.

    With ``retry_failed`` rows that have a reason count as missing. Of a ``shard`` only its own
    blocks are looked at. ``work`` estimates the work of a unit, in tokens; blocks of more than
    `PIECE_TOKENS` are cut into up to 10 pieces of about the same work. Where is a matter of their
    texts, whatever is missing.
    """

    def __init__(
        self,
        units: Units,
        parts: Parts,
        n_rows: int = 1,
        *,
        retry_failed: bool = False,
        shard: Shard | None = None,
        work: pl.Expr | None = None,
    ) -> None:
        self._units = units
        self._block = pl.col("target_row") // parts.block_targets
        self._own = pl.lit(value=True) if shard is None else shard.has(self._block)
        self._parts = parts
        self._n_rows = n_rows
        self._held = Held(parts)
        self._retry_failed = retry_failed
        self._work = work
        self._names = {part.name for part in parts.paths()}
        self._attempts = _next_attempts(parts)

    def count(self) -> Work:
        """Count the units."""
        total = done = 0
        for units in self._units.keys():  # noqa: SIM118 - no dictionary
            own = units.filter(self._own)
            total += own.height
            whole = self._held.done(own["target"]).filter(pl.col("done") >= self._n_rows)
            complete = own.join(whole, on="key", how="semi")
            done += complete.join(self._failed(own["target"]), on="key", how="anti").height
        return Work(left=total - done, done=done)

    def _failed(self, targets: pl.Series) -> pl.DataFrame:
        return self._held.failed(targets) if self._retry_failed else _NO_FAILED

    def blocks(self) -> Iterator[Block]:
        """Yield what is to be had, in the targets' order."""
        for units in self._units.slices():
            yield from self._split(units.filter(self._own))

    def _split(self, units: pl.DataFrame) -> Iterator[Block]:
        """One block for each range of rows that units of one block lack."""
        targets = units.select(TARGET_KEY).to_series()
        rows = (
            units.select(
                key="unit_key",
                block=self._block,
                piece=self._piece,
                last_piece=self._piece.max().over(self._block),
                position=pl.int_range(pl.len(), dtype=pl.UInt32),
            )
            .join(self._held.done(targets), on="key", how="left", maintain_order="left")
            .with_columns(done=pl.col("done").fill_null(0))
        )
        new = rows.filter(pl.col("done") < self._n_rows).select(
            "position", first="done", last=pl.lit(self._n_rows, pl.UInt32)
        )
        failed = _ranges(self._failed(targets).join(rows, on="key", how="semi"))
        again = rows.join(failed, on="key").select("position", "first", "last")
        ranges = pl.concat([new, again.filter(pl.col("last") <= self._n_rows)])
        grouped = rows.join(ranges, on="position", maintain_order="left").group_by(
            "block", "piece", "last_piece", "first", "last", maintain_order=True
        )
        for numbers, lacking in grouped:
            chosen = units[lacking["position"]].drop("unit_key", "target_row")
            index, piece, last_piece, first, last = (int(str(number)) for number in numbers)
            yield self._made(index, piece, last_piece, first, last, chosen)

    @property
    def _piece(self) -> pl.Expr:
        """Number the piece of each unit."""
        if self._work is None:
            return pl.lit(0, pl.Int64)
        work = self._work.cast(pl.Int64)
        pieces = (work.sum() // PIECE_TOKENS + 1).clip(upper_bound=_MOST_PIECES)
        size = work.sum() // pieces + 1
        return ((work.cum_sum() - work) // size).over(self._block)

    def _made(
        self, index: int, piece: int, last_piece: int, first: int, last: int, units: pl.DataFrame
    ) -> Block:
        label = self._parts.label
        stem = part_stem(index, label, first, last)
        attempt = piece
        if not last_piece or f"{stem}.attempt-{piece}.parquet" in self._names:
            attempt += max(self._attempts[stem], last_piece + 1 if last_piece else 0)
        return Block(index=index, first=first, last=last, attempt=attempt, label=label, units=units)


def _next_attempts(parts: Parts) -> Counter[str]:
    """Return the number of the next attempt of each block and range; an earlier may be missing."""
    following: Counter[str] = Counter()
    for part in parts.paths():
        block, _, attempt = part.stem.partition(".attempt-")
        following[block] = max(following[block], int(attempt) + 1)
    return following


def _ranges(failed: pl.DataFrame) -> pl.DataFrame:
    """Join neighbouring rows of a unit: ``key``, ``first``, ``last``."""
    ordered = failed.sort("key", "index")
    position = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    return (
        ordered.group_by("key", run=pl.col("index") - position, maintain_order=True)
        .agg(first=pl.col("index").min(), last=pl.col("index").max() + 1)
        .drop("run")
    )
