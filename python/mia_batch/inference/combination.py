"""One score of each text from all its scores, learned from texts of known membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.conformal import tie_draws
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.score_rows import read_rows, score_batches
from mia_batch.stats.folds import deal_folds
from mia_batch.tables.numbers import read_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets

__all__ = ["combination_findings", "combine"]

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
