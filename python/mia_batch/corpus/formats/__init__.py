"""How each kind of file is read: its columns, its rows, and where a row stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mia_batch.corpus.formats import books, columnar, delimited, jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from mia_batch.corpus.files import Kind, SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["FORMATS", "Format"]


class Format(Protocol):
    """What a kind of file must offer; its modules are its implementations."""

    def read_schema(self, files: Sequence[SourceFile], reading: Reading, /) -> pl.Schema:
        """Return the columns that all files share; refuse files that do not fit together.

        The type ``Object`` stands for JSON arrays and objects; rows hold them as JSON text.
        """

    def read_rows(
        self,
        files: Sequence[SourceFile],
        schema: pl.Schema,
        columns: Sequence[str],
        reading: Reading,
        /,
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows of all files in order, some megabytes at a time."""

    def places(self, files: Sequence[SourceFile], reading: Reading, /) -> Iterator[str]:
        """Say of every row, in order, where it is: file and row as a user counts."""


FORMATS: dict[Kind, Format] = {
    "columnar": columnar,
    "jsonl": jsonl,
    "csv": delimited,
    "books": books,
}
