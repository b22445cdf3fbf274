"""How each kind of file is read: its columns, its rows, and where a row stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mia_batch.corpus.formats import books, delimited, jsonl, parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from mia_batch.corpus.files import Kind, SourceFile

__all__ = ["FORMATS", "Format"]


class Format(Protocol):
    """What a kind of file must offer; its modules are its implementations."""

    def read_schema(self, files: Sequence[SourceFile]) -> pl.Schema:
        """Return the columns that all files share; refuse files that do not fit together.

        The type ``Object`` stands for JSON arrays and objects; rows hold them as JSON text.
        """

    def read_rows(
        self, files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows of all files in order, some megabytes at a time."""

    def locate(self, files: Sequence[SourceFile], row: int) -> str:
        """Say where a row is, counted from 0 over all files: file and row as a user counts."""


FORMATS: dict[Kind, Format] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "csv": delimited,
    "books": books,
}
