"""The report as one page: its checklist, its evidence, and tables to paste."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from mia_batch.attacks.attack import PROBE
from mia_batch.inference.memory import CONTINUED
from mia_batch.report import names
from mia_batch.report.answer import ANSWERS, audited_books
from mia_batch.report.html import columns
from mia_batch.report.html.columns import (
    Row,
    Table,
    cut,
    document_tables,
    interval,
    number,
    plain,
    share,
)
from mia_batch.report.html.contents import Contents
from mia_batch.report.html.plots import compared_books, plots

if TYPE_CHECKING:
    from jinja2 import Environment


NOT_RECORDED = "not recorded"
READERS = {
    "Editor": range(1, 6),
    "Lawyer": range(6, 18),
    "Engineer": range(18, 23),
}
"""Whom the numbered entries of the list are for."""


class Field(NamedTuple):
    """A field of the list for readers, as ``_LIST`` has it."""

    entry: int  # its number in the list
    name: str
    source: str = ""  # where it stands, such as ``rollup: title``
    section: str = ""  # of the page
    says: str = ""  # the text itself, where no table has it

    def value(self, contents: Contents) -> str:
        """Return what the run has; `NOT_RECORDED` where that is nothing."""
        place, _, name = self.source.partition(": ")
        if self.says:
            return self.says
        if place == "run.json":
            value = contents.look_up(name, NOT_RECORDED)
            return "none" if value in (None, {}, [], "") else _write_value(value)
        if place == "folder":
            return contents.stamps or NOT_RECORDED
        if name.startswith("check="):
            return _write_findings(contents, name.removeprefix("check="))
        return _find_in_table(contents, place, name)


def _find_in_table(contents: Contents, table: str, name: str) -> str:
    """Write whether a column of a table has any value, or how many rows have this one."""
    column, _, value = name.partition("=")
    if not contents.has_columns(table, column):
        return NOT_RECORDED
    if value:
        rows = contents.read_rows(table, pl.col(column) == (value == "true"))
        if rows.is_empty():
            return NOT_RECORDED
        return f"{rows.height:,} rows of {table}, column {column}"
    any_value = contents.tables[table].select(pl.col(name).is_not_null().any())
    if any_value.collect(engine="streaming").item():
        return f"in {table}, column {name}"
    return NOT_RECORDED


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{name}: {_write_value(content)}"
            for name, content in value.items()
            if content not in (None, {}, [])
        )
    if isinstance(value, list):
        return ", ".join(map(_write_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write_findings(contents: Contents, check: str) -> str:
    findings = []
    for row in contents.read_rows("findings", check=check).iter_rows(named=True):
        value = row["value"]
        words = []
        if value is not None:
            words.append(number(int(value) if value.is_integer() else value))
        if row["verdict"]:
            words.append(f"({row['verdict']})")
        if words:
            subject = row["subject"] or "all"
            findings.append(f"{subject}, {row['statistic']}: {' '.join(words)}")
    return "; ".join(findings) or NOT_RECORDED


_RECORDS = Path(__file__).parents[2] / "records"
_LIST = tomllib.loads((_RECORDS / "checklist.toml").read_text("utf-8"))
FIELDS = tuple(Field(*field) for field in _LIST["fields"])


# Clauses of law and standards, and the rows of a run that speak to them.

NOT_TESTED = "not tested"
NO_ADVICE = (
    "These are facts about a run, and no legal advice: whether a clause is met is for"
    " others to say. What no row speaks to was not tested."
)


class Clause(NamedTuple):
    """One thing that a law or a standard asks."""

    text: str  # name of the law or standard
    source: str  # where it was read
    at: str  # place in the text
    asks: str  # in our words
    rows: list[str]  # sources as of a `Field`

    def answers(self, contents: Contents) -> dict[str, str]:
        statements = {source: _write_source(contents, source) for source in self.rows}
        return {source: text for source, text in statements.items() if text}


@cache
def clauses() -> tuple[Clause, ...]:
    records = tomllib.loads((_RECORDS / "clauses.toml").read_text("utf-8"))
    texts = {text["key"]: (text["name"], text["source"]) for text in records["texts"]}
    return tuple(
        Clause(*texts[key], place, asks, rows)
        for key, place, asks, rows in records["clauses"]
    )


def _write_source(contents: Contents, source: str) -> str | None:
    table, _, name = source.partition(": ")
    if table != "metrics":
        value = Field(0, "", source).value(contents)
        return None if value in (NOT_RECORDED, "none") else value
    attack = contents.primary
    rows = contents.read_rows(table, attack=attack, slice="all", metric=name)
    if not rows.width:
        return None
    row = next(rows.drop_nulls("value").iter_rows(named=True), None)
    if row is None:
        return None
    fpr = f" at {share(row['fpr'])} FPR" if row["fpr"] is not None else ""
    return f"{attack}{fpr}: {interval(row['value'], row['low'], row['high'])}"


_COUNTED = (
    ("comes_out", "longest_words", "come out word for word"),
    ("known_better", "p_value", "more stand out from the comparison texts"),
    (
        "above_all",
        None,
        "score above all comparison texts, which are too few to name them",
    ),
    ("cannot_tell", None, "cannot be judged"),
)
"""Answers that are counted; 0 is shown only where the column shows that one was looked for."""
_N_REASONS = 20  # of missing scores; all are in the table
_N_OPEN = 3  # documents whose evidence is open; that of others is behind a click


def render(contents: Contents) -> str:
    """Write the page: one file that asks nothing of any network.

    Every number in it stands in a table or in ``run.json``, and the page says where.
    Texts of corpus and model are shown, never obeyed, and cut where they are long.
    """
    windows = evidence(contents)
    window_ids = [window["target_id"] for window in windows]
    quotes = {
        window["target_id"]: window["quote"]
        for window in windows
        if window.get("quote")
    }
    attacks = columns.attack_table(contents)
    pictures = {picture["name"]: picture for picture in plots(contents)}
    rollup = contents.read_rows("rollup")
    compared = compared_books(rollup, contents.primary) if rollup.height else None
    if compared is not None:
        pictures[compared["name"]] = compared
    readers = [
        (name, [field for field in FIELDS if field.entry in entries])
        for name, entries in READERS.items()
    ]
    by_text = groupby(clauses(), lambda clause: clause.text)
    page = environment().get_template("report.html.jinja")
    return page.render(
        contents=contents,
        brief=[*_list_brief(contents)],
        numbers=[*_list_numbers(contents, attacks)],
        attacks=attacks,
        answers=columns.answer_table(contents, quotes),
        tables=[*document_tables(contents, set(window_ids))],
        findings=contents.read_rows("findings").to_dicts(),
        plots=pictures,
        metrics=columns.metric_table(contents),
        books=_group_by_document(contents, windows),
        controls=columns.control_table(contents),
        perplexities=columns.perplexity_table(contents, window_ids),
        most_windows=MOST_WINDOWS,
        most_open=_N_OPEN,
        failures=[*_list_failures(contents)],
        readers=readers,
        not_run=[*_list_not_run(contents)],
        clauses=[(text, [*of_text]) for text, of_text in by_text],
        no_advice=NO_ADVICE,
        not_tested=NOT_TESTED,
        sources=[*_list_sources(contents)],
        levels=columns.LEVELS,
        not_recorded=NOT_RECORDED,
    )


@cache
def environment() -> Environment:
    """Return the templates of pages, with what writes text and numbers into them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mia_batch.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        escaped,
        interval,
        number,
        plain,
        share,
        columns.split_repeats,
        columns.visible,
    )
    environment.filters |= {write.__name__: write for write in filters}
    return environment


def _list_numbers(
    contents: Contents, attacks: Table | None
) -> Iterator[tuple[str, str]]:
    """Iterate over the three numbers that matter most, each with what it counts."""
    if attacks is None:
        yield from _count_books(contents)
        return
    for row in attacks.rows:
        if row["attack"] == contents.primary:
            yield (
                interval(row["auc"], row["low"], row["high"]),
                f"AUC of {contents.primary}",
            )
            yield (
                _write_tpr_at_1(contents),
                "members found when 1 % of non-members are accused",
            )
            yield (
                interval(row["lead"], row["lead_low"], row["lead_high"]),
                "AUC above the best classifier that never sees the model",
            )


def _count_books(contents: Contents) -> Iterator[tuple[str, str]]:
    audited = audited_books(contents.tables).filter(pl.col("level") != "outside")
    for verdict, column, label in _COUNTED:
        n = audited.filter(verdict=verdict).height
        if n or (column and audited[column].count()):
            yield f"{n:,} of {audited.height:,}", label


def _write_tpr_at_1(contents: Contents) -> str:
    """Write the true-positive rate at 1 % with its interval, without which it looks certain."""
    rows = contents.read_rows(
        "metrics",
        (pl.col("fpr") - 0.01).abs() < 1e-9,
        attack=contents.primary,
        slice="all",
        metric="tpr_at_fpr",
    ).select("value", "low", "high")
    if rows.is_empty():
        return columns.NO_VALUE
    value, low, high = rows.row(0)
    if None in (value, low, high):
        return share(value)
    return f"{share(value)} ({share(low)} to {share(high)})"


def _list_brief(contents: Contents) -> Iterator[tuple[str, str, str]]:
    """Iterate over what was asked, fixed before, spent, and could be found; with sources."""
    n_texts, n_documents = (
        _write_value(contents.look_up(path, NOT_RECORDED))
        for path in ("targets.total", "input.n_documents")
    )
    population = contents.look_up("input.draw.n_documents", NOT_RECORDED)
    if population != NOT_RECORDED:
        n_documents = f"{n_documents} of {_write_value(population)}"
    yield (
        "Asked about",
        f"{n_documents} documents; {n_texts} texts in all, comparison texts included",
        "run.json: targets, input",
    )
    yield (
        "Fixed before the first score",
        "; ".join(_list_fixed(contents)),
        "run.json: plan; findings: check=plan",
    )
    yield (
        "What it took",
        ", ".join(_list_costs(contents)) or NOT_RECORDED,
        "run.json: times; samples: n_tokens",
    )
    yield (
        "What it could have found",
        _write_power(contents),
        "findings: check=power; metrics: n_nonmembers",
    )


def _list_fixed(contents: Contents) -> Iterator[str]:
    """Write what the answer rests on, and whether that was changed since."""
    q = contents.look_up("plan.q", NOT_RECORDED)
    digest = contents.look_up("plan.sha256")
    plan = f", plan {digest[:12]}" if digest else ""
    yield f"attack {contents.primary}, q = {q}{plan}"
    if contents.has_columns("findings", "check"):
        rows = contents.read_rows("findings", check="plan", statistic="n_changed")
        for verdict in rows["verdict"]:
            yield verdict.replace("_", " ")
    lodged = contents.look_up("lodged")
    if lodged:
        n = len(lodged["differences"])
        noun = "part" if n == 1 else "parts"
        if n:
            yield f"differs from the plan lodged in {n:,} {noun}"
        else:
            yield "equal to the plan lodged"


def _list_costs(contents: Contents) -> Iterator[str]:
    times = contents.look_up("times.seconds") or {}
    seconds = sum(times.values())
    if seconds:
        yield f"{seconds:,.0f} s"
    if contents.has_columns("samples", "n_tokens"):
        n_tokens = contents.tables["samples"].select(pl.col("n_tokens").sum())
        n = n_tokens.collect(engine="streaming").item()
        if n:  # recordings may not say
            yield f"{n:,} tokens decoded"


def _write_power(contents: Contents) -> str:
    """Write what could have been found, by a check or by the number of labels."""
    if contents.has_columns("metrics", "n_nonmembers"):
        aucs = contents.read_rows(
            "metrics", attack=contents.primary, slice="all", metric="roc_auc"
        )
        counts = aucs.select("n_members", "n_nonmembers").rows()
        for n_members, n_others in reversed(counts):
            if n_members and n_others:
                return (
                    f"{n_members:,} members against {n_others:,} non-members: no"
                    f" false-positive rate below {share(1 / n_others)} can be seen"
                )
    power: Sequence[str] = next(iter(contents.checks.values()), [NOT_RECORDED])
    return power[0]


def _list_failures(contents: Contents) -> Iterator[tuple[str, int | None, str, str]]:
    failed = contents.look_up("failed")
    counts = {NOT_RECORDED: None}
    if failed is not None:
        counts = {f"of {failed['of']:,} texts": failed["targets"], **failed["reasons"]}
    for reason, n in counts.items():
        yield "Texts that failed", n, reason, "run.json: failed"
    targets = contents.look_up("targets") or {}
    for reason, n in targets.items():
        if reason != "total":
            yield "Texts set aside", n, reason, "run.json: targets"
    if "unscored" in contents.tables:
        reasons = contents.tables["unscored"].group_by("reason").len("n")
        frequent = reasons.sort("n", "reason", descending=[True, False])
        rows = frequent.head(_N_REASONS).collect(engine="streaming")
        for reason, n in rows.iter_rows():
            yield "Scores missing", n, reason, "unscored.parquet: reason"


def _list_not_run(contents: Contents) -> Iterator[tuple[str, str, str]]:
    from mia_batch import attacks

    for name in attacks.names():
        if name not in contents.attacks:
            attack = attacks.get(name)
            settings = [f"setting {setting}" for setting in attack.settings]
            needs = ", ".join([attack.kind, *settings])
            yield attack.name, needs.replace("|", " or "), attack.source


def _list_sources(contents: Contents) -> Iterator[tuple[str, int, str, list[str]]]:
    for name, table in contents.tables.items():
        n_rows = table.select(pl.len()).collect(engine="streaming").item()
        meaning = contents.meanings.get(name, "")
        yield name, n_rows, meaning, table.collect_schema().names()


# Evidence: what the model was given, what follows in the text, and what the model
# wrote.

MOST_WINDOWS = 20
"""Windows that are shown for each reason: the longest runs, common passages, highest scores."""
_LONGEST_TEXT = 1_500  # characters
_LONGEST_PREFIX = 800
_CONTINUED = [view for _, view in CONTINUED]
_ATTEMPTS = [PROBE[1], *_CONTINUED]
_HEADING = (
    r"^[ \t]*(?:CHAPTER|Chapter|CHAPITRE|Chapitre|CAP[IÍ]TULO|Cap[ií]tulo|KAPITEL|Kapitel|BOOK|Book"
    r"|PART|Part|LETTER|Letter)[ \t]+(?:[0-9]{1,3}|[IVXLCDM]{1,8})\b[^\n]{0,60}$"
)
_COLUMNS = ("target_id", "document_id", "member", "window_index", "n_windows", "start")
_TEXTS = ("target", "prefix", "reference")

# Stretches of a text in order, each with whether it is marked
Pieces = list[tuple[str, bool]]


def evidence(contents: Contents) -> list[Row]:
    """Return the windows with the longest runs, common ones, and those of highest scores.

    Each has the columns of its target and ``score``; ``longest_words`` and
    ``sample_index`` where they are known; ``common``, where else its passage comes out;
    ``known``, where it stands in the known corpus; and texts as marked pieces.
    """
    longest = _find_longest(contents)
    common = columns.common_windows(contents)
    window_ids = dict.fromkeys(
        [*longest, *[*common][:MOST_WINDOWS], *_find_highest(contents)]
    )
    if not window_ids:
        return []
    is_shown = pl.col("target_id").is_in(list(window_ids))
    rows = _read_targets(contents, is_shown)
    targets = {row["target_id"]: row for row in rows.iter_rows(named=True)}
    samples = _read_samples(contents, is_shown)
    outside = _read_outside_scores(contents)
    in_corpus = columns.known_windows(contents, is_shown)
    windows = []
    for key in window_ids:
        if key not in targets:
            continue
        target = targets[key]
        of_target = samples.get(key, [])
        window = target | {
            "longest_words": None,
            "common": common.get(key, []),
            "known": in_corpus.get(key),
            "attempts": sum(row["view"] in _ATTEMPTS for row in of_target),
        }
        window |= _count_as_high(target["score"], outside)
        window |= _mark_texts(target, of_target, longest.get(key))
        windows.append(window)
    return windows


def _group_by_document(contents: Contents, windows: list[Row]) -> list[Row]:
    rows = contents.read_rows("rollup", pl.col("level") != "group")
    rollup = {row["key"]: row for row in rows.iter_rows(named=True)}
    strips = columns.strips(contents)
    documents = {window["document_id"] for window in windows}
    chapters = _find_chapters(contents, documents & strips.keys())
    books: dict[str, Row] = {}
    for window in windows:
        key = window["document_id"] or window["target_id"]
        if key not in books:
            row = rollup.get(key, {})
            badge = ""
            if row:
                badge = columns.badge(row | {"answer": ANSWERS[row["verdict"]]})
            books[key] = {
                "title": row.get("title") or key,
                "badge": badge,
                "strip": strips.get(key),
                "chapters": chapters.get(key, {}),
                "windows": [],
            }
        books[key]["windows"].append(window)
    return [*books.values()]


def _find_chapters(
    contents: Contents, documents: set[str]
) -> dict[str, dict[float, str]]:
    """Return where chapters begin, in percent: as an EPUB lists them, else by headings."""
    if not documents:
        return {}
    chapters: dict[str, dict[float, str]] = defaultdict(dict)
    windows = contents.tables["targets"].filter(
        pl.col("document_id").is_in(list(documents)),
        pl.col("target").is_not_null(),
        role="target",
    )
    end_of_window = pl.col("start") + pl.col("target").str.len_chars()
    windows = windows.with_columns(end=end_of_window.max().over("document_id"))
    if "window_chapter" in windows.collect_schema():
        chapter = pl.col("window_chapter")
        is_first = chapter.ne_missing(chapter.shift().over("document_id"))
        first_windows = windows.sort("start").filter(is_first)
        listed = (
            first_windows.drop_nulls("window_chapter")
            .select("document_id", "start", "window_chapter", "end")
            .collect(engine="streaming")
        )
        for name, start, title, end in listed.iter_rows():
            chapters[name][round(100 * start / end, 1)] = str(title)
        windows = windows.filter(~pl.col("document_id").is_in([*chapters]))
    has_heading = pl.col("target").str.contains(rf"(?m){_HEADING}")
    rows = windows.filter(has_heading).select("document_id", "start", "target", "end")
    ordered = rows.collect(engine="streaming").sort("start")
    for name, start, text, end in ordered.iter_rows():
        for heading in re.finditer(_HEADING, text, re.MULTILINE):
            place = round(100 * (start + heading.start()) / end, 1)
            chapters[name].setdefault(place, heading[0].strip())
    return chapters


def _read_outside_scores(contents: Contents) -> np.ndarray[Any, Any]:
    """Read the scores of all texts known to be outside the training data, in order."""
    if not contents.has_columns("scores", contents.primary, "member"):
        return np.empty(0)
    is_target = pl.col("role") == "target"
    is_non_member = pl.col("role") == "non_member"
    is_outside = is_target & (pl.col("member") == pl.lit(value=False))
    rows = contents.read_rows("scores", is_outside | is_non_member)
    return np.sort(rows[contents.primary].drop_nulls().to_numpy())


def _count_as_high(
    score: float | None, outside: np.ndarray[Any, Any]
) -> dict[str, int]:
    """Count the texts outside the training data that score as high as this one."""
    if score is None or not outside.size:
        return {}
    n_lower = int(outside.searchsorted(score))
    return {"as_high": outside.size - n_lower, "n_outside": outside.size}


def _find_longest(contents: Contents) -> dict[str, Row]:
    """Return the rows of documents and groups with the longest runs, by their window."""
    if not contents.has_columns("rollup", "longest_target_id"):
        return {}
    rows = contents.read_rows(
        "rollup",
        pl.col("longest_target_id").is_not_null(),
        pl.col("level") != "outside",
    ).sort("longest_words", "longest_target_id", descending=True, nulls_last=True)
    by_window = rows.unique("longest_target_id", keep="first", maintain_order=True)
    return {
        row["longest_target_id"]: row
        for row in by_window.head(MOST_WINDOWS).iter_rows(named=True)
    }


def _find_highest(contents: Contents) -> list[str]:
    attack = contents.primary
    if not contents.has_columns("scores", attack):
        return []
    is_scored = pl.col(attack).is_not_null()
    scores = contents.tables["scores"].filter(is_scored, role="target")
    highest = scores.top_k(MOST_WINDOWS, by=[attack, "target_id"])
    rows = highest.collect(engine="streaming")
    return rows.sort(attack, "target_id", descending=True)["target_id"].to_list()


def _read_targets(contents: Contents, ids: pl.Expr) -> pl.DataFrame:
    chapter = pl.col("^window_chapter$")
    targets = contents.read_rows("targets", ids).select(*_COLUMNS, *_TEXTS, chapter)
    if not contents.has_columns("scores", contents.primary):
        return targets.with_columns(score=pl.lit(None, pl.Float64))
    rows = contents.read_rows("scores", ids)
    scores = rows.select("target_id", score=contents.primary)
    return targets.join(scores, on="target_id", how="left")


def _read_samples(contents: Contents, ids: pl.Expr) -> dict[str, list[Row]]:
    """Read the samples of some windows, those at points of a text with where they stand."""
    if "samples" not in contents.tables:
        return {}
    rows = contents.read_rows("samples", ids, model="target")
    rows = rows.sort("view_index", "sample_index")
    key = ["target_id", "model", "view", "view_index"]
    if contents.has_columns("prompts", "cut"):
        prompts = contents.read_rows("prompts", ids).select(*key, "cut", "text")
        rows = rows.join(prompts, on=key, how="left", maintain_order="left")
    if contents.has_columns("features", "leading_words"):
        key = [*key, "sample_index"]
        features = contents.read_rows("features", ids).select(*key, "leading_words")
        rows = rows.join(features, on=key, how="left", maintain_order="left")
    windows = rows.partition_by("target_id", as_dict=True, maintain_order=True)
    return {str(window): samples.to_dicts() for (window,), samples in windows.items()}


def _mark_texts(
    target: Row,
    samples: list[Row],
    longest: Row | None,
) -> Row:
    """Mark what model and text share, in continuations or at the points asked about."""
    answered = [row for row in samples if row["candidate"]]
    continued = [row for row in answered if row["view"] in _CONTINUED]
    if continued and target["reference"]:
        index = longest["longest_sample_index"] if longest else None
        with_run = [row for row in continued if row["sample_index"] == index][:1]
        n_words = longest["longest_words"] if longest and with_run else None
        marked = _mark_shared_run(target, with_run or continued)
        return marked | {"longest_words": n_words}
    points = [row for row in answered if row.get("cut")]
    if points and target["target"]:
        return {"points": [*_split_at_points(target["target"], points)]}
    return {}


def _mark_shared_run(target: Row, samples: list[Row]) -> Row:
    """Choose the sample that shares the longest run, and cut what is long."""
    whole_prefix = target["prefix"] or ""
    prefix, n_left_out = cut(whole_prefix, _LONGEST_PREFIX, keep_end=True)
    reference, _ = cut(target["reference"], _LONGEST_TEXT)
    runs = [_find_shared_run(reference, cut(row["candidate"])[0]) for row in samples]
    lengths = [stop - start for (start, stop), _ in runs]
    best = lengths.index(max(lengths))
    in_reference, in_sample = runs[best]
    sample = samples[best]
    return {
        "prefix_cut": n_left_out,
        "prefix_shown": prefix,
        "true": _split_pieces(target["reference"], *in_reference),
        "model": _split_pieces(sample["candidate"], *in_sample),
        "sample_index": sample["sample_index"],
        "words_given": len(whole_prefix.split()),
        "quote": reference[slice(*in_reference)],
    }


def _find_shared_run(text: str, sample: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the longest run of words that both have stands in each, in characters."""
    words = [*re.finditer(r"\S+", text)]
    sample_words = [*re.finditer(r"\S+", sample)]
    matcher = SequenceMatcher(
        None,
        [word[0] for word in words],
        [word[0] for word in sample_words],
        autojunk=False,
    )
    run = matcher.find_longest_match()
    return (
        _compute_extent(words, run.a, run.size),
        _compute_extent(sample_words, run.b, run.size),
    )


def _compute_extent(
    words: list[re.Match[str]], first: int, size: int
) -> tuple[int, int]:
    if not size:
        return 0, 0
    return words[first].start(), words[first + size - 1].end()


def _split_pieces(text: str, start: int, stop: int) -> Pieces:
    pieces = [
        (text[:start], False),
        (text[start:stop], True),
        (text[stop:], False),
    ]
    return [piece for piece in pieces if piece[0]]


def _split_at_points(text: str, points: list[Row]) -> Iterator[Row]:
    """Split a text in stretches: each point's true words with what the model said there."""
    raw = text.encode()
    end = 0
    first_samples = {row["cut"]: row for row in reversed(points)}
    for start, row in sorted(first_samples.items()):
        if start < end:
            continue
        stop = start + len((row["text"] or "").encode())
        words = raw[start:stop].decode()
        word = words.lstrip()
        yield {"text": raw[end:start].decode() + words.removesuffix(word)}
        answer = row["candidate"].split()[: len(word.split())]
        yield {
            "text": word,
            "said": " ".join(answer),
            "hit": bool(row.get("leading_words")),
        }
        end = stop
    yield {"text": raw[end:].decode()}


# Tables to paste.


def as_markdown(contents: Contents) -> str:
    """Write the answer, conclusions as a list, and tables of documents; all text is escaped."""
    template = environment().get_template("report.md.jinja")
    return template.render(contents=contents, tables=document_tables(contents, ()))


def as_json(contents: Contents) -> str:
    """Write the answer, the conclusions, and every clause with the rows that speak to it."""
    answered = [
        {
            "text": clause.text,
            "at": clause.at,
            "asks": clause.asks,
            "rows": clause.answers(contents) or NOT_TESTED,
        }
        for clause in clauses()
    ]
    document = {
        "answer": contents.answer,
        "conclusions": contents.conclusions,
        "clauses": answered,
        "note": NO_ADVICE,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_csv(contents: Contents) -> str:
    """Write the roll-up; for a run without one, write the scores of its texts."""
    rows = contents.read_rows("rollup")
    if rows.is_empty():
        rows = contents.read_rows("scores")
    return names.as_csv(rows)


def escaped(text: str) -> str:
    return names.markdown(plain(text))
