"""Blocks: the portions in which samples are collected and stored, and which of them are missing.

A block's rows become one part. A part that exists is complete; what no part holds is missing.
That is the whole resume logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.schemas import Samples, Targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BLOCK_TARGETS", "Block", "Work", "missing_blocks", "unsampled"]

BLOCK_TARGETS = 64
"""Targets in a block: few enough that little is lost with an unfinished one."""

_READ_TARGETS = 64 * BLOCK_TARGETS
_KEY = pl.col("target_id").str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)
"""Half of a target's hash: 8 bytes a target instead of a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Targets that still lack the same samples.

    Attributes
    ----------
    index
        Position of the block in the targets table.
    first, last
        The missing samples: ``first <= sample_index < last``.
    attempt
        Parts of the same block and samples that exist already.
    targets
        The targets, in the table's order, at most ``BLOCK_TARGETS`` rows.
    """

    index: int
    first: int
    last: int
    attempt: int
    targets: pl.DataFrame

    @property
    def part_name(self) -> str:
        """File name of the block's part."""
        return (
            f"block-{self.index:08d}.samples-{self.first:05d}-{self.last:05d}"
            f".attempt-{self.attempt}.parquet"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is to sample.

    Attributes
    ----------
    targets
        Targets that lack samples.
    done
        Targets that have all of them.
    """

    targets: int
    done: int


def unsampled(targets: Path, samples: Path, n_samples: int) -> Work:
    """Count what is still to be sampled.

    Parameters
    ----------
    targets
        The targets table; those with a ``reason`` are left out.
    samples
        Folder of the parts that exist.
    n_samples
        Samples wanted per target.

    Returns
    -------
    Work
        The counts.
    """
    wanted = tables.scan(targets, Targets).filter(pl.col("reason").is_null())
    counted = (
        wanted.select(_KEY.alias("key"))
        .join(_count_done(samples).lazy(), on="key", how="left")
        .select(
            total=pl.len(),
            done=(pl.col("done").fill_null(0) >= n_samples).sum(),
        )
        .collect(engine="streaming")
    )
    total, done = counted.row(0)
    return Work(targets=total - done, done=done)


def _count_done(samples: Path) -> pl.DataFrame:
    """Count the samples of each target that the parts hold: ``key`` (UInt64), ``done`` (UInt32)."""
    if not any(samples.glob("*.parquet")):
        return pl.DataFrame(schema={"key": pl.UInt64, "done": pl.UInt32})
    parts = tables.scan(samples, Samples)
    counted = parts.group_by(_KEY.alias("key")).agg(pl.len().cast(pl.UInt32).alias("done"))
    return counted.collect(engine="streaming")


def missing_blocks(targets: Path, samples: Path, n_samples: int) -> Iterator[Block]:
    """Yield what is still to be sampled, in the targets' order.

    Parameters
    ----------
    targets
        The targets table; those with a ``reason`` are left out.
    samples
        Folder of the parts that exist.
    n_samples
        Samples wanted per target.

    Yields
    ------
    Block
        A block that lacks samples.
    """
    done = _count_done(samples)
    table = tables.scan(targets, Targets)
    height = table.select(pl.len()).collect().item()
    for start in range(0, height, _READ_TARGETS):
        rows = table.slice(start, _READ_TARGETS).collect()
        rows = rows.with_columns(_KEY.alias("key")).join(
            done, on="key", how="left", maintain_order="left"
        )
        for offset in range(0, rows.height, BLOCK_TARGETS):
            chunk = rows.slice(offset, BLOCK_TARGETS).filter(
                pl.col("reason").is_null(), pl.col("done").fill_null(0) < n_samples
            )
            yield from _split((start + offset) // BLOCK_TARGETS, chunk, samples, n_samples)


def _split(index: int, chunk: pl.DataFrame, samples: Path, n_samples: int) -> Iterator[Block]:
    """One block for each number of samples that targets have already."""
    for (done,), rows in chunk.group_by(pl.col("done").fill_null(0), maintain_order=True):
        first = int(str(done))
        pattern = f"block-{index:08d}.samples-{first:05d}-{n_samples:05d}.attempt-*.parquet"
        yield Block(
            index=index,
            first=first,
            last=n_samples,
            attempt=len(list(samples.glob(pattern))),
            targets=rows.drop("key", "done"),
        )
