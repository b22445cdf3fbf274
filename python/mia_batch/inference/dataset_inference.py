"""Whether a set of texts is known better than texts outside, by all attacks together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.conformal import tie_draws
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.groups import (
    collection_test,
    cut_units,
    group_statistics,
    windows_per_group,
)
from mia_batch.inference.rows import verdict_rows
from mia_batch.inference.score_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.groups import CollectionTest
    from mia_batch.inference.plan import VerdictPlan

    Rows = NDArray[np.int64]

__all__ = ["DATASET_INFERENCE", "DatasetInference", "infer_dataset"]

DATASET_INFERENCE = "dataset_inference_v1"
"""Name of the answer in the verdicts table."""

_FEWEST = 10  # groups of each set in each half
_MOST = 5_000  # likewise
_CLIP = 4.0  # standard deviations
_PENALTY = 10.0
_TOLD_APART = (
    "targets and non-members can be told apart without the model, so a difference of their scores "
    "is no evidence of memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInference:
    """What the test has found; ``test`` is None where ``reason`` says why."""

    n_learned: int  # groups of both sets
    n_tested: tuple[int, int] = (0, 0)  # groups of targets, and of non-members
    test: CollectionTest | None = None
    paper_p_value: float | None = None
    weights: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def verdict(self) -> pl.DataFrame:
        """Return the row of the verdicts table."""
        test = self.test
        return verdict_rows(
            1,
            attack=DATASET_INFERENCE,
            level="collection",
            versus="non_members",
            planned=False,
            score=test and test.score,
            n_null=self.n_tested[1],
            p_value=test and test.p_value,
            method=test and f"split_{test.method}",
            reason=self.reason,
        )

    def findings(self) -> pl.DataFrame:
        """Rows of check ``dataset_inference``: groups, p-values, and the weight of each attack.

        Statistic ``paper``: the p-value of the paper's own form, which counts windows of a group
        as independent and any difference as membership. Weights are per standard deviation.
        """
        counts = {
            "n_learned": self.n_learned,
            "n_targets": self.n_tested[0],
            "n_null": self.n_tested[1],
        }
        rows: list[dict[str, object]] = [
            {"statistic": name, "value": float(n)} for name, n in counts.items()
        ]
        p_value = self.test and self.test.p_value
        rows.append({"statistic": "permutation", "p_value": p_value, "reason": self.reason})
        rows.append({"statistic": "paper", "p_value": self.paper_p_value, "reason": self.reason})
        rows += [
            {"subject": attack, "statistic": "weight", "value": weight}
            for attack, weight in self.weights.items()
        ]
        return finding_rows("dataset_inference", rows)


def infer_dataset(
    scores: pl.LazyFrame, attacks: Sequence[str], plan: VerdictPlan, *, told_apart: bool
) -> DatasetInference:
    """Learn weights of attacks on half of the groups, and test on the other half.

    Of targets and of non-members each group goes to one of the halves by lot. On the first half a
    linear model learns to tell targets from non-members; on the second `collection_test` asks
    whether groups of targets rank higher by it. The p-value is exact if targets, were they not
    trained on, and non-members are exchangeable, as groups: the weights are those of other groups.

    Unlike the paper's, weights are not negative: a set on which attacks score *lower* is no less
    different, and would count as trained on. Nor are windows of one group taken as independent.
    Nothing is concluded where the sets can be told apart without the model (``told_apart``).

    Parameters
    ----------
    scores
        The scores table in its order.
    attacks
        Columns to weigh. A missing score counts as the mean of the first half.
    plan
        Windows of a group, their statistic, and the seed of the halves and permutations.
    told_apart
        Whether classifiers that never see the model tell targets from non-members.

    Returns
    -------
    DatasetInference
        The test, or the reason why there is none: fewer than 10 groups of a set in a half.

    References
    ----------
    Maini, Jia, Papernot and Dziedzic (2024), "LLM Dataset Inference: Did you train on my dataset?",
    arXiv:2406.06443, section 5.
    """
    sets = read_comparison_sets(scores)
    halves = _halves(sets, plan)
    sizes = [[len(half) for half in of_set] for of_set in halves]
    n_learned, n_tested = sizes[0][0] + sizes[1][0], (sizes[0][1], sizes[1][1])
    fewest = min(min(of_set) for of_set in sizes)
    if told_apart or fewest < _FEWEST:
        few = f"one half of a set has {fewest} groups of enough windows, {_FEWEST} are needed"
        return DatasetInference(n_learned=n_learned, reason=_TOLD_APART if told_apart else few)
    learned, tested = ([of_set[half] for of_set in halves] for half in (0, 1))
    known, asked = (
        read_rows(scores, attacks, np.concatenate([rows.ravel() for rows in half]))
        for half in (learned, tested)
    )
    label = np.repeat([True, False], [rows.size for rows in learned])
    linear = _Linear(known, label)
    found = linear.scores(asked)
    groups = np.arange(found.size).reshape(-1, tested[0].shape[1])
    statistics = group_statistics(found, groups, plan.statistic)
    targets, nulls = np.split(statistics, [n_tested[0]])
    return DatasetInference(
        n_learned=n_learned,
        n_tested=n_tested,
        test=collection_test(targets, nulls, plan.seed),
        paper_p_value=linear.paper_p_value(asked, n_tested[0] * tested[0].shape[1]),
        weights=dict(zip(attacks, linear.weights.tolist(), strict=True)),
    )


def _halves(sets: ComparisonSets, plan: VerdictPlan) -> list[tuple[Rows, Rows]]:
    """Return of targets and of non-members the windows of both halves, a line per group."""
    names = (f"half {level} {key}" for level, key in sets.clusters.iter_rows())
    first = tie_draws(names, plan.seed) < 1 / 2
    n_windows = windows_per_group(sets, plan)
    halves = []
    for rows in (sets.targets, sets.nulls):
        units = cut_units(sets, rows, n_windows, plan.seed)
        learns = first[units.cluster[units.enough]]
        halves.append((units.chosen[learns][:_MOST], units.chosen[~learns][:_MOST]))
    return halves


class _Linear:
    """A linear model of standardised scores with weights that are not negative, and the paper's."""

    def __init__(self, scores: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        from sklearn.linear_model import LogisticRegression, Ridge

        known = ~np.isnan(scores)
        n = known.sum(axis=0).clip(1)
        self._mean = np.where(known, scores, 0.0).sum(axis=0) / n
        deviation = np.sqrt(np.where(known, (scores - self._mean) ** 2, 0.0).sum(axis=0) / n)
        self._deviation = np.where(deviation > 0, deviation, 1.0)
        standard = self._standard(scores)
        own = Ridge(alpha=_PENALTY, positive=True).fit(standard, label)
        self.weights: NDArray[np.float64] = own.coef_
        self._paper = LogisticRegression(max_iter=1000).fit(standard, label)

    def scores(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._standard(scores) @ self.weights

    def paper_p_value(self, scores: NDArray[np.float64], n_targets: int) -> float:
        """Return Welch's one-sided p-value over windows, by weights of either sign."""
        from scipy.stats import ttest_ind

        found = self._paper.decision_function(self._standard(scores))
        targets, nulls = np.split(found, [n_targets])
        return float(ttest_ind(targets, nulls, equal_var=False, alternative="greater").pvalue)

    def _standard(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardise by what was learned from, outliers clipped; 0 where a score is missing."""
        standard = (np.nan_to_num(scores, nan=0.0) - self._mean) / self._deviation
        return np.where(np.isnan(scores), 0.0, standard.clip(-_CLIP, _CLIP))
