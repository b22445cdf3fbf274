"""Nulls weighted by their odds of being audited, where texts alone tell them from the targets.

The assumption: targets and nulls differ only in what the blind classifiers have learned to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.conformal import shared_weights
from mia_batch.inference.findings import finding_rows, number_rows
from mia_batch.inference.power import power
from mia_batch.stats.clusters import deal_folds, effective_number, is_enough

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.findings import VerdictPlan
    from mia_batch.stats.clusters import Folds


_N_FOLDS = 5
_ALIKE_BELOW = 0.55
"""AUC up to which weighted sets count as alike; above it the blind baseline can be separable."""


class Odds(NamedTuple):
    """Odds of each text, or of its group, of being audited; 1 on average over the nulls."""

    of_rows: NDArray[np.float64]  # of the table; NaN where there is no blind score, or no set
    n_null: int  # independent nulls: texts, or groups where texts share them
    n_effective: float
    auc: float  # of a second classifier, targets against weighted nulls
    lack: str | None  # why there can be no answer with these weights

    def own(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights of audited rows; NaN where there can be no answer."""
        return np.full(rows.size, np.nan) if self.lack else self.of_rows[rows]


def weigh(sets: ComparisonSets, blind: pl.DataFrame, plan: VerdictPlan, *, groups: bool) -> Odds:
    r"""Estimate the odds of texts, or of whole groups, from the blind classifiers' scores.

    ``blind`` has ``target_id`` and columns in (0, 1), cross-fitted by group. Their normal scores,
    of a group the means over its texts, go into a logistic regression, again cross-fitted by group.
    Nulls of these weights are worth \((\sum w)^2 / \sum w^2\) of equal weight (Kish 1965).

    There is no answer where so many could not report anything, or where sets are still not alike:
    where a second classifier, cross-fitted with squares and weights, has an AUC above 0.55.
    """
    from scipy.special import ndtri
    from sklearn.metrics import roc_auc_score

    keys = pl.DataFrame({"target_id": sets.target_id})
    shares = keys.join(blind, on="target_id", how="left", maintain_order="left").drop("target_id")
    rows = np.concatenate([sets.targets, sets.nulls])
    scores, audited = ndtri(shares.to_numpy()[rows].astype(np.float64)), np.isin(rows, sets.targets)
    key = 2 * sets.cluster[rows] + audited if groups else np.arange(rows.size)
    known = ~np.isnan(scores).any(axis=1)
    units, first, unit, sizes = np.unique(
        key[known], return_index=True, return_inverse=True, return_counts=True
    )
    seen = np.column_stack([np.bincount(unit, column) / sizes for column in scores[known].T])
    seen /= np.maximum(seen.std(axis=0), 1e-9)
    label = audited[known][first]
    _, began, cluster = np.unique(
        sets.cluster[rows][known][first], return_index=True, return_inverse=True
    )
    cluster = began.argsort().argsort()[cluster]  # folds must not depend on the clusters' names
    rng = np.random.default_rng(plan.seed)
    folds = deal_folds(label, cluster, n_folds=_N_FOLDS, generator=rng)
    odds = np.exp(_log_odds(seen, label, folds))
    odds /= odds[~label].mean()
    weight = np.where(label, (~label).sum() / label.sum(), odds)
    again = _log_odds(np.hstack([seen, seen**2]), label, folds, weight)
    auc = float(roc_auc_score(label, again, sample_weight=weight))
    of_nulls = np.bincount(cluster[~label], odds[~label] * shared_weights(cluster[~label]))
    n_effective = effective_number(of_nulls)
    place = np.minimum(units.searchsorted(key), units.size - 1)
    of_rows = np.full(sets.target_id.len(), np.nan)
    of_rows[rows] = np.where(units[place] == key, odds[place], np.nan)
    n_tests = np.unique(key[audited]).size
    by = not groups and sets.share_clusters(sets.targets, sets.nulls)
    lack = _lack(n_effective, auc, n_tests, plan, by=by)
    return Odds(of_rows, np.unique(cluster[~label]).size, n_effective, auc, lack)


def _log_odds(
    seen: NDArray[np.float64],
    label: NDArray[np.bool_],
    folds: Folds,
    weight: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Log-odds of the label by a logistic regression on the other folds."""
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    odds, model = np.empty(label.size), LogisticRegression(solver="newton-cholesky")
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for fold in range(folds.n_folds):
            test = folds.fold_of_text == fold
            of_train = None if weight is None else weight[~test]
            odds[test] = model.fit(seen[~test], label[~test], of_train).decision_function(
                seen[test]
            )
    return odds


def _lack(
    n_effective: float, auc: float, n_tests: int, plan: VerdictPlan, *, by: bool
) -> str | None:
    if plan.adjustment == "e-bh":
        return "groups that are asked in rounds cannot be weighted"
    if plan.level == "collection":
        can_report = bool(is_enough(n_effective))
    else:
        adjustment = "by" if by else plan.adjustment
        can_report = power(n_tests, n_effective, plan.q, adjustment).needed is not None
    if not can_report:
        return (
            f"too few non-members are like the targets: weighted, they count as {n_effective:.1f}, "
            "with which nothing can be reported"
        )
    if auc > _ALIKE_BELOW:
        return (
            f"weighted non-members can still be told from targets without the model (AUC {auc:.2f})"
        )
    return None


def weight_findings(
    targets: pl.LazyFrame, blind: pl.DataFrame, found: pl.DataFrame, plan: VerdictPlan
) -> pl.DataFrame:
    """Rows of check ``weights`` about the planned level; none without a blind baseline of targets.

    Verdict of ``n_effective``: ``not_needed`` unless the baseline ``found`` is separable, else
    ``used``, or ``no_overlap`` with a reason.
    """
    baseline = found.filter(check="blind_baseline", subject="targets", statistic="roc_auc")
    verdict = baseline["verdict"]
    if verdict.is_empty():
        return finding_rows("weights")
    if verdict[0] != "separable":
        row = {"statistic": "n_effective", "verdict": "not_needed"}
        return finding_rows("weights", [row], subject=plan.level)
    odds = weigh(read_comparison_sets(targets), blind, plan, groups=plan.level != "target")
    main = {
        "statistic": "n_effective",
        "value": odds.n_effective,
        "verdict": "no_overlap" if odds.lack else "used",
        "reason": odds.lack,
    }
    rows = [main, *number_rows({"n_null": odds.n_null, "roc_auc": odds.auc})]
    return finding_rows("weights", rows, subject=plan.level)
