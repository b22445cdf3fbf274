"""The answer of a run in one sentence, its books by strength of evidence, its attacks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import polars as pl

from mia_batch.attacks import Attack, get, names
from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import (
    change_of_service,
    gate_verdict,
    is_closed,
    why_not_continued,
)
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report.drawn import compares_scores, write_missing_share, write_share
from mia_batch.report.names import cut_middle
from mia_batch.report.sentences import (
    RunResults,
    TopBound,
    capitalize,
    conjugate,
    find_auc,
    find_blind_row,
    find_collection_tests,
    find_other_runs,
    find_placebo,
    find_simultaneous_bounds,
    find_top_bound,
    find_values,
    list_names,
    write_count,
)

# By the verdict of the roll-up, the strongest evidence first
ANSWERS = {
    "comes_out": "comes out word for word",
    "known_better": "stands out",
    "above_all": "above all comparison texts, which are too few",
    "nothing_found": "nothing found",
    "cannot_tell": "cannot be judged",
}
STRIP = 24  # stretches of a book's strip
_SHADES = "▁▂▃▄▅▆▇█"
_N_NAMED = 5
_SHORT_REASON = 160  # characters
_LONGEST = pl.max_horizontal("longest_words", "extracted_words")


class Answer(NamedTuple):
    """What a run answers: a verdict, and what makes it doubtful."""

    verdict: str
    doubt: str  # a sentence, or nothing

    def __str__(self) -> str:
        return f"{self.verdict} {self.doubt}".rstrip()


MEANINGS = {
    "p_value": "p: how often one that the model never saw scores as high",
    "q_value": "q: share of wrong names expected in a list down to this row",
}
"""What a table of documents says below it of these columns."""


def answer(results: RunResults, rollup: pl.DataFrame, *, books: bool) -> str:
    """Answer the question of the run, see `find_answer`, with any doubt behind it."""
    return str(find_answer(results, rollup, books=books))


def find_answer(results: RunResults, rollup: pl.DataFrame, *, books: bool) -> Answer:
    """Answer the question of the run in one sentence, or begin with ``No answer``.

    What makes the answer doubtful is a sentence of its own. The ``rollup`` is empty
    where no document has two windows; ``books``: documents are called so.
    """
    fault = find_fault(results.findings)
    if fault is not None:
        return Answer(f"No answer: {fault}.", "")
    sentence = _answer(results, rollup, books=books)
    verdict = _answer_drawn(results, _qualify(results, sentence))
    doubts = [*_list_doubts(results, select_units(rollup))]
    if not doubts:
        return Answer(verdict, "")
    return Answer(verdict, f"In doubt, because {' and '.join(doubts)}.")


def find_fault(findings: pl.DataFrame) -> str | None:
    """Find why nothing that the model gave means anything; None where it does."""
    if findings.filter(check="chance", subject="target", verdict="no_better").height:
        return (
            "the model predicts these texts no better than chance, so its scores mean"
            " nothing"
        )
    return why_not_continued(findings)


def _qualify(results: RunResults, sentence: str) -> str:
    """Put before an answer how the service changed while it was asked, if it did."""
    findings = results.findings
    change = change_of_service(findings)
    if change is None:
        return sentence
    clause = _continue(sentence)
    if gate_verdict(findings) == "exploratory":
        return f"{capitalize(change)}; exploratory: {clause}"
    has_labels = results.allowed_comparisons()["labels"]
    if has_labels or sentence.lower().startswith("no answer"):
        return f"No answer: {change}."
    return f"{capitalize(change)}: {clause}"


def _answer_drawn(results: RunResults, sentence: str) -> str:
    """Put the share of all documents first, where the audited ones were drawn of them."""
    findings = results.findings
    share = write_share(findings)
    if share is None:
        missing = write_missing_share(findings)
        return sentence if missing is None else f"{sentence} {missing}"
    is_exploratory = gate_verdict(findings) == "exploratory"
    if is_exploratory or any(_list_departures(findings)):
        share = f"Exploratory: {_continue(share)}"
    if sentence.lower().startswith("no answer"):
        return f"{share} {sentence}"
    return f"{share} Among those drawn: {_continue(sentence)}"


def _continue(sentence: str) -> str:
    """Begin a clause with what began a sentence, unless it begins with a name."""
    first_word = sentence.split(" ", 1)[0]
    return sentence if "_" in first_word else sentence[:1].lower() + sentence[1:]


def _answer(results: RunResults, rollup: pl.DataFrame, *, books: bool) -> str:
    allowed = results.allowed_comparisons()
    rows = select_units(rollup)
    if allowed["labels"] and not allowed["targets and non-members"]:
        sentence = _answer_by_labels(results)
    elif rows.height:
        noun = "book" if books else str(rows["level"][0])
        sentence = _answer_about_units(results, _Units(rows, noun))
    else:
        sentence = _answer_about_texts(results)
    has_answer = not sentence.startswith("No answer")
    if allowed["comparison of targets"] and has_answer:
        sentence = f"{sentence[:-1]}{_write_attempts(results.findings)}."
    departures = [*_list_departures(results.findings)]
    if departures and has_answer:
        sentence = f"{sentence[:-1]}; exploratory: {' and '.join(departures)}."
    return sentence


def _list_departures(findings: pl.DataFrame) -> Iterator[str]:
    """Write how the answer is another one than the one that was planned."""
    verdicts = {*findings.filter(check="plan")["verdict"]}
    if verdicts & {"late", "changed"}:
        yield "this was asked for or changed after scores had been made"
    if "differs" in findings.filter(check="lodged")["verdict"]:
        yield "the audit differs from the plan lodged"


def _write_attempts(findings: pl.DataFrame) -> str:
    """Write how many attempts p-values and lists count, where there are several."""
    n = len(find_other_runs(findings))
    if not n:
        return ""
    return (
        f"; {write_count(n, 'other run')} of these texts with this model counted: p and"
        f" q are {Attempts(n + 1).factor:,} times as large"
    )


def _list_doubts(results: RunResults, units: pl.DataFrame) -> Iterator[str]:
    """Write what else could explain that texts stand out, where any are said to."""
    findings = results.findings
    n_reported = find_values(findings, "reported").get("n_reported") or 0
    any_found = n_reported > 0 or _says_bound(findings, units)
    if write_share(findings) is not None and compares_scores(findings):
        any_found = True
    if results.rule.level == "collection" or any_found:
        yield from _list_other_causes(findings)


def _says_bound(findings: pl.DataFrame, units: pl.DataFrame) -> bool:
    """Return whether an answer says of how many texts, books or authors a bound is."""
    bound = find_top_bound(findings)
    if units.is_empty() or bound is None or bound.level == "author":
        return bound is not None
    return find_counted_bound(findings, units) is not None


def _list_other_causes(findings: pl.DataFrame) -> Iterator[str]:
    placebo = find_placebo(findings)
    if placebo is not None and placebo["verdict"] == "as_many":
        yield "the reference model, which cannot know these texts, gives as much"
    if gate_verdict(findings) in ("doubtful", "weighted"):
        yield (
            "training may not be the only difference from the comparison texts"
            f"{_write_check_of_words(findings)}"
        )
    copies = find_values(findings, "duplicates", subject="targets")
    share = copies.get("share") or 0
    if share >= 0.05:
        yield f"{share:.0%} of the texts stand in the comparison texts, too"


def _write_check_of_words(findings: pl.DataFrame) -> str:
    """Write what the check of the texts' words has left open."""
    row = find_blind_row(findings, "targets")
    if row is None or gate_verdict(findings) == "weighted":
        return ""
    if row["verdict"] is None:
        return f" (their words were not compared: {row['reason']})"
    return (
        " (the check of their words is undecided: an AUC up to"
        f" {row['high']:.2f} is not excluded)"
    )


# Where labels are known.


def _name_reference(attack_name: str, sentence: str) -> str:
    """Say of an attack that compares two models that it does, as with a base after tuning."""
    if attack_name not in names() or sentence.startswith("No answer"):
        return sentence
    attack = get(attack_name)
    reads = attack.list_reads("samples") + attack.list_reads("logprobs")
    if "reference" not in {model for model, _ in reads}:
        return sentence
    return f"Compared with the reference model, {_continue(sentence)}"


class BetterAttack(NamedTuple):
    """An attack that beats blind classifiers, all attempts counted; the planned one does not."""

    attack: str
    low: float  # of its AUC, with 95 % confidence
    n_tried: int  # attacks and slices
    highest_blind: float

    def __str__(self) -> str:
        return (
            f"{self.attack}: AUC at least {self.low:.2f} (95 % confidence, corrected for"
            f" trying {self.n_tried:,} attacks and slices), where classifiers that never"
            f" see the model have at most {self.highest_blind:.2f}"
        )


class _PrimaryRows(NamedTuple):
    """Rows that judge the primary attack of a labelled run; each is empty where it is missing."""

    auc: Mapping[str, Any]
    blind: Mapping[str, Any]
    lead: Mapping[str, Any]  # over the strongest blind classifier


def _find_primary_rows(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> _PrimaryRows:
    auc = find_auc(metrics, primary) or {}
    blind = find_blind_row(findings, "members") or {}
    is_lead = pl.col("versus") == pl.lit(blind.get("strongest"), pl.String)
    leads = metrics.filter(
        is_lead, metric="roc_auc_difference", slice="all", attack=primary
    )
    return _PrimaryRows(auc, blind, next(leads.iter_rows(named=True), {}))


def find_better_attack(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> BetterAttack | None:
    """Find the attack that an answer names beside the planned one, which shows nothing.

    None where the planned one answers, or no attack holds among all that were tried.
    """
    auc, blind, lead = _find_primary_rows(metrics, findings, primary)
    highest_blind = blind.get("high")
    is_open = (
        _why_no_auc(primary, auc) is None
        and blind.get("verdict") != "separable"
        and lead.get("low") is not None
        and lead["low"] <= 0
    )
    if not is_open or highest_blind is None:
        return None
    bounds = find_simultaneous_bounds(metrics)
    ranked = bounds.filter(slice="all").sort(
        "low", descending=True, maintain_order=True
    )
    if ranked.is_empty() or ranked["low"][0] <= max(highest_blind, 0.5):
        return None
    best = ranked.row(0, named=True)
    return BetterAttack(best["attack"], best["low"], bounds.height, highest_blind)


def _answer_by_labels(results: RunResults) -> str:
    """Write whether the planned attack beats what the texts tell without the model."""
    primary = results.rule.primary
    auc, blind, lead = _find_primary_rows(results.metrics, results.findings, primary)
    fault = _why_no_auc(primary, auc)
    if fault is not None:
        return fault
    if blind.get("verdict") == "separable":
        excess = ""
        if lead.get("value") is not None:
            excess = f", {_write_interval(lead)} more"
        return (
            "No answer about memory: a classifier that never sees the model tells"
            f" members from non-members, too (AUC {blind['value']:.2f}), and {primary}"
            f" may see the same: its AUC is {_write_interval(auc)}{excess}."
        )
    reached = (
        f"{primary} tells members from non-members with AUC {_write_interval(auc)}"
    )
    better = find_better_attack(results.metrics, results.findings, primary)
    if better is not None:
        sentence = f"The model remembers members, by {better}"
        planned = f"the primary attack {reached}"
        return f"{_name_reference(better.attack, sentence)}; {planned}."
    return _name_reference(primary, _judge_planned(auc, blind, lead, reached))


def _judge_planned(
    auc: Mapping[str, Any],
    blind: Mapping[str, Any],
    lead: Mapping[str, Any],
    reached: str,
) -> str:
    """Write what the AUC of the planned attack means, where no other attack is named."""
    if lead.get("low") is not None:
        return _judge_lead(lead, reached)
    if auc.get("low") is not None and auc["low"] <= 0.5:
        return f"No sign of memory: {reached}, which chance explains."
    reason = lead.get("reason") or blind.get("reason") or "there are too few texts"
    return (
        f"{capitalize(reached)}; it is unknown whether that is memory, because it"
        " could not be compared with classifiers that never see the model"
        f" ({reason})."
    )


def _judge_lead(lead: Mapping[str, Any], reached: str) -> str:
    """Write what an AUC means by its lead over the best classifier without the model."""
    than = "than the best classifier that never sees the model"
    excess = f"{_write_interval(lead)} more {than}"
    if lead["low"] > 0:
        return f"The model remembers members: {reached}, {excess}."
    if lead["value"] >= 0:
        return f"No sign of memory: {reached}, {excess}, which chance explains."
    deficit = {
        "value": -lead["value"],
        "low": -lead["high"],
        "high": -lead["low"],
    }
    return f"No sign of memory: {reached}, {_write_interval(deficit)} less {than}."


def _why_no_auc(primary: str, auc: Mapping[str, Any]) -> str | None:
    """Write why an AUC means nothing: there is none, or it points the other way."""
    if auc.get("value") is None:
        reason = auc.get("reason") or "no text has a score"
        return f"No answer: {primary} has no AUC ({reason})."
    if auc.get("high") is None or auc["high"] >= 0.5:
        return None
    return (
        f"No answer: {primary} points the other way, AUC {_write_interval(auc)}:"
        " members score lower than non-members. Are the labels swapped? If they are"
        " right, this is no sign of memory."
    )


def _write_interval(row: Mapping[str, Any]) -> str:
    value = f"{row['value']:.2f}"
    if row.get("low") is not None and row.get("high") is not None:
        return f"{value} (95 % CI {row['low']:.2f} to {row['high']:.2f})"
    reason = row.get("reason")
    return f"{value} (no interval: {reason})" if reason else value


# Where documents or groups have several windows.


class _Units(NamedTuple):
    """Groups or documents that were audited, in rows of the roll-up."""

    rows: pl.DataFrame
    noun: str

    @property
    def is_single(self) -> bool:
        return self.rows.height == 1

    def count_verdict(self, verdict: str) -> int:
        return self.rows.filter(verdict=verdict).height

    def write_number(self, n: int) -> str:
        """Write so many of them, by their noun where there is only one."""
        return f"the {self.noun}" if self.is_single else f"{n:,}"


def select_units(rollup: pl.DataFrame) -> pl.DataFrame:
    """Select groups and the documents that are in none; without groups all documents."""
    if rollup.is_empty():
        return rollup
    groups = rollup.filter(level="group")
    documents = rollup.filter(level="document")
    if groups.height and "group" in rollup.columns:
        is_in_group = pl.col("group").is_in(groups["key"].implode())
        documents = documents.filter(~is_in_group.fill_null(value=False))
    return pl.concat([groups, documents])


def _answer_about_units(results: RunResults, units: _Units) -> str:
    """Write how many have which answer, and the names of those that come or stand out."""
    allowed = results.allowed_comparisons()
    compares = allowed["targets and non-members"]
    clauses = [*_list_strongest(results, units)]
    if allowed["canaries"]:
        clauses.append(_write_collection(results, "controls", "the canaries"))
    if compares and is_closed(results.findings):
        clauses.append(_write_closed(results.findings, units, is_first=not clauses))
    elif compares and results.rule.level == "collection":
        together = f"the {units.noun}s together"
        clauses.append(_write_collection(results, "non_members", together))
    elif compares:
        if not units.count_verdict("known_better"):
            clauses += _list_bound(results.findings, units)
        clauses += _list_weaker(results.findings, units, is_first=not clauses)
    elif not allowed["canaries"]:
        if not clauses and _is_sampled(units):
            clauses.append(_write_none_comes_out(results.findings, units))
        clauses += _list_uncompared(units, is_first=not clauses)
    total = ""
    if not units.is_single:
        total = f"Of {write_count(units.rows.height, units.noun)}, "
    return capitalize(f"{total}{'; '.join(clauses)}.")


def _list_strongest(results: RunResults, units: _Units) -> Iterator[str]:
    """Write which come out word for word, then which stand out."""
    n_out = units.count_verdict("comes_out")
    if n_out:
        longest = units.rows.select(_LONGEST.max()).item() or 0
        strongest = _name_strongest(units, "comes_out")
        yield (
            f"{units.write_number(n_out)} {conjugate('come', n_out)} out word for word,"
            f" the longest passage {longest:,} words in a row ({strongest})"
        )
    n_listed = units.count_verdict("known_better")
    if n_listed and results.rule.level != "collection":
        yield (
            f"{units.write_number(n_listed)} {conjugate('stand', n_listed)}"
            f" {_write_beyond(results, units.noun)} ({_name_strongest(units, 'known_better')})"
        )


def _name_strongest(units: _Units, verdict: str) -> str:
    rows = sort_by_strength(units.rows.filter(verdict=verdict))
    return list_names(_list_short_titles(rows), _N_NAMED)


def _write_beyond(results: RunResults, noun: str) -> str:
    """Write beyond what those that are named stand out, and how false such lists are."""
    rule = results.rule
    n_null = find_values(results.findings, "reported").get("n_null")
    in_list = _write_false_share(rule.q)
    if gate_verdict(results.findings) == "exploratory" or rule.level != "group":
        return f"out, {in_list}, exploratory"
    against = f" from {n_null:,.0f} comparison {noun}s" if n_null else ""
    return f"out{against}, {in_list}"


def _write_false_share(q: float) -> str:
    return f"in a list of which at most {100 * q:g} % are false on average"


def _write_top(findings: pl.DataFrame, noun: str) -> str | None:
    """Write how many of the highest stand out at least, where none can be named."""
    bound = find_top_bound(findings)
    if bound is None:
        return None
    subject = bound.describe("author" if bound.level == "author" else noun)
    verb = conjugate("stand", bound.n_members)
    confidence = f"{100 * bound.confidence:g} % confidence"
    return f"{subject} {verb} out beyond chance ({confidence})"


def find_counted_bound(findings: pl.DataFrame, rows: pl.DataFrame) -> TopBound | None:
    """Return how many of the highest are members at least, where none of them is named.

    ``rows`` are those of the roll-up that are judged. None where each of the highest
    comes out, which says more, and where the bound counts texts or authors instead.
    """
    bound = find_top_bound(findings)
    if bound is None or bound.level != "group":
        return None
    if not rows.filter(verdict="known_better").is_empty():
        return None
    highest = _rank_tested(rows).head(bound.n_highest)
    return None if (highest["verdict"] == "comes_out").all() else bound


def _rank_tested(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by p-value: a bound counts all whose p-value is that of its last one."""
    tested = rows.drop_nulls("p_value")
    return tested.sort("p_value", "mean", "key", descending=[False, True, False])


def _list_bound(findings: pl.DataFrame, units: _Units) -> Iterator[str]:
    """Write how many are known at least where none can be named, and what would name them."""
    top = find_top_bound(findings)
    if top is not None and top.level == "author":
        yield str(_write_top(findings, units.noun))
    bound = find_counted_bound(findings, units.rows)
    if bound is None:
        return
    if gate_verdict(findings) == "exploratory" or units.is_single:
        yield str(_write_top(findings, units.noun))
        return
    highest = _rank_tested(units.rows).head(bound.n_highest)
    names = list_names(_list_short_titles(highest), _N_NAMED)
    is_all = bound.n_members == bound.n_highest
    number = f"at least {bound.n_members:,} of these {bound.n_highest:,}"
    if is_all:
        number = f"these {bound.n_highest:,}" if bound.n_highest > 1 else "this one"
    confidence = f"{100 * bound.confidence:g} % confidence"
    yield (
        f"the model knows {number} better than {bound.n_null:,} comparison"
        f" {units.noun}s ({confidence}): {names}"
    )
    if not is_all:
        which = "which one" if bound.n_members == 1 else f"which {bound.n_members:,}"
        yield f"{which} cannot be said with so few comparison {units.noun}s"


def _list_weaker(
    findings: pl.DataFrame, units: _Units, *, is_first: bool
) -> Iterator[str]:
    """Write of how many little or nothing was found, and how many cannot be judged."""
    bound = find_counted_bound(findings, units.rows)
    n_above = units.count_verdict("above_all") if bound is None else 0
    if n_above:
        yield (
            f"{units.write_number(n_above)} {conjugate('score', n_above)} above every"
            f" comparison {units.noun}, which are too few to name any"
        )
    n_unjudged = units.count_verdict("cannot_tell")
    if n_unjudged:
        unjudged = units.rows.filter(verdict="cannot_tell")
        reasons = unjudged["reason"].drop_nulls().mode().sort()
        reason = f": {reasons[0][:_SHORT_REASON]}" if len(reasons) else ""
        yield f"{units.write_number(n_unjudged)} cannot be judged{reason}"
    n_rest = units.rows.height - (bound.n_highest if bound else 0)
    n_nothing = min(units.count_verdict("nothing_found"), n_rest)
    if not n_nothing:
        return
    if not is_first or n_above or n_unjudged:
        article = "the other " if bound else ""
        yield f"nothing was found on {article}{n_nothing:,}"
    elif units.is_single:
        yield (
            f"the {units.noun} does not stand out, which does not show that it was not"
            " learnt"
        )
    else:
        yield "none stands out, which does not show that they were not learnt"


def _list_uncompared(units: _Units, *, is_first: bool) -> Iterator[str]:
    """Write that the others cannot be judged, and which of them score highest."""
    rows = units.rows.filter(pl.col("verdict") != "comes_out")
    if rows.is_empty():
        return
    ranked = _list_short_titles(sort_by_strength(rows))
    order = ""
    if len(ranked) > 3:
        order = f"; of these, {ranked[0]}, {ranked[1]} and {ranked[2]} score highest"
    elif len(ranked) > 1:
        order = f"; of these, {ranked[0]} scores highest"
    subject = units.write_number(rows.height)
    if units.is_single and not is_first:
        subject = "it"
    elif not units.is_single and rows.height == units.rows.height:
        subject = "these" if is_first else "them"
    if subject in ("it", "them", "these"):
        yield (
            f"whether the model knows {subject} cannot be said without comparison"
            f" texts{order}"
        )
        return
    verb = conjugate("are", rows.height)
    yield f"{subject} {verb} not judged, for want of comparison texts{order}"


def _write_closed(findings: pl.DataFrame, units: _Units, *, is_first: bool) -> str:
    """Write that there is no answer by comparison, and why."""
    reason = _why_closed(findings, units.noun, "its scores")
    if not is_first:
        rest = "there is no other answer"
        if not units.is_single:
            rest = "the others have no answer"
        return f"{rest}, because {reason}"
    if not _is_sampled(units):
        return f"there is no answer: {reason}"
    silence = _write_none_comes_out(findings, units)
    return f"{silence}, and there is no other answer: {reason}"


def _why_closed(findings: pl.DataFrame, noun: str, scores: str) -> str:
    if gate_verdict(findings) == "changed":
        return f"{scores} are of no single model"
    return f"{noun}s and comparison {noun}s can be distinguished without the model"


def _is_sampled(units: _Units) -> bool:
    lengths = units.rows.select("longest_words", "extracted_words")
    return any(column.count() for column in lengths)


def _write_none_comes_out(findings: pl.DataFrame, units: _Units) -> str:
    verbatim = find_values(findings, "verbatim", subject="targets")
    # Of comparison documents some of the highest may be, too, or all of them
    if "n_highest" in verbatim and verbatim["n_texts"]:
        windows = f"{verbatim['n_texts']:,.0f} windows of highest scores"
        subject = f"the {units.noun}" if units.is_single else "none"
        verb = "does not come" if units.is_single else "comes"
        return f"{subject} {verb} out word for word in the {windows}"
    if units.is_single:
        return f"the {units.noun} does not come out word for word"
    return "none comes out word for word"


# Where texts are judged one by one, or all together.


def _answer_about_texts(results: RunResults) -> str:
    allowed = results.allowed_comparisons()
    findings = results.findings
    compares = allowed["comparison of targets"]
    clauses = [*_list_verbatim(findings)]
    reported = find_values(findings, "reported")
    if compares and results.rule.level == "collection":
        together = "the texts together"
        clauses.append(_write_collection(results, "non_members", together))
    elif compares and reported:
        clauses.append(_write_reported(results, reported))
    elif allowed["targets and non-members"]:
        no_answer = "no other answer" if clauses else "no answer"
        reason = _why_closed(findings, "text", "the scores")
        clauses.append(f"{no_answer}, because {reason}")
    if allowed["canaries"]:
        clauses.append(_write_collection(results, "controls", "the canaries"))
    if not clauses and allowed["any comparison"]:
        clauses.append("no answer: all texts are known not to be in the training data")
    elif not clauses:
        clauses.append(
            "scores only rank your texts: without comparison texts there is no answer"
        )
    elif allowed["targets alone"]:
        clauses.append(
            "scores only rank the others, which is no answer without comparison texts"
        )
    return f"{capitalize('; '.join(clauses))}."


def _list_verbatim(findings: pl.DataFrame) -> Iterator[str]:
    verbatim = find_values(findings, "verbatim", subject="targets")
    n = verbatim["n_verbatim"] if verbatim else 0
    if n:
        ranked = " of highest scores" if "n_highest" in verbatim else ""
        yield (
            f"{n:,.0f} of {verbatim['n_texts']:,.0f} texts{ranked}"
            f" {conjugate('come', n)} out word for word"
        )


def _write_reported(results: RunResults, reported: Mapping[str, Any]) -> str:
    noun = "text" if results.rule.level == "target" else "group"
    n = reported["n_reported"]
    total = f"{reported['n_tests']:,.0f} {noun}s"
    stand_out = (
        f"of {total} {conjugate('stand', n or 1)} out from"
        f" {reported['n_null'] or 0:,.0f} comparison texts"
    )
    in_list = _write_false_share(results.rule.q)
    if n:
        return f"{n:,.0f} {stand_out}, {in_list}"
    bound = _write_top(results.findings, noun)
    if bound:
        return f"{bound}; none of {total} can be named {in_list}"
    return f"none {stand_out}, which does not show that they were not learnt"


def _write_collection(results: RunResults, versus: str, texts: str) -> str:
    rule = results.rule
    subject = f"{texts}, by {rule.primary}"
    tests = find_collection_tests(results.verdicts, rule.primary, versus)
    test = next(tests.iter_rows(named=True), {})
    p_value = test.get("p_value")
    if p_value is None:
        reason = test.get("reason") or "nothing was compared"
        return f"no answer about {subject} ({reason})"
    finding = "show no sign of memory"
    if p_value <= rule.q:
        finding = "score higher than chance explains"
    return f"{subject}, {finding} (p = {p_value:.3g})"


# The table of books.


def audited_books(tables: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
    """Return what was audited, the strongest evidence first, then comparison documents.

    A row for each group, and each document that is in none, else each document:
    ``level`` (``outside`` for comparison documents), ``key``, ``title``, ``n_asked``
    and ``n_windows``, ``strip`` (24 numbers in [0, 1] from first to last page: the
    share of other documents' comparison texts that score lower; null where nothing was
    asked), ``verdict`` and ``answer``, why there is no p-value (``reason``),
    ``p_value``, ``q_value``, ``share``, ``share_low`` and ``share_high`` (of windows
    that the model was trained on, 95 %), ``share_verbatim``, ``longest_words`` and
    ``longest_target_id`` (the longest run that an answer repeats). Null means not
    measured. Empty where no document has two windows.
    """
    rollup = pl.DataFrame()
    if "rollup" in tables:
        rollup = tables["rollup"].collect(engine="streaming")
    if rollup.is_empty():
        return pl.DataFrame(schema=_BOOKS)
    audited = sort_by_strength(select_units(rollup))
    outside = sort_by_strength(rollup.filter(level="outside"))
    rows = pl.concat([audited, outside])
    strips = _sample_strips(read_strips(tables))
    is_document = pl.col("level") != "group"
    documents = rows.select(pl.when(is_document).then("key")).to_series()
    answers = pl.col("verdict").cast(pl.String).replace_strict(ANSWERS)
    rows = rows.with_columns(
        title=pl.Series(_list_titles(rows), dtype=pl.String),
        strip=pl.Series([strips.get(key) for key in documents], dtype=_BOOKS["strip"]),
        answer=pl.when(pl.col("level") != "outside").then(answers),
        share="contamination",
        share_low="contamination_low",
        share_high="contamination_high",
        longest_words=_LONGEST,
    )
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _BOOKS.items())


_NUMBERS = ("p_value", "q_value", "share", "share_low", "share_high", "share_verbatim")
_BOOKS: dict[str, Any] = {
    **dict.fromkeys(("level", "key", "title"), pl.String),
    **dict.fromkeys(("n_asked", "n_windows"), pl.UInt32),
    "strip": pl.List(pl.Float64),
    **dict.fromkeys(("verdict", "answer", "reason"), pl.String),
    **dict.fromkeys(_NUMBERS, pl.Float64),
    "longest_words": pl.UInt32,
    "longest_target_id": pl.String,
}


def sort_by_strength(rows: pl.DataFrame) -> pl.DataFrame:
    ranks = {verdict: rank for rank, verdict in enumerate(ANSWERS)}
    rank = pl.col("verdict").cast(pl.String).replace_strict(ranks)
    verbatim = pl.when(_LONGEST >= VERBATIM_WORDS).then(_LONGEST)
    return rows.sort(
        [rank, verbatim, "p_value", "mean", "key"],
        descending=[False, True, False, True, False],
        nulls_last=True,
    )


_WIDTH_OF_TITLE = 40  # in a sentence


def _list_short_titles(rows: pl.DataFrame) -> list[str]:
    return [cut_middle(title, _WIDTH_OF_TITLE) for title in _list_titles(rows)]


def _list_titles(rows: pl.DataFrame) -> list[str]:
    title = pl.coalesce("title", "key") if "title" in rows.columns else pl.col("key")
    return rows.select(title.cast(pl.String)).to_series().to_list()


def read_strips(tables: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
    """Read the points of strips (``subject``, ``x``, ``y``, ``n``), by their place in documents.

    The table of curves counts places up to the end of the last window asked about.
    Where others follow it in the document, a gap does, of the length of so many.
    """
    if "curves" not in tables:
        return pl.DataFrame(schema={"subject": pl.String, "x": pl.Float64})
    strips = tables["curves"].filter(curve="strip").select("subject", "x", "y", "n")
    points = strips.collect(engine="streaming")
    if "targets" not in tables or points.is_empty():
        return points
    last_window = pl.col("window_index").max() + 1
    reached = (
        tables["targets"]
        .group_by(subject=pl.coalesce("document_id", "target_id"))
        .agg(part=(last_window / pl.col("n_windows").max()).fill_null(1.0))
        .filter(pl.col("part") < 1)
        .collect(engine="streaming")
    )
    scaled = points.join(reached, on="subject", how="left", maintain_order="left")
    scaled = scaled.with_columns(x=pl.col("x") * pl.col("part").fill_null(1.0))
    gaps = scaled.drop_nulls("part").unique("subject", maintain_order=True)
    gaps = gaps.with_columns(x="part", y=None, n=pl.lit(0, pl.UInt32))
    whole = pl.concat([scaled, gaps], how="vertical_relaxed").select(points.columns)
    return whole.cast(points.schema).sort("subject", "x")


def _sample_strips(points: pl.DataFrame) -> dict[str, list[float | None]]:
    """Take the value at the middle of each stretch of a document, by its key.

    Where a window is narrower than a stretch, the stretch has its value.
    """
    strips: dict[str, list[float | None]] = {}
    for (subject,), rows in points.group_by("subject"):
        ascending = rows.sort("x")
        starts = ascending["x"]
        is_asked = pl.col("n") > 0
        values = ascending.select(pl.when(is_asked).then("y")).to_series()
        strip: list[float | None] = []
        for stretch in range(STRIP):
            middle = (stretch + 0.5) / STRIP
            n_begun = int((starts <= middle).sum())
            value: Any = values[n_begun - 1] if n_begun else None
            if value is None:
                is_inside = starts.is_between(
                    stretch / STRIP, (stretch + 1) / STRIP, closed="left"
                )
                value = values.filter(is_inside).max()
            strip.append(value)
        strips[str(subject)] = strip
    return strips


def shade_strip(strip: Sequence[float | None] | None) -> str:
    """Draw a strip as 24 characters, the higher the more evidence; a dot for null."""
    return "".join(map(_shade, strip or ()))


def _shade(value: float | None) -> str:
    if value is None:
        return "·"
    return _SHADES[min(int(value * len(_SHADES)), len(_SHADES) - 1)]


# The table of attacks.

View = tuple[str, str]  # a model, and what it is asked
_RATES = {
    "tpr_5": ("tpr_at_fpr", 0.05),
    "tpr_1": ("tpr_at_fpr", 0.01),
    "tpr_01": ("tpr_at_fpr", 0.001),
    "fpr_95": ("fpr_at_95_tpr", None),
}
"""Metrics and their FPR, by the columns of `attack_rows` that have them."""


def attack_rows(
    tables: Mapping[str, pl.LazyFrame],
    attacks: Sequence[Attack],
    seconds: Mapping[str, float] | None = None,
    passes: Mapping[str, int] | None = None,
) -> pl.DataFrame:
    """Return the figures of each attack where the truth is known, the best first.

    ``attack``, ``is_blind`` (a classifier that never sees the model; they come last),
    ``is_later`` (added to the planned ones; they come after these), ``auc`` with its 95
    % interval ``low`` and ``high``, ``tpr_5``, ``tpr_1`` and ``tpr_01`` (TPR at 5 %, 1 %
    and 0.1 % FPR) and ``fpr_95`` (FPR at 95 % TPR; all null where there are too few
    texts; why, or why it is unstable, in ``tpr_1_reason``, ...), ``lead`` (AUC less that
    of the strongest classifier that never sees the model), their limits
    (``tpr_1_low``, ...),
    ``tokens`` (decoded for a text by one of ``attacks``, null where none are),
    ``seconds`` (of asking, a text, by the ``seconds`` of each stage in ``times`` of
    ``run.json``, shared out by tokens and by ``passes``; null where unknown). Empty
    without labels.
    """
    metrics = tables["metrics"].filter(slice="all").collect(engine="streaming")
    is_compared = pl.col("versus").is_not_null()
    alone = metrics.filter(~is_compared)
    blind = _read_column(tables["blind_metrics"], "attack")
    is_lead = pl.col("versus").is_in(blind)
    leads = metrics.filter(is_lead, metric="roc_auc_difference")
    figures = [leads.select("attack", lead="value", lead_low="low", lead_high="high")]
    for name, (metric, fpr) in _RATES.items():
        rates = alone.filter(metric=metric)
        if fpr is not None:
            rates = rates.filter((pl.col("fpr") - fpr).abs() < fpr / 10)
        columns = {
            name: "value",
            f"{name}_low": "low",
            f"{name}_high": "high",
            f"{name}_reason": "reason",
        }
        figures.append(rates.select("attack", **columns))
    figures.append(_compute_costs(tables, attacks, seconds or {}, passes or {}))
    rows = alone.filter(metric="roc_auc").select("attack", "low", "high", auc="value")
    for figure in figures:
        by_attack = figure.unique("attack", keep="first")
        rows = rows.join(by_attack, on="attack", how="left", maintain_order="left")
    if rows["auc"].count() == 0:  # no label of one of the classes
        rows = rows.clear()
    later = pl.Series([], dtype=pl.String).implode()
    if "findings" in tables:
        later = _read_column(tables["findings"].filter(check="later"), "subject")
    rows = rows.with_columns(
        is_blind=pl.col("attack").is_in(blind),
        is_later=pl.col("attack").is_in(later),
    )
    ranked = rows.sort("auc", descending=True, nulls_last=True, maintain_order=True)
    ordered = ranked.sort("is_blind", "is_later", maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in _ATTACKS.items())


def _read_column(table: pl.LazyFrame, name: str) -> pl.Series:
    return table.select(name).collect(engine="streaming")[name].implode()


_LIMITED = product((*_RATES, "lead"), ("", "_low", "_high"))
_FIGURES = ("auc", "low", "high", *map("".join, _LIMITED))
_ATTACKS: dict[str, Any] = {
    "attack": pl.String,
    "is_blind": pl.Boolean,
    "is_later": pl.Boolean,
}
_ATTACKS |= dict.fromkeys((*_FIGURES, "tokens", "seconds"), pl.Float64)
_ATTACKS |= dict.fromkeys((f"{name}_reason" for name in _RATES), pl.String)


def _compute_costs(
    tables: Mapping[str, pl.LazyFrame],
    attacks: Sequence[Attack],
    seconds: Mapping[str, float],
    passes: Mapping[str, int],
) -> pl.DataFrame:
    """Compute the tokens decoded for a text, and the seconds of asking about it."""
    n_tokens, n_asked = _count_samples(tables)
    n_texts = tables["scores"].select(pl.len()).collect(engine="streaming").item()
    tokens_of_model: Counter[str] = Counter()
    for (model, _), n in n_tokens.items():
        tokens_of_model[model] += n
    rows = []
    for attack in attacks:
        tokens = 0.0
        took = _compute_seconds(attack, seconds, passes)
        for view in attack.list_reads("samples"):
            model, _ = view
            n = n_tokens.get(view, 0)
            tokens += n / max(n_asked.get(view, 0), 1)
            share = n / max(tokens_of_model[model], 1)
            took += share * seconds.get(f"samples of {model}", 0.0)
        seconds_of_text = took / n_texts if n_texts else None
        rows.append(
            {
                "attack": attack.name,
                "tokens": tokens or None,
                "seconds": seconds_of_text or None,
            }
        )
    return pl.DataFrame(
        rows, {name: _ATTACKS[name] for name in ("attack", "tokens", "seconds")}
    )


def _count_samples(
    tables: Mapping[str, pl.LazyFrame],
) -> tuple[dict[View, int], dict[View, int]]:
    """Count the tokens decoded of each view of each model, and the texts asked about."""
    if "samples" not in tables:
        return {}, {}
    key = [pl.col(name).cast(pl.String) for name in ("model", "view")]
    counts = (
        tables["samples"]
        .group_by(key)
        .agg(pl.col("n_tokens").sum(), pl.col("target_id").n_unique())
        .collect(engine="streaming")
    )
    views = [*counts.select("model", "view").iter_rows()]
    n_tokens = dict(zip(views, counts["n_tokens"], strict=True))
    return n_tokens, dict(zip(views, counts["target_id"], strict=True))


def _compute_seconds(
    attack: Attack, seconds: Mapping[str, float], passes: Mapping[str, int]
) -> float:
    """Compute the time of an attack's logprobs: its share, by forward passes."""
    views = attack.list_reads("logprobs")
    total = 0.0
    for model in {model for model, _ in views}:
        n_of_model = sum(
            n for view, n in passes.items() if view.startswith(f"{model} ")
        )
        n_of_attack = sum(
            passes.get(" ".join(view), 0) for view in views if view[0] == model
        )
        share = n_of_attack / n_of_model if n_of_attack else 1.0
        total += seconds.get(f"logprobs of {model}", 0.0) * share
    return total
