"""Scoring with the transformers library, on any machine that has torch."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.logits import ChunkedLogits
from mia_batch.evidence.engines.pretrained import load_pretrained, ran_out_of_memory
from mia_batch.evidence.engines.requests import why_unscorable
from mia_batch.evidence.engines.texts import take_texts
from mia_batch.evidence.engines.token_scores import entry_bytes, score_tokens
from mia_batch.evidence.scorer import ScoreResult, Scoring, TokenScores

if TYPE_CHECKING:
    from torch import Tensor

    from mia_batch.evidence.engine import EngineInfo, EngineSpec
    from mia_batch.evidence.scorer import ScoreRequest

__all__ = ["TransformersScorer"]

_TEXTS = 256
_TOKENS_ON_CPU = 2048
_TOKENS_ON_ACCELERATOR = 32768
_CHUNK_ON_CPU = 128  # positions whose logits a processor's caches hold
_LARGEST_BLOCK = 31 << 20  # that glibc learns from; its limit is 32 MiB


class TransformersScorer:
    """Batches of right-padded texts of like length; the head works on chunks of their tokens.

    Of ``engine_args``, ``batch_size`` (most texts at once) and ``max_model_len`` are meant for
    this class, all others for ``AutoModelForCausalLM.from_pretrained``.

    Parameters
    ----------
    spec
        What to start; its ``scoring`` says what to compute.

    Raises
    ------
    SettingsError
        If a setting cannot be followed by this engine.
    EngineError
        If the model cannot be loaded, or cannot score.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._scoring = spec.scoring or Scoring()
        self._decoding = spec.decoding
        if self._scoring.kept_mass and spec.decoding.temperature != 1.0:
            msg = (
                "setting 'temperature': the mass that decoding keeps is defined at temperature 1; "
                "leave the setting at 1"
            )
            raise SettingsError(msg)
        loaded = load_pretrained(spec)
        self._device: torch.device = loaded.model.device
        self._vocab_size = loaded.vocab_size
        self._logits = ChunkedLogits(loaded.model)
        if self._on_cpu:
            _keep_freed_memory()
        self._most_texts = loaded.batch_size or _TEXTS if self._logits.may_batch else 1
        self._info = loaded.describe(self._most_texts)
        self._queues: dict[Scoring, list[ScoreRequest]] = defaultdict(list)
        self._refused: list[ScoreResult] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def submit(self, request: ScoreRequest) -> None:
        """Queue a request.

        Parameters
        ----------
        request
            The request; one that cannot be answered comes back with its reason.
        """
        reason = why_unscorable(
            request, max_model_len=self._info.max_model_len, vocab_size=self._vocab_size
        )
        if reason is None:
            self._queues[self._scoring.only(request.wanted)].append(request)
        else:
            self._refused.append(ScoreResult(request_id=request.request_id, error=reason))

    def step(self) -> list[ScoreResult]:
        """Score one batch.

        Returns
        -------
        list of ScoreResult
            Requests that are complete, possibly none.

        Raises
        ------
        EngineError
            If memory does not suffice for a single text.
        """
        complete, self._refused = self._refused, []
        scoring = max(self._queues, key=lambda each: len(self._queues[each]), default=self._scoring)
        batch = take_texts(
            self._queues[scoring],
            most_texts=self._most_texts,
            most_tokens=self._most_tokens,
            may_pad=self._logits.may_pad,
        )
        if batch:
            try:
                complete.extend(self._score(batch, scoring))
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                self._put_back(batch, scoring)
        return complete

    def close(self) -> None:
        """Free the model."""
        del self._logits

    @property
    def _on_cpu(self) -> bool:
        return self._device.type == "cpu"

    @property
    def _most_tokens(self) -> int:
        return _TOKENS_ON_CPU if self._on_cpu else _TOKENS_ON_ACCELERATOR

    def _put_back(self, batch: list[ScoreRequest], scoring: Scoring) -> None:
        """After memory ran out: the same texts again, half as many at once."""
        if len(batch) == 1:
            msg = (
                f"memory does not suffice for one text of {len(batch[0].token_ids)} tokens; set a "
                "smaller max_model_len through --engine-arg, a smaller head_memory or a smaller "
                "dtype"
            )
            raise EngineError(msg)
        self._most_texts = len(batch) // 2
        self._queues[scoring][:0] = batch

    @torch.inference_mode()
    def _score(self, batch: list[ScoreRequest], scoring: Scoring) -> list[ScoreResult]:
        token_ids = _pad_right([request.token_ids for request in batch])
        width = token_ids.shape[1]
        scored = [range(request.first, len(request.token_ids)) for request in batch]
        places = torch.tensor(
            [row * width + place for row, each in enumerate(scored) for place in each]
        )
        wanted = token_ids.flatten()[places].to(self._device)
        # The logits of the token before say how likely a token is.
        before = places.to(self._device) - 1
        found = self._in_chunks(token_ids.to(self._device), before, wanted, scoring)
        ends = accumulate(map(len, scored), initial=0)
        return [
            _result(request, {name: values[start:end] for name, values in found.items()})
            for request, (start, end) in zip(batch, pairwise(ends), strict=True)
        ]

    def _in_chunks(
        self, token_ids: Tensor, places: Tensor, wanted: Tensor, scoring: Scoring
    ) -> dict[str, Any]:
        """Scores of all wanted tokens, as arrays by name."""
        position_bytes = self._vocab_size * entry_bytes(scoring, self._decoding)
        most = max(1, scoring.head_bytes // position_bytes)
        if self._on_cpu:
            most = min(most, _CHUNK_ON_CPU)
        parts = [
            score_tokens(logits, chunk.to(logits.device), scoring, self._decoding)
            for logits, chunk in zip(
                self._logits.chunks(token_ids, places, most), torch.split(wanted, most), strict=True
            )
        ]
        return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}


def _keep_freed_memory() -> None:
    """Let the memory of one chunk serve the next, since fresh pages cost time.

    glibc gives freed blocks back at once, up to the size of the largest that it has ever freed.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8)  # freed at once, never touched


def _pad_right(texts: list[list[int]]) -> Tensor:
    """Token ids, texts by the longest text's length; what stands after a text's end is not seen."""
    width = max(map(len, texts))
    return torch.tensor([text + [0] * (width - len(text)) for text in texts])


def _result(request: ScoreRequest, found: dict[str, Any]) -> ScoreResult:
    if not np.isfinite(found["logprob"]).all():
        error = "the model gives a token a log-probability that is not a finite number"
        return ScoreResult(request_id=request.request_id, error=error)
    if "rank" in found:
        found["rank"] = found["rank"].astype(np.uint32)
    return ScoreResult(request_id=request.request_id, scores=TokenScores(**found))
