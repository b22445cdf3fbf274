"""Read a corpus into the documents table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import polars as pl

from mia_batch.corpus.check import check_rows
from mia_batch.corpus.columns import ColumnNames, in_pairs, resolve
from mia_batch.corpus.files import digest_each, digest_of, find_files
from mia_batch.corpus.formats import FORMATS
from mia_batch.corpus.formats.lines import BadInputError, EncodingError, Reading
from mia_batch.errors import CorpusError
from mia_batch.tables import generate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from mia_batch.corpus.columns import Columns
    from mia_batch.corpus.files import Source, SourceFile

__all__ = ["BadInput", "Corpus", "read_documents"]

BadInput = Literal["refuse", "set-aside"]
"""What becomes of a file or a row that cannot be read."""
_SET_ASIDE = "set aside what cannot be read with --bad-input set-aside"


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
    n_documents
        Rows of the documents table.
    are_books
        Whether each file is one document.
    ignored
        Files below the given folder that are of no known kind, with the reason.
    set_aside
        What could not be read and was left out, a file or a row of one, with the reason.
    notes
        Sentences about columns that were found under another name, or got one.
    """

    documents: pl.LazyFrame
    files: tuple[SourceFile, ...]
    n_documents: int
    are_books: bool = False
    ignored: dict[str, str] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Hash the content of the files in order, whatever their names: 64 hexadecimal digits."""
        return digest_of(digest_each(self.files))


def read_documents(
    path: Path | str,
    columns: ColumnNames | None = None,
    *,
    reserved: Collection[str] = (),
    encoding: str | None = None,
    bad_input: BadInput | None = None,
) -> Corpus:
    """Read a corpus: one file, a folder or a glob of Parquet, Arrow, JSON, CSV or TSV, or of books.

    Books are files of ``.txt``, ``.epub``, ``.html``, ``.htm`` and ``.xhtml``, mixed, each of which
    is one document. What stands around the text and is surely no part of it is cut: Project
    Gutenberg's header and licence, a transcriber's note, the table of contents.

    Every row is read once and checked here; memory does not grow with the corpus but for a few
    bytes a row. Null, empty and short texts are kept.

    Parameters
    ----------
    path
        A file, a folder (with its subfolders), or a glob.
    columns
        The user's names for the columns; by default ``text``, ``document_id``, ``member``,
        ``label``, ``group``, ``prefix``, ``reference``, in any spelling. Columns ``member`` and
        ``nonmember`` of texts are two documents a row. Books have ``text``, ``document_id`` (the
        file's path below the folder), ``title``, ``author``, ``isbn`` (where the file says so),
        ``sha256`` of the file, ``n_characters`` of the text before it was cut, ``cut_start``,
        ``cut_inside`` and ``cut_end``, the characters cut at its ends and left out within, and how
        many marks of each kind that was. A book is its own ``group``, unless a column is given.
    reserved
        Names that pass-through columns may not have, such as those of attacks; such a column gets
        another.
    encoding
        Of text files that declare none; None is UTF-8.
    bad_input
        Whether files and rows that cannot be read are refused or set aside; None refuses them
        where the user has no such choice.

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
    rejected: dict[str, str] | None = {} if bad_input == "set-aside" else None
    reading = Reading(encoding, rejected)
    try:
        if rejected is not None:
            source = _readable(source, reading)
        return _read(source, columns or ColumnNames(), reading, reserved)
    except BadInputError as error:
        if bad_input is None:
            raise
        named = "name its encoding with --encoding, or " * isinstance(error, EncodingError)
        raise CorpusError(f"{error}; or {named}{_SET_ASIDE}") from error


def _readable(source: Source, reading: Reading) -> Source:
    """Leave out files that cannot be read to their end; their rows are read for it once more."""
    reader, files = FORMATS[source.kind], []
    for file in source.files:
        try:
            schema = reader.read_schema([file], reading)
            for _ in reader.read_rows([file], schema, schema.names(), reading):
                pass
        except BadInputError as error:
            reading.reject(error)
        else:
            files.append(file)
    return replace(source, files=tuple(files))


def _read(
    source: Source, names: ColumnNames, reading: Reading, reserved: Collection[str]
) -> Corpus:
    reader, files = FORMATS[source.kind], source.files
    raw = reader.read_schema(files, reading) if files else pl.Schema()
    if not raw:  # JSON Lines without a line
        raise _empty(source, reading.rejected or {})
    if source.kind == "books":
        identity = names.document_id or "document_id"
        names = replace(names, document_id=identity, group=names.group or identity)
    pair = in_pairs(names, raw)
    if pair is not None:
        schema, raw = raw, _unpaired(raw, pair)
    found = resolve(names, raw, where=source.given, reserved=reserved)

    def read_rows(wanted: list[str]) -> Iterator[pl.DataFrame]:
        if pair is None:
            return reader.read_rows(files, raw, wanted, reading)
        return _in_two(reader.read_rows(files, schema, schema.names(), reading), pair, wanted)

    def place_of(row: int) -> str:
        number = row if pair is None else row // 2
        return next(islice(reader.places(files, reading), number, None))

    bad_rows: dict[int, BadInputError] = {}

    def wrong(row: int, sentence: str) -> None:
        what, _, way_out = sentence.rpartition("; ")
        error = BadInputError(place_of(row), what, way_out)
        if reading.rejected is None:
            raise error
        bad_rows.setdefault(row, error)

    n_rows = check_rows(read_rows, found, place_of=place_of, wrong=wrong)
    rejected = (reading.rejected or {}) | {each.place: each.what for each in bad_rows.values()}
    if n_rows == len(bad_rows):
        raise _empty(source, rejected)
    notes = [*found.notes()]
    if pair is not None:
        notes.insert(0, f"each row is two texts: a member in {pair[0]!r}, another in {pair[1]!r}")
    return Corpus(
        documents=_documents(read_rows, found, pl.Series(sorted(bad_rows), dtype=pl.Int64)),
        files=files,
        ignored={
            str(path): f"files of kind {path.suffix or path.name} are not read"
            for path in source.ignored
        },
        n_documents=n_rows - len(bad_rows),
        are_books=source.kind == "books",
        set_aside=rejected,
        notes=tuple(notes),
    )


def _unpaired(raw: pl.Schema, pair: tuple[str, str]) -> pl.Schema:
    """Return the columns of a corpus in pairs; an identifier names both texts, so it is none."""
    others = {name: dtype for name, dtype in raw.items() if name not in pair}
    passing = {("pair_id" if name == "document_id" else name): of for name, of in others.items()}
    return pl.Schema({"text": pl.String(), "member": pl.Boolean(), **passing})


def _in_two(
    frames: Iterator[pl.DataFrame], pair: tuple[str, str], wanted: list[str]
) -> Iterator[pl.DataFrame]:
    for frame in frames:
        both = frame.with_columns(
            text=pl.concat_list(pair), member=pl.lit([True, False], pl.List(pl.Boolean))
        )
        named = both.rename({"document_id": "pair_id"}, strict=False)
        yield named.explode("text", "member").select(wanted)


def _empty(source: Source, rejected: Mapping[str, str]) -> CorpusError:
    why = "has no rows"
    if rejected:
        place, reason = next(iter(rejected.items()))
        why = f"has no row that can be read ({place}: {reason}; {len(rejected):,} set aside in all)"
    return CorpusError(f"{source.given} {why}; give a corpus with at least one text")


def _documents(
    read_rows: Callable[[list[str]], Iterator[pl.DataFrame]], columns: Columns, bad: pl.Series
) -> pl.LazyFrame:
    schema = columns.schema

    def frames(names: list[str] | None) -> Iterator[pl.DataFrame]:
        wanted = names or schema.names()
        expressions = [columns.expression(name) for name in wanted]
        start = 0
        for rows in read_rows(columns.needed(wanted)):
            number = pl.int_range(start, start + pl.len())
            start += rows.height
            # Not select() alone: of constants only, it would make a single row.
            made = rows.filter(~number.is_in(bad.implode())) if len(bad) else rows
            yield made.with_columns(expressions).select(wanted)

    return generate(schema, frames)
