"""Sampling with vLLM, in this process, on GPUs or with its CPU build."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.causes import cause_of
from mia_batch.evidence.engine import EngineInfo, SampleOutput, SampleResult
from mia_batch.evidence.engines.ends import end_token_ids
from mia_batch.evidence.engines.memory import available_memory
from mia_batch.evidence.engines.requests import why_impossible

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.core_client import EngineCoreClient

    from mia_batch.evidence.engine import Decoding, EngineSpec, SampleRequest

__all__ = ["VllmEngine"]

_SHARE_OF_MEMORY = 0.4  # for the key-value cache on a CPU
_USUAL_TOKENS = 1024  # of a sequence; longer ones wait for room in the cache
_SECONDS_BETWEEN_LOOKS = 1.0
_WAY_OUT = (
    "set a smaller max_model_len, max_num_seqs or gpu_memory_utilization through --engine-arg, a "
    "smaller dtype, or a larger tensor_parallel_size"
)


class VllmEngine:
    """vLLM's own loop, fed request by request.

    All of ``engine_args`` goes to ``vllm.EngineArgs`` and wins over what is set here.

    Parameters
    ----------
    spec
        What to start.

    Raises
    ------
    SettingsError
        If a setting is unknown to vLLM or out of its range.
    EngineError
        If the model cannot be loaded.
    """

    def __init__(self, spec: EngineSpec) -> None:
        _check_arguments(spec.engine_args)
        self._sampling = _sampling_arguments(spec.decoding)
        try:
            config = _configure(spec)
            self._engine = vllm.LLMEngine.from_vllm_config(config, disable_log_stats=True)
        except Exception as error:
            raise _start_error(spec, error) from error
        self._sampling["stop_token_ids"] = sorted(_find_ends(self._engine))
        _wake_on_death(self._engine.engine_core)
        self._vocab_size = config.model_config.get_vocab_size()
        self._info = _describe(config)
        self._refused: list[SampleResult] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def submit(self, request: SampleRequest) -> None:
        """Queue a request.

        Parameters
        ----------
        request
            The request; one that cannot be answered comes back with its reason.
        """
        reason = why_impossible(
            request, max_model_len=self._info.max_model_len, vocab_size=self._vocab_size
        )
        try:
            if reason is None:
                self._add(request)
        except (ValueError, TypeError, vllm.exceptions.VLLMClientError) as error:
            reason = cause_of(error)
        if reason is not None:
            refused = SampleResult(request_id=request.request_id, outputs=[], error=reason)
            self._refused.append(refused)

    def step(self) -> list[SampleResult]:
        """Decode one token of every sequence that runs.

        Returns
        -------
        list of SampleResult
            Requests that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine cannot go on.
        """
        complete, self._refused = self._refused, []
        if self._engine.has_unfinished_requests():
            try:
                finished = self._engine.step()
            except Exception as error:
                raise _step_error(error) from error
            complete.extend(_result(output) for output in finished)
        return complete

    def close(self) -> None:
        """Free the model."""
        self._engine.engine_core.shutdown()

    def _add(self, request: SampleRequest) -> None:
        parameters = vllm.SamplingParams(
            **self._sampling, n=request.n, seed=request.seed, max_tokens=request.max_tokens
        )
        prompt = tokens_input(request.prompt_token_ids)
        self._engine.add_request(str(request.request_id), prompt, parameters)


def _check_arguments(arguments: dict[str, Any]) -> None:
    known = [field.name for field in fields(vllm.EngineArgs)]
    for key in arguments:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            way_out = f"did you mean {near[0]!r}?" if near else "see vllm.EngineArgs for its names"
            msg = f"setting 'engine_arg': vLLM has no argument {key!r}; {way_out}"
            raise SettingsError(msg)


def _sampling_arguments(decoding: Decoding) -> dict[str, Any]:
    """Everything that decides how tokens are drawn, so that no default of the model remains."""
    arguments: dict[str, Any] = {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
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


def _configure(spec: EngineSpec) -> VllmConfig:
    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {
        "model": spec.model,
        "revision": spec.revision,
        "tokenizer_revision": spec.revision,
        "dtype": "float32" if on_cpu and spec.dtype == "auto" else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "generation_config": "vllm",  # not the model's own
        "disable_log_stats": True,
    }
    if on_cpu:
        # CPU generators have no offset, so a seeded request prefilled in pieces ends the engine.
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
    engine_args = vllm.EngineArgs(**(arguments | spec.engine_args))
    config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = _cache_bytes(config)
    return config


def _cache_bytes(config: VllmConfig) -> int:
    """Room for as many sequences of usual length as run at once, within a share of memory.

    Left to itself, vLLM would take nearly all of it.
    """
    model, parallel = config.model_config, config.parallel_config
    values = model.get_num_layers(parallel) * model.get_num_kv_heads(parallel)
    token_bytes = 2 * values * model.get_head_size() * model.dtype.itemsize
    block = config.cache_config.block_size
    tokens = min(model.max_model_len, _USUAL_TOKENS) + block
    usual = config.scheduler_config.max_num_seqs * tokens
    longest = model.max_model_len + 2 * block
    wanted = int(max(usual, longest) * token_bytes)
    return min(wanted, int(available_memory() * _SHARE_OF_MEMORY))


def _wake_on_death(core: EngineCoreClient) -> None:
    """Let ``step`` fail when vLLM's own core process is killed; alone it would wait for ever."""
    if not isinstance(core, SyncMPClient):
        return

    def watch() -> None:
        while not core.resources.engine_dead:
            sleep(_SECONDS_BETWEEN_LOOKS)
        core.outputs_queue.put_nowait(EngineDeadError())

    Thread(target=watch, daemon=True).start()


def _find_ends(engine: vllm.LLMEngine) -> frozenset[int]:
    model = engine.model_config
    return end_token_ids(
        engine.renderer.get_eos_token_id(),
        getattr(model.hf_text_config, "eos_token_id", None),
        model.try_get_generation_config().get("eos_token_id"),
    )


def _describe(config: VllmConfig) -> EngineInfo:
    return EngineInfo(
        engine="vllm",
        version=vllm.__version__,
        device=current_platform.get_device_name(),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        max_model_len=config.model_config.max_model_len,
        max_sequences=config.scheduler_config.max_num_seqs,
    )


def _result(output: vllm.RequestOutput) -> SampleResult:
    request_id = int(output.request_id)
    outputs = []
    for completion in output.outputs:
        if completion.finish_reason not in ("stop", "length"):
            error = f"vLLM ended the request with {completion.finish_reason!r}"
            return SampleResult(request_id=request_id, outputs=[], error=error)
        outputs.append(
            SampleOutput(
                token_ids=list(completion.token_ids), finish_reason=completion.finish_reason
            )
        )
    return SampleResult(request_id=request_id, outputs=outputs)


def _start_error(spec: EngineSpec, error: Exception) -> EngineError:
    if _is_out_of_memory(error):
        msg = f"{spec.model!r} does not fit this machine's memory ({cause_of(error)}); {_WAY_OUT}"
        return EngineError(msg)
    if "root cause above" in str(error):  # said by vLLM's own processes, in the log
        msg = f"vLLM's processes cannot start with {spec.model!r}; if memory is short, {_WAY_OUT}"
        return EngineError(msg)
    return EngineError(f"vLLM cannot start with {spec.model!r} ({cause_of(error)})")


def _step_error(error: Exception) -> EngineError:
    if _is_out_of_memory(error):
        return EngineError(f"vLLM ran out of memory ({cause_of(error)}); {_WAY_OUT}")
    if isinstance(error, EngineDeadError):
        return EngineError(f"a process of vLLM ended; if memory is short, {_WAY_OUT}")
    return EngineError(f"vLLM stopped ({cause_of(error)})")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(sign in text for sign in ("out of memory", "available memory", "kv cache"))
