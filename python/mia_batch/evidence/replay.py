"""A recording: continuations generated elsewhere, checked once, asked for samples of blocks."""

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
from typing import Literal, NoReturn, TypeAlias, get_args

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

_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "candidate": ("completion", "generation", "continuation", "output"),
    "document_id": ("doc_id", "id"),
}
"""Further names of the columns that play a part."""
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
        names = {self.candidate, self.key_column, "view", *_TEXTS, *_NUMBERS}
        return [name for name in self.raw if name in names]

    @property
    def small(self) -> list[str]:
        """The columns whose values can be wrong, and the key."""
        names = (self.key_column, "view", *_NUMBERS, "finish_reason")
        return [name for name in names if self.has(name)]

    def has(self, name: str) -> bool:
        return self.raw.get(name, pl.Null) != pl.Null

    @property
    def point(self) -> str | None:
        """The column that numbers the prompts of a target: ``view_index`` or ``point``."""
        return next(filter(self.has, ("view_index", "point")), None)

    def rows(self, *, whole: bool) -> list[pl.Expr]:
        """Build columns by name and type; without ``whole`` only those that can be wrong."""
        index = pl.lit(0)
        # A prefix says itself where it ends
        if self.point is not None and self.key != "prefix":
            index = pl.col(self.point).fill_null(0)
        # A point is a probe's; a prefix says itself what was asked
        view = pl.lit("probe" if self.has("point") else None)
        if self.has("view"):
            view = pl.col("view")
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
        n_tokens = self._or_null("n_tokens", pl.UInt32())
        return [*small, candidate, *texts, n_tokens]

    def _or_null(self, name: str, dtype: pl.DataType) -> pl.Expr:
        column = pl.col(name) if self.has(name) else pl.lit(None)
        return column.cast(dtype, strict=False).alias(name)

    @property
    def faults(self) -> list[Fault]:
        """The rules that values must keep, each with the rest of the refusal."""
        faults = []
        if self.has("sample_index"):
            rest = (
                ", not the index of a sample; number each target's samples 0, 1, 2, ..."
            )
            faults.append(self._number_fault("sample_index", rest, null=True))
        if self.point is not None:
            rest = (
                ", not the number of a point; number each target's points 0, 1, 2, ..."
            )
            faults.append(self._number_fault(self.point, rest, null=False))
        if self.has("n_tokens"):
            rest = (
                ", not a number of tokens; use whole numbers, or null where it is"
                " unknown"
            )
            faults.append(self._number_fault("n_tokens", rest, null=False))
        if self.has("finish_reason"):
            reasons = get_args(FinishReason)
            is_known = pl.col("finish_reason").cast(pl.String).is_in(reasons)
            listed = ", ".join(map(repr, reasons))
            rest = f", none of {listed}; use one of them, or null where it is unknown"
            fault = Fault(
                wrong=~is_known,
                name="finish_reason",
                rest=rest,
            )
            faults.append(fault)
        return faults

    def _number_fault(
        self,
        name: str,
        rest: str,
        *,
        null: bool,
    ) -> Fault:
        """Build the rule that a column has whole numbers; ``null`` is wrong as well."""
        value = pl.col(name)
        is_whole = value == value.cast(pl.UInt32, strict=False)
        wrong = (~is_whole).fill_null(value.is_not_null() | pl.lit(null))
        # Pandas writes NaN for null
        if name == "n_tokens" and self.raw[name].is_float():
            wrong &= value.is_not_nan()
        return Fault(
            wrong=wrong,
            name=name,
            rest=rest,
        )


def resolve(
    raw: pl.Schema,
    *,
    candidate: str,
    source_name: str,
) -> RecordedColumns:
    """Find the columns of a recording, or refuse them; ``candidate`` is the user's name."""
    present = ", ".join(map(repr, raw))
    candidate_column = _find_column(raw, candidate)
    if candidate_column is None:
        raise CorpusError(
            f"{source_name} has no column {candidate!r} with the continuations, only"
            f" {present}; name it as candidate_column="
        )
    names = ((key, _find_column(raw, key)) for key in get_args(Key))
    keys = [(key, name) for key, name in names if name is not None]
    if not keys:
        raise CorpusError(
            f"{source_name} names no targets; it must have a column 'target_id',"
            f" 'document_id' or 'prefix', but has {present}"
        )
    exact = [(key, name) for key, name in keys if key == name]
    key, key_column = exact[0] if exact else keys[0]
    columns = RecordedColumns(
        raw=raw,
        candidate=candidate_column,
        key=key,
        key_column=key_column,
    )
    for name in columns.needed:
        _check_type(columns, name, source_name)
    return columns


def _check_type(
    columns: RecordedColumns,
    name: str,
    source_name: str,
) -> None:
    """Check that a column has values of the kind that its part needs."""
    dtype = columns.raw[name]
    is_allowed = dtype in (pl.String, pl.Categorical, pl.Enum)
    kind = "strings"
    if name in _NUMBERS:
        is_allowed = dtype.is_integer() or dtype.is_float()
        kind = "whole numbers"
    elif columns.key == "document_id" and name == columns.key_column:
        is_allowed = is_allowed or dtype.is_integer()
        kind = "strings or integers"
    if not is_allowed and dtype != pl.Null:
        values = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
        raise CorpusError(
            f"{source_name}: column {name!r} holds {values}; it must hold {kind}"
        )


def _find_column(raw: pl.Schema, part: str) -> str | None:
    if part in raw and (part == "candidate" or raw[part] != pl.Null):
        return part
    for name in _OTHER_NAMES.get(part, ()):
        if raw.get(name, pl.Null) != pl.Null:
            return name
    return None


class TargetKeys:
    """The rows of the targets table that a key names."""

    # A ``prefix`` names what precedes a prompt of ``view``. Where a target has several
    # prompts, what precedes them is stored in ``partition`` meanwhile.

    def __init__(
        self,
        targets: Path,
        key: Key,
        view: View,
        partition: Partition,
    ) -> None:
        self.table = scan(targets, Targets).select(key)
        self._targets: NDArray[np.uint32] | None = None  # of each row of the table
        if key == "prefix" and "prefix" not in view.columns:
            target_rows = [np.zeros(0, np.uint32)]

            def contexts(_names: list[str] | None) -> Iterator[pl.DataFrame]:
                for prompts in FreshUnits(scan(targets, Targets), view).slices():
                    target_rows.append(prompts["target_row"].to_numpy())
                    yield prompts.select(prefix="context")

            schema = pl.Schema({"prefix": pl.String()})
            self.table = partition.sink(generate(schema, contexts))
            self._targets = np.concatenate(target_rows)
        self.index = RowIndex(self.table)

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find positions among ``keys``, and the row of the target that each names."""
        positions, rows = self.index.find(keys)
        return positions, rows if self._targets is None else self._targets[rows]

    @property
    def n_targets(self) -> int:
        if self._targets is None:
            return self.index.n_keys
        return np.unique(self._targets).size


_BATCH_BYTES = 8 << 20  # of text, in memory at a time
_BATCH_ROWS = 1 << 15  # the same, for short texts


def _frames(
    source: Source,
    columns: RecordedColumns,
    reading: Reading,
    *,
    whole: bool,
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Iterate over what is read, and its rows; without ``sample_index`` these are numbered."""
    ordinals = Ordinals()
    names = columns.needed if whole else columns.small
    frames = FORMATS[source.kind].read_rows(source.files, columns.raw, names, reading)
    for frame in frames:
        rows = frame.select(columns.rows(whole=whole))
        if not columns.has("sample_index"):
            prompt = pl.struct("key", "view", "view_index")
            hashes = rows.select(prompt.hash()).to_series().to_numpy()
            numbers = pl.Series(ordinals.number(hashes), dtype=pl.UInt32)
            rows = rows.with_columns(sample_index=numbers)
        yield frame, rows


def check_rows(source: Source, columns: RecordedColumns) -> tuple[int, int, bool]:
    """Check all rows; return how many, the most samples of a prompt, and if there are probes."""
    reading = Reading()
    n_rows = most_samples = 0
    has_probes = False
    for frame, rows in _frames(source, columns, reading, whole=False):
        for row, fault in faulty_rows(frame, columns.faults):
            places = FORMATS[source.kind].places(source.files, reading)
            place = next(islice(places, n_rows + row, None))
            raise CorpusError(f"{place}: {fault}")
        n_rows += frame.height
        last_sample = int(rows["sample_index"].to_numpy().max())
        most_samples = max(most_samples, last_sample + 1)
        has_probes = has_probes or bool((rows["view"] == "probe").any())
    return n_rows, most_samples, has_probes


def read_rows(source: Source, columns: RecordedColumns) -> Iterator[pl.DataFrame]:
    """Iterate over ``key`` (text) and columns of the samples table, some megabytes at a time."""
    batch: list[pl.DataFrame] = []
    n_rows = n_bytes = 0
    for _, rows in _frames(source, columns, Reading(), whole=True):
        batch.append(rows)
        n_rows += rows.height
        n_bytes += text_bytes(rows)
        if n_rows >= _BATCH_ROWS or n_bytes >= _BATCH_BYTES:
            yield pl.concat(batch)
            batch = []
            n_rows = n_bytes = 0
    if batch:
        yield pl.concat(batch)


def text_bytes(rows: pl.DataFrame) -> int:
    """Count the bytes of all texts of some rows."""
    lengths = pl.col(pl.String).str.len_bytes().cast(pl.Int64)
    return int(sum(rows.select(lengths.sum()).row(0)))


MISSING = "the recording has no such sample"


def answer(
    block: Block,
    rows: pl.DataFrame,
    *,
    view: View,
    key: Key,
    words: WordRule,
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
        point=pl.lit(0, pl.UInt32) if key == "prefix" else pl.col("view_index"),
        n_reference=count_words("text", words=words),
    )
    is_of_block = pl.col("key").is_in(targets["key"].implode())
    recorded = rows.lazy().filter(is_of_block)
    samples = targets.lazy().explode("sample_index")
    joined = samples.join(
        recorded.with_columns(recorded=pl.lit(value=True)),
        left_on=["key", "point", "sample_index"],
        right_on=["key", "view_index", "sample_index"],
        how="left",
        maintain_order="left",
    )
    has_text = pl.col("candidate").is_not_null()
    fewer_words = count_words("candidate", words=words) < pl.col("n_reference")
    was_cut = (pl.col("finish_reason") != "stop").fill_null(value=False)
    is_other_prompt = pl.col("prompt") != pl.col("prefix")
    no_text = pl.col("reason").fill_null("the recording has no text")
    no_row = pl.lit(MISSING)
    schema = Samples.create_empty().schema
    answered = joined.with_columns(
        prompt=pl.when(has_text & is_other_prompt).then("prompt"),
        n_tokens=pl.when(has_text).then("n_tokens"),
        finish_reason=pl.when(has_text).then("finish_reason"),
        short=pl.when(has_text).then(was_cut & fewer_words),
        answer=pl.lit(None, schema["answer"]),
        raw=pl.lit(None, pl.String),
        reason=pl.when(~has_text).then(
            pl.when("recorded").then(no_text).otherwise(no_row)
        ),
    )
    return answered.select(schema.names()).collect()


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
        """Read all rows of a portion, as they were packed."""
        frames = []
        path = self._folder / f"{number:08d}"
        with (
            self._refusing(),
            path.open("rb") if path.exists() else io.BytesIO() as file,
        ):
            while size := file.read(_SIZE_BYTES):
                packed = io.BytesIO(file.read(int.from_bytes(size, "little")))
                frames.append(pl.read_ipc_stream(packed))
        return frames

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
            reason = f"{error.strerror}; make room or choose another --out"
            raise RunFolderError(f"{self._folder} cannot be used: {reason}") from error


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
    # The largest ``sample_index`` plus 1; without it, the most rows of a key
    most_samples: int

    @classmethod
    def open(cls, source: str, *, candidate_column: str = "candidate") -> Recording:
        """Open and check a recording: Parquet or JSON Lines, one file, a folder or a glob."""
        # docs/recordings.md names the columns; a run's folder of samples is such a
        # recording.
        recorded = find_files(source)
        recorded.refuse_unreadable()
        if recorded.kind not in ("columnar", "jsonl"):
            kind = recorded.files[0].path.suffix.lstrip(".")
            raise CorpusError(
                f"{source} is {kind}, which has no types; give Parquet or JSON Lines"
            )
        raw = FORMATS[recorded.kind].read_schema(recorded.files, Reading())
        columns = None
        n_rows = most_samples = 0
        has_probes = False
        if raw:  # JSON Lines without a line have no columns
            columns = resolve(raw, candidate=candidate_column, source_name=source)
            n_rows, most_samples, has_probes = check_rows(recorded, columns)
        if columns is None or n_rows == 0:
            raise CorpusError(
                f"{source} has no rows; give a recording with at least one continuation"
            )
        return cls(
            source=recorded,
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
        """Iterate over the label and the text of each line of a summary."""
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
        """Iterate over the blocks of a view with their samples, in bounded memory."""
        # Rows are stored in ``work/replay`` until closing, so that memory does not
        # grow. Refused are documents that are not one target each, and a recording of
        # which no row names a target.
        if self.key == "document_id":
            index = RowIndex(scan(targets, Targets).select("document_id"))
            if not (index.unique and index.n_keys):
                reason = "no identifier in the corpus"
                if index.n_keys:
                    reason = "several targets each"
                raise SettingsError(
                    f"{self.source.location} names documents, but these have {reason}; "
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
                self._refuse_unmatched(keys)
            del keys  # not needed while the samples are handed out
            rows = pl.DataFrame()
            number_in_memory = -1
            for block in chain([first], blocks):
                number = block.index * RECORDED_BLOCK_TARGETS // portion
                if number != number_in_memory:
                    number_in_memory = number
                    rows = self._read_portion(partition, number)
                samples = answer(
                    block,
                    rows,
                    view=view,
                    key=self.key,
                    words=words,
                )
                n_missing = int((samples["reason"] == MISSING).sum())
                self.counts.missing += n_missing
                self.counts.matched += samples.height - n_missing
                yield block, samples
        finally:
            partition.remove()

    def _refuse_unmatched(self, keys: TargetKeys) -> NoReturn:
        rows = next(read_rows(self.source, self.columns))
        recorded = rows["key"][0]
        target = keys.table.drop_nulls().head(1).collect().item()
        raise SettingsError(
            f"none of the {self.counts.rows:,} rows of {self.source.location}"
            f" names a target: {self.key!r} is {brief(recorded)} in its first"
            f" row and {brief(target)} of the first target; give both the same"
            " names"
        )

    def _read_portion(self, partition: Partition, number: int) -> pl.DataFrame:
        """Read a portion: of a sample the first row with a text, else the first."""
        portion = pl.concat([_NOTHING, *partition.read(number)])
        has_no_text = pl.col("candidate").is_null()
        rows = portion.sort(has_no_text, maintain_order=True).unique(
            ["key", "view_index", "sample_index"], keep="first"
        )
        self.counts.duplicates += portion.height - rows.height
        return rows

    def _store(
        self,
        keys: TargetKeys,
        partition: Partition,
        view: View,
        n_samples: int,
    ) -> int:
        """Sort the rows into portions of neighbouring targets; return how many targets each."""
        portion = 0
        packed: deque[Future[list[tuple[int, Packed]]]] = deque()

        def write() -> None:
            for number, part in packed.popleft().result():
                partition.append(number, part)

        is_of_view = pl.col("view").fill_null(view.name) == view.name
        with ThreadPoolExecutor(_PACKED_AT_ONCE) as packers:
            for batch in read_rows(self.source, self.columns):
                portion = portion or self._portion_targets(batch, keys.n_targets)
                rows = batch.filter(is_of_view).drop("view")
                n_found = keys.index.count(rows["key"])
                matched = rows.filter(pl.Series(n_found > 0, dtype=pl.Boolean))
                needed = matched.filter(pl.col("sample_index") < n_samples)
                self.counts.unmatched += rows.height - matched.height
                self.counts.surplus += matched.height - needed.height
                packed.append(packers.submit(_pack, needed, keys, portion))
                if len(packed) > _PACKED_AT_ONCE:
                    write()
            while packed:
                write()
        return portion

    def _portion_targets(self, batch: pl.DataFrame, n_targets: int) -> int:
        """Estimate from the first rows how many targets a portion has, in whole blocks."""
        row_bytes = text_bytes(batch) / batch.height
        target_bytes = row_bytes * self.counts.rows / max(n_targets, 1)
        n_targets = int(_PORTION_BYTES / (target_bytes + 1))
        n_blocks = max(n_targets // RECORDED_BLOCK_TARGETS, 1)
        return RECORDED_BLOCK_TARGETS * min(n_blocks, _PORTION_BLOCKS)


def _pack(
    rows: pl.DataFrame,
    keys: TargetKeys,
    portion: int,
) -> list[tuple[int, Packed]]:
    """Put each row into the portions that hold a target of its key; the key becomes its hash."""
    positions, targets = keys.find(rows["key"])
    numbers = {"position": positions, "number": targets // portion}
    places = pl.DataFrame(numbers).unique(maintain_order=True)
    hashed = rows.with_columns(pl.col("key").hash())[places["position"]]
    parts = hashed.with_columns(places["number"]).partition_by(
        "number", as_dict=True, include_key=False
    )
    return [(int(number), pack(part)) for (number,), part in parts.items()]
