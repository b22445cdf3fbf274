"""Sentences about texts of unknown membership: verdicts, passages, the yardstick."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report.sentences import facts, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.inference.findings import VerdictPlan


_MOST_NAMED = 12
_LEVEL = 0.05
_MOST_CHARACTERS = 200
_CONTROLS = {
    "unrelated_prefix": "come after an unrelated prefix, too",
    "reference_model": "come from the reference model, too",
    "other_document": "stand in another document, too",
}
_ADJUSTMENTS = {
    "bh": "Benjamini-Hochberg",
    "by": "Benjamini-Yekutieli",
    "e-bh": "e-BH",
    "wcs": "weighted conformalized selection",
}


def _subject(of: dict[str, dict[str, Any]]) -> str:
    return next((str(row["subject"]) for row in of.values()), "")


# What the test can show, and whether it was planned.


def power_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the planned test can show at best, and what would allow more."""
    of = facts(findings, "power")
    if not of:
        return
    value = {name: row["value"] for name, row in of.items()}
    unit, wanted = of["n_tests"]["verdict"], value["nulls_needed"]
    asked, lone = _counted(value["n_tests"], unit), value["n_tests"] == 1
    compared, q = _counted(value["n_null"], f"comparison {unit}"), f"q = {value.get('q', 0):g}"
    more = f"give at least {wanted or 0:,.0f}"
    if wanted is None:
        yield f"None of your {asked} can be compared: too few windows, or of unknown length."
        return
    if _subject(of) == "collection":
        least = f"p-value of your {asked} together can be {value['together']:.2g} at best"
        if of["together"]["verdict"] == "possible":
            yield f"With {compared} the {least}."
        else:
            yield f"With {compared} nothing can be shown at 0.05, for the {least}: {more}."
        return
    if of["n_null"]["verdict"] == "of_one_length":
        compared, more = f"at most {compared} of one length", f"{more} of each length"
    named = ("one", "two", "three", "four", "five")[int(value["n_named"]) - 1]
    more = f"to name {'it' if lone else f'{named} of them'}, {more}"
    if of["together"]["verdict"] == "possible":
        more += ", or ask --level collection"
    if (needed := value["needed"]) is None:
        none = f"your {unit} cannot" if lone else f"none of your {asked} can"
        yield f"With {compared} {none} be named at {q}, whatever the scores; {more}."
    elif needed == 1:
        one = f"your {unit}" if lone else f"a single one of your {asked}"
        yield f"With {compared} {one} can be named, if it stands out."
    else:
        yield (
            f"With {compared} single {unit}s can be named only if {needed:,.0f} of your "
            f"{value['n_tests']:,.0f} stand out; {more}."
        )
    if needed is not None:
        yield (
            f"A {unit} stands out where it scores higher than every comparison {unit}: its p-value "
            f"is then {value['smallest_p']:.2g}. Those named are a list at {q} "
            f"({_ADJUSTMENTS[of['q']['verdict']]})."
        )
    if value["for_bound"] is not None:
        yield (
            f"That at least one of your {asked} is in the training data can be shown if "
            f"{value['for_bound']:,.0f} of them score higher than every comparison {unit}."
        )


def _counted(n: float, what: str) -> str:
    return f"{n:,.0f} {what}{'' if n == 1 else 's'}"


def plan_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say that answers are exploratory; nothing where they are those that were planned."""
    rows = findings.filter(check="plan")
    main = next(rows.filter(statistic="n_changed").iter_rows(named=True), None)
    if main is None or main["verdict"] == "as_planned":
        return
    if main["verdict"] == "late":
        yield f"These answers are exploratory: {main['reason']}."
        return
    changed = rows.filter(statistic="changed")["subject"]
    others = f" Changed since: {', '.join(changed)}." if len(changed) else ""
    yield (
        "These answers are exploratory: scores had been made before they were asked for. The plan "
        f"made before is in run.json (primary attack {main['subject']}).{others}"
    )


def null_audit_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how often audits of texts outside the training data alone report any."""
    of = facts(findings, "null_audits")
    found = of.get("share_reporting")
    if found is None:
        return
    if found["value"] is None:
        yield f"The rates were not validated on these non-members: {found['reason']}."
        return
    n = {name: row["value"] for name, row in of.items()}
    more = ": more than was promised" if found["verdict"] == "too_often" else ""
    yield (
        f"Of {n['n_audits']:,.0f} audits of non-members, {n['n_tests']:,.0f} drawn at random "
        f"against {n['n_null']:,.0f} others, {found['value']:.1%} report any {_subject(of)} "
        f"({found['low']:.1%} to {found['high']:.1%}; at most {n['q']:.1%} are promised){more}; "
        f"{n['share_below_fpr']:.1%} of their p-values are at most {n['fpr']:g}. That checks the "
        "procedure on these scores, not whether the audited texts are like the non-members."
    )


def weights_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how many non-members count where they are weighted, or why they cannot be."""
    of = facts(findings, "weights")
    main = of.get("n_effective", {})
    if main.get("verdict") == "used":
        yield (
            "Comparison texts count the more, the more they are like the audited ones: "
            f"{of['n_null']['value']:,.0f} of them count as {main['value']:.1f}. p-values then "
            "hold if the two sets differ in nothing but training and what the blind classifiers "
            "have learned to see."
        )
    elif main.get("verdict") == "no_overlap":
        yield f"Weights do not help: {main['reason']}."


_PLACEBOS = {
    "as_many": (
        "The same test on the reference model {}: what is found on the audited model is no "
        "evidence of its memory."
    ),
    "fewer": "The same test on the reference model (which cannot know these texts) {}.",
}


def placebo_sentence(findings: pl.DataFrame, verdict: str) -> Iterator[str]:
    """Say what the same test finds on the reference model, if that is ``as_many``, or ``fewer``."""
    of = facts(findings, "placebo")
    level, reason = _subject(of), of.get("n_reported", {}).get("reason")
    if reason is not None and verdict == "fewer":
        yield f"The same test was not made on the reference model: {reason}."
    main = of.get("collection" if level == "collection" else "n_reported")
    if main is None or main["verdict"] != verdict:
        return
    smallest, p = of.get("smallest_q", {}).get("value"), main["p_value"]
    if level != "collection":
        least = "" if smallest is None else f" (smallest q {smallest:.2g})"
        found = f"reports {main['value']:,.0f} of {of['n_tests']['value']:,.0f} {level}s{least}"
    else:
        found = "has no p-value" if p is None else f"has p = {p:.3g} for all groups together"
    yield _PLACEBOS[verdict].format(found)


# What p-values and estimates show of the attack that the answer rests on.


def unlabelled_sentences(
    verdicts: pl.LazyFrame, findings: pl.DataFrame, plan: VerdictPlan
) -> Iterator[str]:
    own = verdicts.filter(attack=plan.primary)
    answers = [[*_reported(findings, own, plan)], [*_top(findings, own, plan)]]
    listed_any = findings.filter(pl.col("value") > 0, check="reported", statistic="n_reported")
    given = [*chain(*(reversed(answers) if listed_any.is_empty() else answers))]
    given += _stopping(findings)
    whole = own.filter(level="collection").collect()
    tests, rates = (whole.filter(pl.col("estimate").is_null() == test) for test in (True, False))
    tests, asked = tests.filter(versus="non_members"), plan.level == "collection"
    given += _of_all(tests, plan, "All groups together", asked=asked)
    given += _max_t(findings)
    yield from given
    compared = own.filter(versus="non_members").select((pl.col("n_null") > 0).any())
    if given and compared.collect(engine="streaming").item():
        yield f"The null: {plan.null_set.rstrip('.')}."
    for row in rates.iter_rows(named=True):
        said = None
        if row["value"] is not None:
            interval = f"interval {row['low']:.0%} to {row['high']:.0%}"
            said = f"{row['value']:.0%}, {100 * row['confidence']:g} % {interval}"
        elif row["low"]:
            said = f"at least {row['low']:.0%} at {100 * row['confidence']:g} % confidence"
        if said:
            yield f"Share of members among the targets: {said} ({row['assumption']})."


def canary_sentences(verdicts: pl.LazyFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what the published canaries show."""
    rows = verdicts.filter(attack=plan.primary, level="collection", versus="controls").collect()
    yield from _of_all(rows, plan, "All canaries", asked=True)


def _of_all(rows: pl.DataFrame, plan: VerdictPlan, what: str, *, asked: bool) -> Iterator[str]:
    """Give the answer about a whole collection, or say why there is none if it was asked for."""
    later = "" if asked else f"; exploratory, the plan is about each {plan.level}"
    for row in rows.iter_rows(named=True):
        if row["p_value"] is not None:
            yield f"{what}, by {row['attack']}: p = {row['p_value']:.3g} ({row['method']}{later})."
        elif asked:
            yield f"{what}, by {row['attack']}: no p-value ({row['reason']})."


def _reported(findings: pl.DataFrame, verdicts: pl.LazyFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what is reported at the planned level, and name it unless it is texts."""
    rows = facts(findings, "reported")
    if not rows:
        return
    n, level = {name: row["value"] for name, row in rows.items()}, _subject(rows)
    units = findings.filter(check="power", subject="group", statistic="n_tests")["verdict"]
    q, kind = n["q"], f"{units[0] if level == 'group' and len(units) else level}s"
    how = (
        f"{plan.primary}, {_ADJUSTMENTS[rows['q']['verdict']]}, against {n['n_null']:,.0f} "
        "independent units outside the training data"
    )
    if n["n_reported"]:
        yield (
            f"{n['n_reported']:,.0f} of {n['n_tests']:,.0f} {kind} are reported at q = "
            f"{q:g} ({how}): lists made like this are on average at most {100 * q:g} % false."
        )
        if level == "group":
            yield f"Reported: {_highest(verdicts, int(n['n_reported']))}."
    else:
        least = "" if n["smallest_q"] is None else f"; the smallest q is {n['smallest_q']:.2g}"
        yield (
            f"None of {n['n_tests']:,.0f} {kind} is reported at q = {q:g} ({how}){least}. "
            "That is no evidence of absence."
        )
    if lost := n["n_without_p"]:
        reason = rows["n_without_p"]["reason"]
        yield f"Without a p-value: {lost:,.0f} {kind} (mostly: {reason})."
    if alone := n["n_without_null"]:
        yield f"Nothing to compare with, so never reported: {alone:,.0f} {kind}."


def _highest(verdicts: pl.LazyFrame, n: int) -> str:
    """Name the groups with the highest scores."""
    level = pl.col("level").cast(pl.String)
    groups = verdicts.filter(level.is_in(["document", "group"]), versus="non_members")
    ordered = groups.sort("score", "key", descending=[True, False], nulls_last=True)
    return listed(ordered.head(n).collect()["key"].to_list(), _MOST_NAMED)


def _top(findings: pl.DataFrame, verdicts: pl.LazyFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say how many of the highest are members at least, and name them unless they are texts."""
    rows = facts(findings, "top")
    if not rows or not rows["at_least"]["value"]:
        return
    noun = _subject(rows)
    fewest, of_top, n_null = (int(rows[name]["value"]) for name in ("at_least", "of_top", "n_null"))
    what = f"{'All' if fewest == of_top else f'At least {fewest:,} of the'} {of_top:,} "
    what = f"The highest-scoring {noun}" if of_top == 1 else f"{what}highest-scoring {noun}s"
    named = "" if noun == "text" else f": {_highest(verdicts, of_top)}"
    if fewest < of_top:
        named += f". The bound does not say which {fewest:,} they are"
    yield (
        f"{what} {'stands' if fewest == 1 else 'stand'} out beyond chance from {n_null:,} "
        f"{noun}s outside the training data ({100 * rows['confidence']['value']:g} % confidence, "
        f"{plan.primary}){named}."
    )


def _max_t(findings: pl.DataFrame) -> Iterator[str]:
    """Say what all attacks show together."""
    of = facts(findings, "max_t")
    if (found := of.get("largest")) is not None:
        n_attacks, noun = of["n_attacks"]["value"], of["n_attacks"]["subject"]
        whole = "" if noun == "text" else "whole "
        later = "; exploratory" if found["verdict"] == "exploratory" else ""
        reason = f", as {found['reason']}" if found["reason"] else ""
        yield (
            f"All {n_attacks:,.0f} attacks together (largest rank sum, {whole}{noun}s permuted"
            f"{later}{reason}): p = {found['p_value']:.3g}, strongest: {found['subject']}."
        )


def _stopping(findings: pl.DataFrame) -> Iterator[str]:
    """Say what was not asked because groups were decided."""
    n = {name: row["value"] for name, row in facts(findings, "e_values").items()}
    if not n:
        return
    spared = (n["n_planned"] - n["n_asked"]) / n["n_planned"]
    yield (
        f"{spared:.0%} of the {n['n_planned']:,.0f} planned windows were not asked: each group was "
        f"asked, in at most {n['n_rounds']:,.0f} rounds, until it was reported or could no longer "
        "be. The rate of false ones holds wherever the rounds are stopped."
    )
    if undecided := n["n_undecided"]:
        yield f"Not decided yet: {undecided:,.0f} groups, which further windows can still decide."


# The yardstick, and what came out word for word.


def yardstick_sentences(findings: pl.DataFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what came out, and what scored high, of the passages of each level."""
    rows = findings.filter(check="yardstick")
    if back := _counts(rows, "n_given_back", "n_continued"):
        yield (
            "Passages of the yardstick that the model gives back under these settings (20 words in "
            f"a row, or all that follow): {back}."
        )
    if above := _counts(rows, "n_above", "n_scored"):
        yield (
            f"Passages of the yardstick that score above {1 - plan.fpr:.0%} of the texts outside "
            f"the training data ({plan.primary}): {above}."
        )


def _counts(rows: pl.DataFrame, hits: str, of: str) -> str:
    """List what was counted at each level; empty where nothing was."""
    found = rows.filter(statistic=hits).select("subject", hits="value")
    both = found.join(rows.filter(statistic=of), on="subject", maintain_order="left")
    each = both.select("subject", "hits", "value").iter_rows()
    return "; ".join(f"{level}: {n:,.0f} of {total:,.0f}" for level, n, total in each)


def absence_sentences(findings: pl.DataFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say with which probability one text or group more would have been named."""
    rows = findings.filter(check="absence")
    what = "text" if plan.level == "target" else "group"
    if found := [
        f"{row['subject']}: {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        for row in rows.drop_nulls("value").iter_rows(named=True)
    ]:
        yield (
            f"Had one more {what} been learnt as well as the passages of a level of the yardstick, "
            f"this audit would have reported it with probability (95 % interval): "
            f"{'; '.join(found)}. That holds if the passages of a level are alike, and like the "
            "audited texts but for what was learnt."
        )
    for row in rows.filter(pl.col("value").is_null()).iter_rows(named=True):
        yield (
            f"How likely a {what} learnt as well as {row['subject']} is to be reported is unknown: "
            f"{row['reason']}."
        )


def verbatim_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what came out word for word, with the longest passage and what chance gives."""
    rows = findings.filter(check="verbatim")
    counts = {
        subject[0]: dict(of.select("statistic", "value").iter_rows())
        for subject, of in rows.group_by("subject", maintain_order=True)
    }
    own = counts.get("targets", {})
    n, n_walked = int(own.get("n_verbatim", 0)), int(own.get("n_walked", 0))
    longest = next(rows.filter(statistic="longest").iter_rows(named=True), None)
    if not (n + n_walked and longest):
        return
    passage = " ".join(str(longest["reason"]).split())
    if len(passage) > _MOST_CHARACTERS:
        passage = f"{passage[:_MOST_CHARACTERS]}..."
    said = [_share(own, "asked about")] if n else []
    named = rows.filter(statistic="document")["subject"].to_list()
    if said and own["n_units"] < own["n_texts"]:
        said[0] += f" ({listed(named, _MOST_NAMED)})"
    if n_walked:
        said.append(f"{n_walked:,} more passages when the model is followed through the documents")
    yield (
        f"Word for word (at least {VERBATIM_WORDS} words in a row) the model gives back "
        f"{' and '.join(said)}. The longest passage, of {longest['subject']}, has "
        f'{longest["value"]:,.0f} words: "{passage}"'
    )
    yield _by_chance(counts, rows.filter(statistic="fisher")["p_value"])


def _share(counts: dict[str, float], what: str) -> str:
    texts = f"{counts['n_verbatim']:,.0f} of {counts['n_texts']:,.0f} texts {what}"
    if counts["n_units"] == counts["n_texts"]:
        return texts
    return f"{texts}, in {counts['n_units_verbatim']:,.0f} of {counts['n_units']:,.0f} documents"


def _by_chance(counts: dict[str, dict[str, float]], fisher: pl.Series) -> str:
    """Say how often as much comes out where there is nothing to remember."""
    said = []
    if (others := counts.get("non_members", {})).get("n_texts"):
        said.append(f"{_share(others, 'to compare with')} come out so")
    for control, name in _CONTROLS.items():
        n = counts.get(control, {})
        if n.get("passages"):
            said.append(f"{n['repeated']:,.0f} of {n['passages']:,.0f} passages {name}")
    if not said:
        return (
            "How often chance gives as much was not measured: give --non-members, or ask with "
            "--controls."
        )
    more = ""
    if len(fisher):
        more = f" (Fisher's exact test: p = {fisher[0]:.2g})"
        if fisher[0] > _LEVEL:
            more += ", so these counts alone do not tell the two apart"
    return f"To compare: {'; '.join(said)}{more}."
