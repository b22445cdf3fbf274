"""Tables of the page; foreign text in them is shown and never obeyed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import polars.selectors as cs
from markupsafe import Markup, escape

from mia_batch.inference.memory import (
    VERBATIM_WORDS,
)
from mia_batch.report import names
from mia_batch.report.answer import (
    ANSWERS,
    MEANINGS,
    attack_rows,
    audited_books,
    read_strips,
)
from mia_batch.report.passages import add_passages, find_runs
from mia_batch.report.sentences import known_sentence
from mia_batch.schemas import Rollup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from mia_batch.report.html.contents import Contents


_LONGEST_TEXT = 1_500  # characters
_HIDDEN = re.compile(names.HIDDEN)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
_CODE = Markup('<span class="code">{}</span>')
_CUT = Markup(' <span class="cut">{:,} more characters</span>')
_DIGITS = 3
NO_VALUE = "\N{EN DASH}"


def cut(
    text: str, limit: int = _LONGEST_TEXT, *, keep_end: bool = False
) -> tuple[str, int]:
    """Return the first ``limit`` characters, or the last, and how many are left out."""
    n_left_out = max(len(text) - limit, 0)
    if keep_end:
        return text[n_left_out:], n_left_out
    return text[:limit], n_left_out


def plain(text: str, limit: int = _LONGEST_TEXT) -> str:
    """Make hidden characters visible as ``[U+202E]``, and count what is cut off."""
    head, n_left_out = cut(text.replace("\r\n", "\n"), limit)
    revealed = names.reveal_hidden(head)
    if n_left_out:
        return f"{revealed} [{n_left_out:,} more characters]"
    return revealed


def visible(text: object, limit: int = _LONGEST_TEXT, *, note: bool = True) -> Markup:
    """Write text into a page, as `plain` does, with hidden characters set apart.

    Without ``note``, three dots stand for what is cut off.
    """
    head, n_left_out = cut(str(text).replace("\r\n", "\n"), limit)
    revealed = _HIDDEN.sub(
        lambda match: _CODE.format(names.write_code_point(match[0])),
        str(escape(head)),
    )
    ending = ""
    if n_left_out:
        ending = _CUT.format(n_left_out) if note else "…"
    return Markup(revealed) + ending


def statement(sentence: str) -> Markup:
    """Write a sentence of ours as `visible` does, with options that no line breaks."""
    return Markup(_OPTION.sub(r'<span class="word">\g<0></span>', visible(sentence)))


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


def interval(
    value: float | None, low: float | None, high: float | None, digits: int = _DIGITS
) -> str:
    """Write a value and its interval, with as many digits as keep the two limits apart."""
    if value is None:
        return NO_VALUE
    if low is None or high is None:
        return f"{number(value, digits)} (no interval)"
    while low < high and digits < 9 and f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


# Shades of a strip; a point's is that of the eighth of [0, 1] in which it lies
LEVELS = 8
_WIDTH = 1000
_SVG = Markup(
    '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 1"'
    ' preserveAspectRatio="none">{}</svg>'
)
_PATH = Markup('<path class="h{}" d="{}"/>')


def strips(contents: Contents) -> dict[str, Markup]:
    points = read_strips(contents.tables)
    if points.is_empty():
        return {}
    ordered = points.select("subject", "x", "y").sort("subject", "x")
    documents = ordered.partition_by("subject", maintain_order=True)
    return {
        rows["subject"][0]: _draw_strip(rows["x"].to_list(), rows["y"].to_list())
        for rows in documents
    }


def _draw_strip(starts: list[float], values: list[float | None]) -> Markup:
    """Draw a path for each shade: stretches of one shade that touch are one rectangle."""
    levels = [None if y is None else min(int(y * LEVELS), LEVELS - 1) for y in values]
    ends = [*starts[1:], 1.0]
    stretches = zip(levels, starts, ends, strict=True)
    paths: dict[int, str] = {}
    for level, run in groupby(stretches, key=itemgetter(0)):
        if level is None:
            continue
        touching = [*run]
        left = round(touching[0][1] * _WIDTH)
        right = round(touching[-1][2] * _WIDTH)
        paths[level] = f"{paths.get(level, '')}M{left} 0H{right}V1H{left}z"
    shapes = [_PATH.format(level, path) for level, path in sorted(paths.items())]
    label = _describe_strip(starts, values)
    return _SVG.format(label, _WIDTH, Markup().join(shapes))


def _describe_strip(starts: list[float], values: list[float | None]) -> str:
    points = zip(values, starts, strict=True)
    scored = [(value, start) for value, start in points if value is not None]
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
_LABELS = {True: "labelled member", False: "labelled non-member", None: "audited"}
_N_TEXTS = 200
_LONGEST_NAME = 160  # characters

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table on the page."""

    heading: str
    sources: tuple[str, ...]  # columns of the run's tables
    write: Callable[[Row], str]  # a cell
    sort: str | None = None  # column of a number to sort by; None: by the text of cells


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted and filtered."""

    name: str
    title: str
    source: str
    columns: list[Column]
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    darkest: str = ""  # what the darkest shade of strips says

    @property
    def has_strips(self) -> bool:
        return any(column.heading == _STRIP for column in self.columns)

    @property
    def choices(self) -> list[str]:
        answers = [row["answer"] for row in self.rows if row.get("answer")]
        return [*dict.fromkeys(answers)]


def split_repeats(table: Table) -> tuple[list[Column], list[tuple[str, str]]]:
    """Split off the columns whose cells are all the same, to be said once."""
    columns = table.columns[:1]
    repeated = []
    for column in table.columns[1:]:
        if _is_constant(column, table.rows):
            repeated.append((column.heading, column.write(table.rows[0])))
        else:
            columns.append(column)
    return columns, repeated


def _is_constant(column: Column, rows: list[Row]) -> bool:
    if len(rows) <= 1 or not rows[0].keys() >= {*column.sources}:
        return False
    values = {tuple(row[name] for name in column.sources) for row in rows}
    return len(values) == 1


def document_tables(
    contents: Contents, in_evidence: Collection[str]
) -> Iterator[Table]:
    """Build the table of documents, of groups, or where there are none of single texts.

    Runs of windows that are ``in_evidence`` are links to them.
    """
    rollup = contents.read_rows("rollup")
    if rollup.is_empty():
        yield from _text_tables(contents)
        return
    window = pl.col("longest_target_id")
    is_linked = window.is_in(list(in_evidence))
    anchor = pl.when(is_linked).then(pl.format("w-{}", window))
    for levels, name, title in _TABLES:
        rows = rollup.filter(pl.col("level").is_in(levels))
        if rows.height:
            columns = [*rollup_columns(rows)]
            yield Table(
                name=name,
                title=title,
                source="rollup.parquet",
                columns=columns,
                rows=rows.with_columns(anchor.alias(_IN_EVIDENCE)).to_dicts(),
                note=_write_not_recorded(columns),
            )


_BADGES = dict.fromkeys(("known_better", "above_all"), "high")
_BADGES |= {"comes_out": "found", "cannot_tell": "unknown"}
_BADGE = Markup('<span class="badge {}">{}</span>')
_QUOTE = Markup('<span class="quote">{}</span>')
_FIRST = ("longest_words", "share_verbatim", "contamination_low", "n_asked")
_QUOTED = 90  # characters
_ORDERS = {
    True: "What was audited, the strongest evidence first",
    False: "What was audited, by score",
}
_DARKEST = {  # what the darkest shade of a strip says, by whether anything is compared
    True: "higher than nearly all texts that it is compared with",
    False: "high among your own texts (nothing is compared)",
}
_BELOW = (
    "Below the line: texts known to be outside the training data, on the same scale."
)


class Anchor(NamedTuple):
    """Where evidence stands on the page, and the passage that came out."""

    name: str
    quote: str | None


def answer_table(contents: Contents, anchors: Mapping[str, Anchor]) -> Table | None:
    """Build the table of what was audited, the strongest first, and what it is compared with.

    ``anchors`` lead to passages that came out, by window, or by document where a model
    was followed through it. None where no document has two windows.
    """
    books = audited_books(contents.tables)
    if books.is_empty():
        return None
    level = pl.col("level").cast(pl.String)
    rollup = contents.read_rows("rollup").with_columns(level)
    from_books = ("title", "answer", "strip", "longest_words")
    rows = books.select("level", "key", *from_books).join(
        rollup.drop(from_books, strict=False),
        on=["level", "key"],
        how="left",
        maintain_order="left",
    )
    # The document's own anchor, of what walks gave, comes before that of a window
    keys = rows.select("key", "longest_target_id").iter_rows()
    found = [anchors.get(key) or anchors.get(window or "") for key, window in keys]
    quotes = pl.Series([anchor and anchor.quote for anchor in found], dtype=pl.String)
    names = [anchor and anchor.name for anchor in found]
    # Shorter runs come by chance
    is_long = pl.col("longest_words") >= VERBATIM_WORDS
    rows = rows.with_columns(
        pl.when(is_long).then(quotes).alias("quote"),
        pl.Series(_IN_EVIDENCE, names, dtype=pl.String),
    )
    filled = _list_filled(rows)
    if "strip" in filled:
        filled.add("curves.y")
    if "contamination" not in filled and not (rows["contamination_low"] > 0).any():
        filled.discard("contamination_low")  # nothing is claimed of any
    is_compared = bool((rows["level"] == "outside").any())
    numbers = _select_columns(_FIRST_NUMBERS, filled.intersection(_FIRST))
    p_or_q = _select_columns(_NUMBERS, filled & {*MEANINGS})[-1:]
    meanings = [f"{MEANINGS[column.sources[0]]}." for column in p_or_q]
    columns = (
        Column("Name", ("title", "key"), _write_title),
        Column("Answer", ("level", "verdict"), badge),
        Column(_STRIP, ("curves.y",), lambda row: _draw_even_strip(row["strip"])),
        *p_or_q,
        *numbers[:1],
        Column("The passage", ("quote",), _write_passage),
        number_column("Mean score", "mean"),
        *numbers[1:],
    )
    return Table(
        name="documents",
        title=_ORDERS[is_compared or bool((rows["verdict"] == "comes_out").any())],
        source="rollup.parquet, curves.parquet: y, targets.parquet: reference",
        columns=_select_columns(columns, filled),
        rows=rows.to_dicts(),
        note=" ".join([*([_BELOW] if is_compared else []), *meanings]),
        darkest=_DARKEST[is_compared],
    )


def _list_filled(rows: pl.DataFrame) -> set[str]:
    """Return the columns that have a value in any row."""
    return {name for name in rows.columns if rows[name].count()}


def _select_columns(
    columns: Iterable[Column], sources: Collection[str]
) -> list[Column]:
    return [column for column in columns if column.sources[0] in sources]


def _write_title(row: Row) -> Markup:
    key = None if row["key"] == row["title"] else row["key"]
    return _write_name([row["title"], key, row.get("author")])


def _write_passage(row: Row) -> Markup:
    quote = " ".join((row["quote"] or "").split())
    return _QUOTE.format(visible(quote, _QUOTED, note=False))


def badge(row: Row) -> Markup:
    """Write what is found about a document, with its label if its membership is known."""
    if row["level"] == "outside":
        return Markup("comparison")
    answer = _BADGE.format(_BADGES.get(row["verdict"], "none"), row["answer"])
    member = row.get("member")
    if member is None:
        return answer
    return Markup("{} <small>{}</small>").format(answer, _LABELS[member])


def _draw_even_strip(values: list[float | None] | None) -> Markup:
    if not values:
        return Markup("")
    n = len(values)
    return _draw_strip([stretch / n for stretch in range(n)], values)


def rollup_columns(rows: pl.DataFrame) -> Iterator[Column]:
    """Build the columns of a roll-up that have values, with those of the corpus."""
    filled = _list_filled(rows)
    name_columns = tuple(name for name in _NAMES if name in filled)
    yield Column(
        "Name",
        name_columns,
        lambda row: _write_name([row[name] for name in name_columns]),
    )
    yield Column("Answer", ("verdict",), lambda row: ANSWERS[row["verdict"]])
    if "outside" in {*rows["level"]} or "member" in filled:
        yield Column("What it is", ("level", "member"), _write_label)
    yield from _select_columns(_NUMBERS, filled)
    described = {*Rollup.column_names(), *_NAMES, "member"}
    for name in rows.columns:
        if name in described or name not in filled:
            continue
        if not rows[name].equals(rows["key"]):
            yield text_column(name, name)


def _write_label(row: Row) -> str:
    return "outside" if row["level"] == "outside" else _LABELS[row.get("member")]


def _write_name(labels: list[str | None]) -> Markup:
    """Write the first label that there is; the others stand small below it."""
    first, *further = filter(None, labels)
    small = Markup(" <small>{}</small>")
    below = Markup("").join(small.format(_write_short(label)) for label in further)
    return Markup("{}{}").format(_write_short(first), below)


def _write_short(value: object) -> str:
    return NO_VALUE if value is None else visible(value, _LONGEST_NAME, note=False)


def _write_longest(row: Row) -> str:
    words = number(row["longest_words"])
    if not row[_IN_EVIDENCE]:
        return words
    return Markup('<a href="#{}">{}</a>').format(row[_IN_EVIDENCE], words)


def text_column(
    heading: str, name: str, write: Callable[[Any], str] = _write_short
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


def _limits_column(
    heading: str, value: str, prefix: str = "", sort: str | None = None
) -> Column:
    """Build a column of a value with its limits; where it is null of the lower one."""
    low, high = f"{prefix}low", f"{prefix}high"

    def write(row: Row) -> str:
        if row[value] is None and row[low]:
            return f"at least {number(row[low])}"
        return interval(row[value], row[low], row[high])

    sources = tuple(dict.fromkeys((sort or value, value, low, high)))
    return Column(heading, sources, write, sources[0])


_ASKED = "{n_asked:,} of {n_windows:,}"
_NUMBERS = (
    Column("Longest run, words", ("longest_words",), _write_longest, "longest_words"),
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
    _limits_column("Mean score (95 % interval)", "mean", "mean_"),
    _limits_column(
        "Contamination (95 %)", "contamination", "contamination_", "contamination_low"
    ),
    number_column("p", "p_value"),
    number_column("q", "q_value"),
    Column("Windows asked", ("n_asked", "n_windows"), _ASKED.format_map, "n_asked"),
    number_column("Windows scored", "n_scored"),
    text_column("Why no p-value", "reason"),
    text_column("Why no contamination", "contamination_reason"),
)


# Of continuations and of walks
_FIRST_NUMBERS = (
    replace(_NUMBERS[0], heading="Longest stretch, words"),
    *_NUMBERS[1:],
)


def _write_not_recorded(columns: list[Column]) -> str:
    headings = {column.heading for column in columns}
    missing = [
        column.heading
        for column in _NUMBERS
        if column.sort and column.heading not in headings
    ]
    return f"Not recorded: {'; '.join(missing)}." if missing else ""


def _text_tables(contents: Contents) -> Iterator[Table]:
    attack = contents.primary
    if not contents.has_columns("scores", attack):
        return
    is_scored = pl.col(attack).is_not_null()
    scores = contents.tables["scores"].filter(is_scored, role="target")
    columns = cs.by_name(
        "target_id", "document_id", "member", "n_words", require_all=False
    )
    words = contents.look_up("evidence.word_rule")
    samples = contents.look_up("settings.samples")
    runs = find_runs(contents.tables, words, samples)
    verbatim = pl.col("longest_words")
    rows = (
        scores.select(columns, score=attack)
        .join(runs.lazy(), on="target_id", how="left")
        .with_columns(n_out=pl.when(verbatim >= VERBATIM_WORDS).then(verbatim))
        .sort("n_out", "score", "target_id", descending=True, nulls_last=True)
        .head(_N_TEXTS)
        .collect(engine="streaming")
    )
    ids = rows["target_id"].implode()
    targets = contents.read_rows("targets", pl.col("target_id").is_in(ids))
    texts = targets.select("target_id", "target", "reference")
    rows = rows.join(texts, on="target_id", how="left", maintain_order="left")
    is_common = pl.col("target_id").is_in([*common_windows(contents)])
    rows = add_passages(contents.tables, rows, words).with_columns(common=is_common)
    # What also comes out elsewhere stands below what is evidence
    is_out = pl.col("n_out").is_not_null()
    rank = pl.when(~is_out).then(2).otherwise(pl.col("common").cast(pl.Int8))
    rows = rows.sort(rank, maintain_order=True)
    is_shown = pl.col("key").is_in(ids)
    verdicts = contents.read_rows("verdicts", is_shown, attack=attack, level="target")
    if verdicts.height:
        answers = verdicts.select("key", "p_value", "q_value")
        by_key = answers.unique("key", keep="first")
        rows = rows.join(
            by_key,
            left_on="target_id",
            right_on="key",
            how="left",
            maintain_order="left",
        )
    write = contents.masking.write_column
    begins = rows["target"]
    if contents.masking.texts == "all":  # no more is shown, however long the text is
        begins = begins.str.head(_LONGEST_TEXT)
    rows = rows.with_columns(write(begins), write(rows["passage"]))
    filled = _list_filled(rows)
    if "passage" in filled:
        filled.discard("target")
    yield Table(
        name="texts",
        title=_TEXT_TITLES["passage" in filled],
        source="scores.parquet, targets.parquet, verdicts.parquet, features/",
        columns=_select_columns(_TEXT_COLUMNS, filled),
        rows=rows.to_dicts(),
        note=f"At most {_N_TEXTS:,} are shown; all texts are in scores.parquet.",
    )


_TEXT_TITLES = {
    True: "What came out word for word, then the highest scores",
    False: "Texts with the highest scores",
}
_MEMBERSHIP = {True: "member", False: "non-member", None: "unknown"}


def _write_out(row: Row) -> Markup | str:
    if row["passage"] is None:
        return NO_VALUE
    quote = " ".join(row["passage"].split())
    written = _QUOTE.format(visible(quote, _QUOTED, note=False))
    if not row["common"]:
        return written
    return Markup("{} <small>common, so no evidence</small>").format(written)


_TEXT_COLUMNS = (
    Column(
        "Text",
        ("target_id",),
        lambda row: _write_short(row["document_id"] or row["target_id"]),
    ),
    Column("Label", ("member",), lambda row: _MEMBERSHIP[row["member"]]),
    number_column("Word for word, words in a row", "longest_words"),
    Column("What came out", ("passage",), _write_out),
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
_N_ROWS = 400
_SHOWN_METRICS = ("roc_auc", "tpr_at_fpr")
_N_METRICS = 300


def common_windows(contents: Contents) -> Mapping[str, list[str]]:
    """Return where else each passage comes out or stands, by its window, if it is common."""
    places: dict[str, list[str]] = {}
    for row in contents.read_rows("controls", pl.col("common")).iter_rows(named=True):
        places.setdefault(row["target_id"], []).append(_CONTROLS[row["control"]])
    return places


def known_windows(contents: Contents, windows: pl.Expr) -> Mapping[str, str]:
    """Return where each passage stands in the known corpus, by its window, if looked for."""
    rows = contents.read_rows("known", windows).iter_rows(named=True)
    return {row["target_id"]: known_sentence(row) for row in rows}


def metric_table(contents: Contents) -> Table | None:
    figures = contents.read_rows(
        "metrics",
        pl.col("value").is_not_null(),
        pl.col("versus").is_null(),
        pl.col("metric").is_in(_SHOWN_METRICS),
        slice="all",
    )
    if figures.is_empty():
        return None
    return replace(_METRICS, rows=figures.head(_N_METRICS).to_dicts())


def attack_table(contents: Contents) -> Table | None:
    from mia_batch import attacks

    for table in ("metrics", "blind_metrics"):
        if not contents.has_columns(table, "attack"):
            return None
    installed = attacks.names()
    rows = attack_rows(
        contents.tables,
        [attacks.get(name) for name in contents.attacks if name in installed],
        contents.look_up("times.seconds"),
        contents.look_up("passes"),
    )
    filled = _list_filled(rows)
    if "auc" not in filled:
        return None
    columns = _select_columns(_ATTACKS.columns, filled)
    rows = rows.with_columns(is_planned=pl.col("attack") == contents.primary)
    return replace(_ATTACKS, columns=columns, rows=rows.to_dicts())


def control_table(contents: Contents) -> Table | None:
    if "controls" not in contents.tables:
        return None
    rows = contents.tables["controls"].head(_N_ROWS).collect(engine="streaming")
    return replace(_CONTROLLED, rows=_add_windows(contents, rows))


def perplexity_table(contents: Contents, windows: Collection[str]) -> Table | None:
    is_shown = pl.col("target_id").is_in(list(windows))
    rows = contents.read_rows("perplexities", is_shown)
    if rows.is_empty():
        return None
    return replace(_PERPLEXITIES, rows=_add_windows(contents, rows))


def _add_windows(contents: Contents, rows: pl.DataFrame) -> list[Row]:
    """Add where each window stands in its document, from 1 as `mia-batch show` takes it."""
    ids = pl.col("target_id").is_in(rows["target_id"].implode())
    number_of_window = pl.col("window_index") + 1
    windows = contents.read_rows("targets", ids).select(
        "target_id", "document_id", number_of_window
    )
    joined = rows.join(windows, on="target_id", how="left", maintain_order="left")
    return joined.to_dicts()


def _write_attack_name(row: Row) -> Markup:
    note = "added later, exploratory" if row["is_later"] else None
    if row["is_blind"]:
        note = "never sees the model"
    elif row["is_planned"]:
        note = "the primary attack"
    return _write_name([row["attack"], note])


_ATTACKS = Table(
    name="attacks",
    title="Attacks, the best first",
    source="metrics.parquet, blind_metrics.parquet, samples/, run.json: times",
    columns=[
        Column("Attack", ("attack",), _write_attack_name),
        _limits_column("AUC (95 % interval)", "auc"),
        _limits_column("TPR at 1 % FPR (95 % interval)", "tpr_1", "tpr_1_"),
        _limits_column("TPR at 0.1 % FPR (95 % interval)", "tpr_01", "tpr_01_"),
        _limits_column("Lead over blind (95 % interval)", "lead", "lead_"),
        number_column("Tokens a text", "tokens", lambda tokens: number(tokens, 0)),
        number_column("Seconds a text", "seconds"),
    ],
    note=(
        "Lead: AUC above that of the strongest classifier that never sees the model."
        " The answer rests on the primary attack, which was named before, as the best of"
        " many looks good by chance; another counts where it holds among all that were"
        " tried."
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
        _limits_column("Value (95 % interval)", "value"),
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
        f" with it and marks nothing. At most {_N_ROWS} rows are shown."
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
