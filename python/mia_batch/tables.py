"""Tables and files of a run: read in bounded memory, checked, and written whole or not at all."""

import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from mmap import mmap
from pathlib import Path
from typing import IO, Any, TypeVar

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from mia_batch.errors import DamagedTableError, RunFolderError, SchemaMismatchError
from mia_batch.schemas import ExtractedDocuments, LogProbs, Rollup, Samples

_Number = TypeVar("_Number", bound=np.generic)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def mapped_zeros(size: int, dtype: type[_Number]) -> NDArray[_Number]:
    """Return a row of zeros whose memory the system has back as soon as it is freed."""
    # Allocators keep what is freed, the more the larger it was (glibc raises its
    # threshold for mapping with every large block that is freed), so that a long run's
    # memory grows.
    length = max(1, size * np.dtype(dtype).itemsize)  # nothing cannot be mapped
    return np.frombuffer(mmap(-1, length), dtype, size)


def in_batches(
    items: Iterable[_Item], size: Callable[[_Item], int], limit: int
) -> Iterator[list[_Item]]:
    """Yield items in order, in lists that end with the item that brings their size to the limit."""
    batch: list[_Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise RunFolderError with the system's reason where ``path`` cannot be written."""
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:
        if (number := system_number(error)) is None:
            raise
        remedy = "make the folder" if number == errno.ENOENT else "make room"
        raise RunFolderError(
            f"{path} cannot be written: {os.strerror(number)}; {remedy} or choose"
            " another folder"
        ) from error


def system_number(error: BaseException) -> int | None:
    """Return the system's number of an error."""
    # Polars passes the system's errors on in its own, with their number in the text.
    number: int | None = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return number


READ_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    DamagedTableError,
)
"""What is raised where a file is not what it should be."""


def is_whole(path: Path) -> bool:
    """Tell whether a Parquet file has its end, which one that was cut short has not."""
    descriptor = os.open(path, os.O_RDONLY)  # a third of the time of path.open()
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, 8, max(0, size - 8))
    finally:
        os.close(descriptor)
    return end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") + 12 <= size


def is_sound(path: Path) -> bool:
    """Tell whether every row and column of a Parquet file can be decoded; costs one read of it."""
    # Bytes that changed where any value is possible are not found: Polars writes no
    # checksums. An OSError says nothing of the file: the system refused to read it.
    path.open("rb").close()
    try:
        frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        for _ in frame.collect_batches():
            pass
    except READ_ERRORS as error:
        if (number := system_number(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        return False
    return True


# Files that are there whole or not at all.

_ROOM_ASKED_FOR = 1 << 20
_followers: dict[Path, Any] = {}


@contextmanager
def followed(folder: Path, follower: Any) -> Iterator[None]:
    """Let a follower learn of each change below a folder before it is visible."""
    # ``put(path, content)``: a file gets the content of another, which is never written
    # again; ``put_copy(path, content)``: what a file that is written in place holds
    # now; ``remove(path)``: a file goes. What it raises prevents the change.
    _followers[folder] = follower
    try:
        yield
    finally:
        del _followers[folder]


def _follower_of(path: Path) -> Any:
    return next(
        (_followers[folder] for folder in path.parents if folder in _followers), None
    )


def is_followed(path: Path) -> bool:
    return _follower_of(path) is not None


def put_copy(path: Path, content: Path) -> None:
    """Show who follows a file that is written in place what it holds now."""
    if (follower := _follower_of(path)) is not None:
        follower.put_copy(path, content)


def write_table(table: pl.DataFrame, path: Path) -> None:
    with replacing(path) as stream:
        table.write_parquet(stream)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically, its line ends as they are."""
    with replacing(path) as stream:
        stream.write(text.encode())
    sync_folder(path.parent)


def remove(path: Path) -> None:
    if (follower := _follower_of(path)) is not None and path.exists():
        follower.remove(path)
    path.unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Give a file of a run another name, atomically; a file of that name is replaced."""
    if (follower := _follower_of(to)) is not None:
        follower.put(to, path)
        follower.remove(path)
    path.replace(to)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder in which none is at work."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def replacing(
    path: Path, place: Callable[[Path, Path], object] = Path.replace
) -> Iterator[IO[bytes]]:
    """Open a temporary file next to ``path`` that replaces it, or is ``place``d there."""
    # It is passed on open: by name, Polars might create it again after a failure, from
    # a thread.
    temporary = temporary_path(path)
    with system_errors(path):
        try:
            with temporary.open("wb") as stream:
                try:
                    yield stream
                except pl.exceptions.ComputeError:
                    # Polars hides what the system says where a footer finds no room.
                    stream.write(bytes(_ROOM_ASKED_FOR))
                    stream.flush()
                    raise
                stream.flush()
                os.fsync(stream.fileno())
            if (follower := _follower_of(path)) is not None:
                follower.put(path, temporary)
            place(temporary, path)
        finally:
            with suppress(OSError):  # gone already, or the folder never was
                temporary.unlink()


def temporary_path(path: Path) -> Path:
    """Name what is written next to ``path`` until it is whole; `remove_unfinished` knows it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def sync_folder(folder: Path) -> None:
    with system_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


MOST_VALUES = 2 << 20


def has_too_many_values(text: bytes) -> bool:
    """Whether JSON has so many arrays, objects and items that they fill the memory."""
    is_long = len(text) > MOST_VALUES
    return is_long and sum(map(text.count, (b"[", b"{", b","))) > MOST_VALUES


_THREADS = 8  # more than cores: a disk answers several at once
_ITEMS_IN_FLIGHT = 1024


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def side_by_side(
    function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Yield the results of a function that waits for the disk, in the order of the items."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in in_batches(items, lambda _: 1, _ITEMS_IN_FLIGHT):
            yield from pool.map(function, batch)


_YOUNGER: dict[type[dy.Schema], tuple[str, ...]] = {
    Samples: ("raw",),
    LogProbs: ("bounded", "trained", "top_logprob"),
    ExtractedDocuments: ("passages_20", "passages_50"),
    Rollup: ("n_passages_20", "n_passages_50", "passages_from"),
}
"""Columns that tables of earlier runs do not have; there they are null."""


def check(
    frame: pl.DataFrame | pl.LazyFrame, schema: type[dy.Schema], *, what: str
) -> None:
    """Check that a table has the columns of a schema, without reading it."""
    present = frame.lazy().collect_schema()
    wanted = _columns(schema)
    faults = [f"{name!r} is missing" for name in wanted if name not in present]
    for name, dtype in wanted.items():
        if (found := present.get(name, dtype)) != dtype:
            faults.append(f"{name!r} is {found} instead of {dtype}")
    if faults:
        raise SchemaMismatchError(
            f"{what} is not a {schema.__name__} table: {', '.join(faults)}"
        )


@cache
def _columns(schema: type[dy.Schema]) -> pl.Schema:
    return schema.create_empty().schema


def _with_later_choices(frame: pl.LazyFrame, schema: type[dy.Schema]) -> pl.LazyFrame:
    """Widen the enumerations of an earlier version, which had fewer categories."""
    wanted, older = _columns(schema), dict[str, pl.DataType]()
    for name, found in frame.collect_schema().items():
        dtype = wanted.get(name)
        if isinstance(found, pl.Enum) and isinstance(dtype, pl.Enum) and found != dtype:
            older |= {name: dtype} if {*found.categories} <= {*dtype.categories} else {}
    return frame.cast(older) if older else frame  # type: ignore[arg-type]


def scan(path: Path | Sequence[Path], schema: type[dy.Schema]) -> pl.LazyFrame:
    """Open a Parquet file, several, or a folder of parts in the order of their names, lazily."""
    files = path if isinstance(path, Sequence) else [path]
    if isinstance(path, Path) and path.is_dir():
        files = sorted(path.glob("*.parquet"))
    if not files:
        return schema.create_empty().lazy()
    where = files[0].parent if isinstance(path, Sequence) else path
    opened = partial(pl.scan_parquet, [*files], glob=False, hive_partitioning=False)
    frame = opened()
    try:
        if younger := {
            name: _columns(schema)[name] for name in _YOUNGER.get(schema, ())
        }:
            whole = {**frame.collect_schema(), **younger}
            frame = opened(schema=whole, missing_columns="insert")
        frame = _with_later_choices(frame, schema)
        check(frame, schema, what=str(where))
    except (OSError, pl.exceptions.PolarsError) as error:
        number = system_number(error)
        raise (DamagedTableError if number is None else RunFolderError)(
            f"{where} cannot be read as a table:"
            f" {error if number is None else os.strerror(number)}; give the audit's"
            " command again, which rebuilds it"
        ) from error
    return frame


def generate(
    schema: pl.Schema, frames: Callable[[list[str] | None], Iterator[pl.DataFrame]]
) -> pl.LazyFrame:
    """Make a lazy table from a function that yields its rows in order."""
    # It runs from its start each time the table is collected.

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        names = with_columns or schema.names()
        for frame in frames(with_columns):
            batch = frame.select(names).head(frame.height if left is None else left)
            yield batch if predicate is None else batch.filter(predicate)
            if left is not None and (left := left - batch.height) == 0:
                return

    return register_io_source(source, schema=schema)


_ROWS_AT_ONCE = 65536
_BUCKETS = 256
_BUCKET_SHIFT = 56  # the highest byte of a hash names its bucket


class RowIndex:
    """The rows of a table by the hash of a key, in their order; rows without key are left out."""

    # It takes 12 bytes a row, also while it is built. Keys are known by 64 bits of
    # their hash: of a million foreign keys, the chance that one is taken for one of a
    # million rows' is 5 in 100 million.

    def __init__(self, keys: pl.LazyFrame) -> None:
        self.height = int(keys.select(pl.len()).collect(engine="streaming").item())
        counts = np.zeros(_BUCKETS, np.int64)
        for _, sizes in _parts(keys, self.height):
            counts += sizes
        starts = np.cumsum(counts) - counts
        self._hashes = mapped_zeros(int(counts.sum()), np.uint64)
        self._rows = mapped_zeros(int(counts.sum()), np.uint32)
        free = starts.copy()
        for part, counts in _parts(
            keys, self.height
        ):  # to its bucket's first free index
            before = np.cumsum(counts) - counts
            indices = np.arange(part.height) + np.repeat(free - before, counts)
            self._hashes[indices], self._rows[indices] = part["hash"], part["row"]
            free += counts
        buckets = (np.split(array, starts[1:]) for array in (self._hashes, self._rows))
        for hashes, rows in zip(
            *buckets, strict=True
        ):  # one by one, so that little is held twice
            order = np.argsort(hashes, kind="stable")
            hashes[:], rows[:] = hashes[order], rows[order]

    @property
    def n_keys(self) -> int:
        """Rows that have a key."""
        return self._hashes.size

    @property
    def unique(self) -> bool:
        """Whether no two rows have the same key."""
        return not bool((self._hashes[1:] == self._hashes[:-1]).any())

    def count(self, keys: pl.Series) -> NDArray[np.int64]:
        """Count the rows of each key; 0 for null."""
        first, last = self._bounds(keys)
        return last - first

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find every row of each key: indices into ``keys``, ascending, and the rows."""
        first, last = self._bounds(keys)
        counts = last - first
        which = np.repeat(np.arange(counts.size), counts)
        within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, self._rows[first[which] + within]

    def _bounds(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        runs = keys.hash().rle()  # equal keys mostly stand together
        hashes, lengths = (
            runs.struct.field(name).to_numpy() for name in ("value", "len")
        )
        first = np.repeat(np.searchsorted(self._hashes, hashes, side="left"), lengths)
        last = np.repeat(np.searchsorted(self._hashes, hashes, side="right"), lengths)
        return first, np.where(keys.is_null().to_numpy(), first, last)


def _parts(
    keys: pl.LazyFrame, height: int
) -> Iterator[tuple[pl.DataFrame, NDArray[np.int64]]]:
    """Yield ``hash`` and ``row`` of rows with a key, sorted by hash, and the sizes of buckets."""
    key = pl.col(keys.collect_schema().names()[0])
    for start in range(0, height, _ROWS_AT_ONCE):
        part = keys.slice(start, _ROWS_AT_ONCE).select(
            hash=key.hash(), there=key.is_not_null()
        )
        numbered = part.with_row_index("row", start).filter("there")
        found = numbered.sort("hash", maintain_order=True).collect()
        buckets = found["hash"].to_numpy() >> _BUCKET_SHIFT
        yield found, np.bincount(buckets, minlength=_BUCKETS)


# Small row groups keep the memory of writers and readers of long texts low.
_ROW_GROUP_ROWS = 8192


def sink(
    frame: pl.LazyFrame | pl.DataFrame, path: Path, schema: type[dy.Schema]
) -> None:
    """Write a table to Parquet, streamed and atomically."""
    # The same rows give the same bytes. A lazy table is never held whole in memory.
    sink_all({path: frame}, schema)


def sink_all(
    frames: Mapping[Path, pl.LazyFrame | pl.DataFrame],
    schema: type[dy.Schema],
    place: Callable[[Path, Path], object] = Path.replace,
) -> None:
    """Write several tables as `sink` does, in one query: of small ones, each costs a third less."""
    # A process that is killed in between leaves some of them.
    for path, frame in frames.items():
        check(frame, schema, what=path.name)
    with ExitStack() as streams:
        sinks = [
            frame.lazy().sink_parquet(
                streams.enter_context(replacing(path, place)),
                compression="zstd",
                compression_level=1,
                row_group_size=_ROW_GROUP_ROWS,
                statistics=False,  # they would repeat whole texts
                lazy=True,
            )
            for path, frame in frames.items()
        ]
        pl.collect_all(sinks)
    for folder in {path.parent for path in frames}:
        sync_folder(folder)


def sink_new(
    frame: pl.LazyFrame | pl.DataFrame, path: Path, schema: type[dy.Schema]
) -> bool:
    """Write a table as `sink` does unless another process wrote it first, and say which it was."""
    wrote = True

    def place(temporary: Path, path: Path) -> None:
        nonlocal wrote
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            wrote = False
        except OSError:  # the file system has no links
            wrote = not path.exists()
            if wrote:
                temporary.replace(path)

    sink_all({path: frame}, schema, place)
    return wrote


def sink_frames(
    frames: Iterable[pl.DataFrame], path: Path, schema: type[dy.Schema]
) -> None:
    """Write a table that is made of at least one frame to Parquet, atomically."""
    # Rows go to parts in a temporary folder first, and from there to the table: so what
    # makes the frames and Polars' writer never need their memory at the same time.
    parts = temporary_path(path)
    with system_errors(path):
        parts.mkdir()
        try:
            groups = in_batches(frames, lambda frame: frame.height, _ROW_GROUP_ROWS)
            for number, group in enumerate(groups):
                part = parts / f"{number:08d}.parquet"
                pl.concat(group).write_parquet(part, statistics=False)
            files = sorted(parts.iterdir())
            columns = pl.scan_parquet(files[0], glob=False).collect_schema()
            read = partial(pl.read_parquet, glob=False)
            whole = generate(columns, lambda _: map(read, files))
            sink(whole, path, schema)
        finally:
            shutil.rmtree(parts, ignore_errors=True)


_MOST_AT_ONCE = 9  # each may hold parts of some 25 MB


@contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls in threads, 4 to 9 at once: half as many again as cores."""
    # It waits where all threads are busy, so that no more arguments wait than are
    # worked on. It raises what an earlier call raised; where the block raises, calls
    # that have not begun are dropped.
    at_once = min(max(2, pl.thread_pool_size()) * 3 // 2 + 1, _MOST_AT_ONCE)
    running: set[Future[object]] = set()

    def run(function: Callable[..., object], *arguments: object) -> None:
        if len(running) >= at_once:
            for call in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(call)
                call.result()
        running.add(pool.submit(function, *arguments))

    pool = ThreadPoolExecutor(at_once)
    try:
        yield run
        for call in running:
            call.result()
    finally:
        pool.shutdown(cancel_futures=True)


_NUMBERS_AT_ONCE = 32_768


def read_numbers(
    table: pl.LazyFrame, column: pl.Expr, size: int, dtype: type[_Number]
) -> NDArray[_Number]:
    """Read one column of ``size`` numbers, batch by batch; with float64, null is NaN."""
    numbers, end = mapped_zeros(size, dtype), 0
    batches = table.select(column).collect_batches(
        chunk_size=_NUMBERS_AT_ONCE, maintain_order=True
    )
    for batch in batches:
        start, end = end, end + batch.height
        numbers[start:end] = batch.to_series().to_numpy()
    return numbers


def read_finite(table: pl.LazyFrame, name: str, size: int) -> NDArray[np.float64]:
    """Read a column of ``size`` scores as `read_numbers` does; NaN where none is finite."""
    found = read_numbers(table, pl.col(name).cast(pl.Float64), size, np.float64)
    found[~np.isfinite(found)] = np.nan
    return found
