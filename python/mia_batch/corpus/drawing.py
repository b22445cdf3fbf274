"""Which documents of a corpus are drawn by lot: so many of all, or of each source."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b, sha256
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.corpus.files import (
    FORMATS,
    Reading,
    RowNumbers,
    Source,
    SourceFile,
    combine_digests,
    digest_files,
)
from mia_batch.errors import CorpusError

# A document is known by the place of its row in the files, sorted by name, since its
# identifier and its text may be repeated or chosen by who made the corpus. Its lot
# depends on that place, on the seed and on the content of all files: who orders rows
# so that some are drawn changes the content, and with it every lot.

_MOST_SOURCES = 300
_LONGEST_NAME = 200  # characters of a source's name
_ROWS_AT_ONCE = 1 << 17
_MOST_KEPT = 64 << 20  # bytes of drawn rows that are read once
_SHOWN = 20  # column names in a message
_TEXTS = ("text", "prefix", "reference", "member", "label")

Lots = NDArray[np.uint64]
ReadFrames = Callable[[list[str]], Iterator[pl.DataFrame]]


class DrawRequest(NamedTuple):
    """How many documents are to be drawn."""

    n_documents: int  # of all, or of each source
    seed: int
    by: str | None = None  # the user's column of sources


class DrawnSource(NamedTuple):
    """What was drawn of one source; of all documents where no column names sources."""

    name: str | None  # None: documents without a source
    n_documents: int
    n_drawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The documents that were drawn of a corpus, without replacement.

    Attributes
    ----------
    request
        What was asked for.
    column
        The column of the documents table that names sources; None: there are none.
    sources
        How many documents there are, and were drawn, of each source by its name.
    rows
        Numbers of the rows drawn, over all files in order, from 0, ascending.
    digests
        SHA-256 of every file of the corpus, by its name.
    """

    request: DrawRequest
    column: str | None
    sources: tuple[DrawnSource, ...]
    rows: RowNumbers = field(repr=False)
    digests: Mapping[str, str] = field(repr=False)

    @property
    def n_documents(self) -> int:
        return sum(source.n_documents for source in self.sources)

    def describe(self) -> dict[str, Any]:
        """Return what a plan binds and ``run.json`` says, with a hash of the rows drawn."""
        numbers = self.rows.astype("<i8").tobytes()
        return {
            "asked": self.request.n_documents,
            "by": self.request.by,
            "column": self.column,
            "n_documents": self.n_documents,
            "n_drawn": len(self.rows),
            "rows_sha256": sha256(numbers).hexdigest(),
            "sources": [list(source) for source in self.sources],
        }

    def note(self) -> str:
        """Write how many documents of how many were drawn."""
        verb = "is" if len(self.rows) == 1 else "are"
        sentence = f"{len(self.rows):,} of {self.n_documents:,} documents {verb} drawn"
        if self.request.by is not None:
            n_sources = len(self.sources)
            sentence += (
                f", at most {self.request.n_documents:,} of each of {n_sources:,} values"
                f" of column {self.request.by!r}"
            )
        return sentence


def find_source_column(
    by: str,
    raw: pl.Schema,
    roles: Mapping[str, str],
    further: Mapping[str, str],
    location: str,
) -> str:
    """Return the column of the documents table that the user's column of sources becomes."""
    if by not in raw:
        near = get_close_matches(by, raw.names(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        listing = ", ".join(map(repr, raw.names()[:_SHOWN]))
        raise CorpusError(
            f"{location} has no column {by!r}{hint}, only {listing}; name the column of"
            " sources with draw_by="
        )
    dtype = raw[by]
    is_text = any(roles.get(role) == by for role in _TEXTS)
    if is_text or dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise CorpusError(
            f"{location}: column {by!r} names no sources, since it holds texts, labels"
            " or nested values; name another with draw_by="
        )
    items = (*roles.items(), *further.items())
    names = {user_name: name for name, user_name in items}
    return names[by]


def draw_rows(
    request: DrawRequest,
    source: Source,
    reading: Reading,
    read_frames: ReadFrames,
    column: str | None,
) -> tuple[Draw, Reading]:
    """Draw rows of the files; return them, and how files are read of which only they are.

    Row i has the i-th number of Philox, a generator that numbers itself: Salmon, Moraes,
    Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3". Its key is a
    hash of the seed and of the SHA-256 of the files. The rows of each source with the
    lowest numbers are drawn, so that each set of so many is equally likely, that more
    rows add to fewer, and that they are the same on every machine. Memory grows with the
    rows drawn, not with the corpus.
    """
    digests = digest_files(source.files)
    lots = _deal_lots(request.seed, combine_digests(digests))
    lowest_by_source: dict[str | None, _LowestLots]
    if request.by is None:
        counts = _count_rows(source, reading)
        lowest = _LowestLots(request.n_documents)
        for start in range(0, sum(counts), _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, sum(counts))
            lowest.add(np.arange(start, stop), lots(stop - start))
        lowest_by_source = {None: lowest}
    else:
        names = _read_names(request.by, read_frames, source.location)
        lowest_by_source = _draw_by_source(request, names, lots, source.location)
        # After the values, since a row that cannot be read has no number
        counts = _count_rows(source, reading)
    in_order = sorted(
        lowest_by_source.items(), key=lambda item: (item[0] is None, item[0] or "")
    )
    rows_by_source = [(name, lowest, lowest.rows()) for name, lowest in in_order]
    rows = np.sort(np.concatenate([drawn for _, _, drawn in rows_by_source]))
    draw = Draw(
        request=request,
        column=column,
        sources=tuple(
            DrawnSource(name, lowest.n_seen, drawn.size)
            for name, lowest, drawn in rows_by_source
        ),
        rows=rows,
        digests=digests,
    )
    return draw, _limit_reading(reading, source.files, counts, rows)


def _deal_lots(seed: int, digest: str) -> Callable[[int], Lots]:
    """Return what gives the lots of the next so many rows."""
    key = blake2b(f"{seed}:{digest}".encode(), digest_size=16).digest()
    generator = np.random.Philox(key=int.from_bytes(key, "little"))
    return generator.random_raw


def _count_rows(source: Source, reading: Reading) -> list[int]:
    """Count the rows of each file; of Parquet and Arrow the footers say them."""
    places_in = FORMATS[source.kind].places_in
    return [sum(1 for _ in places_in(file, reading)) for file in source.files]


def _read_names(by: str, read_frames: ReadFrames, location: str) -> Iterator[pl.Series]:
    """Iterate over the names of sources, some rows at a time; refuse what are texts."""
    for frame in read_frames([by]):
        names = frame[by].cast(pl.String)
        longest = names.str.len_chars().max()
        if isinstance(longest, int) and longest > _LONGEST_NAME:
            raise CorpusError(
                f"{location}: column {by!r} has a value of {longest:,} characters, and"
                f" names of sources have {_LONGEST_NAME} at most; name another with"
                " draw_by="
            )
        yield names


def _draw_by_source(
    request: DrawRequest,
    names: Iterable[pl.Series],
    lots: Callable[[int], Lots],
    location: str,
) -> dict[str | None, "_LowestLots"]:
    """Return the lowest lots of each source, given its name in every row."""
    lowest_by_source: dict[str | None, _LowestLots] = {}
    n_rows = 0
    for series in _join(names):
        numbers = pl.int_range(n_rows, n_rows + series.len(), eager=True)
        table = pl.DataFrame(
            {
                "name": series,
                "row": numbers,
                "lot": lots(series.len()),
            }
        )
        n_rows += series.len()
        for (name,), rows in table.group_by("name", maintain_order=True):
            key = None if name is None else str(name)
            lowest = lowest_by_source.setdefault(key, _LowestLots(request.n_documents))
            lowest.add(rows["row"].to_numpy(), rows["lot"].to_numpy())
        if len(lowest_by_source) > _MOST_SOURCES:
            raise CorpusError(
                f"{location}: column {request.by!r} has more than {_MOST_SOURCES}"
                " values, of each of which documents would be drawn; name a column of"
                " fewer values with draw_by="
            )
    return lowest_by_source


def _join(names: Iterable[pl.Series]) -> Iterator[pl.Series]:
    """Join short series to long ones, which are grouped faster."""
    waiting: list[pl.Series] = []
    for series in names:
        waiting.append(series)
        if sum(map(len, waiting)) >= _ROWS_AT_ONCE:
            yield pl.concat(waiting)
            waiting = []
    if waiting:
        yield pl.concat(waiting)


class _LowestLots:
    """The rows of one source with the lowest lots of all that were seen."""

    def __init__(self, n_wanted: int) -> None:
        self._n_wanted = n_wanted
        self._rows = np.empty(0, np.int64)
        self._lots = np.empty(0, np.uint64)
        self.n_seen = 0

    def add(self, rows: RowNumbers, lots: Lots) -> None:
        self.n_seen += rows.size
        if self._rows.size == self._n_wanted:
            may_be_drawn = lots < self._lots[-1]
            rows, lots = rows[may_be_drawn], lots[may_be_drawn]
        all_rows = np.concatenate([self._rows, rows])
        all_lots = np.concatenate([self._lots, lots])
        # Of equal lots the earlier row comes first
        order = np.lexsort((all_rows, all_lots))[: self._n_wanted]
        self._rows, self._lots = all_rows[order], all_lots[order]

    def rows(self) -> RowNumbers:
        return np.sort(self._rows)


def _limit_reading(
    reading: Reading,
    files: Sequence[SourceFile],
    counts: Sequence[int],
    rows: RowNumbers,
) -> Reading:
    """Return how files are read of which only some rows are."""
    drawn = {}
    start = 0
    for file, n_rows in zip(files, counts, strict=True):
        first, last = rows.searchsorted([start, start + n_rows])
        drawn[file] = rows[first:last] - start
        start += n_rows
    uncounted = frozenset(reading.rejected or ())
    return replace(reading, drawn=drawn, uncounted=uncounted)


class KeptRows:
    """Reads drawn rows, and keeps them from the first time on where they are small."""

    def __init__(self, read_frames: ReadFrames, columns: Sequence[str]) -> None:
        self._read_frames = read_frames
        self._columns = set(columns)
        self._kept: list[pl.DataFrame] | None = None

    def read(self, columns: list[str]) -> Iterator[pl.DataFrame]:
        if self._kept is not None:
            for frame in self._kept:
                yield frame.select(columns)
            return
        frames: list[pl.DataFrame] = []
        n_bytes = 0
        for frame in self._read_frames(columns):
            n_bytes += int(frame.estimated_size())
            if n_bytes <= _MOST_KEPT:
                frames.append(frame)
            else:
                frames.clear()
            yield frame
        if n_bytes <= _MOST_KEPT and set(columns) == self._columns:
            self._kept = frames
