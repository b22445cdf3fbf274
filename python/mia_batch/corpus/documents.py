"""A corpus, read into the documents table: columns are found, and every row is checked first."""

import json
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, Field, ValidationError, model_validator

from mia_batch.corpus.files import (
    DESCRIPTIONS,
    FORMATS,
    BadInputError,
    EncodingError,
    Reading,
    Source,
    SourceFile,
    digest_each,
    digest_of,
    find_files,
    partition_of,
)
from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents, LogProbs, Prompts, Samples, Scores, Targets
from mia_batch.tables import generate

_WRITTEN = {  # a further column of one of these names would be mixed up with our own
    name
    for schema in (Documents, Targets, Prompts, Samples, LogProbs, Scores)
    for name in schema.column_names()
}

_SHOWN = 20  # column names in a message
_OURS = "input_"  # before the name of a further column that is named as one of ours
_ALSO = {
    "text": ("input",),
    "member": ("is_member", "membership"),
    "label": ("labels",),
    "document_id": ("doc_id", "id"),
}
"""Further names by which a column is known to play a part."""
_PAIR_ID = {"document_id": "pair_id"}
# Columns of texts in pairs, as benchmarks of membership write them
PAIR = (
    "member",
    "nonmember",
)
_WORDS = dict.fromkeys(("1", "1.0", "true", "member"), True)
_WORDS |= dict.fromkeys(("0", "0.0", "false", "nonmember", "non_member"), False)
_SPOKEN = {"yes": True, "no": False}  # a label of that name may be about anything


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The user's names for the columns of a corpus.

    Attributes
    ----------
    text
        The text: a string column, which must exist.
    document_id
        Unique identifier: strings or integers. None, here and below, means the column
        of the same name as the attribute, where there is one; a name that is given must
        exist.
    member
        True or false, also as 1 or 0; null = unknown.
    label
        The same under its usual name; a row that has both must have them equal.
    group
        Documents whose errors move together, such as one book's: strings or integers.
    prefix
        The user's own prefix; only together with ``reference``. The text is both,
        joined.
    reference
        The user's own reference.
    author
        Who wrote the text: strings. It is a further column, not one of the table's own.
    """

    text: str = "text"
    document_id: str | None = None
    member: str | None = None
    label: str | None = None
    group: str | None = None
    prefix: str | None = None
    reference: str | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a corpus, each with its part."""

    raw: pl.Schema  # the columns as they are read
    parts: Mapping[str, str]  # an attribute of `ColumnNames` to the user's column
    further: Mapping[str, str]  # our name of a pass-through column to the user's

    @property
    def schema(self) -> pl.Schema:
        """The columns of the documents table; nested JSON values pass as text."""
        types = {name: self.raw[column] for name, column in self.further.items()}
        passing = {
            name: pl.String() if of == pl.Object else of for name, of in types.items()
        }
        return pl.Schema({**Documents.create_empty().schema, **passing})

    def notes(self) -> Iterator[str]:
        """Say which columns play a part under another name, or pass under another."""
        for part, column in self.parts.items():
            if column == "author" or column not in asdict(ColumnNames()):
                yield f"the {part} is in column {column!r}"
        for name, column in self.further.items():
            if name != column:
                yield f"column {column!r} is kept as {name!r}"

    def expression(self, name: str) -> pl.Expr:
        """Return a column of the documents table as an expression over the user's columns."""
        if name == "member":
            answers = [
                self.membership(part)
                for part in ("member", "label")
                if part in self.parts
            ]
            return pl.coalesce(*answers, pl.lit(None, pl.Boolean)).alias(name)
        if name in Documents.column_names():
            source = self.parts.get(name)
            column = (
                pl.lit(None, pl.String)
                if source is None
                else pl.col(source).cast(pl.String)
            )
            return column.alias(name)
        return pl.col(self.further[name]).alias(name)

    def membership(self, part: str) -> pl.Expr:
        more = _SPOKEN if part == "member" else {}
        return membership(self.parts[part], self.raw[self.parts[part]], _WORDS | more)

    def needed(self, names: Collection[str]) -> list[str]:
        """Return the user's columns behind some columns of the documents table, at least one."""
        roots = {
            root for name in names for root in self.expression(name).meta.root_names()
        }
        return [name for name in self.raw if name in roots] or [self.parts["text"]]


def membership(
    name: str, dtype: pl.DataType, said: Mapping[str, bool] = _WORDS
) -> pl.Expr:
    """Read a column as booleans: null for null, and for what says neither."""
    column = pl.col(name)
    if dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Boolean)
    if dtype.is_numeric():
        return pl.when((column == 0) | (column == 1)).then(column == 1)
    words = (
        column.cast(pl.String)
        .str.strip_chars()
        .str.to_lowercase()
        .str.replace("[ -]", "_")
    )
    return words.replace_strict(said, default=None, return_dtype=pl.Boolean)


def resolve(
    names: ColumnNames, raw: pl.Schema, *, where: str, reserved: Collection[str] = ()
) -> Columns:
    for name in raw:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise CorpusError(
                f"{where} has a column {name!r}, a name that Polars takes for a"
                " pattern; rename it"
            )
    parts = _find_parts(names, raw, where)
    author = parts.get("author")
    types_of_names = (pl.String, pl.Categorical, pl.Enum)
    if (
        names.author is None
        and author is not None
        and raw[author] not in types_of_names
    ):
        del parts["author"]  # a column of that name that holds something else
    for part, name in parts.items():
        dtype, wanted = raw[name], _WANTED.get(part, "strings")
        allowed = dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)
        allowed |= wanted != "strings" and dtype.is_integer()
        allowed |= wanted == _ANSWERS and (dtype == pl.Boolean or dtype.is_float())
        if not allowed:
            came = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
            raise CorpusError(
                f"{where}: column {name!r} is the {part} but holds {came}; it must hold"
                f" {wanted}"
            )
    author = parts.pop("author", None)
    ours = {*reserved, *_WRITTEN, *([] if author is None else ["author"])}
    further: dict[str, str] = {}
    for column in raw:
        if column == author:
            further["author"] = column
        elif column not in parts.values():
            name = column
            while name in ours or name in further or (name != column and name in raw):
                name = _OURS + name
            further[name] = column
    return Columns(raw=raw, parts=parts, further=further)


_ANSWERS = "booleans, or 0 and 1"
_WANTED = {
    **dict.fromkeys(("document_id", "group"), "strings or integers"),
    **dict.fromkeys(("member", "label"), _ANSWERS),
}


def in_pairs(names: ColumnNames, raw: pl.Schema) -> tuple[str, str] | None:
    """Name the columns of a corpus whose rows hold a member and a non-member each."""
    spelled = {_spelling(name).replace("_", ""): name for name in raw}
    found = [spelled.get(name) for name in PAIR]
    texts = [name for name in found if name is not None and raw[name] == pl.String]
    named = names.text in raw or names.member is not None or names.label is not None
    return None if named or len(texts) < len(PAIR) else (texts[0], texts[1])


def _find_parts(names: ColumnNames, raw: pl.Schema, where: str) -> dict[str, str]:
    wanted, default = asdict(names), asdict(ColumnNames())
    given = {part: name for part, name in wanted.items() if name != default[part]}
    # A column that the user gave another part does not also play its own.
    free = [name for name in raw if name not in given.values()]
    parts = {
        part: name for part in wanted if (name := _find(part, free, where))
    } | given
    if "text" not in given and parts.get("text") not in (None, "text"):
        _refuse_instructions(parts["text"], raw, where)
    for part, name in ({"text": "text"} | given).items():
        if name not in raw and parts.get(part, name) == name:
            near = get_close_matches(name, raw.names(), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            there = ", ".join(map(repr, raw.names()[:_SHOWN])) + ", ..." * (
                len(raw) > _SHOWN
            )
            way_out = f"name the {part} with {_option(part)}"
            raise CorpusError(
                f"{where} has no column {name!r}{hint}, only {there}; {way_out}"
            )
    for one, other in (("prefix", "reference"), ("reference", "prefix")):
        if one in parts and other not in parts:
            raise CorpusError(
                f"{where} has a column {parts[one]!r} but no {other!r}; give both or"
                " neither"
            )
    return {part: parts[part] for part in wanted if part in parts}


_ANSWERED = ("output", "response", "answer", "completion")


def _refuse_instructions(text: str, raw: pl.Schema, where: str) -> None:
    """Refuse to take the input of instructions, often empty, for the text."""
    answers = [name for name in raw if _spelling(name) in _ANSWERED]
    if "input" in _spelling(text) and answers:
        columns = ", ".join(map(repr, raw.names()[:_SHOWN]))
        raise CorpusError(
            f"{where} has the columns of instructions and answers ({columns}), and no"
            f" column 'text'; name the one to audit with {_option('text')}, such as"
            f" {answers[0]!r}"
        )


def _find(part: str, free: list[str], where: str) -> str | None:
    """Find the column that plays a part by its name, then by its spelling, then by another name."""
    if part in free:
        return part
    for known in (part, *_ALSO.get(part, ())):
        found = [name for name in free if _spelling(name) == known]
        if len(found) > 1:
            both = " and ".join(map(repr, found))
            raise CorpusError(
                f"{where}: columns {both} may both be the {part}; name one with"
                f" {_option(part)}"
            )
        if found:
            return found[0]
    return None


def _spelling(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def _option(part: str) -> str:
    return f"{part}_column="


class Fault(NamedTuple):
    """What makes a row wrong."""

    wrong: pl.Expr  # true in rows that are refused
    name: str  # the column whose value the message shows
    rest: str  # what the message says after the value


def check_rows(
    frames: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    *,
    place_of: Callable[[int], str],
    wrong: Callable[[int, str], None],
) -> int:
    """Read all rows once and count them; ``wrong`` takes a wrong one, and may raise."""
    faults = [*_faults(columns)]
    identifier = columns.expression("document_id")
    hashes, n_rows = [np.empty(0, np.uint64)], 0
    for frame in frames(columns.raw.names()):
        for row, what in faulty_rows(frame, faults):
            wrong(n_rows + row, what)
        n_rows += frame.height
        if "document_id" in columns.parts:
            hashes.append(frame.select(identifier.hash()).to_series().to_numpy())
    ordered = np.sort(np.concatenate(hashes))
    repeated = pl.Series(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))
    if repeated.is_empty():
        return n_rows
    # Different identifiers may share a hash, so those that do are compared in full.
    first: dict[str, int] = {}
    start = 0
    for frame in frames(columns.needed(["document_id"])):
        names = frame.select(identifier).to_series()
        for place in names.hash().is_in(repeated.implode()).arg_true():
            row, name = start + place, names[place]
            if (before := first.setdefault(name, row)) != row:
                also = f"is also in {place_of(before)}; identifiers must be unique"
                wrong(row, f"document_id {name!r} {also}")
        start += frame.height
    return n_rows


_NO_LABEL = ", which says nothing of membership"


def _faults(columns: Columns) -> Iterator[Fault]:
    parts = columns.parts
    answers = {
        part: columns.membership(part) for part in ("member", "label") if part in parts
    }
    for part, answer in answers.items():
        wrong = pl.col(parts[part]).is_not_null() & answer.is_null()
        alike = "true or false, member or non-member" + ", yes or no" * (
            part == "member"
        )
        yield Fault(
            wrong, parts[part], f"{_NO_LABEL}; write 1 or 0 ({alike}), null if unknown"
        )
    if len(answers) == 2:
        differ = answers["member"].ne(answers["label"]).fill_null(value=False)
        rest = f" but {parts['label']!r} says the opposite; make them agree"
        yield Fault(differ, parts["member"], rest)
    if (name := parts.get("document_id")) is not None:
        yield Fault(
            pl.col(name).is_null(), name, "; give every document an identifier or none"
        )
    if "prefix" in parts:
        for part, other in (("reference", "prefix"), ("prefix", "reference")):
            alone = pl.col(parts[other]).is_not_null() & pl.col(parts[part]).is_null()
            yield Fault(
                alone,
                parts[part],
                f" but {parts[other]!r} is not; give both or neither",
            )


def faulty_rows(frame: pl.DataFrame, faults: list[Fault]) -> Iterator[tuple[int, str]]:
    """Yield each wrong row of a frame, with what is wrong and what to do."""
    for fault in faults:
        for row in frame.select(fault.wrong.arg_true()).to_series():
            value = frame[fault.name][row]
            shown = "null" if value is None else reprlib.repr(value)
            yield row, f"column {fault.name!r} is {shown}{fault.rest}"


BadInput = Literal["refuse", "set-aside"]
"""What becomes of a file or a row that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A corpus whose every row was checked.

    Attributes
    ----------
    documents
        The documents table (schema `Documents`, then the pass-through columns), in the
        order of the files and their rows. It is read anew, in batches, each time it is
        collected.
    files
        The files, in the order in which they are read.
    n_documents
        Rows of the documents table.
    are_books
        Whether each file is one document.
    ignored
        Files below the given folder that are of no known kind, with the reason.
    set_aside
        What could not be read and was left out, a file or a row of one, with the
        reason.
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

    Books are files of ``.txt``, ``.epub``, ``.html``, ``.htm`` and ``.xhtml``, mixed,
    each of which is one document. What stands around the text and is surely no part of
    it is cut: Project Gutenberg's header and licence, a transcriber's note, the table
    of contents.

    Every row is read once and checked here; memory does not grow with the corpus but
    for a few bytes a row. Null, empty and short texts are kept.

    Parameters
    ----------
    path
        A file, a folder (with its subfolders), or a glob.
    columns
        The user's names for the columns; by default ``text``, ``document_id``,
        ``member``, ``label``, ``group``, ``prefix``, ``reference``, in any spelling.
        Columns ``member`` and ``nonmember`` of texts are two documents a row. Books
        have ``text``, ``document_id`` (the file's path below the folder), ``title``,
        ``author``, ``isbn`` (where the file says so), ``sha256`` of the file,
        ``n_characters`` of the text before it was cut, ``cut_start``, ``cut_inside``
        and ``cut_end``, the characters cut at its ends and left out within, and how
        many marks of each kind that was, and ``chapters`` as an EPUB lists them
        (``start`` in characters, ``heading``). A book is its own ``group``, unless a
        column is given.
    reserved
        Names that pass-through columns may not have, such as those of attacks; such a
        column gets another.
    encoding
        Of text files that declare none; None is UTF-8.
    bad_input
        Whether files and rows that cannot be read are refused or set aside; None
        refuses them where the user has no such choice.

    Returns
    -------
    Corpus
        The documents, lazily, and the files they come from.

    Raises
    ------
    CorpusError
        If the corpus cannot be read or a row is wrong; the message names file, row and
        column.
    """
    source = find_files(path)
    reading = Reading(encoding, {} if bad_input == "set-aside" else None)
    try:
        for unreadable in source.unreadable:
            reading.reject(unreadable)
        if reading.rejected is not None:
            files = tuple(
                file for file in source.files if _is_readable(file, source, reading)
            )
            source = replace(source, files=files)
        return _read(source, columns or ColumnNames(), reading, reserved)
    except BadInputError as error:
        if bad_input is None:
            raise
        named = "name its encoding with encoding=, or " * isinstance(
            error, EncodingError
        )
        way_out = "set aside what cannot be read with bad_input= set-aside"
        if error.what.endswith(_NO_LABEL):  # as every row's label may be
            way_out = "rename the column if it says something else"
        raise CorpusError(f"{error}; or {named}{way_out}") from error


def _is_readable(file: SourceFile, source: Source, reading: Reading) -> bool:
    """Whether a file can be read to its end, for which its rows are read once more."""
    reader = FORMATS[source.kind]
    try:
        schema = reader.read_schema([file], reading)
        for _ in reader.read_rows([file], schema, schema.names(), reading):
            pass
    except BadInputError as error:
        reading.reject(error)
        return False
    return True


def _read(
    source: Source, names: ColumnNames, reading: Reading, reserved: Collection[str]
) -> Corpus:
    reader, files = FORMATS[source.kind], source.files
    raw = reader.read_schema(files, reading) if files else pl.Schema()
    if not raw:  # JSON Lines without a line
        raise _empty(source, reading.rejected or {})
    partitions = {file: partition_of(file) for file in files if source.kind != "books"}
    in_folders = [name for name in _names_in(partitions.values()) if name not in raw]
    stored = raw
    raw = pl.Schema({**stored, **dict.fromkeys(in_folders, pl.String())})
    if source.kind == "books":
        identity = names.document_id or "document_id"
        names = replace(names, document_id=identity, group=names.group or identity)
    pair, schema = in_pairs(names, raw), raw
    if pair is not None:  # an identifier names both texts, so neither has one
        others = {
            _PAIR_ID.get(name, name): raw[name] for name in raw if name not in pair
        }
        raw = pl.Schema({"text": pl.String(), "member": pl.Boolean(), **others})
    found = resolve(names, raw, where=source.given, reserved=reserved)

    def read_stored(wanted: list[str]) -> Iterator[pl.DataFrame]:
        if not in_folders:
            yield from reader.read_rows(files, stored, wanted, reading)
            return
        needed = [name for name in wanted if name in stored] or stored.names()[:1]
        for file in files:
            values = partitions[file]
            constants = [
                pl.lit(values.get(name), pl.String).alias(name) for name in in_folders
            ]
            for frame in reader.read_rows([file], stored, needed, reading):
                yield frame.with_columns(constants).select(wanted)

    def read_rows(wanted: list[str]) -> Iterator[pl.DataFrame]:
        if pair is None:
            return read_stored(wanted)
        frames = read_stored(schema.names())
        member = pl.lit([True, False], pl.List(pl.Boolean))
        two = (
            frame.with_columns(text=pl.concat_list(pair), member=member)
            for frame in frames
        )
        named = (frame.rename(_PAIR_ID, strict=False) for frame in two)
        return (frame.explode("text", "member").select(wanted) for frame in named)

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
    rejected = (reading.rejected or {}) | {
        each.place: each.what for each in bad_rows.values()
    }
    if n_rows == len(bad_rows):
        raise _empty(source, rejected)
    notes = [*found.notes()]
    notes += [f"the column {name!r} is in the names of folders" for name in in_folders]
    if pair is not None:
        notes.insert(
            0, f"each row is two texts: a member in {pair[0]!r}, another in {pair[1]!r}"
        )
    return Corpus(
        documents=_documents(
            read_rows, found, pl.Series(sorted(bad_rows), dtype=pl.Int64)
        ),
        files=files,
        ignored={str(path): _why_ignored(path) for path in source.ignored},
        n_documents=n_rows - len(bad_rows),
        are_books=source.kind == "books",
        set_aside=rejected,
        notes=tuple(notes),
    )


def _why_ignored(path: Path) -> str:
    if path.name.startswith("_"):
        return "files whose names begin with _ are not read"
    if path.name in DESCRIPTIONS:
        return "it describes the data set"
    return f"files of kind {path.suffix or path.name} are not read"


def _names_in(partitions: Iterable[Mapping[str, str | None]]) -> list[str]:
    return [*dict.fromkeys(name for values in partitions for name in values)]


def _empty(source: Source, rejected: Mapping[str, str]) -> CorpusError:
    why = "has no rows"
    if rejected:
        place, reason = next(iter(rejected.items()))
        why = (
            f"has no row that can be read ({place}: {reason}; {len(rejected):,} set"
            " aside in all)"
        )
    return CorpusError(f"{source.given} {why}; give a corpus with at least one text")


def _documents(
    read_rows: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    bad: pl.Series,
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


# Files of canaries: sets of texts, committed by a hash, of which one text each was published.
#
# A file is JSON Lines, one set a line::
#
#     {"set": "poem-1", "texts": ["...", "..."], "commitment": "...", "seed": 7, "published": 1}
#
# The commitment is the SHA-256 of ``{"set":"poem-1","texts":["...","..."]}``, the JSON of these
# two without spaces, in UTF-8 with only what JSON must escape escaped. It must be lodged where it
# cannot be changed before the seed is drawn, by dice or any source that its owner cannot choose;
# the order of the texts does not matter. The published text is the one at
# ``numpy.random.default_rng([seed, int(commitment, 16)]).integers(len(texts))``, counted from 0;
# the others, its controls, must stay unpublished. The file must hold every committed set: leaving
# sets out after a look at their scores would make the p-value worthless.


def commitment(name: str, texts: Sequence[str]) -> str:
    content = {"set": name, "texts": list(texts)}
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return sha256(compact.encode()).hexdigest()


def draw(committed: str, n_texts: int, seed: int) -> int:
    """Return the index of the text to publish; sets with one seed draw independently."""
    return int(np.random.default_rng([seed, int(committed, 16)]).integers(n_texts))


class CanarySet(BaseModel, extra="forbid", strict=True, frozen=True):
    """One committed set: at least two texts, all different; the name is unique in its file."""

    name: str = Field(alias="set")
    texts: tuple[str, ...] = Field(min_length=2)
    commitment: str
    seed: int = Field(ge=0)
    published: int  # index of the published text

    @model_validator(mode="after")
    def _is_honest(self) -> Self:
        if len(set(self.texts)) < len(self.texts):
            raise ValueError(
                f"the set {self.name!r} has a text twice; give each text once"
            )
        if commitment(self.name, self.texts) != self.commitment:
            raise ValueError(
                f"the texts of the set {self.name!r} are not those committed; give"
                " those"
            )
        if self.published != draw(self.commitment, len(self.texts), self.seed):
            raise ValueError(
                f"the seed of the set {self.name!r} draws another text; correct"
                " 'published'"
            )
        return self


def read_canaries(path: Path) -> list[CanarySet]:
    """Read a file of canaries and check every set against its commitment and its draw."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read as canaries: {error}") from error
    sets: dict[str, CanarySet] = {}
    for number, line in enumerate(lines, start=1):
        try:
            one = CanarySet.model_validate_json(line)
        except ValidationError as error:
            fault = error.errors()[0]
            where = "".join(f"{part!r}: " for part in fault["loc"][:1])
            what = (
                f"this is not a set of canaries ({where}{fault['msg']}); correct the"
                " line"
            )
            if fault["type"] == "value_error":
                what = str(fault["ctx"]["error"])
            raise CorpusError(f"{path}, line {number}: {what}") from error
        if one.name in sets:
            raise CorpusError(
                f"{path}, line {number}: the set {one.name!r} comes twice; give each"
                " set one line"
            )
        sets[one.name] = one
    return list(sets.values())


def canary_documents(sets: Iterable[CanarySet]) -> pl.DataFrame:
    """Make documents of canaries: a set is a group, its published text the group's only member."""
    rows = [
        (f"{one.name}/{index}", text, index == one.published, one.name, None, None)
        for one in sets
        for index, text in enumerate(one.texts)
    ]
    return pl.DataFrame(rows, schema=Documents.create_empty().schema, orient="row")
