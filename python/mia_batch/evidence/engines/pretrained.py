"""Models and adapters beside their base, never merged into it, loaded with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, __version__

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.registry import check_probes, probes
from mia_batch.evidence.request import EngineInfo, EngineSpec, Request
from mia_batch.models.weights import Adapter, cause_of, read_adapter, weights_source

if TYPE_CHECKING:
    from peft import PeftModel


def add_adapter(model: PreTrainedModel, adapter: Adapter) -> PeftModel:
    """Put an adapter beside the weights of its base.

    Raises `EngineError` if its weights cannot be read or are those of another base.
    """
    from peft import PeftModel

    try:
        added = PeftModel.from_pretrained(model, adapter.folder, torch_device=str(model.device))
    except Exception as error:  # every library behind it raises its own kind
        raise EngineError(
            f"the adapter {adapter.folder!r} cannot be put on {adapter.base!r} "
            f"({cause_of(error)}); save it again, or correct its base_model_name_or_path"
        ) from error
    return added.eval()


def exchange_adapter(added: PeftModel, adapter: Adapter) -> None:
    """Put the weights of an adapter in the place of those of another with the same settings.

    Raises `EngineError` if they have other places.
    """
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    given = load_peft_weights(adapter.folder, device=str(added.device))
    if given.keys() != get_peft_model_state_dict(added, save_embedding_layers=False).keys():
        raise EngineError(f"the adapter {adapter.folder!r} has other weights than its settings say")
    set_peft_model_state_dict(added, given)


def embed_prompts(
    prompted: PeftModel, prompts: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor] | None:
    """Embeddings and attention mask of prompts, each after padding and the virtual tokens.

    None for prefix tuning, whose virtual tokens have no embeddings: peft puts them into the cache.
    """
    if prompted.active_peft_config.peft_type == "PREFIX_TUNING":
        return None
    base: Any = prompted.get_base_model()
    embed = base.get_input_embeddings()
    device = embed.weight.device
    virtual = prompted.get_prompt(batch_size=1)[0].to(device, embed.weight.dtype)
    width = max(map(len, prompts))
    rows, mask = [], []
    for prompt in prompts:
        padding = width - len(prompt)
        of_tokens = embed(torch.tensor([*[0] * padding, *prompt], device=device))
        rows.append(torch.cat([of_tokens[:padding], virtual, of_tokens[padding:]]))
        mask.append([0] * padding + [1] * (len(virtual) + len(prompt)))
    return torch.stack(rows), torch.tensor(mask, device=device)


_DEFAULT_CONTEXT = 2048  # of models whose configuration names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A loaded model; ``batch_size`` None is the engine's own choice.

    The modules of an adapter are in ``model``, ``added`` is what peft makes of both. ``prompted``
    puts its virtual tokens before every text, None where there are none. ``max_model_len`` does not
    count them.
    """

    model: PreTrainedModel
    added: PeftModel | None = None
    prompted: PeftModel | None = None
    vocab_size: int
    max_model_len: int
    batch_size: int | None

    @torch.inference_mode()
    def check(self, model: str, revision: str | None = None) -> None:
        """Check what has been loaded, see `check_probes`; texts are read one by one."""
        said = []
        for text in probes(self.vocab_size, self.max_model_len):
            ids = torch.tensor([text], device=self.model.device)
            logits = (self.prompted or self.model)(ids, use_cache=False).logits[0, -len(text) : -1]
            found = logits.float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            said.append(found.cpu().numpy())
        check_probes(model, revision, str(self.model.dtype).removeprefix("torch."), said)

    def describe(self, max_sequences: int) -> EngineInfo:
        device: torch.device = self.model.device
        return EngineInfo(
            engine="transformers",
            version=__version__,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=str(self.model.dtype).removeprefix("torch."),
            max_model_len=self.max_model_len,
            max_sequences=max_sequences,
        )


def load_pretrained(spec: EngineSpec) -> Pretrained:
    """Load a model as a specification says, and check it.

    Of ``engine_args``, ``batch_size`` and ``max_model_len`` stay here, all others go to
    ``AutoModelForCausalLM.from_pretrained``.
    """
    if spec.tensor_parallel_size != 1:
        raise SettingsError(
            "setting 'tensor_parallel_size': the transformers engine runs on one accelerator; "
            "take engine vllm, or leave the setting at 1"
        )
    arguments = dict(spec.engine_args)
    batch_size = _take_positive(arguments, "batch_size")
    max_model_len = _take_positive(arguments, "max_model_len")
    adapter = read_adapter(spec.model)
    model = _load(spec, arguments)
    added = prompted = None
    if adapter is not None:
        added = add_adapter(model, adapter)
        model = added.get_base_model()
        prompted = added if adapter.virtual_tokens else None
    config = model.config.get_text_config()
    context = _context(config) - (adapter.virtual_tokens if adapter is not None else 0)
    if max_model_len is not None and max_model_len > context:
        raise SettingsError(
            f"setting 'engine_arg': max_model_len is above the model's context of {context}"
        )
    loaded = Pretrained(
        model=model,
        added=added,
        prompted=prompted,
        vocab_size=config.vocab_size,
        max_model_len=max_model_len or context,
        batch_size=batch_size,
    )
    loaded.check(spec.model, spec.revision)
    return loaded


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Tell memory that ran out from other errors of torch; what torch hoards is freed then."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    on_cpu = "can't allocate memory" in str(error)  # there is no type of its own for it
    return isinstance(error, torch.OutOfMemoryError) or on_cpu


def _load(spec: EngineSpec, arguments: dict[str, Any]) -> PreTrainedModel:
    on_cpu = not torch.cuda.is_available()
    dtype = "float32" if on_cpu and spec.dtype == "auto" else spec.dtype
    source, revision = weights_source(spec.model, spec.revision)
    options = {"revision": revision, "dtype": dtype, **arguments}
    try:
        model = AutoModelForCausalLM.from_pretrained(source, **options)
        if "device_map" not in arguments:
            model = model.to("cpu" if on_cpu else "cuda")
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"the weights of {spec.model!r} do not fit the accelerator's memory; take a smaller "
            "dtype, or engine vllm with a larger tensor_parallel_size"
        ) from error
    except Exception as error:
        unknown = [key for key in arguments if repr(key) in str(error)]
        if isinstance(error, TypeError) and unknown:
            msg = f"setting 'engine_arg': transformers knows no {unknown[0]!r}; leave it out"
            raise SettingsError(msg) from error
        msg = f"the transformers engine cannot load {spec.model!r} ({cause_of(error)})"
        raise EngineError(msg) from error
    return model.eval()


def _take_positive(arguments: dict[str, Any], name: str) -> int | None:
    value = arguments.pop(name, None)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise SettingsError(
            f"setting 'engine_arg': {name} is {value!r}; give a whole number above 0"
        )
    return value


def _context(config: PreTrainedConfig) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    stated = (getattr(config, name, None) for name in names)
    return next((int(each) for each in stated if each is not None), _DEFAULT_CONTEXT)


_ROWS = 4096  # of the matrix at once, in float64


class NoisyEmbeddings:
    """Embeddings of texts, of which the tokens that are scored have noise.

    The embedding of each token of a request's text is moved by ``noise * s * z``: ``s`` is the
    standard deviation of the entries of the model's input embedding matrix, ``z`` is drawn from
    N(0, I) by NumPy's ``default_rng(seed)``, text tokens by features. Tokens of the context stay as
    they are: special tokens, and the first of a text that nothing precedes, which has no
    probability. The noise depends on the request alone, and minus ``noise`` with the same seed is
    its exact opposite.

    Fu et al. (2023), arXiv:2311.06062, Algorithm 1. There, the scale of the noise is a number; here
    it is one in units of ``s``, so that it means the same for every model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._embed: Any = model.get_input_embeddings()

    @cached_property
    def _scale(self) -> float:
        weights: Tensor = self._embed.weight.detach()
        parts, n = torch.split(weights, _ROWS), weights.numel()
        mean = sum(rows.double().sum().item() for rows in parts) / n
        variance = sum((rows.double() - mean).square().sum().item() for rows in parts) / n
        return sqrt(variance) * float(getattr(self._embed, "embed_scale", 1.0))

    def __call__(self, token_ids: Tensor, batch: Sequence[Request]) -> Tensor:
        """Embed a batch of right-padded texts; requests are in the order of its rows."""
        embedded: Tensor = self._embed(token_ids)
        for row, request in zip(embedded, batch, strict=True):
            first, n_tokens = len(request.context_ids or ()), len(request.text_ids or ())
            z = np.random.default_rng(request.seed).standard_normal((n_tokens, row.shape[1]))
            noise = torch.from_numpy(request.noise * self._scale * z).to(row.device, torch.float32)
            text = row[first : first + n_tokens]
            text.copy_(text.float() + noise)
        return embedded
