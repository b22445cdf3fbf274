"""Can the labels be told apart without the model? Then attack figures are no evidence of memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from mia_batch.diagnostics.blind.crossvalidation import cross_validate
from mia_batch.diagnostics.blind.texts import build_classifiers, read_texts
from mia_batch.schemas import Metrics
from mia_batch.stats.folds import deal_folds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia_batch.diagnostics.blind.crossvalidation import Outcome
    from mia_batch.diagnostics.blind.texts import BlindTexts

__all__ = ["BLIND_CLASSIFIERS", "BlindBaseline", "BlindVerdict", "blind_baseline", "judge"]

BlindVerdict: TypeAlias = Literal["separable", "not separable", "undecided"]
"""Whether labels can be told apart without the model; ``undecided`` warns as ``separable`` does."""

BLIND_CLASSIFIERS: Final = (
    "blind_naive_bayes_v1",
    "blind_logistic_v1",
    "blind_ngrams_v1",
    "blind_surface_v1",
    "blind_year_v1",
)
"""Names of the classifiers, as in the metrics table."""

_N_PERMUTATIONS = 199
_N_FOLDS = 5
_LEVEL = 0.05
_SEPARABLE_ABOVE = 0.55
_EXCLUDED_ABOVE = 0.60


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindBaseline:
    """What classifiers that never see the model make of the labels.

    Attributes
    ----------
    metrics
        The metrics table's rows: ``roc_auc`` of each classifier, null with a reason where the
        labels allow no cross-validation.
    scores
        One row per text used: ``target_id`` and a Float64 column per classifier, in (0, 1): the
        share of the texts of its fold that score below it. Comparable across folds; higher means
        "more likely of the first class".
    strongest
        Name of the classifier with the highest AUC.
    auc
        That AUC.
    p_value
        Share of permutations of the labels by cluster, the true labels included, under which some
        classifier has so high an AUC; each learns anew.
    upper
        Upper limit for the AUC to expect of every classifier at once, confidence 0.95.
    verdict
        ``separable``: p <= 0.05 and AUC > 0.55; else ``not separable``: upper <= 0.60.
    reason
        Why there is no verdict; None where there is one.
    """

    metrics: pl.DataFrame
    scores: pl.DataFrame
    strongest: str | None
    auc: float | None
    p_value: float | None
    upper: float | None
    verdict: BlindVerdict | None
    reason: str | None


def blind_baseline(texts: pl.LazyFrame, *, label: str = "member", seed: int = 0) -> BlindBaseline:
    """Try to tell labels apart without the model.

    Classifiers are cross-validated in five folds. Texts of one cluster (``cluster_name``) are
    never on both sides. A classifier's scores are replaced by their ranks within each fold, because
    folds of other training texts have other scales. The p-value permutes labels by cluster within
    folds 199 times, and compares the highest AUC of all classifiers. ``upper`` is the largest of
    the classifiers' one-sided limits: it holds for all of them at once, because the limit of the
    best one alone would.

    ``texts`` has ``target_id``, ``target`` (the text), the columns of `cluster_name` and the label,
    a Boolean column; rows where it is null are left out, null texts are left out and counted.

    References
    ----------
    Das, Zhang and Tramèr (2024), arXiv:2406.16201. Permutation: Ojala and Garriga (2010),
    "Permutation tests for studying classifier performance", test 1. The largest of several limits:
    Berger (1982), "Multiparameter hypothesis testing and acceptance sampling".
    """
    chosen = read_texts(texts, label)
    if min(_clusters_per_class(chosen)) < _N_FOLDS:
        return _without(chosen, f"each class needs texts of {_N_FOLDS} clusters")
    generator = np.random.default_rng(seed)
    folds = deal_folds(chosen.label, chosen.cluster, n_folds=_N_FOLDS, generator=generator)
    outcomes = cross_validate(
        build_classifiers(chosen.frame),
        chosen.label,
        folds,
        n_permutations=_N_PERMUTATIONS,
        generator=generator,
    )
    return _conclude(chosen, outcomes)


def _clusters_per_class(chosen: BlindTexts) -> tuple[int, int]:
    label = chosen.label
    return np.unique(chosen.cluster[label]).size, np.unique(chosen.cluster[~label]).size


class Judgement(NamedTuple):
    """What the outcomes of all classifiers say together; see `BlindBaseline`."""

    strongest: str
    auc: float
    p_value: float
    upper: float
    verdict: BlindVerdict


def judge(outcomes: Mapping[str, Outcome]) -> Judgement:
    """Judge the strongest classifier by the permutations and limits of all."""
    strongest = max(outcomes, key=lambda name: outcomes[name].auc)
    auc = outcomes[strongest].auc
    highest = np.max([outcome.permuted for outcome in outcomes.values()], axis=0)
    p_value = float((1 + (highest >= auc).sum()) / (1 + highest.size))
    # Limits of 0.90 on both sides are limits of 0.95 on one.
    upper = max(outcome.interval(confidence=0.90).high for outcome in outcomes.values())
    verdict: BlindVerdict = "not separable" if upper <= _EXCLUDED_ABOVE else "undecided"
    if p_value <= _LEVEL and auc > _SEPARABLE_ABOVE:
        verdict = "separable"
    return Judgement(strongest, auc, p_value, upper, verdict)


def _conclude(chosen: BlindTexts, outcomes: Mapping[str, Outcome]) -> BlindBaseline:
    rows = [
        {"attack": name, "value": outcome.auc, **asdict(outcome.interval())}
        for name, outcome in outcomes.items()
    ]
    shares = {name: pl.Series(outcome.score) for name, outcome in outcomes.items()}
    return BlindBaseline(
        metrics=_metrics(chosen, rows),
        scores=chosen.frame.select("target_id", **shares),
        reason=None,
        **judge(outcomes)._asdict(),
    )


def _without(chosen: BlindTexts, reason: str) -> BlindBaseline:
    rows: list[dict[str, object]] = [
        {"attack": name, "reason": reason} for name in BLIND_CLASSIFIERS
    ]
    return BlindBaseline(
        metrics=_metrics(chosen, rows),
        scores=chosen.frame.select("target_id")
        .clear()
        .with_columns(pl.lit(None, pl.Float64).alias(name) for name in BLIND_CLASSIFIERS),
        strongest=None,
        auc=None,
        p_value=None,
        upper=None,
        verdict=None,
        reason=reason,
    )


def _metrics(chosen: BlindTexts, rows: list[dict[str, object]]) -> pl.DataFrame:
    n_members = int(chosen.label.sum())
    same = {
        "slice": "all",
        "metric": "roc_auc",
        "n_members": n_members,
        "n_nonmembers": chosen.frame.height - n_members,
        "n_unscored": chosen.n_labelled - chosen.frame.height,
    }
    return pl.DataFrame([same | row for row in rows], schema=Metrics.create_empty().schema)
