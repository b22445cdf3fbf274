"""Lower bounds of a training's privacy loss, from what an attack tells of its texts.

A training that keeps to (epsilon, delta) makes it hard to tell who was learnt; an attack that can
tells that epsilon is larger. Members must have been drawn by coins. Where up to k texts share one,
(epsilon, delta) of a text is (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1)) of a coin
(Dwork and Roth 2014, "The algorithmic foundations of differential privacy", theorem 2.2 and lemma
2.2 of Vadhan 2017, "The complexity of differential privacy"); bounds are those of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Bound", "clopper_pearson_bound", "one_run_bound"]

_MOST = 50.0  # no epsilon is looked for above
_SHARES = np.linspace(0.1, 1, 10)  # of texts about which a guess is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound of epsilon.

    Attributes
    ----------
    value
        The bound, 0 or more.
    ceiling
        The bound if each guess about as many texts were right: a small value below a small ceiling
        is no sign of privacy.
    """

    value: float
    ceiling: float


def clopper_pearson_bound(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    *,
    delta: float,
    seed: int,
    texts: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from a threshold: epsilon >= log((TPR - delta) / FPR), and the same of non-members.

    At most so many ``texts`` share a coin, and so a value of ``member``.

    The rates have Clopper-Pearson limits, as in Nasr et al. 2021 (arXiv:2101.04535), section 4. The
    threshold is chosen on one half of the texts and its rates are counted on the other: the best
    of many on the same texts would show too much. Texts of one training are taken for
    independent, which `one_run_bound` does without.
    """
    first = _half(member.size, seed)
    thresholds = np.unique(score[first])
    told = score[first] >= thresholds[:, None]
    low, high = np.moveaxis(_rates(member[first], told, confidence), -1, 0)
    best = thresholds[(np.maximum(low - delta, 0) / high).max(axis=0).argmax()]
    rest = member[~first]
    found = _rates(rest, np.array([score[~first] >= best, rest]), confidence)
    value, ceiling = (
        max(_by_rates(*limits, delta=delta, texts=texts) for limits in rule)
        for rule in found.swapaxes(0, 1).tolist()
    )
    return Bound(value=value, ceiling=ceiling)


def _rates(
    member: NDArray[np.bool_], told: NDArray[np.bool_], confidence: float
) -> NDArray[np.float64]:
    """Limits of rules, a row each, that tell some texts to be members.

    The least rate of those that are, and the highest of those that are not; then of non-members.
    """
    share = (1 - confidence) / 4  # two rates and two ways to tell, one side of each
    found = []
    for is_in, is_told in ((member, told), (~member, ~told)):
        n_in, n_out = is_in.sum(), (~is_in).sum()
        right, wrong = is_told[:, is_in].sum(1), is_told[:, ~is_in].sum(1)
        # Clopper and Pearson (1934); a parameter of 0 gives NaN, where the limit is 0 or 1.
        low = np.nan_to_num(beta.ppf(share, right, n_in - right + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(1 - share, wrong + 1, n_out - wrong), nan=1.0)
        found.append(np.stack([low, high], axis=-1))
    return np.stack(found)


def _by_rates(low: float, high: float, *, delta: float, texts: int) -> float:
    """Largest epsilon that these rates contradict."""

    def excess(epsilon: float) -> float:
        spent, slack = _of_a_coin(epsilon, delta, texts)
        return slack + exp(spent) * high - low

    return _root(excess, texts)


def one_run_bound(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    *,
    delta: float,
    seed: int,
    texts: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from one training: how many of the guesses that an attack makes are right.

    At most so many ``texts`` share a coin, and so a value of ``member``.

    Steinke et al. 2023 (arXiv:2305.08846), theorem 5.2: of r guesses under (epsilon, delta), the
    right ones are no more, in distribution, than r coins of e^epsilon / (1 + e^epsilon), but for
    a term in delta. Highest and lowest scores are guessed; of how many texts is chosen on one half
    and counted on the other. It holds although all texts were learnt by one model.
    """
    first = _half(member.size, seed)

    def bound(places: NDArray[np.bool_], share: float, *, is_ideal: bool = False) -> float:
        is_in, by = member[places], score[places]
        order = np.argsort(by, kind="stable")
        n_each = max(1, int(share * is_in.size / 2))
        right = int(is_in[order[-n_each:]].sum() + (~is_in[order[:n_each]]).sum())
        n_guesses = 2 * n_each
        n_right = n_guesses if is_ideal else right

        def excess(epsilon: float) -> float:
            spent, slack = _of_a_coin(epsilon, delta, texts)
            p = _p_of_guesses(n_right, n_guesses, is_in.size, spent, slack)
            return p - (1 - confidence)

        return _root(excess, texts)

    best = max(_SHARES, key=lambda share: bound(first, share))
    return Bound(value=bound(~first, best), ceiling=bound(~first, 1.0, is_ideal=True))


def _of_a_coin(epsilon: float, delta: float, texts: int) -> tuple[float, float]:
    """Turn (epsilon, delta) of a text into those of texts that share a coin."""
    times = expm1(texts * epsilon) / expm1(epsilon) if epsilon else texts
    return texts * epsilon, delta * times


def _root(excess: Callable[[float], float], texts: int) -> float:
    if excess(0.0) >= 0:
        return 0.0
    if excess(_MOST / texts) < 0:
        return inf
    return float(brentq(excess, 0.0, _MOST / texts, xtol=1e-6))


def _p_of_guesses(
    n_right: int, n_guesses: int, n_texts: int, epsilon: float, delta: float
) -> float:
    """Probability of at least so many right guesses, at most."""
    coin = 1 / (1 + exp(-epsilon))
    tail = float(binom.sf(n_right - 1, n_guesses, coin))
    if delta == 0:
        return min(1.0, tail)
    steps = np.arange(1, n_right + 1)
    below = binom.pmf(n_right - steps, n_guesses, coin).cumsum()
    slope = float((below / steps).max(initial=0.0))
    return min(1.0, tail + 2 * n_texts * delta * slope)


def _half(n: int, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(n) < 0.5
