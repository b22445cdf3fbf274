"""The report as one page: its checklist, its evidence, and tables to paste."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report import names
from mia_batch.report.answer import (
    ANSWERS,
    audited_books,
    find_better_attack,
    find_counted_bound,
    find_fault,
)
from mia_batch.report.html import columns
from mia_batch.report.html.columns import (
    Table,
    document_tables,
    interval,
    number,
    plain,
    share,
)
from mia_batch.report.html.contents import Contents
from mia_batch.report.html.evidence import (
    MOST_WINDOWS,
    build_books,
    build_chance,
    find_windows,
    write_yardstick,
)
from mia_batch.report.html.plots import compared_books, plots
from mia_batch.report.sentences import (
    POWER,
    conjugate,
    find_values,
    write_unplanned,
)

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


_N_REASONS = 20  # of missing scores; all are in the table
_N_OPEN = 3  # documents whose evidence is open; that of others is behind a click


def render(contents: Contents) -> str:
    """Write the page: one file that asks nothing of any network.

    Every number in it stands in a table or in ``run.json``, and the page says where.
    Texts of corpus and model are shown, never obeyed, and cut where they are long.
    """
    windows = find_windows(contents)
    books = build_books(contents, windows)
    chance = build_chance(contents, windows)
    chance_books = chance["books"] if chance else ()
    shown_windows = [
        window
        for book in (*books.values(), *chance_books)
        for window in book["windows"]
    ]
    shown = {window["target_id"] for window in shown_windows}
    anchors = {
        window["target_id"]: columns.Anchor(
            f"w-{window['target_id']}", window.get("quote")
        )
        for window in shown_windows
    }
    for name, book in books.items():
        if stretch := book["stretch"]:
            anchors[name] = columns.Anchor(f"s-{stretch['id']}", stretch["quote"])
    attacks = columns.attack_table(contents)
    pictures = {picture["name"]: picture for picture in plots(contents)}
    rollup = contents.read_rows("rollup")
    compared = compared_books(rollup, contents.primary) if rollup.height else None
    findings = contents.read_rows("findings")
    # Where what the model gave means nothing, no figure stands beside the answer
    is_faulty = findings.height > 0 and find_fault(findings) is not None
    if compared is not None and not is_faulty:
        pictures[compared["name"]] = compared
    by_text = groupby(clauses(), lambda clause: clause.text)
    page = environment().get_template("report.html.jinja")
    return page.render(
        contents=contents,
        brief=[*_list_brief(contents)],
        numbers=[] if is_faulty else [*_list_numbers(contents, attacks)],
        attacks=attacks,
        answers=columns.answer_table(contents, anchors),
        tables=[*document_tables(contents, shown)],
        findings=findings.to_dicts(),
        plots=pictures,
        metrics=columns.metric_table(contents),
        books=books.values(),
        chance=chance,
        verbatim_words=VERBATIM_WORDS,
        controls=columns.control_table(contents),
        perplexities=columns.perplexity_table(contents, shown),
        yardstick=write_yardstick(contents),
        most_windows=MOST_WINDOWS,
        most_open=_N_OPEN,
        failures=[*_list_failures(contents)],
        readers=[*_list_records(contents)],
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
        columns.statement,
        columns.visible,
    )
    environment.filters |= {write.__name__: write for write in filters}
    return environment


def _list_numbers(
    contents: Contents, attacks: Table | None
) -> Iterator[tuple[str, str]]:
    """Iterate over the three numbers that matter most, each with what it counts."""
    findings = contents.read_rows("findings")
    roles = find_values(findings, "roles") if findings.height else {}
    # The answer is about these, though some texts have labels
    are_compared = roles.get("n_unknown") and roles.get("n_nulls")
    if attacks is None or are_compared:
        yield from _count_books(contents)
        return
    primary = contents.primary
    better = None
    if findings.height:
        better = find_better_attack(contents.read_rows("metrics"), findings, primary)
    for row in attacks.rows:
        if row["attack"] != primary:
            continue
        auc = interval(row["auc"], row["low"], row["high"], digits=2)
        lead = interval(row["lead"], row["lead_low"], row["lead_high"], digits=2)
        if better is not None:
            tried = f"corrected for trying {better.n_tried:,} attacks and slices"
            yield f"at least {better.low:.2f}", f"AUC of {better.attack}, {tried}"
            yield auc, f"AUC of {primary}, the primary attack"
            yield lead, f"AUC of {primary} above {_BEST_BLIND}"
            return
        yield auc, f"AUC of {primary}: {_AUC}"
        yield (
            _write_tpr_at_1(contents),
            "members found when 1 % of non-members are accused",
        )
        yield lead, f"AUC above {_BEST_BLIND}"


_AUC = "how often a member scores higher than a non-member"
_BEST_BLIND = "the best classifier that never sees the model"


def _count_books(contents: Contents) -> Iterator[tuple[str, str]]:
    """Count the documents of each answer; none is counted twice, and none is left out."""
    audited = audited_books(contents.tables).filter(pl.col("level") != "outside")
    if audited.is_empty():
        yield from _count_texts(contents)
        return
    n = {verdict: audited.filter(verdict=verdict).height for verdict in ANSWERS}
    total = audited.height
    if n["comes_out"] or audited["longest_words"].count():
        verb = conjugate("come", n["comes_out"])
        yield f"{n['comes_out']:,} of {total:,}", f"{verb} out word for word"
    findings = contents.read_rows("findings")
    bound = None
    if findings.height:
        units = _read_judged(contents, audited)
        bound = find_counted_bound(findings, units)
    if bound is not None:
        yield (
            f"at least {bound.n_members:,} of {bound.n_highest:,}",
            "known better than the comparison texts",
        )
        n_nothing = min(n["nothing_found"], total - bound.n_highest)
    else:
        is_compared = audited["p_value"].count() and not n["comes_out"]
        if n["known_better"] or is_compared:
            verb = conjugate("stand", n["known_better"])
            yield f"{n['known_better']:,} of {total:,}", f"{verb} out, by name"
        if n["above_all"]:
            label = "above all comparison texts, which are too few to name any"
            yield f"{n['above_all']:,} of {total:,}", label
        n_nothing = n["nothing_found"]
    if n_nothing:
        yield f"{n_nothing:,} of {total:,}", "nothing found"
    if n["cannot_tell"]:
        yield f"{n['cannot_tell']:,} of {total:,}", "not judged"
    yield from _write_together(contents)


def _read_judged(contents: Contents, audited: pl.DataFrame) -> pl.DataFrame:
    """Read the rows of the roll-up that are audited, each by itself."""
    level = pl.col("level").cast(pl.String)
    rollup = contents.read_rows("rollup").with_columns(level)
    return rollup.join(audited.select("level", "key"), on=["level", "key"], how="semi")


def _count_texts(contents: Contents) -> Iterator[tuple[str, str]]:
    """Count the texts that came out, and those that stand out, where each is judged alone."""
    findings = contents.read_rows("findings")
    if findings.is_empty():
        return
    verbatim = find_values(findings, "verbatim", subject="targets")
    if verbatim.get("n_texts"):
        n = f"{verbatim['n_verbatim']:,.0f} of {verbatim['n_texts']:,.0f}"
        yield n, f"{conjugate('come', verbatim['n_verbatim'])} out word for word"
    reported = find_values(findings, "reported")
    if reported.get("n_tests"):
        n = f"{reported['n_reported']:,.0f} of {reported['n_tests']:,.0f}"
        yield n, f"{conjugate('stand', reported['n_reported'])} out, by name"
    yield from _write_together(contents)


def _write_together(contents: Contents) -> Iterator[tuple[str, str]]:
    """Write the p-value of all documents together, and whether it was planned."""
    is_test = pl.col("estimate").is_null()
    tests = contents.read_rows(
        "verdicts",
        is_test,
        attack=contents.primary,
        level="collection",
        versus="non_members",
    )
    level = str(contents.look_up("plan.level"))
    later = "" if level == "collection" else f" (exploratory: {write_unplanned(level)})"
    for p_value in tests["p_value"].drop_nulls() if tests.height else ():
        yield f"p = {p_value:.2g}", f"all together against the comparison texts{later}"


def _write_tpr_at_1(contents: Contents) -> str:
    """Write the true-positive rate at 1 % with its interval, without which it looks certain."""
    rows = contents.read_rows(
        "metrics",
        (pl.col("fpr") - 0.01).abs() < 1e-9,
        attack=contents.primary,
        slice="all",
        metric="tpr_at_fpr",
    ).select("value", "low", "high")
    if rows.is_empty() or rows["value"].count() == 0:
        return _write_non_members(contents)
    value, low, high = rows.row(0)
    if None in (value, low, high):
        return share(value)
    return f"{share(value)} ({share(low)} to {share(high)})"


def _write_non_members(contents: Contents) -> str:
    """Write how many non-members a rate of 1 % needs, and how many there are."""
    areas = contents.read_rows(
        "metrics", attack=contents.primary, slice="all", metric="roc_auc"
    )
    n = areas["n_nonmembers"].max() if areas.height else None
    if not isinstance(n, int) or n >= 100:
        return columns.NO_VALUE
    return f"needs 100 non-members, has {n:,}"


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
        "run.json: plan, custody.files; findings: check=plan",
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
    # That of the file, which verify and a dry run print
    digest = (contents.look_up("custody.files") or {}).get("plan.json")
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
    return contents.checks.get(POWER, [NOT_RECORDED])[0]


def _list_records(
    contents: Contents,
) -> Iterator[tuple[str, list[tuple[Field, str]], list[Field]]]:
    """Iterate over readers, with what the run has for each, and what it does not have."""
    for name, entries in READERS.items():
        values = [
            (field, field.value(contents)) for field in FIELDS if field.entry in entries
        ]
        missing = [field for field, value in values if value == NOT_RECORDED]
        recorded = [(field, value) for field, value in values if value != NOT_RECORDED]
        yield name, recorded, missing


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
