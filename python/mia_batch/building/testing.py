"""Can a set's classes be told apart without a model? Asked within it, and from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from mia_batch.diagnostics.blind.baseline import blind_baseline
from mia_batch.diagnostics.blind.texts import build_classifiers, seen_of_texts
from mia_batch.stats.intervals import auc_interval
from mia_batch.stats.roc import roc_auc

if TYPE_CHECKING:
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
_LEAST_TO_LEARN = 10


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


def ask_outside(texts: pl.DataFrame, held_out: pl.DataFrame, seed: int) -> Tested:
    """Train classifiers on documents that had no part in the matching; try each on the set, once.

    What matching leaves is a selection, and a selection of held-out documents has none of its
    traces: so these figures are of new readers. Besides the classifiers of the blind baseline, all
    of which the matching uses, a random forest over words that are there or not is asked. Both
    tables have ``target`` and ``member``.
    """
    member = texts["member"].to_numpy()
    same: dict[str, object] = {
        "learnt_from": "held out",
        "n_members": int(member.sum()),
        "n_nonmembers": int((~member).sum()),
    }
    learnt = int(held_out["member"].sum())
    if min(learnt, held_out.height - learnt) < _LEAST_TO_LEARN:
        reason = f"fewer than {_LEAST_TO_LEARN} texts of a class were held out"
        row = same | {"classifier": "blind_forest_v1", "reason": reason}
        return Tested(rows=[row], verdict=None, upper=None)
    scores = _outside_scores(texts, held_out, seed)
    rows, firm, uppers = [], [], []
    for name, score in scores.items():
        sides = score[member], score[~member]
        interval = auc_interval(*sides)
        auc = roc_auc(member, score)
        rows.append(
            same | {"classifier": name, "roc_auc": auc, "low": interval.low, "high": interval.high}
        )
        firm.append(auc_interval(*sides, confidence=1 - 0.1 / len(scores)).low)
        uppers.append(auc_interval(*sides, confidence=0.90).high)
        if auc <= _SEPARABLE_ABOVE:
            firm[-1] = 0.0
    verdict: BlindVerdict = "undecided"
    if max(firm) > 0.5:
        verdict = "separable"
    elif max(uppers) <= EXCLUDED_ABOVE:
        verdict = "not separable"
    return Tested(rows=rows, verdict=verdict, upper=max(uppers))


def _outside_scores(
    texts: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> dict[str, np.ndarray]:
    both = pl.concat([frame.select("target", "member") for frame in (held_out, texts)])
    label, n_learnt = both["member"].to_numpy(), held_out.height
    train, test = np.arange(n_learnt), np.arange(n_learnt, both.height)
    scores = {
        name: classifier.scores(train, test, label[train][:, None])[:, 0].round(9)
        for name, classifier in build_classifiers(both.select(seen_of_texts())).items()
    }
    forest = _forest_scores(held_out["target"], label[train], texts["target"], seed)
    return scores | {"blind_forest_v1": forest}


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
