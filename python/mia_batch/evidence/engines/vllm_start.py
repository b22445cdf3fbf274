"""Starting vLLM, one step of it, and its failures."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, get_args

import torch
import vllm
from vllm.config.lora import MaxLoRARanks
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core_client import SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.machine import available_memory
from mia_batch.evidence.request import EngineInfo
from mia_batch.models.adapter import read_adapter, tokenizer_source, weights_source
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.v1.engine.core_client import EngineCoreClient

    from mia_batch.evidence.request import EngineSpec

__all__ = [
    "check_arguments",
    "describe_vllm",
    "exchange_lora",
    "lora_of",
    "start_vllm",
    "step_vllm",
]

_SHARE_OF_MEMORY = 0.4  # for the key-value cache on a CPU
_USUAL_TOKENS = 1024  # of a sequence; longer ones wait for room in the cache
_SECONDS_BETWEEN_LOOKS = 1.0
_WAY_OUT = (
    "set a smaller max_model_len, max_num_seqs or gpu_memory_utilization through --engine-arg, a "
    "smaller dtype, or a larger tensor_parallel_size"
)


def check_arguments(arguments: dict[str, Any]) -> None:
    """Check the names of arguments that go to ``vllm.EngineArgs``."""
    known = [field.name for field in fields(vllm.EngineArgs)]
    for key in arguments:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            way_out = f"did you mean {near[0]!r}?" if near else "see vllm.EngineArgs for its names"
            msg = f"setting 'engine_arg': vLLM has no argument {key!r}; {way_out}"
            raise SettingsError(msg)


def start_vllm(spec: EngineSpec, arguments: Mapping[str, Any] | None = None) -> vllm.LLMEngine:
    """Start vLLM in this process; ``engine_args`` win over the further ``arguments``.

    Raises `EngineError` if the model cannot be loaded.
    """
    try:
        config = _configure(spec, arguments or {})
        engine = vllm.LLMEngine.from_vllm_config(config, disable_log_stats=True)
        if (lora := lora_of(spec.model)) is not None:
            engine.add_lora(lora)  # not only when the first request wants it
    except Exception as error:
        raise _start_error(spec, error) from error
    _wake_on_death(engine.engine_core)
    return engine


def lora_of(model: str, number: int = 1) -> LoRARequest | None:
    """Name the adapter that every request of a model wants; None where a model is no adapter."""
    adapter = read_adapter(model)
    return None if adapter is None else LoRARequest(f"adapter {number}", number, adapter.folder)


def exchange_lora(engine: vllm.LLMEngine, before: LoRARequest | None, model: str) -> LoRARequest:
    """Load an adapter in the place of another; its number is new, by which vLLM knows it.

    Raises `EngineError` if it cannot be loaded.
    """
    after = lora_of(model, 1 if before is None else before.lora_int_id + 1)
    if before is None or after is None:
        msg = f"{model!r} is no adapter, which alone can take the place of another"
        raise EngineError(msg)
    try:
        engine.remove_lora(before.lora_int_id)
        engine.add_lora(after)
    except Exception as error:
        msg = f"vLLM cannot load {model!r} ({cause_of(error)})"
        raise EngineError(msg) from error
    return after


def describe_vllm(engine: vllm.LLMEngine) -> EngineInfo:
    """Say what has been started."""
    config: VllmConfig = engine.vllm_config
    return EngineInfo(
        engine="vllm",
        version=vllm.__version__,
        device=current_platform.get_device_name(),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        max_model_len=config.model_config.max_model_len,
        max_sequences=config.scheduler_config.max_num_seqs,
    )


def step_vllm(engine: vllm.LLMEngine) -> list[vllm.RequestOutput]:
    """Let vLLM work for one step; raises `EngineError` if it cannot go on."""
    try:
        return list(engine.step())
    except Exception as error:
        raise _step_error(error) from error


def _configure(spec: EngineSpec, given: Mapping[str, Any]) -> VllmConfig:
    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {
        **_model_arguments(spec),
        "dtype": "float32" if on_cpu and spec.dtype == "auto" else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "generation_config": "vllm",  # not the model's own
        "disable_log_stats": True,
    }
    if on_cpu:
        # CPU generators have no offset, so a seeded request prefilled in pieces ends the engine.
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
    engine_args = vllm.EngineArgs(**(arguments | dict(given) | spec.engine_args))
    config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = _cache_bytes(config)
    return config


def _model_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Say which weights to load: of an adapter, those of its base, and room for its own."""
    model, revision = weights_source(spec.model, spec.revision)
    tokenizer, tokenizer_revision = tokenizer_source(spec.model, spec.revision)
    arguments: dict[str, Any] = {
        "model": model,
        "revision": revision,
        "tokenizer": tokenizer,
        "tokenizer_revision": tokenizer_revision,
    }
    if (adapter := read_adapter(spec.model)) is None:
        return arguments
    return arguments | {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": min(each for each in get_args(MaxLoRARanks) if each >= adapter.rank),
        # Else the head would be wrapped too, whose log-probabilities of a batch of texts fail.
        "lora_target_modules": list(adapter.modules) or None,
    }


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


def _start_error(spec: EngineSpec, error: Exception) -> EngineError:
    if _is_out_of_memory(error):
        msg = f"{spec.model!r} does not fit this machine's memory ({cause_of(error)}); {_WAY_OUT}"
        return EngineError(msg)
    if "root cause above" in str(error):  # said by vLLM's own processes, in the log
        msg = f"vLLM's processes cannot start with {spec.model!r}; if memory is short, {_WAY_OUT}"
        return EngineError(msg)
    msg = f"vLLM cannot start with {spec.model!r} ({cause_of(error)})"
    return EngineError(msg if lora_of(spec.model) is None else f"{msg}; take engine transformers")


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
