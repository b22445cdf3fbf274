"""All combinations of what a run may know: no sentence contradicts a number or a sentence."""

import re
from functools import cache
from itertools import product

import polars as pl
import pytest

from mia_batch.inference.findings import (
    finding_rows,
    gate_findings,
    plan_findings,
    preregister,
    reported_findings,
    why_withheld,
    withhold,
)
from mia_batch.inference.sets import few_books_findings
from mia_batch.inference.verdicts import verdicts
from mia_batch.report import preflight_sentences, sentences
from mia_batch.report.answer import answer
from mia_batch.report.sentences import RunResults, checks
from mia_batch.schemas import Metrics, Rollup
from tests.unit.inference.scored import plan, rows, table

PLAN = plan(null_set="written later")
BLIND = {
    "none": None,
    "separable": {
        "value": 0.98,
        "high": 0.99,
        "p_value": 0.005,
        "verdict": "separable",
    },
    "undecided": {"value": 0.55, "high": 0.71, "p_value": 0.3, "verdict": "undecided"},
    "alike": {"value": 0.51, "high": 0.56, "p_value": 0.4, "verdict": "not separable"},
    "unknown": {"reason": "each class needs 5 groups; a text without a group is one"},
}

VERBATIM = {"none": (0, 0), "some": (3, 0), "as many": (3, 30)}
DOUBT = re.compile(r"^(Whether the audited|It was not checked|Exploratory:)")
LIST = re.compile(r"(are|is) reported at q")
NUMBERS = re.compile(
    r"reported at q|stands? out beyond chance|Share of members|together|audits of"
    r" non-members"
)


def blind(subject, kind):
    baseline = BLIND[kind]
    if baseline is None:
        return []
    subject_column = {"subject": subject}
    strongest = (
        [subject_column | {"statistic": "strongest", "verdict": "blind_year_v1"}]
        if "value" in baseline
        else []
    )
    return [subject_column | {"statistic": "roc_auc"} | baseline, *strongest]


def scored(*, strong, nulls):
    """20 targets, five of them above all others or none, and 199 non-members or none."""
    target_scores = [9.0] * 5 * strong + [0.5] * (20 - 5 * strong)
    null_scores = [index / 200 for index in range(199)] if nulls else []
    return table(rows("target", target_scores), rows("non_member", null_scores)).lazy()


@cache
def answers(*, strong, nulls):
    """Verdicts, and what is found where they may be given."""
    table = scored(strong=strong, nulls=nulls)
    all_verdicts = pl.concat(verdicts(table, ["a_v1"], PLAN))
    few_books = few_books_findings(table, ["a_v1"], PLAN, ["a_v1"])
    return all_verdicts, pl.concat(
        [reported_findings(all_verdicts.lazy(), PLAN), few_books]
    )


def came_out(kind):
    target_counts, null_counts = VERBATIM[kind]
    sides = (("targets", 20, target_counts), ("non_members", 199, null_counts))
    findings = [
        {"subject": subject, "statistic": statistic, "value": value}
        for subject, n, counts_verbatim in sides
        for statistic, value in (
            *dict.fromkeys(("n_texts", "n_units"), n).items(),
            *dict.fromkeys(
                ("n_verbatim", "n_units_verbatim", "n_near"), counts_verbatim
            ).items(),
        )
    ]
    findings.append({"subject": "targets", "statistic": "n_walked", "value": 0})
    p = 0.62 if null_counts else 0.0006
    findings.append({"subject": "targets", "statistic": "fisher", "p_value": p})
    longest = {
        "subject": "b.txt",
        "statistic": "longest",
        "value": 31,
        "reason": "call me",
    }
    return [*findings, *([longest] if target_counts else [])]


def page(*, labels, alike, exploratory, strong, nulls, verbatim, changed):
    """The sentences of a run, its answer, and its verdicts."""
    roles = {"n_unknown": 20, "n_nulls": 199 * nulls, "n_canaries": 0}
    apart = [
        {"subject": side, "statistic": "n_concerned", "value": 0}
        for side in ("targets", "not targets")
    ]
    too_few = [
        {"subject": "texts", "statistic": name, "value": 0, "verdict": "few"}
        for name in ("n_copies", "n_texts")
    ]
    baselines = [*blind("members", labels), *(blind("targets", alike) if nulls else [])]
    ungated = pl.concat(
        [
            finding_rows(
                "roles", ({"statistic": k, "value": v} for k, v in roles.items())
            ),
            finding_rows("blind_baseline", baselines),
            finding_rows("duplicates", [*apart, *too_few]),
            finding_rows("verbatim", came_out(verbatim)),
        ]
    )
    gate = gate_findings(ungated, exploratory=exploratory)
    page_verdicts, allowed = answers(strong=strong, nulls=nulls)
    tables = [
        ungated,
        gate,
        plan_findings(
            PLAN, preregister(PLAN, {"samples": 5}, ["a_v1"]), {"samples": 5 + changed}
        ),
    ]
    if (reason := why_withheld(gate)) is not None:
        page_verdicts = withhold(page_verdicts, reason)
    else:
        tables.append(allowed)
    findings = pl.concat(tables)
    results = RunResults(Metrics.create_empty(), page_verdicts.lazy(), findings, PLAN)
    lines = [*sentences(results)]
    return lines, answer(results, Rollup.create_empty(), books=False), page_verdicts


@pytest.mark.parametrize("labels", BLIND)
@pytest.mark.parametrize("alike", BLIND)
def test_no_sentence_contradicts_another_or_a_number(labels, alike):
    for exploratory, strong, nulls, verbatim, changed in product(
        (False, True), (False, True), (False, True), VERBATIM, (False, True)
    ):
        circumstances = {
            "exploratory": exploratory,
            "strong": strong,
            "nulls": nulls,
            "changed": changed,
        }
        lines, first, page_verdicts = page(
            labels=labels, alike=alike, verbatim=verbatim, **circumstances
        )
        assert len(lines) == len(set(lines))
        everything = "\n".join(lines)
        # A list: as long as the table's, and only where it may be given.
        withheld = nulls and alike == "separable" and not exploratory
        places = [number for number, line in enumerate(lines) if LIST.search(line)]
        assert len(places) == (nulls and not withheld)
        if places:
            n = int((page_verdicts["q_value"] <= PLAN.q).sum())
            assert lines[places[0]].startswith(f"{n or 'None'} of 20 targets")
            assert n == 5 * strong
        top = "highest-scoring texts stand out beyond chance" in everything
        assert top == (strong and nulls and not withheld)
        if withheld:
            assert not NUMBERS.search(everything)
            numbers = page_verdicts.select("p_value", "q_value", "value", "low", "high")
            assert numbers.null_count().row(0) == (page_verdicts.height,) * 5
        # The answer: a list where there is one, and never a number where it is
        # withheld.
        if nulls:
            assert ("stand out from 199 comparison texts" in first) == (
                strong and not withheld
            )
            assert (
                "no other answer" in first or first.startswith("No answer")
            ) == withheld
            assert ("texts come out word for word" in first) == (verbatim != "none")
            assert not (withheld and NUMBERS.search(first))
        elif labels == "none":
            assert "cores only rank " in first
        else:
            assert first.startswith("No answer: a_v1 has no AUC")
        # Doubts and marks come before what they are about.
        doubts = [number for number, line in enumerate(lines) if DOUBT.search(line)]
        separable = alike == "separable" and exploratory
        assert len(doubts) == (
            nulls and (alike in ("undecided", "unknown") or separable)
        )
        marked = [
            number
            for number, line in enumerate(lines)
            if line.startswith("These answers ar")
        ]
        assert len(marked) == changed
        assert all(number < place for number in doubts + marked for place in places)
        # What came out word for word is said first, and nothing says that there is
        # nothing.
        assert lines[0].startswith("Word for word") == (verbatim != "none")
        if verbatim != "none":
            assert "shows nothing of" not in everything
            alone = "these counts alone do not tell the two apart" in everything
            assert alone == (verbatim == "as many" and not withheld)
        # Labels that differ without the model take the figures' meaning, and only these
        # do.
        assert ("figures are no evidence of memory" in everything) == (
            labels == "separable"
        )
        assert ("Judge an attack by how far" in everything) == (labels == "undecided")
        # What the answer is compared with is named where there is a comparison.
        assert ("The null: written later" in everything) == bool(places)
        assert ("add --non-members FOLDER" in everything) == (not nulls)


# Everything that compares targets with non-members goes through one door.

P, Q, LOW, HIGH, VALUE = 0.01234, 0.04321, 0.31313, 0.87878, 7
MARKS = re.compile(
    r"0\.0123|0\.0432|\b31\s?%|\b88\s?%|0\.31\b|0\.88\b|\b7 of\b|Fisher|confidence"
)
COMPARED = {
    "reported": (
        "n_reported",
        "n_tests",
        "n_null",
        "smallest_q",
        "n_without_null",
        "q",
    ),
    "top": ("at_least", "of_top", "rank", "n_tests", "n_null", "confidence"),
    "max_t": ("largest", "n_attacks", "n_orders", "n_tests", "n_null"),
    "null_audits": ("share_reporting", "n_audits", "n_tests", "n_null", "q", "fpr"),
    "placebo": ("n_reported", "n_tests", "collection", "smallest_q"),
    "e_values": ("n_planned", "n_asked", "n_rounds", "n_undecided"),
    "dataset_inference": ("permutation", "paper", "n_learned", "n_targets", "n_null"),
    "codec": ("share",),
    "absence": ("probability",),
    "dose": ("copies",),
    "held_back": ("filtered", "refusal"),
}


def closed(exploratory):
    """Findings of every kind and verdicts with numbers, behind a gate that is closed."""
    numbers = {"value": VALUE, "low": LOW, "high": HIGH, "p_value": P}
    columns = {"subject": "targets", "verdict": "some", "reason": "why"}
    compared = [
        finding_rows(
            check,
            [numbers | columns | {"statistic": statistic} for statistic in statistics],
        )
        for check, statistics in COMPARED.items()
    ]
    roles = {"n_unknown": 20, "n_nulls": 199, "n_canaries": 0}
    copies = [
        {"subject": "texts", "statistic": name, "value": 0, "verdict": "few"}
        for name in ("n_copies", "n_texts")
    ]
    ungated = pl.concat(
        [
            finding_rows(
                "roles", ({"statistic": k, "value": v} for k, v in roles.items())
            ),
            finding_rows("blind_baseline", blind("targets", "separable")),
            finding_rows("duplicates", copies),
            finding_rows("verbatim", came_out("some")),
        ]
    )
    gate = gate_findings(ungated, exploratory=exploratory)
    all_verdicts = answers(strong=True, nulls=True)[0].with_columns(
        p_value=P, q_value=Q, value=0.55555, low=LOW, high=HIGH
    )
    findings = pl.concat([ungated, gate, *compared])
    return RunResults(Metrics.create_empty(), all_verdicts.lazy(), findings, PLAN)


def everything_said(results):
    yield from sentences(results)
    yield answer(results, Rollup.create_empty(), books=False)
    yield from preflight_sentences(results.findings)
    for lines in checks(results).values():
        yield from lines


def test_no_number_that_compares_passes_a_closed_gate():
    lines = [*everything_said(closed(exploratory=False))]
    assert not [line for line in lines if MARKS.search(line)]
    assert any("(no p-value, because the two sets can be" in line for line in lines)
    results = closed(exploratory=False)
    numbers = ["p_value", "q_value", "value", "low", "high", "sensitivity_bound"]
    assert results.verdicts.select(pl.col(numbers).count()).collect().row(0) == (0,) * 6
    held_back = results.findings.filter(pl.col("check").is_in([*COMPARED]))
    assert held_back["check"].unique().to_list() == ["held_back"]
    assert held_back["p_value"].null_count() == held_back.height
    # The same rows behind a gate that stays open are numbers again.
    opened = closed(exploratory=True)
    assert opened.findings.filter(check="top").height == len(COMPARED["top"])
