"""Models on disk: adapters, whole weights, digests; and lengths in tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from statistics import median
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import polars as pl

from mia_batch.errors import SettingsError, describe_error

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    import torch
    from torch import Tensor


def _refuse(reason: str) -> NoReturn:
    raise SettingsError(f"model: {reason}")


def load_config(model: str, revision: str | None) -> Any:
    """Load a model's configuration; no code that it names is run."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        model, revision=revision, trust_remote_code=False
    )
    check_size(model, config.to_dict())
    return config


MOST_LAYERS = 2_000  # the deepest models have 128
MOST_EXPERTS = 200_000  # of all layers together; the largest models have 23,424
_LAYER_NAMES = re.compile(r"(num|n|encoder|decoder)_\w*layers?|\w*_layers")
_EXPERT_NAMES = re.compile(r"(num|n)_(local_|routed_)?experts")


def check_size(model: str, settings: Mapping[str, Any]) -> None:
    """Refuse a configuration whose modules, without any weight, would fill the memory."""
    numbers = {name: value for name, value in settings.items() if type(value) is int}
    layers = [n for name, n in numbers.items() if _LAYER_NAMES.fullmatch(name)]
    experts = [n for name, n in numbers.items() if _EXPERT_NAMES.fullmatch(name)]
    n_layers = max(layers, default=1)
    n_experts = max(experts, default=1)
    if n_layers > MOST_LAYERS or n_layers * n_experts > MOST_EXPERTS:
        size = f"{n_layers:,} layers"
        if n_experts > 1:
            size += f" of {n_experts:,} experts"
        _refuse(
            f"the config.json of {model!r} names {size}, as no model has; restore the"
            " file"
        )
    for section in settings.values():
        if isinstance(section, dict):
            check_size(model, section)


_LOADING = RLock()
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from showing its progress, and weights that are not wanted."""
    # One thread at a time: while transformers loads a model, the whole process ties no
    # weights, and of two loads that overlap the later end would leave it so.
    from transformers.utils import logging

    with _LOADING:
        level = logging.get_verbosity()
        shows_progress = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shows_progress:
                logging.enable_progress_bar()


# Adapters: folders that peft's ``save_pretrained`` wrote, which are models like any
# other.

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
"""Settings of peft that make an adapter more than two matrices added to a frozen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What was tuned in addition to a base model that stays as it is."""

    folder: str
    kind: str
    base: str
    base_revision: str | None = None
    # Tokens that stand before every text, and take their place of the context
    virtual_tokens: int = 0
    rank: int = 0  # the highest of any matrix
    modules: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()  # what a LoRA adapter has beyond its matrices


def read_adapter(model: str) -> Adapter | None:
    """Read the configuration of an adapter; None where a model is no adapter."""
    path = Path(model, _CONFIG)
    if not path.is_file():
        return None
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
        adapter = _parse_adapter(model, config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        _refuse(
            f"{_CONFIG} of {model!r} cannot be read ({describe_error(error)}); save the"
            " adapter again with save_pretrained"
        )
    task = config.get("task_type")
    kinds = (*_INJECTED, *_VIRTUAL)
    reason = None
    if adapter.kind not in kinds:
        reason = f"is of kind {adapter.kind}; known are {', '.join(kinds)}"
    elif task != "CAUSAL_LM" and (task is not None or adapter.virtual_tokens):
        reason = f"has the task type {task}; give one that was tuned for CAUSAL_LM"
    elif "alora_invocation_tokens" in adapter.extras:
        reason = (
            "is an activated LoRA, which tunes only part of a text; give a plain LoRA"
        )
    if reason is not None:
        _refuse(f"the adapter {model!r} {reason}")
    return adapter


def differ_in_weights(first: str, second: str) -> bool:
    """Return whether two models are adapters of one base whose settings are the same."""
    configs = [Path(first, _CONFIG), Path(second, _CONFIG)]
    if not all(config.is_file() for config in configs):
        return False
    return configs[0].read_bytes() == configs[1].read_bytes()


def weights_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Return where weights and configuration lie, and their revision: an adapter's base."""
    adapter = read_adapter(model)
    if adapter is None:
        return model, revision
    return adapter.base, adapter.base_revision


def have_same_shape(*models: tuple[str, str | None]) -> bool:
    """Return whether models have one architecture and size, as a tuned one and its base."""
    shapes = set()
    for model, revision in models:
        config = load_config(*weights_source(model, revision)).get_text_config()
        shapes.add(tuple(getattr(config, name, None) for name in _SHAPE))
    return len(shapes) == 1


def tokenizer_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Return where a tokenizer lies, and its revision: an adapter's own, or its base's."""
    if _has_any(model, TOKENIZERS):
        return model, revision
    return weights_source(model, revision)


def _has_any(folder: str | Path, patterns: Iterable[str]) -> bool:
    return any(any(Path(folder).glob(pattern)) for pattern in patterns)


def _parse_adapter(folder: str, config: dict[str, Any]) -> Adapter:
    if not config.get("base_model_name_or_path"):
        raise ValueError("it names no base_model_name_or_path")
    kind = str(config["peft_type"])
    extras = [name for name in _BEYOND_LORA if config.get(name)]
    initialised = config.get("init_lora_weights")
    if isinstance(initialised, str) and initialised != "gaussian":
        extras.append("init_lora_weights")
    if config.get("bias", "none") != "none":
        extras.append("bias")
    rank_pattern = dict(config.get("rank_pattern") or {})
    n_virtual = 0
    if kind in _VIRTUAL:
        n_virtual = int(config.get("num_virtual_tokens") or 0)
    ranks = [0]
    if kind == "LORA":
        ranks = [config.get("r") or 0, *rank_pattern.values()]
    return Adapter(
        folder=folder,
        kind=kind,
        base=str(config["base_model_name_or_path"]),
        base_revision=config.get("revision"),
        virtual_tokens=n_virtual,
        rank=max(map(int, ranks)),
        modules=_tuned_modules(Path(folder, _SAFETENSORS)),
        extras=tuple(extras),
    )


def _tuned_modules(weights: Path) -> tuple[str, ...]:
    """Return last names of modules with LoRA matrices; () for weights that nobody can read."""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            names = json.loads(file.read(min(length, weights.stat().st_size)))
    except (OSError, ValueError):  # loading says what is wrong with it
        return ()
    modules = [name.partition(".lora_")[0] for name in names if ".lora_" in name]
    return tuple(sorted({module.rpartition(".")[2] for module in modules}))


# Whether a model has every tensor of its architecture, by its files' headers, and no
# noise.

_FILES = ("model.safetensors", "pytorch_model.bin")
_FILES_OF_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
_OTHER_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice")
_KEYS = ("missing", "mismatched", "unexpected")
_ROWS, _MANY_ROWS = 64, 1024
_NOISE, _TRAINED, _LAYERS = 1.06, 1.3, 4
"""What no layer of noise exceeds, see `_find_noise`; what the median of so many layers does."""
_META = {
    "device_map": {"": "meta"},
    "ignore_mismatched_sizes": True,
    "output_loading_info": True,
}


def check_weights(
    model: str, revision: str | None = None, purpose: str = "logprobs"
) -> None:
    """Check that a checkpoint, or an adapter's base, is whole and serves a purpose."""
    # It must have every tensor of its architecture in the right shape, no other of its
    # layers, and no layer of noise. Files that a hub still has, and formats of vLLM's
    # alone, are left out.
    model, revision = weights_source(model, revision)
    config, architecture = _load_architecture(model, revision, purpose)
    files = find_weight_files(model, revision)
    if not hasattr(architecture, "from_pretrained") or not files:
        return
    tensors = dict(read_tensors(files, "meta"))
    is_quantised = getattr(config, "quantization_config", None) is not None
    if is_quantised:
        del config.quantization_config  # its library need not be installed here
    fault = _find_fault(
        architecture, config, tensors, purpose, is_quantised=is_quantised
    )
    if fault is not None:
        _refuse(
            f"the weights of {model!r} {fault}; copy it again, or correct its"
            " config.json"
        )
    noise = None if is_quantised else _find_noise(files)
    if noise is not None:
        _refuse(
            f"the weights of {model!r} are noise in {noise}, as before any training,"
            " and in most other layers not; give another checkpoint of the model"
        )


def _find_fault(
    architecture: Any,
    config: Any,
    tensors: dict[str, Tensor],
    purpose: str,
    *,
    is_quantised: bool,
) -> str | None:
    """Find what a checkpoint's tensors lack for their architecture, or have beyond it."""
    owner = f"a {architecture.__name__} of its config.json"
    try:
        with quiet():
            empty, info = architecture.from_pretrained(
                None, config=config, state_dict=tensors, **_META
            )
    except Exception as error:  # such as parts of a tensor that do not fit together
        if is_quantised:
            return None
        missing = _list_tensors(architecture, config) - tensors.keys()
        fault = _describe_fault(owner, missing)
        return fault or f"do not fit {owner} ({describe_error(error)})"
    missing, shapes, unexpected = (info[f"{key}_keys"] for key in _KEYS)
    missing = set(missing)
    if purpose == "any":
        missing = {name for name in missing if "pooler." not in name}
    if is_quantised:  # its tensors have other names and shapes, in the same modules
        modules: set[str] = set()
        for name in unexpected:
            modules.update(name[: dot.start()] for dot in re.finditer(r"\.", name))
        missing -= empty.all_tied_weights_keys.keys()
        missing = {name for name in missing if name.rpartition(".")[0] not in modules}
        shapes = unexpected = ()
    if any(name not in tensors for name, *_ in shapes):  # it is made of several
        missing |= _list_tensors(architecture, config) - tensors.keys()
    unplaced: set[str] = set()
    if purpose not in ("any", "fills"):
        unplaced = {name for name in unexpected if _is_of_layer(name, tensors, empty)}
    return _describe_fault(owner, missing, shapes, unplaced)


def check_adapter(adapter: Adapter) -> None:
    """Check that an adapter has a tensor for each place that it tunes, and no other."""
    import torch

    if find_spec("peft") is None:
        _refuse("adapters need the package peft (pip install 'mia-batch[finetune]')")
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    config, architecture = _load_architecture(
        adapter.base, adapter.base_revision, "logprobs"
    )
    if architecture is None:
        return
    tensors = dict(read_tensors(find_weight_files(adapter.folder), "meta"))
    try:
        settings: Any = PeftConfig.from_pretrained(adapter.folder)
        # Other values are computed from the base's weights
        settings.init_lora_weights = False
        with quiet(), torch.device("meta"):
            adapted = get_peft_model(architecture(config), settings)
        needed = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except Exception as error:  # every library behind it raises its own kind
        cause = describe_error(error)
        fault: str | None = f"do not fit {adapter.base!r} ({cause})"
    else:
        places = adapted.state_dict() | needed
        shapes = {
            (name, tensors[name].shape, places[name].shape)
            for name in tensors & places.keys()
        }
        missing = needed.keys() - tensors.keys()
        unplaced = tensors.keys() - places.keys()
        owner = f"its base {adapter.base!r}"
        fault = _describe_fault(owner, missing, shapes, unplaced)
    if fault is not None:
        _refuse(
            f"the weights of the adapter {adapter.folder!r} {fault}; save it again, or"
            " correct its base_model_name_or_path"
        )


def find_weight_files(model: str, revision: str | None = None) -> list[Path]:
    """Find the weights of a checkpoint or adapter; none while a hub has one of the files."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(model)
    is_local = folder.is_dir()
    if not is_local:
        config = try_to_load_from_cache(model, "config.json", revision=revision)
        if isinstance(config, str):
            folder = Path(config).parent
    for whole in _FILES if read_adapter(model) is None else _FILES_OF_ADAPTER:
        index = folder / f"{whole}.index.json"
        names = {whole}
        try:
            if index.is_file():
                content = json.loads(index.read_text(encoding="utf-8"))
                names = set(content["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            cause = describe_error(error)
            _refuse(f"{str(index)!r} is damaged ({cause}); copy it again")
        if whole not in names and (folder / whole).is_file():
            _refuse(
                f"{model!r} has both {whole} and {index.name} of other files; remove"
                " one"
            )
        missing = sorted(name for name in names if not (folder / name).is_file())
        if not missing:
            return [folder / name for name in sorted(names)]
        if is_local and index.is_file():
            _refuse(
                f"{model!r} has no {missing[0]}, which its {index.name} names; copy it"
                " again"
            )
    # vLLM needs no index
    return sorted(folder.glob("model-*-of-*.safetensors")) if is_local else []


def read_tensors(files: Iterable[Path], device: str) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors of one file after the other; on the device ``meta`` without values."""
    import torch
    from safetensors import safe_open

    for file in files:
        try:
            if file.suffix != ".safetensors":
                tensors = torch.load(file, map_location=device, weights_only=True)
                yield from tensors.items()
                continue
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    if device == "meta":
                        shape = opened.get_slice(name).get_shape()
                        yield name, torch.empty(shape, device="meta")
                    else:
                        yield name, opened.get_tensor(name)
        except Exception as error:  # every library behind it raises its own kind
            cause = describe_error(error)
            _refuse(f"{str(file)!r} is damaged or cut short ({cause}); copy it again")


def _load_architecture(
    model: str, revision: str | None, purpose: str
) -> tuple[Any, Any]:
    """Load a configuration, and the class of its model if transformers has one for it."""
    import transformers as library

    config = load_config(model, revision)
    kind = type(config)
    name = (config.architectures or [config.model_type])[0]
    if purpose == "any":  # its head may be another's
        return config, library.MODEL_MAPPING.get(kind, None)
    masked = library.MODEL_FOR_MASKED_LM_MAPPING.get(kind, None)
    if purpose == "fills":
        return config, masked
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None)
    decodes = causal is not None and getattr(config, "is_decoder", True)
    wrong_kind = None
    if config.is_encoder_decoder:
        wrong_kind = "an encoder-decoder"
    elif name.endswith("ForMaskedLM") or (masked and not decodes):
        wrong_kind = "a masked model"
    elif name.endswith(_OTHER_HEADS):
        wrong_kind = "no language model"
    if wrong_kind is not None:
        _refuse(f"{model!r} is {wrong_kind} ({name}); give a causal language model")
    with_images = library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return config, causal or with_images.get(kind, None)


def _list_tensors(architecture: Any, config: Any) -> set[str]:
    """List the tensors of a checkpoint, several of which may be one of the model."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    names: set[str] = set()
    with suppress(Exception), torch.device("meta"):  # whatever failed before
        empty = architecture(config)
        names.update(revert_weight_conversion(empty, empty.state_dict()))
    return names


def _is_of_layer(name: str, tensors: Mapping[str, Tensor], model: Any) -> bool:
    """Return whether a tensor without a place is a layer's weight, not an old file's mask."""
    # Layers of other names are heads of other tasks; further layers may predict later
    # tokens.
    match = re.fullmatch(r"(.+?)\.(\d+)\..*(weight|bias)", name)
    if match is None or (name in tensors and tensors[name].dim() not in (1, 2)):
        return False
    text_config = model.config.get_text_config()
    has_later_layers = bool(getattr(text_config, "num_nextn_predict_layers", 0))
    for module_name, layers in model.named_modules():
        is_list = hasattr(layers, "append") and module_name.endswith(match[1])
        if is_list and not (has_later_layers and int(match[2]) >= len(layers)):
            return True
    return False


def _find_noise(files: Iterable[Path]) -> str | None:
    """Find a layer that is as random as before training, where most others are not."""
    # The largest singular value of n x m independent numbers of standard deviation s is
    # close to s(sqrt(n) + sqrt(m)); training raises it (Martin and Mahoney, JMLR 22,
    # 2021). A layer is noise where no matrix of it exceeds this in its first rows. The
    # first layer of a small model that learnt a little may exceed it in more rows only,
    # so a few are read of all layers, and many of those that look like noise.
    matrices = _list_matrices(files)
    ratios = {
        layer: _compute_noise_ratio(places, _ROWS) for layer, places in matrices.items()
    }
    ratios = {layer: ratio for layer, ratio in ratios.items() if ratio > 0}
    if len(ratios) < _LAYERS or median(ratios.values()) < _TRAINED:
        return None
    for layer, ratio in ratios.items():
        if ratio < _NOISE:
            more_rows = _compute_noise_ratio(matrices[layer], _MANY_ROWS)
            if more_rows < _NOISE:
                return layer
    return None


def _list_matrices(files: Iterable[Path]) -> dict[str, list[tuple[Path, str]]]:
    """List the large matrices of each layer: files, and names in them."""
    from safetensors import safe_open

    matrices: dict[str, list[tuple[Path, str]]] = {}
    for file in files:
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                layer = re.match(r".+?\.\d+(?=\.)", name)
                shape = opened.get_slice(name).get_shape()
                if layer is not None and len(shape) == 2 and min(shape) >= _ROWS:
                    matrices.setdefault(layer[0], []).append((file, name))
    return matrices


def _compute_noise_ratio(matrices: Iterable[tuple[Path, str]], n_rows: int) -> float:
    """Compute the largest singular value of a layer's first rows, over that of noise."""
    import torch
    from safetensors import safe_open

    ratios = [0.0]
    for file, name in matrices:
        with safe_open(file, framework="pt") as opened:
            rows = opened.get_slice(name)[:n_rows].float()
        rows -= rows.mean()
        if rows.std() > 0:  # all the same, or not finite, which a started model shows
            largest = torch.linalg.eigvalsh(rows @ rows.T)[-1].sqrt() / rows.std()
            ratios.append(largest.item() / sum(map(sqrt, rows.shape)))
    return max(ratios)


def _describe_fault(
    owner: str,
    missing: Collection[str],
    shapes: Collection[tuple[str, torch.Size, torch.Size]] = (),
    unplaced: Collection[str] = (),
) -> str | None:
    """Return what is wrong with tensors, and with which first; None where nothing is."""
    if missing:
        return f"lack {_format_names(missing)}, which {owner} needs"
    mismatched = sorted(entry for entry in shapes if entry[1] != entry[2])
    if mismatched:
        name, shape, needed_shape = mismatched[0]
        return (
            f"have {name} of shape {list(shape)}, and {owner} needs"
            f" {list(needed_shape)}"
        )
    if unplaced:
        return f"have {_format_names(unplaced)}, for which {owner} has no place"
    return None


def _format_names(names: Collection[str]) -> str:
    n_more = len(names) - 1
    return f"{min(names)} and {n_more:,} more" if n_more else min(names)


# Whether a model is there at all, found out before any engine starts.

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.gguf")
_SECONDS_FOR_HUB = 20.0
_OLLAMA_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?:[\w.-]+")  # such as llama3.2:1b
_NEEDED_FILES = {
    "config.json": ("config.json",),
    "weights": _WEIGHTS,
    "tokenizer": TOKENIZERS,
}
_NEEDED_ADAPTER_FILES = {"adapter's weights": _FILES_OF_ADAPTER}


def check_model(
    model: str, revision: str | None = None, purpose: str = "logprobs"
) -> None:
    """Check that a model can be found and is a whole checkpoint, or an adapter of one."""
    adapter = read_adapter(model)
    if adapter is None:
        _check_checkpoint(model, revision, _NEEDED_FILES, purpose)
        return
    _check_folder(model, _NEEDED_ADAPTER_FILES)
    needed_files = dict(_NEEDED_FILES)
    if _has_any(model, TOKENIZERS):  # else its base needs one
        del needed_files["tokenizer"]
    subject = f"{adapter.folder!r} is an adapter of {adapter.base!r}, which"
    if read_adapter(adapter.base) is not None:
        _refuse(f"{subject} is an adapter itself; merge one of them into its own base")
    try:
        _check_checkpoint(adapter.base, adapter.base_revision, needed_files, purpose)
    except SettingsError as error:
        cause = str(error).removeprefix("model: ").rpartition(";")[0]
        _refuse(
            f"{subject} cannot be used: {cause}; set base_model_name_or_path in its "
            "adapter_config.json to a checkpoint folder or a hub name"
        )
    check_adapter(adapter)


def _check_checkpoint(
    model: str,
    revision: str | None,
    needed_files: Mapping[str, Sequence[str]],
    purpose: str,
) -> None:
    path = Path(model)
    if path.is_dir():
        _check_folder(model, needed_files)
    elif path.exists() or model.startswith(("/", ".", "~")) or model.count("/") > 1:
        if path.suffix == ".gguf" and path.exists():
            _refuse(
                f"{model!r} is a GGUF file, which can be asked and neither tuned nor"
                " changed; give a checkpoint folder or a hub name"
            )
        problem = "is a file" if path.exists() else "does not exist"
        _refuse(
            f"{model!r} {problem}; give a checkpoint folder, a GGUF file or a hub name"
        )
    elif _OLLAMA_NAME.fullmatch(model):
        _refuse(
            f"{model!r} is no name at the hub; if it is one of Ollama's, add --base-url"
            " http://localhost:11434/v1, and if it is a GGUF file, give its path"
        )
    else:
        _check_hub(model, revision)
    try:
        load_config(model, revision)
    except SettingsError:
        raise
    except Exception as error:  # every kind of model has its own
        way_out = "give a model that the installed transformers library knows"
        if "gated" in str(error):
            way_out = "ask for access on the hub, then log in with 'hf auth login'"
        cause = describe_error(error)
        _refuse(f"the configuration of {model!r} cannot be read ({cause}); {way_out}")
    check_weights(model, revision, purpose)


def _check_folder(folder: str, needed_files: Mapping[str, Sequence[str]]) -> None:
    for name, patterns in needed_files.items():
        if not _has_any(folder, patterns):
            files = "" if name in patterns else f" ({', '.join(patterns)})"
            _refuse(
                f"the folder {folder!r} has no {name}{files}; give a folder that"
                " save_pretrained has written, model and tokenizer"
            )


def _check_hub(model: str, revision: str | None) -> None:
    from huggingface_hub import errors, model_info, try_to_load_from_cache

    neither = "it is neither a folder here nor {}; check the spelling"
    causes: dict[type[Exception], str] = {
        errors.HFValidationError: neither.format("a possible hub name"),
        errors.RevisionNotFoundError: (
            f"it has no revision {revision!r}; check revision="
        ),
        errors.RepositoryNotFoundError: neither.format("on the hub"),
        Exception: (
            "it is no folder here, and the hub cannot be reached; check the network,"
            " or give the folder of a downloaded checkpoint"
        ),
    }
    cached: object = None
    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
        model_info(model, revision=revision, timeout=_SECONDS_FOR_HUB)
    except Exception as error:  # the network may throw anything
        kind = next(kind for kind in causes if isinstance(error, kind))
        if not (kind is Exception and isinstance(cached, str)):
            _refuse(f"{model!r} cannot be found: {causes[kind]}")


# Which model it is: what a run records so that samples of two models are never mixed.

_PIECE = 1 << 20
_SUFFIXES = frozenset(
    {".bin", ".json", ".jinja", ".model", ".pt", ".safetensors", ".txt"}
)


class ModelIdentity(NamedTuple):
    """Which model it is."""

    digest: str  # of a folder, or the commit at the hub
    max_model_len: int | None  # the context in tokens; None where not stated


def identify_model(
    model: str, revision: str | None = None, purpose: str = "logprobs"
) -> ModelIdentity:
    """Check that a model is there, and return which one it is; no weights are loaded."""
    # An adapter has a digest of itself and its base.
    check_model(model, revision, purpose)
    adapter = read_adapter(model)
    base, base_revision = weights_source(model, revision)
    config = load_config(base, base_revision)
    digest = digest_folder(base) or str(config._commit_hash)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if adapter is not None:
        digest = sha256(f"{digest_folder(model)}\0{digest}".encode()).hexdigest()
        context = None if context is None else context - adapter.virtual_tokens
    return ModelIdentity(digest=digest, max_model_len=context)


def find_files(model: str) -> list[Path]:
    """List the files of a checkpoint's folder, and of an adapter's base; none of a hub's."""
    files: list[Path] = []
    for folder in dict.fromkeys([model, weights_source(model, None)[0]]):
        files += sorted(path for path in Path(folder).glob("*") if path.is_file())
    return files


def hash_ends(path: Path, digest: Hash) -> None:
    """Add a file's size, and its first and last mebibyte; any training changes these."""
    size = path.stat().st_size
    digest.update(f"{size}\0".encode())
    with path.open("rb") as file:
        digest.update(file.read(_PIECE))
        file.seek(max(_PIECE, size - _PIECE))
        digest.update(file.read(_PIECE))


def digest_folder(
    model: str, suffixes: frozenset[str] | None = _SUFFIXES
) -> str | None:
    """Compute the SHA-256 of names, sizes, and the first and last mebibyte of each file."""
    # None where there is no such folder; suffixes None: all files.
    folder = Path(model)
    if not folder.is_dir():
        return None
    digest = sha256()
    for path in sorted(folder.iterdir()):
        is_included = suffixes is None or path.suffix in suffixes
        if is_included and path.is_file():
            digest.update(f"{path.name}\0".encode())
            hash_ends(path, digest)
    return digest.hexdigest()


_BYTES_PER_TOKEN = 4  # of English prose; other text has fewer


@dataclass(frozen=True, slots=True)
class Measure:
    """Lengths of a prompt and its reference; ids are None where lengths are estimated."""

    prompt_token_ids: list[int] | None
    prompt_tokens: int
    reference_tokens: int


def estimated_tokens(column: str) -> pl.Expr:
    """Estimate the lengths of a column's texts as `estimate_tokens` does; 0 of null."""
    n_bytes = pl.col(column).str.len_bytes().fill_null(0).cast(pl.Int64)
    return (n_bytes + _BYTES_PER_TOKEN - 1) // _BYTES_PER_TOKEN


def estimate_tokens(
    prefixes: Sequence[str], references: Sequence[str]
) -> list[Measure]:
    """Estimate lengths where no tokenizer is at hand: a token for every four bytes of UTF-8."""
    columns = (pl.Series(texts, dtype=pl.String) for texts in (prefixes, references))
    lengths = pl.DataFrame([*columns]).select(
        map(estimated_tokens, ("column_0", "column_1"))
    )
    return [Measure(None, *row) for row in lengths.iter_rows()]
