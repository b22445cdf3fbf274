"""Tables of the page; foreign text in them is shown and never obeyed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs
from markupsafe import Markup, escape

from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report import names
from mia_batch.report.answer import ANSWERS, attack_rows, audited_books
from mia_batch.report.sentences import known_sentence
from mia_batch.schemas import Rollup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from mia_batch.report.html.contents import Contents


_MOST = 1_500
_HIDDEN = re.compile(names.HIDDEN)
_CODE = Markup('<span class="code">{}</span>')
_CUT = Markup(' <span class="cut">{:,} more characters</span>')
_DIGITS = 3
NO_VALUE = "\N{EN DASH}"


def cut(text: str, most: int = _MOST, *, keep_end: bool = False) -> tuple[str, int]:
    """Keep the first ``most`` characters, or the last, and say how many are left out."""
    left_out = max(len(text) - most, 0)
    return (text[left_out:] if keep_end else text[:most]), left_out


def plain(text: str, most: int = _MOST) -> str:
    """Make hidden characters visible as ``[U+202E]``; what is cut off is counted."""
    shown, left_out = cut(text.replace("\r\n", "\n"), most)
    seen = names.shown(shown)
    return f"{seen} [{left_out:,} more characters]" if left_out else seen


def visible(text: object, most: int = _MOST, *, note: bool = True) -> Markup:
    """Write text into a page, as `plain` does, with hidden characters set apart.

    Without ``note``, three dots stand for what is cut off.
    """
    shown, left_out = cut(str(text).replace("\r\n", "\n"), most)
    marked = _HIDDEN.sub(
        lambda found: _CODE.format(names.code(found[0])), str(escape(shown))
    )
    written = Markup(marked)
    if not left_out:
        return written
    return written + (_CUT.format(left_out) if note else "…")


def number(value: float | None, digits: int = _DIGITS) -> str:
    """Write a number with few digits, a count with its thousands apart; a dash for null."""
    if value is None:
        return NO_VALUE
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2g}" if 0 < abs(value) < 10.0**-digits else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """Write a share in percent; only 0 and 1 themselves are 0 % and 100 %."""
    if value is None:
        return NO_VALUE
    if 0 < value < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a value and its interval, with as many digits as keep the two limits apart."""
    if value is None:
        return NO_VALUE
    if low is None or high is None:
        return f"{number(value)} (no interval)"
    digits = _DIGITS
    while low < high and digits < 9 and f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


LEVELS = (
    8  # shades of a strip; a point's is that of the eighth of [0, 1] in which it lies
)
_WIDTH = 1000
_SVG = Markup(
    '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 1"'
    ' preserveAspectRatio="none">{}</svg>'
)


def strips(contents: Contents) -> dict[str, Markup]:
    points = contents.frame("curves", curve="strip", attack=contents.primary)
    if points.is_empty():
        return {}
    keys = ["subject", "x", "y"]
    whole = (
        points.select(keys)
        .sort("subject", "x")
        .partition_by("subject", maintain_order=True)
    )
    return {
        rows["subject"][0]: _strip(rows["x"].to_list(), rows["y"].to_list())
        for rows in whole
    }


def _strip(starts: list[float], values: list[float | None]) -> Markup:
    """One path for each shade: stretches of the same shade that touch are one rectangle."""
    ends = [*starts[1:], 1.0]
    paths: dict[int, str] = {}
    levels = (None if y is None else min(int(y * LEVELS), LEVELS - 1) for y in values)
    stretches = zip(starts, ends, levels, strict=True)
    for level, run in groupby(stretches, key=lambda stretch: stretch[2]):
        if level is not None:
            first, *_, last = [*run] * 2
            left, right = round(first[0] * _WIDTH), round(last[1] * _WIDTH)
            paths[level] = f"{paths.get(level, '')}M{left} 0H{right}V1H{left}z"
    drawn = (
        Markup('<path class="h{}" d="{}"/>').format(*each)
        for each in sorted(paths.items())
    )
    return _SVG.format(_in_words(starts, values), _WIDTH, Markup().join(drawn))


def _in_words(starts: list[float], values: list[float | None]) -> str:
    scored = [(y, x) for x, y in zip(starts, values, strict=True) if y is not None]
    if not scored:
        return f"{len(starts)} stretches, none with a score"
    value, start = max(scored)
    return (
        f"{len(starts)} stretches, {len(scored)} with a score; "
        f"highest {value:.2f}, from {100 * start:.0f} % of the document on"
    )


_STRIP = "From first to last page"
_NAMES = ("title", "key", "author")
_TABLES = (
    (("document", "outside"), "all-documents", "All numbers of each document"),
    (("group",), "all-groups", "All numbers of each group of documents"),
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


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted and filtered."""

    name: str
    title: str
    source: str
    columns: list[Column]
    rows: list[Row] = field(default_factory=list)
    note: str = ""

    @property
    def has_strips(self) -> bool:
        return any(column.heading == _STRIP for column in self.columns)

    @property
    def choices(self) -> list[str]:
        return [*dict.fromkeys(row["answer"] for row in self.rows if row.get("answer"))]


def split_repeats(table: Table) -> tuple[list[Column], list[tuple[str, str]]]:
    """Keep the columns that differ between rows; what all rows say is said once, below them."""
    kept, repeated = table.columns[:1], []
    for column in table.columns[1:]:
        known = len(table.rows) > 1 and table.rows[0].keys() >= {*column.sources}
        values = (tuple(row[name] for name in column.sources) for row in table.rows)
        if known and len({*values}) == 1:
            repeated.append((column.heading, column.write(table.rows[0])))
        else:
            kept.append(column)
    return kept, repeated


def document_tables(
    contents: Contents, in_evidence: Collection[str]
) -> Iterator[Table]:
    """Yield the table of documents, of groups, or where there are none that of single texts.

    Runs of windows that are ``in_evidence`` are links to them.
    """
    rollup = contents.frame("rollup")
    for levels, name, title in _TABLES:
        rows = rollup.filter(pl.col("level").is_in(levels)) if rollup.height else rollup
        if rows.height:
            columns = [*rollup_columns(rows)]
            linked = pl.col("longest_target_id").is_in(list(in_evidence))
            own = rows.with_columns(linked.alias(_IN_EVIDENCE)).to_dicts()
            yield Table(
                name, title, "rollup.parquet", columns, own, _not_recorded(columns)
            )
    if rollup.is_empty():
        yield from _texts(contents)


_BADGES = dict.fromkeys(("known_better", "above_all"), "high")
_BADGES |= {"comes_out": "found", "cannot_tell": "unknown"}
_BADGE = Markup('<span class="badge {}">{}</span>')
_QUOTE = Markup('<span class="quote">{}</span>')
_FIRST = ("longest_words", "share_verbatim", "contamination_low", "n_asked")
_QUOTED = 90  # characters
_BELOW = (
    "Below the line: texts known to be outside the training data, on the same scale."
)


def answer_table(contents: Contents, quotes: Mapping[str, str]) -> Table | None:
    """Lay out what was audited, the strongest evidence first, then what it is compared with.

    ``quotes`` are the passages that came out, by window. None where no document has two
    windows.
    """
    books = audited_books(contents.tables)
    if books.is_empty():
        return None
    own = ("level", "key", "title", "answer", "strip")
    rollup = contents.frame("rollup").with_columns(pl.col("level").cast(pl.String))
    rollup = rollup.drop(own[2:], strict=False)
    rows = books.select(own).join(rollup, on=own[:2], how="left", maintain_order="left")
    quote = pl.col("longest_target_id").replace_strict(
        quotes, default=None, return_dtype=pl.String
    )
    long = pl.col("longest_words") >= VERBATIM_WORDS  # shorter runs come by chance
    linked = quote.is_not_null().alias(_IN_EVIDENCE)
    rows = rows.with_columns(pl.when(long).then(quote).alias("quote"), linked)
    there = {name for name in rows.columns if rows[name].count()}
    there |= {"curves.y"} if "strip" in there else set()
    if "contamination" not in there and not (rows["contamination_low"] > 0).any():
        there.discard("contamination_low")  # nothing is claimed of any
    numbers = [
        each for each in _NUMBERS if each.sources[0] in there.intersection(_FIRST)
    ]
    chance = [
        each for each in _NUMBERS if each.sources[0] in there & {"p_value", "q_value"}
    ]
    columns = (
        Column("Name", ("title", "key"), _title),
        Column("Answer", ("level", "verdict"), badge),
        Column(_STRIP, ("curves.y",), lambda row: _strip_of(row["strip"])),
        *chance[-1:],
        *numbers[:1],
        Column("The passage", ("quote",), _passage),
        number_column("Mean score", "mean"),
        *numbers[1:],
    )
    return Table(
        name="documents",
        title="What was audited, the strongest evidence first",
        source="rollup.parquet, curves.parquet: y, targets.parquet: reference",
        columns=[each for each in columns if each.sources[0] in there],
        rows=rows.to_dicts(),
        note=_BELOW if (rows["level"] == "outside").any() else "",
    )


def _title(row: Row) -> Markup:
    key = None if row["key"] == row["title"] else row["key"]
    return _name([row["title"], key, row.get("author")])


def _passage(row: Row) -> Markup:
    quote = " ".join((row["quote"] or "").split())
    return _QUOTE.format(visible(quote, _QUOTED, note=False))


def badge(row: Row) -> Markup:
    """Say what is found about a document; of one that is known, what it is."""
    if row["level"] == "outside":
        return Markup("comparison")
    said = _BADGE.format(_BADGES.get(row["verdict"], "none"), row["answer"])
    known = row.get("member")
    return (
        said
        if known is None
        else Markup("{} <small>{}</small>").format(said, _KNOWN[known])
    )


def _strip_of(values: list[float | None] | None) -> Markup:
    values = values or []
    return (
        _strip([at / len(values) for at in range(len(values))], values)
        if values
        else Markup("")
    )


def rollup_columns(rows: pl.DataFrame) -> Iterator[Column]:
    """Yield the columns of a roll-up that say something, with those of the corpus."""
    there = {name for name in rows.columns if rows[name].count()}
    called = tuple(name for name in _NAMES if name in there)
    yield Column("Name", called, lambda row: _name([row[name] for name in called]))
    yield Column("Answer", ("verdict",), lambda row: ANSWERS[row["verdict"]])
    if {"outside"} & {*rows["level"]} or "member" in there:
        yield Column("What it is", ("level", "member"), _what)
    yield from (column for column in _NUMBERS if column.sources[0] in there)
    for name in rows.columns:
        known = name in {*Rollup.column_names(), *_NAMES, "member"}
        if name in there and not known and not rows[name].equals(rows["key"]):
            yield text_column(name, name)


def _what(row: Row) -> str:
    return "outside" if row["level"] == "outside" else _KNOWN[row.get("member")]


def _name(parts: list[str | None]) -> Markup:
    """Write the first part that there is; the others stand small below it."""
    first, *others = filter(None, parts)
    below = Markup("").join(
        Markup(" <small>{}</small>").format(_short(each)) for each in others
    )
    return Markup("{}{}").format(_short(first), below)


def _short(value: object) -> str:
    return NO_VALUE if value is None else visible(value, _MOST_CHARACTERS, note=False)


def _longest(row: Row) -> str:
    words = number(row["longest_words"])
    link = Markup('<a href="#w-{}">{}</a>')
    return link.format(row["longest_target_id"], words) if row[_IN_EVIDENCE] else words


def text_column(
    heading: str, name: str, write: Callable[[Any], str] = _short
) -> Column:
    return Column(
        heading,
        (name,),
        lambda row: NO_VALUE if row[name] is None else write(row[name]),
    )


def number_column(
    heading: str, name: str, write: Callable[[Any], str] = number
) -> Column:
    return Column(heading, (name,), lambda row: write(row[name]), name)


def _limits(
    heading: str, value: str, prefix: str = "", sort: str | None = None
) -> Column:
    """Show a value with its limits; of one that is null the lower limit."""
    low, high = f"{prefix}low", f"{prefix}high"

    def write(row: Row) -> str:
        if row[value] is None and row[low]:
            return f"at least {number(row[low])}"
        return interval(row[value], row[low], row[high])

    sources = tuple(dict.fromkeys((sort or value, value, low, high)))
    return Column(heading, sources, write, sources[0])


_ASKED = "{n_asked:,} of {n_windows:,}"
_NUMBERS = (
    Column("Longest run, words", ("longest_words",), _longest, "longest_words"),
    number_column("Passages, 20 words", "n_passages_20"),
    number_column("Passages, 50 words", "n_passages_50"),
    number_column("Common passages", "n_common"),
    number_column("Windows verbatim", "share_verbatim", share),
    number_column("Near-verbatim", "share_near_verbatim", share),
    number_column("Extraction probability, highest", "extraction_probability"),
    number_column("Windows extractable", "share_extractable", share),
    number_column("Longest stretch extracted, words", "extracted_words"),
    number_column("Extracted", "extracted_share", share),
    number_column("bmc@5", "bmc_5", share),
    number_column("bmc@5 of other documents", "bmc_5_others", share),
    _limits("Mean score (95 % interval)", "mean", "mean_"),
    _limits(
        "Contamination (95 %)", "contamination", "contamination_", "contamination_low"
    ),
    number_column("p", "p_value"),
    number_column("q", "q_value"),
    Column("Windows asked", ("n_asked", "n_windows"), _ASKED.format_map, "n_asked"),
    number_column("Windows scored", "n_scored"),
    text_column("Why no p-value", "reason"),
    text_column("Why no contamination", "contamination_reason"),
)


def _not_recorded(columns: list[Column]) -> str:
    there = {column.heading for column in columns}
    missing = [
        each.heading for each in _NUMBERS if each.sort and each.heading not in there
    ]
    return f"Not recorded: {'; '.join(missing)}." if missing else ""


def _texts(contents: Contents) -> Iterator[Table]:
    attack = contents.primary
    if not contents.has("scores", attack):
        return
    scores = contents.tables["scores"].filter(
        pl.col(attack).is_not_null(), role="target"
    )
    named = cs.by_name(
        "target_id", "document_id", "member", "n_words", require_all=False
    )
    own = scores.select(named, score=attack)
    found = own.top_k(_MOST_TEXTS, by=["score", "target_id"]).collect(
        engine="streaming"
    )
    ids = pl.col("target_id").is_in(found["target_id"].implode())
    texts = contents.frame("targets", ids).select("target_id", "target")
    of_these = pl.col("key").is_in(found["target_id"].implode())
    verdicts = contents.frame("verdicts", of_these, attack=attack, level="target")
    found = found.join(texts, on="target_id", how="left")
    if verdicts.height:
        answers = verdicts.select("key", "p_value", "q_value").unique(
            "key", keep="first"
        )
        found = found.join(answers, left_on="target_id", right_on="key", how="left")
    found = found.sort("score", "target_id", descending=True)
    said = {name for name in found.columns if found[name].count()}
    there = [column for column in _TEXT_COLUMNS if column.sources[0] in said]
    source = "scores.parquet, targets.parquet, verdicts.parquet"
    note = f"At most {_MOST_TEXTS:,} are shown; all texts are in scores.parquet."
    yield Table(
        "texts", "Texts with the highest scores", source, there, found.to_dicts(), note
    )


_MEMBERSHIP = {True: "member", False: "non-member", None: "unknown"}
_TEXT_COLUMNS = (
    Column(
        "Text",
        ("target_id",),
        lambda row: _short(row["document_id"] or row["target_id"]),
    ),
    Column("Label", ("member",), lambda row: _MEMBERSHIP[row["member"]]),
    number_column("Score", "score"),
    number_column("p", "p_value"),
    number_column("q", "q_value"),
    number_column("Words", "n_words"),
    text_column("Begins", "target"),
)


_CONTROLS = {  # where a passage was asked for, or looked for
    "unrelated_prefix": "after the prefix of another document",
    "unrelated_prefix_16_words": "after that and the last 16 words of its own prefix",
    "reference_model": "from the reference model, after its own prefix",
    "other_document": "in another document",
}
_COMMON = {True: "common", False: "no", None: NO_VALUE}
_MOST_ROWS = 400
_SHOWN_METRICS = ("roc_auc", "tpr_at_fpr")
_MOST_METRICS = 300


def common_windows(contents: Contents) -> Mapping[str, list[str]]:
    """Say of each window whose passage is common where it comes out or stands, too."""
    found: dict[str, list[str]] = {}
    for row in contents.frame("controls", pl.col("common")).iter_rows(named=True):
        found.setdefault(row["target_id"], []).append(_CONTROLS[row["control"]])
    return found


def known_windows(contents: Contents, windows: pl.Expr) -> Mapping[str, str]:
    """Say of each window whose passage was looked for where it stands in the known corpus."""
    rows = contents.frame("known", windows).iter_rows(named=True)
    return {row["target_id"]: known_sentence(row) for row in rows}


def metric_table(contents: Contents) -> Table | None:
    known = pl.col("value").is_not_null() & pl.col("versus").is_null()
    figures = contents.frame(
        "metrics", known, pl.col("metric").is_in(_SHOWN_METRICS), slice="all"
    )
    rows = figures.head(_MOST_METRICS).to_dicts()
    return replace(_METRICS, rows=rows) if rows else None


def attack_table(contents: Contents) -> Table | None:
    if not (
        contents.has("metrics", "attack") and contents.has("blind_metrics", "attack")
    ):
        return None
    from mia_batch.attacks import get, names

    known = [get(name) for name in contents.attacks if name in names()]
    rows = attack_rows(
        contents.tables, known, *map(contents.recorded, ("times.seconds", "passes"))
    )
    there = {name for name in rows.columns if rows[name].count()}
    shown = [each for each in _ATTACKS.columns if each.sources[0] in there]
    return (
        replace(_ATTACKS, columns=shown, rows=rows.to_dicts())
        if "auc" in there
        else None
    )


def control_table(contents: Contents) -> Table | None:
    if "controls" not in contents.tables:
        return None
    rows = contents.tables["controls"].head(_MOST_ROWS).collect(engine="streaming")
    return replace(_CONTROLLED, rows=_with_windows(contents, rows))


def perplexity_table(contents: Contents, shown: Collection[str]) -> Table | None:
    rows = contents.frame("perplexities", pl.col("target_id").is_in(list(shown)))
    return (
        replace(_PERPLEXITIES, rows=_with_windows(contents, rows))
        if rows.height
        else None
    )


def _with_windows(contents: Contents, rows: pl.DataFrame) -> list[Row]:
    ids = pl.col("target_id").is_in(rows["target_id"].implode())
    # As people count, and `mia-batch show` takes it
    window = pl.col("window_index") + 1
    named = contents.frame("targets", ids).select("target_id", "document_id", window)
    return rows.join(
        named, on="target_id", how="left", maintain_order="left"
    ).to_dicts()


def _attack_name(row: Row) -> Markup:
    later = "added later, exploratory" if row["is_later"] else None
    return _name([row["attack"], "never sees the model" if row["is_blind"] else later])


_ATTACKS = Table(
    name="attacks",
    title="Attacks, the best first",
    source="metrics.parquet, blind_metrics.parquet, samples/, run.json: times",
    columns=[
        Column("Attack", ("attack",), _attack_name),
        _limits("AUC (95 % interval)", "auc"),
        _limits("TPR at 1 % FPR (95 % interval)", "tpr_1", "tpr_1_"),
        _limits("TPR at 0.1 % FPR (95 % interval)", "tpr_01", "tpr_01_"),
        _limits("Lead over blind (95 % interval)", "lead", "lead_"),
        number_column("Tokens a text", "tokens", lambda tokens: number(tokens, 0)),
        number_column("Seconds a text", "seconds"),
    ],
    note=(
        "Lead: AUC above that of the strongest classifier that never sees the model."
        " The answer rests on the attack that was named before, as the best of many"
        " looks good by chance."
    ),
)
_METRICS = Table(
    name="metrics",
    title="Figures of each attack",
    source="metrics.parquet",
    columns=[
        text_column("Attack", "attack", visible),
        text_column("Figure", "metric", visible),
        number_column("At FPR", "fpr"),
        _limits("Value (95 % interval)", "value"),
        number_column("Members", "n_members"),
        number_column("Non-members", "n_nonmembers"),
        number_column("Without score", "n_unscored"),
        text_column("Note", "reason", visible),
    ],
    note="Slices, comparisons and further figures are in metrics.parquet.",
)
_CONTROLLED = Table(
    name="controls",
    title="What else the passages come out of",
    source="controls.parquet, targets.parquet",
    columns=[
        text_column("Document", "document_id"),
        number_column("Window", "window_index"),
        text_column("Asked or looked for", "control", _CONTROLS.__getitem__),
        number_column("Samples", "n_samples"),
        number_column("Longest run, words", "longest_words"),
        Column("Common", ("common",), lambda row: _COMMON[row["common"]]),
        text_column("Other document", "other_document"),
        text_column("Why no run", "reason"),
    ],
    note=(
        "A common passage is no evidence; what 16 words of its prefix give is shown"
        f" with it and marks nothing. At most {_MOST_ROWS} rows are shown."
    ),
)
_PERPLEXITIES = Table(
    name="perplexities",
    title="How sure the models are of these windows",
    source="perplexities.parquet, targets.parquet",
    columns=[
        text_column("Document", "document_id"),
        number_column("Window", "window_index"),
        number_column("Perplexity", "perplexity"),
        number_column("Entropy, nats", "entropy"),
        number_column("Perplexity under the reference model", "reference_perplexity"),
        text_column("Why no perplexity", "reason"),
        text_column("Why no entropy", "entropy_reason"),
        text_column("Why no control", "reference_reason"),
    ],
    note="All texts are in perplexities.parquet. Other tokenizers count other tokens.",
)
