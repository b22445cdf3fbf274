"""Parts of a table, and the table that they make up.

A part that exists is complete; what no part holds is missing. That is the whole resume
logic.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Protocol, Self

import dataframely as dy
import numpy as np
import polars as pl

from mia_batch.schemas import Features, LogProbs, Prompts, Samples, Targets
from mia_batch.tables import RowIndex, scan, sink_new
from mia_batch.views import View

TARGET_KEY = (
    pl.col("target_id").str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)
)
"""Half of a target's hash: 8 bytes a target instead of a string."""

_PROMPT_KEY = TARGET_KEY + pl.col("view_index")
_NUMBERS: dict[type[dy.Schema], tuple[pl.Expr, pl.Expr]] = {
    Prompts: (TARGET_KEY, pl.col("view_index")),
    Samples: (_PROMPT_KEY, pl.col("sample_index")),
    LogProbs: (_PROMPT_KEY, pl.lit(0, pl.UInt32)),
}
"""Of each table the key of what a row belongs to, and what numbers the rows of one key from 0."""
_NAMES = ("target_id", "model", "view", "view_index", "sample_index")
BLOCK_TARGETS = (
    64  # targets in a block: few enough that little is lost with an unfinished one
)
# The same where samples are only read from a recording
RECORDED_BLOCK_TARGETS = 8 * BLOCK_TARGETS
LOGPROB_BLOCK_TARGETS = 4 * BLOCK_TARGETS
"""The same of log-probabilities: one forward pass a text, not one a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Units of neighbouring targets that lack the same rows: ``first <= number < last``."""

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


def part_stem(index: int, label: str, first: int, last: int) -> str:
    return f"block-{index:08d}.{label}-{first:05d}-{last:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of one table that hold one view of one model."""

    folder: Path
    schema: type[dy.Schema]
    model: str
    view: str
    block_targets: int  # targets in a block
    unit: str | None = None  # what progress calls a prompt; None: prompt, or text

    @property
    def label(self) -> str:
        return f"{self.model.replace('/', '~')}-{self.view}"

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"block-*.{self.label}-[0-9]*.parquet"))

    def targets_of(self, part: Path) -> range:
        """Tell which rows of the targets table its targets were when the part was made."""
        # A corpus that has grown since may have moved them.
        index = int(part.name.partition(".")[0].removeprefix("block-"))
        return range(index * self.block_targets, (index + 1) * self.block_targets)

    def store(self, block: Block, rows: pl.DataFrame) -> bool:
        """Write the part of a block, unless another worker did; tell whether this one wrote it."""
        return sink_new(rows, self.folder / block.part_name, self.schema)

    def scan(self, paths: Sequence[Path]) -> pl.LazyFrame:
        """Open rows as ``target`` and ``key`` (UInt64), ``index`` (UInt32) and ``reason``."""
        # The reason is null where asking again would bring the same answer.
        key, number = _NUMBERS[self.schema]
        rows = scan(paths, self.schema)
        reason = pl.col("reason")
        if self.schema is Samples:
            answer = pl.col("answer").cast(pl.String)
            reason = pl.when(answer.is_null() | (answer == "not_asked")).then(reason)
        return rows.select(target=TARGET_KEY, key=key, index=number, reason=reason)


def scan_parts(
    folder: Path, schema: type[dy.Schema], reads: tuple[str, str] | None = None
) -> pl.LazyFrame:
    """Open the table of a folder of parts, less what a later attempt replaced."""
    # Of a row that failed and was tried again those with a ``reason`` are left out
    # where there is one without; among several with a ``reason`` the last stays.
    source: Path | list[Path] = folder
    if reads is not None:
        model, view = reads
        parts = Parts(
            folder=folder, schema=schema, model=model, view=view, block_targets=1
        )
        source = parts.paths()
    table = scan(source, schema)
    column = "words_candidate" if schema is Features else "reason"
    failed = (
        pl.col(column).is_null() if schema is Features else pl.col(column).is_not_null()
    )
    names = [name for name in _NAMES if name in schema.column_names()]
    key = pl.col(names)
    # Where no row failed, this reads one column and nothing else.
    if not table.select(failed.any()).collect(engine="streaming").item():
        return table
    rows = table.with_row_index("row").select("row", key, failed=failed)
    lost = rows.filter("failed").select(key).unique()
    replaced = (
        rows.join(lost, on=names, how="semi")
        .sort(key, ~pl.col("failed"), "row")
        .filter("failed", pl.all_horizontal(key.shift(-1) == key))
        .select("row")
        .collect(engine="streaming")
    )
    if replaced.is_empty():
        return table
    numbered = table.with_row_index("row")
    kept = numbered.join(replaced.lazy(), on="row", how="anti", maintain_order="left")
    return kept.drop("row")


class Held:
    """The rows of the parts that exist by now, read for some targets at a time."""

    # Held in memory is where each target's rows lie, 16 bytes a target: in the parts
    # that were made of one slice of targets. A target that a grown corpus has moved, or
    # that was asked for again, may lie in several.

    def __init__(self, parts: Parts) -> None:
        def slice_of(path: Path) -> int:
            return parts.targets_of(path).start // TARGETS_AT_ONCE

        self._parts = parts
        self._slices = [
            list(paths) for _, paths in groupby(parts.paths(), key=slice_of)
        ]
        names = (
            parts.scan(paths).select(pl.col("target").unique())
            for paths in self._slices
        )
        there = [targets.collect(engine="streaming") for targets in names]
        heights = [targets.height for targets in there]
        self._slice_of = np.repeat(np.arange(len(there), dtype=np.uint32), heights)
        targets = pl.concat([pl.DataFrame(schema={"target": pl.UInt64}), *there])
        self._index = RowIndex(targets.lazy())

    def paths(self, targets: pl.Series) -> list[Path]:
        """List the parts that have rows of some targets, by their keys."""
        numbers = np.unique(self._slice_of[self._index.find(targets)[1]])
        return [path for number in numbers for path in self._slices[number]]

    def done(self, targets: pl.Series) -> pl.DataFrame:
        """Count the rows of each unit of these targets: ``key`` (UInt64), ``done`` (UInt32)."""
        counted = (
            self._rows(targets).group_by("key").agg(done=pl.col("index").max() + 1)
        )
        return counted.collect(engine="streaming")  # a part holds whole ranges

    def failed(self, targets: pl.Series) -> pl.DataFrame:
        """Find rows with a reason in every part that has them: ``key``, ``index``."""
        rows, has_failed = self._rows(targets), pl.col("reason").is_not_null()
        failed = rows.filter(has_failed).drop("reason").unique()
        good = rows.filter(~has_failed)
        return failed.join(good, on=["key", "index"], how="anti").collect(
            engine="streaming"
        )

    def _rows(self, targets: pl.Series) -> pl.LazyFrame:
        own = pl.col("target").is_in(targets.unique().implode())
        return self._parts.scan(self.paths(targets)).filter(own).drop("target")


# What rows are wanted of (``Units``): targets, or prompts about them, a slice of
# targets at a time.

TARGETS_AT_ONCE = (
    4096  # targets of a slice; whole blocks of every size, and one block of prompts
)

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
    among: pl.Series | None = (
        None  # ``target_id`` of those that may be asked; None = all
    )

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the ``key`` of each, and its ``target``'s key and row, whether asked or not."""
        n = 1 if self.view is None else self.view.n
        index = pl.lit(list(range(n)), dtype=pl.List(pl.UInt32))
        there = self.targets.with_row_index("target_row").filter(
            _HAS_TEXT, _is_among(self.among)
        )
        each = there.select("target_row", target=TARGET_KEY, index=index).explode(
            "index"
        )
        rows = each.select("target_row", "target", key=_KEY)
        yield from rows.collect_batches(chunk_size=_KEYS_AT_ONCE)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield them in the targets' order: ``unit_key``, ``target_row``, and what is asked."""
        start, view = 0, self.view
        table = self.targets.select(*Targets.column_names(), *self.columns)
        for batch in table.collect_batches(
            chunk_size=TARGETS_AT_ONCE, maintain_order=True
        ):
            numbered = batch.with_columns(
                target_row=_rows_from(start), unit_key=TARGET_KEY
            )
            numbered = numbered.filter(_HAS_TEXT, _is_among(self.among))
            start += batch.height
            if view is None:
                yield numbered
            elif view.make is not None:
                made = view.fill_prompts(view.make(numbered.drop("unit_key")))
                own = numbered.select(*_UNITS_NAMES, *view.columns, "target_row")
                rows = view.resolve(made.filter(pl.col("reason").is_null()), own)
                yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))


@dataclass(frozen=True)
class PromptUnits:
    """Prompts of one view; those that cannot be asked are left out with ``askable``."""

    targets: Path
    parts: Parts  # of the prompts table
    view: View
    askable: bool = False
    among: pl.Series | None = (
        None  # ``target_id`` of those that may be asked; None = all
    )

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the keys and ``target_row`` of each prompt of a target that the run still has."""
        there = RowIndex(scan(self.targets, Targets).select(TARGET_KEY))
        rows = scan(self.parts.paths(), Prompts).filter(self._wanted)
        keys = rows.select(target=TARGET_KEY, index="view_index").select(
            "target", key=_KEY
        )
        for batch in keys.collect_batches(
            chunk_size=_KEYS_AT_ONCE, maintain_order=True
        ):
            which, found = there.find(batch["target"])
            yield batch[which].with_columns(
                target_row=pl.Series(found, dtype=pl.UInt32)
            )

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield prompts with ``target_id``, ``document_id``, ``context`` and ``text``."""
        table = scan(self.targets, Targets).select(*_UNITS_NAMES, *self.view.columns)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, TARGETS_AT_ONCE):
            targets = table.slice(start, TARGETS_AT_ONCE).collect()
            numbered = targets.with_columns(target_row=_rows_from(start))
            rows = self.of(numbered, [range(start, start + TARGETS_AT_ONCE)])
            yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))

    def of(
        self,
        targets: pl.DataFrame,
        places: Iterable[range],
        whole: Collection[str] = ("context", "text"),
    ) -> pl.DataFrame:
        """Find the prompts of some targets, which stood in these rows of the targets table."""
        size = self.parts.block_targets
        blocks = sorted(
            {row // size for place in places for row in (place[0], place[-1])}
        )
        near = [path for block in blocks for path in self._by_block.get(block, ())]
        prompts = self._read(near, targets["target_id"])
        complete = (
            prompts.filter(pl.col("view_index") == self.view.n - 1).height
            == targets.height
        )
        if not complete and len(near) < sum(map(len, self._by_block.values())):
            # A corpus that has grown has moved targets: their prompts lie in other
            # parts.
            elsewhere = self._held.paths(targets.select(TARGET_KEY).to_series())
            prompts = self._read(elsewhere, targets["target_id"])
        return self.view.resolve(prompts.filter(self._wanted), targets, whole)

    def _read(self, paths: Sequence[Path], names: pl.Series) -> pl.DataFrame:
        own = pl.col("target_id").is_in(names.implode()) & (
            pl.col("view_index") < self.view.n
        )
        return scan(paths, Prompts).filter(own).collect()

    @property
    def _wanted(self) -> pl.Expr:
        return _is_among(self.among) & (pl.col("reason").is_null() | (not self.askable))

    @cached_property
    def _by_block(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = {}
        for path in self.parts.paths():
            first = self.parts.targets_of(path).start
            found.setdefault(first // self.parts.block_targets, []).append(path)
        return found

    @cached_property
    def _held(self) -> Held:
        return Held(self.parts)


class Units(Protocol):
    """What rows are wanted of: targets, prompts, or rows of whoever makes them."""

    def keys(self) -> Iterator[pl.DataFrame]: ...
    def slices(self) -> Iterator[pl.DataFrame]: ...


def _is_among(names: pl.Series | None) -> pl.Expr:
    return (
        pl.lit(value=True)
        if names is None
        else pl.col("target_id").is_in(names.implode())
    )


def _rows_from(start: int) -> pl.Expr:
    return pl.int_range(start, start + pl.len(), dtype=pl.UInt32)


# What the parts of a run lack, block by block.

PIECE_TOKENS = 1 << 18
"""Work of a piece, which is stored by itself: half a minute of a GPU and a model of 8 B."""
_MOST_PIECES = 10  # of a block; their names are in order
_NO_FAILED = pl.DataFrame(schema={"key": pl.UInt64, "index": pl.UInt32})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How many units lack rows, and how many have all of them; and what a unit is called."""

    left: int = 0
    done: int = 0
    unit: str = "prompt"

    def __add__(self, other: Self) -> Self:
        unit = self.unit if self.unit == other.unit else "prompt"
        return type(self)(
            left=self.left + other.left, done=self.done + other.done, unit=unit
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """Number ``number`` of ``of``, from 1; block b belongs to number ``b % of + 1``."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"3/8"``; raises `ValueError` if that is no shard."""
        read = re.fullmatch(r"0*([1-9][0-9]{0,5})/0*([1-9][0-9]{0,5})", text, re.ASCII)
        if read is None or int(read[1]) > int(read[2]):
            raise ValueError(
                "write I/N with I from 1 to N, such as 3/8 for the third of eight"
            )
        return cls(int(read[1]), int(read[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, block: pl.Expr) -> pl.Expr:
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
        self._own = pl.lit(value=True) if shard is None else shard.has(self._block)
        self._parts = parts
        self._n_rows = n_rows
        self._held = Held(parts)
        self._retry_failed = retry_failed
        self._work = work
        self._names = {part.name for part in parts.paths()}
        # Of each block and range the next number
        self._attempts: Counter[str] = Counter()
        for part in parts.paths():  # of which an earlier one may be gone
            stem, _, attempt = part.stem.partition(".attempt-")
            self._attempts[stem] = max(self._attempts[stem], int(attempt) + 1)

    def count(self) -> Work:
        total = done = 0
        for units in self._units.keys():  # noqa: SIM118 - no dictionary
            own = units.filter(self._own)
            total += own.height
            whole = self._held.done(own["target"]).filter(
                pl.col("done") >= self._n_rows
            )
            complete = own.join(whole, on="key", how="semi")
            done += complete.join(
                self._failed(own["target"]), on="key", how="anti"
            ).height
        unit = "prompt" if self._parts.schema is Samples else "text"
        return Work(left=total - done, done=done, unit=self._parts.unit or unit)

    def _failed(self, targets: pl.Series) -> pl.DataFrame:
        return self._held.failed(targets) if self._retry_failed else _NO_FAILED

    def blocks(self) -> Iterator[Block]:
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
        for numbers, missing in grouped:
            chosen = units[missing["position"]].drop("unit_key", "target_row")
            index, piece, last_piece, first, last = (
                int(str(number)) for number in numbers
            )
            label = self._parts.label
            stem, attempt = part_stem(index, label, first, last), piece
            if not last_piece or f"{stem}.attempt-{piece}.parquet" in self._names:
                attempt += max(
                    self._attempts[stem], last_piece + 1 if last_piece else 0
                )
            yield Block(
                index=index,
                first=first,
                last=last,
                attempt=attempt,
                label=label,
                units=chosen,
            )

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
    return (
        ordered.group_by("key", run=pl.col("index") - position, maintain_order=True)
        .agg(first=pl.col("index").min(), last=pl.col("index").max() + 1)
        .drop("run")
    )
