"""Sentences of a run, rendered from rows of metrics, verdicts and findings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
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


@dataclass(frozen=True, slots=True)
class Known:
    """What sentences are made from."""

    metrics: pl.DataFrame
    verdicts: pl.LazyFrame
    findings: pl.DataFrame
    plan: VerdictPlan

    def allows(self) -> dict[str, bool]:
        """Say which comparisons the run allows, by the names that `CONCLUSIONS` has for them."""
        roles, gate = role_counts(self.findings), gate_verdict(self.findings)
        labels = not self.findings.filter(check="blind_baseline", subject="members").is_empty()
        targets, nulls = bool(roles["n_unknown"]), bool(roles["n_nulls"])
        canaries, compares = bool(roles["n_canaries"]), targets and nulls and gate != "withheld"
        return {
            "always": True,
            "labels": labels,
            "canaries": canaries,
            "targets and non-members": targets and nulls,
            "targets alone": targets and not nulls,
            "any comparison": labels or nulls or canaries,
            "open gate": gate == "open",
            "comparison of targets": compares,
            "comparison without weights": compares and gate != "weighted",
        }


def _of(say: Callable[..., Iterable[str]], *more: object) -> Callable[[Known], Iterable[str]]:
    return lambda known: say(known.findings, *more)


CONCLUSIONS: Final[tuple[tuple[str, Callable[[Known], Iterable[str]]], ...]] = (
    ("always", _of(chance_sentences)),
    ("always", _of(verbatim_sentences)),
    ("always", _of(gate_sentence)),
    ("always", _of(weights_sentence)),
    ("always", _of(placebo_sentence, "as_many")),
    ("always", _of(undeclared_sentences)),
    ("always", _of(earlier_sentences)),
    ("labels", _of(label_sentence)),
    ("always", _of(plan_sentence)),
    ("always", _of(answers_sentences)),
    ("labels", _of(uneven_sentence)),
    ("labels", lambda known: labelled_sentences(known.metrics, known.findings, known.plan.primary)),
    (
        "comparison of targets",
        lambda known: unlabelled_sentences(known.verdicts, known.findings, known.plan),
    ),
    ("always", _of(placebo_sentence, "fewer")),
    ("comparison of targets", lambda known: absence_sentences(known.findings, known.plan)),
    ("always", lambda known: yardstick_sentences(known.findings, known.plan)),
    ("canaries", lambda known: canary_sentences(known.verdicts, known.plan)),
    ("always", _of(set_sentences)),
    ("comparison without weights", lambda known: islice(power_sentences(known.findings), 1)),
    ("comparison of targets", _of(null_audit_sentence)),
    ("open gate", _of(exchangeability_sentence)),
    ("targets and non-members", _of(duplicates_sentence, "targets", ("targets", "non-members"))),
    ("targets alone", lambda _: [_NO_NULL]),
    ("any comparison", _of(copies_sentence)),
)
"""Each conclusion in its order: what the run must allow, and the sentences."""


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
    known = Known(metrics, verdicts, findings, plan)
    allows = known.allows()
    yield from chain.from_iterable(say(known) for needed, say in CONCLUSIONS if allows[needed])
