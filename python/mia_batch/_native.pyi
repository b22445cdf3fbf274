"""The compiled kernels; call them through ``mia_batch.kernels``.

Columns of text come in any object of the Arrow PyCapsule interface (Polars, pyarrow, pandas,
DuckDB): ``Utf8``, ``LargeUtf8``, ``Utf8View`` or ``Null``, sliced or in chunks. Arrays go out
the same way. The GIL is released and the rows are spread over all cores. Each function raises
TypeError for a column that is not text, and ValueError for a text of more than 1 GiB.
"""

from __future__ import annotations

from typing import Protocol

__version__: str

class ArrowArray(Protocol):
    """An Arrow array, such as ``polars.Series`` takes."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...

class ArrowStream(Protocol):
    """An Arrow array in chunks, such as a ``polars.Series``."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def pair_features(
    candidate: ArrowArray | ArrowStream, reference: ArrowArray | ArrowStream, *, words: str
) -> ArrowArray:
    """One struct of UInt32 per pair; ValueError for unequal lengths or an unknown word rule."""

def zlib_size(text: ArrowArray | ArrowStream) -> ArrowArray:
    """UInt32: bytes of the text after zlib at level 6."""

def count_words(text: ArrowArray | ArrowStream, *, words: str) -> ArrowArray:
    """UInt32: words of the text; ValueError for an unknown word rule."""

def zlib_version() -> str:
    """Version of the zlib inside."""

def build_profile() -> str:
    """``"release"`` or ``"debug"``."""
