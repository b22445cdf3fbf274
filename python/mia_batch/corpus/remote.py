"""Files that are read over a network: in pieces, again where one is cut, hashed as read."""

from __future__ import annotations

import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mia_batch.corpus.addresses import Address
from mia_batch.errors import CorpusError

_FIRST_PIECE = 1 << 20  # the first pieces of a file are small: some ask for no more
_LARGEST_PIECE = 64 << 20
_MOST_ATTEMPTS = 6
_PROGRESS = 1 << 20  # bytes after which attempts are counted anew
_LONGEST_WAIT = 60.0  # seconds, whatever a server asks for
_SLOWEST = 1 << 10  # bytes a second, over so many seconds:
_SLOW_SECONDS = 60.0
_MOST_UNSIZED = 4 << 30  # bytes of a file whose size is not said
_MOST_SPOOLED = 1 << 30  # bytes of a file that can only be read whole


class TransientError(Exception):
    """A request failed in a way that may pass; ``wait`` is what the server asks for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a server says of a file's content: it has another one when that changes."""

    size: int | None = None
    etag: str | None = None
    version: str | None = None
    modified: str | None = None
    revision: str | None = None  # commit of a data set at the hub

    @property
    def is_sure(self) -> bool:
        """Whether equal stamps mean equal content, as far as the server can be believed."""
        is_strong = self.etag is not None and not self.etag.startswith("W/")
        return bool(is_strong or self.version or self.revision)

    def is_same(self, other: Stamp) -> bool:
        """Return whether a server says the same of a file; dates count where there is no ETag."""
        if self.revision is not None:  # what a commit holds stays
            return (self.size, self.revision) == (other.size, other.revision)
        if (self.size, self.etag) != (other.size, other.etag):
            return False
        return self.version == other.version and (
            self.etag is not None or self.modified == other.modified
        )


_digests: dict[tuple[str, Stamp], str] = {}
"""SHA-256 of files that were read whole in this process."""

Bytes = Generator[bytes, None, None]
Ask = Callable[[int, int | None], Bytes]
"""Send one request for the bytes from a start to a stop (None: the end), in pieces.

It raises `TransientError` where the same request may succeed later, and `CorpusError` where the
file's stamp is not the one it had, or the file is refused.
"""


@dataclass(slots=True)
class RemoteFile:
    """A file at an address, whose content may not change while it is read.

    ``ask`` sends a request; ``expected`` is the SHA-256 that a hub has recorded.
    """

    address: Address
    stamp: Stamp
    ask: Ask
    has_ranges: bool = True
    expected: str | None = None
    sha256: str | None = None  # of the content, once it was read whole
    kept_end: bytes = b""  # a few bytes that are needed again and again

    def __post_init__(self) -> None:
        if self.stamp.is_sure:
            self.sha256 = _digests.get((self.address.url, self.stamp))

    def describe(self) -> dict[str, Any]:
        """Return what ``run.json`` has of the file besides its SHA-256."""
        facts = {"address": self.address.url} | asdict(self.stamp)
        return {name: fact for name, fact in facts.items() if fact is not None}

    def changed(self, what: str) -> CorpusError:
        return CorpusError(
            f"{self.address} changed while it was read ({what}); give a version of it"
            " that stays, or a copy on a disk"
        )

    def read(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Iterate over the bytes of a part; what is cut or refused for now is asked again."""
        stop = self.stamp.size if stop is None else stop
        if start == stop:
            return
        position = start
        progress = _Progress(self.address)
        prefix = hashlib.sha256()  # of what was given, where a part cannot be asked for
        while True:
            try:
                pieces = self._ask_from(position, stop, prefix)
                with closing(pieces):
                    for piece in progress.watch(pieces):
                        position += len(piece)
                        self._check_position(position, stop)
                        if not self.has_ranges:
                            prefix.update(piece)
                        yield piece
            except TransientError as error:
                progress.wait_after(error)
                continue
            if stop is None or position == stop:
                return
            early_end = TransientError(f"it ended after {position:,} bytes")
            progress.wait_after(early_end)

    def _check_position(self, position: int, stop: int | None) -> None:
        if stop is not None and position > stop:
            raise self.changed(f"it has more than {stop:,} bytes")
        if stop is None and position > _MOST_UNSIZED:
            raise CorpusError(
                f"{self.address} sent more than {_MOST_UNSIZED >> 30} GiB without saying"
                " how long it is; give a copy on a disk"
            )

    def _ask_from(self, position: int, stop: int | None, prefix: Any) -> Bytes:
        """Ask for what is missing of a part; without ranges, for all of it again."""
        if self.has_ranges:
            yield from self.ask(position, stop)
            return
        n_before = position
        again = hashlib.sha256()
        with closing(self.ask(0, None)) as pieces:
            for piece in pieces:
                n_repeated = min(n_before, len(piece))
                again.update(piece[:n_repeated])
                n_before -= n_repeated
                if n_repeated and not n_before and again.digest() != prefix.digest():
                    raise self.changed("a second answer began otherwise")
                if n_repeated < len(piece):
                    yield piece[n_repeated:]
        if n_before:
            raise self.changed("a second answer was shorter")

    def read_pieces(self) -> Bytes:
        """Iterate over the whole file in requests of bounded size, and remember its SHA-256."""
        hashing = Hashing(self)
        if not self.has_ranges or self.stamp.size is None:
            for piece in self.read():
                hashing.add(hashing.position, piece)
                yield piece
            hashing.finish()
            return
        start, length = 0, _FIRST_PIECE
        while start < self.stamp.size:
            stop = min(start + length, self.stamp.size)
            for piece in self.read(start, stop):
                hashing.add(hashing.position, piece)
                yield piece
            start, length = stop, min(2 * length, _LARGEST_PIECE)
        hashing.finish()

    def open(self) -> io.RawIOBase:
        return _RemoteStream(self)

    def compute_sha256(self) -> str:
        """Return the SHA-256 of the content; it is read for it unless it was read before."""
        if self.sha256 is None:
            for _ in self.read_pieces():
                pass
        return str(self.sha256)

    def record_sha256(self, digest: str) -> None:
        """Remember the SHA-256 of a whole reading; refuse one that differs from before."""
        if self.expected not in (None, digest):
            raise CorpusError(
                f"{self.address} has the SHA-256 {digest}, and the hub says"
                f" {self.expected}; fetch it again, or ask who keeps the data set"
            )
        if self.sha256 not in (None, digest):
            raise self.changed("a second reading had another SHA-256")
        self.sha256 = digest
        if self.stamp.is_sure:
            _digests[self.address.url, self.stamp] = digest

    @contextmanager
    def spooled(self) -> Iterator[Path]:
        """Lend a temporary copy of the file, for kinds that can only be read whole."""
        size = self.stamp.size
        if size is not None and size > _MOST_SPOOLED:
            raise self._too_long_to_spool()
        with tempfile.TemporaryFile() as copy:
            n_bytes = 0
            for piece in self.read_pieces():
                n_bytes += len(piece)
                if n_bytes > _MOST_SPOOLED:
                    raise self._too_long_to_spool()
                write_temporary(copy, piece)
            yield find_temporary(copy)

    def _too_long_to_spool(self) -> CorpusError:
        reason = "Arrow files can only be read whole"
        if not self.has_ranges:
            reason = "its server sends no ranges, so it can only be read whole"
        return CorpusError(
            f"{self.address} has more than {_MOST_SPOOLED >> 30} GiB, and {reason}; give"
            " it as JSON Lines, or a copy on a disk"
        )


class Entry(NamedTuple):
    """A file that a listing names; ``open`` returns it, or its path where a cache has it."""

    name: str  # below the folder or pattern that was asked for
    address: Address
    open: Callable[[], RemoteFile | Path]


class Listing(NamedTuple):
    """The files behind an address, before it is known which of them are read."""

    entries: tuple[Entry, ...]
    is_folder: bool  # not a file or a pattern
    notes: tuple[str, ...] = ()


MOST_FILES = 200_000


def refuse_long_listing(address: str, n_files: int) -> None:
    if n_files > MOST_FILES:
        raise CorpusError(
            f"{address} holds more than {MOST_FILES:,} files; name a folder of it, or a"
            " pattern in one"
        )


def find_temporary(file: Any) -> Path:
    """Return a path by which this process opens a file that has no name, so that none is left."""
    return Path(f"/proc/self/fd/{file.fileno()}")


def write_temporary(file: Any, content: bytes) -> None:
    try:
        file.write(content)
        file.flush()
    except OSError as error:
        raise CorpusError(
            f"{tempfile.gettempdir()} cannot take a part of the texts for a moment:"
            f" {error.strerror}; make room, or set TMPDIR to a folder that has some"
        ) from error


class _Progress:
    """Counts failures of a reading, and how fast bytes come."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._n_failures = 0
        self._n_bytes = 0  # since the last failure

    def watch(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Pass pieces on; raise where they trickle, the time between two asked for left out."""
        seconds, n_bytes = 0.0, 0
        while True:
            began = time.monotonic()
            piece = next(pieces, None)
            seconds += time.monotonic() - began
            if piece is None:
                return
            n_bytes += len(piece)
            self._n_bytes += len(piece)
            yield piece
            if seconds >= _SLOW_SECONDS:
                if n_bytes < _SLOWEST * seconds:
                    raise TransientError("it sends less than 1 KiB a second")
                seconds, n_bytes = 0.0, 0

    def wait_after(self, error: TransientError) -> None:
        """Wait before the next attempt; raise where there were enough of them."""
        self._n_failures = 1 if self._n_bytes >= _PROGRESS else self._n_failures + 1
        self._n_bytes = 0
        if self._n_failures >= _MOST_ATTEMPTS:
            raise CorpusError(
                f"{self._address} cannot be read: {error.reason}, {_MOST_ATTEMPTS} times"
                " in a row; check the address and the network, and give the same"
                " command again"
            ) from None
        pause(min(_LONGEST_WAIT, error.wait or 2.0 ** (self._n_failures - 1) / 2))


def pause(seconds: float) -> None:
    time.sleep(seconds)


def retry(address: Address, request: Callable[[], Any]) -> Any:
    """Return the answer to a small request, sent again where it fails for now."""
    progress = _Progress(address)
    while True:
        try:
            return request()
        except TransientError as error:
            progress.wait_after(error)


class Hashing:
    """Hashes a file whose parts are read in order; gaps are for who reads to fill."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.position = 0
        self.is_whole = True  # as long as no part was left out

    def add(self, start: int, content: bytes) -> None:
        if start == self.position:
            self._sha256.update(content)
            self.position += len(content)
        else:
            self.is_whole = False

    def finish(self) -> None:
        """Record the SHA-256 of a file of which no part was left out."""
        is_at_end = self._file.stamp.size in (None, self.position)
        if self.is_whole and is_at_end:
            self._file.record_sha256(self._sha256.hexdigest())


class _RemoteStream(io.RawIOBase):
    """A remote file as a stream of bytes, which can be read from its start again."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._pieces = file.read_pieces()
        self._buffer = memoryview(b"")
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._buffer:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._buffer = memoryview(piece)
        content = self._buffer[: len(buffer)]
        buffer[: len(content)] = content
        self._buffer = self._buffer[len(content) :]
        self._position += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) == (0, io.SEEK_CUR):
            return self._position
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("it can only be read from its start")
        self._close_pieces()
        self._pieces = self._file.read_pieces()
        self._buffer = memoryview(b"")
        self._position = 0
        return 0

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._close_pieces()
        super().close()

    def _close_pieces(self) -> None:
        self._pieces.close()
