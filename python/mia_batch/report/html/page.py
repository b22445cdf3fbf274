"""The report as one page: its checklist, its evidence, and tables to paste."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
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
READERS = {"Editor": range(1, 6), "Lawyer": range(6, 18), "Engineer": range(18, 23)}
"""Whom the numbered entries of the list are for."""


class Field(NamedTuple):
    """One field: the number of its entry, its name, and where it stands, as ``_LIST`` says."""

    entry: int
    name: str
    source: str = ""
    section: str = ""
    says: str = ""

    def value(self, contents: Contents) -> str:
        """Say what the run has; `NOT_RECORDED` where that is nothing."""
        place, _, name = self.source.partition(": ")
        if self.says:
            return self.says
        if place == "run.json":
            found = contents.recorded(name, NOT_RECORDED)
            return "none" if found in (None, {}, [], "") else _in_words(found)
        if place == "folder":
            return contents.stamps or NOT_RECORDED
        if name.startswith("check="):
            return _finding(contents, name.removeprefix("check="))
        column, _, value = name.partition("=")
        if value and contents.has(place, column):
            n = contents.frame(place, pl.col(column) == (value == "true")).height
            return f"{n:,} rows of {place}, column {column}" if n else NOT_RECORDED
        any_value = pl.col(name).is_not_null().any()
        if not contents.has(place, name):
            return NOT_RECORDED
        found = (
            contents.tables[place].select(any_value).collect(engine="streaming").item()
        )
        return f"in {place}, column {name}" if found else NOT_RECORDED


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        known = {
            name: each for name, each in value.items() if each not in (None, {}, [])
        }
        return "; ".join(f"{name}: {_in_words(each)}" for name, each in known.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _finding(contents: Contents, check: str) -> str:
    said = []
    for row in contents.frame("findings", check=check).iter_rows(named=True):
        value, verdict = row["value"], row["verdict"]
        amount = (
            "" if value is None else number(int(value) if value.is_integer() else value)
        )
        if words := " ".join(filter(None, [amount, verdict and f"({verdict})"])):
            said.append(f"{row['subject'] or 'all'}, {row['statistic']}: {words}")
    return "; ".join(said) or NOT_RECORDED


_RECORDS = Path(__file__).parents[2] / "records"
_LIST = tomllib.loads((_RECORDS / "checklist.toml").read_text("utf-8"))
FIELDS = tuple(Field(*each) for each in _LIST["fields"])


# Clauses of law and standards, and the rows of a run that speak to them.

NOT_TESTED = "not tested"
NO_ADVICE = (
    "These are facts about a run, and no legal advice: whether a clause is met is for"
    " others to say. What no row speaks to was not tested."
)


class Clause(NamedTuple):
    """One thing that a text asks, in our words; ``rows`` are sources as of a `Field`."""

    text: str
    source: str
    at: str
    asks: str
    rows: list[str]

    def answers(self, contents: Contents) -> dict[str, str]:
        found = {source: _said(contents, source) for source in self.rows}
        return {source: said for source, said in found.items() if said}


@cache
def clauses() -> tuple[Clause, ...]:
    records = tomllib.loads((_RECORDS / "clauses.toml").read_text("utf-8"))
    texts = {text["key"]: (text["name"], text["source"]) for text in records["texts"]}
    return tuple(
        Clause(*texts[key], at, asks, rows)
        for key, at, asks, rows in records["clauses"]
    )


def _said(contents: Contents, source: str) -> str | None:
    place, _, name = source.partition(": ")
    if place != "metrics":
        said = Field(0, "", source).value(contents)
        return None if said in (NOT_RECORDED, "none") else said
    rows = contents.frame(place, attack=contents.primary, slice="all", metric=name)
    for row in rows.drop_nulls("value").iter_rows(named=True) if rows.width else ():
        at = f" at {share(row['fpr'])} FPR" if row["fpr"] is not None else ""
        return (
            f"{contents.primary}{at}: {interval(row['value'], row['low'], row['high'])}"
        )
    return None


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
_MOST_REASONS = 20  # of missing scores; all are in the table
_MOST_OPEN = 3  # documents whose evidence is open; that of others is behind a click


def render(contents: Contents) -> str:
    """Write the page: one file that asks nothing of any network.

    Every number in it stands in a table or in ``run.json``, and the page says where.
    Texts of corpus and model are shown, never obeyed, and cut where they are long.
    """
    windows = evidence(contents)
    shown = [window["target_id"] for window in windows]
    quotes = {
        window["target_id"]: window["quote"]
        for window in windows
        if window.get("quote")
    }
    rollup, attacks = contents.frame("rollup"), columns.attack_table(contents)
    further = (compared_books(rollup, contents.primary),) if rollup.height else ()
    page = environment().get_template("report.html.jinja")
    return page.render(
        contents=contents,
        brief=[*_brief(contents)],
        numbers=[*_numbers(contents, attacks)],
        attacks=attacks,
        answers=columns.answer_table(contents, quotes),
        tables=[*document_tables(contents, set(shown))],
        findings=contents.frame("findings").to_dicts(),
        plots={each["name"]: each for each in (*plots(contents), *further) if each},
        metrics=columns.metric_table(contents),
        books=_by_document(contents, windows),
        controls=columns.control_table(contents),
        perplexities=columns.perplexity_table(contents, shown),
        most_windows=MOST_WINDOWS,
        most_open=_MOST_OPEN,
        failures=[*_failures(contents)],
        readers=[
            (name, [f for f in FIELDS if f.entry in of]) for name, of in READERS.items()
        ],
        not_run=[*_not_run(contents)],
        clauses=[
            (of, [*each]) for of, each in groupby(clauses(), lambda each: each.text)
        ],
        no_advice=NO_ADVICE,
        not_tested=NOT_TESTED,
        sources=[*_sources(contents)],
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
    environment.filters |= {each.__name__: each for each in filters}
    return environment


def _numbers(contents: Contents, attacks: Table | None) -> Iterator[tuple[str, str]]:
    """Yield the three numbers that matter most, each with what it counts."""
    for row in attacks.rows if attacks else ():
        if row["attack"] == contents.primary:
            yield (
                interval(row["auc"], row["low"], row["high"]),
                f"AUC of {contents.primary}",
            )
            yield (
                _found_at_1(contents),
                "members found when 1 % of non-members are accused",
            )
            lead = interval(row["lead"], row["lead_low"], row["lead_high"])
            yield lead, "AUC above the best classifier that never sees the model"
    own = audited_books(contents.tables).filter(pl.col("level") != "outside")
    for verdict, looked_for, what in () if attacks else _COUNTED:
        n = own.filter(verdict=verdict).height
        if n or (looked_for and own[looked_for].count()):
            yield f"{n:,} of {own.height:,}", what


def _found_at_1(contents: Contents) -> str:
    """Write the true-positive rate at 1 % with its interval, without which it looks certain."""
    named = {"attack": contents.primary, "slice": "all", "metric": "tpr_at_fpr"}
    rows = contents.frame("metrics", (pl.col("fpr") - 0.01).abs() < 1e-9, **named)
    for value, low, high in rows.select("value", "low", "high").iter_rows():
        known = value is not None and low is not None and high is not None
        return share(value) + (f" ({share(low)} to {share(high)})" if known else "")
    return columns.NO_VALUE


def _brief(contents: Contents) -> Iterator[tuple[str, str, str]]:
    """Yield what was asked, what was fixed before, what it took, and what could be found."""
    value = contents.recorded
    n = [
        _in_words(value(path, NOT_RECORDED))
        for path in ("targets.total", "input.n_documents")
    ]
    said = f"{n[1]} documents; {n[0]} texts in all, comparison texts included"
    yield "Asked about", said, "run.json: targets, input"
    said = f"attack {contents.primary}, q = {value('plan.q', NOT_RECORDED)}"
    said += f", plan {digest[:12]}" if (digest := value("plan.sha256")) else ""
    if contents.has("findings", "check"):
        rows = contents.frame("findings", check="plan", statistic="n_changed")
        said += "".join(f"; {verdict.replace('_', ' ')}" for verdict in rows["verdict"])
    said += "".join(f"; {each}" for each in _lodged(contents))
    yield "Fixed before the first score", said, "run.json: plan; findings: check=plan"
    seconds = sum((value("times.seconds") or {}).values())
    took = [f"{seconds:,.0f} s"] if seconds else []
    if contents.has("samples", "n_tokens"):
        drawn = contents.tables["samples"].select(pl.col("n_tokens").sum())
        if tokens := drawn.collect(engine="streaming").item():  # recordings may not say
            took.append(f"{tokens:,} tokens decoded")
    said = ", ".join(took) or NOT_RECORDED
    yield "What it took", said, "run.json: times; samples: n_tokens"
    found = next(iter(contents.checks.values()), [NOT_RECORDED])[0]
    if contents.has("metrics", "n_nonmembers"):
        rows = contents.frame(
            "metrics", attack=contents.primary, slice="all", metric="roc_auc"
        )
        for members, others in rows.select("n_members", "n_nonmembers").iter_rows():
            if members and others:
                found = (
                    f"{members:,} members against {others:,} non-members: no"
                    " false-positive "
                )
                found += f"rate below {share(1 / others)} can be seen"
    yield (
        "What it could have found",
        found,
        "findings: check=power; metrics: n_nonmembers",
    )


def _lodged(contents: Contents) -> Iterator[str]:
    lodged = contents.recorded("lodged") or {}
    if lodged:
        n = len(lodged["differences"])
        differs = (
            f"differs from the plan lodged in {n:,} {'part' if n == 1 else 'parts'}"
        )
        yield differs if n else "equal to the plan lodged"


def _failures(contents: Contents) -> Iterator[tuple[str, int | None, str, str]]:
    failed, aside = contents.recorded("failed"), contents.recorded("targets") or {}
    counts = {NOT_RECORDED: None}
    if failed is not None:
        counts = {f"of {failed['of']:,} texts": failed["targets"], **failed["reasons"]}
    for reason, n in counts.items():
        yield "Texts that failed", n, reason, "run.json: failed"
    for reason, n in aside.items():
        if reason != "total":
            yield "Texts set aside", n, reason, "run.json: targets"
    if "unscored" in contents.tables:
        reasons = contents.tables["unscored"].group_by("reason").len("n")
        most = reasons.sort("n", "reason", descending=[True, False]).head(_MOST_REASONS)
        for reason, n in most.collect(engine="streaming").iter_rows():
            yield "Scores missing", n, reason, "unscored.parquet: reason"


def _not_run(contents: Contents) -> Iterator[tuple[str, str, str]]:
    from mia_batch.attacks import get, names

    for attack in map(get, (name for name in names() if name not in contents.attacks)):
        needs = [attack.kind, *(f"setting {name}" for name in attack.settings)]
        yield attack.name, ", ".join(needs).replace("|", " or "), attack.source


def _sources(contents: Contents) -> Iterator[tuple[str, int, str, list[str]]]:
    for name, table in contents.tables.items():
        n_rows = table.select(pl.len()).collect(engine="streaming").item()
        yield (
            name,
            n_rows,
            contents.meanings.get(name, ""),
            table.collect_schema().names(),
        )


# Evidence: what the model was given, what follows in the text, and what the model
# wrote.

MOST_WINDOWS = 20
"""Windows that are shown for each reason: the longest runs, common passages, highest scores."""
_MOST_CHARACTERS = 1_500
_MOST_OF_PREFIX = 800
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


def evidence(contents: Contents) -> list[dict[str, Any]]:
    """Show the windows with the longest verbatim runs, common ones, and those of highest scores.

    Each has the columns of its target and ``score``; ``longest_words`` and
    ``sample_index`` where they are known; ``common``, where else its passage comes out;
    ``known``, where it stands in the known corpus; and texts as marked pieces.
    """
    longest, common = _longest(contents), columns.common_windows(contents)
    further = [*[*common][:MOST_WINDOWS], *_highest(contents)]
    chosen = {**longest, **{key: None for key in further if key not in longest}}
    if not chosen:
        return []
    ids = pl.col("target_id").is_in(list(chosen))
    targets = {
        row["target_id"]: row for row in _targets(contents, ids).iter_rows(named=True)
    }
    samples, by_chance = _samples(contents, ids), _scores_outside(contents)
    known = columns.known_windows(contents, ids)
    return [
        targets[key]
        | {
            "longest_words": None,
            "common": common.get(key, []),
            "known": known.get(key),
        }
        | {
            "attempts": sum(row["view"] in _ATTEMPTS for row in samples.get(key, [])),
            **_as_high(targets[key]["score"], by_chance),
        }
        | _texts(targets[key], samples.get(key, []), chosen[key])
        for key in chosen
        if key in targets
    ]


def _by_document(
    contents: Contents, windows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = contents.frame("rollup", pl.col("level") != "group").iter_rows(named=True)
    known, drawn = {row["key"]: row for row in rows}, columns.strips(contents)
    chapters = _chapters(
        contents, {window["document_id"] for window in windows} & drawn.keys()
    )
    found: dict[str, dict[str, Any]] = {}
    for window in windows:
        key = window["document_id"] or window["target_id"]
        row = known.get(key, {})
        said = columns.badge(row | {"answer": ANSWERS[row["verdict"]]}) if row else ""
        of = {"title": row.get("title") or key, "badge": said, "strip": drawn.get(key)}
        of["chapters"] = chapters.get(key, {})
        found.setdefault(key, of | {"windows": []})["windows"].append(window)
    return [*found.values()]


def _chapters(contents: Contents, documents: set[str]) -> dict[str, dict[float, str]]:
    """Say in percent where chapters begin: as an EPUB lists them, else by headings."""
    if not documents:
        return {}
    found: dict[str, dict[float, str]] = {}
    own = pl.col("document_id").is_in(list(documents)), pl.col("target").is_not_null()
    windows = contents.tables["targets"].filter(*own, role="target")
    last = (
        (pl.col("start") + pl.col("target").str.len_chars()).max().over("document_id")
    )
    if "window_chapter" in windows.collect_schema():
        within = windows.select(
            "document_id", "start", "window_chapter", last=last
        ).sort("start")
        before = pl.col("window_chapter").shift().over("document_id")
        first = within.filter(pl.col("window_chapter").ne_missing(before)).drop_nulls(
            "window_chapter"
        )
        for name, start, chapter, end in first.collect(engine="streaming").iter_rows():
            found.setdefault(name, {})[round(100 * start / end, 1)] = str(chapter)
        windows = windows.filter(~pl.col("document_id").is_in([*found]))
    has_heading = pl.col("target").str.contains(rf"(?m){_HEADING}")
    rows = windows.select("document_id", "start", "target", last=last).filter(
        has_heading
    )
    for name, start, text, end in (
        rows.collect(engine="streaming").sort("start").iter_rows()
    ):
        for heading in re.finditer(_HEADING, text, re.MULTILINE):
            place = round(100 * (start + heading.start()) / end, 1)
            found.setdefault(name, {}).setdefault(place, heading[0].strip())
    return found


def _scores_outside(contents: Contents) -> np.ndarray[Any, Any]:
    """Collect the scores of all texts known to be outside the training data, in order."""
    if not contents.has("scores", contents.primary, "member"):
        return np.empty(0)
    is_outside = (pl.col("role") == "target") & (
        pl.col("member") == pl.lit(value=False)
    )
    outside = contents.frame("scores", is_outside | (pl.col("role") == "non_member"))
    return np.sort(outside[contents.primary].drop_nulls().to_numpy())


def _as_high(score: float | None, outside: np.ndarray[Any, Any]) -> dict[str, int]:
    """Count the texts outside the training data that score as high as this one."""
    if score is None or not outside.size:
        return {}
    return {
        "as_high": outside.size - int(outside.searchsorted(score)),
        "n_outside": outside.size,
    }


def _longest(contents: Contents) -> dict[str, dict[str, Any]]:
    if not contents.has("rollup", "longest_target_id"):
        return {}
    own = pl.col("level") != "outside"
    rows = contents.frame("rollup", pl.col("longest_target_id").is_not_null(), own)
    rows = rows.sort(
        "longest_words", "longest_target_id", descending=True, nulls_last=True
    )
    first = rows.unique("longest_target_id", keep="first", maintain_order=True).head(
        MOST_WINDOWS
    )
    return {row["longest_target_id"]: row for row in first.iter_rows(named=True)}


def _highest(contents: Contents) -> list[str]:
    attack = contents.primary
    if not contents.has("scores", attack):
        return []
    scores = contents.tables["scores"].filter(
        pl.col(attack).is_not_null(), role="target"
    )
    top = scores.top_k(MOST_WINDOWS, by=[attack, "target_id"]).collect(
        engine="streaming"
    )
    return top.sort(attack, "target_id", descending=True)["target_id"].to_list()


def _targets(contents: Contents, ids: pl.Expr) -> pl.DataFrame:
    targets = contents.frame("targets", ids).select(
        *_COLUMNS, *_TEXTS, pl.col("^window_chapter$")
    )
    if not contents.has("scores", contents.primary):
        return targets.with_columns(score=pl.lit(None, pl.Float64))
    scores = contents.frame("scores", ids).select("target_id", score=contents.primary)
    return targets.join(scores, on="target_id", how="left")


def _samples(contents: Contents, ids: pl.Expr) -> dict[str, list[dict[str, Any]]]:
    """Collect the samples of some windows, those at points of a text with where they stand."""
    if "samples" not in contents.tables:
        return {}
    rows = contents.frame("samples", ids, model="target").sort(
        "view_index", "sample_index"
    )
    key = ["target_id", "model", "view", "view_index"]
    if contents.has("prompts", "cut"):
        prompts = contents.frame("prompts", ids).select(*key, "cut", "text")
        rows = rows.join(prompts, on=key, how="left", maintain_order="left")
    if contents.has("features", "leading_words"):
        key = [*key, "sample_index"]
        said = contents.frame("features", ids).select(*key, "leading_words")
        rows = rows.join(said, on=key, how="left", maintain_order="left")
    found = rows.partition_by("target_id", as_dict=True, maintain_order=True)
    return {str(key[0]): part.to_dicts() for key, part in found.items()}


def _texts(
    target: dict[str, Any],
    samples: list[dict[str, Any]],
    longest: dict[str, Any] | None,
) -> dict[str, Any]:
    """Mark what model and text share, in continuations or at the points that were asked about."""
    whole = [row for row in samples if row["view"] in _CONTINUED and row["candidate"]]
    if whole and target["reference"]:
        index = longest["longest_sample_index"] if longest else None
        chosen = next((row for row in whole if row["sample_index"] == index), None)
        return _side_by_side(target, whole if chosen is None else [chosen]) | {
            "longest_words": longest["longest_words"] if longest and chosen else None
        }
    points = [row for row in samples if row.get("cut") and row["candidate"]]
    if points and target["target"]:
        return {"points": [*_at_points(target["target"], points)]}
    return {}


def _side_by_side(
    target: dict[str, Any], samples: list[dict[str, Any]]
) -> dict[str, Any]:
    """Choose the sample that shares the longest run, and cut what is long."""
    prefix, before = cut(target["prefix"] or "", _MOST_OF_PREFIX, keep_end=True)
    reference, _ = cut(target["reference"], _MOST_CHARACTERS)
    runs = [(_shared_run(reference, cut(row["candidate"])[0]), row) for row in samples]
    run, sample = max(runs, key=lambda each: each[0][0][1] - each[0][0][0])
    return {
        "prefix_cut": before,
        "prefix_shown": prefix,
        "true": _pieces(target["reference"], *run[0]),
        "model": _pieces(sample["candidate"], *run[1]),
        "sample_index": sample["sample_index"],
        "words_given": len((target["prefix"] or "").split()),
        "quote": reference[slice(*run[0])],
    }


def _shared_run(text: str, other: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find where the longest run of words that both have stands in each, in characters."""
    words, others = ([*re.finditer(r"\S+", each)] for each in (text, other))
    matcher = SequenceMatcher(
        None, [w[0] for w in words], [w[0] for w in others], autojunk=False
    )
    found = matcher.find_longest_match()
    return _extent(words, found.a, found.size), _extent(others, found.b, found.size)


def _extent(words: list[re.Match[str]], first: int, size: int) -> tuple[int, int]:
    return (words[first].start(), words[first + size - 1].end()) if size else (0, 0)


def _pieces(text: str, start: int, stop: int) -> Pieces:
    pieces = [(text[:start], False), (text[start:stop], True), (text[stop:], False)]
    return [piece for piece in pieces if piece[0]]


def _at_points(text: str, points: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the text in stretches: each point's true words with what the model said there."""
    raw, end = text.encode(), 0
    first = {row["cut"]: row for row in reversed(points)}
    for at, row in sorted(first.items()):
        stop = at + len((row["text"] or "").encode())
        if at < end:
            continue
        true = raw[at:stop].decode()
        word = true.lstrip()
        yield {"text": raw[end:at].decode() + true.removesuffix(word)}
        said = " ".join(row["candidate"].split()[: len(word.split())])
        yield {"text": word, "said": said, "hit": bool(row.get("leading_words"))}
        end = stop
    yield {"text": raw[end:].decode()}


# Tables to paste.


def as_markdown(contents: Contents) -> str:
    """Write the answer, conclusions as a list, and tables of documents; all text is escaped."""
    template = environment().get_template("report.md.jinja")
    return template.render(contents=contents, tables=document_tables(contents, ()))


def as_json(contents: Contents) -> str:
    """Write the answer, the conclusions, and every clause with the rows that speak to it."""
    said = [
        {name: getattr(each, name) for name in ("text", "at", "asks")}
        | {"rows": each.answers(contents) or NOT_TESTED}
        for each in clauses()
    ]
    found = {
        "answer": contents.answer,
        "conclusions": contents.conclusions,
        "clauses": said,
    }
    return json.dumps({**found, "note": NO_ADVICE}, indent=2, ensure_ascii=False) + "\n"


def as_csv(contents: Contents) -> str:
    """Write the roll-up; for a run without one, write the scores of its texts."""
    rollup = contents.frame("rollup")
    rows = rollup if rollup.height else contents.frame("scores")
    return names.as_csv(rows)


def escaped(text: str) -> str:
    return names.markdown(plain(text))
