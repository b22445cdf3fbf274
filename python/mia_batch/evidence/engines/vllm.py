"""vLLM, in this process, on GPUs or with its CPU build: continuations and log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import vllm
from transformers import AutoConfig
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.ends import end_token_ids
from mia_batch.evidence.engines.probe import check_probes, probes
from mia_batch.evidence.engines.requests import why_impossible
from mia_batch.evidence.engines.vllm_start import (
    check_arguments,
    describe_vllm,
    exchange_lora,
    lora_of,
    start_vllm,
    step_vllm,
)
from mia_batch.evidence.request import Answer, Continuation
from mia_batch.models.adapter import weights_source
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.evidence.request import Decoding, EngineInfo, EngineSpec, Request

__all__ = ["VllmEngine"]

_GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
_PLAIN = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
_OF_TEXTS = {"temperature": 0.0, "prompt_logprobs": 0, "flat_logprobs": True, **_PLAIN}
_TEXTS = 64
_ENTRY_BYTES = 12  # of the logits: they, their log-probabilities, and what finds ranks


class VllmEngine:
    """vLLM's own loop, fed request by request.

    All of ``engine_args`` goes to ``vllm.EngineArgs`` and wins over what is set here. Of texts
    whose log-probabilities are asked for, no prefix is ever cached, because those of cached tokens
    are not computed; they are prompts that ask for one token, which is thrown away, and are taken
    in pieces, so that vLLM makes logits for no more tokens at once than ``logits_bytes`` has room
    for.
    """

    def __init__(self, spec: EngineSpec) -> None:
        check_arguments(spec.engine_args)
        self._samples = spec.kind == "samples"
        if self._samples:
            self._parameters = _sampling_arguments(spec.decoding)
            self._engine = start_vllm(spec)
            self._parameters["stop_token_ids"] = sorted(_find_ends(self._engine))
            self._info = describe_vllm(self._engine)
        else:
            self._parameters = dict(_OF_TEXTS)
            forced = {"enable_prefix_caching": False, "logprobs_mode": "raw_logprobs"}
            arguments = spec.engine_args | forced
            self._engine = start_vllm(replace(spec, engine_args=arguments), _in_pieces(spec))
            described = describe_vllm(self._engine)
            # The token that vLLM must draw takes a place of the context.
            self._info = replace(described, max_model_len=described.max_model_len - 1)
        self._parameters |= _PLAIN
        self._lora = lora_of(spec.model)
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._waiting: dict[int, Request] = {}
        self._refused: list[Answer] = []
        self._check(spec.model, spec.revision)

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def turn_to(self, model: str) -> None:
        """Answer as another adapter, which differs from this one in its weights alone."""
        self._lora = exchange_lora(self._engine, self._lora, model)
        self._check(model)

    def submit(self, request: Request) -> None:
        """Queue a request; one that cannot be answered comes back with its reason."""
        reason = why_impossible(
            request, max_model_len=self._info.max_model_len, vocab_size=self._vocab_size
        )
        if request.noise:
            reason = "engine vllm cannot compute noise on embeddings"
        try:
            if reason is None:
                self._add(request)
        except (ValueError, TypeError, vllm.exceptions.VLLMClientError) as error:
            reason = cause_of(error)
        if reason is not None:
            self._refused.append(Answer(request_id=request.request_id, error=reason))

    def step(self) -> list[Answer]:
        """Decode one token of every sequence that runs, or read one batch of texts."""
        complete, self._refused = self._refused, []
        if self._waiting:
            for output in step_vllm(self._engine):
                request = self._waiting.pop(int(output.request_id))
                of_text = _answers if request.question else _logprobs
                read = _continuations if self._samples else of_text
                complete.append(read(request, output))
        return complete

    def close(self) -> None:
        """Free the model."""
        self._engine.engine_core.shutdown()

    def _check(self, model: str, revision: str | None = None) -> None:
        """Check what has been started, see `check_probes`."""
        parameters = vllm.SamplingParams(**_OF_TEXTS, max_tokens=1)
        texts = probes(self._vocab_size, self._info.max_model_len - 1)
        for number, text in enumerate(map(tokens_input, texts)):
            self._engine.add_request(str(number), text, parameters, lora_request=self._lora)
        said: dict[str, Any] = {}
        while len(said) < len(texts):
            said |= {each.request_id: each.prompt_logprobs for each in step_vllm(self._engine)}
        found = [np.array(said[number].logprobs, dtype=np.float32) for number in sorted(said)]
        check_probes(model, revision, self._info.dtype, found)

    def _add(self, request: Request) -> None:
        own: dict[str, Any] = {"max_tokens": 1}
        token_ids = [*(request.context_ids or ()), *(request.text_ids or ())]
        if self._samples:
            own = {"n": request.n, "seed": request.seed, "max_tokens": request.max_tokens}
            own |= _GREEDY if request.greedy else {}
        elif request.question:
            own |= {"prompt_logprobs": None, "logprob_token_ids": request.text_ids}
            token_ids = request.context_ids or []
        parameters = vllm.SamplingParams(**(self._parameters | own))
        prompt = tokens_input(token_ids)
        number = str(request.request_id)
        self._engine.add_request(number, prompt, parameters, lora_request=self._lora)
        self._waiting[request.request_id] = request


def _sampling_arguments(decoding: Decoding) -> dict[str, Any]:
    """Everything that decides how tokens are drawn, so that no default of the model remains."""
    arguments: dict[str, Any] = {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
    }
    try:
        accepted = vllm.SamplingParams(**arguments)
    except (ValueError, vllm.exceptions.VLLMClientError) as error:
        msg = f"vLLM cannot draw tokens like this ({cause_of(error)}); change the setting"
        raise SettingsError(msg) from error
    if accepted.temperature != decoding.temperature:
        msg = (
            f"setting 'temperature': vLLM would raise {decoding.temperature} to "
            f"{accepted.temperature}; set at least that"
        )
        raise SettingsError(msg)
    return arguments


def _find_ends(engine: vllm.LLMEngine) -> frozenset[int]:
    model = engine.model_config
    return end_token_ids(
        engine.renderer.get_eos_token_id(),
        getattr(model.hf_text_config, "eos_token_id", None),
        model.try_get_generation_config().get("eos_token_id"),
    )


def _in_pieces(spec: EngineSpec) -> dict[str, Any]:
    """Bound the logits that vLLM makes at once."""
    model, revision = weights_source(spec.model, spec.revision)
    config = AutoConfig.from_pretrained(model, revision=revision)
    most = spec.logits_bytes // (config.get_text_config().vocab_size * _ENTRY_BYTES)
    texts = spec.engine_args.get("max_num_seqs", _TEXTS)
    return {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": max(most, texts),  # vLLM wants at least one token of each
        "max_num_seqs": texts,
    }


def _continuations(request: Request, output: vllm.RequestOutput) -> Answer:
    given = []
    for completion in output.outputs:
        if completion.finish_reason not in ("stop", "length"):
            error = f"vLLM ended the request with {completion.finish_reason!r}"
            return Answer(request_id=request.request_id, error=error)
        given.append(
            Continuation(
                token_ids=list(completion.token_ids), finish_reason=completion.finish_reason
            )
        )
    return Answer(request_id=request.request_id, continuations=given)


def _answers(request: Request, output: vllm.RequestOutput) -> Answer:
    """Take what the listing of the one token that was drawn says of each answer."""
    listed: Any = output.outputs[0].logprobs
    found = [listed[0][token].logprob for token in request.text_ids or ()]
    return _finite(request, np.array(found, dtype=np.float32))


def _logprobs(request: Request, output: vllm.RequestOutput) -> Answer:
    """Check that every token came back, then keep those of the text."""
    before = request.context_ids or []
    found: Any = output.prompt_logprobs
    if found is None or found.token_ids != [*before, *(request.text_ids or ())][1:]:
        error = "vLLM gave log-probabilities of other tokens than those of the text"
        return Answer(request_id=request.request_id, error=error)
    return _finite(request, np.array(found.logprobs[len(before) - 1 :], dtype=np.float32))


def _finite(request: Request, logprob: NDArray[np.float32]) -> Answer:
    if not np.isfinite(logprob).all():
        error = "the model gives a token a log-probability that is not a finite number"
        return Answer(request_id=request.request_id, error=error)
    return Answer(request_id=request.request_id, tokens={"logprob": logprob})
