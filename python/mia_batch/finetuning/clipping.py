"""Sums of the gradients of texts, each cut to a norm (Abadi et al. 2016, algorithm 1)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.func import functional_call, grad_and_value, vmap
from transformers import masking_utils

from mia_batch.errors import EngineError
from mia_batch.finetuning.forms import losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.finetuning.recipe import Form

__all__ = ["Batch", "Gradients", "clipped_sums"]

Gradients: TypeAlias = dict[str, torch.Tensor]
Batch: TypeAlias = dict[str, torch.Tensor]


def clipped_sums(
    model: Any,  # noqa: ANN401 - models are of many types
    form: Form,
    batch: Batch,
    clip: float,
    at_once: int,
) -> tuple[Gradients, torch.Tensor]:
    """Sum the gradients of texts, each cut to a norm; also return the mean loss.

    Raises `EngineError` if a gradient is no number: then nothing that is said of privacy holds.
    """
    weights = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    sums = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in weights.items()}
    total = torch.zeros((), device=next(iter(sums.values())).device)
    n_rows = batch["labels"].shape[0]
    for start in range(0, n_rows, at_once):
        some = {name: value[start : start + at_once] for name, value in batch.items()}
        found, loss = _per_text(model, weights, form, some, clip)
        for name, each in found.items():
            sums[name] += each
        total += loss.sum()
    return sums, total / max(1, n_rows)


def _per_text(
    model: Any,  # noqa: ANN401
    weights: Gradients,
    form: Form,
    batch: Batch,
    clip: float,
) -> tuple[Gradients, torch.Tensor]:
    """Differentiate the whole model for each text (torch.func), and cut what comes out.

    It does not matter how weights are used: tied, as virtual tokens, or within layers that nobody
    knows. Libraries that attach to single layers fail or differ there. It takes memory for the
    gradients of all texts of the batch.
    """

    def loss_of(weights: Gradients, row: Batch) -> torch.Tensor:
        one = {name: value[None] for name, value in row.items()}
        return _losses_of(model, weights, form, one)[0]

    gradients = vmap(grad_and_value(loss_of), in_dims=(None, 0), randomness="different")
    with _no_look_at_values():
        found, loss = gradients(weights, batch)
    norms = sum(each.float().flatten(1).square().sum(1) for each in found.values()).sqrt()
    if not norms.isfinite().all():
        msg = "the gradient of a text is no number; take a lower learning rate"
        raise EngineError(msg)
    share = (clip / norms).clamp(max=1)
    cut = {name: torch.einsum("i,i...->...", share, each.float()) for name, each in found.items()}
    return cut, loss


def _losses_of(
    model: Any,  # noqa: ANN401
    weights: Gradients,
    form: Form,
    batch: Batch,
) -> torch.Tensor:
    """Mean loss of each text, with these weights for those that are trained; shape (texts,)."""
    labels = batch["labels"]
    given = batch | {"labels": labels.clamp(min=0)}
    if form != "seq2seq":
        del given["labels"]
    logits = functional_call(model, weights, kwargs=given, tie_weights=True).logits
    return losses(form, logits, labels)


@contextmanager
def _no_look_at_values() -> Iterator[None]:
    """Let transformers build masks as when it is traced, whatever stands in them."""
    usual = masking_utils.is_tracing
    masking_utils.is_tracing = lambda _=None: True
    try:
        yield
    finally:
        masking_utils.is_tracing = usual
