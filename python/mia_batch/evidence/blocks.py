"""Blocks: the portions in which samples are collected and stored, and which of them are missing.

A block's rows become one part. A part that exists is complete; what no part holds is missing.
That is the whole resume logic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.schemas import Samples, Targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BLOCK_TARGETS", "RECORDED_BLOCK_TARGETS", "Block", "Missing", "Work"]

BLOCK_TARGETS = 64
"""Targets in a block: few enough that little is lost with an unfinished one."""
RECORDED_BLOCK_TARGETS = 8 * BLOCK_TARGETS
"""The same where samples are only read from a recording."""

_READ_TARGETS = 64 * BLOCK_TARGETS  # whole blocks of either size
_KEY = pl.col("target_id").str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)
"""Half of a target's hash: 8 bytes a target instead of a string."""
_NO_FAILED = pl.DataFrame(schema={"key": pl.UInt64, "sample_index": pl.UInt32})


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
        The targets, in the table's order, at most ``block_targets`` rows.
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


class Missing:
    """What the parts of a run lack.

    Parameters
    ----------
    targets
        The targets table; those with a ``reason`` are left out.
    samples
        Folder of the parts that exist.
    n_samples
        Samples wanted per target.
    retry_failed
        Whether samples that could not be had count as missing.
    block_targets
        Targets in a block.
    """

    def __init__(
        self,
        targets: Path,
        samples: Path,
        n_samples: int,
        *,
        retry_failed: bool = False,
        block_targets: int = BLOCK_TARGETS,
    ) -> None:
        self._block_targets = block_targets
        self._targets = targets
        self._n_samples = n_samples
        self._done = _find_done(samples)
        self._failed = _find_failed(samples) if retry_failed else _NO_FAILED
        self._attempts = _next_attempts(samples)

    def count(self) -> Work:
        """Count the targets.

        Returns
        -------
        Work
            The counts.
        """
        lacking = pl.col("done").fill_null(0) < self._n_samples
        failed = self._failed.lazy().select(pl.col("key").unique(), failed=True)
        total, lacks = (
            tables.scan(self._targets, Targets)
            .filter(pl.col("reason").is_null())
            .select(_KEY.alias("key"))
            .join(self._done.lazy(), on="key", how="left")
            .join(failed, on="key", how="left")
            .select(pl.len(), (lacking | pl.col("failed").is_not_null()).sum().alias("lacks"))
            .collect(engine="streaming")
            .row(0)
        )
        return Work(targets=lacks, done=total - lacks)

    def blocks(self) -> Iterator[Block]:
        """Yield what is to be sampled, in the targets' order.

        Yields
        ------
        Block
            A block that lacks samples.
        """
        table = tables.scan(self._targets, Targets)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, _READ_TARGETS):
            rows = table.slice(start, _READ_TARGETS).collect()
            rows = rows.with_columns(_KEY.alias("key")).join(
                self._done, on="key", how="left", maintain_order="left"
            )
            yield from self._split(rows, start)

    def _split(self, rows: pl.DataFrame, start: int) -> Iterator[Block]:
        """One block for each range of samples that targets of one block lack."""
        place = pl.int_range(start, start + pl.len(), dtype=pl.UInt32)
        rows = rows.with_columns(place=place, index=place // self._block_targets)
        rows = rows.filter(pl.col("reason").is_null())
        done = pl.col("done").fill_null(0)
        new = rows.filter(done < self._n_samples).select(
            "place", first=done, last=pl.lit(self._n_samples, pl.UInt32)
        )
        failed = _ranges(self._failed.join(rows, on="key", how="semi"))
        again = rows.join(failed, on="key").select("place", "first", "last")
        ranges = pl.concat([new, again.filter(pl.col("last") <= self._n_samples)])
        grouped = rows.join(ranges, on="place", maintain_order="left").group_by(
            "index", "first", "last", maintain_order=True
        )
        for (index, first, last), targets in grouped:
            block = f"block-{index:08d}.samples-{first:05d}-{last:05d}"
            yield Block(
                index=int(str(index)),
                first=int(str(first)),
                last=int(str(last)),
                attempt=self._attempts[block],
                targets=targets.drop("key", "done", "place", "index", "first", "last"),
            )


def _next_attempts(samples: Path) -> Counter[str]:
    """Return the number of the next attempt of each block and range; an earlier may be missing."""
    following: Counter[str] = Counter()
    for part in samples.glob("*.attempt-*.parquet"):
        block, _, attempt = part.stem.partition(".attempt-")
        following[block] = max(following[block], int(attempt) + 1)
    return following


def _find_done(samples: Path) -> pl.DataFrame:
    """Count the samples of each target that the parts hold: ``key`` (UInt64), ``done`` (UInt32)."""
    if not any(samples.glob("*.parquet")):
        return pl.DataFrame(schema={"key": pl.UInt64, "done": pl.UInt32})
    found = tables.scan(samples, Samples).group_by(_KEY.alias("key"))
    counted = found.agg(done=(pl.col("sample_index").max() + 1))  # a part holds whole ranges
    return counted.collect(engine="streaming")


def _find_failed(samples: Path) -> pl.DataFrame:
    """Find samples with a reason in every part that has them: ``key``, ``sample_index``."""
    rows = tables.scan(samples, Samples).select(_KEY.alias("key"), "sample_index", "reason")
    failed = rows.filter(pl.col("reason").is_not_null()).drop("reason").unique()
    had = rows.filter(pl.col("reason").is_null())
    return failed.join(had, on=["key", "sample_index"], how="anti").collect(engine="streaming")


def _ranges(failed: pl.DataFrame) -> pl.DataFrame:
    """Join neighbouring samples of a target: ``key``, ``first``, ``last``."""
    ordered = failed.sort("key", "sample_index")
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    return (
        ordered.group_by("key", run=pl.col("sample_index") - place, maintain_order=True)
        .agg(first=pl.col("sample_index").min(), last=pl.col("sample_index").max() + 1)
        .drop("run")
    )
