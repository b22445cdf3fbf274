"""Sentences of a run, rendered from rows of metrics, verdicts and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.inference.findings import role_counts
from mia_batch.report.checks import (
    answers_sentences,
    blind_row,
    chance_sentences,
    copies_sentence,
    duplicates_sentence,
    exchangeability_sentence,
)
from mia_batch.report.labelled import labelled_sentences
from mia_batch.report.sets import set_sentences
from mia_batch.report.unlabelled import (
    null_audit_sentence,
    placebo_sentence,
    plan_sentence,
    power_sentences,
    unlabelled_sentences,
    weights_sentence,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from mia_batch.inference.plan import VerdictPlan

__all__ = ["preflight_sentences", "sentences"]

_NO_NULL = (
    "No text is known to be outside the training data, so these scores rank texts and show nothing "
    "of any one of them: give setting 'non_members'."
)


def preflight_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the targets tell before an engine starts."""
    yield from power_sentences(findings)


def sentences(
    metrics: pl.DataFrame, verdicts: pl.LazyFrame, findings: pl.DataFrame, plan: VerdictPlan
) -> Iterator[str]:
    """Say what may be concluded from a run, warnings first."""
    roles = role_counts(findings)
    said = [*labelled_sentences(metrics, findings, plan.primary)]
    if (roles["n_nulls"] and roles["n_unknown"]) or roles["n_canaries"]:
        said += unlabelled_sentences(verdicts, findings, plan)
    said += set_sentences(findings)
    if roles["n_unknown"] and roles["n_nulls"]:
        said += placebo_sentence(findings, "fewer")
        said += null_audit_sentence(findings)
        said += exchangeability_sentence(findings)
        said += weights_sentence(findings)
        said += duplicates_sentence(findings, "targets", ("targets", "non-members"))
    elif roles["n_unknown"]:
        said.append(_NO_NULL)
    if said:
        said += copies_sentence(findings)
    if (exploratory := plan_sentence(findings)) is not None:
        labels = blind_row(findings, "members")
        warned = labels is not None and labels["verdict"] != "not separable"
        said.insert(int(warned), exploratory)  # after the blind baseline's warning alone
    yield from chance_sentences(findings)
    yield from answers_sentences(findings)
    yield from placebo_sentence(findings, "as_many")
    yield from said
