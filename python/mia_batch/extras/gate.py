"""The command ``mia-batch gate``: whether a model may go out, by the numbers of a finished run.

A pass needs a number with its whole interval on the right side. A number that is
withheld, absent or without an interval is no pass, and a pass never says "safe": it says
that nothing was found, and what could have been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import click
import polars as pl
import polars.selectors as cs

from mia_batch.cli import options as cli
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.secrets.results import LEVEL, count_needed
from mia_batch.inference.conformal import Adjustment
from mia_batch.inference.findings import (
    gate_verdict,
    is_closed,
    why_not_continued,
    why_withheld,
)
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.inference.power import Power, compute_power
from mia_batch.pipeline import Run
from mia_batch.pipeline.custody import refuse_changed
from mia_batch.pipeline.results import check_finished, load_results
from mia_batch.report.sentences import (
    RunResults,
    find_rows,
    find_top_bound,
    find_values,
)
from mia_batch.schemas import BenchmarkTests, Secrets
from mia_batch.tables import digest, scan

__all__ = ["Condition", "gate", "judge_run"]

Outcome = Literal["pass", "fail", "withheld"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "withheld": 2}
_UNKNOWN = "unknown"
_INTERVAL = "the upper end of its 95 % interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition, and what a run says about it.

    Attributes
    ----------
    condition
        Its name, as the option is called.
    threshold
        What the option gives.
    outcome
        ``"pass"``, ``"fail"``, or ``"withheld"``: the run has no number that could say.
    value, low, high
        The number, and its interval where it has one.
    subject
        What it is about, such as the attack of the largest AUC.
    reason
        Why the number is withheld, or what else is to be known of it.
    power
        What the run could have found; ``"unknown"`` where nobody knows.
    """

    condition: str
    threshold: float
    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    subject: str | None = None
    reason: str | None = None
    power: str = _UNKNOWN

    def describe(self) -> str:
        """Write it as a sentence."""
        name = f"--{self.condition} {self.threshold:g}"
        subject = f" of {self.subject}" if self.subject else ""
        if self.value is None:
            return f"{name}: withheld, {self.reason}"
        number = f"{self.value:.4g}"
        if self.low is not None and self.high is not None:
            number += f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        text = f"{name}: {self.outcome}, {number}{subject}"
        if self.reason:
            text += f"; {self.reason}"
        if self.outcome == "pass":
            text += f"; power: {self.power}"
        return text


def _withhold(name: str, threshold: float, reason: str) -> Condition:
    return Condition(
        condition=name, threshold=threshold, outcome="withheld", reason=reason
    )


# Runs of audits.


def _judge_areas(name: str, limit: float, rows: pl.DataFrame) -> Condition:
    """Judge the largest upper end of AUCs: all of them have to be below the limit."""
    rows = _leave_finite(rows)
    unknown = rows.filter(pl.col("value").is_null() | pl.col("high").is_null())
    whole = rows.drop_nulls(["value", "high"])
    if whole.is_empty():
        reason = next(iter(unknown["reason"].drop_nulls()), "there is no AUC")
        return _withhold(name, limit, reason)
    highest = whole.sort("high", descending=True, maintain_order=True)
    row = highest.row(0, named=True)
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        **{key: row[key] for key in ("value", "low", "high")},
        "subject": row["attack"],
    }
    if row["high"] >= limit:
        reason = None
        if row["value"] < limit:
            reason = f"{_INTERVAL} is not below, so that more texts may decide"
        return Condition(**judged, outcome="fail", reason=reason)
    if unknown.height:
        attack, reason = unknown.select("attack", "reason").row(0)
        return _withhold(
            name, limit, f"{attack} has no interval ({reason or 'no reason is given'})"
        )
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"an AUC of {row['high']:.3g} or more of any of {rows.height:,} attacks is"
            " excluded with 97.5 % confidence, of other attacks nothing is known"
        ),
    )


def why_worthless(run: RunResults) -> str | None:
    """Explain why no number of an audit says anything; None where they do."""
    reason = why_not_continued(run.findings)
    if reason is not None:
        return reason
    chance = run.findings.filter(check="chance", subject="target", verdict="no_better")
    if chance.height:
        return (
            "the model predicts the texts no better than chance: it is broken, or not"
            " read as it is meant to be"
        )
    return None


def judge_auc(run: RunResults, attacks: Iterable[str], limit: float) -> Condition:
    """Judge the AUC of every attack of an audit."""
    name = "auc-below"
    rows = run.metrics.filter(
        pl.col("attack").is_in([*attacks]),
        pl.col("versus").is_null(),
        metric="roc_auc",
        slice="all",
    )
    if rows.is_empty():
        return _withhold(
            name, limit, "the run knows no members and non-members, and has no AUC"
        )
    blind = find_rows(run.findings, "blind_baseline", subject="members")
    if blind and blind["roc_auc"]["verdict"] == "separable":
        return _withhold(
            name,
            limit,
            "a classifier that never sees the model tells members from non-members, so"
            " that no AUC is about memory",
        )
    primary = rows.filter(attack=run.rule.primary)["high"].drop_nulls()
    if len(primary) and primary[0] < 0.5:
        return _withhold(
            name,
            limit,
            f"{run.rule.primary} points the other way: members score lower than"
            " non-members; are the labels swapped?",
        )
    return _judge_areas(name, limit, rows)


def judge_words(run: RunResults, limit: float) -> Condition:
    """Judge the longest passage that came out word for word, as the report counts it."""
    name = "words-below"
    if limit < VERBATIM_WORDS:
        raise SettingsError(
            f"--words-below is {limit:g}, but passages count from {VERBATIM_WORDS} words"
            f" on; give {VERBATIM_WORDS} or more"
        )
    counts = find_values(run.findings, "verbatim", subject="targets")
    n_asked = counts.get("n_texts") or 0
    if not n_asked and not counts.get("n_walked"):
        return _withhold(
            name, limit, "the model was not asked to go on with the audited texts"
        )
    rows = run.findings.filter(check="verbatim", statistic="longest")
    value, subject = 0.0, f"{n_asked:,.0f} texts"
    reason: str | None = f"no passage of {VERBATIM_WORDS} words came out"
    if rows.height:
        value, subject, reason = rows["value"][0], rows["subject"][0], None
    return Condition(
        condition=name,
        threshold=limit,
        outcome="pass" if value < limit else "fail",
        value=value,
        subject=subject,
        reason=reason,
    )


def judge_named(run: RunResults, limit: float) -> Condition:
    """Judge how many texts, documents or groups stand out: named ones, or a lower bound."""
    name = "stands-out"
    if is_closed(run.findings):
        reason = why_withheld(run.findings) or "the comparison is withheld"
        return _withhold(name, limit, reason)
    reported = find_rows(run.findings, "reported")
    if not reported or reported["n_reported"]["value"] is None:
        return _withhold(
            name,
            limit,
            "there are no texts to compare with, so that none can stand out",
        )
    value = {key: row["value"] for key, row in reported.items()}
    noun = str(reported["n_tests"]["subject"]).replace("target", "text")
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        "value": value["n_reported"],
        "subject": f"{value['n_tests']:,.0f} {noun}s",
    }
    if value["n_reported"] > limit:
        return Condition(**judged, outcome="fail")
    bound = find_top_bound(run.findings)
    if bound is not None and bound.n_members > limit:
        level = bound.level.replace("target", "text")
        judged |= {
            "value": float(bound.n_members),
            "subject": f"the {bound.n_highest:,} highest-scoring {level}s",
        }
        return Condition(
            **judged,
            outcome="fail",
            reason=f"so many at least, with {100 * bound.confidence:g} % confidence",
        )
    power = compute_power(
        int(value["n_tests"]),
        value["n_null"] or 0,
        value["q"],
        cast("Adjustment", reported["q"]["verdict"]),
    )
    why_none = _why_none_named(run, value, noun, power)
    if why_none is not None:
        return _withhold(name, limit, why_none)
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"with {power.n_null:,.0f} {noun}s to compare with, {power.needed:,} of"
            f" {power.n_tests:,} have to score above all of them so that any is named;"
            " how often a learnt one does is unknown"
        ),
    )


def _why_none_named(
    run: RunResults, reported: Mapping[str, Any], noun: str, power: Power
) -> str | None:
    """Explain why a count of 0 says nothing; None where it says something."""
    n_untested = (reported["n_without_p"] or 0) + (reported["n_without_null"] or 0)
    if n_untested:
        return (
            f"{n_untested:,.0f} of {reported['n_tests']:,.0f} {noun}s have no p-value"
        )
    if not reported["n_null"] or not reported["n_tests"]:
        return f"there are no {noun}s to compare with"
    if power.needed is None:
        return (
            f"with {reported['n_null']:,.0f} {noun}s to compare with, none of"
            f" {reported['n_tests']:,.0f} could be named, whatever the scores; give more"
            " (--non-members)"
        )
    if gate_verdict(run.findings) == "exploratory":
        return "the comparison is exploratory, as the report says"
    return None


def judge_collection(run: RunResults, limit: float) -> Condition:
    """Judge the p-value of all audited texts together, or of canaries."""
    rows = run.verdicts.lazy().filter(
        pl.col("planned"), pl.col("estimate").is_null(), level="collection"
    )
    if is_closed(run.findings):
        reason = why_withheld(run.findings) or "the comparison is withheld"
        return _withhold("p-above", limit, reason)
    table = rows.rename({"attack": "subject"}).collect()
    return _judge_p_values(
        limit, table, "p_value", "there is no planned p-value of all"
    )


def _judge_p_values(
    limit: float, rows: pl.DataFrame, column: str, absent: str
) -> Condition:
    """Judge the smallest of p-values, all of which have to be there."""
    if rows.is_empty():
        return _withhold("p-above", limit, absent)
    rows = _leave_finite(rows)
    known = rows.drop_nulls(column).sort(column, maintain_order=True)
    fails = known.height > 0 and known[column][0] <= limit
    missing = rows.filter(pl.col(column).is_null())
    if missing.height and not fails:
        subject, reason = missing.select("subject", "reason").row(0)
        return _withhold("p-above", limit, f"{subject} has no p-value: {reason}")
    return Condition(
        condition="p-above",
        threshold=limit,
        outcome="fail" if fails else "pass",
        value=known[column][0],
        subject=known["subject"][0],
    )


# Tables of extras.


def judge_secrets(table: pl.DataFrame, limit: float) -> Condition:
    """Judge how many secrets of the worst model are memorised or given back."""
    name = "secrets-below"
    # A small p-value of a word is no error rate, but no pass either
    is_found = pl.col("verdict").is_in(["memorised", "given back"]) | (
        (pl.col("verdict") == "exploratory") & (pl.col("p_value") <= LEVEL)
    )
    worst = table.group_by("model", maintain_order=True).agg(
        n_found=is_found.sum(),
        n_secrets=pl.len(),
        n_none=(pl.col("verdict") == "none").sum(),
        n_levels=(
            pl.col("p_value").is_not_null() & pl.col("exploratory").is_null()
        ).sum(),
        n_controls=pl.col("n_controls").max(),
    )
    row = worst.sort("n_found", descending=True, maintain_order=True).row(0, named=True)
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        "value": float(row["n_found"]),
        "subject": f"{row['n_secrets']:,} secrets asked of {row['model']}",
    }
    if row["n_found"] >= limit:
        return Condition(**judged, outcome="fail")
    for model in worst.iter_rows(named=True):
        reason = _why_secrets_untested(model)
        if reason is not None:
            return _withhold(name, limit, f"of {model['model']} {reason}")
    n_needed = count_needed(row["n_levels"], row["n_controls"])
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"a secret can be called memorised where {n_needed:,} of {row['n_levels']:,}"
            f" are likelier than all of {row['n_controls']:,} controls; how often a"
            " learnt one is, is unknown"
        ),
    )


def _why_secrets_untested(row: Mapping[str, Any]) -> str | None:
    if row["n_none"]:
        return f"{row['n_none']:,} secrets have neither a p-value nor an answer"
    if not row["n_levels"]:
        return "no secret has a p-value that is an error rate"
    if count_needed(row["n_levels"], row["n_controls"]) > row["n_levels"]:
        return (
            f"no secret could be called memorised with {row['n_controls']:,} controls;"
            " give more (--controls)"
        )
    return None


def judge_benchmark(table: pl.DataFrame, limit: float) -> Condition:
    """Judge the p-values of tests of a benchmark, adjusted where they are a level."""
    subject = pl.format("{}, {} of {}", "model", "test", "set")
    rows = table.with_columns(subject=subject, p=pl.coalesce("p_adjusted", "p_value"))
    return _judge_p_values(limit, rows, "p", "the table has no tests")


def judge_privacy(table: pl.DataFrame, limit: float, variant: str | None) -> Condition:
    """Judge the AUC of every attack on one variant of a tuned model."""
    variants = table["variant"].unique(maintain_order=True).to_list()
    if variant is None and len(variants) > 1:
        raise SettingsError(
            f"the run compares {', '.join(variants)}; say which goes out (--variant)"
        )
    if variant is not None and variant not in variants:
        raise SettingsError(
            f"the run has no variant {variant!r}, only {', '.join(variants)}"
        )
    rows = table.filter(
        pl.col("versus").is_null(),
        variant=variant or variants[0],
        metric="roc_auc",
        slice="all",
    )
    return _judge_areas("auc-below", limit, rows)


# The command.

_TABLES = {
    "secrets": ("secrets.parquet", ("secrets-below",)),
    "benchmark": ("benchmark.parquet", ("p-above",)),
    "privacy": ("metrics.parquet", ("auc-below",)),
}
"""Of each kind of folder that is no run: its table, and what can be asked of it."""
_AUDIT_CONDITIONS = ("auc-below", "words-below", "stands-out", "p-above")


def judge_run(
    folder: Path, limits: Mapping[str, float], variant: str | None = None
) -> dict[str, Any]:
    """Judge a finished run by all conditions.

    Parameters
    ----------
    folder
        The folder of an audit, of `mia-batch secrets`, `benchmark` or `privacy`, or of a
        training with canaries.
    limits
        Threshold of each condition, by its name.
    variant
        Which of several variants of a privacy run goes out.

    Returns
    -------
    dict[str, Any]
        What the command prints as JSON.
    """
    kind, judges, root = _open(folder, variant)
    for name in limits:
        if name not in judges:
            raise SettingsError(
                f"--{name} asks nothing of {folder}, a folder of {kind}; give"
                f" {' or '.join(f'--{known}' for known in judges)}"
            )
    conditions = [judges[name](limit) for name, limit in limits.items()]
    outcomes = [condition.outcome for condition in conditions]
    verdict: Outcome = "pass"
    if "fail" in outcomes:
        verdict = "fail"
    elif "withheld" in outcomes:
        verdict = "withheld"
    return {
        "version": 1,
        "verdict": verdict,
        "run": str(folder),
        "kind": kind,
        **root,
        "conditions": [asdict(condition) for condition in conditions],
        "sentences": [condition.describe() for condition in conditions],
    }


_METRICS = ("attack", "versus", "slice", "metric", "value", "low", "high", "reason")
_Judges = dict[str, Callable[[float], Condition]]


def _open(
    folder: Path, variant: str | None
) -> tuple[str, _Judges, dict[str, str | None]]:
    """Open a folder: its kind, what can be asked of it, and the hash that it stands for."""
    if (folder / "run.json").exists():
        run = Run(folder)
        manifest = check_finished(run, sealed=True)
        refuse_changed(run)
        results = load_results(run)
        attacks = manifest.made["scores"]["attacks"]
        worthless = why_worthless(results)
        if worthless is not None:
            judges: _Judges = {
                name: partial(_withhold, name, reason=worthless)
                for name in _AUDIT_CONDITIONS
            }
            return "audit", judges, {"root": manifest.custody["root"]}
        judges = {
            "auc-below": lambda limit: judge_auc(results, attacks, limit),
            "words-below": lambda limit: judge_words(results, limit),
            "stands-out": lambda limit: judge_named(results, limit),
            "p-above": lambda limit: judge_collection(results, limit),
        }
        return "audit", judges, {"root": manifest.custody["root"]}
    for kind, (name, _) in _TABLES.items():
        path = folder / name
        if path.exists():
            return (
                kind,
                _open_table(kind, path, variant),
                {
                    "root": None,
                    "table_sha256": digest(path),
                },
            )
    raise CorpusError(
        f"{folder} is no finished run: it has neither run.json nor"
        f" {' nor '.join(name for name, _ in _TABLES.values())}; give the folder that a"
        " command had as --out"
    )


def _open_table(kind: str, path: Path, variant: str | None) -> _Judges:
    """Open a table, check its columns, and leave out what is no number."""
    try:
        if kind == "privacy":
            rows = pl.scan_parquet(path, glob=False)
            columns = rows.collect_schema()
            missing = {*_METRICS, "variant"} - {*columns}
            if missing:
                raise CorpusError(
                    f"{path} lacks the columns {', '.join(sorted(missing))}; give the"
                    " folder of mia-batch privacy"
                )
        else:
            rows = scan(path, Secrets if kind == "secrets" else BenchmarkTests)
        table = _leave_finite(rows.collect())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    if table.is_empty():
        raise CorpusError(f"{path} has no rows; run its command again")
    judges: dict[str, _Judges] = {
        "secrets": {"secrets-below": lambda limit: judge_secrets(table, limit)},
        "benchmark": {"p-above": lambda limit: judge_benchmark(table, limit)},
        "privacy": {"auc-below": lambda limit: judge_privacy(table, limit, variant)},
    }
    return judges[kind]


def _leave_finite(table: pl.DataFrame) -> pl.DataFrame:
    """Make null of what is no finite number, which would be below any threshold."""
    is_finite = cs.float().is_finite().fill_null(value=False)
    return table.with_columns(pl.when(is_finite).then(cs.float()))


def _parse_count(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> int | None:
    if value is None or value == "none":
        return None if value is None else 0
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is no count; give none, or how many may")
    return int(value)


@click.command("gate")
@click.argument("run", type=cli.PATH)
@cli.option(
    *("auc-below", cli.NumberRange(0, 1), "X"),
    f"Every attack's AUC: {_INTERVAL} is below X.",
)
@cli.option(
    *("words-below", click.IntRange(1, None), "N"),
    "The longest passage that came out word for word is shorter.",
)
@cli.option(
    *("stands-out", str, "none|N"),
    "At most so many texts or books are named as standing out.",
    callback=_parse_count,
)
@cli.option(
    *("secrets-below", click.IntRange(1, None), "N"),
    "Fewer secrets are memorised or given back.",
)
@cli.option(
    *("p-above", cli.NumberRange(0, 1), "X"),
    "The p-values of a benchmark's tests, of canaries or of all texts together.",
)
@click.option("--variant", metavar="NAME", help="Which variant of a privacy run it is.")
def gate(*, run: Path, variant: str | None, **limits: float | None) -> int:
    """Say by the numbers of a finished run whether a model may go out.

    Exit 0 if all conditions hold, 3 if one does not, 2 if a number is withheld or absent:
    that is no pass. One line of JSON on standard output has the numbers, their intervals
    and the run's root; sentences stand on standard error. A pass says that nothing was
    found, and what could have been.
    """
    conditions = {
        name.replace("_", "-"): limit
        for name, limit in limits.items()
        if limit is not None
    }
    if not conditions:
        raise click.UsageError(
            f"give a condition: {', '.join(f'--{name}' for name in _list_names())}"
        )
    judged = judge_run(run, conditions, variant)
    click.echo(json.dumps(judged, ensure_ascii=True, allow_nan=False))
    console = cli.open_console(stderr=True)
    sentences = [*judged["sentences"], _conclude(judged["verdict"])]
    for sentence in sentences:
        console.print(cli.plain(sentence), soft_wrap=True)
    return EXIT_CODES[judged["verdict"]]


def _list_names() -> list[str]:
    names = [*_AUDIT_CONDITIONS]
    for _, conditions in _TABLES.values():
        names += conditions
    return [*dict.fromkeys(names)]


def _conclude(verdict: Outcome) -> str:
    if verdict == "pass":
        return (
            "pass: not found. That does not show that there is nothing; see the power of"
            " each condition"
        )
    if verdict == "fail":
        return "fail: a condition does not hold"
    return "no pass: a number is withheld or absent"
