"""Pairs of texts that lie on opposite sides of a target: Algorithm 2 of SPV-MIA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.evidence.engines.masked.variants import Variants, generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mia_batch.evidence.engines.masked.model import MaskedModel
    from mia_batch.evidence.engines.masked.vocabulary import TokenText, Vocabulary

__all__ = ["paraphrases"]

_PARAPHRASE = 3
_AT_ONCE = 8  # pairs whose probabilities are in memory
_TOO_SHORT = "the text has fewer than two tokens that could be replaced"


def paraphrases(
    model: MaskedModel, text: str, *, n: int, seed: int, share: float = 0.2
) -> Variants:
    """Replace a share of a text's tokens, and mirror what was put in: n texts, pair by pair.

    The order is plus, minus, plus, minus; the first pairs are the same whatever n. Each token is
    hidden with probability ``share``, and one where none would be. The masked model fills all that
    is hidden at once, each token drawn from its distribution over the tokens that are text. The
    other text of the pair has, for every token t that t+ was put for, the token nearest to
    2 E(t) - E(t+) in the model's input embedding matrix E, t itself not left out: in many
    dimensions it is nearly always the nearest, and the other text then the target again. What is
    not replaced stays character by character. One forward pass a pair.

    Fu et al. (2023), arXiv:2311.06062, Algorithm 2. There, the fill is only said to be the masked
    model's, and it is T5-base; drawing, as the authors' code fills spans, lets pairs differ in more
    than what is hidden. There, the texts are decoded from tokens throughout.
    """
    vocabulary = model.vocabulary
    cut = vocabulary.cut(text)
    if len(cut.places) < 2:
        return Variants(texts=(), reason=_TOO_SHORT)
    n_pairs = -(-n // 2)
    texts: list[str] = []
    for first in range(0, n_pairs, _AT_ONCE):
        pairs = range(first, min(first + _AT_ONCE, n_pairs))
        generators = [generator(_PARAPHRASE, seed, pair) for pair in pairs]
        hidden = [_hide(cut.places, share, own) for own in generators]
        predicted = model.predict_tokens(cut, hidden)
        for places, rows, own in zip(hidden, predicted, generators, strict=True):
            plus = [_draw(vocabulary, row, own) for row in rows]
            minus = vocabulary.mirror([cut.token_ids[place] for place in places], plus)
            texts += [_written(vocabulary, cut, places, each) for each in (plus, minus)]
    return Variants(texts=tuple(texts[:n]))


def _hide(places: Sequence[int], share: float, own: np.random.Generator) -> list[int]:
    """Choose the tokens to hide, ascending: each by itself, and one where there would be none."""
    chosen = own.random(len(places)) < share
    if not chosen.any():
        chosen[own.integers(len(places))] = True
    return [place for place, hide in zip(places, chosen, strict=True) if hide]


def _draw(
    vocabulary: Vocabulary, logprob: npt.NDArray[np.float32], own: np.random.Generator
) -> int:
    shares = np.exp(logprob.astype(np.float64))
    return int(own.choice(vocabulary.ids, p=shares / shares.sum()))


def _written(
    vocabulary: Vocabulary, cut: TokenText, places: Sequence[int], tokens: Sequence[int]
) -> str:
    """Write tokens where others were; where one is the same, nothing changes."""
    pairs = zip(places, tokens, strict=True)
    changed = [(place, token) for place, token in pairs if token != cut.token_ids[place]]
    return cut.replace(
        [(place, *vocabulary.written(token, cut.token_ids[place])) for place, token in changed]
    )
