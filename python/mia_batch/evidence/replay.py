"""A recording: continuations generated elsewhere, checked once, asked for the samples of blocks."""

from __future__ import annotations

import io
import shutil
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from reprlib import repr as brief
from typing import Literal, TypeAlias, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.corpus.documents import Fault, faulty_rows
from mia_batch.corpus.files import FORMATS, Reading, Source, find_files
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.evidence.parts import RECORDED_BLOCK_TARGETS, Block, FreshUnits
from mia_batch.evidence.request import FinishReason
from mia_batch.kernels import WordRule, count_words
from mia_batch.schemas import Samples, Targets
from mia_batch.tables import RowIndex, generate, scan
from mia_batch.targets import Ordinals
from mia_batch.views import View

Key = Literal["target_id", "document_id", "prefix"]
"""Columns that name a recording's targets; the first one that it has is used."""

_ALSO: dict[str, tuple[str, ...]] = {
    "candidate": ("completion", "generation", "continuation", "output"),
    "document_id": ("doc_id", "id"),
}
"""Further names by which a column is known to play a part."""
_TEXTS = ("prompt", "finish_reason", "reason")
_NUMBERS = ("sample_index", "n_tokens", "view_index", "point")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedColumns:
    """The columns of a recording, each with its part."""

    raw: pl.Schema  # the columns as they are read
    candidate: str  # the column with the continuations
    key: Key  # what names the target
    key_column: str  # and the column that has it

    @property
    def needed(self) -> list[str]:
        used = {self.candidate, self.key_column, "view", *_TEXTS, *_NUMBERS}
        return [name for name in self.raw if name in used]

    @property
    def small(self) -> list[str]:
        """Those whose values can be wrong, and the key."""
        names = (self.key_column, "view", *_NUMBERS, "finish_reason")
        return [name for name in names if self.has(name)]

    def has(self, name: str) -> bool:
        return self.raw.get(name, pl.Null) != pl.Null

    @property
    def point(self) -> str | None:
        """The column that numbers the prompts of a target: ``view_index`` or ``point``."""
        return next(filter(self.has, ("view_index", "point")), None)

    def rows(self, *, whole: bool) -> list[pl.Expr]:
        """Name and convert columns; without ``whole`` only those whose values can be wrong."""
        # Which says where it ends
        numbered = self.point is not None and self.key != "prefix"
        index = pl.col(str(self.point)).fill_null(0) if numbered else pl.lit(0)
        view = pl.col("view") if self.has("view") else None
        if view is None:  # a point is a probe's; a prefix says itself what was asked
            view = pl.lit("probe" if self.has("point") else None)
        small = [
            pl.col(self.key_column).cast(pl.String).alias("key"),
            view.cast(pl.String).alias("view"),
            index.cast(pl.UInt32, strict=False).alias("view_index"),
            self._or_null("sample_index", pl.UInt32()),
        ]
        if not whole:
            return small
        candidate = pl.col(self.candidate).cast(pl.String).alias("candidate")
        texts = [self._or_null(name, pl.String()) for name in _TEXTS]
        return [*small, candidate, *texts, self._or_null("n_tokens", pl.UInt32())]

    def _or_null(self, name: str, dtype: pl.DataType) -> pl.Expr:
        column = pl.col(name) if self.has(name) else pl.lit(None)
        return column.cast(dtype, strict=False).alias(name)

    @property
    def faults(self) -> list[Fault]:
        found = []

        def add(name: str, rest: str, *, null: bool) -> None:
            value = pl.col(name)
            is_whole = value == value.cast(pl.UInt32, strict=False)
            wrong = (~is_whole).fill_null(value.is_not_null() | pl.lit(null))
            # Pandas writes NaN for null
            if name == "n_tokens" and self.raw[name].is_float():
                wrong &= value.is_not_nan()
            found.append(Fault(wrong=wrong, name=name, rest=rest))

        if self.has("sample_index"):
            rest = (
                ", not the index of a sample; number each target's samples 0, 1, 2, ..."
            )
            add("sample_index", rest, null=True)
        if self.point is not None:
            rest = (
                ", not the number of a point; number each target's points 0, 1, 2, ..."
            )
            add(self.point, rest, null=False)
        if self.has("n_tokens"):
            rest = (
                ", not a number of tokens; use whole numbers, or null where it is"
                " unknown"
            )
            add("n_tokens", rest, null=False)
        if self.has("finish_reason"):
            reasons = get_args(FinishReason)
            known = pl.col("finish_reason").cast(pl.String).is_in(reasons)
            named = ", ".join(map(repr, reasons))
            rest = f", none of {named}; use one of them, or null where it is unknown"
            found.append(Fault(wrong=~known, name="finish_reason", rest=rest))
        return found


def resolve(raw: pl.Schema, *, candidate: str, where: str) -> RecordedColumns:
    """Find the columns of a recording, or refuse them; ``candidate`` is the user's name."""
    present = ", ".join(map(repr, raw))
    found = _column(raw, candidate)
    if found is None:
        raise CorpusError(
            f"{where} has no column {candidate!r} with the continuations, only"
            f" {present}; name it as candidate_column="
        )
    keys = [
        (key, name) for key in get_args(Key) if (name := _column(raw, key)) is not None
    ]
    if not keys:
        raise CorpusError(
            f"{where} names no targets; it must have a column 'target_id',"
            f" 'document_id' or 'prefix', but has {present}"
        )
    key, column = next((pair for pair in keys if pair[0] == pair[1]), keys[0])
    columns = RecordedColumns(raw=raw, candidate=found, key=key, key_column=column)
    for name in columns.needed:
        dtype = raw[name]
        is_text, is_whole = (
            dtype in (pl.String, pl.Categorical, pl.Enum),
            dtype.is_integer(),
        )
        allowed, wanted = is_text, "strings"
        if name in _NUMBERS:
            allowed, wanted = is_whole or dtype.is_float(), "whole numbers"
        elif columns.key == "document_id" and name == column:
            allowed, wanted = is_text or is_whole, "strings or integers"
        if not allowed and dtype != pl.Null:
            came = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
            raise CorpusError(
                f"{where}: column {name!r} holds {came}; it must hold {wanted}"
            )
    return columns


def _column(raw: pl.Schema, part: str) -> str | None:
    if part in raw and (part == "candidate" or raw[part] != pl.Null):
        return part
    return next(
        (name for name in _ALSO.get(part, ()) if raw.get(name, pl.Null) != pl.Null),
        None,
    )


class TargetKeys:
    """The rows of the targets table that a key names."""

    # A ``prefix`` names what precedes a prompt of ``view``. Where a target has several
    # prompts, what precedes them is stored in ``partition`` meanwhile.

    def __init__(
        self, targets: Path, key: Key, view: View, partition: Partition
    ) -> None:
        self.table = scan(targets, Targets).select(key)
        self._targets: NDArray[np.uint32] | None = None  # of each row of the table
        if key == "prefix" and "prefix" not in view.columns:
            of_rows = [np.zeros(0, np.uint32)]

            def contexts(_names: list[str] | None) -> Iterator[pl.DataFrame]:
                for prompts in FreshUnits(scan(targets, Targets), view).slices():
                    of_rows.append(prompts["target_row"].to_numpy())
                    yield prompts.select(prefix="context")

            self.table = partition.sink(
                generate(pl.Schema({"prefix": pl.String()}), contexts)
            )
            self._targets = np.concatenate(of_rows)
        self.index = RowIndex(self.table)

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        which, rows = self.index.find(keys)
        return which, rows if self._targets is None else self._targets[rows]

    @property
    def n_targets(self) -> int:
        return (
            self.index.n_keys
            if self._targets is None
            else np.unique(self._targets).size
        )


_HELD_BYTES = 8 << 20  # of text, in memory at a time
_HELD_ROWS = 1 << 15  # the same, for short texts


def _frames(
    source: Source, columns: RecordedColumns, reading: Reading, *, whole: bool
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield what is read, and its rows; without ``sample_index``, a prompt's rows are numbered."""
    ordinals, wanted = Ordinals(), columns.needed if whole else columns.small
    for frame in FORMATS[source.kind].read_rows(
        source.files, columns.raw, wanted, reading
    ):
        rows = frame.select(columns.rows(whole=whole))
        if not columns.has("sample_index"):
            named = rows.select(
                pl.struct("key", "view", "view_index").hash()
            ).to_series()
            numbers = pl.Series(ordinals.number(named.to_numpy()), dtype=pl.UInt32)
            rows = rows.with_columns(sample_index=numbers)
        yield frame, rows


def check_rows(source: Source, columns: RecordedColumns) -> tuple[int, int, bool]:
    reading, n_rows, most_samples, has_probes = Reading(), 0, 0, False
    for frame, rows in _frames(source, columns, reading, whole=False):
        for row, what in faulty_rows(frame, columns.faults):
            places = FORMATS[source.kind].places(source.files, reading)
            raise CorpusError(f"{next(islice(places, n_rows + row, None))}: {what}")
        n_rows += frame.height
        most_samples = max(most_samples, int(rows["sample_index"].to_numpy().max()) + 1)
        has_probes = has_probes or bool((rows["view"] == "probe").any())
    return n_rows, most_samples, has_probes


def read_rows(source: Source, columns: RecordedColumns) -> Iterator[pl.DataFrame]:
    """Yield ``key`` (text) and columns of the samples table, some megabytes at a time."""
    held: list[pl.DataFrame] = []
    n_rows = n_bytes = 0
    for _, rows in _frames(source, columns, Reading(), whole=True):
        held.append(rows)
        n_rows += rows.height
        n_bytes += text_bytes(rows)
        if n_rows >= _HELD_ROWS or n_bytes >= _HELD_BYTES:
            yield pl.concat(held)
            held, n_rows, n_bytes = [], 0, 0
    if held:
        yield pl.concat(held)


def text_bytes(rows: pl.DataFrame) -> int:
    return int(
        sum(rows.select(pl.col(pl.String).str.len_bytes().cast(pl.Int64).sum()).row(0))
    )


MISSING = "the recording has no such sample"


def answer(
    block: Block, rows: pl.DataFrame, *, view: View, key: Key, words: WordRule
) -> pl.DataFrame:
    """Return a block's samples in the order of its targets and of ``sample_index``."""
    # Samples without a row have `MISSING` for their reason.
    indices = pl.int_range(block.first, block.last, dtype=pl.UInt32, eager=True)
    targets = block.units.select(
        "target_id",
        "view_index",
        pl.lit(view.model).alias("model"),
        pl.lit(view.name).alias("view"),
        pl.lit(indices.implode()).first().alias("sample_index"),
        prefix="context",
        key=pl.col("context" if key == "prefix" else key).hash(),
        asked=pl.lit(0, pl.UInt32) if key == "prefix" else pl.col("view_index"),
        n_reference=count_words("text", words=words),
    )
    theirs = rows.lazy().filter(pl.col("key").is_in(targets["key"].implode()))
    joined = (
        targets.lazy()
        .explode("sample_index")
        .join(
            theirs.with_columns(recorded=pl.lit(value=True)),
            left_on=["key", "asked", "sample_index"],
            right_on=["key", "view_index", "sample_index"],
            how="left",
            maintain_order="left",
        )
    )
    has_text = pl.col("candidate").is_not_null()
    fewer_words = count_words("candidate", words=words) < pl.col("n_reference")
    was_cut = (pl.col("finish_reason") != "stop").fill_null(value=False)
    no_text = pl.col("reason").fill_null("the recording has no text")
    schema = Samples.create_empty().schema
    return (
        joined.with_columns(
            prompt=pl.when(has_text & (pl.col("prompt") != pl.col("prefix"))).then(
                "prompt"
            ),
            n_tokens=pl.when(has_text).then("n_tokens"),
            finish_reason=pl.when(has_text).then("finish_reason"),
            short=pl.when(has_text).then(was_cut & fewer_words),
            answer=pl.lit(None, schema["answer"]),
            raw=pl.lit(None, pl.String),
            reason=pl.when(~has_text).then(
                pl.when("recorded").then(no_text).otherwise(pl.lit(MISSING))
            ),
        )
        .select(schema.names())
        .collect()
    )


Packed: TypeAlias = memoryview
"""Rows as they lie in a portion."""

_SIZE_BYTES = 8


def pack(rows: pl.DataFrame) -> Packed:
    """Serialise rows for `Partition.append`, which is most of its work; threads may."""
    packed = io.BytesIO()
    rows.write_ipc_stream(packed, compression="lz4")
    return packed.getbuffer()


class Partition:
    """Portions of rows in a folder of its own; what a killed run left there is removed first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._refusing():
            self.remove()
            folder.mkdir(parents=True)

    def append(self, number: int, rows: Packed) -> None:
        """Add packed rows to a portion; those of one portion have the same columns."""
        with self._refusing(), (self._folder / f"{number:08d}").open("ab") as file:
            file.write(len(rows).to_bytes(_SIZE_BYTES, "little"))
            file.write(rows)

    def read(self, number: int) -> list[pl.DataFrame]:
        found, path = [], self._folder / f"{number:08d}"
        with (
            self._refusing(),
            path.open("rb") if path.exists() else io.BytesIO() as file,
        ):
            while size := file.read(_SIZE_BYTES):
                packed = io.BytesIO(file.read(int.from_bytes(size, "little")))
                found.append(pl.read_ipc_stream(packed))
        return found

    def sink(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Store a table with the portions, and open it."""
        path = self._folder / "table.parquet"
        with self._refusing():
            rows.sink_parquet(path)
        return pl.scan_parquet(path)

    def remove(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{error.strerror}; make room or choose another --out"
            raise RunFolderError(f"{self._folder} cannot be used: {why}") from error


_PORTION_BYTES = 8 << 20  # of text, in memory at a time
_PORTION_BLOCKS = 8
_PACKED_AT_ONCE = 2  # portions of rows, while another is read
_ROW = ("view_index", "sample_index", "candidate", *_TEXTS, "n_tokens")
_NOTHING = (
    Samples.create_empty().select(pl.lit(None, pl.UInt64).alias("key"), *_ROW).clear()
)


@dataclass(slots=True, kw_only=True)
class Counts:
    """What a recording held and what was used; a row counts twice where two targets share it."""

    rows: int  # of the recording
    matched: int = 0  # samples that were asked for and recorded, without text included
    missing: int = 0  # samples that were asked for and not recorded
    surplus: int = 0  # rows beyond the samples that were asked for
    duplicates: int = 0  # rows of a sample that another row gives already
    unmatched: int = 0  # rows of no target


@dataclass(slots=True, kw_only=True)
class Recording:
    """Continuations that were generated elsewhere, checked once."""

    source: Source
    columns: RecordedColumns
    counts: Counts
    has_probes: bool  # whether it has answers at points, with or without continuations
    most_samples: (
        int  # the largest ``sample_index`` plus 1; without it, the most rows of a key
    )

    @classmethod
    def open(cls, source: str, *, candidate_column: str = "candidate") -> Recording:
        """Open and check a recording: Parquet or JSON Lines, one file, a folder or a glob."""
        # docs/recordings.md names the columns; a run's folder of samples is such a
        # recording.
        found = find_files(source)
        found.refuse_unreadable()
        if found.kind not in ("columnar", "jsonl"):
            kind = found.files[0].path.suffix.lstrip(".")
            raise CorpusError(
                f"{source} is {kind}, which has no types; give Parquet or JSON Lines"
            )
        raw = FORMATS[found.kind].read_schema(found.files, Reading())
        columns = (
            resolve(raw, candidate=candidate_column, where=source) if raw else None
        )
        n_rows, most_samples, has_probes = (
            check_rows(found, columns) if columns else (0, 0, False)
        )
        if columns is None or n_rows == 0:  # JSON Lines without a line have no columns
            raise CorpusError(
                f"{source} has no rows; give a recording with at least one continuation"
            )
        return cls(
            source=found,
            columns=columns,
            counts=Counts(rows=n_rows),
            has_probes=has_probes,
            most_samples=most_samples,
        )

    @property
    def key(self) -> Key:
        return self.columns.key

    @property
    def has_finish_reason(self) -> bool:
        return self.columns.has("finish_reason")

    def describe(self) -> Iterator[tuple[str, str]]:
        yield "recorded", f"{self.counts.rows:,} continuations, by {self.key}"
        if not self.has_finish_reason:
            yield "finish_reason", "not recorded: candidates count as whole"

    def collect(
        self,
        targets: Path,
        view: View,
        blocks: Iterable[Block],
        work: Path,
        words: WordRule,
    ) -> Generator[tuple[Block, pl.DataFrame]]:
        """Yield each block of a view and its samples; memory does not grow with the recording."""
        # Rows are stored in ``work/replay`` until closing, so that memory does not
        # grow. Refused are documents that are not one target each, and a recording of
        # which no row names a target.
        if self.key == "document_id":
            index = RowIndex(scan(targets, Targets).select("document_id"))
            if not (index.unique and index.n_keys):
                why = (
                    "several targets each"
                    if index.n_keys
                    else "no identifier in the corpus"
                )
                raise SettingsError(
                    f"{self.source.location} names documents, but these have {why}; "
                    "give it a column 'target_id' or 'prefix' instead"
                )
        return self._collect(targets, iter(blocks), work / "replay", view, words)

    def _collect(
        self,
        targets: Path,
        blocks: Iterator[Block],
        folder: Path,
        view: View,
        words: WordRule,
    ) -> Generator[tuple[Block, pl.DataFrame]]:
        self.counts = Counts(rows=self.counts.rows)
        first = next(blocks, None)
        if first is None:
            return
        partition = Partition(folder)
        try:
            keys = TargetKeys(targets, self.key, view, partition)
            portion = self._store(keys, partition, view, first.last)
            if self.counts.unmatched == self.counts.rows:
                recorded = next(read_rows(self.source, self.columns))["key"][0]
                known = keys.table.drop_nulls().head(1).collect().item()
                raise SettingsError(
                    f"none of the {self.counts.rows:,} rows of {self.source.location}"
                    f" names a target: {self.key!r} is {brief(recorded)} in its first"
                    f" row and {brief(known)} of the first target; give both the same"
                    " names"
                )
            del keys  # not needed while the samples are handed out
            held, rows = -1, pl.DataFrame()
            for block in chain([first], blocks):
                number = block.index * RECORDED_BLOCK_TARGETS // portion
                if number != held:
                    held = number
                    stored = pl.concat([_NOTHING, *partition.read(number)])
                    # Of a sample the first row with a text, else the first.
                    rows = stored.sort(
                        pl.col("candidate").is_null(), maintain_order=True
                    )
                    rows = rows.unique(
                        ["key", "view_index", "sample_index"], keep="first"
                    )
                    self.counts.duplicates += stored.height - rows.height
                samples = answer(block, rows, view=view, key=self.key, words=words)
                missing = int((samples["reason"] == MISSING).sum())
                self.counts.missing += missing
                self.counts.matched += samples.height - missing
                yield block, samples
        finally:
            partition.remove()

    def _store(
        self, keys: TargetKeys, partition: Partition, view: View, n_samples: int
    ) -> int:
        """Sort the rows into portions of targets that stand together; return how many targets."""
        portion = 0
        packed: deque[Future[list[tuple[int, Packed]]]] = deque()

        def write() -> None:
            for number, part in packed.popleft().result():
                partition.append(number, part)

        with ThreadPoolExecutor(_PACKED_AT_ONCE) as packers:
            for read in read_rows(self.source, self.columns):
                rows = read.filter(
                    pl.col("view").fill_null(view.name) == view.name
                ).drop("view")
                if not portion:  # estimated from the first rows; whole blocks
                    a_row = text_bytes(read) / read.height
                    a_target = a_row * self.counts.rows / max(keys.n_targets, 1)
                    n_blocks = (
                        int(_PORTION_BYTES / (a_target + 1)) // RECORDED_BLOCK_TARGETS
                    )
                    portion = RECORDED_BLOCK_TARGETS * min(
                        max(n_blocks, 1), _PORTION_BLOCKS
                    )
                known = rows.filter(
                    pl.Series(keys.index.count(rows["key"]) > 0, dtype=pl.Boolean)
                )
                wanted = known.filter(pl.col("sample_index") < n_samples)
                self.counts.unmatched += rows.height - known.height
                self.counts.surplus += known.height - wanted.height
                packed.append(packers.submit(_pack, wanted, keys, portion))
                if len(packed) > _PACKED_AT_ONCE:
                    write()
            while packed:
                write()
        return portion


def _pack(
    rows: pl.DataFrame, keys: TargetKeys, portion: int
) -> list[tuple[int, Packed]]:
    """Give each row to the portions that hold a target of its key; the key becomes its hash."""
    which, found = keys.find(rows["key"])
    numbers = pl.DataFrame({"which": which, "number": found // portion}).unique(
        maintain_order=True
    )
    known = rows.with_columns(pl.col("key").hash())[numbers["which"]]
    parts = known.with_columns(numbers["number"]).partition_by(
        "number", as_dict=True, include_key=False
    )
    return [(int(number), pack(part)) for (number,), part in parts.items()]
