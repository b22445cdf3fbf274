"""Pairs of a member and a non-member that classifiers cannot tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_batch.diagnostics.blind.texts import build_classifiers
from mia_batch.stats.folds import deal_folds
from mia_batch.stats.roc import roc_auc

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.diagnostics.blind.classifiers import Classifier

__all__ = ["Candidates", "match"]

_N_FOLDS = 5
_N_DEALS = 3
"""Divisions into folds whose scores are averaged."""

_MOST_ROUNDS = 8
_WORDS = ("blind_naive_bayes_v1", "blind_logistic_v1", "blind_ngrams_v1")
_CALIPERS = (0.10, 0.25, 0.30, 0.10)
"""How far a pair may be apart, as a share of all texts: in the mean score of the classifiers of
words, in that of the year and of the surface, and in that of those trained on what was thrown away.
"""
_FORBIDDEN = 1e3


class Candidates(NamedTuple):
    """Texts to choose from; arrays have an entry per text."""

    label: NDArray[np.bool_]
    document: NDArray[np.intp]
    cluster: NDArray[np.intp]  # texts of one are never on both sides of a fold
    source: NDArray[np.intp]  # a pair is of one source
    seen: pl.DataFrame  # the columns of `seen_of_texts`


def match(texts: Candidates, generator: np.random.Generator) -> NDArray[np.intp]:
    """Pair members with non-members; rows of the result are pairs of row numbers, members first.

    The first round compares cross-fitted scores: of each text by classifiers that were trained on
    other clusters. These alone fool themselves. A member stays because its classifier was misled by
    a non-member like it, and the other way round, so that within what stays classifiers are wrong
    more often than right, while new ones are not. Each further round therefore trains on all that
    was thrown away so far, which holds no document that stays, and gives up pairs that those scores
    tell apart, until they do no better than chance. A document is in one pair at most.

    References
    ----------
    Matching on an estimated probability: Rosenbaum and Rubin (1983), "The central role of the
    propensity score". Cross-fitting: Chernozhukov et al. (2018), "Double/debiased machine
    learning".
    """
    classifiers = build_classifiers(texts.seen)
    position = _cross_fitted(classifiers, texts, generator) / _CALIPERS[:3]
    rows = np.arange(texts.label.size)
    pairs = _pair(position, rows, texts)
    for _ in range(_MOST_ROUNDS):
        stays = np.isin(texts.document, texts.document[pairs.ravel()])
        rows, away = np.flatnonzero(stays), np.flatnonzero(~stays)
        if np.unique(texts.label[away]).size < 2 or not pairs.size:
            break
        learnt = np.zeros(texts.label.size)
        scores = _scores(classifiers, texts.label, away, rows)
        learnt[rows] = _shares(_mean_of_words(scores, classifiers))
        paired = pairs.ravel()
        if roc_auc(texts.label[paired], learnt[paired]) <= _chance(len(pairs)):
            break
        pairs = _pair(np.column_stack([position, learnt / _CALIPERS[3]]), rows, texts)
    return pairs


def _chance(n_pairs: int) -> float:
    """Give the AUC half a standard deviation above that of a score that means nothing."""
    return float(0.5 + 0.5 / np.sqrt(6 * n_pairs))


def _cross_fitted(
    classifiers: Mapping[str, Classifier], texts: Candidates, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Place each text by words, year and surface, as a share of all texts."""
    total = np.zeros((texts.label.size, len(classifiers)))
    for _ in range(_N_DEALS):
        folds = deal_folds(texts.label, texts.cluster, n_folds=_N_FOLDS, generator=generator)
        fold = folds.fold_of_text
        for each in range(_N_FOLDS):
            train, test = np.flatnonzero(fold != each), np.flatnonzero(fold == each)
            total[test] += _scores(classifiers, texts.label, train, test)
    names = list(classifiers)
    alone = [total[:, names.index(name)] for name in ("blind_year_v1", "blind_surface_v1")]
    return np.column_stack([*map(_shares, (_mean_of_words(total, classifiers), *alone))])


def _scores(
    classifiers: Mapping[str, Classifier],
    label: NDArray[np.bool_],
    train: NDArray[np.intp],
    test: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Score texts by every classifier, a column each, of mean 0 and deviation 1."""
    columns = [
        classifier.scores(train, test, label[train][:, None]) for classifier in classifiers.values()
    ]
    scores = np.hstack(columns)
    deviation = scores.std(axis=0)
    standard: NDArray[np.float64] = (scores - scores.mean(axis=0)) / np.where(
        deviation > 0, deviation, 1
    )
    return standard


def _mean_of_words(
    scores: NDArray[np.float64], classifiers: Mapping[str, Classifier]
) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = scores[:, [name in _WORDS for name in classifiers]].mean(axis=1)
    return mean


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the texts that score lower, ties one half."""
    from scipy.stats import rankdata

    shares: NDArray[np.float64] = (rankdata(values.round(9)) - 0.5) / values.size
    return shares


def _pair(
    position: NDArray[np.float64], rows: NDArray[np.intp], texts: Candidates
) -> NDArray[np.intp]:
    """Pair as many documents as can be within a distance of 1, and of such choices the nearest."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    members, others = rows[texts.label[rows]], rows[~texts.label[rows]]
    if not (members.size and others.size):
        return np.empty((0, 2), np.intp)
    distance = cdist(position[members], position[others], "chebyshev")
    distance[texts.source[members][:, None] != texts.source[others]] = _FORBIDDEN
    distance[distance > 1] = _FORBIDDEN
    first, of_member = np.unique(texts.document[members], return_inverse=True)
    second, of_other = np.unique(texts.document[others], return_inverse=True)
    # Of all texts of two documents the nearest two: the last to be written.
    nearest_last = np.argsort(-distance, axis=None, kind="stable")
    row, column = np.unravel_index(nearest_last, distance.shape)
    cost = np.full((first.size, second.size), _FORBIDDEN)
    best = np.zeros((first.size, second.size), np.intp)
    cost[of_member[row], of_other[column]] = distance[row, column]
    best[of_member[row], of_other[column]] = nearest_last
    a, b = linear_sum_assignment(cost)
    allowed = cost[a, b] < _FORBIDDEN
    row, column = np.unravel_index(best[a, b][allowed], distance.shape)
    return np.column_stack([members[row], others[column]])
