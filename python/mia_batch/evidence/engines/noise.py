"""Gaussian noise on the embeddings of texts: Algorithm 1 of SPV-MIA."""

from __future__ import annotations

from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from mia_batch.evidence.request import Request

__all__ = ["NoisyEmbeddings"]

_ROWS = 4096  # of the matrix at once, in float64


class NoisyEmbeddings:
    """Embeddings of texts, of which the tokens that are scored have noise.

    The embedding of each token of a request's text is moved by ``noise * s * z``: ``s`` is the
    standard deviation of the entries of the model's input embedding matrix, ``z`` is drawn from
    N(0, I) by NumPy's ``default_rng(seed)``, text tokens by features. Tokens of the context stay as
    they are: special tokens, and the first of a text that nothing precedes, which has no
    probability. The noise depends on the request alone, and minus ``noise`` with the same seed is
    its exact opposite.

    Fu et al. (2023), arXiv:2311.06062, Algorithm 1. There, the scale of the noise is a number; here
    it is one in units of ``s``, so that it means the same for every model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._embed: Any = model.get_input_embeddings()

    @cached_property
    def _scale(self) -> float:
        """Standard deviation of all entries of the matrix, as the model scales its rows."""
        weights: Tensor = self._embed.weight.detach()
        parts, n = torch.split(weights, _ROWS), weights.numel()
        mean = sum(rows.double().sum().item() for rows in parts) / n
        variance = sum((rows.double() - mean).square().sum().item() for rows in parts) / n
        return sqrt(variance) * float(getattr(self._embed, "embed_scale", 1.0))

    def __call__(self, token_ids: Tensor, batch: Sequence[Request]) -> Tensor:
        """Embed a batch of right-padded texts; requests are in the order of its rows."""
        embedded: Tensor = self._embed(token_ids)
        for row, request in zip(embedded, batch, strict=True):
            first, n_tokens = len(request.context_ids or ()), len(request.text_ids or ())
            z = np.random.default_rng(request.seed).standard_normal((n_tokens, row.shape[1]))
            noise = torch.from_numpy(request.noise * self._scale * z).to(row.device, torch.float32)
            text = row[first : first + n_tokens]
            text.copy_(text.float() + noise)
        return embedded
