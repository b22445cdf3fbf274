"""A recording of continuations: checked once, then asked for the samples of blocks."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from reprlib import repr as brief
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.files import find_files
from mia_batch.corpus.formats import FORMATS
from mia_batch.corpus.formats.lines import Reading
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.blocks import RECORDED_BLOCK_TARGETS
from mia_batch.evidence.replay.columns import resolve
from mia_batch.evidence.replay.keys import TargetKeys
from mia_batch.evidence.replay.partition import Partition, pack
from mia_batch.evidence.replay.rows import check_rows, read_rows, text_bytes
from mia_batch.evidence.replay.samples import MISSING, answer, first_of_each
from mia_batch.schemas import Targets
from mia_batch.tables import RowIndex, scan

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from mia_batch.corpus.files import Source
    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.replay.columns import Columns, Key
    from mia_batch.evidence.replay.partition import Packed
    from mia_batch.kernels import WordRule
    from mia_batch.prompts.view import View

__all__ = ["Counts", "Recording"]

_PORTION_BYTES = 8 << 20  # of text, in memory at a time
_PORTION_BLOCKS = 8
_PACKED_AT_ONCE = 2  # portions of rows, while another is read
_NOTHING = pl.DataFrame(
    schema={
        "key": pl.UInt64,
        "view_index": pl.UInt32,
        "sample_index": pl.UInt32,
        "candidate": pl.String,
        "prompt": pl.String,
        "finish_reason": pl.String,
        "reason": pl.String,
        "n_tokens": pl.UInt32,
    }
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
    columns: Columns
    counts: Counts
    has_probes: bool  # whether it has answers at points, beside or instead of continuations
    _most_samples: int = field(repr=False)

    @classmethod
    def open(cls, source: str, *, candidate_column: str = "candidate") -> Recording:
        """Open and check a recording: Parquet or JSON Lines, one file, a folder or a glob.

        A row is a continuation. It names its target by ``target_id``, else ``document_id``, else
        the exact ``prefix``, and may have ``view`` (``continuation`` or ``probe``), ``view_index``
        or ``point`` (the number of the target's prompt), ``sample_index`` (else rows of a prompt
        are numbered in their order), ``n_tokens``, ``finish_reason`` (``stop``, ``length`` or
        null), ``prompt``, and ``reason`` (why there is no text). A run's folder of samples is such
        a recording.
        """
        found = find_files(source)
        if found.kind not in ("columnar", "jsonl"):
            kind = found.files[0].path.suffix.lstrip(".")
            msg = f"{source} is {kind}, which has no types; give Parquet or JSON Lines"
            raise CorpusError(msg)
        raw = FORMATS[found.kind].read_schema(found.files, Reading())
        columns = resolve(raw, candidate=candidate_column, where=source) if raw else None
        n_rows, most, has_probes = check_rows(found, columns) if columns else (0, 0, False)
        if columns is None or n_rows == 0:  # JSON Lines without a line have no columns
            msg = f"{source} has no rows; give a recording with at least one continuation"
            raise CorpusError(msg)
        counts = Counts(rows=n_rows)
        return cls(
            source=found,
            columns=columns,
            counts=counts,
            has_probes=has_probes,
            _most_samples=most,
        )

    @property
    def key(self) -> Key:
        """What targets are named by."""
        return self.columns.key

    @property
    def has_finish_reason(self) -> bool:
        """Whether the recording says how candidates ended; without, they count as whole."""
        return self.columns.has("finish_reason")

    def describe(self) -> Iterator[tuple[str, str]]:
        """Say what the recording holds, as name and text."""
        yield "recorded", f"{self.counts.rows:,} continuations, by {self.key}"
        if not self.has_finish_reason:
            yield "finish_reason", "not recorded: candidates count as whole"

    def most_samples(self) -> int:
        """Return the largest ``sample_index`` plus 1; without it, the most rows of a key."""
        return self._most_samples

    def collect(
        self, targets: Path, view: View, blocks: Iterable[Block], work: Path, words: WordRule
    ) -> Generator[tuple[Block, pl.DataFrame]]:
        """Yield each block of a view and its samples; memory does not grow with the recording.

        Rows follow the block's targets and ``sample_index``; what was not recorded has a
        ``reason``. Blocks have ``RECORDED_BLOCK_TARGETS`` targets, in the order of the targets
        table, and end with the same sample. Rows are stored in ``work/replay`` until closing.
        ``words`` tells whether a candidate is shorter than its reference. SettingsError where
        documents are named that are not one target each, or no row names a target.
        """
        if self.key == "document_id":
            self._refuse_documents(RowIndex(scan(targets, Targets).select("document_id")))
        return self._collect(targets, iter(blocks), work / "replay", view, words)

    def _refuse_documents(self, index: RowIndex) -> None:
        if index.unique and index.n_keys > 0:
            return
        lack = "have several targets each" if index.n_keys else "have no identifier in the corpus"
        msg = (
            f"{self.source.given} names documents, but these {lack}; "
            "give it a column 'target_id' or 'prefix' instead"
        )
        raise SettingsError(msg)

    def _refuse_others(self, keys: pl.LazyFrame) -> None:
        recorded = next(read_rows(self.source, self.columns))["key"][0]
        known = keys.drop_nulls().head(1).collect().item()
        msg = (
            f"none of the {self.counts.rows:,} rows of {self.source.given} names a target: "
            f"{self.key!r} is {brief(recorded)} in its first row and {brief(known)} of the first "
            "target; give both the same names"
        )
        raise SettingsError(msg)

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
                self._refuse_others(keys.table)
            del keys  # not needed while the samples are handed out
            held, rows = -1, pl.DataFrame()
            for block in chain([first], blocks):
                number = block.index * RECORDED_BLOCK_TARGETS // portion
                if number != held:
                    held, rows = number, self._read(partition, number)
                samples = answer(block, rows, view=view, key=self.key, words=words)
                missing = int((samples["reason"] == MISSING).sum())
                self.counts.missing += missing
                self.counts.matched += samples.height - missing
                yield block, samples
        finally:
            partition.remove()

    def _store(self, keys: TargetKeys, partition: Partition, view: View, n_samples: int) -> int:
        """Sort the rows into portions of targets that stand together; return how many targets."""
        portion = 0
        packed: deque[Future[list[tuple[int, Packed]]]] = deque()

        def write() -> None:
            for number, part in packed.popleft().result():
                partition.append(number, part)

        with ThreadPoolExecutor(_PACKED_AT_ONCE) as beside:
            for read in read_rows(self.source, self.columns):
                rows = read.filter(pl.col("view").fill_null(view.name) == view.name).drop("view")
                portion = portion or self._portion(read, keys.n_targets)
                known = rows.filter(pl.Series(keys.index.count(rows["key"]) > 0, dtype=pl.Boolean))
                wanted = known.filter(pl.col("sample_index") < n_samples)
                self.counts.unmatched += rows.height - known.height
                self.counts.surplus += known.height - wanted.height
                packed.append(beside.submit(_pack, wanted, keys, portion))
                if len(packed) > _PACKED_AT_ONCE:
                    write()
            while packed:
                write()
        return portion

    def _portion(self, rows: pl.DataFrame, n_targets: int) -> int:
        """Estimate from the first rows how many targets' rows can be held; whole blocks."""
        a_target = text_bytes(rows) / rows.height * self.counts.rows / max(n_targets, 1)
        n_blocks = int(_PORTION_BYTES / (a_target + 1)) // RECORDED_BLOCK_TARGETS
        return RECORDED_BLOCK_TARGETS * min(max(n_blocks, 1), _PORTION_BLOCKS)

    def _read(self, partition: Partition, number: int) -> pl.DataFrame:
        """Return the rows of a portion, each sample once."""
        rows = pl.concat([_NOTHING, *partition.read(number)])
        distinct = first_of_each(rows)
        self.counts.duplicates += rows.height - distinct.height
        return distinct


def _pack(rows: pl.DataFrame, keys: TargetKeys, portion: int) -> list[tuple[int, Packed]]:
    """Give each row to the portions that hold a target of its key; the key becomes its hash."""
    which, found = keys.find(rows["key"])
    numbers = pl.DataFrame({"which": which, "number": found // portion}).unique(maintain_order=True)
    known = rows.with_columns(pl.col("key").hash())[numbers["which"]]
    parts = known.with_columns(numbers["number"]).partition_by(
        "number", as_dict=True, include_key=False
    )
    return [(int(number), pack(part)) for (number,), part in parts.items()]
