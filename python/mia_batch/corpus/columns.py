"""Which column of the user's corpus plays which part, and how it becomes one of ours."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents, LogProbs, Prompts, Samples, Scores, Targets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = ["PAIR", "ColumnNames", "Columns", "in_pairs", "membership", "resolve"]

_WRITTEN = frozenset(
    name
    for schema in (Targets, Prompts, Samples, LogProbs, Scores)
    for name in schema.column_names()
)
"""A further column of one of these names would be mixed up with our own."""

_SHOWN = 20  # column names in a message
_OURS = "input_"  # before the name of a further column that is named as one of ours
_ALSO = {
    "text": ("input",),
    "member": ("is_member", "membership"),
    "label": ("labels",),
    "document_id": ("doc_id",),
}
"""Further names by which a column is known to play a part."""
PAIR = ("member", "nonmember")
"""Columns of texts in pairs, as benchmarks of membership write them."""
_WORDS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The user's names for the columns of a corpus.

    Attributes
    ----------
    text
        The text: a string column, which must exist.
    document_id
        Unique identifier: strings or integers. None, here and below, means the column of the same
        name as the attribute, where there is one; a name that is given must exist.
    member
        True or false, also as 1 or 0; null = unknown.
    label
        The same under its usual name; a row that has both must have them equal.
    group
        Documents whose errors move together, such as one book's: strings or integers.
    prefix
        The user's own prefix; only together with ``reference``. The text is both, joined.
    reference
        The user's own reference.
    """

    text: str = "text"
    document_id: str | None = None
    member: str | None = None
    label: str | None = None
    group: str | None = None
    prefix: str | None = None
    reference: str | None = None


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
        passing = {name: pl.String() if of == pl.Object else of for name, of in types.items()}
        return pl.Schema({**Documents.create_empty().schema, **passing})

    def notes(self) -> Iterator[str]:
        """Say which columns play a part under another name, or pass under another."""
        for part, column in self.parts.items():
            if column not in asdict(ColumnNames()):
                yield f"the {part} is in column {column!r}"
        for name, column in self.further.items():
            if name != column:
                yield f"column {column!r} is kept as {name!r}"

    def expression(self, name: str) -> pl.Expr:
        """Return a column of the documents table as an expression over the user's columns."""
        if name == "member":
            answers = [self.membership(part) for part in ("member", "label") if part in self.parts]
            return pl.coalesce(*answers, pl.lit(None, pl.Boolean)).alias(name)
        if name in Documents.column_names():
            source = self.parts.get(name)
            column = pl.lit(None, pl.String) if source is None else pl.col(source).cast(pl.String)
            return column.alias(name)
        return pl.col(self.further[name]).alias(name)

    def membership(self, part: str) -> pl.Expr:
        """Return ``member`` or ``label`` as the user's column says it, Boolean."""
        return membership(self.parts[part], self.raw[self.parts[part]])

    def needed(self, names: Collection[str]) -> list[str]:
        """Return the user's columns behind some columns of the documents table, at least one."""
        roots = {root for name in names for root in self.expression(name).meta.root_names()}
        return [name for name in self.raw if name in roots] or [self.parts["text"]]


def membership(name: str, dtype: pl.DataType) -> pl.Expr:
    """Read a column as booleans: null for null and for all but 0 and 1, true and false."""
    column = pl.col(name)
    if dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Boolean)
    if dtype.is_numeric():
        return pl.when((column == 0) | (column == 1)).then(column == 1)
    words = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    return words.replace_strict(_WORDS, default=None, return_dtype=pl.Boolean)


def resolve(
    names: ColumnNames, raw: pl.Schema, *, where: str, reserved: Collection[str] = ()
) -> Columns:
    """Find the columns of a corpus, or refuse their types.

    Further columns that have a name of ours, or a ``reserved`` one, get another.
    """
    for name in raw:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            msg = (
                f"{where} has a column {name!r}, a name that Polars takes for a pattern; rename it"
            )
            raise CorpusError(msg)
    parts = _find_parts(names, raw, where)
    for part, name in parts.items():
        _check_type(part, name, raw[name], where)
    ours = {*reserved, *_WRITTEN, *Documents.column_names()}
    further: dict[str, str] = {}
    for column in raw:
        if column not in parts.values():
            name = column
            while name in ours or name in further or (name != column and name in raw):
                name = _OURS + name
            further[name] = column
    return Columns(raw=raw, parts=parts, further=further)


def in_pairs(names: ColumnNames, raw: pl.Schema) -> tuple[str, str] | None:
    """Name the columns of a corpus whose rows hold a member and a non-member each."""
    spelled = {_spelling(name).replace("_", ""): name for name in raw}
    found = [spelled.get(name) for name in PAIR]
    texts = [name for name in found if name is not None and raw[name] == pl.String]
    named = names.text in raw or names.member is not None or names.label is not None
    return None if named or len(texts) < len(PAIR) else (texts[0], texts[1])


def _find_parts(names: ColumnNames, raw: pl.Schema, where: str) -> dict[str, str]:
    default = asdict(ColumnNames())
    wanted = asdict(names)
    given = {part: name for part, name in wanted.items() if name != default[part]}
    for part, name in given.items():
        if name not in raw:
            raise _missing(part, name, raw, where)
    # A column that the user gave another part does not also play its own.
    free = [name for name in raw if name not in given.values()]
    parts = {part: name for part in wanted if (name := _find(part, free, where))} | given
    if "text" not in parts:
        raise _missing("text", "text", raw, where)
    for one, other in (("prefix", "reference"), ("reference", "prefix")):
        if one in parts and other not in parts:
            msg = f"{where} has a column {parts[one]!r} but no {other!r}; give both or neither"
            raise CorpusError(msg)
    return {part: parts[part] for part in wanted if part in parts}


def _find(part: str, free: list[str], where: str) -> str | None:
    """Find the column that plays a part by its name, then by its spelling, then by another name."""
    if part in free:
        return part
    for known in (part, *_ALSO.get(part, ())):
        found = [name for name in free if _spelling(name) == known]
        if len(found) > 1:
            both = " and ".join(map(repr, found))
            msg = f"{where}: columns {both} may both be the {part}; name one with {_option(part)}"
            raise CorpusError(msg)
        if found:
            return found[0]
    return None


def _spelling(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def _option(part: str) -> str:
    return f"--{part.replace('_', '-')}-column"


def _missing(part: str, name: str, raw: pl.Schema, where: str) -> CorpusError:
    near = get_close_matches(name, raw.names(), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    present = ", ".join(map(repr, raw.names()[:_SHOWN])) + (", ..." if len(raw) > _SHOWN else "")
    msg = f"{where} has no column {name!r}{hint}, only {present}; "
    msg = f"{msg}name the {part} with {_option(part)}"
    return CorpusError(msg)


def _check_type(part: str, name: str, dtype: pl.DataType, where: str) -> None:
    allowed = dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)
    wanted = "strings"
    if part in ("document_id", "group"):
        allowed, wanted = allowed or dtype.is_integer(), "strings or integers"
    if part in ("member", "label"):
        allowed = allowed or dtype == pl.Boolean or dtype.is_integer() or dtype.is_float()
        wanted = "booleans, or 0 and 1"
    if not allowed:
        came = "nested JSON values" if dtype == pl.Object else f"type {dtype}"
        msg = f"{where}: column {name!r} is the {part} but holds {came}; it must hold {wanted}"
        raise CorpusError(msg)
