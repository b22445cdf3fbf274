"""Tables of documents, groups or single texts: headings, cells and what they are sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs
from markupsafe import Markup

from mia_batch.report.html.strips import strips
from mia_batch.report.html.text import NO_VALUE, interval, number, share, visible
from mia_batch.schemas import Rollup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from mia_batch.report.html.contents import Contents

__all__ = ["ANSWERS", "Table", "document_tables", "rollup_columns"]

ANSWERS = {
    "comes_out": "Parts of it come out word for word.",
    "known_better": "The model knows it better than comparable texts.",
    "cannot_tell": "It cannot be told with these texts.",
    "above_all": "It scores above every comparison text, but they are too few to name it.",
    "nothing_found": "Nothing was found with these means.",
}
"""The answers about a document; none of them says how or where it was acquired."""
_STRIP = "From first to last page"
_NAMES = ("title", "key", "author")
_TABLES = (
    (("document", "outside"), "documents", "Documents"),
    (("group",), "groups", "Groups of documents"),
)
_IN_EVIDENCE = "shown in evidence"  # no name of a column
_KNOWN = {True: "labelled member", False: "labelled non-member", None: "audited"}
_MOST_TEXTS = 200
_MOST_CHARACTERS = 160

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: what heads it, what its cells say, and where that stands.

    Cells are sorted by the number in column ``sort``, without one by their text.
    """

    heading: str
    sources: tuple[str, ...]
    write: Callable[[Row], str]
    sort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that can be sorted and filtered."""

    name: str
    title: str
    source: str
    columns: list[Column]
    rows: list[Row]
    note: str = ""

    @property
    def has_strips(self) -> bool:
        """Whether a column shows heat strips."""
        return any(column.heading == _STRIP for column in self.columns)

    @property
    def choices(self) -> list[str]:
        """The answers that are given, among which one can be chosen."""
        found = {row.get("verdict") for row in self.rows}
        return [answer for verdict, answer in ANSWERS.items() if verdict in found]


def document_tables(contents: Contents, in_evidence: Collection[str]) -> Iterator[Table]:
    """Yield the table of documents, of groups, or where there are none that of single texts.

    Runs of windows that are ``in_evidence`` are links to them.
    """
    rollup = contents.frame("rollup")
    for levels, name, title in _TABLES:
        rows = rollup.filter(pl.col("level").is_in(levels)) if rollup.height else rollup
        if rows.height:
            columns = [*rollup_columns(rows, strips(contents) if "document" in levels else {})]
            linked = pl.col("longest_target_id").is_in(list(in_evidence))
            yield Table(
                name=name,
                title=title,
                source="rollup.parquet",
                columns=columns,
                rows=rows.with_columns(linked.alias(_IN_EVIDENCE)).to_dicts(),
                note=_lacking(columns),
            )
    if rollup.is_empty():
        yield from _texts(contents)


def rollup_columns(rows: pl.DataFrame, drawn: Mapping[str, Markup]) -> Iterator[Column]:
    """Yield the columns of a roll-up that say something, with those of the corpus and strips."""
    there = {name for name in rows.columns if rows[name].count()}
    called = tuple(name for name in _NAMES if name in there)
    yield Column("Name", called, lambda row: _name([row[name] for name in called]))
    yield Column("Answer", ("verdict",), lambda row: ANSWERS[row["verdict"]])
    if {"outside"} & {*rows["level"]} or "member" in there:
        yield Column("What it is", ("level", "member"), _what)
    if drawn:
        yield Column(_STRIP, ("curves.y",), lambda row: drawn.get(row["key"], Markup("")))
    yield from (column for column in _NUMBERS if column.sources[0] in there)
    for name in rows.columns:
        known = name in {*Rollup.column_names(), *_NAMES, "member"}
        if name in there and not known and not rows[name].equals(rows["key"]):
            yield _plain_text(name)


def _what(row: Row) -> str:
    """Tell documents that are known from those that are asked about."""
    return "outside" if row["level"] == "outside" else _KNOWN[row.get("member")]


def _name(parts: list[str | None]) -> Markup:
    """Write the first part that there is; the others stand small below it."""
    first, *others = filter(None, parts)
    below = Markup("").join(Markup(" <small>{}</small>").format(_short(each)) for each in others)
    return Markup("{}{}").format(_short(first), below)


def _short(value: object) -> str:
    return NO_VALUE if value is None else visible(value, _MOST_CHARACTERS, note=False)


def _longest(row: Row) -> str:
    words = number(row["longest_words"])
    link = Markup('<a href="#w-{}">{}</a>')
    return link.format(row["longest_target_id"], words) if row[_IN_EVIDENCE] else words


def _plain_text(name: str, heading: str = "") -> Column:
    return Column(heading or name, (name,), lambda row: _short(row[name]))


def _limits(heading: str, name: str, sort: str) -> Column:
    sources = (sort, name, f"{name}_low", f"{name}_high")
    return Column(heading, sources, lambda row: _range(*(row[each] for each in sources[1:])), sort)


def _range(value: float | None, low: float | None, high: float | None) -> str:
    return f"at least {number(low)}" if value is None and low else interval(value, low, high)


def _plain_number(heading: str, name: str, write: Callable[[Any], str] = number) -> Column:
    return Column(heading, (name,), lambda row: write(row[name]), name)


_NUMBERS = (
    Column("Longest run, words", ("longest_words",), _longest, "longest_words"),
    _plain_number("Passages, 20 words", "n_passages_20"),
    _plain_number("Passages, 50 words", "n_passages_50"),
    _plain_number("Common passages", "n_common"),
    _plain_number("Windows verbatim", "share_verbatim", share),
    _plain_number("Near-verbatim", "share_near_verbatim", share),
    _plain_number("Extraction probability, highest", "extraction_probability"),
    _plain_number("Windows extractable", "share_extractable", share),
    _plain_number("Longest stretch extracted, words", "extracted_words"),
    _plain_number("Extracted", "extracted_share", share),
    _plain_number("bmc@5", "bmc_5", share),
    _plain_number("bmc@5 of other documents", "bmc_5_others", share),
    _limits("Mean score (95 % interval)", "mean", "mean"),
    _limits("Contamination (95 %)", "contamination", "contamination_low"),
    _plain_number("Contamination of this row alone, at least (95 %)", "contamination_low_alone"),
    _plain_number("p", "p_value"),
    _plain_number("q", "q_value"),
    Column(
        "Windows asked",
        ("n_asked", "n_windows"),
        lambda row: f"{row['n_asked']:,} of {row['n_windows']:,}",
        "n_asked",
    ),
    _plain_number("Windows scored", "n_scored"),
    _plain_text("reason", "Why no p-value"),
    _plain_text("contamination_reason", "Why no contamination"),
)


def _lacking(columns: list[Column]) -> str:
    """Name the usual columns that the run has nothing for."""
    there = {column.heading for column in columns}
    lacking = [each.heading for each in _NUMBERS if each.sort and each.heading not in there]
    return f"Not recorded: {'; '.join(lacking)}." if lacking else ""


def _texts(contents: Contents) -> Iterator[Table]:
    """Yield the texts with the highest scores."""
    attack = contents.primary
    if not contents.has("scores", attack):
        return
    scores = contents.tables["scores"].filter(pl.col(attack).is_not_null(), role="target")
    named = cs.by_name("target_id", "document_id", "member", "n_words", require_all=False)
    own = scores.select(named, score=attack)
    found = own.top_k(_MOST_TEXTS, by=["score", "target_id"]).collect(engine="streaming")
    ids = pl.col("target_id").is_in(found["target_id"].implode())
    texts = contents.frame("targets", ids).select("target_id", "target")
    of_these = pl.col("key").is_in(found["target_id"].implode())
    verdicts = contents.frame("verdicts", of_these, attack=attack, level="target")
    found = found.join(texts, on="target_id", how="left")
    if verdicts.height:
        answers = verdicts.select("key", "p_value", "q_value").unique("key", keep="first")
        found = found.join(answers, left_on="target_id", right_on="key", how="left")
    found = found.sort("score", "target_id", descending=True)
    there = [column for column in _OF_TEXTS if _says(found, column.sources[0])]
    yield Table(
        name="texts",
        title="Texts with the highest scores",
        source="scores.parquet, targets.parquet, verdicts.parquet",
        columns=there,
        rows=found.to_dicts(),
        note=f"At most {_MOST_TEXTS:,} are shown; all texts are in scores.parquet.",
    )


def _says(rows: pl.DataFrame, name: str) -> bool:
    return name in rows.columns and bool(rows[name].count())


_MEMBERSHIP = {True: "member", False: "non-member", None: "unknown"}
_OF_TEXTS = (
    Column("Text", ("target_id",), lambda row: _short(row["document_id"] or row["target_id"])),
    Column("Label", ("member",), lambda row: _MEMBERSHIP[row["member"]]),
    _plain_number("Score", "score"),
    _plain_number("p", "p_value"),
    _plain_number("q", "q_value"),
    _plain_number("Words", "n_words"),
    Column("Begins", ("target",), lambda row: _short(row["target"])),
)
