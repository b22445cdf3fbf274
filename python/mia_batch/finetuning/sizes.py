"""What a fine-tuning needs of memory and disk, before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.finetuning.adapters import adapted
from mia_batch.finetuning.base import check_base

if TYPE_CHECKING:
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["sizes"]

_TRAINED_BYTES = 16  # of a weight that is trained: itself, gradient, two moments, in float32
_FROZEN_BYTES = {True: 2, False: 4}  # on an accelerator, on a CPU


def sizes(base: str, revision: str | None, recipe: Recipe) -> str:
    """Say how many weights are trained, what they take in memory, and on the disk.

    The model is built without its weights. Activations come on top; nobody knows them before.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_base(base, revision, recipe)
    config = AutoConfig.from_pretrained(base, revision=revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        n_weights = model.num_parameters()
        tuned = adapted(model, recipe)
    trained = sum(each.numel() for each in tuned.parameters() if each.requires_grad)
    kept = again = trained
    if recipe.method == "p-tuning":  # of its encoder what it says is kept, from which none goes on
        kept = tuned.prompt_encoder["default"].embedding.weight.numel()
        again += kept
    frozen = 0 if recipe.method == "full" else n_weights
    memory = frozen * _FROZEN_BYTES[torch.cuda.is_available()] + trained * _TRAINED_BYTES
    return (
        f"{trained:,} of {n_weights:,} weights, {_gib(memory)} of memory without activations, "
        f"{_gib(4 * kept)} of disk and {_gib(2 * 4 * (2 * trained + again))} while it is trained"
    )


def _gib(n_bytes: int) -> str:
    gib = n_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
