"""Text columns in every Arrow layout, with any bytes, by the C data and stream interfaces.

Layout of the structures: https://arrow.apache.org/docs/format/CDataInterface.html and
https://arrow.apache.org/docs/format/CStreamInterface.html
"""

from __future__ import annotations

import ctypes
import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Layout: TypeAlias = Literal["utf8", "large_utf8", "utf8_view"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_INLINE = 12  # bytes of a text that stand in its view
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_GIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Schema(ctypes.Structure):
    _fields_: ClassVar = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", _CALLBACK),
        ("private_data", ctypes.c_void_p),
    ]


class _Array(ctypes.Structure):
    _fields_: ClassVar = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", _CALLBACK),
        ("private_data", ctypes.c_void_p),
    ]


class _Stream(ctypes.Structure):
    _fields_: ClassVar = [
        ("get_schema", _GIVE),
        ("get_next", _GIVE),
        ("get_last_error", ctypes.c_void_p),
        ("release", _CALLBACK),
        ("private_data", ctypes.c_void_p),
    ]


def _releasing(kind: type[ctypes.Structure]) -> Any:
    """Mark a structure as released; what it points to stays with the column."""

    def release(address: int) -> None:
        kind.from_address(address).release = _CALLBACK()

    return _CALLBACK(release)


_release_schema, _release_array, _release_stream = map(
    _releasing, (_Schema, _Array, _Stream)
)


class ArrowColumn:
    """A column that exports itself anew whenever it is asked, whatever it is made of."""

    def __init__(
        self,
        kind: bytes,
        length: int,
        *buffers: ctypes.Array[Any] | None,
        offset: int = 0,
        children: Sequence[ArrowColumn] = (),
        dictionary: ArrowColumn | None = None,
    ):
        self.kind = kind
        self._length = length
        self._offset = offset
        self._buffers = buffers
        addresses = (
            None if each is None else ctypes.addressof(each) for each in buffers
        )
        self._addresses = (ctypes.c_void_p * len(buffers))(*addresses)
        self._children = children
        self._dictionary = dictionary
        self._kept: list[object] = []

    def schema(self) -> _Schema:
        children = self._pointers([each.schema() for each in self._children])
        dictionary = self._pointers(
            [self._dictionary.schema()] if self._dictionary else []
        )
        return _Schema(
            format=self.kind,
            flags=2,
            n_children=len(children),
            children=ctypes.addressof(children),
            dictionary=dictionary[0] if dictionary else None,
            release=_release_schema,
        )

    def array(self) -> _Array:
        children = self._pointers([each.array() for each in self._children])
        dictionary = self._pointers(
            [self._dictionary.array()] if self._dictionary else []
        )
        return _Array(
            length=self._length - self._offset,
            null_count=-1,
            offset=self._offset,
            n_buffers=len(self._buffers),
            buffers=self._addresses,
            n_children=len(children),
            children=ctypes.addressof(children),
            dictionary=dictionary[0] if dictionary else None,
            release=_release_array,
        )

    def _pointers(
        self, structures: Sequence[ctypes.Structure]
    ) -> ctypes.Array[ctypes.c_void_p]:
        pointers = (ctypes.c_void_p * len(structures))(
            *map(ctypes.addressof, structures)
        )
        self._kept += [structures, pointers]
        return pointers

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]:
        schema, array = self.schema(), self.array()
        self._kept += [schema, array]
        return _capsule(schema, b"arrow_schema"), _capsule(array, b"arrow_array")


class ChunkedColumn:
    """Columns of one layout, one behind the other."""

    def __init__(self, chunks: Sequence[ArrowColumn]):
        self._chunks = chunks
        self._kept: list[object] = []

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        chunks = iter(self._chunks)

        def get_schema(_: int, to: int) -> int:
            return _move(self._chunks[0].schema(), to)

        def get_next(_: int, to: int) -> int:
            chunk = next(chunks, None)
            return _move(_Array() if chunk is None else chunk.array(), to)

        stream = _Stream(
            get_schema=_GIVE(get_schema),
            get_next=_GIVE(get_next),
            release=_release_stream,
        )
        self._kept.append(stream)
        return _capsule(stream, b"arrow_array_stream")


def strings(
    texts: Sequence[str | None], layout: Layout, *, offset: int = 0
) -> ArrowColumn:
    """Strings from row ``offset`` on.

    Surrogates are any bytes, as ``surrogateescape`` has them.
    """
    encoded = [(text or "").encode(errors="surrogateescape") for text in texts]
    valid = sum(1 << row for row, text in enumerate(texts) if text is not None)
    validity = ctypes.create_string_buffer(
        valid.to_bytes(len(texts) // 8 + 1, "little")
    )
    starts = [0, *accumulate(map(len, encoded))]
    letters = ctypes.create_string_buffer(b"".join(encoded))
    if layout == "utf8_view":
        pairs = zip(encoded, starts, strict=False)
        views = ctypes.create_string_buffer(
            b"".join(_view(text, start) for text, start in pairs)
        )
        sizes = (ctypes.c_int64 * 1)(starts[-1])
        return ArrowColumn(
            b"vu", len(texts), validity, views, letters, sizes, offset=offset
        )
    kind, number = (
        (b"u", ctypes.c_int32) if layout == "utf8" else (b"U", ctypes.c_int64)
    )
    ends = (number * len(starts))(*starts)
    return ArrowColumn(kind, len(texts), validity, ends, letters, offset=offset)


def chunks(
    texts: Sequence[str | None], layout: Layout, cuts: Iterable[int]
) -> ChunkedColumn:
    """Strings in chunks that end at these rows, in rising order, and at the last one."""
    ends = [0, *cuts, len(texts)]
    return ChunkedColumn(
        [strings(texts[:end], layout, offset=at) for at, end in pairwise(ends)]
    )


def nulls(length: int) -> ArrowColumn:
    """Nulls of no type."""
    return ArrowColumn(b"n", length)


def _view(text: bytes, start: int) -> bytes:
    if len(text) <= _INLINE:
        return struct.pack("<i12s", len(text), text)
    return struct.pack("<i4sii", len(text), text[:4], 0, start)


def _move(structure: ctypes.Structure, to: int) -> int:
    ctypes.memmove(to, ctypes.addressof(structure), ctypes.sizeof(structure))
    return 0


def _capsule(structure: ctypes.Structure, name: bytes) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(structure), name, None)
