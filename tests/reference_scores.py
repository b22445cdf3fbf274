"""Reference implementations of the scores, written from the papers for clarity alone.

SaMIA: Kaneko et al. (2024), arXiv:2404.11262v2, and where its code differs, its code.
"""

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

SIZES = range(1, 6)

CLASSIC_ZLIB = (
    re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION) is not None
)
"""Whether this Python compresses with classic zlib, as published scores did."""


def name(family: str, n: int) -> str:
    return f"{family}_v1" if n == 1 else f"{family}_n{n}_v1"


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def overlap(candidate: Sequence[str], reference: Sequence[str], n: int) -> int:
    """Equation 1, numerator: each n-gram counts as often as the side that has fewer has it."""
    return (ngrams(candidate, n) & ngrams(reference, n)).total()


def compressed(words: Iterable[str]) -> int:
    return len(zlib.compress(" ".join(words).encode()))


def mean(values: Sequence[float]) -> float:
    """Sum in the order of the samples, one by one."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def authors_prefix(text: str) -> str:
    words = text.split()
    return " ".join(words[: int(len(words) * 0.5)])


def authors_words(text: str, text_length: int) -> list[str]:
    words = [word for word in text.split(" ") if word != ""]
    return words[round(text_length * 0.5) :]


def authors_scores(
    text: str, outputs: Sequence[str], text_length: int
) -> dict[str, float]:
    """Scores of one text from whole outputs (decoded prompt and continuation), by attack."""
    reference = authors_words(text, text_length)
    candidates = [authors_words(output, text_length) for output in outputs]
    sizes = [compressed(candidate) for candidate in candidates]
    scores = {}
    for n in SIZES:
        shared = [overlap(candidate, reference, n) for candidate in candidates]
        recall = [count / len(reference) if reference else 0.0 for count in shared]
        scores[name("samia", n)] = mean(recall)
        scores[name("samia_precision", n)] = mean(
            [
                count / len(candidate) if candidate else 0.0
                for count, candidate in zip(shared, candidates, strict=True)
            ]
        )
        scores[name("samia_zlib", n)] = mean(
            [share * size for share, size in zip(recall, sizes, strict=True)]
        )
        if n == 1:
            scores["samia_plus_zlib_v1"] = mean(
                [share + size for share, size in zip(recall, sizes, strict=True)]
            )
    return scores


def matched_scores(
    reference: str, candidates: Sequence[str]
) -> dict[str, float | None]:
    """Scores from candidates cut to the reference's number of words, by attack."""
    words = reference.split()
    cut = [candidate.split()[: len(words)] for candidate in candidates]
    scores: dict[str, float | None] = {}
    for n in SIZES:
        of_n = [name(f"samia_matched{kind}", n) for kind in ("", "_precision", "_zlib")]
        if len(words) < n:
            scores |= dict.fromkeys(of_n)
            continue
        shared = [overlap(candidate, words, n) for candidate in cut]
        n_candidate = [max(len(candidate) - n + 1, 0) for candidate in cut]
        recall = [count / (len(words) - n + 1) for count in shared]
        precision = [
            count / total if total else 0.0
            for count, total in zip(shared, n_candidate, strict=True)
        ]
        product = [
            share * compressed(candidate)
            for share, candidate in zip(recall, cut, strict=True)
        ]
        scores |= dict(zip(of_n, map(mean, (recall, precision, product)), strict=True))
    return scores


def expected_hits(
    tokens: np.ndarray, hits: np.ndarray, groups: np.ndarray, counted: np.ndarray
) -> np.ndarray:
    """What `with_expected` expects of each point, from points of counted texts of other folds."""
    names = [f"{text:032d}" for text in range(groups.size)]
    first = sorted(
        {
            min(n for n, g in zip(names, groups, strict=True) if g == each)
            for each in groups
        }
    )
    fold = [
        (
            first.index(min(n for n, g in zip(names, groups, strict=True) if g == own))
            + 1
        )
        % 16
        for own in groups
    ]
    octave = {
        token: int(count).bit_length()
        for token, count in zip(*np.unique(tokens, return_counts=True), strict=True)
    }
    made = np.full(tokens.shape, np.nan)
    for text in range(groups.size):
        others = [i for i in range(groups.size) if counted[i] and fold[i] != fold[text]]
        said = [(t, h) for i in others for t, h in zip(tokens[i], hits[i], strict=True)]
        if len(said) < 100:
            continue
        base = sum(h for _, h in said) / len(said)
        for at, token in enumerate(tokens[text]):
            alike = [h for t, h in said if octave[t] == octave[token]]
            share = (sum(alike) + base) / (len(alike) + 1)
            same = [h for t, h in said if t == token]
            made[text, at] = (sum(same) + 30 * share) / (len(same) + 30)
    return made


def likeness_of_answers(first: Sequence[float], second: Sequence[float]) -> float:
    """Self-Critique, Tao et al. 2025 (arXiv:2510.09259), one number after the other."""
    n = max(len(first), len(second))
    a = [*first, *[0.0] * (n - len(first))]
    b = [*second, *[0.0] * (n - len(second))]
    product = sum(x * y for x, y in zip(a, b, strict=True))
    norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return product / norms * min(len(first), len(second)) / n
