"""Answers about whole sets: CoDeC, learned combinations, dataset inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from mia_batch.attacks.from_references import CODEC
from mia_batch.inference.comparison import (
    collection_test,
    cut_units,
    group_statistics,
    read_comparison_sets,
    windows_per_group,
)
from mia_batch.inference.conformal import tie_draws
from mia_batch.inference.findings import finding_rows, read_rows, score_batches, verdict_rows
from mia_batch.stats.clusters import deal_folds, effective_number, few, is_enough
from mia_batch.stats.intervals import clopper_pearson, independent_number
from mia_batch.tables import read_finite, read_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mia_batch.inference.comparison import CollectionTest, ComparisonSets
    from mia_batch.inference.findings import VerdictPlan


# The share of a set's texts that become less likely after other texts of their kind: CoDeC.


def codec_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``codec``: the ``share`` of the targets, and of the non-members as control.

    Null with a reason where no text of a set has a score. The 95 % interval is Clopper and
    Pearson's; where texts share groups, of their `independent_number`. It has no limits, but a
    reason, where groups are worth fewer than four of one size.

    Zawalski et al. (2025), arXiv:2510.27055, the CoDeC score of a data set.
    """
    sets = read_comparison_sets(scores)
    return finding_rows("codec", _rows(scores, sets))


def _rows(scores: pl.LazyFrame, sets: ComparisonSets) -> Iterator[dict[str, object]]:
    falls = read_finite(scores, CODEC, sets.target_id.len())
    for subject, rows in (("targets", sets.targets), ("non-members", sets.nulls)):
        scored = rows[~np.isnan(falls[rows])]
        row: dict[str, object] = {"subject": subject, "statistic": "share"}
        if not scored.size:
            yield row | {"reason": "no text of the set has a score"}
            continue
        share = float(falls[scored].mean())
        cluster = sets.cluster[scored]
        effective = effective_number(np.unique(cluster, return_counts=True)[1])
        if sets.share_clusters(scored) and not is_enough(effective):
            yield row | {"value": share, "reason": few(effective)}
            continue
        n = independent_number(falls[scored] == 1, cluster)
        interval = clopper_pearson(share * n, n)
        yield row | {"value": share, "low": interval.low, "high": interval.high}


# One score of each text from all its scores, learned from texts of known membership.


_N_FOLDS = 5
_FEWEST = 10  # clusters of each class
_DECIMALS = 9
"""Beyond them, scores of equal texts may differ with their places in a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teachers:
    """The texts that are learned from."""

    rows: NDArray[np.int64]  # of the scores table, ascending
    label: NDArray[np.bool_]  # known members true
    source: Literal["calibration", "all"]

    def enough(self, sets: ComparisonSets) -> bool:
        """Whether there are texts of enough clusters of each class."""
        clusters = (sets.cluster[self.rows[self.label == known]] for known in (True, False))
        return all(np.unique(of_class).size >= _FEWEST for of_class in clusters)


def combine(scores: pl.LazyFrame, attacks: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """Learn to tell members by all attacks' scores, and score every text by what others taught.

    Where the calibration data have both classes, they alone are learned from. Otherwise known
    members are, against all other targets and non-members, whatever may be known of these.

    Clusters are dealt to five folds, and a text is scored by the model of the other four folds'
    teachers, so that no text is scored by what its own group has taught. P-values stay valid,
    because non-members and a target that is none can change places: neither have taught, or both
    have as the same class, and their folds are drawn without looking at scores. (Had the
    non-members taught and the targets not, non-members would score too low.)

    Parameters
    ----------
    scores
        The scores table in its order.
    attacks
        Columns to learn from. A score that is not finite counts as missing.
    seed
        Of the folds.

    Returns
    -------
    ndarray
        Float64, in nats, one per row: half the sum of the log-odds by a logistic regression and by
        gradient-boosted trees; NaN where all scores are missing, and throughout where a class has
        texts of fewer than 10 clusters.

    References
    ----------
    Marandon, Lei, Mary and Roquain (2024), "Adaptive novelty detection with false discovery rate
    guarantee", arXiv:2208.06685: p-values are valid, and lists by Benjamini-Hochberg, where the
    scores do not change as non-members and targets change places in what is learned from.
    Cross-fitting by group: Chernozhukov et al. (2018), arXiv:1608.00060, definition 3.1.
    """
    from threadpoolctl import threadpool_limits

    sets = read_comparison_sets(scores)
    combined = np.full(sets.target_id.len(), np.nan)
    teachers = _find_teachers(scores, sets)
    if not teachers.enough(sets):
        return combined
    folds = _deal(sets, teachers, seed)
    taught = read_rows(scores, attacks, teachers.rows)
    with threadpool_limits(1):  # sums of several threads differ in the last bit
        models = []
        for fold in range(_N_FOLDS):
            others = folds[teachers.rows] != fold
            models.append(_Model(taught[others], teachers.label[others]))
        for start, part in score_batches(scores, attacks):
            of_part = slice(start, start + len(part))
            there = ~np.isnan(part).all(axis=1)
            for fold, model in enumerate(models):
                own = there & (folds[of_part] == fold)
                if own.any():
                    combined[of_part][own] = model.log_odds(part[own])
    return combined.round(_DECIMALS)


def combination_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``combination``: from how many texts was learned, and which.

    Verdict ``calibration``, ``all`` (known members against all others) or ``too_few``.
    """
    sets = read_comparison_sets(scores)
    teachers = _find_teachers(scores, sets)
    verdict = teachers.source if teachers.enough(sets) else "too_few"
    counts = {"n_members": teachers.label.sum(), "n_others": (~teachers.label).sum()}
    rows = (
        {"statistic": name, "value": float(n), "verdict": verdict} for name, n in counts.items()
    )
    return finding_rows("combination", rows)


def _find_teachers(scores: pl.LazyFrame, sets: ComparisonSets) -> _Teachers:
    classes = [sets.calibration_nonmembers, sets.calibration_members]
    calibrated = all(rows.size for rows in classes)
    if not calibrated:
        size = sets.target_id.len()
        is_member = read_numbers(scores, pl.col("member").fill_null(value=False), size, np.bool_)
        rows = np.concatenate([sets.targets, sets.nulls, *classes])
        classes = [rows[~is_member[rows]], rows[is_member[rows]]]
    rows = np.concatenate(classes)
    order = rows.argsort()
    label = np.repeat([False, True], [of_class.size for of_class in classes])
    source: Literal["calibration", "all"] = "calibration" if calibrated else "all"
    return _Teachers(rows=rows[order], label=label[order], source=source)


def _deal(sets: ComparisonSets, teachers: _Teachers, seed: int) -> NDArray[np.int64]:
    """Deal clusters to folds: those of teachers evenly, each other one by a draw of its own."""
    names = (f"{level} {key}" for level, key in sets.clusters.iter_rows())
    fold = (tie_draws(names, seed) * _N_FOLDS).astype(np.int64)
    clusters, which = np.unique(sets.cluster[teachers.rows], return_inverse=True)
    generator = np.random.default_rng(seed)
    dealt = deal_folds(teachers.label, which, n_folds=_N_FOLDS, generator=generator)
    fold[clusters] = dealt.fold
    return fold[sets.cluster]


class _Model:
    """A linear model, which few texts suffice for, and trees, which see what is not linear."""

    def __init__(self, scores: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        linear = make_pipeline(
            SimpleImputer(strategy="median"),
            StandardScaler(),
            LogisticRegression(C=0.1, max_iter=1000),
        )
        trees = HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=7, min_samples_leaf=10, early_stopping=False, random_state=0
        )
        self._empty = np.isnan(scores).all(axis=0)
        self._models = [model.fit(self._without_empty(scores), label) for model in (linear, trees)]

    def log_odds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        known = self._without_empty(scores)
        found: NDArray[np.float64] = np.mean(
            [model.decision_function(known) for model in self._models], axis=0
        )
        return found

    def _without_empty(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Make attacks that none of the teachers has a score of say the same of every text."""
        return np.where(self._empty, 0.0, scores)


# Whether a set of texts is known better than texts outside, by all attacks together.


if TYPE_CHECKING:
    Rows = NDArray[np.int64]


DATASET_INFERENCE = "dataset_inference_v1"
"""Name of the answer in the verdicts table."""

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
