"""Read a corpus into the documents table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mia_batch.corpus.check import check_rows
from mia_batch.corpus.columns import ColumnNames, resolve
from mia_batch.corpus.files import digest_each, digest_of, find_files
from mia_batch.corpus.formats import FORMATS
from mia_batch.errors import CorpusError
from mia_batch.tables import generate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    import polars as pl

    from mia_batch.corpus.columns import Columns
    from mia_batch.corpus.files import Source, SourceFile

__all__ = ["Corpus", "read_documents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A corpus whose every row was checked.

    Attributes
    ----------
    documents
        The documents table (schema `Documents`, then the pass-through columns), in the order of
        the files and their rows. It is read anew, in batches, each time it is collected.
    files
        The files, in the order in which they are read.
    ignored
        Files below the given folder that are of no known kind.
    n_documents
        Rows of the documents table.
    """

    documents: pl.LazyFrame
    files: tuple[SourceFile, ...]
    ignored: tuple[Path, ...]
    n_documents: int

    def digest(self) -> str:
        """Hash the content of the files in order, whatever their names: 64 hexadecimal digits."""
        return digest_of(digest_each(self.files))


def read_documents(
    path: Path | str, columns: ColumnNames | None = None, *, reserved: Collection[str] = ()
) -> Corpus:
    """Read a corpus: Parquet, JSON Lines, CSV (one file, a folder, a glob) or a folder of ``.txt``.

    Every row is read once and checked here; memory does not grow with the corpus but for a few
    bytes a row. Null, empty and short texts are kept.

    Parameters
    ----------
    path
        A file, a folder (with its subfolders), or a glob.
    columns
        The user's names for the columns; by default ``text``, ``document_id``, ``member``,
        ``label``, ``group``, ``prefix``, ``reference``. A folder of ``.txt`` has ``text`` and
        ``document_id``, each file's path below the folder.
    reserved
        Names that pass-through columns may not have, such as those of attacks.

    Returns
    -------
    Corpus
        The documents, lazily, and the files they come from.

    Raises
    ------
    CorpusError
        If the corpus cannot be read or a row is wrong; the message names file, row and column.
    """
    source = find_files(path)
    reader = FORMATS[source.kind]
    raw = reader.read_schema(source.files)
    if not raw:  # JSON Lines without a line
        raise _empty(source)
    found = resolve(columns or ColumnNames(), raw, where=source.given, reserved=reserved)
    read_rows = partial(reader.read_rows, source.files, raw)
    n_documents = check_rows(read_rows, found, locate=partial(reader.locate, source.files))
    if n_documents == 0:
        raise _empty(source)
    return Corpus(
        documents=_documents(read_rows, found),
        files=source.files,
        ignored=source.ignored,
        n_documents=n_documents,
    )


def _empty(source: Source) -> CorpusError:
    return CorpusError(f"{source.given} has no rows; give a corpus with at least one text")


def _documents(
    read_rows: Callable[[list[str]], Iterator[pl.DataFrame]], columns: Columns
) -> pl.LazyFrame:
    schema = columns.schema

    def frames(names: list[str] | None) -> Iterator[pl.DataFrame]:
        wanted = names or schema.names()
        expressions = [columns.expression(name) for name in wanted]
        for rows in read_rows(columns.needed(wanted)):
            # Not select() alone: of constants only, it would make a single row.
            yield rows.with_columns(expressions).select(wanted)

    return generate(schema, frames)
