"""From logits to what is said of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mia_batch.evidence.engines.sampler import keep_likeliest

if TYPE_CHECKING:
    from torch import Tensor

    from mia_batch.evidence.request import Decoding

__all__ = ["VOCABULARY", "entry_bytes", "score_tokens"]

VOCABULARY = frozenset({"vocabulary_mean", "vocabulary_variance"})
"""Columns that are computed together."""

_LEAST = -200.0  # of a logit below the largest: exp is 0 there in float32


def score_tokens(
    logits: Tensor, token_ids: Tensor, columns: frozenset[str], decoding: Decoding
) -> dict[str, Tensor]:
    """Log-probabilities of tokens, and ``columns`` beside them, one entry a token.

    ``logits`` are float32, tokens by vocabulary, and overwritten. Log-probabilities are differences
    to the largest logit, and the variance is that of differences to the mean, so that float32 loses
    nothing.
    """
    own = logits.gather(1, token_ids[:, None])
    top = logits.amax(1, keepdim=True)
    probabilities = logits.softmax(1)
    log_top = probabilities.amax(1, keepdim=True).log_()  # of the likeliest token: never underflows
    found = {"logprob": own - top + log_top}
    if "rank" in columns:
        found["rank"] = (logits > own).sum(1, keepdim=True) + 1
    if "support_mass" in columns:
        kept = keep_likeliest(logits, decoding.top_k, decoding.top_p)
        mass = (kept.logsumexp(1, keepdim=True) - top + log_top).clamp_(max=0.0)
        left_out = kept.gather(1, token_ids[:, None]).isneginf()
        found["support_mass"] = mass.masked_fill_(left_out, torch.nan)
    if columns & VOCABULARY:
        below_top = logits.sub_(top).clamp_(min=_LEAST)  # 0 times minus infinity is no number
        mean = (probabilities * below_top).sum(1, keepdim=True)
        distance = below_top.sub_(mean)
        found["vocabulary_mean"] = mean + log_top
        found["vocabulary_variance"] = (
            probabilities.mul_(distance).mul_(distance).sum(1, keepdim=True)
        )
    return {name: values[:, 0] for name, values in found.items()}


def entry_bytes(columns: frozenset[str], decoding: Decoding) -> int:
    """Bytes that one entry of the logits takes at most, with all that is computed from it."""
    return 48 if "support_mass" in columns and decoding.top_p < 1.0 else 16
