"""Parts of a table, and the table that they make up.

A part that exists is complete; what no part holds is missing. That is the whole resume
logic.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import polars as pl

from mia_batch.schemas import (
    FILTERED,
    Features,
    LogProbs,
    Prompts,
    Samples,
    Table,
    Targets,
)
from mia_batch.tables import RowIndex, scan, sink_new
from mia_batch.views import View

TARGET_KEY = (
    pl.col("target_id")
    .str.slice(0, 16)
    .str.to_integer(
        base=16,
        dtype=pl.UInt64,
    )
)
"""Half of a target's hash: 8 bytes a target instead of a string."""

_PROMPT_KEY = TARGET_KEY + pl.col("view_index")
_NUMBERS: dict[type[Table], tuple[pl.Expr, pl.Expr]] = {
    Prompts: (TARGET_KEY, pl.col("view_index")),
    Samples: (_PROMPT_KEY, pl.col("sample_index")),
    LogProbs: (_PROMPT_KEY, pl.lit(0, pl.UInt32)),
}
"""Of each table the key of what a row belongs to, and what numbers the rows of one key from 0."""
_NAMES = ("target_id", "model", "view", "view_index", "sample_index")
# Targets in a block: few enough that little is lost with an unfinished one
BLOCK_TARGETS = 64
# The same where samples are only read from a recording
RECORDED_BLOCK_TARGETS = 8 * BLOCK_TARGETS
LOGPROB_BLOCK_TARGETS = 4 * BLOCK_TARGETS
"""The same of log-probabilities: one forward pass a text, not one a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A range of adjacent targets, all missing the same rows: ``first <= number < last``."""

    index: int  # of the block in the targets table
    first: int
    last: int
    attempt: int  # the piece; where its part exists already, a number that no part has
    label: str
    units: pl.DataFrame  # in the targets' order

    @property
    def part_name(self) -> str:
        stem = part_stem(self.index, self.label, self.first, self.last)
        return f"{stem}.attempt-{self.attempt}.parquet"


def part_stem(
    index: int,
    label: str,
    first: int,
    last: int,
) -> str:
    return f"block-{index:08d}.{label}-{first:05d}-{last:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of one table that hold one view of one model."""

    folder: Path
    schema: type[Table]
    model: str
    view: str
    block_targets: int  # targets in a block
    unit: str | None = None  # what progress calls a prompt; None: prompt, or text

    @property
    def label(self) -> str:
        return f"{self.model.replace('/', '~')}-{self.view}"

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"block-*.{self.label}-[0-9]*.parquet"))

    def target_rows(self, part: Path) -> range:
        """Return the rows of the targets table that its targets had when the part was made."""
        # A corpus that has grown since may have moved them.
        index = int(part.name.partition(".")[0].removeprefix("block-"))
        start = index * self.block_targets
        return range(start, start + self.block_targets)

    def store(
        self,
        block: Block,
        rows: pl.DataFrame,
    ) -> bool:
        """Write the part of a block; False where another worker wrote it before."""
        return sink_new(rows, self.folder / block.part_name, self.schema)

    def scan(self, paths: Sequence[Path]) -> pl.LazyFrame:
        """Open rows as ``target`` and ``key`` (UInt64), ``index`` (UInt32) and ``reason``."""
        # The reason is null where asking again would bring the same answer.
        key, number = _NUMBERS[self.schema]
        reason = pl.col("reason")
        if self.schema is Samples:
            answer = pl.col("answer").cast(pl.String)
            is_failed = answer.is_null() | (answer == "not_asked")
            reason = pl.when(is_failed).then(reason)
        elif self.schema is LogProbs:
            reason = pl.when(~reason.str.starts_with(FILTERED)).then(reason)
        return scan(paths, self.schema).select(
            target=TARGET_KEY,
            key=key,
            index=number,
            reason=reason,
        )


def scan_parts(
    folder: Path,
    schema: type[Table],
    reads: tuple[str, str] | None = None,
) -> pl.LazyFrame:
    """Open the table of a folder of parts, less what a later attempt replaced."""
    # Of a row that failed and was tried again those with a ``reason`` are left out
    # where there is one without; among several with a ``reason`` the last stays.
    source: Path | list[Path] = folder
    if reads is not None:
        model, view = reads
        parts = Parts(
            folder=folder,
            schema=schema,
            model=model,
            view=view,
            block_targets=1,
        )
        source = parts.paths()
    table = scan(source, schema)
    failed = pl.col("reason").is_not_null()
    if schema is Features:
        failed = pl.col("words_candidate").is_null()
    # Where no row failed, this reads one column and nothing else.
    if not table.select(failed.any()).collect(engine="streaming").item():
        return table
    names = [name for name in _NAMES if name in schema.column_names()]
    key = pl.col(names)
    rows = table.with_row_index("row").select("row", key, failed=failed)
    failed_keys = rows.filter("failed").select(key).unique()
    attempts = rows.join(
        failed_keys,
        on=names,
        how="semi",
    )
    in_order = attempts.sort(key, ~pl.col("failed"), "row")
    is_replaced = pl.all_horizontal(key.shift(-1) == key)
    replaced = (
        in_order.filter("failed", is_replaced).select("row").collect(engine="streaming")
    )
    if replaced.is_empty():
        return table
    remaining = table.with_row_index("row").join(
        replaced.lazy(),
        on="row",
        how="anti",
        maintain_order="left",
    )
    return remaining.drop("row")


class StoredRows:
    """The rows of the parts that exist by now, read for some targets at a time."""

    # In memory is where each target's rows lie, 16 bytes a target: in the parts that
    # were made of one slice of targets. A target that a grown corpus has moved, or
    # that was asked for again, may lie in several.

    def __init__(self, parts: Parts) -> None:
        def find_slice(path: Path) -> int:
            return parts.target_rows(path).start // TARGETS_AT_ONCE

        self._parts = parts
        groups = groupby(parts.paths(), key=find_slice)
        self._slices = [list(paths) for _, paths in groups]
        slices = []
        for paths in self._slices:
            targets = parts.scan(paths).select(pl.col("target").unique())
            slices.append(targets.collect(engine="streaming"))
        heights = [targets.height for targets in slices]
        numbers = np.arange(len(slices), dtype=np.uint32)
        self._slice_numbers = np.repeat(numbers, heights)
        no_targets = pl.DataFrame(schema={"target": pl.UInt64})
        self._index = RowIndex(pl.concat([no_targets, *slices]).lazy())

    def paths(self, targets: pl.Series) -> list[Path]:
        """List the parts that have rows of some targets, by their keys."""
        _, rows = self._index.find(targets)
        numbers = np.unique(self._slice_numbers[rows])
        return [*chain.from_iterable(self._slices[number] for number in numbers)]

    def count_rows(self, targets: pl.Series) -> pl.DataFrame:
        """Count the rows of each unit of these targets: ``key`` (UInt64), ``done`` (UInt32)."""
        n_rows = pl.col("index").max() + 1  # a part holds whole ranges
        counts = self._rows(targets).group_by("key").agg(done=n_rows)
        return counts.collect(engine="streaming")

    def find_failed(self, targets: pl.Series) -> pl.DataFrame:
        """Find rows with a reason in every part that has them: ``key``, ``index``."""
        rows = self._rows(targets)
        has_failed = pl.col("reason").is_not_null()
        failed = rows.filter(has_failed).drop("reason").unique()
        answered = rows.filter(~has_failed)
        return failed.join(
            answered,
            on=["key", "index"],
            how="anti",
        ).collect(engine="streaming")

    def _rows(self, targets: pl.Series) -> pl.LazyFrame:
        rows = self._parts.scan(self.paths(targets))
        is_among = pl.col("target").is_in(targets.unique().implode())
        return rows.filter(is_among).drop("target")


# What rows are wanted of (``Units``): targets, or prompts about them, a slice of
# targets at a time.

# Targets of a slice; whole blocks of every size, and one block of prompts
TARGETS_AT_ONCE = 4096

_KEYS_AT_ONCE = 65536
_KEY = pl.col("target") + pl.col("index")
_HAS_TEXT = pl.col("target").is_not_null()
_UNITS_NAMES = ("target_id", "document_id", "n_words")


@dataclass(frozen=True, slots=True)
class FreshUnits:
    """Targets that have a text, or prompts of a view as they would be made of them."""

    targets: pl.LazyFrame
    view: View | None = None
    columns: tuple[str, ...] = ()
    # ``target_id`` of those that may be asked; None = all
    among: pl.Series | None = None

    def keys(self) -> Iterator[pl.DataFrame]:
        """Iterate over the ``key`` of each, and its ``target``'s key and row, asked or not."""
        n = 1 if self.view is None else self.view.n
        index = pl.lit(list(range(n)), dtype=pl.List(pl.UInt32))
        targets = self.targets.with_row_index("target_row").filter(
            _HAS_TEXT,
            _is_among(self.among),
        )
        units = targets.select(
            "target_row",
            target=TARGET_KEY,
            index=index,
        )
        rows = units.explode("index").select("target_row", "target", key=_KEY)
        yield from rows.collect_batches(chunk_size=_KEYS_AT_ONCE)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Iterate in the targets' order: ``unit_key``, ``target_row``, and what is asked."""
        start = 0
        view = self.view
        table = self.targets.select(*Targets.column_names(), *self.columns)
        batches = table.collect_batches(
            chunk_size=TARGETS_AT_ONCE,
            maintain_order=True,
        )
        for batch in batches:
            numbered = batch.with_columns(
                target_row=_rows_from(start),
                unit_key=TARGET_KEY,
            ).filter(_HAS_TEXT, _is_among(self.among))
            start += batch.height
            if view is None:
                yield numbered
            elif view.make is not None:
                prompts = view.fill_prompts(view.make(numbered.drop("unit_key")))
                askable = prompts.filter(pl.col("reason").is_null())
                units = numbered.select(*_UNITS_NAMES, *view.columns, "target_row")
                rows = view.resolve(askable, units)
                yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))


@dataclass(frozen=True)
class PromptUnits:
    """Prompts of one view; those that cannot be asked are left out with ``askable``."""

    targets: Path
    parts: Parts  # of the prompts table
    view: View
    askable: bool = False
    # ``target_id`` of those that may be asked; None = all
    among: pl.Series | None = None

    def keys(self) -> Iterator[pl.DataFrame]:
        """Iterate over the keys and ``target_row`` of the prompts of the run's targets."""
        index = RowIndex(scan(self.targets, Targets).select(TARGET_KEY))
        prompts = scan(self.parts.paths(), Prompts).filter(self._may_be_asked)
        units = prompts.select(
            target=TARGET_KEY,
            index="view_index",
        )
        batches = units.select("target", key=_KEY).collect_batches(
            chunk_size=_KEYS_AT_ONCE,
            maintain_order=True,
        )
        for batch in batches:
            positions, rows = index.find(batch["target"])
            target_row = pl.Series(rows, dtype=pl.UInt32)
            yield batch[positions].with_columns(target_row=target_row)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Iterate over prompts: ``target_id``, ``document_id``, ``context`` and ``text``."""
        table = scan(self.targets, Targets).select(*_UNITS_NAMES, *self.view.columns)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, TARGETS_AT_ONCE):
            targets = table.slice(start, TARGETS_AT_ONCE).collect()
            numbered = targets.with_columns(target_row=_rows_from(start))
            places = [range(start, start + TARGETS_AT_ONCE)]
            rows = self.find_prompts(numbered, places)
            yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))

    def find_prompts(
        self,
        targets: pl.DataFrame,
        places: Iterable[range],
        whole: Collection[str] = ("context", "text"),
    ) -> pl.DataFrame:
        """Find the prompts of some targets, which stood in these rows of the targets table."""
        size = self.parts.block_targets
        blocks: set[int] = set()
        for place in places:
            blocks |= {place[0] // size, place[-1] // size}
        n_parts = sum(map(len, self._by_block.values()))
        paths = [
            *chain.from_iterable(self._by_block.get(n, ()) for n in sorted(blocks))
        ]
        prompts = self._read(paths, targets["target_id"])
        is_last = pl.col("view_index") == self.view.n - 1
        is_complete = prompts.filter(is_last).height == targets.height
        if not is_complete and len(paths) < n_parts:
            # A corpus that has grown has moved targets: their prompts lie in other
            # parts.
            elsewhere = self._stored.paths(targets.select(TARGET_KEY).to_series())
            prompts = self._read(elsewhere, targets["target_id"])
        return self.view.resolve(prompts.filter(self._may_be_asked), targets, whole)

    def _read(
        self,
        paths: Sequence[Path],
        target_ids: pl.Series,
    ) -> pl.DataFrame:
        is_among = pl.col("target_id").is_in(target_ids.implode())
        is_of_view = pl.col("view_index") < self.view.n
        return scan(paths, Prompts).filter(is_among & is_of_view).collect()

    @property
    def _may_be_asked(self) -> pl.Expr:
        return _is_among(self.among) & (pl.col("reason").is_null() | (not self.askable))

    @cached_property
    def _by_block(self) -> dict[int, list[Path]]:
        by_block: dict[int, list[Path]] = {}
        for path in self.parts.paths():
            first = self.parts.target_rows(path).start
            by_block.setdefault(first // self.parts.block_targets, []).append(path)
        return by_block

    @cached_property
    def _stored(self) -> StoredRows:
        return StoredRows(self.parts)


class Units(Protocol):
    """What rows are wanted of: targets, prompts, or rows of whoever makes them."""

    def keys(self) -> Iterator[pl.DataFrame]: ...
    def slices(self) -> Iterator[pl.DataFrame]: ...


def _is_among(target_ids: pl.Series | None) -> pl.Expr:
    if target_ids is None:
        return pl.lit(value=True)
    return pl.col("target_id").is_in(target_ids.implode())


def _rows_from(start: int) -> pl.Expr:
    return pl.int_range(start, start + pl.len(), dtype=pl.UInt32)


# What the parts of a run lack, block by block.

PIECE_TOKENS = 1 << 18
"""Work of a piece, which is stored by itself: half a minute of a GPU and a model of 8 B."""
_MOST_PIECES = 10  # of a block; their names are in order
_NO_FAILED = pl.DataFrame(
    schema={
        "key": pl.UInt64,
        "index": pl.UInt32,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Count of the units of a run."""

    left: int = 0  # that lack rows
    done: int = 0  # that have all of them
    unit: str = "prompt"  # what a unit is called

    def __add__(self, work: Self) -> Self:
        return type(self)(
            left=self.left + work.left,
            done=self.done + work.done,
            unit=self.unit if self.unit == work.unit else "prompt",
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """Number ``number`` of ``of``, from 1; block b belongs to number ``b % of + 1``."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"3/8"``; raises `ValueError` if that is no shard."""
        number = r"0*([1-9][0-9]{0,5})"
        match = re.fullmatch(f"{number}/{number}", text, re.ASCII)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(
                "write I/N with I from 1 to N, such as 3/8 for the third of eight"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def contains(self, block: pl.Expr) -> pl.Expr:
        return block % self.of == self.number - 1


class Missing:
    """What the parts of a run lack: ``n_rows`` of each unit."""

    # With ``retry_failed`` rows that have a reason count as missing. Blocks of more
    # than `PIECE_TOKENS` are cut into up to 10 pieces of about the same ``work``; where
    # depends only on the texts, so that a resumed run cuts at the same places.

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
        self._in_shard = pl.lit(value=True)
        if shard is not None:
            self._in_shard = shard.contains(self._block)
        self._parts = parts
        self._n_rows = n_rows
        self._stored = StoredRows(parts)
        self._retry_failed = retry_failed
        self._work = work
        paths = parts.paths()
        self._part_names = {path.name for path in paths}
        # Of each block and range the next number
        self._attempts: Counter[str] = Counter()
        for path in paths:  # of which an earlier one may be gone
            stem, _, attempt = path.stem.partition(".attempt-")
            self._attempts[stem] = max(self._attempts[stem], int(attempt) + 1)

    def count(self) -> Work:
        """Count the units that lack rows, and those that have all of them."""
        n_units = n_done = 0
        has_all = pl.col("done") >= self._n_rows
        for keys in self._units.keys():  # noqa: SIM118 - no dictionary
            units = keys.filter(self._in_shard)
            targets = units["target"]
            n_units += units.height
            whole = self._stored.count_rows(targets).filter(has_all)
            complete = units.join(
                whole,
                on="key",
                how="semi",
            )
            failed = self._failed(targets)
            n_done += complete.join(
                failed,
                on="key",
                how="anti",
            ).height
        unit = "prompt" if self._parts.schema is Samples else "text"
        return Work(
            left=n_units - n_done,
            done=n_done,
            unit=self._parts.unit or unit,
        )

    def _failed(self, targets: pl.Series) -> pl.DataFrame:
        return self._stored.find_failed(targets) if self._retry_failed else _NO_FAILED

    def blocks(self) -> Iterator[Block]:
        """Iterate over the blocks that lack rows."""
        for units in self._units.slices():
            yield from self._split(units.filter(self._in_shard))

    def _split(self, units: pl.DataFrame) -> Iterator[Block]:
        """Build one block for each range of rows that units of one block lack."""
        targets = units.select(TARGET_KEY).to_series()
        places = units.select(
            key="unit_key",
            block=self._block,
            piece=self._piece,
            last_piece=self._piece.max().over(self._block),
            position=pl.int_range(pl.len(), dtype=pl.UInt32),
        )
        rows = places.join(
            self._stored.count_rows(targets),
            on="key",
            how="left",
            maintain_order="left",
        ).with_columns(pl.col("done").fill_null(0))
        ranges = self._missing_ranges(rows, targets)
        grouped = rows.join(
            ranges,
            on="position",
            maintain_order="left",
        ).group_by(
            "block",
            "piece",
            "last_piece",
            "first",
            "last",
            maintain_order=True,
        )
        for key, group in grouped:
            index, piece, last_piece, first, last = (int(str(n)) for n in key)
            stem = part_stem(index, self._parts.label, first, last)
            yield Block(
                index=index,
                first=first,
                last=last,
                attempt=self._number_part(stem, piece, last_piece),
                label=self._parts.label,
                units=units[group["position"]].drop("unit_key", "target_row"),
            )

    def _missing_ranges(
        self,
        rows: pl.DataFrame,
        targets: pl.Series,
    ) -> pl.DataFrame:
        """Find the rows that units lack, or lack again: ``position``, ``first``, ``last``."""
        n_rows = pl.lit(self._n_rows, pl.UInt32)
        new = rows.filter(pl.col("done") < self._n_rows).select(
            "position",
            first="done",
            last=n_rows,
        )
        failed = self._failed(targets).join(
            rows,
            on="key",
            how="semi",
        )
        retried = rows.join(_ranges(failed), on="key").filter(pl.col("last") <= n_rows)
        return pl.concat([new, retried.select("position", "first", "last")])

    def _number_part(
        self,
        stem: str,
        piece: int,
        last_piece: int,
    ) -> int:
        """Return the number of the piece, or where its part exists one that no part has."""
        is_new = f"{stem}.attempt-{piece}.parquet" not in self._part_names
        if last_piece and is_new:
            return piece
        lowest = last_piece + 1 if last_piece else 0
        return piece + max(self._attempts[stem], lowest)

    @property
    def _piece(self) -> pl.Expr:
        if self._work is None:
            return pl.lit(0, pl.Int64)
        work = self._work.cast(pl.Int64)
        pieces = (work.sum() // PIECE_TOKENS + 1).clip(upper_bound=_MOST_PIECES)
        size = work.sum() // pieces + 1
        return ((work.cum_sum() - work) // size).over(self._block)


def _ranges(failed: pl.DataFrame) -> pl.DataFrame:
    """Join neighbouring rows of a unit: ``key``, ``first``, ``last``."""
    ordered = failed.sort("key", "index")
    position = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    runs = ordered.group_by(
        "key",
        run=pl.col("index") - position,
        maintain_order=True,
    )
    index = pl.col("index")
    return runs.agg(
        first=index.min(),
        last=index.max() + 1,
    ).drop("run")
