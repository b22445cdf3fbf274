"""Seeded drawing of tokens, row by row independent of what else is in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mia_batch.evidence.request import Decoding

__all__ = ["SeededSampler", "keep_likeliest"]


class SeededSampler:
    """Draws each row of a batch with a random stream of its own.

    A logits processor for greedy generation: it leaves the drawn token alone in the running. The
    order of operations (temperature, top-k, top-p, softmax in float32, noise in float64) is that of
    vLLM's float64 sampler, so that both draw the same tokens from the same logits.

    Parameters
    ----------
    decoding
        How tokens are drawn.
    seeds
        One seed per row; None takes the most likely token.
    device
        Where the logits are.

    References
    ----------
    ``argmax(p / e)`` with ``e`` exponential draws from ``p``: the exponential race, or Gumbel-max
    trick, Maddison et al. (2014), section 2.
    """

    def __init__(
        self, decoding: Decoding, seeds: Sequence[int | None], device: torch.device
    ) -> None:
        self._temperature = torch.tensor(decoding.temperature, dtype=torch.float32, device=device)
        self._top_k = decoding.top_k
        self._top_p = decoding.top_p
        self._generators = [
            None if seed is None or decoding.temperature == 0 else _generator(seed, device)
            for seed in seeds
        ]

    # The library calls with both: one of them is not used.
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Scores that leave one token per row.

        Parameters
        ----------
        input_ids
            What was decoded so far; not looked at.
        scores
            Logits, float32, rows by vocabulary.

        Returns
        -------
        Tensor
            0 at the drawn token of each row, minus infinity elsewhere.
        """
        drawn = scores.argmax(dim=-1, keepdim=True)
        if rows := [row for row, generator in enumerate(self._generators) if generator]:
            drawn[rows] = self._draw(scores[rows])
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        logits = keep_likeliest(scores / self._temperature, self._top_k, self._top_p)
        noise = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        for row, generator in zip(noise, filter(None, self._generators), strict=True):
            row.exponential_(generator=generator)
        race = noise.reciprocal_().mul_(logits.softmax(dim=-1, dtype=torch.float32))
        return race.argmax(dim=-1, keepdim=True)


def _generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def keep_likeliest(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Put every token out of the running that top-k, then top-p, leaves out.

    Parameters
    ----------
    logits
        Float32, rows by vocabulary.
    top_k
        Only the k likeliest tokens stay (more, where the last ones tie); 0 = all.
    top_p
        Only the smallest set of likeliest tokens with this mass stays; 1.0 = all.

    Returns
    -------
    Tensor
        The logits, minus infinity at the tokens left out.
    """
    if 0 < top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    if top_p >= 1.0:
        return logits
    ascending, order = logits.sort(dim=-1)
    least = 1 - torch.tensor(top_p, dtype=logits.dtype, device=logits.device)
    left_out = ascending.softmax(dim=-1).cumsum(dim=-1) <= least
    left_out[:, -1] = False
    return logits.scatter(1, order, ascending.masked_fill(left_out, -torch.inf))
