"""Variants of texts, asked for like everything else."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch
import transformers

from mia_batch.evidence.engines.masked.model import MaskedModel
from mia_batch.evidence.engines.masked.paraphrases import paraphrases
from mia_batch.evidence.engines.masked.variants import neighbours, perturbations
from mia_batch.evidence.request import Answer, Continuation, EngineInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.engines.masked.variants import Variants
    from mia_batch.evidence.request import EngineSpec, Request

__all__ = ["MaskedEngine"]

_MAKERS: dict[str, Callable[..., Variants]] = {
    "neighbour": neighbours,
    "perturbation": perturbations,
    "paraphrase": paraphrases,
}


class MaskedEngine:
    """Answers fills one after the other, in the order of the requests."""

    def __init__(self, spec: EngineSpec) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = MaskedModel.load(spec.model, spec.revision, device=device)
        self._waiting: deque[Request] = deque()
        self.info = EngineInfo(
            engine=spec.engine,
            version=transformers.__version__,
            device=torch.cuda.get_device_name() if device == "cuda" else device,
            dtype="float32",
            max_model_len=self._model.context,
            max_sequences=1,
        )

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Answer]:
        """Make the variants of one text."""
        if not self._waiting:
            return []
        asked = self._waiting.popleft()
        own = {"share": asked.share} if asked.share else {}
        made = _MAKERS[asked.view](self._model, asked.text, n=asked.n, seed=asked.seed, **own)
        return [
            Answer(
                request_id=asked.request_id,
                continuations=[Continuation(text=text) for text in made.texts],
                error=made.reason,
            )
        ]

    def close(self) -> None:
        """Free the model."""
        del self._model
