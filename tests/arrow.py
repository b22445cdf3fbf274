"""Text columns in the Arrow layouts that Polars does not write, by the C data interface.

Layout of the structures: https://arrow.apache.org/docs/format/CDataInterface.html
"""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Schema(ctypes.Structure):
    _fields_: ClassVar = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", _RELEASE),
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
        ("release", _RELEASE),
        ("private_data", ctypes.c_void_p),
    ]


def _forget(address: int) -> None:
    _Array.from_address(address).release = _RELEASE()


_release = _RELEASE(_forget)


class ArrowColumn:
    """A column that exports itself anew whenever it is asked."""

    def __init__(self, kind: bytes, length: int, *buffers: ctypes.Array[Any], offset: int = 0):
        self._kind = kind
        self._length = length
        self._offset = offset
        self._buffers = buffers
        self._addresses = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        self._lent: list[ctypes.Structure] = []

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        schema = _Schema(format=self._kind, flags=2, release=_release)
        array = _Array(
            length=self._length - self._offset,
            null_count=-1,
            offset=self._offset,
            n_buffers=len(self._buffers),
            buffers=self._addresses,
            release=_release,
        )
        self._lent += [schema, array]
        return _capsule(schema, b"arrow_schema"), _capsule(array, b"arrow_array")


def strings(texts: Sequence[str | None], bits: Literal[32, 64], *, offset: int = 0) -> ArrowColumn:
    """Strings with offsets of 32 or 64 bits, from row ``offset`` on.

    Surrogates are any bytes, as ``surrogateescape`` has them.
    """
    encoded = [(text or "").encode(errors="surrogateescape") for text in texts]
    valid = sum(1 << row for row, text in enumerate(texts) if text is not None)
    ends = accumulate(map(len, encoded), initial=0)
    kind, number = (b"u", ctypes.c_int32) if bits == 32 else (b"U", ctypes.c_int64)
    return ArrowColumn(
        kind,
        len(texts),
        ctypes.create_string_buffer(valid.to_bytes(len(texts) // 8 + 1, "little")),
        (number * (len(texts) + 1))(*ends),
        ctypes.create_string_buffer(b"".join(encoded)),
        offset=offset,
    )


def nulls(length: int) -> ArrowColumn:
    """Nulls of no type."""
    return ArrowColumn(b"n", length)


def _capsule(structure: ctypes.Structure, name: bytes) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(structure), name, None)
