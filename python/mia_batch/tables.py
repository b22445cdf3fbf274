"""Tables and files of a run: read in bounded memory, written whole or not at all."""

import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache, partial
from mmap import mmap
from pathlib import Path
from typing import IO, Any, TypeVar

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from mia_batch.errors import DamagedTableError, RunFolderError, SchemaMismatchError
from mia_batch.schemas import Table

_Number = TypeVar("_Number", bound=np.generic)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def mapped_zeros(size: int, dtype: type[_Number]) -> NDArray[_Number]:
    """Return zeros whose memory the system has back as soon as it is freed."""
    # Allocators keep what is freed, the more the larger it was (glibc raises its
    # threshold for mapping with every large block that is freed), so that a long run's
    # memory grows.
    length = max(1, size * np.dtype(dtype).itemsize)  # nothing cannot be mapped
    return np.frombuffer(mmap(-1, length), dtype, size)


def in_batches(
    items: Iterable[_Item],
    size: Callable[[_Item], int],
    limit: int,
) -> Iterator[list[_Item]]:
    """Iterate over lists of items in order, each as long as it takes to reach a limit.

    The last item of a list brings the sum of their sizes to the limit or above.
    """
    batch: list[_Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch = []
            total = 0
    if batch:
        yield batch


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise RunFolderError with the system's reason where ``path`` cannot be written."""
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:
        number = system_number(error)
        if number is None:
            raise
        remedy = "make the folder" if number == errno.ENOENT else "make room"
        raise RunFolderError(
            f"{path} cannot be written: {os.strerror(number)}; {remedy} or choose"
            " another folder"
        ) from error


def system_number(error: BaseException) -> int | None:
    """Return the system's number of an error; None if it is none of the system."""
    number: int | None = getattr(error, "errno", None)
    if number is not None:
        return number
    # Polars passes the system's errors on in its own, with their number in the text.
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


READ_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    DamagedTableError,
)
"""Errors of a file that is not what it should be."""


def is_whole(path: Path) -> bool:
    """Return whether a Parquet file has its end, and so was not cut short."""
    descriptor = os.open(path, os.O_RDONLY)  # a third of the time of path.open()
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, 8, max(0, size - 8))
    finally:
        os.close(descriptor)
    return end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") + 12 <= size


def is_sound(path: Path) -> bool:
    """Return whether a Parquet file can be decoded, by reading it once.

    An OSError says nothing of the file: the system refused to read it.
    """
    # Bytes that changed where any value is possible are not found: Polars writes no
    # checksums.
    path.open("rb").close()
    try:
        frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        for _ in frame.collect_batches():
            pass
    except READ_ERRORS as error:
        number = system_number(error)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        return False
    return True


# Files that exist whole or not at all.

_TEST_BYTES = 1 << 20  # written where a writer's own error hides the system's
_followers: dict[Path, Any] = {}


@contextmanager
def followed(folder: Path, follower: Any) -> Iterator[None]:
    """Let a follower learn of each change below a folder before it is visible."""
    # ``put(path, content)``: a file gets the content of another, which is never written
    # again; ``put_copy(path, content)``: the present content of a file that is written
    # in place; ``remove(path)``: a file is removed. Its errors prevent the change.
    _followers[folder] = follower
    try:
        yield
    finally:
        del _followers[folder]


def _find_follower(path: Path) -> Any:
    for folder in path.parents:
        if folder in _followers:
            return _followers[folder]
    return None


def is_followed(path: Path) -> bool:
    return _find_follower(path) is not None


def put_copy(path: Path, content: Path) -> None:
    """Show a follower the present content of a file that is written in place."""
    follower = _find_follower(path)
    if follower is not None:
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
    follower = _find_follower(path)
    if follower is not None and path.exists():
        follower.remove(path)
    path.unlink(missing_ok=True)


def move(path: Path, new_path: Path) -> None:
    """Move a file of a run, atomically; a file of the new name is replaced."""
    follower = _find_follower(new_path)
    if follower is not None:
        follower.put(new_path, path)
        follower.remove(path)
    path.replace(new_path)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder that nobody writes to."""
    for path in folder.glob(".*.tmp"):
        if not re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def replacing(
    path: Path, place: Callable[[Path, Path], object] = Path.replace
) -> Iterator[IO[bytes]]:
    """Open a temporary file next to ``path`` that ``place`` then puts there."""
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
                    stream.write(bytes(_TEST_BYTES))
                    stream.flush()
                    raise
                stream.flush()
                os.fsync(stream.fileno())
            follower = _find_follower(path)
            if follower is not None:
                follower.put(path, temporary)
            place(temporary, path)
        finally:
            with suppress(OSError):  # it was placed, or the folder does not exist
                temporary.unlink()


def temporary_path(path: Path) -> Path:
    """Return a new name next to ``path``, which `remove_unfinished` recognises."""
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
    """Return whether JSON has so many values that they fill the memory."""
    if len(text) <= MOST_VALUES:
        return False
    n_values = text.count(b"[") + text.count(b"{") + text.count(b",")
    return n_values > MOST_VALUES


_THREADS = 8  # more than cores: a disk answers several at once
_ITEMS_IN_FLIGHT = 1024


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def side_by_side(
    function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Iterate over results of a function that waits for the disk, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in in_batches(items, lambda _: 1, _ITEMS_IN_FLIGHT):
            yield from pool.map(function, batch)


def check(
    frame: pl.DataFrame | pl.LazyFrame,
    schema: type[dy.Schema],
    *,
    name: str,
) -> None:
    """Check that a table has the columns of a schema, without reading it."""
    present = frame.lazy().collect_schema()
    columns = _columns(schema)
    faults = [f"{column!r} is missing" for column in columns if column not in present]
    for column, dtype in columns.items():
        present_dtype = present.get(column, dtype)
        if present_dtype != dtype:
            faults.append(f"{column!r} is {present_dtype} instead of {dtype}")
    if faults:
        raise SchemaMismatchError(
            f"{name} is not a {schema.__name__} table: {', '.join(faults)}"
        )


@cache
def _columns(schema: type[dy.Schema]) -> pl.Schema:
    return schema.create_empty().schema


def _with_later_choices(frame: pl.LazyFrame, schema: type[dy.Schema]) -> pl.LazyFrame:
    """Widen the enumerations of an earlier version, which had fewer categories."""
    columns = _columns(schema)
    widened: dict[str, pl.DataType] = {}
    for name, old_dtype in frame.collect_schema().items():
        dtype = columns.get(name)
        if not (isinstance(old_dtype, pl.Enum) and isinstance(dtype, pl.Enum)):
            continue
        is_subset = {*old_dtype.categories} <= {*dtype.categories}
        if old_dtype != dtype and is_subset:
            widened[name] = dtype
    return frame.cast(widened) if widened else frame  # type: ignore[arg-type]


def scan(path: Path | Sequence[Path], schema: type[Table]) -> pl.LazyFrame:
    """Open a table lazily: a Parquet file, several, or a folder of parts by name."""
    files = path if isinstance(path, Sequence) else [path]
    if isinstance(path, Path) and path.is_dir():
        files = sorted(path.glob("*.parquet"))
    if not files:
        return schema.create_empty().lazy()
    place = files[0].parent if isinstance(path, Sequence) else path
    try:
        states = _file_states(files)
        rows = None if states is None else _read_small(states, schema, place)
        return _open(files, schema, place) if rows is None else rows
    except (OSError, pl.exceptions.PolarsError) as error:
        number = system_number(error)
        error_type = DamagedTableError if number is None else RunFolderError
        cause = error if number is None else os.strerror(number)
        raise error_type(
            f"{place} cannot be read as a table: {cause}; give the audit's command"
            " again, which rebuilds it"
        ) from error


def _open(files: Sequence[Path], schema: type[Table], place: Path) -> pl.LazyFrame:
    open_files = partial(pl.scan_parquet, [*files], glob=False, hive_partitioning=False)
    frame = open_files()
    younger = {name: _columns(schema)[name] for name in schema.younger}
    if younger:
        columns = {**frame.collect_schema(), **younger}
        frame = open_files(schema=columns, missing_columns="insert")
    frame = _with_later_choices(frame, schema)
    check(frame, schema, name=str(place))
    return frame


# A run of few texts opens its small tables hundreds of times: to decode one takes
# longer than what is asked of it. Those that are kept take 64 MiB at most, and are read
# in one row group, as they would be otherwise.
_SMALL_BYTES = 1 << 16
_MOST_KEPT_BYTES = 1 << 20
_MOST_FILES = 16
_TICK_NS = 10_000_000
"""Files that changed within so short a time may have the same time of change."""


def _file_states(files: Sequence[Path]) -> tuple[tuple[Any, ...], ...] | None:
    """Return what tells files from all that replace them; None if large or just changed."""
    if len(files) > _MOST_FILES:
        return None
    stats = [file.stat() for file in files]
    if sum(stat.st_size for stat in stats) > _SMALL_BYTES:
        return None
    changed_last = max(stat.st_ctime_ns for stat in stats)
    if time.time_ns() - changed_last < _TICK_NS:
        return None
    return tuple(
        (file, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        for file, stat in zip(files, stats, strict=True)
    )


@lru_cache(maxsize=64)
def _read_small(
    states: tuple[tuple[Any, ...], ...], schema: type[Table], place: Path
) -> pl.LazyFrame | None:
    """Return the rows of small files in memory; None if they are many, or damaged."""
    table = _open([state[0] for state in states], schema, place)
    try:
        if table.select(pl.len()).collect().item() > _ROW_GROUP_ROWS:
            return None
        rows = table.collect()
    except (*READ_ERRORS, OSError):
        return None  # whoever reads it as any other table is told what is wrong
    return rows.lazy() if rows.estimated_size() <= _MOST_KEPT_BYTES else None


def generate(
    schema: pl.Schema, frames: Callable[[list[str] | None], Iterator[pl.DataFrame]]
) -> pl.LazyFrame:
    """Build a lazy table from a function that generates its rows in order."""
    # It runs from its start each time the table is collected.

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        n_left = n_rows
        names = with_columns or schema.names()
        for frame in frames(with_columns):
            batch = frame.select(names)
            if n_left is not None:
                batch = batch.head(n_left)
                n_left -= batch.height
            yield batch if predicate is None else batch.filter(predicate)
            if n_left == 0:
                return

    return register_io_source(source, schema=schema)


_ROWS_AT_ONCE = 65536
_BUCKETS = 256
_BUCKET_SHIFT = 56  # the highest byte of a hash is its bucket


class RowIndex:
    """The rows of a table by the hash of a key, in order; rows without key are left out."""

    # It takes 12 bytes a row, also while it is built. A key is recognised by 64 bits of
    # its hash: of a million foreign keys, the chance that one is taken for one of a
    # million rows' is 5 in 100 million.

    def __init__(self, keys: pl.LazyFrame) -> None:
        self.height = int(keys.select(pl.len()).collect(engine="streaming").item())
        sizes = np.zeros(_BUCKETS, np.int64)
        for _, counts in _hash_keys(keys, self.height):
            sizes += counts
        n_keys = int(sizes.sum())
        starts = np.cumsum(sizes) - sizes
        self._hashes = mapped_zeros(n_keys, np.uint64)
        self._rows = mapped_zeros(n_keys, np.uint32)
        free = starts.copy()  # the first free index of each bucket
        for batch, counts in _hash_keys(keys, self.height):
            first = np.cumsum(counts) - counts
            indices = np.arange(batch.height) + np.repeat(free - first, counts)
            self._hashes[indices] = batch["hash"]
            self._rows[indices] = batch["row"]
            free += counts
        buckets = zip(
            np.split(self._hashes, starts[1:]),
            np.split(self._rows, starts[1:]),
            strict=True,
        )
        for hashes, rows in buckets:  # one by one, so that little is held twice
            order = np.argsort(hashes, kind="stable")
            hashes[:] = hashes[order]
            rows[:] = rows[order]

    @property
    def n_keys(self) -> int:
        """Number of rows that have a key."""
        return self._hashes.size

    @property
    def unique(self) -> bool:
        """Whether no two rows have the same key."""
        return not bool((self._hashes[1:] == self._hashes[:-1]).any())

    def count(self, keys: pl.Series) -> NDArray[np.int64]:
        """Count the rows of each key; 0 for null."""
        first, end = self._bounds(keys)
        return end - first

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find every row of each key: indices into ``keys``, ascending, and the rows."""
        first, end = self._bounds(keys)
        counts = end - first
        key = np.repeat(np.arange(counts.size), counts)
        starts = np.cumsum(counts) - counts
        place_in_key = np.arange(key.size) - np.repeat(starts, counts)
        return key, self._rows[first[key] + place_in_key]

    def _bounds(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find where the rows of each key start and end among the hashes."""
        runs = keys.hash().rle().struct  # equal keys mostly stand together
        hashes = runs.field("value").to_numpy()
        lengths = runs.field("len").to_numpy()
        first_of_run = np.searchsorted(self._hashes, hashes, side="left")
        end_of_run = np.searchsorted(self._hashes, hashes, side="right")
        first = np.repeat(first_of_run, lengths)
        end = np.repeat(end_of_run, lengths)
        return first, np.where(keys.is_null().to_numpy(), first, end)


def _hash_keys(
    keys: pl.LazyFrame, height: int
) -> Iterator[tuple[pl.DataFrame, NDArray[np.int64]]]:
    """Iterate over ``hash`` and ``row`` of rows with a key, and the sizes of buckets.

    The rows of a batch are sorted by hash.
    """
    key = pl.col(keys.collect_schema().names()[0])
    for start in range(0, height, _ROWS_AT_ONCE):
        rows = keys.slice(start, _ROWS_AT_ONCE)
        hashed = rows.select(hash=key.hash(), has_key=key.is_not_null())
        with_key = hashed.with_row_index("row", start).filter("has_key")
        batch = with_key.sort("hash", maintain_order=True).collect()
        buckets = batch["hash"].to_numpy() >> _BUCKET_SHIFT
        yield batch, np.bincount(buckets, minlength=_BUCKETS)


# Small row groups keep the memory of writers and readers of long texts low.
_ROW_GROUP_ROWS = 8192


def sink(
    frame: pl.LazyFrame | pl.DataFrame,
    path: Path,
    schema: type[dy.Schema],
) -> None:
    """Write a table to Parquet, streamed and atomically."""
    # The same rows give the same bytes. A lazy table is never held whole in memory.
    sink_all({path: frame}, schema)


def sink_all(
    frames: Mapping[Path, pl.LazyFrame | pl.DataFrame],
    schema: type[dy.Schema],
    place: Callable[[Path, Path], object] = Path.replace,
) -> None:
    """Write several tables as `sink` does, in one query.

    Small tables cost a third less each. A process that is killed in between leaves some
    of them.
    """
    for path, frame in frames.items():
        check(frame, schema, name=path.name)
    with ExitStack() as streams:
        sinks = []
        for path, frame in frames.items():
            stream = streams.enter_context(replacing(path, place))
            sink = frame.lazy().sink_parquet(
                stream,
                compression="zstd",
                compression_level=1,
                row_group_size=_ROW_GROUP_ROWS,
                statistics=False,  # they would repeat whole texts
                lazy=True,
            )
            sinks.append(sink)
        pl.collect_all(sinks)
    for folder in {path.parent for path in frames}:
        sync_folder(folder)


def sink_new(
    frame: pl.LazyFrame | pl.DataFrame,
    path: Path,
    schema: type[dy.Schema],
) -> bool:
    """Write a table as `sink` does, and return whether no other process wrote it first."""
    is_first = True

    def place(temporary: Path, path: Path) -> None:
        nonlocal is_first
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            is_first = False
        except OSError:  # the file system has no links
            is_first = not path.exists()
            if is_first:
                temporary.replace(path)

    sink_all({path: frame}, schema, place)
    return is_first


def sink_frames(
    frames: Iterable[pl.DataFrame],
    path: Path,
    schema: type[dy.Schema],
) -> None:
    """Write a table that is made of at least one frame to Parquet, atomically."""
    # Rows go to parts in a temporary folder first, and from there to the table: so what
    # makes the frames and Polars' writer never need their memory at the same time.
    folder = temporary_path(path)
    with system_errors(path):
        folder.mkdir()
        try:
            groups = in_batches(frames, lambda frame: frame.height, _ROW_GROUP_ROWS)
            for number, group in enumerate(groups):
                part = folder / f"{number:08d}.parquet"
                pl.concat(group).write_parquet(part, statistics=False)
            parts = sorted(folder.iterdir())
            columns = pl.scan_parquet(parts[0], glob=False).collect_schema()
            read_part = partial(pl.read_parquet, glob=False)
            table = generate(columns, lambda _: map(read_part, parts))
            sink(table, path, schema)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_MOST_CALLS = 9  # each may hold parts of some 25 MB


@contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls in 4 to 9 threads, half as many again as cores."""
    # It waits where all threads are busy, so that no more arguments wait than are
    # worked on. It raises what an earlier call raised; where the block raises, calls
    # that have not begun are dropped.
    n_cores = max(2, pl.thread_pool_size())
    n_threads = min(n_cores * 3 // 2 + 1, _MOST_CALLS)
    running: set[Future[object]] = set()

    def run(function: Callable[..., object], *arguments: object) -> None:
        if len(running) >= n_threads:
            finished = wait(running, return_when=FIRST_COMPLETED).done
            for call in finished:
                running.remove(call)
                call.result()
        running.add(pool.submit(function, *arguments))

    pool = ThreadPoolExecutor(n_threads)
    try:
        yield run
        for call in running:
            call.result()
    finally:
        pool.shutdown(cancel_futures=True)


_NUMBERS_AT_ONCE = 32_768


def read_numbers(
    table: pl.LazyFrame,
    column: pl.Expr,
    size: int,
    dtype: type[_Number],
) -> NDArray[_Number]:
    """Read one column of ``size`` numbers, batch by batch; with float64, null is NaN."""
    numbers = mapped_zeros(size, dtype)
    batches = table.select(column).collect_batches(
        chunk_size=_NUMBERS_AT_ONCE, maintain_order=True
    )
    start = 0
    for batch in batches:
        end = start + batch.height
        numbers[start:end] = batch.to_series().to_numpy()
        start = end
    return numbers


def read_finite(
    table: pl.LazyFrame,
    name: str,
    size: int,
) -> NDArray[np.float64]:
    """Read a column of ``size`` scores as `read_numbers` does; NaN if not finite."""
    scores = read_numbers(table, pl.col(name).cast(pl.Float64), size, np.float64)
    scores[~np.isfinite(scores)] = np.nan
    return scores
