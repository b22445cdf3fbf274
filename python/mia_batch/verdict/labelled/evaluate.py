"""Scores of a labelled run to its metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.schemas import Metrics
from mia_batch.verdict.labelled.authors import N_FOLDS, accuracy_5_fold, tpr_nearest_fpr
from mia_batch.verdict.labelled.intervals import auc_interval
from mia_batch.verdict.labelled.roc import RocCurve, roc_curve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.targets.plan import Preset

__all__ = ["FPR_BUDGETS", "evaluate"]

FPR_BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)
"""False-positive rates at which the true-positive rate is given."""

_AUTHORS_FPR = 0.1


def evaluate(scores: pl.LazyFrame, attacks: Sequence[str], *, preset: Preset) -> pl.DataFrame:
    """Measure how well each attack separates members from non-members.

    Parameters
    ----------
    scores
        The scores table, or at least ``member`` and the attacks' columns, read one attack at a
        time. Rows of unknown membership are left out.
    attacks
        Names of the attacks.
    preset
        ``samia`` adds the authors' metrics.

    Returns
    -------
    DataFrame
        The metrics table; empty where no membership is known. A value that the texts cannot
        support is null and has its reason.
    """
    labelled = scores.filter(pl.col("member").is_not_null())
    schema = Metrics.create_empty().schema
    n_labelled = labelled.select(pl.len()).collect(engine="streaming").item()
    if n_labelled == 0:
        return pl.DataFrame(schema=schema)
    facts = []
    for attack in attacks:
        classes = _classes(labelled, attack, n_labelled)
        same = {"attack": attack, "slice": "all", **classes.counts}
        facts += [same | asdict(fact) for fact in _facts(classes, preset)]
    return pl.DataFrame(facts, schema=schema)


@dataclass(frozen=True, kw_only=True)
class _Classes:
    """The labelled texts that an attack scored, and how many it did not score."""

    member: NDArray[np.bool_]
    score: NDArray[np.float64]
    n_unscored: int

    @property
    def n_members(self) -> int:
        return int(self.member.sum())

    @property
    def n_nonmembers(self) -> int:
        return self.member.size - self.n_members

    @property
    def counts(self) -> dict[str, int]:
        return {
            "n_members": self.n_members,
            "n_nonmembers": self.n_nonmembers,
            "n_unscored": self.n_unscored,
        }

    @property
    def lack(self) -> str | None:
        """Why there is no ROC curve."""
        if self.n_members == 0:
            return "there is no scored member"
        return "there is no scored non-member" if self.n_nonmembers == 0 else None

    @cached_property
    def curve(self) -> RocCurve:
        return roc_curve(self.member, self.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    metric: str
    fpr: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    method: str | None = None
    reason: str | None = None


def _classes(labelled: pl.LazyFrame, attack: str, n_labelled: int) -> _Classes:
    known = labelled.select("member", attack).filter(pl.col(attack).is_finite())
    scored = known.collect(engine="streaming")
    return _Classes(
        member=scored["member"].to_numpy(),
        score=scored[attack].to_numpy(),
        n_unscored=n_labelled - scored.height,
    )


def _facts(classes: _Classes, preset: Preset) -> Iterator[_Fact]:
    yield _auc(classes)
    for budget in FPR_BUDGETS:
        yield _tpr_at_fpr(classes, budget)
    if preset == "samia":
        yield _tpr_nearest_fpr(classes)
        yield _accuracy_5_fold(classes)


def _auc(classes: _Classes) -> _Fact:
    if classes.lack:
        return _Fact(metric="roc_auc", reason=classes.lack)
    curve = classes.curve
    interval = auc_interval(curve.members, curve.nonmembers, curve.area)
    return _Fact(metric="roc_auc", value=curve.area, **asdict(interval))


def _tpr_at_fpr(classes: _Classes, budget: float) -> _Fact:
    needed = round(1 / budget)
    reason = classes.lack
    if not reason and classes.n_nonmembers < needed:
        reason = (
            f"a rate of {budget:g} needs {needed} non-members, scored are {classes.n_nonmembers}"
        )
    value = None if reason else classes.curve.at_fpr(budget).tpr
    return _Fact(metric="tpr_at_fpr", fpr=budget, value=value, reason=reason)


def _tpr_nearest_fpr(classes: _Classes) -> _Fact:
    value = None
    if not classes.lack:
        value = tpr_nearest_fpr(classes.member, classes.score, _AUTHORS_FPR)
    return _Fact(metric="tpr_nearest_fpr", fpr=_AUTHORS_FPR, value=value, reason=classes.lack)


def _accuracy_5_fold(classes: _Classes) -> _Fact:
    reason = classes.lack
    if not reason and min(classes.n_members, classes.n_nonmembers) < N_FOLDS:
        reason = f"{N_FOLDS} folds need {N_FOLDS} scored members and as many non-members"
    value = None if reason else accuracy_5_fold(classes.member, classes.score)
    return _Fact(metric="accuracy_5_fold", value=value, reason=reason)
