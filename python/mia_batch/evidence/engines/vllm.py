"""vLLM: its start, its failures, and the engine that answers with it."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from threading import Thread
from time import sleep
from typing import Any, get_args

import numpy as np
import torch
import vllm
from transformers import AutoConfig
from vllm.config import VllmConfig
from vllm.config.lora import MaxLoRARanks
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.engines import registry
from mia_batch.evidence.repetition import LoopDetector
from mia_batch.evidence.request import (
    Answer,
    Decoding,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.models.weights import read_adapter, tokenizer_source, weights_source

# Older versions (0.26) raise a ValueError of their own.
_REFUSALS = (
    ValueError,
    TypeError,
    getattr(vllm.exceptions, "VLLMClientError", ValueError),
)
_SHARE_OF_MEMORY = 0.4  # for the key-value cache on a CPU
_USUAL_TOKENS = 1024  # of a sequence; longer ones wait for room in the cache
_SECONDS_BETWEEN_LOOKS = 1.0
_WAY_OUT = (
    "set a smaller max_model_len, max_num_seqs or gpu_memory_utilization through"
    " --engine-arg, a smaller dtype, or a larger tensor_parallel_size"
)


def _start_vllm(spec: EngineSpec, arguments: Mapping[str, Any]) -> vllm.LLMEngine:
    """Start vLLM in this process; ``engine_args`` win over the further ``arguments``."""
    _check_argument_names(spec.engine_args)
    lora = _build_lora_request(spec.model)
    try:
        config = _configure(spec, arguments)
        engine = vllm.LLMEngine.from_vllm_config(config, disable_log_stats=True)
        if lora is not None:
            engine.add_lora(lora)  # not only when the first request wants it
    except Exception as error:
        model = repr(spec.model)
        cause = describe_error(error)
        sentence = f"vLLM cannot start with {model} ({cause})"
        if _is_out_of_memory(error):
            sentence = (
                f"{model} does not fit this machine's memory ({cause}); {_WAY_OUT}"
            )
        elif "root cause above" in str(error):
            # Said by vLLM's own processes, in the log
            sentence = (
                f"vLLM's processes cannot start with {model}; if memory is short,"
                f" {_WAY_OUT}"
            )
        elif lora is not None:
            sentence += "; take engine transformers"
        raise EngineError(sentence) from error
    core = engine.engine_core

    def wake_on_death() -> None:
        """Let ``step`` fail when the core's process is killed; alone it would wait for ever."""
        while not core.resources.engine_dead:
            sleep(_SECONDS_BETWEEN_LOOKS)
        core.outputs_queue.put_nowait(EngineDeadError())

    if isinstance(core, SyncMPClient):
        Thread(target=wake_on_death, daemon=True).start()
    return engine


def _check_argument_names(arguments: Mapping[str, Any]) -> None:
    names = [argument.name for argument in fields(vllm.EngineArgs)]
    for key in arguments:
        if key in names:
            continue
        way_out = "see vllm.EngineArgs for its names"
        similar = get_close_matches(key, names, n=1)
        if similar:
            way_out = f"did you mean {similar[0]!r}?"
        raise SettingsError(f"engine_arg: vLLM has no argument {key!r}; {way_out}")


def _build_lora_request(model: str, number: int = 1) -> LoRARequest | None:
    """Build the adapter that every request of a model wants; None: the model is no adapter."""
    adapter = read_adapter(model)
    if adapter is None:
        return None
    return LoRARequest(f"adapter {number}", number, adapter.folder)


def _configure(spec: EngineSpec, further: Mapping[str, Any]) -> VllmConfig:
    """Build vLLM's configuration; ``further`` arguments and ``engine_args`` win."""
    on_cpu = current_platform.is_cpu()
    model, revision = weights_source(spec.model, spec.revision)
    tokenizer, tokenizer_revision = tokenizer_source(spec.model, spec.revision)
    arguments: dict[str, Any] = {
        "model": model,
        "revision": revision,
        "tokenizer": tokenizer,
        "tokenizer_revision": tokenizer_revision,
        "dtype": "float32" if on_cpu and spec.dtype == "auto" else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "generation_config": "vllm",  # not the model's own
        "disable_log_stats": True,
    }
    adapter = read_adapter(spec.model)
    if adapter is not None:  # room for the weights of its own
        ranks = [rank for rank in get_args(MaxLoRARanks) if rank >= adapter.rank]
        arguments |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": min(ranks),
            # Else the head would be wrapped too, whose log-probabilities of a batch of
            # texts fail.
            "lora_target_modules": list(adapter.modules) or None,
        }
    if on_cpu:
        # CPU generators have no offset, so a seeded request prefilled in pieces ends
        # the engine. Cached prefixes are shared by whole blocks, of 128 tokens if left
        # to vLLM.
        arguments |= {
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "block_size": 32,
        }
    engine_args = vllm.EngineArgs(**(arguments | dict(further) | spec.engine_args))
    config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = _cache_bytes(config)
    return config


def _cache_bytes(config: VllmConfig) -> int:
    """Compute room for all sequences that run at once, within a share of memory."""
    # Left to itself, vLLM would take nearly all of it.
    model = config.model_config
    parallel = config.parallel_config
    values = model.get_num_layers(parallel) * model.get_num_kv_heads(parallel)
    token_bytes = 2 * values * model.get_head_size() * model.dtype.itemsize
    block = config.cache_config.block_size
    usual_length = min(model.max_model_len, _USUAL_TOKENS) + block
    usual = config.scheduler_config.max_num_seqs * usual_length
    longest = model.max_model_len + 2 * block
    needed = int(max(usual, longest) * token_bytes)
    return min(needed, int(registry.available_memory() * _SHARE_OF_MEMORY))


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(
        sign in text for sign in ("out of memory", "available memory", "kv cache")
    )


_GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "output_kind": RequestOutputKind.DELTA,  # so that a loop can be seen, and ended
}
_PLAIN: dict[str, Any] = {
    "detokenize": False,
    "output_kind": RequestOutputKind.FINAL_ONLY,
}
if hasattr(vllm.SamplingParams, "skip_clone"):  # older vLLM always copies
    # A deep copy takes as long as all else that takes a request in
    _PLAIN["skip_clone"] = True
_TEXT_ARGUMENTS = {
    "temperature": 0.0,
    "prompt_logprobs": 0,
    "flat_logprobs": True,
    **_PLAIN,
}
_TOKENS_PER_PART = 16  # tokens of a continuation
_IN_PARTS: dict[str, Any] = {}
# Older vLLM tells every token, or the last
if hasattr(vllm.SamplingParams, "stream_interval"):
    _IN_PARTS = {
        "output_kind": RequestOutputKind.DELTA,
        "stream_interval": _TOKENS_PER_PART,
    }
_TEXTS = 64
# Of a GPU; logits take half of the rest
_USED_SHARE = vllm.EngineArgs.gpu_memory_utilization
_ENTRY_BYTES = 12  # of the logits: they, their log-probabilities, and what finds ranks


@dataclass(slots=True)
class _Stream:
    """A continuation as far as it has been decoded."""

    loop: LoopDetector | None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class VllmEngine:
    """vLLM's own loop, fed request by request."""

    # All of ``engine_args`` goes to ``vllm.EngineArgs`` and wins over what is set here.
    # Of texts whose log-probabilities are asked for, no prefix is ever cached, because
    # those of cached tokens are not computed; they are prompts that ask for one token,
    # which is thrown away, and are taken in pieces, so that vLLM makes logits for no
    # more tokens at once than ``logits_bytes`` has room for.

    def __init__(self, spec: EngineSpec) -> None:
        self._samples = spec.kind == "samples"
        if self._samples:
            self._parameters = _sampling_arguments(spec.decoding)
            self._engine = _start_vllm(spec, {})
            model = self._engine.model_config
            ends = registry.end_token_ids(
                self._engine.renderer.get_eos_token_id(),
                getattr(model.hf_text_config, "eos_token_id", None),
                model.try_get_generation_config().get("eos_token_id"),
            )
            self._parameters["stop_token_ids"] = sorted(ends)
            self._ends = ends
        else:
            self._parameters = dict(_TEXT_ARGUMENTS)
            forced = {"enable_prefix_caching": False, "logprobs_mode": "raw_logprobs"}
            text_spec = replace(spec, engine_args=spec.engine_args | forced)
            self._engine = _start_vllm(text_spec, _in_pieces(spec))
        self._parameters |= _PLAIN | (_IN_PARTS if self._samples else {})
        config: VllmConfig = self._engine.vllm_config
        n_drawn = (
            0 if self._samples else 1
        )  # the token that vLLM must draw takes a place
        self.info = EngineInfo(
            engine="vllm",
            version=vllm.__version__,
            device=current_platform.get_device_name(),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len - n_drawn,
            max_sequences=config.scheduler_config.max_num_seqs,
        )
        # Of many requests the same, which take long to make.
        self._build_parameters = cache(
            lambda **changes: vllm.SamplingParams(**(self._parameters | changes))
        )
        self._lora = _build_lora_request(spec.model)
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._waiting: dict[int, Request] = {}
        self._streams: dict[int, list[_Stream]] = {}  # by the number of a request
        self.tell: Callable[[int], None] = lambda _: None
        self._refused: list[Answer] = []
        self._check(spec.model, spec.revision)

    def turn_to(self, model: str) -> None:
        """Load an adapter in the place of another; its number is new, by which vLLM knows it."""
        present = self._lora
        number = 1 if present is None else present.lora_int_id + 1
        lora = _build_lora_request(model, number)
        if present is None or lora is None:
            raise EngineError(
                f"{model!r} is no adapter, which alone can take the place of another"
            )
        try:
            self._engine.remove_lora(present.lora_int_id)
            self._engine.add_lora(lora)
        except Exception as error:
            raise EngineError(
                f"vLLM cannot load {model!r} ({describe_error(error)})"
            ) from error
        self._lora = lora
        self._check(model)

    def submit(self, request: Request) -> None:
        reason = registry.why_impossible(
            request, self.info.max_model_len, self._vocab_size
        )
        if request.noise:
            reason = "engine vllm cannot compute noise on embeddings"
        try:
            if reason is None:
                self._add(request)
        except _REFUSALS as error:
            reason = describe_error(error)
        if reason is not None:
            self._refused.append(request.failed(reason))

    def step(self) -> list[Answer]:
        """Decode one token of every sequence that runs, or read one batch of texts."""
        complete = self._refused
        self._refused = []
        read_output = self._read_samples if self._samples else self._read_logprobs
        for output in self._outputs() if self._waiting else ():
            request = self._waiting[int(output.request_id)]
            answer = read_output(request, output)
            if answer is not None:
                del self._waiting[request.request_id]
                complete.append(answer)
        return complete

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def _outputs(self) -> list[vllm.RequestOutput]:
        """Let vLLM work for one step; raises `EngineError` if it cannot go on."""
        try:
            return list(self._engine.step())
        except Exception as error:
            msg = f"vLLM stopped ({describe_error(error)})"
            if _is_out_of_memory(error):
                msg = f"vLLM ran out of memory ({describe_error(error)}); {_WAY_OUT}"
            elif isinstance(error, EngineDeadError):
                msg = f"a process of vLLM ended; if memory is short, {_WAY_OUT}"
            raise EngineError(msg) from error

    def _read_samples(
        self, request: Request, output: vllm.RequestOutput
    ) -> Answer | None:
        """Add what was decoded since the last time; return None while more is to come."""
        # Of several continuations of one prompt vLLM cannot end one alone.
        number = request.request_id
        in_loop = False
        if number not in self._streams:
            self._streams[number] = [
                _Stream(registry.build_loop_detector(request)) for _ in range(request.n)
            ]
        streams = self._streams[number]
        for part in output.outputs:
            stream = streams[part.index]
            stream.token_ids += part.token_ids
            stream.finish_reason = part.finish_reason
            self.tell(len(part.token_ids))
            if stream.loop and request.n == 1:
                in_loop = stream.loop.end(part.token_ids) is not None
        if not output.finished:
            if not in_loop:
                return None
            self._engine.abort_request([output.request_id])
        del self._streams[number]
        continuations = []
        for stream in streams:
            if stream.finish_reason not in ("stop", "length", None):
                return request.failed(
                    f"vLLM ended the request with {stream.finish_reason!r}"
                )
            continuation = registry.cut_at_end(
                stream.token_ids,
                self._ends,
                request.max_tokens,
                registry.build_loop_detector(request),
            )
            continuations.append(continuation)
        return Answer(request_id=number, continuations=continuations)

    def _read_logprobs(self, request: Request, output: vllm.RequestOutput) -> Answer:
        """Check that all came back, then keep what was asked for."""
        context = request.context_ids or []
        text = request.text_ids or []
        if request.question:
            next_token: Any = output.outputs[0].logprobs
            values = [next_token[0][token].logprob for token in text]
        else:
            flat: Any = output.prompt_logprobs
            if flat is None or flat.token_ids != [*context, *text][1:]:
                return request.failed(
                    "vLLM gave log-probabilities of other tokens than those of the text"
                )
            values = flat.logprobs[len(context) - 1 :]
        logprob = np.array(values, dtype=np.float32)
        return registry.text_answer(request, {"logprob": logprob})

    def _check(self, model: str, revision: str | None = None) -> None:
        """Check what has been loaded, see `check_health`."""
        parameters = vllm.SamplingParams(**_TEXT_ARGUMENTS, max_tokens=1)
        room = self.info.max_model_len - 1
        texts = registry.health_check_texts(self._vocab_size, room)
        for number, text in enumerate(texts):
            self._engine.add_request(
                str(number),
                tokens_input(text),
                parameters,
                lora_request=self._lora,
            )
        outputs: dict[str, Any] = {}
        while len(outputs) < len(texts):
            for output in self._outputs():
                outputs[output.request_id] = output.prompt_logprobs
        logprobs = [
            np.array(outputs[number].logprobs, dtype=np.float32)
            for number in sorted(outputs)
        ]
        registry.check_health(model, revision, self.info.dtype, logprobs)

    def _add(self, request: Request) -> None:
        text = request.text_ids or ()
        token_ids = [*(request.context_ids or ()), *text]
        if self._samples or not request.question:
            greedy: dict[str, Any] = _GREEDY if request.greedy else {}
            parameters = copy(
                self._build_parameters(
                    n=request.n,
                    max_tokens=request.max_tokens,
                    **greedy,
                )
            )
            parameters.seed = request.seed
            parameters.logit_bias = dict([request.nudge]) if request.nudge else None
        else:
            changes = {"prompt_logprobs": None, "logprob_token_ids": request.text_ids}
            arguments = self._parameters | changes
            parameters = vllm.SamplingParams(**arguments, max_tokens=1)
            token_ids = request.context_ids or []
        self._engine.add_request(
            str(request.request_id),
            tokens_input(token_ids),
            parameters,
            lora_request=self._lora,
        )
        self._waiting[request.request_id] = request


def _sampling_arguments(decoding: Decoding) -> dict[str, Any]:
    """Build all arguments of the draw of tokens, so that no default of the model remains."""
    arguments = asdict(decoding)
    try:
        accepted = vllm.SamplingParams(**arguments)
    except _REFUSALS as error:
        raise SettingsError(
            f"vLLM cannot draw tokens like this ({describe_error(error)}); change the setting"
        ) from error
    if accepted.temperature != decoding.temperature:
        raise SettingsError(
            f"temperature: vLLM would raise {decoding.temperature} to "
            f"{accepted.temperature}; set at least that"
        )
    return arguments


def _in_pieces(spec: EngineSpec) -> dict[str, Any]:
    """Build the arguments by which vLLM makes no more logits at once than have room."""
    model, revision = weights_source(spec.model, spec.revision)
    config = AutoConfig.from_pretrained(model, revision=revision)
    room = None
    if not current_platform.is_cpu():
        used_share = spec.engine_args.get("gpu_memory_utilization", _USED_SHARE)
        memory = current_platform.get_device_total_memory()
        room = int((1 - used_share) / 2 * memory)
    entry_bytes = config.get_text_config().vocab_size * _ENTRY_BYTES
    n_tokens = registry.logits_bytes(spec, room) // entry_bytes
    n_texts = spec.engine_args.get("max_num_seqs", _TEXTS)
    return {
        "enable_chunked_prefill": True,
        # vLLM wants at least one token of each
        "max_num_batched_tokens": max(n_tokens, n_texts),
        "max_num_seqs": n_texts,
    }
