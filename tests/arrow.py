"""Text columns in the Arrow layouts that Polars does not write, by the C data interface.

Layout of the structures: https://arrow.apache.org/docs/format/CDataInterface.html
"""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal

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


@_RELEASE
def _release(address: int) -> None:
    _Array.from_address(address).release = _RELEASE()


class ArrowText:
    """Column of strings with 32-bit or 64-bit offsets, from row ``offset`` of ``texts`` on."""

    def __init__(
        self, texts: Sequence[str | None], layout: Literal["utf8", "large_utf8"], *, offset: int = 0
    ) -> None:
        encoded = [(text or "").encode() for text in texts]
        valid = sum(1 << row for row, text in enumerate(texts) if text is not None)
        ends = accumulate(map(len, encoded), initial=0)
        number = ctypes.c_int32 if layout == "utf8" else ctypes.c_int64
        self._buffers = (
            ctypes.create_string_buffer(valid.to_bytes(len(texts) // 8 + 1, "little")),
            (number * (len(texts) + 1))(*ends),
            ctypes.create_string_buffer(b"".join(encoded)),
        )
        self._addresses = (ctypes.c_void_p * 3)(*map(ctypes.addressof, self._buffers))
        self._schema = _Schema(format=b"u" if layout == "utf8" else b"U", flags=2, release=_release)
        self._array = _Array(
            length=len(texts) - offset,
            null_count=-1,
            offset=offset,
            n_buffers=3,
            buffers=self._addresses,
            release=_release,
        )

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return _capsule(self._schema, b"arrow_schema"), _capsule(self._array, b"arrow_array")


def _capsule(structure: ctypes.Structure, name: bytes) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(structure), name, None)
