"""An adapter beside its base model, loaded with peft and never merged into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mia_batch.errors import EngineError
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

    from mia_batch.models.adapter import Adapter

__all__ = ["add_adapter", "embed_prompts", "exchange_adapter"]


def add_adapter(model: PreTrainedModel, adapter: Adapter) -> PeftModel:
    """Put an adapter beside the weights of its base.

    Raises `EngineError` if its weights cannot be read or are those of another base.
    """
    from peft import PeftModel

    try:
        added = PeftModel.from_pretrained(model, adapter.folder, torch_device=str(model.device))
    except Exception as error:  # every library behind it raises its own kind
        msg = (
            f"the adapter {adapter.folder!r} cannot be put on {adapter.base!r} "
            f"({cause_of(error)}); save it again, or correct its base_model_name_or_path"
        )
        raise EngineError(msg) from error
    return added.eval()


def exchange_adapter(added: PeftModel, adapter: Adapter) -> None:
    """Put the weights of an adapter in the place of those of another with the same settings.

    Raises `EngineError` if they have other places.
    """
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    given = load_peft_weights(adapter.folder, device=str(added.device))
    if given.keys() != get_peft_model_state_dict(added, save_embedding_layers=False).keys():
        msg = f"the adapter {adapter.folder!r} has other weights than its settings say"
        raise EngineError(msg)
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
