"""Tokens drawn from logits by seed, and what a row of logits says of a token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mia_batch.evidence.request import Decoding


class SeededSampler:
    """Draws each row of a batch with a random stream of its own.

    A logits processor for greedy generation: it leaves the drawn token alone in the
    running. The order of operations (temperature, top-k, top-p, softmax in float32,
    noise in float64) is that of vLLM's float64 sampler, so that both draw the same
    tokens from the same logits. ``argmax(p / e)`` with ``e`` exponential draws from
    ``p``: the exponential race, or Gumbel-max trick, Maddison et al. (2014), section 2.
    A seed of None takes the most likely token.
    """

    def __init__(
        self,
        decoding: Decoding,
        seeds: Sequence[int | None],
        device: torch.device,
        nudges: Sequence[tuple[int, float] | None] = (),
    ) -> None:
        self._nudges = {row: nudge for row, nudge in enumerate(nudges) if nudge}
        self._temperature = torch.tensor(
            decoding.temperature, dtype=torch.float32, device=device
        )
        self._decoding = decoding
        self._generators: dict[int, torch.Generator] = {}  # by row
        for row, seed in enumerate(seeds):
            if seed is not None and decoding.temperature != 0:
                generator = torch.Generator(device).manual_seed(seed)
                self._generators[row] = generator

    def __call__(
        self,
        input_ids: Tensor,  # noqa: ARG002 - the library calls with both
        scores: Tensor,
    ) -> Tensor:
        """Return 0 at the drawn token of each row, minus infinity elsewhere."""
        tokens = self.draw(scores)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens, 0.0)

    def draw(self, scores: Tensor) -> Tensor:
        """Draw a token for each row of logits, which a nudge changes."""
        for row, (token, nats) in self._nudges.items():
            scores[row, token] += nats
        tokens = scores.argmax(dim=-1, keepdim=True)
        rows = list(self._generators)
        if rows:
            tokens[rows] = self._draw_by_seed(scores[rows])
        return tokens

    def _draw_by_seed(self, scores: Tensor) -> Tensor:
        """Draw a token for each row that has a generator."""
        decoding = self._decoding
        scaled = scores / self._temperature
        logits = keep_likeliest(scaled, decoding.top_k, decoding.top_p)
        noise = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        for row, generator in zip(noise, self._generators.values(), strict=True):
            row.exponential_(generator=generator)
        race = noise.reciprocal_().mul_(logits.softmax(dim=-1, dtype=torch.float32))
        return race.argmax(dim=-1, keepdim=True)


def keep_likeliest(
    logits: Tensor,
    top_k: int,
    top_p: float,
) -> Tensor:
    """Put every token out of the running that top-k, then top-p, leaves out."""
    # Of tokens that tie with the k-th likeliest all stay.
    if 0 < top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    if top_p >= 1.0:
        return logits
    ascending, order = logits.sort(dim=-1)
    outside = 1 - torch.tensor(top_p, dtype=logits.dtype, device=logits.device)
    left_out = ascending.softmax(dim=-1).cumsum(dim=-1) <= outside
    left_out[:, -1] = False
    remaining = ascending.masked_fill(left_out, -torch.inf)
    return logits.scatter(1, order, remaining)


VOCABULARY = frozenset({"vocabulary_mean", "vocabulary_variance"})
"""Columns that are computed together."""

_LEAST = -200.0  # of a logit below the largest: exp is 0 there in float32


def score_tokens(
    logits: Tensor,
    token_ids: Tensor,
    columns: frozenset[str],
    decoding: Decoding,
) -> dict[str, Tensor]:
    """Compute log-probabilities of tokens and further ``columns``, one entry a token."""
    # Log-probabilities are differences to the largest logit, and the variance is that
    # of differences to the mean, so that float32 loses nothing.
    true_logits = logits.gather(1, token_ids[:, None])
    top = logits.amax(1, keepdim=True)
    probabilities = logits.softmax(1)
    # Of the likeliest token: never underflows
    log_top = probabilities.amax(1, keepdim=True).log_()
    scores = {"logprob": true_logits - top + log_top}
    if "top_logprob" in columns:
        scores["top_logprob"] = log_top
    if "rank" in columns:
        if logits.device.type == "cpu":
            # A CPU adds up floats four times as fast as booleans, and exactly below
            # 2**24.
            above = torch.gt(logits, true_logits, out=torch.empty_like(logits))
        else:
            above = logits > true_logits
        scores["rank"] = above.sum(1, keepdim=True) + 1
    if "support_mass" in columns:
        support = keep_likeliest(logits, decoding.top_k, decoding.top_p)
        mass = (support.logsumexp(1, keepdim=True) - top + log_top).clamp_(max=0.0)
        left_out = support.gather(1, token_ids[:, None]).isneginf()
        scores["support_mass"] = mass.masked_fill_(left_out, torch.nan)
    if columns & VOCABULARY:
        # 0 times minus infinity is no number
        below_top = logits.sub_(top).clamp_(min=_LEAST)
        mean = (probabilities * below_top).sum(1, keepdim=True)
        distance = below_top.sub_(mean)
        scores["vocabulary_mean"] = mean + log_top
        squares = probabilities.mul_(distance).mul_(distance)
        scores["vocabulary_variance"] = squares.sum(1, keepdim=True)
    return {name: values[:, 0] for name, values in scores.items()}


def entry_bytes(
    columns: frozenset[str],
    decoding: Decoding,
) -> int:
    """Return the bytes that an entry of the logits takes at most, with what comes of it."""
    return 48 if "support_mass" in columns and decoding.top_p < 1.0 else 16


def complete_columns(columns: frozenset[str]) -> frozenset[str]:
    """Add the columns that are computed together with one of these."""
    return columns | VOCABULARY if columns & VOCABULARY else columns
