"""Reads a corpus into the documents table: finds its columns, and checks every row first."""

import json
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from mia_batch.corpus.addresses import Address
from mia_batch.corpus.conversations import Layout, find_conversations
from mia_batch.corpus.drawing import (
    Draw,
    DrawRequest,
    KeptRows,
    draw_rows,
    find_source_column,
)
from mia_batch.corpus.files import (
    FORMATS,
    BadInputError,
    EncodingError,
    Reading,
    Source,
    SourceFile,
    combine_digests,
    digest_files,
    find_files,
    find_kind,
    is_cache,
    is_description,
    parse_partition,
    peek_jsonl_schema,
    show_path,
)
from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents, LogProbs, Prompts, Samples, Scores, Targets
from mia_batch.tables import generate

_OUR_SCHEMAS = (Documents, Targets, Prompts, Samples, LogProbs, Scores)
# A further column of one of these names would be mixed up with our own
_TABLE_COLUMNS = set[str]().union(*(schema.column_names() for schema in _OUR_SCHEMAS))

_SHOWN = 20  # column names in a message
_OURS = "input_"  # before the name of a further column that is named as one of ours
_OTHER_NAMES = {
    "text": ("input",),
    "member": ("is_member", "membership"),
    "label": ("labels",),
    "document_id": ("doc_id", "id"),
}
"""Further names by which the column of a role is found."""
_PAIR_ID = {"document_id": "pair_id"}
# Columns of texts in pairs, as benchmarks of membership write them
PAIR = ("member", "nonmember")
_WORDS = dict.fromkeys(("1", "1.0", "true", "member"), True)
_WORDS |= dict.fromkeys(("0", "0.0", "false", "nonmember", "non_member"), False)
_SPOKEN = {"yes": True, "no": False}  # a label of that name may be about anything
_TEXT_TYPES = (pl.String, pl.Categorical, pl.Enum)


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
        exist, and an empty one stands for no column.
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
    """The columns of a corpus, each with its role."""

    raw: pl.Schema  # the columns as they are read
    roles: Mapping[str, str]  # an attribute of `ColumnNames` to the user's column
    further: Mapping[str, str]  # our name of a pass-through column to the user's

    @property
    def schema(self) -> pl.Schema:
        """The columns of the documents table; nested JSON values pass as text."""
        schema = {**Documents.create_empty().schema}
        for name, column in self.further.items():
            dtype = self.raw[column]
            schema[name] = pl.String() if dtype == pl.Object else dtype
        return pl.Schema(schema)

    def notes(self) -> Iterator[str]:
        """Iterate over sentences on columns whose role or name in the table is another."""
        for role, column in self.roles.items():
            if column == "author" or column not in asdict(ColumnNames()):
                yield f"the {role} is in column {column!r}"
        for name, column in self.further.items():
            if name != column:
                yield f"column {column!r} is kept as {name!r}"

    def build_expression(self, name: str) -> pl.Expr:
        """Build a column of the documents table from the user's columns."""
        if name == "member":
            roles = [role for role in ("member", "label") if role in self.roles]
            answers = [self.parse_membership(role) for role in roles]
            return pl.coalesce(*answers, pl.lit(None, pl.Boolean)).alias(name)
        if name not in Documents.column_names():
            return pl.col(self.further[name]).alias(name)
        column = self.roles.get(name)
        if column is None:
            return pl.lit(None, pl.String).alias(name)
        return pl.col(column).cast(pl.String).alias(name)

    def parse_membership(self, role: str) -> pl.Expr:
        words = _WORDS | _SPOKEN if role == "member" else _WORDS
        column = self.roles[role]
        return parse_membership(column, self.raw[column], words)

    def find_raw_columns(self, names: Collection[str]) -> list[str]:
        """Return the user's columns behind some columns of the documents table, at least one."""
        roots = set[str]()
        for name in names:
            roots.update(self.build_expression(name).meta.root_names())
        return [name for name in self.raw if name in roots] or [self.roles["text"]]


def parse_membership(
    name: str, dtype: pl.DataType, words: Mapping[str, bool] = _WORDS
) -> pl.Expr:
    """Read a column as booleans: null for null, and for what is neither true nor false."""
    column = pl.col(name)
    if dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Boolean)
    if dtype.is_numeric():
        return pl.when((column == 0) | (column == 1)).then(column == 1)
    answers = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    spelled = answers.str.replace("[ -]", "_")
    return spelled.replace_strict(words, default=None, return_dtype=pl.Boolean)


def find_columns(
    names: ColumnNames,
    raw: pl.Schema,
    *,
    location: str,
    reserved: Collection[str] = (),
) -> Columns:
    """Find the role of each column, and check that its type fits."""
    for name in raw:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise CorpusError(
                f"{location} has a column {name!r}, a name that Polars takes for a"
                " pattern; rename it"
            )
    roles = _find_roles(names, raw, location)
    author = roles.get("author")
    if author is not None and names.author is None and raw[author] not in _TEXT_TYPES:
        del roles["author"]  # a column of that name that holds something else
    for role, name in roles.items():
        _check_type(role, name, raw[name], location)
    author = roles.pop("author", None)
    reserved_names = {*reserved, *_TABLE_COLUMNS}
    if author is not None:
        reserved_names.add("author")
    further: dict[str, str] = {}
    for column in raw:
        if column == author:
            further["author"] = column
        elif column not in roles.values():
            name = column
            while (
                name in reserved_names
                or name in further
                or (name != column and name in raw)
            ):
                name = _OURS + name
            further[name] = column
    return Columns(raw=raw, roles=roles, further=further)


def _check_type(role: str, name: str, dtype: pl.DataType, location: str) -> None:
    values = _ROLE_VALUES.get(role, "strings")
    is_allowed = dtype in (*_TEXT_TYPES, pl.Null)
    is_allowed |= values != "strings" and dtype.is_integer()
    is_allowed |= values == _ANSWERS and (dtype == pl.Boolean or dtype.is_float())
    if not is_allowed:
        actual = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
        raise CorpusError(
            f"{location}: column {name!r} is the {role} but holds {actual}; it must"
            f" hold {values}"
        )


_ANSWERS = "booleans, or 0 and 1"
_ROLE_VALUES = {
    **dict.fromkeys(("document_id", "group"), "strings or integers"),
    **dict.fromkeys(("member", "label"), _ANSWERS),
}


def find_pair(names: ColumnNames, raw: pl.Schema) -> tuple[str, str] | None:
    """Find the columns of a corpus whose rows hold a member and a non-member each."""
    spellings = {_spelling(name).replace("_", ""): name for name in raw}
    columns = [spellings.get(name) for name in PAIR]
    texts = [name for name in columns if name is not None and raw[name] == pl.String]
    has_names = names.text in raw or names.member is not None or names.label is not None
    if has_names or len(texts) < len(PAIR):
        return None
    return texts[0], texts[1]


def find_layout(names: ColumnNames, raw: pl.Schema) -> Layout | None:
    """Find the columns of conversations in a corpus that has no column of texts."""
    given = {*asdict(names).values()} - {None}
    spellings = {_spelling(name): name for name in raw}
    has_text = names.text in raw or names.text != "text" or "text" in spellings
    if has_text or names.reference is not None or "reference" in spellings:
        return None
    free = {spelling: name for spelling, name in spellings.items() if name not in given}
    layout = find_conversations(raw, free)
    if layout is None:
        return None
    identifiers = ("document_id", *_OTHER_NAMES["document_id"], "conversation_id")
    identifier = next((free[name] for name in identifiers if name in free), None)
    return replace(
        layout,
        document_id=names.document_id or identifier,
        has_group=names.group is not None or "group" in spellings,
    )


def _find_roles(names: ColumnNames, raw: pl.Schema, location: str) -> dict[str, str]:
    """Return the user's column of each role that has one."""
    given_names, default = asdict(names), asdict(ColumnNames())
    # An empty name says that no column plays the role
    column_names = {role: name for role, name in given_names.items() if name != ""}
    renamed = {
        role: name for role, name in column_names.items() if name != default[role]
    }
    # A column that the user gave another role does not also play its own.
    free = [name for name in raw if name not in renamed.values()]
    columns = {role: _find_column(role, free, location) for role in column_names}
    roles = {role: name for role, name in columns.items() if name} | renamed
    if "text" not in renamed and roles.get("text") not in (None, "text"):
        _refuse_instructions(roles["text"], raw, location)
    for role, name in ({"text": "text"} | renamed).items():
        if name not in raw and roles.get(role, name) == name:
            near = get_close_matches(name, raw.names(), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            listing = ", ".join(map(repr, raw.names()[:_SHOWN]))
            if len(raw) > _SHOWN:
                listing += ", ..."
            way_out = f"name the {role} with {_option(role)}"
            if role == "text":
                way_out += _hint_at_rows_below(raw)
            raise CorpusError(
                f"{location} has no column {name!r}{hint}, only {listing}; {way_out}"
            )
    for role, partner in (("prefix", "reference"), ("reference", "prefix")):
        if role in roles and partner not in roles:
            raise CorpusError(
                f"{location} has a column {roles[role]!r} but no {partner!r}; give both"
                " or neither"
            )
    return {role: roles[role] for role in column_names if role in roles}


def _hint_at_rows_below(raw: pl.Schema) -> str:
    """Return how rows are taken out of a file whose one object holds them all."""
    for name, dtype in raw.items():
        if dtype == pl.Object and re.fullmatch(r"\w+", name):
            return (
                f"; if the rows are below {name!r}, take them out: jq -c '.{name}[]'"
                " FILE > rows.jsonl"
            )
    return ""


_ANSWERED = ("output", "response", "answer", "completion")


def _refuse_instructions(text: str, raw: pl.Schema, location: str) -> None:
    """Refuse to take the input of instructions, often empty, for the text."""
    answers = [name for name in raw if _spelling(name) in _ANSWERED]
    if "input" in _spelling(text) and answers:
        columns = ", ".join(map(repr, raw.names()[:_SHOWN]))
        raise CorpusError(
            f"{location} has the columns of instructions and answers ({columns}), and"
            f" no column 'text'; name the one to audit with {_option('text')}, such as"
            f" {answers[0]!r}"
        )


def _find_column(role: str, free: list[str], location: str) -> str | None:
    """Find the column of a role by its name, then by its spelling, then by another name."""
    if role in free:
        return role
    for spelling in (role, *_OTHER_NAMES.get(role, ())):
        matches = [name for name in free if _spelling(name) == spelling]
        if len(matches) > 1:
            listing = " and ".join(map(repr, matches))
            raise CorpusError(
                f"{location}: columns {listing} may both be the {role}; name one with"
                f" {_option(role)}"
            )
        if matches:
            return matches[0]
    return None


def _spelling(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def _option(role: str) -> str:
    return f"{role}_column="


class Fault(NamedTuple):
    """What makes a row wrong."""

    wrong: pl.Expr  # true in rows that are refused
    name: str  # the column whose value the message shows
    rest: str  # what the message says after the value


def check_rows(
    read_frames: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    *,
    find_place: Callable[[int], str],
    reject: Callable[[int, str], None],
) -> int:
    """Read all rows once and count them; ``reject`` gets a wrong one, and may raise."""
    faults = [*_faults(columns)]
    identifier = columns.build_expression("document_id")
    hashes = [np.empty(0, np.uint64)]
    n_rows = 0
    for frame in read_frames(columns.raw.names()):
        for row, sentence in faulty_rows(frame, faults):
            reject(n_rows + row, sentence)
        n_rows += frame.height
        if "document_id" in columns.roles:
            hashes.append(frame.select(identifier.hash()).to_series().to_numpy())
    ordered = np.sort(np.concatenate(hashes))
    is_repeated = ordered[1:] == ordered[:-1]
    repeated = pl.Series(np.unique(ordered[1:][is_repeated]))
    if repeated.is_empty():
        return n_rows
    # Different identifiers may share a hash, so those that do are compared in full.
    first_rows: dict[str, int] = {}
    start = 0
    for frame in read_frames(columns.find_raw_columns(["document_id"])):
        names = frame.select(identifier).to_series()
        for index in names.hash().is_in(repeated.implode()).arg_true():
            row, name = start + index, names[index]
            first_row = first_rows.setdefault(name, row)
            if first_row != row:
                place = find_place(first_row)
                problem = f"document_id {name!r} is also in {place}"
                reject(row, f"{problem}; identifiers must be unique")
        start += frame.height
    return n_rows


_NO_LABEL = ", which says nothing of membership"


def _faults(columns: Columns) -> Iterator[Fault]:
    roles = columns.roles
    answers = {
        role: columns.parse_membership(role)
        for role in ("member", "label")
        if role in roles
    }
    for role, answer in answers.items():
        is_unclear = pl.col(roles[role]).is_not_null() & answer.is_null()
        answers_known = "true or false, member or non-member"
        if role == "member":
            answers_known += ", yes or no"
        way_out = f"write 1 or 0 ({answers_known}), null if unknown"
        yield Fault(is_unclear, roles[role], f"{_NO_LABEL}; {way_out}")
    if len(answers) == 2:
        differ = answers["member"].ne(answers["label"]).fill_null(value=False)
        rest = f" but {roles['label']!r} says the opposite; make them agree"
        yield Fault(differ, roles["member"], rest)
    identifier = roles.get("document_id")
    if identifier is not None:
        rest = "; give every document an identifier or none"
        yield Fault(pl.col(identifier).is_null(), identifier, rest)
    if "prefix" in roles:
        for role, partner in (("reference", "prefix"), ("prefix", "reference")):
            column, partner_column = roles[role], roles[partner]
            is_alone = pl.col(partner_column).is_not_null() & pl.col(column).is_null()
            rest = f" but {partner_column!r} is not; give both or neither"
            yield Fault(is_alone, column, rest)


def faulty_rows(frame: pl.DataFrame, faults: list[Fault]) -> Iterator[tuple[int, str]]:
    """Iterate over the wrong rows of a frame, with what is wrong and what to do."""
    for fault in faults:
        for row in frame.select(fault.wrong.arg_true()).to_series():
            value = frame[fault.name][row]
            if isinstance(value, pl.Series):
                value = value.to_list()
            shown = "null" if value is None else reprlib.repr(value)
            yield row, f"column {fault.name!r} is {shown}{fault.rest}"


BadInput = Literal["refuse", "set-aside"]
"""What becomes of a file or a row that cannot be read."""
Conversations = Literal["answers", "text", "refuse"]
"""What becomes of rows that hold conversations: see `read_documents`."""


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
    has_conversations
        Whether each text is an answer, and what came before it in a column
        ``conversation``.
    ignored
        Files below the given folder that are of no known kind, with the reason.
    set_aside
        What could not be read and was left out, a file or a row of one, with the
        reason.
    notes
        Sentences about columns that were found under another name, or got one.
    draw
        Which rows of the files the documents are, where they were drawn.
    """

    documents: pl.LazyFrame
    files: tuple[SourceFile, ...]
    n_documents: int
    are_books: bool = False
    has_conversations: bool = False
    ignored: dict[str, str] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    draw: Draw | None = None

    def write_number(self) -> str:
        """Write how many documents there are, and of how many they were drawn."""
        if self.draw is not None:
            return self.draw.note()
        noun = "document" if self.n_documents == 1 else "documents"
        return f"{self.n_documents:,} {noun}"

    def digest_files(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file, by its name."""
        return digest_files(self.files) if self.draw is None else self.draw.digests

    def digest(self) -> str:
        """Hash the content of the files in order, whatever their names: 64 hexadecimal digits."""
        return combine_digests(self.digest_files())


def read_documents(
    path: Path | str,
    columns: ColumnNames | None = None,
    *,
    reserved: Collection[str] = (),
    encoding: str | None = None,
    bad_input: BadInput | None = None,
    conversations: Conversations = "refuse",
    draw: DrawRequest | None = None,
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
    conversations
        What becomes of rows that hold conversations, as columns without a text say:
        each answer is a document (``answers``), each row is (``text``), or they are
        refused.
    draw
        How many documents are drawn; only their rows are checked and read then. None
        reads all.

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
        names = columns or ColumnNames()
        return _read(source, names, reading, reserved, conversations, draw)
    except BadInputError as error:
        if bad_input is None:
            raise
        way_out = "set aside what cannot be read with bad_input= set-aside"
        if error.problem.endswith(_NO_LABEL):  # as every row's label may be
            way_out = "rename the column if it says something else"
        if isinstance(error, EncodingError):
            way_out = f"name its encoding with encoding=, or {way_out}"
        raise CorpusError(f"{error}; or {way_out}") from error


def peek_layout(
    path: Path | str, columns: ColumnNames, *, encoding: str | None = None
) -> Layout | None:
    """Find the columns of conversations in a corpus, of which no row is read but one.

    None where there are none, or where the columns cannot be read: who reads all rows
    says why.
    """
    try:
        source = find_files(path)
        if source.kind == "books" or not source.files:
            return None
        reading = Reading(encoding)
        if source.kind == "jsonl":
            raw = peek_jsonl_schema(source.files[0], reading)
        else:
            raw = FORMATS[source.kind].read_schema(source.files[:1], reading)
    except CorpusError:
        return None
    return None if find_pair(columns, raw) else find_layout(columns, raw)


def _is_readable(file: SourceFile, source: Source, reading: Reading) -> bool:
    """Return whether a file can be read to its end; its rows are read once more for it."""
    reader = FORMATS[source.kind]
    try:
        schema = reader.read_schema([file], reading)
        for _ in reader.read_rows([file], schema, schema.names(), reading):
            pass
    except BadInputError as error:
        reading.reject(error)
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowReader:
    """The rows of a corpus's files; one of a pair of texts, or of answers, becomes several."""

    source: Source
    reading: Reading
    file_schema: pl.Schema  # the columns of the files
    partitions: Mapping[SourceFile, Mapping[str, str | None]]
    folder_columns: list[str]  # those that only the names of folders have
    pair: tuple[str, str] | None  # columns of a member and of a non-member
    layout: Layout | None  # columns of conversations

    def read(self, columns: list[str]) -> Iterator[pl.DataFrame]:
        if self.layout is not None:
            for frame, _ in self._read_answers(self.layout):
                yield frame.select(columns)
            return
        if self.pair is None:
            yield from self._read_stored(columns)
            return
        member = pl.lit([True, False], pl.List(pl.Boolean))
        for frame in self._read_stored([*self.file_schema, *self.folder_columns]):
            pairs = frame.with_columns(text=pl.concat_list(self.pair), member=member)
            renamed = pairs.rename(_PAIR_ID, strict=False)
            yield renamed.explode("text", "member").select(columns)

    def _read_answers(self, layout: Layout) -> Iterator[tuple[pl.DataFrame, list[int]]]:
        """Iterate over answers, and the number of the stored row of each."""

        def reject(row: int, problem: str, way_out: str) -> None:
            self.reading.reject(
                BadInputError(self._find_stored_place(row), problem, way_out)
            )

        start = 0
        for frame in self._read_stored([*self.file_schema, *self.folder_columns]):
            yield layout.read_answers(frame, start, reject)
            start += frame.height

    def _read_stored(self, columns: list[str]) -> Iterator[pl.DataFrame]:
        reader, files = FORMATS[self.source.kind], self.source.files
        if not self.folder_columns:
            yield from reader.read_rows(files, self.file_schema, columns, self.reading)
            return
        in_files = [name for name in columns if name in self.file_schema]
        in_files = in_files or self.file_schema.names()[:1]
        for file in files:
            values = self.partitions[file]
            constants = [
                pl.lit(values.get(name), pl.String).alias(name)
                for name in self.folder_columns
            ]
            for frame in reader.read_rows(
                [file], self.file_schema, in_files, self.reading
            ):
                yield frame.with_columns(constants).select(columns)

    def count_answers(self, layout: Layout) -> tuple[int, int]:
        """Count the stored rows that are conversations, and the answers in them."""
        n_stored = n_answers = 0
        for frame, stored_rows in self._read_answers(layout):
            n_stored += len(set(stored_rows))
            n_answers += frame.height - frame["text"].null_count()
        return n_stored, n_answers

    def find_place(self, row: int) -> str:
        """Return where a row is, as the user counts."""
        if self.layout is not None:
            numbers = (numbers for _, numbers in self._read_answers(self.layout))
            row = next(islice(chain.from_iterable(numbers), row, None))
        return self._find_stored_place(row if self.pair is None else row // 2)

    def _find_stored_place(self, number: int) -> str:
        places_in, reading = FORMATS[self.source.kind].places_in, self.reading
        places = chain.from_iterable(
            reading.choose(file, places_in(file, reading)) for file in self.source.files
        )
        has_row = (place for place in places if place not in (reading.rejected or ()))
        return next(islice(has_row, number, None))


def _read(
    source: Source,
    names: ColumnNames,
    reading: Reading,
    reserved: Collection[str],
    use_of_conversations: Conversations,
    draw_request: DrawRequest | None,
) -> Corpus:
    files, is_books = source.files, source.kind == "books"
    file_schema = pl.Schema()
    if files:
        file_schema = FORMATS[source.kind].read_schema(files, reading)
    if not file_schema:  # JSON Lines without a line
        raise _no_rows(source, reading.rejected or {})
    partitions = {} if is_books else {file: parse_partition(file) for file in files}
    folder_names = dict.fromkeys(chain.from_iterable(partitions.values()))
    folder_columns = [name for name in folder_names if name not in file_schema]
    raw = pl.Schema({**file_schema, **dict.fromkeys(folder_columns, pl.String())})
    if is_books:
        identifier = names.document_id or "document_id"
        group = names.group or identifier
        names = replace(names, document_id=identifier, group=group)
    pair = find_pair(names, raw)
    layout = None if pair or is_books else find_layout(names, raw)
    if layout is not None:
        if use_of_conversations == "refuse":
            raise _refuse_conversations(source.location, layout)
        layout = replace(layout, as_text=use_of_conversations == "text")
        if draw_request is not None and layout.has_several_answers:
            raise CorpusError(
                f"documents= draws rows, and one of {source.location} holds several"
                " answers, whose share nobody could name; leave it out, or give"
                " conversations= text"
            )
    rows = _RowReader(
        source=source,
        reading=reading,
        file_schema=file_schema,
        partitions=partitions,
        folder_columns=folder_columns,
        pair=pair,
        layout=layout,
    )
    if layout is not None:
        raw = layout.build_schema(raw)
    if pair is not None:  # an identifier names both texts, so neither has one
        rest = {_PAIR_ID.get(name, name): raw[name] for name in raw if name not in pair}
        raw = pl.Schema({"text": pl.String(), "member": pl.Boolean(), **rest})
    columns = find_columns(names, raw, location=source.location, reserved=reserved)
    draw = None
    read_rows = rows.read
    if draw_request is not None:
        draw, rows = _draw(draw_request, rows, columns)
        read_rows = KeptRows(rows.read, columns.raw.names()).read
    bad_rows: dict[int, BadInputError] = {}

    def reject(row: int, sentence: str) -> None:
        problem, _, way_out = sentence.rpartition("; ")
        error = BadInputError(rows.find_place(row), problem, way_out)
        if reading.rejected is None:
            raise error
        bad_rows.setdefault(row, error)

    n_rows = check_rows(read_rows, columns, find_place=rows.find_place, reject=reject)
    rejected = {error.place: error.problem for error in bad_rows.values()}
    rejected = (reading.rejected or {}) | rejected
    if n_rows == len(bad_rows):
        raise _no_rows(source, rejected)
    bad = pl.Series(sorted(bad_rows), dtype=pl.Int64)
    return Corpus(
        documents=_scan_documents(read_rows, columns, bad),
        files=files,
        ignored={show_path(path): _why_ignored(path) for path in source.ignored},
        n_documents=n_rows - len(bad_rows),
        are_books=is_books,
        has_conversations=layout is not None and not layout.as_text,
        set_aside=rejected,
        notes=(*source.notes, *_list_notes(rows, columns)),
        draw=draw,
    )


def _refuse_conversations(location: str, layout: Layout) -> CorpusError:
    columns = " and ".join(map(repr, layout.columns))
    example = "" if layout.answer is None else f", such as {layout.answer!r}"
    return CorpusError(
        f"{location} holds conversations ({columns}), where texts are needed; name a"
        f" column of texts with {_option('text')}{example}"
    )


def _draw(
    request: DrawRequest, rows: _RowReader, columns: Columns
) -> tuple[Draw, _RowReader]:
    """Draw rows, and return what reads only them."""
    location = rows.source.location
    if rows.pair is not None:
        raise CorpusError(
            f"{location} has two texts a row, a member and another, and a draw is about"
            " the share of members; leave out documents="
        )
    column = None
    if request.by is not None:
        column = find_source_column(
            request.by, columns.raw, columns.roles, columns.further, location
        )
    draw, reading = draw_rows(request, rows.source, rows.reading, rows.read, column)
    return draw, replace(rows, reading=reading)


def _list_notes(rows: _RowReader, columns: Columns) -> Iterator[str]:
    if rows.layout is not None:
        yield rows.layout.describe(*rows.count_answers(rows.layout))
    if rows.pair is not None:
        member, non_member = map(repr, rows.pair)
        yield f"each row is two texts: a member in {member}, another in {non_member}"
    yield from columns.notes()
    for name in rows.folder_columns:
        yield f"the column {name!r} is in the names of folders"
    folder_names = dict.fromkeys(chain.from_iterable(rows.partitions.values()))
    for name in folder_names:
        if name in rows.file_schema:
            yield (
                f"the files have a column {name!r}, so what the names of folders say of"
                " it is not read"
            )


def _why_ignored(path: Path | Address) -> str:
    if path.name.startswith("_"):
        return "files whose names begin with _ are not read"
    if is_description(path):
        return "it describes the data set"
    if is_cache(path):
        return "it keeps what was computed from the tables beside it"
    if find_kind(PurePath(path.name)) is not None:
        return "it is another name of a file beside it"
    kind = show_path(Path(path.suffix or path.name))
    return f"files of kind {kind} are not read"


def _no_rows(source: Source, rejected: Mapping[str, str]) -> CorpusError:
    problem = "has no rows"
    if rejected:
        place, reason = next(iter(rejected.items()))
        problem = (
            f"has no row that can be read ({place}: {reason}; {len(rejected):,} set"
            " aside in all)"
        )
    way_out = "give a corpus with at least one text"
    return CorpusError(f"{source.location} {problem}; {way_out}")


def _scan_documents(
    read_rows: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    bad_rows: pl.Series,
) -> pl.LazyFrame:
    schema = columns.schema

    def read_frames(requested: list[str] | None) -> Iterator[pl.DataFrame]:
        names = requested or schema.names()
        expressions = [columns.build_expression(name) for name in names]
        start = 0
        for rows in read_rows(columns.find_raw_columns(names)):
            number = pl.int_range(start, start + pl.len())
            start += rows.height
            good = rows
            if len(bad_rows):
                good = rows.filter(~number.is_in(bad_rows.implode()))
            # Not select() alone: of constants only, it would make a single row.
            yield good.with_columns(expressions).select(names)

    return generate(schema, read_frames)


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
            canary_set = CanarySet.model_validate_json(line)
        except ValidationError as error:
            problem = _describe_fault(error.errors()[0])
            raise CorpusError(f"{path}, line {number}: {problem}") from error
        name = canary_set.name
        if name in sets:
            raise CorpusError(
                f"{path}, line {number}: the set {name!r} comes twice; give each set"
                " one line"
            )
        sets[name] = canary_set
    return list(sets.values())


def _describe_fault(fault: ErrorDetails) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    field_name = "".join(f"{key!r}: " for key in fault["loc"][:1])
    reason = f"{field_name}{fault['msg']}"
    return f"this is not a set of canaries ({reason}); correct the line"


def canary_documents(sets: Iterable[CanarySet]) -> pl.DataFrame:
    """Build documents of canaries: a set is a group, its published text the only member."""
    rows = []
    for canary_set in sets:
        name = canary_set.name
        for index, text in enumerate(canary_set.texts):
            is_published = index == canary_set.published
            rows.append((f"{name}/{index}", text, is_published, name, None, None))
    return pl.DataFrame(rows, schema=Documents.create_empty().schema, orient="row")
