"""Texts that differ from a target in some words, made with a masked language model."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.evidence.engines.masked.gaps import Gaps, word_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mia_batch.evidence.engines.masked.model import MaskedModel

__all__ = ["Variants", "generator", "neighbours", "perturbations"]

_HIDDEN = 0.15
_SPAN = 2
_NEIGHBOUR, _PERTURBATION = 1, 2
_TOO_SHORT = "the text has fewer than two words that could be replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Other versions of one text, or why there are none."""

    texts: tuple[str, ...]
    reason: str | None = None


def neighbours(model: MaskedModel, text: str, *, n: int, seed: int) -> Variants:
    """Replace one word of a text, each time another one: at most n texts, all different.

    The masked model sees the text without the word and gives the most likely other one. Words are
    taken in random order; where a text has fewer than n, their next replacements follow. One
    forward pass for each word that is replaced; the first texts are the same whatever n.

    Mattern et al. (2023), arXiv:2305.18462, with one word replaced. There, the word's embedding is
    dropped out in part and the best replacements of all words are taken; here it is masked, and the
    words are random, so that a neighbour costs one forward pass, not one a word.
    """
    words = word_spans(text)
    if len(words) < 2:
        return Variants(texts=(), reason=_TOO_SHORT)
    order = generator(_NEIGHBOUR, seed).permutation(len(words))[:n]
    gaps = [Gaps(text, [words[index]]) for index in order]
    ranked = [
        _replacements(model, of, row, -(-n // len(words)))
        for of, (row,) in zip(gaps, model.predict(gaps), strict=True)
    ]
    texts = [
        of.fill([words_of[round_]])[0]
        for round_ in range(-(-n // len(words)))
        for of, words_of in zip(gaps, ranked, strict=True)
        if round_ < len(words_of)
    ]
    return Variants(texts=tuple(texts[:n]))


def _replacements(
    model: MaskedModel, gaps: Gaps, logprob: npt.NDArray[np.float32], n: int
) -> list[str]:
    """Take the n most likely words other than the hidden one, letter case aside."""
    (hidden,) = gaps.words()
    found: dict[str, str] = {}
    for index in np.argsort(-logprob, kind="stable"):
        word = model.words[index]
        if word.casefold() != hidden.casefold():
            found.setdefault(word.casefold(), word)
        if len(found) == n:
            break
    return list(found.values())


def perturbations(model: MaskedModel, text: str, *, n: int, seed: int) -> Variants:
    """Hide 15 percent of a text's words, in spans of two, and draw others: n texts.

    One forward pass each; the first texts are the same whatever n.

    Mitchell et al. (2023), arXiv:2301.11305. There, T5 fills a span with as many words as it likes;
    here each word of a span is drawn from a masked model alone, so that the number of words stays
    and the two words of a span fit the text but not always each other.
    """
    words = word_spans(text)
    if len(words) < 2:
        return Variants(texts=(), reason=_TOO_SHORT)
    generators = [generator(_PERTURBATION, seed, index) for index in range(n)]
    gaps = [Gaps(text, [words[i] for i in _spans(len(words), of)]) for of in generators]
    predicted = model.predict(gaps)
    return Variants(
        texts=tuple(
            of.fill([_draw(model, row, own) for row in rows])[0]
            for of, rows, own in zip(gaps, predicted, generators, strict=True)
        )
    )


def _spans(n_words: int, own: np.random.Generator) -> Iterator[int]:
    """Yield the words to hide, ascending: random spans with a word between any two."""
    wanted = ceil(_HIDDEN * n_words / _SPAN)
    free = set(range(n_words - _SPAN + 1))
    hidden: set[int] = set()
    for start in own.permutation(n_words - _SPAN + 1).tolist():
        if start in free and len(hidden) < wanted * _SPAN:
            hidden.update(range(start, start + _SPAN))
            free.difference_update(range(start - _SPAN, start + _SPAN + 1))
    return iter(sorted(hidden))


def _draw(model: MaskedModel, logprob: npt.NDArray[np.float32], own: np.random.Generator) -> str:
    shares = np.exp(logprob.astype(np.float64))
    return model.words[own.choice(len(shares), p=shares / shares.sum())]


def generator(kind: int, seed: int, *index: int) -> np.random.Generator:
    """Random numbers of one kind of variant, of one text, and of one of its variants."""
    return np.random.default_rng([kind, seed, *index])
