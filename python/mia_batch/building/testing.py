"""Can a set's classes be told apart without a model? Asked within it, and from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from mia_batch.diagnostics.blind.baseline import blind_baseline
from mia_batch.stats.intervals import auc_interval
from mia_batch.stats.roc import roc_auc

if TYPE_CHECKING:
    import numpy as np

    from mia_batch.diagnostics.blind.baseline import BlindVerdict

__all__ = ["EXCLUDED_ABOVE", "LEAST_PAIRS", "Tested", "ask_outside", "ask_within"]

EXCLUDED_ABOVE: Final = 0.60
LEAST_PAIRS: Final = 46
"""With fewer, an AUC above 0.60 is not excluded even where the AUC found is 1/2.

The deviation of an AUC of 1/2 of n members and n non-members is 1 / sqrt(6 n), and 1.645 of it,
which a one-sided limit of confidence 0.95 adds, are 0.10 at n = 45.1.
"""

_SEPARABLE_ABOVE = 0.55  # as in the blind baseline
_N_TREES = 200
_LEAST_TO_LEARN = 20  # texts of each class


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What a test found.

    Attributes
    ----------
    rows
        Of the tests table, without length, setting and stage.
    verdict
        As of `BlindBaseline`; None without one.
    upper
        Upper limit, confidence 0.95, of the AUC of every classifier of the test; None without one.
    """

    rows: list[dict[str, object]]
    verdict: BlindVerdict | None
    upper: float | None


def ask_within(texts: pl.DataFrame, seed: int) -> Tested:
    """Run the blind baseline; ``texts`` has its columns."""
    found = blind_baseline(texts.lazy(), seed=seed)
    names = {"attack": "classifier", "value": "roc_auc"}
    kept = ["attack", "value", "low", "high", "n_members", "n_nonmembers", "reason"]
    rows = found.metrics.select(kept).rename(names).with_columns(learnt_from=pl.lit("the set"))
    return Tested(rows=rows.to_dicts(), verdict=found.verdict, upper=found.upper)


def ask_outside(texts: pl.DataFrame, away: pl.DataFrame, seed: int) -> Tested:
    """Train a random forest on texts that are not in a set, and try it on the set, once.

    A forest over words that are there or not has no part in the matching, and sees interactions,
    which no classifier of the matching does. Both tables have ``target`` and ``member``.
    """
    member = texts["member"].to_numpy()
    row: dict[str, object] = {
        "classifier": "blind_forest_v1",
        "learnt_from": "thrown away",
        "n_members": int(member.sum()),
        "n_nonmembers": int((~member).sum()),
    }
    learnt = away["member"].to_numpy()
    if min(int(learnt.sum()), int((~learnt).sum())) < _LEAST_TO_LEARN:
        reason = f"fewer than {_LEAST_TO_LEARN} texts of a class were thrown away"
        return Tested(rows=[row | {"reason": reason}], verdict=None, upper=None)
    score = _forest_scores(away["target"], learnt, texts["target"], seed)
    interval = auc_interval(score[member], score[~member])
    upper = auc_interval(score[member], score[~member], confidence=0.90).high
    auc = roc_auc(member, score)
    row |= {"roc_auc": auc, "low": interval.low, "high": interval.high}
    verdict: BlindVerdict = "undecided"
    if interval.low > 0.5 and auc > _SEPARABLE_ABOVE:
        verdict = "separable"
    elif upper <= EXCLUDED_ABOVE:
        verdict = "not separable"
    return Tested(rows=[row], verdict=verdict, upper=upper)


def _forest_scores(learnt: pl.Series, label: np.ndarray, asked: pl.Series, seed: int) -> np.ndarray:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer

    words = CountVectorizer(binary=True, token_pattern=r"(?u)\w+", min_df=2)
    forest = RandomForestClassifier(
        _N_TREES, min_samples_leaf=2, class_weight="balanced", random_state=seed, n_jobs=1
    )
    forest.fit(words.fit_transform(learnt.to_list()), label)
    score: np.ndarray = forest.predict_proba(words.transform(asked.to_list()))[:, 1]
    return score
