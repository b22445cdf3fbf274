"""What to do after a run, as a command to copy: how to get an answer, or where to look."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import gate_verdict, is_closed
from mia_batch.inference.power import nulls_to_name
from mia_batch.report.answer import (
    find_counted_bound,
    find_fault,
    select_units,
    sort_by_strength,
)
from mia_batch.report.sentences import (
    RunResults,
    find_blind_row,
    find_other_runs,
    find_rows,
    find_values,
)

_REPLACED = ("--out", "--level", "--non-members", "--non-members-known")
_OF_RECORDINGS = ("--model", "--engine", "--samples")  # they say so themselves
_MOST_NAMED = 5  # as the power of a plan is about
_HOW_KNOWN = "published after the model"

Options = Sequence[tuple[str, Sequence[str]]]  # that were given, with their values


class NextStep(NamedTuple):
    """A box of the first screen: what it is for, in one or two sentences, and a command."""

    title: str
    sentence: str
    command: str


def find_next_step(
    results: RunResults,
    rollup: pl.DataFrame,
    *,
    books: bool,
    options: Options,
    folder: str,
) -> NextStep | None:
    """Return what to type next; None where labels answer, or nothing would change."""
    allowed = results.allowed_comparisons()
    units = select_units(rollup)
    noun = "book" if books else str(next(iter(units["level"]), "text"))
    # No other text makes an answer of a model that is broken, or not read as it is
    if allowed["labels"] or find_fault(results.findings) is not None:
        return None
    # The plan of this run stays, so what is asked otherwise has a folder of its own
    places = [values[0] for option, values in options if option == "--out"]
    out = f"{next(iter(places), folder).rstrip('/')}-compared"
    if allowed["targets alone"]:
        return _ask_for_comparison(results, units, noun, options, out)
    if gate_verdict(results.findings) == "withheld":
        return _ask_for_others(results, units, noun, options, out)
    if allowed["targets and non-members"] and not is_closed(results.findings):
        more = _ask_for_more(results, units, noun, options, out)
        if more is not None:
            return more
    strong = units.filter(pl.col("verdict").is_in(["comes_out", "known_better"]))
    if strong.is_empty():
        return None
    # Documents have pages of their own, groups have none
    first = sort_by_strength(strong).row(0, named=True)
    if first["level"] != "document":
        return NextStep("To see it", "The strongest passages:", _join(["show", folder]))
    return NextStep(
        "To show it to others",
        f"One page about one {noun}, such as for its author:",
        _join(["report", folder, "--document", first["key"]]),
    )


def _ask_for_comparison(
    results: RunResults, units: pl.DataFrame, noun: str, options: Options, out: str
) -> NextStep:
    """Say how many comparison texts, and of which kind, would give an answer."""
    n = units.height or int(find_values(results.findings, "roles")["n_unknown"])
    n_named = min(_MOST_NAMED, n)
    rule = results.rule
    named = nulls_to_name(n_named, n, rule.q, rule.adjustment)
    alone = nulls_to_name(1, 1, rule.q, rule.adjustment)
    aim = f"about {named:,} let {n_named} of your {n:,} be named if they stand out"
    together = (
        f"; {alone:,} may do for one answer about all of them (--level collection)"
    )
    if n == 1:
        aim, together = f"at least {alone:,} are needed", "; more make it surer"
    elif named == alone:
        together = ""
    sentence = (
        f"Compare with {noun}s that the model cannot know, of the same kind and"
        f" published after it, in a folder such as comparison-{noun}s/: {aim}{together}."
        " Say in --non-members-known how you know that they are."
    )
    if any(option == "--samples-from" for option, _ in options):
        sentence += " The recording must have answers about them, too."
    any_out = not units.filter(verdict="comes_out").is_empty()
    title = "To get an answer about the others" if any_out else "To get an answer"
    return NextStep(title, sentence, _write_audit(options, units, noun, out))


def _ask_for_others(
    results: RunResults, units: pl.DataFrame, noun: str, options: Options, out: str
) -> NextStep:
    """Say of which kind comparison texts have to be where the words tell them apart."""
    row = find_blind_row(results.findings, "targets") or {}
    evidence = f" ({row['evidence']})" if row.get("evidence") else ""
    sentence = (
        f"Give other comparison {noun}s: of the same kind, language, length and years as"
        f" yours, so that their words do not tell them apart{evidence}. mia-batch"
        " build-set matches some out of a larger pool with dates."
    )
    return NextStep(
        "To get an answer", sentence, _write_audit(options, units, noun, out)
    )


def _ask_for_more(
    results: RunResults, units: pl.DataFrame, noun: str, options: Options, out: str
) -> NextStep | None:
    """Say how many more comparison texts would name those that a bound only counts."""
    findings = results.findings
    bound = find_counted_bound(findings, units)
    n_above = units.filter(verdict="above_all").height
    any_named = not units.filter(verdict="known_better").is_empty()
    n_candidates = bound.n_highest if bound else n_above
    attempts = Attempts(len(find_other_runs(findings)) + 2)  # this one and the next
    needed = _count_needed(findings, n_candidates, attempts.factor)
    if any_named or not n_candidates or needed is None:
        return None
    sentence = (
        f"To learn which takes at least {needed:,} comparison {noun}s: a further audit"
        f" of the same {noun}s counts as another attempt, so that its p and q are"
        f" {attempts.factor:,} times as large."
    )
    return NextStep("To name them", sentence, _write_audit(options, units, noun, out))


def _count_needed(findings: pl.DataFrame, n_named: int, factor: int) -> int | None:
    """Count the comparison groups that it takes to name so many; None if there are more.

    ``factor``: what attempts multiply q-values by.
    """
    rows = find_rows(findings, "power", subject="group")
    if not {"n_tests", "n_null", "q"} <= rows.keys() or not n_named:
        return None
    n_tests, n_null = (int(rows[name]["value"]) for name in ("n_tests", "n_null"))
    q, adjustment = rows["q"]["value"], rows["q"]["verdict"]
    n_named = min(n_named, _MOST_NAMED)
    needed = nulls_to_name(n_named, n_tests, q / factor, adjustment)
    return needed if needed > n_null else None


def _write_audit(options: Options, units: pl.DataFrame, noun: str, out: str) -> str:
    """Write the run's own command with comparison texts."""
    is_recording = any(option == "--samples-from" for option, _ in options)
    left_out = _REPLACED + (_OF_RECORDINGS if is_recording else ())
    words = ["audit"]
    known = [_HOW_KNOWN]
    level = ["group"] if units.height else []
    for option, values in options:
        if option == "--input":
            words += values
        elif option == "--non-members-known":
            known = [*values]
        elif option == "--level":
            level = [*values]
        elif option not in left_out:
            words += [option, *values]
    if level:
        words += ["--level", *level]
    words += ["--out", out]
    words += ["--non-members", f"comparison-{noun}s/", "--non-members-known", *known]
    return _join(words)


def _join(words: Sequence[str]) -> str:
    return shlex.join(["mia-batch", *words])
