"""Scoring with vLLM, in this process, on GPUs or with its CPU build."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import vllm
from transformers import AutoConfig
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.choice import cannot_score
from mia_batch.evidence.engines.requests import why_unscorable
from mia_batch.evidence.engines.vllm_core import (
    check_arguments,
    describe_vllm,
    start_vllm,
    step_vllm,
)
from mia_batch.evidence.scorer import ScoreResult, Scoring, TokenScores
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from mia_batch.evidence.engine import EngineInfo, EngineSpec
    from mia_batch.evidence.scorer import ScoreRequest

__all__ = ["VllmScorer"]

_TEXTS = 64
_ENTRY_BYTES = 12  # of the logits: they, their log-probabilities, and what finds ranks


class VllmScorer:
    """vLLM's own loop; texts are prompts that ask for one token, which is thrown away.

    All of ``engine_args`` goes to ``vllm.EngineArgs`` and wins over what is set here, except that
    no prefix is ever cached: log-probabilities of cached tokens are not computed. Prompts are
    taken in pieces, so that vLLM makes logits for no more tokens at once than ``head_bytes`` has
    room for.

    Parameters
    ----------
    spec
        What to start; its ``scoring`` says what to compute.

    Raises
    ------
    SettingsError
        If a setting is unknown to vLLM or out of its range, or more than log-probabilities is
        asked for.
    EngineError
        If the model cannot be loaded.
    """

    def __init__(self, spec: EngineSpec) -> None:
        scoring = spec.scoring or Scoring()
        if (reason := cannot_score("vllm", scoring)) is not None:
            msg = f"{reason}; take engine transformers"
            raise SettingsError(msg)
        check_arguments(spec.engine_args)
        forced = spec.engine_args | {
            "enable_prefix_caching": False,
            "logprobs_mode": "raw_logprobs",
        }
        self._engine = start_vllm(replace(spec, engine_args=forced), _arguments(spec, scoring))
        self._vocab_size = self._engine.model_config.get_vocab_size()
        described = describe_vllm(self._engine)
        self._info = replace(described, max_model_len=described.max_model_len - 1)
        self._waiting: dict[int, ScoreRequest] = {}
        self._refused: list[ScoreResult] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself; the token that vLLM must draw takes one place."""
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
        try:
            if reason is None:
                self._add(request)
        except (ValueError, TypeError, vllm.exceptions.VLLMClientError) as error:
            reason = cause_of(error)
        if reason is not None:
            self._refused.append(ScoreResult(request_id=request.request_id, error=reason))

    def step(self) -> list[ScoreResult]:
        """Score one batch of texts, or of pieces of texts.

        Returns
        -------
        list of ScoreResult
            Requests that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine cannot go on.
        """
        complete, self._refused = self._refused, []
        if self._waiting:
            for output in step_vllm(self._engine):
                request = self._waiting.pop(int(output.request_id))
                complete.append(_result(request, output.prompt_logprobs))
        return complete

    def close(self) -> None:
        """Free the model."""
        self._engine.engine_core.shutdown()

    def _add(self, request: ScoreRequest) -> None:
        parameters = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = tokens_input(request.token_ids)
        self._engine.add_request(str(request.request_id), prompt, parameters)
        self._waiting[request.request_id] = request


def _arguments(spec: EngineSpec, scoring: Scoring) -> dict[str, Any]:
    """Bound the logits that vLLM makes at once."""
    config = AutoConfig.from_pretrained(spec.model, revision=spec.revision)
    most = scoring.head_bytes // (config.get_text_config().vocab_size * _ENTRY_BYTES)
    texts = spec.engine_args.get("max_num_seqs", _TEXTS)
    return {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": max(most, texts),  # vLLM wants at least one token of each
        "max_num_seqs": texts,
    }


def _result(request: ScoreRequest, found: Any) -> ScoreResult:  # noqa: ANN401 - of a library
    """Check that every token came back, then keep those that are scored."""
    if found is None or found.token_ids != request.token_ids[1:]:
        error = "vLLM gave log-probabilities of other tokens than those of the text"
        return ScoreResult(request_id=request.request_id, error=error)
    logprob = np.array(found.logprobs[request.first - 1 :], dtype=np.float32)
    if not np.isfinite(logprob).all():
        error = "the model gives a token a log-probability that is not a finite number"
        return ScoreResult(request_id=request.request_id, error=error)
    return ScoreResult(request_id=request.request_id, scores=TokenScores(logprob=logprob))
