"""Loading a model with the transformers library, and running out of memory with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, __version__

from mia_batch.errors import EngineError, MiaBatchError, SettingsError
from mia_batch.evidence.engines.adapted import add_adapter
from mia_batch.evidence.engines.probe import check_probes, probes
from mia_batch.evidence.request import EngineInfo
from mia_batch.models.adapter import read_adapter, weights_source
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel

    from mia_batch.evidence.request import EngineSpec

__all__ = ["Pretrained", "load_pretrained", "ran_out_of_memory"]

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
        """Say what has been started, and how many sequences it works on at once."""
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
        msg = (
            "setting 'tensor_parallel_size': the transformers engine runs on one accelerator; "
            "take engine vllm, or leave the setting at 1"
        )
        raise SettingsError(msg)
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
    loaded = Pretrained(
        model=model,
        added=added,
        prompted=prompted,
        vocab_size=config.vocab_size,
        max_model_len=_shorten(context, max_model_len),
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
        msg = (
            f"the weights of {spec.model!r} do not fit the accelerator's memory; take a smaller "
            "dtype, or engine vllm with a larger tensor_parallel_size"
        )
        raise EngineError(msg) from error
    except Exception as error:
        raise _load_error(spec, arguments, error) from error
    return model.eval()


def _take_positive(arguments: dict[str, Any], name: str) -> int | None:
    """Take an argument of ours out of those that go to transformers."""
    value = arguments.pop(name, None)
    if value is not None and (not isinstance(value, int) or value < 1):
        msg = f"setting 'engine_arg': {name} is {value!r}; give a whole number above 0"
        raise SettingsError(msg)
    return value


def _load_error(spec: EngineSpec, arguments: dict[str, Any], error: Exception) -> MiaBatchError:
    unknown = [key for key in arguments if repr(key) in str(error)]
    if isinstance(error, TypeError) and unknown:
        msg = f"setting 'engine_arg': transformers knows no {unknown[0]!r}; leave it out"
        return SettingsError(msg)
    return EngineError(f"the transformers engine cannot load {spec.model!r} ({cause_of(error)})")


def _context(config: PreTrainedConfig) -> int:
    """Most tokens that the model was built for."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if (length := getattr(config, name, None)) is not None:
            return int(length)
    return _DEFAULT_CONTEXT


def _shorten(context: int, max_model_len: int | None) -> int:
    if max_model_len is not None and max_model_len > context:
        msg = f"setting 'engine_arg': max_model_len is above the model's context of {context}"
        raise SettingsError(msg)
    return max_model_len or context
