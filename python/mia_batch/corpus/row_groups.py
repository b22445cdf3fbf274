"""Parquet files at an address: their row groups, one at a time, as files for Polars."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mia_batch.corpus.remote import (
    Hashing,
    RemoteFile,
    find_temporary,
    write_temporary,
)

# Polars reads a file on a disk by mapping it, and needs of it the footer and the row groups that
# hold the rows it is asked for. So each row group is laid into a temporary file that is as long as
# the whole one and empty but for this group and the footer: it takes no room on the disk for the
# rest. The footer, which says where groups lie, is in Thrift's compact form.

_MAGIC = b"PAR1"
_TAIL = 8  # the footer's length and the magic
_FIRST_FOOTER = 1 << 16  # bytes that are asked for before its length is known
_MOST_FOOTER = 64 << 20
_MOST_DEPTH = 16
_MOST_VALUES = 4_000_000
_KEPT_FOOTER = 1 << 20
_SMALL_GAP = 1 << 18  # bytes that are read along rather than asked for apart
_SMALL_GROUPS = 32 << 20  # bytes of row groups that are laid into one file


class FooterError(ValueError):
    """The footer of a file is not one of Parquet, or not one that can be read in parts."""


class _ThriftReader:
    """Reads Thrift's compact protocol: a structure becomes a dictionary of its field numbers."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0
        self._n_values = 0

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while True:
            header = self._read_byte()
            if header == 0:
                return fields
            delta, kind = header >> 4, header & 15
            number = number + delta if delta else self._read_integer()
            # A boolean field has its value in its kind
            fields[number] = kind == 1 if kind in (1, 2) else self._read(kind, depth)

    def _read(self, kind: int, depth: int) -> Any:
        self._n_values += 1
        if self._n_values > _MOST_VALUES:
            raise FooterError(f"its footer has more than {_MOST_VALUES:,} values")
        if depth > _MOST_DEPTH:
            raise FooterError("its footer is nested too deep")
        if kind in (1, 2, 3):
            return self._read_byte()
        if kind in (4, 5, 6):
            return self._read_integer()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._read_varint())
        if kind in (9, 10):
            header = self._read_byte()
            count = header >> 4 if header >> 4 < 15 else self._read_varint()
            self._check_count(count)
            return [self._read(header & 15, depth + 1) for _ in range(count)]
        if kind == 11:
            return self._read_map(depth)
        if kind == 12:
            return self.read_struct(depth + 1)
        if kind == 13:
            return self._take(16)
        raise FooterError("its footer has a value of no known kind")

    def _read_map(self, depth: int) -> list[tuple[Any, Any]]:
        count = self._read_varint()
        if not count:
            return []
        self._check_count(count)
        kinds = self._read_byte()
        pairs = []
        for _ in range(count):
            key = self._read(kinds >> 4, depth + 1)
            pairs.append((key, self._read(kinds & 15, depth + 1)))
        return pairs

    def _check_count(self, count: int) -> None:
        if count > len(self._content) - self._position:
            raise FooterError("its footer ends too early")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise FooterError("its footer has a number of more than 64 bits")

    def _read_byte(self) -> int:
        return self._take(1)[0]

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._content):
            raise FooterError("its footer ends too early")
        content = self._content[self._position : end]
        self._position = end
        return content


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows of a file: how many, and where each chunk of a column lies."""

    n_rows: int
    chunks: tuple[tuple[str, int, int], ...]  # column, start, stop

    def list_parts(self, columns: frozenset[str]) -> list[tuple[int, int]]:
        """Return which bytes hold some columns."""
        return [(start, stop) for name, start, stop in self.chunks if name in columns]


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a Parquet file, and what it says of the rest."""

    content: bytes
    groups: tuple[RowGroup, ...]

    @property
    def n_rows(self) -> int:
        return sum(group.n_rows for group in self.groups)

    @property
    def columns(self) -> set[str]:
        return {name for group in self.groups for name, _, _ in group.chunks}


def read_footer(file: RemoteFile) -> Footer:
    size = file.stamp.size or 0
    if size < len(_MAGIC) + _TAIL:
        raise FooterError("it is too short")
    start = max(0, size - _FIRST_FOOTER)
    content = file.kept_end or b"".join(file.read(start, size))
    if content[-4:] != _MAGIC:
        raise FooterError("its last bytes are not those of Parquet")
    length = int.from_bytes(content[-8:-4], "little") + _TAIL
    if length > min(_MOST_FOOTER, size - len(_MAGIC)):
        raise FooterError(f"its footer would have {length:,} bytes")
    if length > len(content):
        content = b"".join(file.read(size - length, start)) + content
    content = content[-length:]
    if length <= _KEPT_FOOTER:
        file.kept_end = content
    fields = _ThriftReader(content[:-_TAIL]).read_struct()
    groups = _get(fields, 4, list)
    end = size - length
    return Footer(content, tuple(_parse_group(group, end) for group in groups))


def _parse_group(fields: Any, end: int) -> RowGroup:
    chunks = []
    for chunk in _get(fields, 1, list):
        if isinstance(chunk, dict) and 1 in chunk:
            raise FooterError("its columns lie in another file")
        facts = _get(chunk, 3, dict)
        path = _get(facts, 3, list)
        if not path or not isinstance(path[0], bytes):
            raise FooterError("it has a column without a name")
        name = path[0].decode(errors="replace")
        start = _get(facts, 9, int)
        dictionary = facts.get(11)
        if isinstance(dictionary, int) and 0 < dictionary < start:
            start = dictionary
        stop = start + _get(facts, 7, int)
        if not 0 <= start <= stop <= end:
            raise FooterError("its columns lie outside of it")
        chunks.append((name, start, stop))
    n_rows = _get(fields, 3, int)
    if n_rows < 0:
        raise FooterError("it has less than no rows")
    return RowGroup(n_rows, tuple(chunks))


def _get(fields: Any, number: int, kind: type[Any]) -> Any:
    value = fields.get(number) if isinstance(fields, dict) else None
    if not isinstance(value, kind):
        raise FooterError("its footer lacks what Parquet needs")
    return value


@contextmanager
def only_footer(file: RemoteFile, footer: Footer) -> Iterator[Path]:
    """Lend a file that has the columns of a Parquet file and none of its rows' bytes."""
    with _sparse(file, footer) as copy:
        yield find_temporary(copy)


def iterate_groups(
    file: RemoteFile,
    footer: Footer,
    columns: Sequence[str],
    has_wanted_rows: Callable[[int, int], bool],
) -> Generator[tuple[Path, int, int], None, None]:
    """Iterate over row groups: a file to read it from, its first row, and how many it has.

    Those without rows that are wanted, from a first to before a last one, are not read.
    Each file is gone when the next one is asked for. Where all columns are read, so is every byte
    of the file, once, and its SHA-256 is known at the end.
    """
    hashing = Hashing(file) if footer.columns <= {*columns} else None
    first_row = 0
    for n_rows, parts in _join_groups(footer, frozenset(columns)):
        if not has_wanted_rows(first_row, first_row + n_rows):
            first_row += n_rows
            hashing = None
            continue
        with _sparse(file, footer) as copy:
            for start, stop in _list_parts(parts, hashing):
                copy.seek(start)
                position = start
                for piece in file.read(start, stop):
                    write_temporary(copy, piece)
                    if hashing is not None:
                        hashing.add(position, piece)
                    position += len(piece)
            yield find_temporary(copy), first_row, n_rows
        first_row += n_rows
    size = file.stamp.size or 0
    if hashing is not None and hashing.is_whole:
        for piece in file.read(hashing.position, size):
            hashing.add(hashing.position, piece)
        hashing.finish()


def _join_groups(
    footer: Footer, columns: frozenset[str]
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Iterate over rows that are read at once, small row groups together: how many, and where."""
    n_rows, n_bytes, parts = 0, 0, list[tuple[int, int]]()
    for group in footer.groups:
        n_rows += group.n_rows
        group_parts = group.list_parts(columns)
        parts += group_parts
        n_bytes += sum(stop - start for start, stop in group_parts)
        if n_bytes >= _SMALL_GROUPS:
            yield n_rows, _join_parts(parts)
            n_rows, n_bytes, parts = 0, 0, []
    if n_rows:
        yield n_rows, _join_parts(parts)


def _join_parts(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts that lie close together, so that they are asked for at once."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(parts):
        if joined and start - joined[-1][1] <= _SMALL_GAP:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _list_parts(
    parts: list[tuple[int, int]], hashing: Hashing | None
) -> list[tuple[int, int]]:
    """Return the bytes to ask for; of a file that is hashed, with what stands before them."""
    if hashing is None or not hashing.is_whole or not parts:
        return parts
    start, stop = parts[0][0], parts[-1][1]
    if start < hashing.position:  # groups in no order
        return parts
    return [(hashing.position, stop)]


@contextmanager
def _sparse(file: RemoteFile, footer: Footer) -> Iterator[Any]:
    size = file.stamp.size or 0
    with tempfile.TemporaryFile() as copy:
        copy.truncate(size)
        copy.seek(size - len(footer.content))
        write_temporary(copy, footer.content)
        yield copy
