"""The rows of a recording: checked once, then read in the columns of the samples table."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.check import faulty_rows
from mia_batch.corpus.formats import FORMATS
from mia_batch.corpus.formats.lines import Reading
from mia_batch.errors import CorpusError
from mia_batch.targets import Ordinals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.corpus.files import Source
    from mia_batch.evidence.replay.columns import Columns

__all__ = ["check_rows", "read_rows", "text_bytes"]

_HELD_BYTES = 8 << 20  # of text, in memory at a time
_HELD_ROWS = 1 << 15  # the same, for short texts


def check_rows(source: Source, columns: Columns) -> tuple[int, int, bool]:
    """Check every row, texts aside.

    Returns their number, `Recording.most_samples` and `Recording.has_probes`.
    """
    reader = FORMATS[source.kind]
    ordinals = Ordinals()
    n_rows = most_samples = 0
    has_probes = False
    reading = Reading()
    for frame in reader.read_rows(source.files, columns.raw, columns.small, reading):
        for row, what in faulty_rows(frame, columns.faults):
            place = next(islice(reader.places(source.files, reading), n_rows + row, None))
            msg = f"{place}: {what}"
            raise CorpusError(msg)
        n_rows += frame.height
        rows = _numbered(frame.select(columns.small_rows), columns, ordinals)
        most_samples = max(most_samples, int(rows["sample_index"].to_numpy().max()) + 1)
        has_probes = has_probes or bool((rows["view"] == "probe").any())
    return n_rows, most_samples, has_probes


def read_rows(source: Source, columns: Columns) -> Iterator[pl.DataFrame]:
    """Yield ``key`` (text) and columns of the samples table, some megabytes at a time.

    Without ``sample_index``, the rows of a prompt are numbered in their order.
    """
    ordinals = Ordinals()
    held: list[pl.DataFrame] = []
    n_rows = n_bytes = 0
    reader = FORMATS[source.kind]
    for frame in reader.read_rows(source.files, columns.raw, columns.needed, Reading()):
        held.append(_numbered(frame.select(columns.rows), columns, ordinals))
        n_rows += frame.height
        n_bytes += text_bytes(held[-1])
        if n_rows >= _HELD_ROWS or n_bytes >= _HELD_BYTES:
            yield pl.concat(held)
            held, n_rows, n_bytes = [], 0, 0
    if held:
        yield pl.concat(held)


def text_bytes(rows: pl.DataFrame) -> int:
    """Return the bytes of all texts."""
    return int(sum(rows.select(pl.col(pl.String).str.len_bytes().cast(pl.Int64).sum()).row(0)))


def _numbered(rows: pl.DataFrame, columns: Columns, ordinals: Ordinals) -> pl.DataFrame:
    if columns.has("sample_index"):
        return rows
    named = rows.select(pl.struct("key", "view", "view_index").hash()).to_series()
    numbers = ordinals.number(named.to_numpy())
    return rows.with_columns(sample_index=pl.Series(numbers, dtype=pl.UInt32))
