"""The files of a corpus: which they are, and how each kind is read in batches that fit memory."""

import _csv
import bz2
import codecs
import csv
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import reprlib
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import IO, Any, Literal, NamedTuple, Self, cast
from urllib.parse import unquote

import polars as pl
from pydantic_core import from_json, to_json

from mia_batch.corpus import books
from mia_batch.errors import CorpusError
from mia_batch.schemas import CHAPTERS
from mia_batch.tables import (
    MOST_VALUES,
    READ_ERRORS,
    digest,
    has_too_many_values,
    in_batches,
    side_by_side,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MOST_WORDS = 3  # of a path that does not exist; more look like a text

# What a file may hold, so that one that was made to fill the memory is refused in a
# sentence.
MOST_COLUMNS = 4_000
LONGEST_RECORD = 32 << 20  # characters; the longest dictionaries have 28 million
_LONGEST_CSV_RECORD = 16 << 20  # which costs its reader more
# Text shrinks to a third, tables to a tenth
_MOST_UNPACKED, _MOST_TIMES_PACKED = (
    256 << 20,
    200,
)


class BadInputError(CorpusError):
    """A file (``place`` is its path) or row that cannot be read, while others can."""

    def __init__(self, place: Path | str, what: str, way_out: str) -> None:
        super().__init__(
            f"{place}{' ' if isinstance(place, Path) else ': '}{what}; {way_out}"
        )
        self.place, self.what = str(place), what


class EncodingError(BadInputError):
    """A text file that is not in its encoding."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read, and which of them and of their rows were set aside."""

    # ``encoding`` is that of text files that declare none; None is UTF-8. ``rejected``
    # says where what was set aside is, and why; None refuses the first that cannot be
    # read.

    encoding: str | None = None
    rejected: dict[str, str] | None = None

    def reject(self, error: BadInputError) -> None:
        """Remember a bad row, or raise the error where the first one is refused."""
        if self.rejected is None:
            raise error
        self.rejected.setdefault(error.place, error.what)


Kind = Literal["columnar", "jsonl", "csv", "books"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a corpus."""

    path: Path
    name: str  # path below the folder that was asked for, with forward slashes
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a corpus, at least one, all of one kind."""

    given: str  # the path as the user gave it
    kind: Kind
    files: tuple[SourceFile, ...]  # sorted by name
    ignored: tuple[Path, ...]  # files below the folder that are of no known kind
    unreadable: tuple[BadInputError, ...] = ()  # of a folder, such as links to nothing

    def refuse_unreadable(self) -> None:
        for error in self.unreadable:
            raise error


PACKED: dict[str, Callable[[Path], Any]]
PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd.open}
"""How files are unpacked, by the ending of their name."""


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[io.BufferedReader]:
    unpack = PACKED.get(file.path.suffix.lower())
    try:
        raw: Any = (
            io.FileIO(file.path)
            if unpack is None
            else _Unpacked(file, unpack(file.path))
        )
        with io.BufferedReader(raw) as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else error
        )
        raise BadInputError(
            file.path, f"cannot be read: {reason}", "restore the file"
        ) from error


class _Unpacked(io.RawIOBase):
    """What a packed file holds, up to what a file of its size can hold."""

    def __init__(self, file: SourceFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        self._volume = Volume(file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        self._volume.add(len(content))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._stream.close()
        super().close()


class Volume:
    """Counts the bytes that a file unpacks to; some grow a million times."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._n_bytes = file, 0
        self._most = max(_MOST_UNPACKED, _MOST_TIMES_PACKED * file.size)

    def add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        if self._n_bytes > self._most:
            times = (
                f"{_MOST_TIMES_PACKED} times its size and {_MOST_UNPACKED >> 20} MiB"
            )
            way_out = "unpack it, and leave out what comes again and again"
            raise BadInputError(
                self._file.path, f"unpacks to more than {times}", way_out
            )


@contextmanager
def open_text(
    file: SourceFile, reading: Reading, newline: str = ""
) -> Iterator[io.TextIOWrapper]:
    with open_bytes(file) as stream:
        encoding = (
            books.read_byte_order_mark(stream.peek(4)[:4])
            or reading.encoding
            or "utf-8"
        )
        try:
            yield io.TextIOWrapper(stream, encoding=encoding, newline=newline)
        except UnicodeDecodeError as error:
            raise _not_decodable(file, encoding) from error


def read_lines(file: SourceFile, reading: Reading) -> Iterator[bytes]:
    """Yield the lines of a text file in UTF-8, each with its end; what is UTF-8 is not checked."""
    with open_bytes(file) as stream:
        declared = books.read_byte_order_mark(stream.peek(4)[:4])
        if (declared or reading.encoding or "utf-8").startswith("utf-8"):
            stream.read(len(codecs.BOM_UTF8) if declared else 0)
            yield from bounded(file, stream.readline)
            return
    with open_text(file, reading, "\n") as text:
        yield from (line.encode() for line in bounded(file, text.readline))


def bounded(file: SourceFile, readline: Callable[[int], Any]) -> Iterator[Any]:
    """Yield lines; one without end would fill the memory."""
    while line := readline(LONGEST_RECORD + 1):
        if len(line) > LONGEST_RECORD:
            raise _too_long(file, "line", LONGEST_RECORD)
        yield line


def _too_long(file: SourceFile, of: str, most: int) -> BadInputError:
    what = f"has a {of} of more than {most >> 20} MiB"
    return BadInputError(file.path, what, "cut it into several texts")


def check_width(place: Path | str, n_columns: int) -> None:
    if n_columns > MOST_COLUMNS:
        what = (
            f"has {n_columns:,} columns, of which at most {MOST_COLUMNS:,} can be read"
        )
        raise BadInputError(place, what, "leave out those that are not needed")


def _not_decodable(file: SourceFile, encoding: str) -> EncodingError:
    known = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8"}.get(encoding, encoding)
    way_out = "save the file as UTF-8"
    with open_bytes(file) as stream:
        decoder = codecs.getincrementaldecoder(encoding)()
        for number, line in enumerate(bounded(file, stream.readline), 1):
            try:
                decoder.decode(line)
            except UnicodeDecodeError as error:
                where, byte = f"{file.path}, line {number}", error.object[error.start]
                return EncodingError(
                    where, f"byte 0x{byte:02x} is not valid {known}", way_out
                )
    return EncodingError(file.path, f"ends within a character of {known}", way_out)


KINDS: dict[str, Kind] = {
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".ipc"), "columnar"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".txt", ".epub", ".html", ".htm", ".xhtml"), "books"),
}
_PACKABLE = ("jsonl", "csv")
DESCRIPTIONS = (
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
)
"""What the datasets library writes next to tables of Arrow or Parquet; no data."""
_KNOWN = f"one of {', '.join(KINDS)}; JSON, CSV and TSV also with {', '.join(PACKED)}"
_KNOWN += "; save PDF and word processors' files as one of these"


def find_files(path: Path | str) -> Source:
    """Find the files behind a path."""
    # A folder is read with its subfolders, less hidden ones (names that begin with
    # ``.`` or ``_``) and run folders (they hold a ``run.json``). A path that does not
    # exist is tried as a glob, in which ``**`` stands for any folders.
    given = str(path)
    if not given or "\0" in given or not _is_unicode(given):
        raise CorpusError(f"{given!r} is not a path; give a file, a folder or a glob")
    if (
        len(given.split()) > _MOST_WORDS
        and kind_of(PurePath(given)) is None
        and not _is_there(given)
    ):
        raise CorpusError(
            f"{reprlib.repr(given)} is no path but looks like a text; give a file, a"
            " folder or a glob, or in Python a list of texts or a DataFrame"
        )
    try:
        base, found = _expand(given)
        return _source(
            given, base, sorted(found, key=lambda file: file.relative_to(base).parts)
        )
    except (
        OSError,
        RuntimeError,
    ) as error:  # the latter where "~name" is nobody's home
        where = getattr(error, "filename", None) or given
        raise CorpusError(
            f"{where} cannot be read: {getattr(error, 'strerror', error)}"
        ) from error


def digest_each(files: Iterable[SourceFile]) -> dict[str, str]:
    files = tuple(files)
    try:
        digests = side_by_side(digest, (file.path for file in files))
        return dict(zip((file.name for file in files), digests, strict=True))
    except OSError as error:
        raise CorpusError(
            f"{error.filename} cannot be read: {error.strerror}"
        ) from error


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of SHA-256 digests in their order: 64 hexadecimal digits."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()


def base_of(given: str) -> Path:
    """Return the folder that the names of the files behind a path are relative to."""
    path = Path(given).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        return path.parent
    return Path(*takewhile(lambda part: not glob.has_magic(part), path.parts[:-1]))


def _expand(given: str) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the candidate files."""
    path, base = Path(given).expanduser(), base_of(given)
    if path.is_dir():
        return base, list(_walk(path))
    if path.exists() and kind_of(path) is None:
        raise CorpusError(f"{path} has an unknown extension; it must be {_KNOWN}")
    if path.exists():
        return base, [path]
    if not glob.has_magic(given):
        raise CorpusError(f"{given} does not exist; give a file, a folder or a glob")
    matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    return base, [match for match in matches if not match.is_dir()]


def _is_there(given: str) -> bool:
    """Whether it is a path or a glob of some; nothing is raised, however long it is."""
    place = os.path.expanduser(given)  # noqa: PTH111 - as said
    return os.path.exists(place) or bool(glob.glob(place, recursive=True))  # noqa: PTH110, PTH207


def _walk(folder: Path) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=stop):
        if "run.json" in names and Path(root) != folder:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        paths = (Path(root, name) for name in names if not name.startswith("."))
        yield from (
            path for path in paths if not _is_marked(path) or kind_of(path) is not None
        )


def _is_marked(path: Path) -> bool:
    """Whether a file of a folder is not read, as ``_SUCCESS`` and ``_metadata`` of other tools."""
    return path.name.startswith("_")


def _source(given: str, base: Path, found: list[Path]) -> Source:
    kinds: dict[Kind | None, list[Path]] = {}
    in_folder = Path(given).expanduser().is_dir()
    for path in found:
        kind = None if in_folder and _is_marked(path) else kind_of(path)
        kinds.setdefault(kind, []).append(path)
    if "columnar" in kinds and in_folder:
        described = [
            path for path in kinds.get("jsonl", []) if path.name in DESCRIPTIONS
        ]
        kinds.setdefault(None, []).extend(described)
        data = [
            path for path in kinds.pop("jsonl", []) if path.name not in DESCRIPTIONS
        ]
        kinds |= {"jsonl": data} if data else {}
    ignored = tuple(kinds.pop(None, ()))
    if not kinds:
        raise CorpusError(
            f"{given} holds no file that can be read as a corpus; the extension must be"
            f" {_KNOWN}"
        )
    if len(kinds) > 1:
        several = " and ".join(str(paths[-1]) for paths in kinds.values())
        raise CorpusError(
            f"{given} mixes kinds of files, such as {several}; give files of one kind"
        )
    ((kind, paths),) = kinds.items()
    is_alone = paths == [Path(given).expanduser()]
    files: list[SourceFile] = []
    unreadable: list[BadInputError] = []
    for path in paths:
        try:
            file = _source_file(path, base)
            if not is_alone:
                _refuse_link_out(base, path)
            files.append(file)
        except BadInputError as error:
            unreadable.append(error)
        except OSError as error:
            if not in_folder:
                raise
            what = f"cannot be read: {error.strerror}"
            unreadable.append(BadInputError(path, what, "restore or remove the file"))
    return Source(
        given=given,
        kind=cast("Kind", kind),
        files=tuple(files),
        ignored=ignored,
        unreadable=tuple(unreadable),
    )


_PARTITION = re.compile(r"([A-Za-z_]\w*)=(.*)")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def partition_of(file: SourceFile) -> dict[str, str | None]:
    """Return the columns that the folders of a file name, as in ``member=1/part.parquet``."""
    folders = map(_PARTITION.fullmatch, PurePath(file.name).parts[:-1])
    values = {found[1]: unquote(found[2]) for found in folders if found}
    return {
        name: None if value == _NULL_PARTITION else value
        for name, value in values.items()
    }


def _refuse_link_out(base: Path, path: Path) -> None:
    """Refuse a link to a file elsewhere, which a stranger's folder may hold: it must be named."""
    within = base.resolve()
    # Of a cache of the hub, whose files are links to its blobs
    if "snapshots" in within.parts:
        within = Path(*takewhile(lambda part: part != "snapshots", within.parts))
    if not (target := path.resolve()).is_relative_to(within):
        what = f"is a link to {target}, which lies outside of {base}"
        way_out = "give that file itself as a corpus, or a copy of it in the folder"
        raise BadInputError(path, what, way_out)


def kind_of(path: PurePath) -> Kind | None:
    """Tell by its name how a file is read; None if it is not."""
    packed = path.suffix.lower() in PACKED
    kind = KINDS.get((PurePath(path.stem) if packed else path).suffix.lower())
    return None if packed and kind not in _PACKABLE else kind


def _source_file(path: Path, base: Path) -> SourceFile:
    if not _is_unicode(str(path)):
        raise CorpusError(
            f"the file name {str(path)!r} is not valid UTF-8; rename the file"
        )
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CorpusError(
            f"{path} is not a regular file; give a file, a folder or a glob"
        )
    path.open("rb").close()  # refuses what this user may not read
    return SourceFile(
        path=path, name=path.relative_to(base).as_posix(), size=status.st_size
    )


def _is_unicode(name: str) -> bool:
    """Return whether a name that came from the system is text; it may hold any bytes."""
    return name.encode(errors="ignore").decode() == name


# Parquet and Arrow files, read in slices, so that large row groups need no large
# memory.

_SLICE_BYTES = 4 << 20  # compressed; a slice costs one read of its whole row group
_SLICE_ROWS = 1 << 17  # for texts that compress well
_FRAME_ROWS, _FRAME_BYTES = 2048, 8 << 20
_ARROW_FILE = b"ARROW1"
_ERRORS = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def agreed_schema(schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """Merge the schemas of files, by path; a column that is null throughout fits any type."""
    (first, merged), *others = schemas.items()
    for path, schema in others:
        for name in sorted(merged.keys() ^ schema.keys()):
            has, misses = (first, path) if name in merged else (path, first)
            raise CorpusError(
                f"{has} has a column {name!r} and {misses} has none; give files with"
                " the same columns"
            )
        for name, dtype in merged.items():
            if dtype == pl.Null:
                merged[name] = schema[name]
            elif schema[name] not in (pl.Null, dtype):
                raise CorpusError(
                    f"column {name!r} is {dtype} in {first} but {schema[name]} in"
                    f" {path}; give it one type in all files"
                )
    return merged


def columnar_schema(files: Sequence[SourceFile], _reading: Reading) -> pl.Schema:
    schemas = {}
    for file in files:
        with _refusing(file):
            schema = _scan(file).collect_schema()
        check_width(file.path, len(schema))
        schemas[str(file.path)] = schema
    return agreed_schema(schemas)


def columnar_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    _reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, a slice at a time."""
    wanted = [pl.col(name).cast(schema[name]) for name in columns]
    for file in files:
        with _refusing(file):
            rows = _scan(file).select(wanted)
            height = _height(rows)
        step = min(max(1, height * _SLICE_BYTES // max(file.size, 1)), _SLICE_ROWS)
        volume = Volume(file)
        for start in range(0, height, step):
            table = rows.slice(start, step)
            try:
                # Streamed, since a row group of some bytes may unpack to a gigabyte.
                for read in table.collect_batches(
                    chunk_size=_FRAME_ROWS, maintain_order=True
                ):
                    volume.add(_unfolded_bytes(read))
                    yield from _small_frames(file, read)
            except _ERRORS as error:
                row = start + _first_broken(table, step) + 1
                what = f"is broken at row {row}: {_first_line(error)}"
                raise BadInputError(file.path, what, "restore the file") from error


def _small_frames(file: SourceFile, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut rows into frames, since engines read some of them ahead, whatever their size."""
    mean = _unfolded_bytes(rows) // max(1, rows.height)
    for frame in rows.iter_slices(
        max(1, min(_FRAME_ROWS, _FRAME_BYTES // max(1, mean)))
    ):
        if frame.height == 1 and _unfolded_bytes(frame) > LONGEST_RECORD:
            raise _too_long(file, "row", LONGEST_RECORD)
        yield frame


def _unfolded_bytes(rows: pl.DataFrame) -> int:
    """Count bytes as they are where each row has its own text; those of a dictionary share it."""
    texts = rows.select(pl.col(pl.String).str.len_bytes().cast(pl.UInt64).sum())
    return max(int(rows.estimated_size()), sum(texts.row(0)) if texts.width else 0)


def _scan(file: SourceFile) -> pl.LazyFrame:
    """Open a file; a stream of Arrow batches, which the datasets library writes, is read whole."""
    if file.path.suffix.lower() == ".parquet":
        return pl.scan_parquet(file.path, glob=False, hive_partitioning=False)
    with file.path.open("rb") as start:
        is_file = start.read(len(_ARROW_FILE)) == _ARROW_FILE
    return pl.scan_ipc(file.path) if is_file else pl.read_ipc_stream(file.path).lazy()


def _height(rows: pl.LazyFrame) -> int:
    return int(rows.select(pl.len()).collect().item())


def _first_broken(rows: pl.LazyFrame, length: int) -> int:
    """Return the first row of a slice that cannot be read, by halving."""
    good, bad = 0, length
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            rows.head(middle).collect()
        except _ERRORS:
            bad = middle
        else:
            good = middle
    return good


@contextmanager
def _refusing(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        kind = file.path.suffix[1:].capitalize()
        what = f"cannot be read as {kind}: {_first_line(error)}"
        raise BadInputError(file.path, what, "restore the file") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


# Delimited files: commas or tabs, with a header, quoted as in RFC 4180.
#
# They have no types and no null: every column is text, and an empty field is null. Blank lines are
# skipped. The reader is Python's, in its strict mode, because it refuses what others repair.

_BATCH_CHARS = 4 << 20


def csv_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    schemas = {}
    for file in files:
        _, header = next(_csv_records(file, reading), ("", []))
        if not header:
            raise BadInputError(
                file.path, "is empty", "its first line must name the columns"
            )
        check_width(file.path, len(header))
        for number, name in enumerate(header, 1):
            if not name or name in header[: number - 1]:
                what = (
                    f"is named {name!r} like one before it" if name else "has no name"
                )
                where = f"{file.path}, line 1"
                raise BadInputError(
                    where, f"column {number} {what}", "give it a name of its own"
                )
        schemas[str(file.path)] = pl.Schema(dict.fromkeys(header, pl.String()))
    return agreed_schema(schemas)


def csv_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time."""
    for file in files:
        records = _csv_records(file, reading)
        _, header = next(records, ("", []))
        for batch in in_batches(
            records, lambda each: sum(map(len, each[1])), _BATCH_CHARS
        ):
            fields = zip(*(record for _, record in batch), strict=True)
            frame = pl.DataFrame(
                dict(zip(header, fields, strict=True)), schema_overrides=schema
            )
            yield frame.select(
                pl.when(pl.col(name) != "").then(pl.col(name)) for name in columns
            )


def _csv_records(file: SourceFile, reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """Yield where each record begins and its fields: the header, then those with as many fields."""
    where, n_columns = f"{file.path}, line 1", 0
    with open_text(file, reading) as text:
        lines, tabs = _RecordLines(file, text), ".tsv" in file.path.name.lower()
        reader = csv.reader(lines, strict=True, delimiter="\t" if tabs else ",")
        try:
            while (record := _next_record(reader)) is not None:
                lines.begin_record()
                n_columns = n_columns or len(record)
                if len(record) == n_columns > 0:
                    yield where, record
                elif record:
                    what = f"{len(record)} fields where the header has {n_columns}"
                    reading.reject(_broken(where, what))
                where = f"{file.path}, line {reader.line_num + 1}"
        except csv.Error as error:
            raise _broken(where, f"not valid CSV, {error}") from error


class _RecordLines:
    """The lines of a delimited file, of which a quoted record may have any number."""

    def __init__(self, file: SourceFile, text: IO[str]) -> None:
        self._file, self._lines = file, bounded(file, text.readline)
        self._n_characters = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line: str = next(self._lines)
        self._n_characters += len(line)
        if self._n_characters > _LONGEST_CSV_RECORD:
            raise _too_long(self._file, "record", _LONGEST_CSV_RECORD)
        return line

    def begin_record(self) -> None:
        self._n_characters = 0


def _next_record(reader: _csv.Reader) -> list[str] | None:
    """Read a record; meanwhile the process-wide limit of 128 KiB a field is lifted."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


# JSON: an object or a text per line, or an array of them; blank lines are skipped, a missing key is
# null.
#
# A first pass parses every record strictly and learns the columns; Polars then reads the rows with
# these columns, so that the first rows do not decide what type a column has. ``NaN`` and
# ``Infinity``, which Python's ``json`` writes, are null.

_BATCH_BYTES = 4 << 20
_READ_CHARS = 1 << 20
_START = 64  # bytes in which an array begins
_BEFORE_START = (  # byte-order marks of UTF-8 and UTF-16, blanks
    b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"
)
# A key may be written so that it looks like another
_ESCAPED_LETTER = re.compile(rb"\\u00[2-7]")
_BETWEEN_ITEMS = re.compile(r"\s*,?\s*")
_JsonRecord = tuple[str, bytes]  # where it stands, JSON


class _LongInteger:
    """Stands for integers beyond 64 bits; they are kept as their digits."""


_JSONKINDS: dict[type, tuple[str, type[pl.DataType]]] = {
    str: ("a string", pl.String),
    bool: ("a boolean", pl.Boolean),
    int: ("a number", pl.Int64),
    float: ("a number", pl.Float64),
    _LongInteger: ("a number", pl.String),
    list: ("an array", pl.Object),
    dict: ("an object", pl.Object),
}


def jsonl_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    """Return every key of every record with the one type that all its values have."""
    seen: dict[str, dict[type, str]] = {}
    for file in files:
        for where, record in _json_records(file, reading):
            try:
                parsed = _parse(where, record)
            except BadInputError as error:
                reading.reject(error)
                continue
            check_width(where, len(parsed))
            for name, value in parsed.items():
                is_long = type(value) is int and not -(2**63) <= value < 2**63
                kind = _LongInteger if is_long else type(value)
                seen.setdefault(name, {}).setdefault(kind, where)
            check_width(where, len(seen))
    return pl.Schema({name: _column_type(name, kinds) for name, kinds in seen.items()})


def jsonl_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time, nested values as JSON."""
    types = {
        name: pl.String() if schema[name] == pl.Object else schema[name]
        for name in columns
    }
    for file in files:
        records = _json_records(file, reading)
        for batch in in_batches(records, lambda each: len(each[1]), _BATCH_BYTES):
            yield _read_batch(batch, types, reading)


def _json_records(file: SourceFile, reading: Reading) -> Iterator[_JsonRecord]:
    """Yield the records that were not rejected, with where they stand, counted from 1."""
    with open_bytes(file) as stream:
        is_array = stream.peek(1)[:_START].lstrip(_BEFORE_START).startswith(b"[")
    numbered = enumerate(read_lines(file, reading), 1)
    lines = (
        (f"{file.path}, line {n}", line) for n, line in numbered if not line.isspace()
    )
    for where, record in _items(file, reading) if is_array else lines:
        if where in (reading.rejected or ()):
            continue
        check_values(where, record)
        if b"NaN" in record or b"Infinity" in record:
            with suppress(ValueError):  # which the strict parser will say
                record = to_json(from_json(record), inf_nan_mode="null")  # noqa: PLW2901
        if record.lstrip().startswith(b'"'):  # a text alone
            with suppress(ValueError):
                record = to_json({"text": from_json(record.strip())})  # noqa: PLW2901
        yield where, record


def check_values(where: str, record: str | bytes) -> None:
    """Refuse JSON whose values take many times the memory of their text."""
    if has_too_many_values(record.encode() if isinstance(record, str) else record):
        what = f"holds more than {MOST_VALUES:,} values"
        raise BadInputError(where, what, "leave out those that are not needed")


def _items(file: SourceFile, reading: Reading) -> Iterator[_JsonRecord]:
    """Yield the items of an array, reading on as long as the next one may be cut short."""
    decoder = json.JSONDecoder()
    with open_text(file, reading) as text:
        buffer = text.read(_READ_CHARS)
        at, number = buffer.index("[") + 1, 1
        while True:
            where = f"{file.path}, item {number}"
            at = _BETWEEN_ITEMS.match(buffer, at).end()  # type: ignore[union-attr] # it matches
            if buffer.startswith("]", at):
                if (buffer[at + 1 :] + text.read(_READ_CHARS)).strip():
                    raise _broken(where, "there is text after the array", "array")
                return
            item, after, problem = None, len(buffer), None
            try:
                item, after = decoder.raw_decode(buffer, at)
            except ValueError as error:
                problem = error
            # Twice as much each time, or a long item would be parsed for each of its
            # parts.
            if after == len(buffer) and (
                more := text.read(max(_READ_CHARS, len(buffer) - at))
            ):
                buffer, at = buffer[at:] + more, 0
                if len(buffer) > LONGEST_RECORD:
                    raise _broken(
                        where, f"more than {LONGEST_RECORD >> 20} MiB", "item"
                    )
                check_values(where, buffer)
                continue
            if problem is not None:
                raise _broken(where, f"not valid JSON, {problem}", "item")
            yield where, json.dumps(item).encode()
            at, number = after, number + 1


def _broken(where: str, what: str, of: str = "line") -> BadInputError:
    return BadInputError(where, what, f"correct or remove the {of}")


def _parse(where: str, line: bytes) -> dict[str, object]:
    try:
        record = from_json(line.strip(), allow_inf_nan=False)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as problem:
            what = f"byte 0x{line[problem.start]:02x} is not valid UTF-8"
            raise EncodingError(where, what, "save the file as UTF-8") from error
        what = (
            f"not valid JSON, {str(error).replace(' at line 1 column', ' at column')}"
        )
        raise _broken(where, what) from error
    if not isinstance(record, dict):
        raise _broken(where, "not a JSON object")
    if repeated := _repeated_key(line, record):
        raise _broken(
            where, f"two keys {repeated!r} in one object, of which one would be lost"
        )
    return record


def _repeated_key(line: bytes, record: Mapping[str, object]) -> str | None:
    """Find a key that an object has twice; most lines show at a glance that they have none."""
    n_quoted = sum(
        line.count(b'"%s"' % name.encode(errors="ignore")) for name in record
    )
    if n_quoted <= len(record) and not _ESCAPED_LETTER.search(line):
        return None

    def first_repeated(pairs: list[tuple[str, object]]) -> str | None:
        names = Counter(name for name, _ in pairs)
        return next((name for name, times in names.items() if times > 1), None)

    # The hook is called for inner objects first, so the last answer is that of the
    # record.
    return cast("str | None", json.loads(line, object_pairs_hook=first_repeated))


def _column_type(name: str, kinds: Mapping[type, str]) -> pl.DataType:
    found = [
        (*_JSONKINDS[kind], where)
        for kind, where in kinds.items()
        if kind is not type(None)
    ]
    for word, _, where in found:
        if word != found[0][0]:
            raise CorpusError(
                f"column {name!r} is {found[0][0]} in {found[0][2]}, but {word} in"
                f" {where}; give it one type"
            )
    types = {dtype for _, dtype, _ in found}
    wide = next((dtype for dtype in (pl.Float64, pl.String) if dtype in types), None)
    return (wide or next(iter(types), pl.Null))()


def _read_batch(
    batch: list[_JsonRecord], types: Mapping[str, pl.DataType], reading: Reading
) -> pl.DataFrame:
    """Read some records; those that the strict parser let pass and Polars does not are bad."""

    def read(records: list[_JsonRecord]) -> pl.DataFrame:
        if not records:
            return pl.DataFrame(schema=types)
        return pl.read_ndjson(b"\n".join(record for _, record in records), schema=types)

    try:
        return read(batch)
    except READ_ERRORS:
        good = []
        for record in batch:
            try:
                read([record])
            except READ_ERRORS as error:
                reading.reject(_broken(record[0], _first_line(error)))
            else:
                good.append(record)
        return read(good)


# Files that are whole documents: ``.txt``, ``.html`` and ``.epub``, one document each.

_ROW_BYTES = 1 << 10  # what a row costs besides its text
_NUMBERS = ("n_characters", "cut_start", "cut_inside", "cut_end", *books.LEFT_OUT)
_SCHEMA = pl.Schema(
    {
        **dict.fromkeys(
            ("document_id", "text", "title", "author", "isbn", "sha256"), pl.String()
        ),
        **dict.fromkeys(_NUMBERS, pl.UInt32()),
        "chapters": CHAPTERS,
    }
)
_HEADER_BYTES = 20_000
_DECLARED = re.compile(
    r"^\W*(?:character set (?:en)?cod\w+|[ck]odierung|encodage|codific\w+|encoding)["
    r" \t]*:(.*)",
    re.IGNORECASE | re.MULTILINE,
)


def book_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Yield one row per file; line ends of texts are kept, a byte-order mark is not."""
    needs_content = set(columns) != {"document_id"}
    rows = (
        _row(file, reading) if needs_content else {"document_id": file.name}
        for file in files
    )
    for batch in in_batches(
        rows, lambda row: len(row.get("text", "")) + _ROW_BYTES, _BATCH_BYTES
    ):
        yield pl.DataFrame(batch, schema=schema).select(columns)


def _row(file: SourceFile, reading: Reading) -> dict[str, Any]:
    with open_bytes(file) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        try:
            book = _read_book(file, stream, reading.encoding)
        except books.BookError as error:
            what, _, way_out = str(error).rpartition("; ")
            if error.line is None:
                raise BadInputError(file.path, what, way_out) from error
            raise EncodingError(
                f"{file.path}, line {error.line}", what, way_out
            ) from error
    text, left_out = books.tidy(book.text)
    left_out.update(book.left_out)
    cut = books.find_cut(text)
    return {
        "document_id": file.name,
        "text": text[cut.start : cut.end],
        "title": book.title or cut.title,
        "author": book.author or cut.author,
        "isbn": book.isbn,
        "sha256": sha256,
        "n_characters": len(text) + left_out["characters"],
        "cut_start": cut.start,
        "cut_inside": left_out["characters"],
        "cut_end": len(text) - cut.end,
        **{name: left_out[name] for name in books.LEFT_OUT},
        "chapters": list(_chapters(book, len(text), cut)),
    }


def _chapters(
    book: books.Book, n_tidied: int, cut: books.Cut
) -> Iterator[dict[str, Any]]:
    """Say where chapters begin in the text that is left, as if what was left out were spread."""
    for start, heading in book.chapters:
        place = start * n_tidied // max(1, len(book.text)) - cut.start
        if place < cut.end - cut.start:
            yield {"start": max(0, place), "heading": heading}


def _read_book(file: SourceFile, stream: IO[bytes], encoding: str | None) -> books.Book:
    ending = file.path.suffix.lower()
    if ending == ".epub":
        return books.read_epub(stream, encoding)
    content = stream.read(books.MOST_CHARS + 1)
    if ending != ".txt":
        return books.read_html(content, encoding)
    if len(content) > books.MOST_CHARS:
        raise books.BookError(
            f"is longer than {books.MOST_CHARS >> 20} MiB; split the book"
        )
    other = (
        rb"(?i)(\xef\xbb\xbf)?\s*(%PDF-|\{\\rtf|<!doctype"
        rb" html|<html|PK\x03\x04|\xd0\xcf\x11\xe0)"
    )
    if re.match(other, content):
        way_out = "save its text, or name a page of HTML .html"
        raise books.BookError(
            f"is PDF, RTF, HTML, an archive or of a word processor; {way_out}"
        )
    header = content[:_HEADER_BYTES].decode("ascii", "replace")
    found = _DECLARED.search(header) if "gutenberg" in header.lower() else None
    names = re.findall(r"[\w.-]+", found[1]) if found else []
    declared = next(filter(books.find_codec, reversed(names)), None)
    return books.Book(books.decode(content, declared=declared, fallback=encoding))


class Format(NamedTuple):
    """How one kind of file is read."""

    # The type ``Object`` in a schema stands for JSON arrays and objects; rows hold them
    # as JSON text. ``places_in`` a file says of every row where it is, as a user
    # counts.

    read_schema: Callable[[Sequence[SourceFile], Reading], pl.Schema]
    read_rows: Callable[
        [Sequence[SourceFile], pl.Schema, Sequence[str], Reading],
        Iterator[pl.DataFrame],
    ]
    places_in: Callable[[SourceFile, Reading], Iterable[str]]

    def places(self, files: Sequence[SourceFile], reading: Reading) -> Iterator[str]:
        return (place for file in files for place in self.places_in(file, reading))


FORMATS: dict[Kind, Format] = {
    "columnar": Format(
        columnar_schema,
        columnar_rows,
        lambda file, _: (
            f"{file.path}, row {row + 1}" for row in range(_height(_scan(file)))
        ),
    ),
    "jsonl": Format(
        jsonl_schema,
        jsonl_rows,
        lambda file, reading: (where for where, _ in _json_records(file, reading)),
    ),
    "csv": Format(
        csv_schema,
        csv_rows,
        lambda file, reading: (
            where for where, _ in islice(_csv_records(file, reading), 1, None)
        ),
    ),
    "books": Format(lambda *_: _SCHEMA, book_rows, lambda file, _: [str(file.path)]),
}
