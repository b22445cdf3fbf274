"""Adapters: folders that peft's ``save_pretrained`` wrote, which are models like any other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mia_batch.errors import SettingsError
from mia_batch.models.causes import cause_of

__all__ = [
    "TOKENIZERS",
    "Adapter",
    "base_of",
    "differ_in_weights",
    "peft_missing",
    "read_adapter",
    "tokenizer_source",
    "weights_source",
]

TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")
"""Files of which a tokenizer has at least one."""

_CONFIG = "adapter_config.json"
_SAFETENSORS = "adapter_model.safetensors"
_LENGTH_BYTES = 8  # of a safetensors file's header, which names its weights
_INJECTED = ("LORA", "IA3")
_VIRTUAL = ("PREFIX_TUNING", "P_TUNING", "PROMPT_TUNING")
_BEYOND_LORA = (
    "modules_to_save",
    "use_dora",
    "lora_bias",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
    "target_parameters",
    "trainable_token_indices",
)
"""Settings of peft that make an adapter more than two matrices beside a frozen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What was tuned beside a base model that stays as it is.

    ``kind`` is peft's name of the method. ``virtual_tokens`` stand before every text, and take
    their place of the context. ``rank`` is the highest of any matrix, ``modules`` are last names of
    what has matrices, where the weights are in safetensors; ``extras`` are what a LoRA adapter has
    beyond its matrices, by peft's names.
    """

    folder: str
    kind: str
    base: str
    base_revision: str | None = None
    virtual_tokens: int = 0
    rank: int = 0
    modules: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


def base_of(model: str) -> str | None:
    """Name the base model of an adapter; None where a model is no adapter."""
    adapter = read_adapter(model)
    return None if adapter is None else adapter.base


def read_adapter(model: str) -> Adapter | None:
    """Read what a folder says of its adapter; None where a model is no adapter.

    Raises `SettingsError` if the folder is of no adapter that could be asked.
    """
    path = Path(model, _CONFIG)
    if not path.is_file():
        return None
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
        adapter = _described(model, config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        msg = (
            f"setting 'model': {_CONFIG} of {model!r} cannot be read ({cause_of(error)}); save the "
            "adapter again with save_pretrained"
        )
        raise SettingsError(msg) from error
    if (reason := _why_not_asked(adapter, config)) is not None:
        msg = f"setting 'model': the adapter {model!r} {reason}"
        raise SettingsError(msg)
    return adapter


def differ_in_weights(model: str, other: str) -> bool:
    """Whether two models are adapters of one base whose settings are the same."""
    configs = [Path(each, _CONFIG) for each in (model, other)]
    if not all(config.is_file() for config in configs):
        return False
    return configs[0].read_bytes() == configs[1].read_bytes()


def weights_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Say where a model's weights and configuration lie, and their revision: an adapter's base."""
    adapter = read_adapter(model)
    return (model, revision) if adapter is None else (adapter.base, adapter.base_revision)


def tokenizer_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Say where a model's tokenizer lies, and its revision: beside an adapter, or at its base."""
    if any(any(Path(model).glob(pattern)) for pattern in TOKENIZERS):
        return model, revision
    return weights_source(model, revision)


def peft_missing() -> str | None:
    """Say that peft is not installed."""
    if find_spec("peft") is None:
        return "adapters need the package peft (pip install 'mia-batch[finetune]')"
    return None


def _described(folder: str, config: dict[str, Any]) -> Adapter:
    if not config.get("base_model_name_or_path"):
        msg = "it names no base_model_name_or_path"
        raise ValueError(msg)
    kind = str(config["peft_type"])
    initialised = config.get("init_lora_weights")
    strange = isinstance(initialised, str) and initialised != "gaussian"
    extras = [name for name in _BEYOND_LORA if config.get(name)]
    extras += ["init_lora_weights"] if strange else []
    extras += ["bias"] if config.get("bias", "none") != "none" else []
    ranks = dict(config.get("rank_pattern") or {}).values()
    return Adapter(
        folder=folder,
        kind=kind,
        base=str(config["base_model_name_or_path"]),
        base_revision=config.get("revision"),
        virtual_tokens=int(config.get("num_virtual_tokens") or 0) if kind in _VIRTUAL else 0,
        rank=max(map(int, (config.get("r") or 0, *ranks))) if kind == "LORA" else 0,
        modules=_tuned_modules(Path(folder, _SAFETENSORS)),
        extras=tuple(extras),
    )


def _tuned_modules(weights: Path) -> tuple[str, ...]:
    """Last names of the modules that LoRA matrices stand beside; none where nobody can read it."""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            names = json.loads(file.read(min(length, weights.stat().st_size)))
    except (OSError, ValueError):  # loading says what is wrong with it
        return ()
    tuned = (name.partition(".lora_")[0] for name in names if ".lora_" in name)
    return tuple(sorted({name.rpartition(".")[2] for name in tuned}))


def _why_not_asked(adapter: Adapter, config: dict[str, Any]) -> str | None:
    """Why an adapter is none of a causal language model, or of no kind that is known here."""
    if adapter.kind not in (*_INJECTED, *_VIRTUAL):
        known = ", ".join((*_INJECTED, *_VIRTUAL))
        return f"is of kind {adapter.kind}; known are {known}"
    task = config.get("task_type")
    if task != "CAUSAL_LM" and (task is not None or adapter.virtual_tokens):
        return f"has the task type {task}; give one that was tuned for CAUSAL_LM"
    if "alora_invocation_tokens" in adapter.extras:
        return "is an activated LoRA, which tunes only part of a text; give a plain LoRA"
    return None
