"""Blocks: the portions in which evidence is collected and stored, and which of them are missing.

A block's rows become one part. A part that exists is complete; what no part holds is missing.
That is the whole resume logic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.schemas import LogProbs, Samples, Targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import dataframely as dy

__all__ = [
    "BLOCK_TARGETS",
    "RECORDED_BLOCK_TARGETS",
    "Block",
    "Missing",
    "Parts",
    "Work",
    "logprob_parts",
    "sample_parts",
]

BLOCK_TARGETS = 64
"""Targets in a block: few enough that little is lost with an unfinished one."""
RECORDED_BLOCK_TARGETS = 8 * BLOCK_TARGETS
"""The same where samples are only read from a recording."""

_SCORED_BLOCK_TARGETS = 4 * BLOCK_TARGETS  # one forward pass a text, not one a token
_READ_TARGETS = 64 * BLOCK_TARGETS  # whole blocks of either size
_KEY = pl.col("target_id").str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)
"""Half of a target's hash: 8 bytes a target instead of a string."""
_NO_FAILED = pl.DataFrame(schema={"key": pl.UInt64, "index": pl.UInt32})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of one kind of evidence: of each target, rows numbered from 0.

    Attributes
    ----------
    folder
        Where they lie.
    schema
        Of the table that they make up.
    number
        The column that numbers a target's rows.
    label
        What their names say of the kind.
    wanted
        Which targets have such rows.
    block_targets
        Rows of the targets table in a block.
    """

    folder: Path
    schema: type[dy.Schema]
    number: str
    label: str
    wanted: pl.Expr
    block_targets: int

    def paths(self) -> list[Path]:
        """List the parts that exist, in the order of their names."""
        return sorted(self.folder.glob(f"block-*.{self.label}-[0-9]*.parquet"))

    def targets_of(self, part: Path) -> range:
        """Tell which rows of the targets table its targets were when the part was made.

        A corpus that has grown since may have moved them.
        """
        index = int(part.name.partition(".")[0].removeprefix("block-"))
        return range(index * self.block_targets, (index + 1) * self.block_targets)

    def scan(self) -> pl.LazyFrame:
        """Open the rows as ``key`` (half of a target's hash), ``index`` and ``reason``."""
        rows = tables.scan(self.paths(), self.schema)
        return rows.select(_KEY.alias("key"), index=pl.col(self.number), reason="reason")


def sample_parts(folder: Path, *, recorded: bool = False) -> Parts:
    """Parts of the samples table, from an engine or a recording; no target with a ``reason``."""
    return Parts(
        folder=folder,
        schema=Samples,
        number="sample_index",
        label="samples",
        wanted=pl.col("reason").is_null(),
        block_targets=RECORDED_BLOCK_TARGETS if recorded else BLOCK_TARGETS,
    )


def logprob_parts(folder: Path, role: str, view: str) -> Parts:
    """Parts of the logprobs table that hold one view and model; a target without text has none."""
    return Parts(
        folder=folder,
        schema=LogProbs,
        number="view_index",
        label=f"{role}-{view}",
        wanted=pl.col("target").is_not_null(),
        block_targets=_SCORED_BLOCK_TARGETS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Targets that still lack the same rows.

    Attributes
    ----------
    index
        Position of the block in the targets table.
    first, last
        The numbers of the missing rows: ``first <= number < last``.
    attempt
        Parts of the same block and rows that exist already.
    label
        Kind of the rows.
    targets
        The targets, in the table's order, at most as many as `Parts` have in a block.
    """

    index: int
    first: int
    last: int
    attempt: int
    targets: pl.DataFrame
    label: str = "samples"

    @property
    def part_name(self) -> str:
        """File name of the block's part."""
        return (
            f"{_stem(self.index, self.label, self.first, self.last)}.attempt-{self.attempt}.parquet"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is to do.

    Attributes
    ----------
    targets
        Targets that lack rows.
    done
        Targets that have all of them.
    """

    targets: int
    done: int


class Missing:
    """What the parts of a run lack.

    Parameters
    ----------
    targets
        The targets table.
    parts
        The parts that exist.
    n_rows
        Rows wanted per target.
    retry_failed
        Whether rows that could not be had count as missing.
    """

    def __init__(
        self,
        targets: Path,
        parts: Parts,
        n_rows: int,
        *,
        retry_failed: bool = False,
    ) -> None:
        self._targets = targets
        self._parts = parts
        self._n_rows = n_rows
        self._done = _find_done(parts)
        self._failed = _find_failed(parts) if retry_failed else _NO_FAILED
        self._attempts = _next_attempts(parts)

    def count(self) -> Work:
        """Count the targets.

        Returns
        -------
        Work
            The counts.
        """
        lacking = pl.col("done").fill_null(0) < self._n_rows
        failed = self._failed.lazy().select(pl.col("key").unique(), failed=True)
        total, lacks = (
            tables.scan(self._targets, Targets)
            .filter(self._parts.wanted)
            .select(_KEY.alias("key"))
            .join(self._done.lazy(), on="key", how="left")
            .join(failed, on="key", how="left")
            .select(pl.len(), (lacking | pl.col("failed").is_not_null()).sum().alias("lacks"))
            .collect(engine="streaming")
            .row(0)
        )
        return Work(targets=lacks, done=total - lacks)

    def blocks(self) -> Iterator[Block]:
        """Yield what is to be had, in the targets' order.

        Yields
        ------
        Block
            A block that lacks rows.
        """
        table = tables.scan(self._targets, Targets)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, _READ_TARGETS):
            targets = table.slice(start, _READ_TARGETS).collect()
            yield from self._split(targets, start)

    def _split(self, targets: pl.DataFrame, start: int) -> Iterator[Block]:
        """One block for each range of rows that targets of one block lack."""
        # Without further columns, which may have any name.
        rows = targets.select(*Targets.column_names(), key=_KEY).join(
            self._done, on="key", how="left", maintain_order="left"
        )
        place = pl.int_range(start, start + pl.len(), dtype=pl.UInt32)
        rows = rows.with_columns(place=place, index=place // self._parts.block_targets)
        rows = rows.filter(self._parts.wanted)
        done = pl.col("done").fill_null(0)
        new = rows.filter(done < self._n_rows).select(
            "place", first=done, last=pl.lit(self._n_rows, pl.UInt32)
        )
        failed = _ranges(self._failed.join(rows, on="key", how="semi"))
        again = rows.join(failed, on="key").select("place", "first", "last")
        ranges = pl.concat([new, again.filter(pl.col("last") <= self._n_rows)])
        grouped = rows.join(ranges, on="place", maintain_order="left").group_by(
            "index", "first", "last", maintain_order=True
        )
        for (index, first, last), lacking in grouped:
            chosen = targets[lacking["place"] - start]
            yield self._block(int(str(index)), int(str(first)), int(str(last)), chosen)

    def _block(self, index: int, first: int, last: int, targets: pl.DataFrame) -> Block:
        stem = _stem(index, self._parts.label, first, last)
        return Block(
            index=index,
            first=first,
            last=last,
            attempt=self._attempts[stem],
            targets=targets,
            label=self._parts.label,
        )


def _stem(index: int, label: str, first: int, last: int) -> str:
    return f"block-{index:08d}.{label}-{first:05d}-{last:05d}"


def _next_attempts(parts: Parts) -> Counter[str]:
    """Return the number of the next attempt of each block and range; an earlier may be missing."""
    following: Counter[str] = Counter()
    for part in parts.paths():
        block, _, attempt = part.stem.partition(".attempt-")
        following[block] = max(following[block], int(attempt) + 1)
    return following


def _find_done(parts: Parts) -> pl.DataFrame:
    """Count the rows of each target that the parts hold: ``key`` (UInt64), ``done`` (UInt32)."""
    counted = parts.scan().group_by("key").agg(done=pl.col("index").max() + 1)
    return counted.collect(engine="streaming")  # a part holds whole ranges


def _find_failed(parts: Parts) -> pl.DataFrame:
    """Find rows with a reason in every part that has them: ``key``, ``index``."""
    rows = parts.scan()
    failed = rows.filter(pl.col("reason").is_not_null()).drop("reason").unique()
    had = rows.filter(pl.col("reason").is_null())
    return failed.join(had, on=["key", "index"], how="anti").collect(engine="streaming")


def _ranges(failed: pl.DataFrame) -> pl.DataFrame:
    """Join neighbouring rows of a target: ``key``, ``first``, ``last``."""
    ordered = failed.sort("key", "index")
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    return (
        ordered.group_by("key", run=pl.col("index") - place, maintain_order=True)
        .agg(first=pl.col("index").min(), last=pl.col("index").max() + 1)
        .drop("run")
    )
