"""Sentences of a run, rendered from rows of metrics, verdicts and findings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mia_batch.inference.findings import gate_verdict, role_counts
from mia_batch.report.sentences import (
    answers_sentences,
    chance_sentences,
    copies_sentence,
    duplicates_sentence,
    earlier_sentences,
    exchangeability_sentence,
    gate_sentence,
    label_sentence,
    labelled_sentences,
    set_sentences,
    undeclared_sentences,
    uneven_sentence,
)
from mia_batch.report.unlabelled import (
    absence_sentences,
    canary_sentences,
    null_audit_sentence,
    placebo_sentence,
    plan_sentence,
    power_sentences,
    unlabelled_sentences,
    verbatim_sentences,
    weights_sentence,
    yardstick_sentences,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl

    from mia_batch.inference.findings import VerdictPlan

__all__ = ["CONCLUSIONS", "Known", "earlier_sentences", "preflight_sentences", "sentences"]

_NO_NULL = (
    "No text is known to be outside the training data, so scores rank the texts, and a high score "
    "alone shows nothing: give comparison texts with --non-members."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What sentences are made from, and which comparisons the run allows."""

    metrics: pl.DataFrame
    verdicts: pl.LazyFrame
    findings: pl.DataFrame
    plan: VerdictPlan
    has_labels: bool
    has_nulls: bool
    has_targets: bool
    """Targets of unknown membership."""
    has_canaries: bool
    gate: str | None
    """The verdict of check ``gate``."""

    @classmethod
    def of(
        cls,
        metrics: pl.DataFrame,
        verdicts: pl.LazyFrame,
        findings: pl.DataFrame,
        plan: VerdictPlan,
    ) -> Known:
        """Read the preconditions from the findings."""
        roles = role_counts(findings)
        labels = findings.filter(check="blind_baseline", subject="members")
        return cls(
            metrics=metrics,
            verdicts=verdicts,
            findings=findings,
            plan=plan,
            has_labels=not labels.is_empty(),
            has_nulls=bool(roles["n_nulls"]),
            has_targets=bool(roles["n_unknown"]),
            has_canaries=bool(roles["n_canaries"]),
            gate=gate_verdict(findings),
        )

    @property
    def compares(self) -> bool:
        """Whether targets of unknown membership may be compared with non-members."""
        return self.has_targets and self.has_nulls and self.gate != "withheld"


def _always(_: Known) -> bool:
    return True


def _compares_anything(known: Known) -> bool:
    return known.has_labels or known.has_nulls or known.has_canaries


CONCLUSIONS: Final[tuple[tuple[Callable[[Known], bool], Callable[[Known], Iterable[str]]], ...]] = (
    (_always, lambda known: chance_sentences(known.findings)),
    (_always, lambda known: verbatim_sentences(known.findings)),
    (_always, lambda known: gate_sentence(known.findings)),
    (_always, lambda known: weights_sentence(known.findings)),
    (_always, lambda known: placebo_sentence(known.findings, "as_many")),
    (_always, lambda known: undeclared_sentences(known.findings)),
    (_always, lambda known: earlier_sentences(known.findings)),
    (lambda known: known.has_labels, lambda known: label_sentence(known.findings)),
    (_always, lambda known: plan_sentence(known.findings)),
    (_always, lambda known: answers_sentences(known.findings)),
    (lambda known: known.has_labels, lambda known: uneven_sentence(known.findings)),
    (
        lambda known: known.has_labels,
        lambda known: labelled_sentences(known.metrics, known.findings, known.plan.primary),
    ),
    (
        lambda known: known.compares,
        lambda known: unlabelled_sentences(known.verdicts, known.findings, known.plan),
    ),
    (_always, lambda known: placebo_sentence(known.findings, "fewer")),
    (
        lambda known: known.compares,
        lambda known: absence_sentences(known.findings, known.plan),
    ),
    (_always, lambda known: yardstick_sentences(known.findings, known.plan)),
    (
        lambda known: known.has_canaries,
        lambda known: canary_sentences(known.verdicts, known.plan),
    ),
    (_always, lambda known: set_sentences(known.findings)),
    (
        lambda known: known.compares and known.gate != "weighted",
        lambda known: islice(power_sentences(known.findings), 1),
    ),
    (lambda known: known.compares, lambda known: null_audit_sentence(known.findings)),
    (lambda known: known.gate == "open", lambda known: exchangeability_sentence(known.findings)),
    (
        lambda known: known.has_targets and known.has_nulls,
        lambda known: duplicates_sentence(known.findings, "targets", ("targets", "non-members")),
    ),
    (lambda known: known.has_targets and not known.has_nulls, lambda _: [_NO_NULL]),
    (_compares_anything, lambda known: copies_sentence(known.findings)),
)
"""Each conclusion in its order: its precondition, and the sentences that rest on findings."""


def preflight_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the targets tell before an engine starts."""
    yield from gate_sentence(findings)
    yield from weights_sentence(findings)
    yield from undeclared_sentences(findings)
    yield from power_sentences(findings)


def sentences(
    metrics: pl.DataFrame, verdicts: pl.LazyFrame, findings: pl.DataFrame, plan: VerdictPlan
) -> Iterator[str]:
    """Say what may be concluded from a run, warnings first."""
    known = Known.of(metrics, verdicts, findings, plan)
    for holds, say in CONCLUSIONS:
        if holds(known):
            yield from say(known)
