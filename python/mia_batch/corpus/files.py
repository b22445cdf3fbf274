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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import IO, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast
from urllib.parse import unquote

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from mia_batch.corpus import books
from mia_batch.corpus.addresses import Address
from mia_batch.corpus.listings import list_address
from mia_batch.corpus.remote import Listing, RemoteFile
from mia_batch.corpus.row_groups import (
    FooterError,
    iterate_groups,
    only_footer,
    read_footer,
)
from mia_batch.errors import CorpusError
from mia_batch.places import is_url
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

_T = TypeVar("_T")
RowNumbers: TypeAlias = NDArray[np.int64]
_MOST_WORDS = 3  # of a path that does not exist; more look like a text

# Limits, so that a file that was made to fill the memory is refused in a sentence
MOST_COLUMNS = 4_000
LONGEST_RECORD = 32 << 20  # characters; the longest dictionaries have 28 million
_LONGEST_CSV_RECORD = 16 << 20  # which costs its reader more
# Text shrinks to a third, tables to a tenth
_MOST_UNPACKED = 256 << 20
_MOST_TIMES_PACKED = 200


class BadInputError(CorpusError):
    """A file (``place`` is its path) or row that cannot be read, while others can."""

    def __init__(self, place: Path | Address | str, problem: str, way_out: str) -> None:
        separator = ": " if isinstance(place, str) else " "
        super().__init__(f"{place}{separator}{problem}; {way_out}")
        self.place = str(place)
        self.problem = problem


class EncodingError(BadInputError):
    """A text file that is not in its encoding."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read, and which of them and of their rows were set aside."""

    encoding: str | None = None  # of text files that declare none; None is UTF-8
    # Where what was set aside is, and why; None refuses the first that cannot be read
    rejected: dict[str, str] | None = None
    # The numbers of the rows that are read of each file, from 0, ascending; None: all
    drawn: "Mapping[SourceFile, RowNumbers] | None" = None
    # Places that the numbers of drawn rows pass over; None: all that is rejected
    uncounted: frozenset[str] | None = None

    def reject(self, error: BadInputError) -> None:
        """Remember a bad row, or raise the error where the first one is refused."""
        if self.rejected is None:
            raise error
        self.rejected.setdefault(error.place, error.problem)

    def is_passed_over(self, place: str) -> bool:
        """Return whether a record has no number, because it was rejected."""
        if self.uncounted is not None:
            return place in self.uncounted
        return place in (self.rejected or ())

    def choose(self, file: "SourceFile", records: Iterable[_T]) -> Iterator[_T]:
        """Iterate over the records of a file that are read: all, or those drawn."""
        if self.drawn is None:
            yield from records
            return
        numbers = {*self.drawn[file].tolist()}
        for number, record in enumerate(islice(records, max(numbers, default=-1) + 1)):
            if number in numbers:
                yield record


Kind = Literal["columnar", "jsonl", "csv", "books"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a corpus."""

    path: Path | Address
    name: str  # path below the corpus's folder, with forward slashes
    size: int  # bytes; 0 where a server does not say it
    remote: RemoteFile | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a corpus, at least one, all of one kind."""

    location: str  # path or glob, as the user gave it
    kind: Kind
    files: tuple[SourceFile, ...]  # sorted by name
    # Files below the folder that are of no known kind
    ignored: tuple[Path | Address, ...]
    unreadable: tuple[BadInputError, ...] = ()  # of a folder, such as links to nothing
    notes: tuple[str, ...] = ()  # on how it is read

    def refuse_unreadable(self) -> None:
        for error in self.unreadable:
            raise error


PACKED: dict[str, Callable[[Any], Any]]
PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd.open}
"""How files are unpacked, by the ending of their name."""


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[io.BufferedReader]:
    unpack = PACKED.get(file.path.suffix.lower())
    try:
        with _open_raw(file) as raw:
            unpacked = raw if unpack is None else _Unpacked(file, unpack(raw))
            with io.BufferedReader(unpacked) as stream:
                yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(
            file.path, f"cannot be read: {reason}", "restore the file"
        ) from error


@contextmanager
def _open_raw(file: SourceFile) -> Iterator[Any]:
    with ExitStack() as closing:
        path = file.path
        if file.remote is not None:
            if KINDS.get(path.suffix.lower()) != "books":
                yield closing.enter_context(file.remote.open())
                return
            # An EPUB is read here and there, and a book twice
            path = closing.enter_context(file.remote.spooled())
        yield closing.enter_context(io.FileIO(_local(path)))


def _local(path: Path | Address) -> Path:
    if isinstance(path, Address):
        raise TypeError(f"{path} is no file on a disk")
    return path


class _Unpacked(io.RawIOBase):
    """What a packed file holds, up to what a file of its size can hold."""

    def __init__(self, file: SourceFile, stream: IO[bytes]) -> None:
        self._stream = stream
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
        self._file = file
        self._n_bytes = 0
        self._limit = max(_MOST_UNPACKED, _MOST_TIMES_PACKED * file.size)

    def add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        if self._n_bytes > self._limit:
            limit = (
                f"{_MOST_TIMES_PACKED} times its size and {_MOST_UNPACKED >> 20} MiB"
            )
            problem = f"unpacks to more than {limit}"
            way_out = "unpack it, and leave out what comes again and again"
            raise BadInputError(self._file.path, problem, way_out)


@contextmanager
def open_text(
    file: SourceFile, reading: Reading, newline: str = ""
) -> Iterator[io.TextIOWrapper]:
    with open_bytes(file) as stream:
        marked = books.read_byte_order_mark(stream.peek(4)[:4])
        encoding = marked or reading.encoding or "utf-8"
        try:
            yield io.TextIOWrapper(stream, encoding=encoding, newline=newline)
        except UnicodeDecodeError as error:
            raise _not_decodable(file, encoding) from error


def read_lines(file: SourceFile, reading: Reading) -> Iterator[bytes]:
    """Iterate over the lines of a text file in UTF-8, with their ends; UTF-8 is not checked."""
    with open_bytes(file) as stream:
        marked = books.read_byte_order_mark(stream.peek(4)[:4])
        if (marked or reading.encoding or "utf-8").startswith("utf-8"):
            stream.read(len(codecs.BOM_UTF8) if marked else 0)
            yield from limit_lines(file, stream.readline)
            return
    with open_text(file, reading, "\n") as text:
        for line in limit_lines(file, text.readline):
            yield line.encode()


def limit_lines(file: SourceFile, readline: Callable[[int], Any]) -> Iterator[Any]:
    """Iterate over lines; one without end, which would fill the memory, is refused."""
    while line := readline(LONGEST_RECORD + 1):
        if len(line) > LONGEST_RECORD:
            raise _too_long(file, "line", LONGEST_RECORD)
        yield line


def _too_long(file: SourceFile, unit: str, limit: int) -> BadInputError:
    problem = f"has a {unit} of more than {limit >> 20} MiB"
    return BadInputError(file.path, problem, "cut it into several texts")


def check_width(place: Path | Address | str, n_columns: int) -> None:
    if n_columns > MOST_COLUMNS:
        problem = (
            f"has {n_columns:,} columns, of which at most {MOST_COLUMNS:,} can be read"
        )
        raise BadInputError(place, problem, "leave out those that are not needed")


def _not_decodable(file: SourceFile, encoding: str) -> EncodingError:
    label = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8"}.get(encoding, encoding)
    way_out = "save the file as UTF-8"
    with open_bytes(file) as stream:
        decoder = codecs.getincrementaldecoder(encoding)()
        for number, line in enumerate(limit_lines(file, stream.readline), 1):
            try:
                decoder.decode(line)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                problem = f"byte 0x{byte:02x} is not valid {label}"
                return EncodingError(f"{file.path}, line {number}", problem, way_out)
    return EncodingError(file.path, f"ends within a character of {label}", way_out)


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
_EXTENSIONS = (
    f"one of {', '.join(KINDS)}; JSON, CSV and TSV also with {', '.join(PACKED)}"
)
_EXTENSIONS += "; save PDF and word processors' files as one of these"


def find_files(path: Path | str) -> Source:
    """Find the files behind a path."""
    # A folder is read with its subfolders, less hidden ones (names that begin with
    # ``.`` or ``_``) and run folders (they hold a ``run.json``). A path that does not
    # exist is tried as a glob, in which ``**`` stands for any folders.
    location = str(path)
    if is_url(location):
        listing = list_address(location)
        if isinstance(listing, Path):
            note = f"{location} is read from the hub's cache, {listing}, as far as it is there"
            return replace(find_files(listing), notes=(note,))
        return _build_remote_source(location, listing)
    if not location or "\0" in location or not _is_unicode(location):
        raise CorpusError(
            f"{location!r} is not a path; give a file, a folder or a glob"
        )
    scheme = re.match(r"(?:s3|gs|az|hf|https?):/(?!/)", location)
    if scheme is not None and not _exists(location):
        raise CorpusError(
            f"an address {scheme[0]}/... was made a path; give it as a string"
        )
    is_long = len(location.split()) > _MOST_WORDS
    if is_long and find_kind(PurePath(location)) is None and not _exists(location):
        raise CorpusError(
            f"{reprlib.repr(location)} is no path but looks like a text; give a file, a"
            " folder or a glob, or in Python a list of texts or a DataFrame"
        )
    try:
        base, paths = _expand(location)
        paths.sort(key=lambda file: file.relative_to(base).parts)
        return _build_source(location, base, paths)
    except (OSError, RuntimeError) as error:  # the latter: "~name" is nobody's home
        place = getattr(error, "filename", None) or location
        raise CorpusError(
            f"{place} cannot be read: {getattr(error, 'strerror', error)}"
        ) from error


def digest_files(files: Iterable[SourceFile]) -> dict[str, str]:
    """Compute the SHA-256 of each file, by its name."""
    files = tuple(files)
    names = [file.name for file in files]
    try:
        digests = side_by_side(_compute_digest, files)
        return dict(zip(names, digests, strict=True))
    except OSError as error:
        raise CorpusError(
            f"{error.filename} cannot be read: {error.strerror}"
        ) from error


def describe_addresses(files: Iterable[SourceFile]) -> dict[str, dict[str, Any]]:
    """Return what servers said of files that are not on a disk, by their names."""
    remote_files = {file.name: file.remote for file in files}
    return {
        name: remote.describe()
        for name, remote in remote_files.items()
        if remote is not None
    }


def _compute_digest(file: SourceFile) -> str:
    if file.remote is not None:
        return file.remote.compute_sha256()
    return digest(_local(file.path))


def combine_digests(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of SHA-256 digests in their order: 64 hexadecimal digits."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()


def find_base(location: str) -> Path:
    """Return the folder that the names of the files behind a path are relative to."""
    path = Path(location).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        return path.parent
    return Path(*takewhile(lambda part: not glob.has_magic(part), path.parts[:-1]))


def _expand(location: str) -> tuple[Path, list[Path]]:
    """Return the folder that names are relative to, and the candidate files."""
    path = Path(location).expanduser()
    base = find_base(location)
    if path.is_dir():
        return base, list(_walk(path))
    if path.exists() and find_kind(path) is None:
        raise CorpusError(f"{path} has an unknown extension; it must be {_EXTENSIONS}")
    if path.exists():
        return base, [path]
    if not glob.has_magic(location):
        raise CorpusError(f"{location} does not exist; give a file, a folder or a glob")
    matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    return base, [match for match in matches if not match.is_dir()]


def _exists(location: str) -> bool:
    """Return whether it is a path or a glob of some, however long it is; nothing is raised."""
    place = os.path.expanduser(location)  # noqa: PTH111 - as above
    return os.path.exists(place) or bool(glob.glob(place, recursive=True))  # noqa: PTH110, PTH207 - as above


def _walk(folder: Path) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=stop):
        if "run.json" in names and Path(root) != folder:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = Path(root, name)
            is_read = not _is_marked(path) or find_kind(path) is not None
            if is_read and not name.startswith("."):
                yield path


def _is_marked(path: Path) -> bool:
    """Return whether a folder's file is not read, as ``_SUCCESS`` of other tools."""
    return path.name.startswith("_")


def _group_by_kind(
    paths: list[Path], *, in_folder: bool
) -> dict[Kind | None, list[Path]]:
    """Return paths by how they are read; None holds those that are ignored."""
    kinds: dict[Kind | None, list[Path]] = {}
    for path in paths:
        kind = None if in_folder and _is_marked(path) else find_kind(path)
        kinds.setdefault(kind, []).append(path)
    if "columnar" in kinds and in_folder:
        for kind, is_beside in (("columnar", is_cache), ("jsonl", is_description)):
            for path in kinds.pop(kind, []):
                kinds.setdefault(None if is_beside(path) else kind, []).append(path)
    return kinds


def is_description(path: PurePath | Address) -> bool:
    """Return whether the datasets library wrote a file beside tables: it is no data."""
    return path.name in DESCRIPTIONS


def is_cache(path: PurePath | Address) -> bool:
    """Return whether a file keeps what the datasets library computed from the tables beside it."""
    return _CACHE.fullmatch(path.name) is not None


_CACHE = re.compile(r"cache-[0-9a-f]{16}(?:_\d{5}_of_\d{5})?\.arrow")
_SPLIT = re.compile(r"(train|training|test|validation|valid|val|dev)(?:[._-].*)?")


def _describe_splits(names: Sequence[str]) -> list[str]:
    """Return a sentence where the files are of several splits of a data set."""
    splits = dict[str, str]()
    for name in names:
        matches = map(_SPLIT.fullmatch, reversed(PurePath(name.lower()).parts))
        for match in matches:
            if match is not None:
                splits.setdefault(match[1], name)
                break
    if len(splits) < 2:
        return []
    listing = ", ".join(sorted(splits))
    return [
        f"the files are of the splits {listing}, and all are read as one corpus; name"
        f" those of one by a pattern to read it alone, such as {next(iter(splits))}*"
    ]


def _build_source(location: str, base: Path, candidates: list[Path]) -> Source:
    in_folder = Path(location).expanduser().is_dir()
    kinds = _group_by_kind(candidates, in_folder=in_folder)
    ignored = tuple(kinds.pop(None, ()))
    if not kinds:
        raise CorpusError(
            f"{location} holds no file that can be read as a corpus; the extension must be"
            f" {_EXTENSIONS}"
        )
    if len(kinds) > 1:
        raise _mixes_kinds(location, (str(paths[-1]) for paths in kinds.values()))
    ((kind, paths),) = kinds.items()
    is_alone = paths == [Path(location).expanduser()]
    files: list[SourceFile] = []
    unreadable: list[BadInputError] = []
    second_names = _find_second_names(paths)
    for path in paths:
        try:
            file = _check_file(path, base)
            if not is_alone:
                _refuse_link_out(base, path)
            if path in second_names:
                ignored = (*ignored, path)
            else:
                files.append(file)
        except BadInputError as error:
            unreadable.append(error)
        except OSError as error:
            if not in_folder:
                raise
            problem = f"cannot be read: {error.strerror}"
            way_out = "restore or remove the file"
            unreadable.append(BadInputError(path, problem, way_out))
    return Source(
        location=location,
        kind=cast("Kind", kind),
        files=tuple(files),
        ignored=ignored,
        unreadable=tuple(unreadable),
        notes=tuple(_describe_splits([file.name for file in files])),
    )


def _build_remote_source(location: str, listing: Listing) -> Source:
    """Return the files of a listing, by the rules that hold for a folder or a pattern here."""
    entries = {
        entry.name: entry
        for entry in sorted(listing.entries, key=lambda entry: entry.name.split("/"))
    }
    if not entries:
        raise CorpusError(
            f"{location} holds no file; check the address, and what the credentials"
            " allow"
        )
    names = list(map(Path, entries))
    kinds = _group_by_kind(names, in_folder=listing.is_folder)
    ignored = [entries[name.as_posix()].address for name in kinds.pop(None, ())]
    if not kinds:
        raise CorpusError(
            f"{location} holds no file that can be read as a corpus; the extension must"
            f" be {_EXTENSIONS}"
        )
    if len(kinds) > 1:
        raise _mixes_kinds(location, (paths[-1].as_posix() for paths in kinds.values()))
    ((kind, paths),) = kinds.items()
    files = []
    for name in (path.as_posix() for path in paths):
        opened = entries[name].open()
        if isinstance(opened, Path):  # in the hub's cache
            size = opened.stat().st_size
            files.append(SourceFile(path=opened, name=name, size=size))
            continue
        files.append(
            SourceFile(
                path=opened.address,
                name=name,
                size=opened.stamp.size or 0,
                remote=opened,
            )
        )
    return Source(
        location=location,
        kind=cast("Kind", kind),
        files=tuple(files),
        ignored=tuple(ignored),
        notes=(*listing.notes, *_describe_splits([file.name for file in files])),
    )


def _mixes_kinds(location: str, examples: Iterable[str]) -> CorpusError:
    return CorpusError(
        f"{location} mixes kinds of files, such as {' and '.join(examples)}; give files"
        " of one kind"
    )


def _find_second_names(paths: Sequence[Path]) -> set[Path]:
    """Return further names of files beside them: links to them, or what sorts later."""
    # Two links to one blob of a cache of the hub are two files of a data set
    first_names = set[tuple[Path, int, int]]()
    second_names = set[Path]()
    for path in sorted(paths, key=Path.is_symlink):
        with suppress(OSError):  # which is said where the file is opened
            status = path.stat()
            identity = path.parent, status.st_dev, status.st_ino
            if identity in first_names:
                second_names.add(path)
            elif not path.is_symlink():
                first_names.add(identity)
    return second_names


_PARTITION = re.compile(r"([A-Za-z_]\w*)=(.*)")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def parse_partition(file: SourceFile) -> dict[str, str | None]:
    """Return the columns that the folders of a file name, as in ``member=1/part.parquet``."""
    matches = map(_PARTITION.fullmatch, PurePath(file.name).parts[:-1])
    values = {match[1]: unquote(match[2]) for match in matches if match}
    return {
        name: None if value == _NULL_PARTITION else value
        for name, value in values.items()
    }


def _refuse_link_out(base: Path, path: Path) -> None:
    """Refuse a link to a file elsewhere, which a stranger's folder may hold: it must be named."""
    folder = base.resolve()
    # Of a cache of the hub, whose files are links to its blobs
    if "snapshots" in folder.parts:
        folder = Path(*takewhile(lambda part: part != "snapshots", folder.parts))
    target = path.resolve()
    if not target.is_relative_to(folder):
        problem = f"is a link to {target}, which lies outside of {base}"
        way_out = "give that file itself as a corpus, or a copy of it in the folder"
        raise BadInputError(path, problem, way_out)


def find_kind(path: PurePath) -> Kind | None:
    """Return how a file is read, by its name; None if it is not."""
    is_packed = path.suffix.lower() in PACKED
    unpacked = PurePath(path.stem) if is_packed else path
    kind = KINDS.get(unpacked.suffix.lower())
    return None if is_packed and kind not in _PACKABLE else kind


def _check_file(path: Path, base: Path) -> SourceFile:
    if not _is_unicode(str(path)):
        problem = "its name is not valid UTF-8"
        raise BadInputError(show_path(path), problem, "rename the file")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CorpusError(
            f"{path} is not a regular file; give a file, a folder or a glob"
        )
    path.open("rb").close()  # refuses what this user may not read
    name = path.relative_to(base).as_posix()
    return SourceFile(path=path, name=name, size=status.st_size)


def show_path(path: Path | Address) -> str:
    """Return a path as text; a name on a disk may hold any bytes."""
    return (
        str(path).encode("utf-8", "surrogateescape").decode(errors="backslashreplace")
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
_ERRORS = (
    OSError,
    FooterError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


def agreed_schema(schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """Merge the schemas of files, by path; a column that is null throughout fits any type."""
    (first, merged), *later = schemas.items()
    for path, schema in later:
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


def read_columnar_schema(files: Sequence[SourceFile], _reading: Reading) -> pl.Schema:
    schemas = {}
    for file in files:
        with _refusing(file), _scanned(file) as rows:
            schema = rows.collect_schema()
        check_width(file.path, len(schema))
        schemas[str(file.path)] = schema
    return agreed_schema(schemas)


def read_columnar_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Iterate over the rows of all files in order, a slice at a time."""
    expressions = [pl.col(name).cast(schema[name]) for name in columns]
    for file in files:
        with _refusing(file), _scanned(file) as stored:
            height = _count_rows(stored.select(expressions))
        step = min(max(1, height * _SLICE_BYTES // max(file.size, 1)), _SLICE_ROWS)
        volume = Volume(file)
        with closing(_open_parts(file, columns, height, reading)) as parts:
            for part in parts:
                rows = part.rows.select(expressions)
                for start in range(part.first, part.end, step):
                    n_rows = min(step, part.end - start)
                    if not _has_drawn_rows(file, reading, start, start + n_rows):
                        continue
                    first_row = start
                    for batch in _read_slice(file, rows, start, n_rows):
                        volume.add(_count_unfolded_bytes(batch))
                        chosen = _choose_rows(file, reading, first_row, batch)
                        first_row += batch.height
                        yield from _small_frames(file, chosen)


def _read_slice(
    file: SourceFile, rows: pl.LazyFrame, start: int, n_rows: int
) -> Iterator[pl.DataFrame]:
    table = rows.slice(start, n_rows)
    try:
        # Streamed, since a row group of some bytes may unpack to a gigabyte.
        yield from table.collect_batches(chunk_size=_FRAME_ROWS, maintain_order=True)
    except _ERRORS as error:
        row = start + _find_broken_row(table, n_rows) + 1
        problem = f"is broken at row {row}: {_first_line(error)}"
        raise BadInputError(file.path, problem, "restore the file") from error


class _Part(NamedTuple):
    """Rows of a file that can be read now; the others of the table cannot."""

    rows: pl.LazyFrame
    first: int
    end: int


def _open_parts(
    file: SourceFile, columns: Sequence[str], height: int, reading: Reading
) -> Generator[_Part, None, None]:
    """Iterate over what can be read at a time: a file here, or a row group of one elsewhere."""
    if not _has_row_groups(file):
        with _scanned(file) as rows:
            yield _Part(rows, 0, height)
        return
    remote = cast("RemoteFile", file.remote)
    with _refusing(file):
        footer = read_footer(remote)
        if footer.n_rows != height:
            raise FooterError("its row groups do not have as many rows as it says")
    groups = iterate_groups(
        remote, footer, columns, partial(_has_drawn_rows, file, reading)
    )
    with closing(groups):
        for path, first, n_rows in groups:
            yield _Part(_scan(file, path), first, first + n_rows)


def _has_row_groups(file: SourceFile) -> bool:
    """Return whether a file can be read by its row groups, at an address that has ranges."""
    is_parquet = file.path.suffix.lower() == ".parquet"
    return file.remote is not None and file.remote.has_ranges and is_parquet


@contextmanager
def _scanned(file: SourceFile) -> Iterator[pl.LazyFrame]:
    """Open a file's table; of one at an address that is read by row groups, no row is there."""
    if file.remote is None:
        yield _scan(file, _local(file.path))
    elif _has_row_groups(file):
        with only_footer(file.remote, read_footer(file.remote)) as path:
            yield _scan(file, path)
    else:
        with file.remote.spooled() as path:
            yield _scan(file, path)


def _has_drawn_rows(file: SourceFile, reading: Reading, start: int, stop: int) -> bool:
    if reading.drawn is None:
        return True
    first, last = reading.drawn[file].searchsorted([start, stop])
    return bool(first < last)


def _choose_rows(
    file: SourceFile, reading: Reading, first_row: int, batch: pl.DataFrame
) -> pl.DataFrame:
    """Return the rows of a batch that are read, of which the first has this number."""
    if reading.drawn is None:
        return batch
    numbers = reading.drawn[file]
    first, last = numbers.searchsorted([first_row, first_row + batch.height])
    if first == last:
        return batch.clear()
    # Rows of a frame share its memory, all of which would be kept with one of them
    copy = io.BytesIO()
    chosen = batch[numbers[first:last] - first_row]
    chosen.write_ipc_stream(copy, compat_level=pl.CompatLevel.oldest())
    copy.seek(0)
    return pl.read_ipc_stream(copy).cast(batch.schema)


def _small_frames(file: SourceFile, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut rows into frames, since engines read some of them ahead, whatever their size."""
    row_bytes = max(1, _count_unfolded_bytes(rows) // max(1, rows.height))
    frame_rows = max(1, min(_FRAME_ROWS, _FRAME_BYTES // row_bytes))
    for frame in rows.iter_slices(frame_rows):
        if frame.height == 1 and _count_unfolded_bytes(frame) > LONGEST_RECORD:
            raise _too_long(file, "row", LONGEST_RECORD)
        yield frame


def _count_unfolded_bytes(rows: pl.DataFrame) -> int:
    """Count bytes as they are where each row has its own text; those of a dictionary share it."""
    texts = rows.select(pl.col(pl.String).str.len_bytes().cast(pl.UInt64).sum())
    return max(int(rows.estimated_size()), sum(texts.row(0)) if texts.width else 0)


def _scan(file: SourceFile, path: Path) -> pl.LazyFrame:
    """Open a file where it lies; a stream of Arrow batches, as `datasets` writes, is read whole."""
    if file.path.suffix.lower() == ".parquet":
        return pl.scan_parquet(path, glob=False, hive_partitioning=False)
    with path.open("rb") as start:
        is_file = start.read(len(_ARROW_FILE)) == _ARROW_FILE
    return pl.scan_ipc(path) if is_file else pl.read_ipc_stream(path).lazy()


def _find_columnar_places(file: SourceFile, _reading: Reading) -> Iterator[str]:
    with _scanned(file) as rows:
        n_rows = _count_rows(rows)
    for row in range(n_rows):
        yield f"{file.path}, row {row + 1}"


def _count_rows(rows: pl.LazyFrame) -> int:
    return int(rows.select(pl.len()).collect().item())


def _find_broken_row(rows: pl.LazyFrame, length: int) -> int:
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
        problem = f"cannot be read as {kind}: {_first_line(error)}"
        raise BadInputError(file.path, problem, "restore the file") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


# Delimited files: commas or tabs, with a header, quoted as in RFC 4180.
#
# They have no types and no null: every column is text, and an empty field is null. Blank lines are
# skipped. The reader is Python's, in its strict mode, because it refuses what others repair.

_BATCH_CHARS = 4 << 20


def read_csv_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    schemas = {}
    for file in files:
        _, header = next(_csv_records(file, reading), ("", []))
        if not header:
            raise BadInputError(
                file.path, "is empty", "its first line must name the columns"
            )
        check_width(file.path, len(header))
        if len(header) == 1 and ";" in header[0]:
            raise BadInputError(
                file.path,
                f"has one column, {reprlib.repr(header[0])}, so semicolons seem to stand"
                " between its fields",
                "save it with commas, or as .tsv with tabs",
            )
        for number, name in enumerate(header, 1):
            if not name or name in header[: number - 1]:
                fault = (
                    f"is named {name!r} like one before it" if name else "has no name"
                )
                problem = f"column {number} {fault}"
                place = f"{file.path}, line 1"
                raise BadInputError(place, problem, "give it a name of its own")
        schemas[str(file.path)] = pl.Schema(dict.fromkeys(header, pl.String()))
    return agreed_schema(schemas)


def read_csv_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Iterate over the rows of all files in order, some megabytes at a time."""
    values = [pl.when(pl.col(name) != "").then(pl.col(name)) for name in columns]
    for file in files:
        records = _csv_records(file, reading)
        _, header = next(records, ("", []))
        chosen = reading.choose(file, records)
        for batch in in_batches(chosen, _count_characters, _BATCH_CHARS):
            fields = zip(*(record for _, record in batch), strict=True)
            frame = pl.DataFrame(
                dict(zip(header, fields, strict=True)), schema_overrides=schema
            )
            yield frame.select(values)


def _count_characters(record: tuple[str, list[str]]) -> int:
    return sum(map(len, record[1]))


def _csv_records(file: SourceFile, reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """Iterate over the place and fields of records: the header, then those with as many fields."""
    place, n_columns = f"{file.path}, line 1", 0
    with open_text(file, reading) as text:
        lines = _RecordLines(file, text)
        has_tabs = ".tsv" in file.path.name.lower()
        reader = csv.reader(lines, strict=True, delimiter="\t" if has_tabs else ",")
        try:
            while (record := _next_record(reader)) is not None:
                lines.begin_record()
                n_columns = n_columns or len(record)
                if len(record) == n_columns > 0:
                    yield place, record
                elif record:
                    problem = f"{len(record)} fields where the header has {n_columns}"
                    reading.reject(_broken(place, problem))
                place = f"{file.path}, line {reader.line_num + 1}"
        except csv.Error as error:
            raise _broken(place, f"not valid CSV, {error}") from error


class _RecordLines:
    """The lines of a delimited file, of which a quoted record may have any number."""

    def __init__(self, file: SourceFile, text: IO[str]) -> None:
        self._file = file
        self._lines = limit_lines(file, text.readline)
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
    limit = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


# JSON: an object or a text per line, or an array of them; blank lines are skipped, a missing key is
# null.
#
# A first pass parses every record strictly and learns the columns; Polars then reads the rows with
# these columns, so that the first rows do not decide what type a column has. ``NaN`` and
# ``Infinity``, which Python's ``json`` writes, are null.

_BATCH_BYTES = 4 << 20
_READ_CHARS = 1 << 20
_START = 64  # bytes in which an array begins
# Byte-order marks of UTF-8 and UTF-16, blanks
_BEFORE_START = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"
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


def read_jsonl_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    """Return every key of every record with the one type that all its values have."""
    # Of each key the types of its values, and where each type comes first
    types: dict[str, dict[type, str]] = {}
    for file in files:
        for place, record in _json_records(file, reading):
            try:
                parsed = _parse_record(place, record)
            except BadInputError as error:
                if reading.rejected is None:
                    _refuse_long_object(file, error)
                reading.reject(error)
                continue
            check_width(place, len(parsed))
            for name, value in parsed.items():
                is_long = type(value) is int and not -(2**63) <= value < 2**63
                value_type = _LongInteger if is_long else type(value)
                types.setdefault(name, {}).setdefault(value_type, place)
            check_width(place, len(types))
    return pl.Schema(
        {name: _column_type(name, places) for name, places in types.items()}
    )


def _refuse_long_object(file: SourceFile, error: BadInputError) -> None:
    """Refuse an object that is written over several lines, whose lines are no records."""
    is_open = re.search("EOF while parsing (?!a string)", error.problem)
    if is_open and error.place == f"{file.path}, line 1":
        raise BadInputError(
            file.path,
            "begins with an object that goes on over several lines",
            "write one object a line (jq -c . FILE)",
        ) from error


def read_jsonl_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Iterate over the rows of all files, some megabytes at a time, nested values as JSON."""
    types = {
        name: pl.String() if schema[name] == pl.Object else schema[name]
        for name in columns
    }
    for file in files:
        records = reading.choose(file, _json_records(file, reading))
        for batch in in_batches(records, lambda record: len(record[1]), _BATCH_BYTES):
            yield _read_batch(batch, types, reading)


def _json_records(file: SourceFile, reading: Reading) -> Iterator[_JsonRecord]:
    """Iterate over the records that were not rejected, with their places, counted from 1."""
    with open_bytes(file) as stream:
        is_array = stream.peek(1)[:_START].lstrip(_BEFORE_START).startswith(b"[")
    records = _array_items(file, reading) if is_array else _json_lines(file, reading)
    for place, record in records:
        if reading.is_passed_over(place):
            continue
        check_values(place, record)
        if b"NaN" in record or b"Infinity" in record:
            with suppress(ValueError):  # which the strict parser will say
                record = to_json(from_json(record), inf_nan_mode="null")  # noqa: PLW2901 - the same record, as JSON
        if record.lstrip().startswith(b'"'):  # a text alone
            with suppress(ValueError):
                record = to_json({"text": from_json(record.strip())})  # noqa: PLW2901 - the same record, as JSON
        yield place, record


def peek_jsonl_schema(file: SourceFile, reading: Reading) -> pl.Schema:
    """Return the columns of the first record of a file, and their types there."""
    record = next((record for _, record in _json_records(file, reading)), b"{}")
    try:
        values = from_json(record)
    except ValueError:
        return pl.Schema()
    if not isinstance(values, dict):
        return pl.Schema()
    return pl.Schema({name: _peek_type(value) for name, value in values.items()})


def _peek_type(value: object) -> pl.DataType:
    if isinstance(value, list | dict):
        return pl.Object()
    return pl.String() if value is None else pl.Series([value]).dtype


def _json_lines(file: SourceFile, reading: Reading) -> Iterator[_JsonRecord]:
    for number, line in enumerate(read_lines(file, reading), 1):
        if not line.isspace():
            yield f"{file.path}, line {number}", line


def check_values(place: str, record: str | bytes) -> None:
    """Refuse JSON whose values take many times the memory of their text."""
    if has_too_many_values(record.encode() if isinstance(record, str) else record):
        problem = f"holds more than {MOST_VALUES:,} values"
        raise BadInputError(place, problem, "leave out those that are not needed")


def _array_items(file: SourceFile, reading: Reading) -> Iterator[_JsonRecord]:
    """Iterate over the items of an array, reading on where the next one may be cut short."""
    decoder = json.JSONDecoder()
    with open_text(file, reading) as text:
        buffer = text.read(_READ_CHARS)
        position, number = buffer.index("[") + 1, 1
        while True:
            place = f"{file.path}, item {number}"
            position = _BETWEEN_ITEMS.match(buffer, position).end()  # type: ignore[union-attr] # it matches
            if buffer.startswith("]", position):
                if (buffer[position + 1 :] + text.read(_READ_CHARS)).strip():
                    raise _broken(place, "there is text after the array", "array")
                return
            problem: ValueError | None = None
            try:
                item, item_end = decoder.raw_decode(buffer, position)
            except ValueError as error:
                item, item_end, problem = None, len(buffer), error
            if item_end == len(buffer):
                # Twice as much each time, or a long item would be parsed for each of
                # its parts.
                size = max(_READ_CHARS, len(buffer) - position)
                continuation = text.read(size)
                if continuation:
                    buffer, position = buffer[position:] + continuation, 0
                    if len(buffer) > LONGEST_RECORD:
                        excess = f"more than {LONGEST_RECORD >> 20} MiB"
                        raise _broken(place, excess, "item")
                    check_values(place, buffer)
                    continue
            if problem is not None:
                raise _broken(place, f"not valid JSON, {problem}", "item")
            yield place, json.dumps(item).encode()
            position, number = item_end, number + 1


def _broken(place: str, problem: str, unit: str = "line") -> BadInputError:
    return BadInputError(place, problem, f"correct or remove the {unit}")


def _parse_record(place: str, line: bytes) -> dict[str, object]:
    try:
        record = from_json(line.strip(), allow_inf_nan=False)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as decode_error:
            byte = line[decode_error.start]
            problem = f"byte 0x{byte:02x} is not valid UTF-8"
            raise EncodingError(place, problem, "save the file as UTF-8") from error
        reason = str(error).replace(" at line 1 column", " at column")
        raise _broken(place, f"not valid JSON, {reason}") from error
    if not isinstance(record, dict):
        raise _broken(place, "not a JSON object")
    repeated = _find_repeated_key(line, record)
    if repeated:
        problem = f"two keys {repeated!r} in one object, of which one would be lost"
        raise _broken(place, problem)
    return record


def _find_repeated_key(line: bytes, record: Mapping[str, object]) -> str | None:
    """Find a key that an object has twice; most lines show at a glance that they have none."""
    quoted = (b'"%s"' % name.encode(errors="ignore") for name in record)
    n_quoted = sum(map(line.count, quoted))
    if n_quoted <= len(record) and not _ESCAPED_LETTER.search(line):
        return None

    def first_repeated(pairs: list[tuple[str, object]]) -> str | None:
        counts = Counter(name for name, _ in pairs)
        return next((name for name, count in counts.items() if count > 1), None)

    # The hook is called for inner objects first, so the last answer is that of the
    # record.
    return cast("str | None", json.loads(line, object_pairs_hook=first_repeated))


def _column_type(name: str, places: Mapping[type, str]) -> pl.DataType:
    """Return the type of a column whose values' types come first at these places."""
    first_word = first_place = ""
    dtypes: list[type[pl.DataType]] = []
    for value_type, place in places.items():
        if value_type is type(None):
            continue
        word, dtype = _JSONKINDS[value_type]
        if not dtypes:
            first_word, first_place = word, place
        elif word != first_word:
            raise CorpusError(
                f"column {name!r} is {first_word} in {first_place}, but {word} in"
                f" {place}; give it one type"
            )
        dtypes.append(dtype)
    for wide in (pl.Float64, pl.String):
        if wide in dtypes:
            return wide()
    return dtypes[0]() if dtypes else pl.Null()


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
_NO_TEXT = re.compile(
    rb"(?i)(\xef\xbb\xbf)?\s*(%PDF-|\{\\rtf|<!doctype"
    rb" html|<html|PK\x03\x04|\xd0\xcf\x11\xe0)"
)
_DECLARED = re.compile(
    r"^\W*(?:character set (?:en)?cod\w+|[ck]odierung|encodage|codific\w+|encoding)["
    r" \t]*:(.*)",
    re.IGNORECASE | re.MULTILINE,
)


def read_book_rows(
    files: Sequence[SourceFile],
    schema: pl.Schema,
    columns: Sequence[str],
    reading: Reading,
) -> Iterator[pl.DataFrame]:
    """Iterate over rows, one a file; line ends of texts are kept, a byte-order mark is not."""
    needs_content = set(columns) != {"document_id"}
    rows = (
        _read_book_row(file, reading) if needs_content else {"document_id": file.name}
        for file in files
        for _ in reading.choose(file, [file])
    )
    for batch in in_batches(
        rows, lambda row: len(row.get("text", "")) + _ROW_BYTES, _BATCH_BYTES
    ):
        yield pl.DataFrame(batch, schema=schema).select(columns)


def _read_book_row(file: SourceFile, reading: Reading) -> dict[str, Any]:
    with open_bytes(file) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        try:
            book = _read_book(file, stream, reading.encoding)
        except books.BookError as error:
            problem, _, way_out = str(error).rpartition("; ")
            if error.line is None:
                raise BadInputError(file.path, problem, way_out) from error
            place = f"{file.path}, line {error.line}"
            raise EncodingError(place, problem, way_out) from error
    text, left_out = books.tidy(book.text)
    left_out.update(book.left_out)
    span = books.find_book(text)
    return {
        "document_id": file.name,
        "text": text[span.start : span.end],
        "title": book.title or span.title,
        "author": book.author or span.author,
        "isbn": book.isbn,
        "sha256": sha256,
        "n_characters": len(text) + left_out["characters"],
        "cut_start": span.start,
        "cut_inside": left_out["characters"],
        "cut_end": len(text) - span.end,
        **{name: left_out[name] for name in books.LEFT_OUT},
        "chapters": list(_locate_chapters(book, len(text), span)),
    }


def _locate_chapters(
    book: books.Book, n_tidied: int, span: books.BookSpan
) -> Iterator[dict[str, Any]]:
    """Iterate over chapters as they begin in the text that is left, as if cuts were spread."""
    for start, heading in book.chapters:
        place = start * n_tidied // max(1, len(book.text)) - span.start
        if place < span.end - span.start:
            yield {"start": max(0, place), "heading": heading}


def _read_book(file: SourceFile, stream: IO[bytes], encoding: str | None) -> books.Book:
    extension = file.path.suffix.lower()
    if extension == ".epub":
        return books.read_epub(stream, encoding)
    content = stream.read(books.MOST_CHARS + 1)
    if extension != ".txt":
        return books.read_html(content, encoding)
    if len(content) > books.MOST_CHARS:
        raise books.BookError(
            f"is longer than {books.MOST_CHARS >> 20} MiB; split the book"
        )
    if _NO_TEXT.match(content):
        way_out = "save its text, or name a page of HTML .html"
        raise books.BookError(
            f"is PDF, RTF, HTML, an archive or of a word processor; {way_out}"
        )
    header = content[:_HEADER_BYTES].decode("ascii", "replace")
    declaration = _DECLARED.search(header) if "gutenberg" in header.lower() else None
    names = re.findall(r"[\w.-]+", declaration[1]) if declaration else []
    declared = next(filter(books.find_codec, reversed(names)), None)
    return books.Book(books.decode(content, declared=declared, fallback=encoding))


class Format(NamedTuple):
    """How one kind of file is read."""

    # The type ``Object`` stands for JSON arrays and objects; rows hold them as JSON
    # text.
    read_schema: Callable[[Sequence[SourceFile], Reading], pl.Schema]
    read_rows: Callable[
        [Sequence[SourceFile], pl.Schema, Sequence[str], Reading],
        Iterator[pl.DataFrame],
    ]
    # Where each row of a file is, as a user counts
    places_in: Callable[[SourceFile, Reading], Iterable[str]]

    def places(self, files: Sequence[SourceFile], reading: Reading) -> Iterator[str]:
        for file in files:
            yield from self.places_in(file, reading)


FORMATS: dict[Kind, Format] = {
    "columnar": Format(
        read_columnar_schema,
        read_columnar_rows,
        _find_columnar_places,
    ),
    "jsonl": Format(
        read_jsonl_schema,
        read_jsonl_rows,
        lambda file, reading: (place for place, _ in _json_records(file, reading)),
    ),
    "csv": Format(
        read_csv_schema,
        read_csv_rows,
        lambda file, reading: (
            place for place, _ in islice(_csv_records(file, reading), 1, None)
        ),
    ),
    "books": Format(
        lambda *_: _SCHEMA, read_book_rows, lambda file, _: [str(file.path)]
    ),
}
