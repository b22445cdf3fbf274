"""Complexity of series, written from the definitions for clarity alone; None where undefined."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np


def lempel_ziv(logprobs: Sequence[float], bins: int) -> float | None:
    """Words of the parse of Ziv and Lempel (1978) over values; binned twice, as CAMIA does."""
    if not logprobs or not all(map(math.isfinite, logprobs)):
        return None
    values = np.minimum(logprobs, 0)
    levels = np.digitize(values, np.linspace(values.min(), 0, 100), right=True)
    ends = np.linspace(levels.min(), levels.max(), bins + 1)[1:]
    words: set[tuple[int, ...]] = set()
    word: tuple[int, ...] = ()
    for symbol in np.searchsorted(ends, levels, side="left").tolist():
        word = (*word, symbol)
        if word not in words:
            words.add(word)
            word = ()
    return len(words) / len(logprobs)


def entropy(values: Sequence[float], m: int, r: float) -> float | None:
    """Approximate entropy of Pincus (1991), its difference without the sign."""
    if len(values) <= m + 1 or not all(map(math.isfinite, values)):
        return None
    tolerance = r * float(np.std(values))

    def phi(m: int) -> float:
        templates = [values[start : start + m] for start in range(len(values) - m + 1)]
        return fmean(
            math.log(fmean(distance(one, other) <= tolerance for other in templates))
            for one in templates
        )

    return abs(phi(m) - phi(m + 1))


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(left - right) for left, right in zip(one, other, strict=True))


def is_tied(values: Sequence[float], r: float) -> bool:
    """Whether rounding decides if two values are as far apart as is alike."""
    tolerance = r * float(np.std(values))
    distances = np.abs(np.subtract.outer(values, values))
    near = np.abs(distances - tolerance) <= 1e-9 * distances
    return bool(near[distances > 0].any())
