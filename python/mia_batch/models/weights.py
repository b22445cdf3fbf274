"""Whether a model has every tensor of its architecture, by its files' headers, and no noise."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from math import sqrt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

from mia_batch.errors import SettingsError
from mia_batch.models.adapter import peft_missing, read_adapter, weights_source
from mia_batch.models.causes import cause_of
from mia_batch.models.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import torch
    from torch import Tensor

    from mia_batch.models.adapter import Adapter

__all__ = ["check_adapter", "check_weights", "tensors_in", "weight_files"]

_FILES = ("model.safetensors", "pytorch_model.bin")
_FILES_OF_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
_OTHER_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice")
_KEYS = ("missing", "mismatched", "unexpected")
_ROWS = 64
_NOISE, _TRAINED, _LAYERS = 1.06, 1.3, 4
"""What no layer of noise exceeds, see `_find_noise`; what the median of so many layers does."""
_META = {"device_map": {"": "meta"}, "ignore_mismatched_sizes": True, "output_loading_info": True}


def check_weights(model: str, revision: str | None = None, asked: str = "logprobs") -> None:
    """Check that a checkpoint, or the base of an adapter, can answer what is asked and is whole.

    ``asked`` is a kind of evidence, or ``any`` of a model that is taken for what it says it is. It
    must have every tensor of its architecture in the right shape, no other of its layers, and no
    layer of noise. Files that a hub still has, and formats of vLLM's alone, are left out.
    """
    model, revision = weights_source(model, revision)
    config, architecture = _load_config(model, revision, asked)
    files = weight_files(model, revision)
    if not hasattr(architecture, "from_pretrained") or not files:
        return
    tensors = dict(tensors_in(files, "meta"))
    owner = f"a {architecture.__name__} of its config.json"
    if quantised := getattr(config, "quantization_config", None) is not None:
        del config.quantization_config  # its library need not be installed here
    try:
        with quiet():
            empty, info = architecture.from_pretrained(
                None, config=config, state_dict=tensors, **_META
            )
    except Exception as error:  # such as parts of a tensor that do not fit together
        fault = _fault(owner, _parts(architecture, config) - tensors.keys())
        fault = None if quantised else fault or f"do not fit {owner} ({cause_of(error)})"
    else:
        missing, shapes, strange = (info[f"{key}_keys"] for key in _KEYS)
        missing = {each for each in missing if asked != "any" or "pooler." not in each}
        if quantised:  # its tensors have other names and shapes, in the same modules
            inside = {each: f"{each.rpartition('.')[0]}." for each in missing}
            missing = {
                each
                for each in missing - empty.all_tied_weights_keys.keys()
                if not any(other.startswith(inside[each]) for other in strange)
            }
            shapes = strange = ()
        if any(name not in tensors for name, *_ in shapes):  # it is made of several
            missing |= _parts(architecture, config) - tensors.keys()
        generates = asked not in ("any", "fills")
        lost = {each for each in strange if generates and _is_of_layer(each, tensors, empty)}
        fault = _fault(owner, missing, shapes, lost)
    if fault is not None:
        _refuse(f"the weights of {model!r} {fault}; copy it again, or correct its config.json")
    if not quantised and (layer := _find_noise(files)) is not None:
        _refuse(
            f"the weights of {model!r} are noise in {layer}, as before any training, and in most "
            "other layers not; give another checkpoint of the model"
        )


def check_adapter(adapter: Adapter) -> None:
    """Check that an adapter has a tensor for each place that it tunes, and no other."""
    import torch

    if (missing := peft_missing()) is not None:
        _refuse(missing)
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    config, architecture = _load_config(adapter.base, adapter.base_revision, "logprobs")
    if architecture is None:
        return
    found = dict(tensors_in(weight_files(adapter.folder), "meta"))
    try:
        settings: Any = PeftConfig.from_pretrained(adapter.folder)
        settings.init_lora_weights = False  # other values are computed from the base's weights
        with quiet(), torch.device("meta"):
            added = get_peft_model(architecture(config), settings)
        wanted = get_peft_model_state_dict(added, save_embedding_layers=False)
    except Exception as error:  # every library behind it raises its own kind
        fault: str | None = f"do not fit {adapter.base!r} ({cause_of(error)})"
    else:
        places = added.state_dict() | wanted
        shapes = {(name, found[name].shape, places[name].shape) for name in found & places.keys()}
        missing, lost = wanted.keys() - found.keys(), found.keys() - places.keys()
        fault = _fault(f"its base {adapter.base!r}", missing, shapes, lost)
    if fault is not None:
        _refuse(
            f"the weights of the adapter {adapter.folder!r} {fault}; save it again, or correct its "
            "base_model_name_or_path"
        )


def weight_files(model: str, revision: str | None = None) -> list[Path]:
    """Find the files of a checkpoint's or adapter's weights; none while a hub has one of them."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(model)
    if not (here := folder.is_dir()):
        config = try_to_load_from_cache(model, "config.json", revision=revision)
        folder = Path(config).parent if isinstance(config, str) else folder
    for name in _FILES if read_adapter(model) is None else _FILES_OF_ADAPTER:
        index, names = folder / f"{name}.index.json", {name}
        try:
            if index.is_file():
                names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            _refuse(f"{str(index)!r} is damaged ({cause_of(error)}); copy it again")
        if name not in names and (folder / name).is_file():
            _refuse(f"{model!r} has both {name} and {index.name} of other files; remove one")
        lost = sorted(each for each in names if not (folder / each).is_file())
        if not lost:
            return [folder / each for each in sorted(names)]
        if here and index.is_file():
            _refuse(f"{model!r} has no {lost[0]}, which its {index.name} names; copy it again")
    return sorted(folder.glob("model-*-of-*.safetensors")) if here else []  # vLLM needs no index


def tensors_in(files: Iterable[Path], device: str) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors of one file after the other; on the device ``meta`` without their values."""
    import torch
    from safetensors import safe_open

    for file in files:
        try:
            if file.suffix != ".safetensors":
                yield from torch.load(file, map_location=device, weights_only=True).items()
                continue
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    empty = torch.empty(opened.get_slice(name).get_shape(), device="meta")
                    yield name, empty if device == "meta" else opened.get_tensor(name)
        except Exception as error:  # every library behind it raises its own kind
            _refuse(f"{str(file)!r} is damaged or cut short ({cause_of(error)}); copy it again")


def _load_config(model: str, revision: str | None, asked: str) -> tuple[Any, Any]:
    """Load a configuration, with the class of its model if transformers has one of this kind."""
    import transformers as library

    config = library.AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    name = (config.architectures or [config.model_type])[0]
    if asked == "any":  # its head may be another's
        return config, library.MODEL_MAPPING.get(type(config), None)
    masked = library.MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None)
    if asked == "fills":
        return config, masked
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    other, decodes = None, getattr(config, "is_decoder", True)
    if config.is_encoder_decoder:
        other = "an encoder-decoder"
    elif name.endswith("ForMaskedLM") or (masked and not (causal and decodes)):
        other = "a masked model"
    elif name.endswith(_OTHER_HEADS):
        other = "no language model"
    if other is not None:
        _refuse(f"{model!r} is {other} ({name}); give a causal language model")
    more = library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    return config, causal or more


def _parts(architecture: Any, config: Any) -> set[str]:  # noqa: ANN401 - transformers is untyped
    """Name the tensors of a checkpoint, several of which may be one of the model."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    parts: set[str] = set()
    with suppress(Exception), torch.device("meta"):  # whatever failed before
        empty = architecture(config)
        parts.update(revert_weight_conversion(empty, empty.state_dict()))
    return parts


def _is_of_layer(name: str, tensors: Mapping[str, Tensor], model: Any) -> bool:  # noqa: ANN401
    """Whether a tensor without a place is a weight of a layer, which old files' masks are not.

    Layers of other names are heads of other tasks; further layers may predict later tokens.
    """
    found = re.fullmatch(r"(.+?)\.(\d+)\..*(weight|bias)", name)
    if found is None or (name in tensors and tensors[name].dim() not in (1, 2)):
        return False
    more = getattr(model.config.get_text_config(), "num_nextn_predict_layers", 0)
    return any(
        of.endswith(found[1]) and not (more and int(found[2]) >= len(layers))
        for of, layers in model.named_modules()
        if hasattr(layers, "append")
    )


def _find_noise(files: Iterable[Path]) -> str | None:
    """Find a layer that is as random as before training, where most others are not.

    The largest singular value of n x m independent numbers of standard deviation s is close to
    s(sqrt(n) + sqrt(m)); training raises it (Martin and Mahoney, JMLR 22, 2021). A layer is noise
    where no matrix of it exceeds this in its first rows.
    """
    import torch
    from safetensors import safe_open

    highest: dict[str, float] = {}
    for file in (each for each in files if each.suffix == ".safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                part, layer = opened.get_slice(name), re.match(r".+?\.\d+(?=\.)", name)
                if layer is None or len(shape := part.get_shape()) != 2 or min(shape) < _ROWS:
                    continue
                rows = part[:_ROWS].float()
                rows -= rows.mean()
                if not rows.std() > 0:  # all the same, or not finite, which a started model shows
                    continue
                largest = torch.linalg.eigvalsh(rows @ rows.T)[-1].sqrt() / rows.std()
                found = largest.item() / (sqrt(_ROWS) + sqrt(shape[1]))
                highest[layer[0]] = max(highest.get(layer[0], 0.0), found)
    if len(highest) < _LAYERS or median(highest.values()) < _TRAINED:
        return None
    return next((layer for layer, found in highest.items() if found < _NOISE), None)


def _fault(
    owner: str,
    missing: Collection[str],
    shapes: Collection[tuple[str, torch.Size, torch.Size]] = (),
    lost: Collection[str] = (),
) -> str | None:
    """Say what is wrong with tensors, and with which first; None where nothing is."""
    first = min(missing or lost, default="")
    more = f" and {n:,} more" if (n := len(missing or lost) - 1) > 0 else ""
    if missing:
        return f"lack {first}{more}, which {owner} needs"
    for name, has, needs in sorted(each for each in shapes if each[1] != each[2]):
        return f"have {name} of shape {list(has)}, and {owner} needs {list(needs)}"
    return f"have {first}{more}, for which {owner} has no place" if lost else None


def _refuse(reason: str) -> NoReturn:
    msg = f"setting 'model': {reason}"
    raise SettingsError(msg)
