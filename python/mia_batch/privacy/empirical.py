"""Lower bounds of a training's privacy loss, from what an attack tells of its texts.

A training that keeps to (epsilon, delta) makes it hard to tell who was learnt; an attack that can
tells that epsilon is larger. Members must have been drawn by coins, one a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
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
    confidence: float = 0.95,
) -> Bound:
    """Bound from a threshold: epsilon >= log((TPR - delta) / FPR), and the same of non-members.

    The rates have Clopper-Pearson limits, as in Nasr et al. 2021 (arXiv:2101.04535), section 4. The
    threshold is chosen on one half of the texts and its rates are counted on the other: the best
    of many on the same texts would show too much. Texts of one training are taken for
    independent, which `one_run_bound` does without.
    """
    first = _half(member.size, seed)
    thresholds = np.unique(score[first])
    told = score[first] >= thresholds[:, None]
    best = thresholds[_by_rates(member[first], told, delta, confidence).argmax()]
    rest = member[~first]
    found = _by_rates(rest, np.array([score[~first] >= best, rest]), delta, confidence)
    return Bound(value=float(found[0]), ceiling=float(found[1]))


def _by_rates(
    member: NDArray[np.bool_], told: NDArray[np.bool_], delta: float, confidence: float
) -> NDArray[np.float64]:
    """Bounds of rules, a row each, that tell some texts to be members; 0 or more."""
    share = (1 - confidence) / 4  # two rates and two ways to tell, one side of each
    found = np.zeros(told.shape[0])
    for is_in, is_told in ((member, told), (~member, ~told)):
        n_in, n_out = is_in.sum(), (~is_in).sum()
        right, wrong = is_told[:, is_in].sum(1), is_told[:, ~is_in].sum(1)
        # Clopper and Pearson (1934); a parameter of 0 gives NaN, where the limit is 0 or 1.
        low = np.nan_to_num(beta.ppf(share, right, n_in - right + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(1 - share, wrong + 1, n_out - wrong), nan=1.0)
        above = np.maximum(low - delta, 0)
        found = np.maximum(found, np.log(above / high, where=above > 0, out=np.zeros_like(low)))
    return found


def one_run_bound(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    *,
    delta: float,
    seed: int,
    confidence: float = 0.95,
) -> Bound:
    """Bound from one training: how many of the guesses that an attack makes are right.

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
        return _by_guesses(
            n_guesses if is_ideal else right, n_guesses, is_in.size, delta, confidence
        )

    best = max(_SHARES, key=lambda share: bound(first, share))
    return Bound(value=bound(~first, best), ceiling=bound(~first, 1.0, is_ideal=True))


def _by_guesses(
    n_right: int, n_guesses: int, n_texts: int, delta: float, confidence: float
) -> float:
    """Largest epsilon under which so many right guesses are too many."""

    def excess(epsilon: float) -> float:
        return _p_of_guesses(n_right, n_guesses, n_texts, epsilon, delta) - (1 - confidence)

    return _root(excess)


def _root(excess: Callable[[float], float]) -> float:
    if excess(0.0) >= 0:
        return 0.0
    if excess(_MOST) < 0:
        return inf
    return float(brentq(excess, 0.0, _MOST, xtol=1e-6))


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
