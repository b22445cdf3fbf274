"""Log-probabilities with the transformers library, on any machine that has torch."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.adapted import exchange_adapter
from mia_batch.evidence.engines.logits import ChunkedLogits
from mia_batch.evidence.engines.noise import NoisyEmbeddings
from mia_batch.evidence.engines.pretrained import load_pretrained, ran_out_of_memory
from mia_batch.evidence.engines.requests import why_impossible
from mia_batch.evidence.engines.texts import n_tokens, take_texts
from mia_batch.evidence.engines.token_scores import VOCABULARY, entry_bytes, score_tokens
from mia_batch.evidence.request import Answer
from mia_batch.models.adapter import read_adapter

if TYPE_CHECKING:
    from torch import Tensor

    from mia_batch.evidence.request import EngineInfo, EngineSpec, Request

__all__ = ["TransformersLogprobs"]

_TEXTS = 256
_TOKENS_ON_CPU = 2048
_TOKENS_ON_ACCELERATOR = 32768
_CHUNK_ON_CPU = 128  # positions whose logits a processor's caches hold
_LARGEST_BLOCK = 31 << 20  # that glibc learns from; its limit is 32 MiB


class TransformersLogprobs:
    """Batches of right-padded texts of like length; the head works on chunks of their tokens.

    Texts with noise are in batches of their own, see `NoisyEmbeddings`; their log-probabilities are
    those of the true tokens.

    Of ``engine_args``, ``batch_size`` (most texts at once) and ``max_model_len`` are meant for
    this class, all others for ``AutoModelForCausalLM.from_pretrained``.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._columns = _whole(spec.columns)
        self._logits_bytes = spec.logits_bytes
        self._decoding = spec.decoding
        if "support_mass" in self._columns and spec.decoding.temperature != 1.0:
            msg = (
                "setting 'temperature': the mass that decoding keeps is defined at temperature 1; "
                "leave the setting at 1"
            )
            raise SettingsError(msg)
        self._loaded = loaded = load_pretrained(spec)
        self._device: torch.device = loaded.model.device
        self._vocab_size = loaded.vocab_size
        self._noisy = NoisyEmbeddings(loaded.model)
        self._logits = ChunkedLogits(loaded.model, loaded.prompted)
        if self._on_cpu:
            _keep_freed_memory()
        self._most_texts = loaded.batch_size or _TEXTS if self._logits.may_batch else 1
        self._info = loaded.describe(self._most_texts)
        self._queues: dict[tuple[frozenset[str], bool], list[Request]] = defaultdict(list)
        self._refused: list[Answer] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def turn_to(self, model: str) -> None:
        """Answer as another adapter, which differs from this one in its weights alone."""
        adapter, added = read_adapter(model), self._loaded.added
        if adapter is None or added is None:
            msg = f"{model!r} is no adapter, which alone can take the place of another"
            raise EngineError(msg)
        exchange_adapter(added, adapter)
        self._loaded.check(model)
        self._logits = ChunkedLogits(self._loaded.model, self._loaded.prompted)

    def submit(self, request: Request) -> None:
        """Queue a request; one that cannot be answered comes back with its reason."""
        reason = why_impossible(
            request, max_model_len=self._info.max_model_len, vocab_size=self._vocab_size
        )
        if reason is None:
            columns = self._columns & _whole(request.columns)
            self._queues[columns, request.noise != 0].append(request)
        else:
            self._refused.append(Answer(request_id=request.request_id, error=reason))

    def step(self) -> list[Answer]:
        """Work on one batch. Raises `EngineError` if memory does not suffice for one text."""
        complete, self._refused = self._refused, []
        queue = max(self._queues.values(), key=len, default=[])
        batch = take_texts(
            queue,
            most_texts=self._most_texts,
            most_tokens=self._most_tokens,
            may_pad=self._logits.may_pad,
        )
        if batch:
            try:
                columns = self._columns & _whole(batch[0].columns)
                complete.extend(self._answers(batch, columns))
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                self._put_back(batch, queue)
        return complete

    def close(self) -> None:
        """Free the model."""
        del self._loaded, self._logits, self._noisy

    @property
    def _on_cpu(self) -> bool:
        return self._device.type == "cpu"

    @property
    def _most_tokens(self) -> int:
        return _TOKENS_ON_CPU if self._on_cpu else _TOKENS_ON_ACCELERATOR

    def _put_back(self, batch: list[Request], queue: list[Request]) -> None:
        """After memory ran out: the same texts again, half as many at once."""
        if len(batch) == 1:
            msg = (
                f"memory does not suffice for one text of {n_tokens(batch[0])} tokens; set a "
                "smaller max_model_len through --engine-arg, a smaller logits_memory or a smaller "
                "dtype"
            )
            raise EngineError(msg)
        self._most_texts = len(batch) // 2
        queue[:0] = batch

    @torch.inference_mode()
    def _answers(self, batch: list[Request], columns: frozenset[str]) -> list[Answer]:
        texts = [[*(each.context_ids or ()), *(each.text_ids or ())] for each in batch]
        token_ids = _pad_right(texts)
        width = token_ids.shape[1]
        scored = [
            range(len(request.context_ids or ()), len(text))
            for request, text in zip(batch, texts, strict=True)
        ]
        places = torch.tensor(
            [row * width + place for row, each in enumerate(scored) for place in each]
        )
        wanted = token_ids.flatten()[places].to(self._device)
        # The logits of the token before give a token's probability, or of what all of them answer.
        starts = [
            row * width + (each.start if request.question else place)
            for row, (request, each) in enumerate(zip(batch, scored, strict=True))
            for place in each
        ]
        before = torch.tensor(starts).to(self._device) - 1
        token_ids = token_ids.to(self._device)
        embeddings = self._noisy(token_ids, batch) if batch[0].noise else None
        found = self._in_chunks(token_ids, before, wanted, columns, embeddings)
        ends = accumulate(map(len, scored), initial=0)
        return [
            _result(request, {name: values[start:end] for name, values in found.items()})
            for request, (start, end) in zip(batch, pairwise(ends), strict=True)
        ]

    def _in_chunks(
        self,
        token_ids: Tensor,
        places: Tensor,
        wanted: Tensor,
        columns: frozenset[str],
        embeddings: Tensor | None,
    ) -> dict[str, Any]:
        """Scores of all wanted tokens, as arrays by name."""
        position_bytes = self._vocab_size * entry_bytes(columns, self._decoding)
        most = max(1, self._logits_bytes // position_bytes)
        if self._on_cpu:
            most = min(most, _CHUNK_ON_CPU)
        parts = [
            score_tokens(logits, chunk.to(logits.device), columns, self._decoding)
            for logits, chunk in zip(
                self._logits.chunks(token_ids, places, most, embeddings),
                torch.split(wanted, most),
                strict=True,
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


def _whole(columns: frozenset[str]) -> frozenset[str]:
    """Add what is computed together."""
    return columns | VOCABULARY if columns & VOCABULARY else columns


def _result(request: Request, found: dict[str, Any]) -> Answer:
    if not np.isfinite(found["logprob"]).all():
        error = "the model gives a token a log-probability that is not a finite number"
        return Answer(request_id=request.request_id, error=error)
    if "rank" in found:
        found["rank"] = found["rank"].astype(np.uint32)
    return Answer(request_id=request.request_id, tokens=found)
