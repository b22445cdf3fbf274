"""The compiled kernels; `mia_batch.kernels` calls them and says what the numbers mean.

Columns of text come in any object of the Arrow PyCapsule interface (Polars, pyarrow, pandas,
DuckDB) as `Utf8`, `LargeUtf8`, `Utf8View` or `Null`, sliced or in chunks, and arrays of
numbers go out the same way. Null gives null. The GIL is released and the rows are spread over
all cores, which calls at the same time share. TypeError: a column is not text. ValueError:
columns of unequal length, an unknown word rule or group, a number out of range, a text of more
than 1 GiB or with bytes that are not UTF-8, a column whose values do not lie within its buffers.
"""

# ruff: noqa: PYI021 (this stub is the manual of the compiled module)

from collections.abc import Sequence
from typing import Protocol, Self, final, type_check_only

__all__ = [
    "RarityTable",
    "__version__",
    "approximate_entropy",
    "book_coverage",
    "build_profile",
    "count_words",
    "foreseen_words",
    "lempel_ziv_complexity",
    "near_verbatim_passages",
    "pair_features",
    "pair_fields",
    "shared_runs",
    "word_spans",
    "zlib_size",
]

__version__: str

@type_check_only
class ArrowArray(Protocol):
    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...

@type_check_only
class ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def pair_features(
    candidate: ArrowArray | ArrowStream,
    reference: ArrowArray | ArrowStream,
    *,
    words: str,
    groups: Sequence[str],
    near_verbatim_min_words: int,
) -> ArrowArray:
    """Struct of UInt32 per pair, null where either side is null."""

def pair_fields(groups: Sequence[str]) -> list[str]:
    """Names of the fields that `pair_features` gives for these groups, in order."""

def zlib_size(text: ArrowArray | ArrowStream) -> ArrowArray:
    """UInt32: bytes of the text after zlib at level 6."""

def count_words(text: ArrowArray | ArrowStream, *, words: str) -> ArrowArray:
    """UInt32: words of the text."""

def shared_runs(
    text: ArrowArray | ArrowStream,
    others: ArrowArray | ArrowStream,
    *,
    words: str,
    run_words: int,
) -> ArrowArray:
    """Struct of UInt32 per text: runs of words, those that some of the others has, and which."""

def word_spans(text: ArrowArray | ArrowStream, *, words: str) -> ArrowArray:
    """Struct per text of two lists of UInt32: where its words start and end, in characters."""

def foreseen_words(
    before: ArrowArray | ArrowStream, text: ArrowArray | ArrowStream, *, words: str
) -> ArrowArray:
    """Struct per pair of two lists of UInt32: words of the text that anyone could foresee."""

def near_verbatim_passages(
    generation: ArrowArray | ArrowStream, book: ArrowArray | ArrowStream, *, words: str
) -> ArrowArray:
    """Struct per pair: words of both, and passages of the book that the generation repeats."""

def book_coverage(
    book: str,
    generations: ArrowArray | ArrowStream,
    instructions: ArrowArray | ArrowStream,
    *,
    words: str,
    min_words: int,
    trim_words: int,
) -> ArrowArray:
    """One struct: what of a book any of the generations covers."""

def lempel_ziv_complexity(
    logprobs: ArrowArray | ArrowStream, *, bins: int
) -> ArrowArray:
    """Float64 per list: words over values; null where there are none. `LargeList` of Float64."""

def approximate_entropy(
    values: ArrowArray | ArrowStream, *, m: int, r: float
) -> ArrowArray:
    """Float64 per list: its approximate entropy; null where it is too short. As above."""

@final
class RarityTable:
    """In how many groups of texts each n-gram of up to three words occurs: `2**bits` entries.

    From 1 to 28 bits.
    """

    def __new__(cls, bits: int) -> Self: ...
    @staticmethod
    def counted(counts: ArrowArray | ArrowStream) -> RarityTable:
        """Make a table with these counts, UInt32."""

    def add(
        self,
        text: ArrowArray | ArrowStream,
        groups: ArrowArray | ArrowStream,
        *,
        words: str,
    ) -> None:
        """Count the n-grams of texts; those of one group, UInt32, come one after the other."""

    def counts(self) -> ArrowArray:
        """UInt32: the counts."""

    def weigh(
        self,
        candidate: ArrowArray | ArrowStream,
        reference: ArrowArray | ArrowStream,
        others: ArrowArray | ArrowStream,
        *,
        words: str,
        total: int,
    ) -> ArrowArray:
        """Struct of Float64 per pair, null where either side is null; ``others``: UInt32."""

def build_profile() -> str:
    """How the module was compiled: "release" or "debug"."""
