"""Models before they are asked: adapters, whole weights, digests; and lengths in tokens."""

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
    """Refuse a configuration whose modules alone, without a weight, would fill the memory."""
    numbers = [(name, value) for name, value in settings.items() if type(value) is int]
    layers = max((n for name, n in numbers if _LAYER_NAMES.fullmatch(name)), default=1)
    experts = max(
        (n for name, n in numbers if _EXPERT_NAMES.fullmatch(name)), default=1
    )
    if layers > MOST_LAYERS or layers * experts > MOST_EXPERTS:
        what = f"{layers:,} layers" + f" of {experts:,} experts" * (experts > 1)
        _refuse(
            f"the config.json of {model!r} names {what}, as no model has; restore the"
            " file"
        )
    for part in settings.values():
        if isinstance(part, dict):
            check_size(model, part)


_LOADING = RLock()
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers tell neither of its progress nor of weights that are not wanted."""
    # One thread at a time: while transformers loads a model, the whole process ties no
    # weights, and of two loads that overlap the later end would leave it so.
    from transformers.utils import logging

    with _LOADING:
        level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shows:
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
    *(
        "modules_to_save",
        "use_dora",
        "lora_bias",
        "alora_invocation_tokens",
        "layer_replication",
    ),
    *("use_bdlora", "use_qalora", "target_parameters", "trainable_token_indices"),
)
"""Settings of peft that make an adapter more than two matrices added to a frozen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What was tuned in addition to a base model that stays as it is."""

    # ``virtual_tokens`` stand before every text, and take their place of the context.
    # ``rank`` is the highest of any matrix; ``extras`` are what a LoRA adapter has
    # beyond its matrices.

    folder: str
    kind: str
    base: str
    base_revision: str | None = None
    virtual_tokens: int = 0
    rank: int = 0
    modules: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


def read_adapter(model: str) -> Adapter | None:
    """Read what a folder says of its adapter; None where a model is no adapter."""
    path = Path(model, _CONFIG)
    if not path.is_file():
        return None
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
        adapter = _described(model, config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        _refuse(
            f"{_CONFIG} of {model!r} cannot be read ({describe_error(error)}); save the"
            " adapter again with save_pretrained"
        )
    task, reason = config.get("task_type"), None
    if adapter.kind not in (known := (*_INJECTED, *_VIRTUAL)):
        reason = f"is of kind {adapter.kind}; known are {', '.join(known)}"
    elif task != "CAUSAL_LM" and (task is not None or adapter.virtual_tokens):
        reason = f"has the task type {task}; give one that was tuned for CAUSAL_LM"
    elif "alora_invocation_tokens" in adapter.extras:
        reason = (
            "is an activated LoRA, which tunes only part of a text; give a plain LoRA"
        )
    if reason is not None:
        _refuse(f"the adapter {model!r} {reason}")
    return adapter


def differ_in_weights(model: str, other: str) -> bool:
    """Whether two models are adapters of one base whose settings are the same."""
    one, two = (Path(each, _CONFIG) for each in (model, other))
    return one.is_file() and two.is_file() and one.read_bytes() == two.read_bytes()


def weights_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Say where a model's weights and configuration lie, and their revision: an adapter's base."""
    adapter = read_adapter(model)
    return (
        (model, revision) if adapter is None else (adapter.base, adapter.base_revision)
    )


def have_same_shape(*models: tuple[str, str | None]) -> bool:
    """Whether models are of one architecture and size, as a tuned model and its base are."""
    configs = [load_config(*weights_source(*each)).get_text_config() for each in models]
    shapes = {tuple(getattr(each, name, None) for name in _SHAPE) for each in configs}
    return len(shapes) == 1


def tokenizer_source(model: str, revision: str | None) -> tuple[str, str | None]:
    """Say where a model's tokenizer lies, and its revision: an adapter's own, or its base's."""
    return (
        (model, revision)
        if _has_any(model, TOKENIZERS)
        else weights_source(model, revision)
    )


def _has_any(folder: str | Path, patterns: Iterable[str]) -> bool:
    return any(any(Path(folder).glob(pattern)) for pattern in patterns)


def _described(folder: str, config: dict[str, Any]) -> Adapter:
    if not config.get("base_model_name_or_path"):
        raise ValueError("it names no base_model_name_or_path")
    kind = str(config["peft_type"])
    initialised = config.get("init_lora_weights")
    extras = [name for name in _BEYOND_LORA if config.get(name)]
    if isinstance(initialised, str) and initialised != "gaussian":
        extras.append("init_lora_weights")
    if config.get("bias", "none") != "none":
        extras.append("bias")
    ranks = dict(config.get("rank_pattern") or {}).values()
    return Adapter(
        folder=folder,
        kind=kind,
        base=str(config["base_model_name_or_path"]),
        base_revision=config.get("revision"),
        virtual_tokens=(
            int(config.get("num_virtual_tokens") or 0) if kind in _VIRTUAL else 0
        ),
        rank=max(map(int, (config.get("r") or 0, *ranks))) if kind == "LORA" else 0,
        modules=_tuned_modules(Path(folder, _SAFETENSORS)),
        extras=tuple(extras),
    )


def _tuned_modules(weights: Path) -> tuple[str, ...]:
    """Last names of modules that have LoRA matrices; () for weights that nobody can read."""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            names = json.loads(file.read(min(length, weights.stat().st_size)))
    except (OSError, ValueError):  # loading says what is wrong with it
        return ()
    tuned = (name.partition(".lora_")[0] for name in names if ".lora_" in name)
    return tuple(sorted({name.rpartition(".")[2] for name in tuned}))


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
    model: str, revision: str | None = None, asked: str = "logprobs"
) -> None:
    """Check that a checkpoint, or the base of an adapter, can answer what is asked and is whole."""
    # It must have every tensor of its architecture in the right shape, no other of its
    # layers, and no layer of noise. Files that a hub still has, and formats of vLLM's
    # alone, are left out.
    model, revision = weights_source(model, revision)
    config, architecture = _load_architecture(model, revision, asked)
    files = find_weight_files(model, revision)
    if not hasattr(architecture, "from_pretrained") or not files:
        return
    tensors = dict(read_tensors(files, "meta"))
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
        fault = (
            None
            if quantised
            else fault or f"do not fit {owner} ({describe_error(error)})"
        )
    else:
        missing, shapes, strange = (info[f"{key}_keys"] for key in _KEYS)
        missing = {each for each in missing if asked != "any" or "pooler." not in each}
        if quantised:  # its tensors have other names and shapes, in the same modules
            there = {
                name[: at.start()]
                for name in strange
                for at in re.finditer(r"\.", name)
            }
            missing -= empty.all_tied_weights_keys.keys()
            missing = {each for each in missing if each.rpartition(".")[0] not in there}
            shapes = strange = ()
        if any(name not in tensors for name, *_ in shapes):  # it is made of several
            missing |= _parts(architecture, config) - tensors.keys()
        generates = asked not in ("any", "fills")
        lost = {
            each for each in strange if generates and _is_of_layer(each, tensors, empty)
        }
        fault = _fault(owner, missing, shapes, lost)
    if fault is not None:
        _refuse(
            f"the weights of {model!r} {fault}; copy it again, or correct its"
            " config.json"
        )
    if not quantised and (layer := _find_noise(files)) is not None:
        _refuse(
            f"the weights of {model!r} are noise in {layer}, as before any training,"
            " and in most other layers not; give another checkpoint of the model"
        )


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
    found = dict(read_tensors(find_weight_files(adapter.folder), "meta"))
    try:
        settings: Any = PeftConfig.from_pretrained(adapter.folder)
        settings.init_lora_weights = (
            False  # other values are computed from the base's weights
        )
        with quiet(), torch.device("meta"):
            added = get_peft_model(architecture(config), settings)
        wanted = get_peft_model_state_dict(added, save_embedding_layers=False)
    except Exception as error:  # every library behind it raises its own kind
        fault: str | None = f"do not fit {adapter.base!r} ({describe_error(error)})"
    else:
        places = added.state_dict() | wanted
        shapes = {
            (name, found[name].shape, places[name].shape)
            for name in found & places.keys()
        }
        missing, lost = wanted.keys() - found.keys(), found.keys() - places.keys()
        fault = _fault(f"its base {adapter.base!r}", missing, shapes, lost)
    if fault is not None:
        _refuse(
            f"the weights of the adapter {adapter.folder!r} {fault}; save it again, or"
            " correct its base_model_name_or_path"
        )


def find_weight_files(model: str, revision: str | None = None) -> list[Path]:
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
                names = set(
                    json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
                )
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            _refuse(
                f"{str(index)!r} is damaged ({describe_error(error)}); copy it again"
            )
        if name not in names and (folder / name).is_file():
            _refuse(
                f"{model!r} has both {name} and {index.name} of other files; remove one"
            )
        lost = sorted(each for each in names if not (folder / each).is_file())
        if not lost:
            return [folder / each for each in sorted(names)]
        if here and index.is_file():
            _refuse(
                f"{model!r} has no {lost[0]}, which its {index.name} names; copy it"
                " again"
            )
    # vLLM needs no index
    return sorted(folder.glob("model-*-of-*.safetensors")) if here else []


def read_tensors(files: Iterable[Path], device: str) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors of one file after the other; on the device ``meta`` without their values."""
    import torch
    from safetensors import safe_open

    for file in files:
        try:
            if file.suffix != ".safetensors":
                yield from torch.load(
                    file, map_location=device, weights_only=True
                ).items()
                continue
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    empty = torch.empty(
                        opened.get_slice(name).get_shape(), device="meta"
                    )
                    yield name, empty if device == "meta" else opened.get_tensor(name)
        except Exception as error:  # every library behind it raises its own kind
            _refuse(
                f"{str(file)!r} is damaged or cut short ({describe_error(error)}); copy it"
                " again"
            )


def _load_architecture(model: str, revision: str | None, asked: str) -> tuple[Any, Any]:
    """Load a configuration, with the class of its model if transformers has one of this kind."""
    import transformers as library

    config = load_config(model, revision)
    name = (config.architectures or [config.model_type])[0]
    if asked == "any":  # its head may be another's
        return config, library.MODEL_MAPPING.get(type(config), None)
    masked = library.MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None)
    if asked == "fills":
        return config, masked
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    decodes = causal is not None and getattr(config, "is_decoder", True)
    other = None
    if config.is_encoder_decoder:
        other = "an encoder-decoder"
    elif name.endswith("ForMaskedLM") or (masked and not decodes):
        other = "a masked model"
    elif name.endswith(_OTHER_HEADS):
        other = "no language model"
    if other is not None:
        _refuse(f"{model!r} is {other} ({name}); give a causal language model")
    return config, causal or library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(
        type(config), None
    )


def _parts(architecture: Any, config: Any) -> set[str]:
    """Name the tensors of a checkpoint, several of which may be one of the model."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    parts: set[str] = set()
    with suppress(Exception), torch.device("meta"):  # whatever failed before
        empty = architecture(config)
        parts.update(revert_weight_conversion(empty, empty.state_dict()))
    return parts


def _is_of_layer(name: str, tensors: Mapping[str, Tensor], model: Any) -> bool:
    """Whether a tensor without a place is a weight of a layer, which old files' masks are not."""
    # Layers of other names are heads of other tasks; further layers may predict later
    # tokens.
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
    """Find a layer that is as random as before training, where most others are not."""
    # The largest singular value of n x m independent numbers of standard deviation s is
    # close to s(sqrt(n) + sqrt(m)); training raises it (Martin and Mahoney, JMLR 22,
    # 2021). A layer is noise where no matrix of it exceeds this in its first rows. The
    # first layer of a small model that learnt a little may exceed it in more rows only,
    # so a few are read of all layers, and many of those that look like noise.
    from safetensors import safe_open

    parts: dict[str, list[tuple[Path, str]]] = {}
    for file in (each for each in files if each.suffix == ".safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                layer, shape = (
                    re.match(r".+?\.\d+(?=\.)", name),
                    opened.get_slice(name).get_shape(),
                )
                if layer is not None and len(shape) == 2 and min(shape) >= _ROWS:
                    parts.setdefault(layer[0], []).append((file, name))
    found_by = {layer: _above_noise(some, _ROWS) for layer, some in parts.items()}
    highest = {layer: found for layer, found in found_by.items() if found > 0}
    if len(highest) < _LAYERS or median(highest.values()) < _TRAINED:
        return None
    alike = (layer for layer, found in highest.items() if found < _NOISE)
    return next(
        (each for each in alike if _above_noise(parts[each], _MANY_ROWS) < _NOISE), None
    )


def _above_noise(parts: Iterable[tuple[Path, str]], most_rows: int) -> float:
    """Return the largest singular value of a layer's first rows, as a share of that of noise."""
    import torch
    from safetensors import safe_open

    shares = [0.0]
    for file, name in parts:
        with safe_open(file, framework="pt") as opened:
            rows = opened.get_slice(name)[:most_rows].float()
        rows -= rows.mean()
        if rows.std() > 0:  # all the same, or not finite, which a started model shows
            largest = torch.linalg.eigvalsh(rows @ rows.T)[-1].sqrt() / rows.std()
            shares.append(largest.item() / sum(map(sqrt, rows.shape)))
    return max(shares)


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


# Whether a model is there at all, found out before any engine starts.

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.gguf")
_SECONDS_FOR_HUB = 20.0
_PARTS = {"config.json": ("config.json",), "weights": _WEIGHTS, "tokenizer": TOKENIZERS}
_PARTS_OF_ADAPTER = {"adapter's weights": _FILES_OF_ADAPTER}


def check_model(
    model: str, revision: str | None = None, asked: str = "logprobs"
) -> None:
    """Check that a model can be found and is a whole checkpoint, or an adapter that fits one."""
    adapter = read_adapter(model)
    if adapter is None:
        _check_checkpoint(model, revision, _PARTS, asked)
        return
    _check_folder(model, _PARTS_OF_ADAPTER)
    own = _has_any(model, TOKENIZERS)  # else its base needs one
    parts = {
        name: files
        for name, files in _PARTS.items()
        if not (own and name == "tokenizer")
    }
    named = f"{adapter.folder!r} is an adapter of {adapter.base!r}, which"
    if read_adapter(adapter.base) is not None:
        _refuse(f"{named} is an adapter itself; merge one of them into its own base")
    try:
        _check_checkpoint(adapter.base, adapter.base_revision, parts, asked)
    except SettingsError as error:
        cause = str(error).removeprefix("model: ").rpartition(";")[0]
        _refuse(
            f"{named} cannot be used: {cause}; set base_model_name_or_path in its "
            "adapter_config.json to a checkpoint folder or a hub name"
        )
    check_adapter(adapter)


def _check_checkpoint(
    model: str, revision: str | None, parts: Mapping[str, Sequence[str]], asked: str
) -> None:
    path = Path(model)
    if path.is_dir():
        _check_folder(model, parts)
    elif path.exists() or model.startswith(("/", ".", "~")) or model.count("/") > 1:
        what = "is a file" if path.exists() else "does not exist"
        _refuse(f"{model!r} {what}; give a checkpoint folder or a hub name")
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
        _refuse(
            f"the configuration of {model!r} cannot be read ({describe_error(error)});"
            f" {way_out}"
        )
    check_weights(model, revision, asked)


def _check_folder(folder: str, parts: Mapping[str, Sequence[str]]) -> None:
    for part, patterns in parts.items():
        if not _has_any(folder, patterns):
            files = "" if part in patterns else f" ({', '.join(patterns)})"
            _refuse(
                f"the folder {folder!r} has no {part}{files}; give a folder that"
                " save_pretrained has written, model and tokenizer"
            )


def _check_hub(model: str, revision: str | None) -> None:
    from huggingface_hub import errors, model_info, try_to_load_from_cache

    neither = "it is neither a folder here nor {}; check the spelling"
    no_hub = (
        "it is no folder here, and the hub cannot be reached; check the network, or"
        " give the "
    )
    causes: dict[type[Exception], str] = {
        errors.HFValidationError: neither.format("a possible hub name"),
        errors.RevisionNotFoundError: (
            f"it has no revision {revision!r}; check revision="
        ),
        errors.RepositoryNotFoundError: neither.format("on the hub"),
        Exception: f"{no_hub}folder of a downloaded checkpoint",
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
    """Digest of a folder, or commit at the hub; the context in tokens, None where not stated."""

    digest: str
    max_model_len: int | None


def identify_model(
    model: str, revision: str | None = None, asked: str = "logprobs"
) -> ModelIdentity:
    """Check that a model is there, and say which one it is; no weights are loaded."""
    # An adapter has a digest of itself and its base.
    check_model(model, revision, asked)
    adapter, (base, of_base) = read_adapter(model), weights_source(model, revision)
    config = load_config(base, of_base)
    digest = digest_folder(base) or str(config._commit_hash)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if adapter is not None:
        digest = sha256(f"{digest_folder(model)}\0{digest}".encode()).hexdigest()
        context = None if context is None else context - adapter.virtual_tokens
    return ModelIdentity(digest=digest, max_model_len=context)


def digest_folder(
    model: str, suffixes: frozenset[str] | None = _SUFFIXES
) -> str | None:
    """SHA-256 of names, sizes and the first and last mebibyte of each file of a checkpoint."""
    # Any training changes these. None where there is no such folder; suffixes None: all
    # files.
    folder = Path(model)
    if not folder.is_dir():
        return None
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if (suffixes is None or path.suffix in suffixes) and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(_PIECE))
                file.seek(max(_PIECE, size - _PIECE))
                digest.update(file.read(_PIECE))
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
