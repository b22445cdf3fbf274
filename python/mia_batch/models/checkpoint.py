"""Whether a model is there at all, found out before any engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError
from mia_batch.models.adapter import TOKENIZERS, read_adapter
from mia_batch.models.causes import cause_of
from mia_batch.models.weights import check_adapter, check_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia_batch.models.adapter import Adapter

__all__ = ["check_model"]

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.gguf")
_SECONDS_FOR_HUB = 20.0
_PARTS = {"config.json": ("config.json",), "weights": _WEIGHTS, "tokenizer": TOKENIZERS}
_PARTS_OF_ADAPTER = {"adapter's weights": ("adapter_model.safetensors", "adapter_model.bin")}


def check_model(model: str, revision: str | None = None, asked: str = "logprobs") -> None:
    """Check that a model can be found and is a whole checkpoint, or an adapter that fits one.

    No weights are loaded; for what is ``asked`` see `check_weights`. Raises `SettingsError` if a
    part of the model is missing or of another model, or the name cannot be resolved.
    """
    adapter = read_adapter(model)
    if adapter is None:
        _check_checkpoint(model, revision, _PARTS, asked)
    else:
        _check_folder(Path(model), _PARTS_OF_ADAPTER)
        _check_base(adapter, asked)
        check_adapter(adapter)


def _check_base(adapter: Adapter, asked: str) -> None:
    """Check an adapter's base, which needs a tokenizer where the adapter has none."""
    own = any(any(Path(adapter.folder).glob(pattern)) for pattern in TOKENIZERS)
    parts = {name: files for name, files in _PARTS.items() if not (own and name == "tokenizer")}
    named = f"setting 'model': {adapter.folder!r} is an adapter of {adapter.base!r}, which"
    if read_adapter(adapter.base) is not None:
        msg = f"{named} is an adapter itself; merge one of them into its own base"
        raise SettingsError(msg)
    try:
        _check_checkpoint(adapter.base, adapter.base_revision, parts, asked)
    except SettingsError as error:
        cause = str(error).removeprefix("setting 'model': ").rpartition(";")[0]
        msg = (
            f"{named} cannot be used: {cause}; set base_model_name_or_path in its "
            "adapter_config.json to a checkpoint folder or a hub name"
        )
        raise SettingsError(msg) from error


def _check_checkpoint(
    model: str, revision: str | None, parts: Mapping[str, Sequence[str]], asked: str
) -> None:
    path = Path(model)
    if path.is_dir():
        _check_folder(path, parts)
    elif path.exists() or _is_path(model):
        what = "is a file" if path.exists() else "does not exist"
        msg = f"setting 'model': {model!r} {what}; give a checkpoint folder or a hub name"
        raise SettingsError(msg)
    else:
        _check_hub(model, revision)
    _check_config(model, revision)
    check_weights(model, revision, asked)


def _is_path(model: str) -> bool:
    return model.startswith(("/", ".", "~")) or model.count("/") > 1


def _check_folder(folder: Path, parts: Mapping[str, Sequence[str]]) -> None:
    for part, patterns in parts.items():
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            msg = (
                f"setting 'model': the folder {str(folder)!r} has no {part} "
                f"({', '.join(patterns)}); give a folder that save_pretrained has written, model "
                "and tokenizer"
            )
            raise SettingsError(msg)


def _check_hub(model: str, revision: str | None) -> None:
    from huggingface_hub import errors, model_info, try_to_load_from_cache

    cached: object = None
    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
        model_info(model, revision=revision, timeout=_SECONDS_FOR_HUB)
    except errors.HFValidationError as error:
        cause = "it is neither a folder here nor a possible hub name; check the spelling"
        raise _unresolved(model, cause) from error
    except errors.RevisionNotFoundError as error:
        cause = f"it has no revision {revision!r}; check the setting 'revision'"
        raise _unresolved(model, cause) from error
    except errors.RepositoryNotFoundError as error:
        cause = "it is neither a folder here nor on the hub; check the spelling"
        raise _unresolved(model, cause) from error
    except Exception as error:  # whatever the network throws
        if isinstance(cached, str):
            return
        cause = (
            "it is no folder here, and the hub cannot be reached; check the network, or give the "
            "folder of a downloaded checkpoint"
        )
        raise _unresolved(model, cause) from error


def _unresolved(model: str, cause: str) -> SettingsError:
    return SettingsError(f"setting 'model': {model!r} cannot be found: {cause}")


def _check_config(model: str, revision: str | None) -> None:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    except Exception as error:
        way_out = "give a model that the installed transformers library knows"
        if "gated" in str(error):
            way_out = "ask for access on the hub, then log in with 'hf auth login'"
        msg = (
            f"setting 'model': the configuration of {model!r} cannot be read ({cause_of(error)}); "
            f"{way_out}"
        )
        raise SettingsError(msg) from error
