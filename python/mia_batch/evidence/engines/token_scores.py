"""From logits to what is said of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mia_batch.evidence.engines.sampler import keep_likeliest

if TYPE_CHECKING:
    from torch import Tensor

    from mia_batch.evidence.engine import Decoding
    from mia_batch.evidence.scorer import Scoring

__all__ = ["entry_bytes", "score_tokens"]

_LEAST = -200.0  # of a logit below the largest: exp is 0 there in float32


def score_tokens(
    logits: Tensor, token_ids: Tensor, scoring: Scoring, decoding: Decoding
) -> dict[str, Tensor]:
    """Log-probabilities of tokens, and what else was asked for.

    Log-probabilities are differences to the largest logit, and the variance is that of differences
    to the mean, so that float32 loses nothing.

    Parameters
    ----------
    logits
        Float32, tokens by vocabulary; overwritten.
    token_ids
        The tokens, int64.
    scoring
        What to compute.
    decoding
        Which tokens the run keeps.

    Returns
    -------
    dict
        Tensors by the names of ``TokenScores``, one entry a token.
    """
    own = logits.gather(1, token_ids[:, None])
    top = logits.amax(1, keepdim=True)
    probabilities = logits.softmax(1)
    log_top = probabilities.amax(1, keepdim=True).log_()  # of the likeliest token: never underflows
    found = {"logprob": own - top + log_top}
    if scoring.rank:
        found["rank"] = (logits > own).sum(1, keepdim=True) + 1
    if scoring.kept_mass:
        kept = keep_likeliest(logits, decoding.top_k, decoding.top_p)
        mass = (kept.logsumexp(1, keepdim=True) - top + log_top).clamp_(max=0.0)
        left_out = kept.gather(1, token_ids[:, None]).isneginf()
        found["kept_mass"] = mass.masked_fill_(left_out, torch.nan)
    if scoring.moments:
        below_top = logits.sub_(top).clamp_(min=_LEAST)  # 0 times minus infinity is no number
        mean = (probabilities * below_top).sum(1, keepdim=True)
        distance = below_top.sub_(mean)
        found["mean"] = mean + log_top
        found["variance"] = probabilities.mul_(distance).mul_(distance).sum(1, keepdim=True)
    return {name: values[:, 0] for name, values in found.items()}


def entry_bytes(scoring: Scoring, decoding: Decoding) -> int:
    """Memory that one entry of the logits takes at most, with all that is computed from it.

    Parameters
    ----------
    scoring
        What is computed.
    decoding
        Which tokens the run keeps.

    Returns
    -------
    int
        Bytes.
    """
    return 48 if scoring.kept_mass and decoding.top_p < 1.0 else 16
