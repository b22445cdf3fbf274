"""Training with differential privacy: DP-SGD (Abadi et al. 2016, arXiv:1607.00133, algorithm 1).

One text is one record. Each step takes each text by a coin of its own (Poisson sampling, which the
accountant assumes), cuts the gradient of each to a norm, adds noise to their sum, and divides by
the number of texts that is expected.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer, masking_utils

from mia_batch.errors import EngineError
from mia_batch.finetuning.accounting import epsilon_of, noise_of
from mia_batch.finetuning.forms import losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.finetuning.recipe import Form, Recipe

__all__ = ["PoissonBatches", "PrivateTrainer", "clipped_sums"]

Gradients = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]


class PoissonBatches(Sampler[list[int]]):
    """Batches of an epoch, each of which takes each row by a coin; one may be empty.

    Seed and epoch decide which, so that a training that goes on draws the same.
    """

    def __init__(self, n_rows: int, rate: float, n_batches: int, seed: int) -> None:
        self._n_rows, self._rate, self._n_batches, self._seed = n_rows, rate, n_batches, seed
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
        for _ in range(self._n_batches):
            taken = torch.rand(self._n_rows, generator=generator) < self._rate
            yield taken.nonzero()[:, 0].tolist()

    def __len__(self) -> int:
        return self._n_batches


class _Loader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come; the trainer calls it."""
        self.batch_sampler.epoch = epoch  # type: ignore[union-attr]


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """A trainer whose steps are those of DP-SGD; those of an epoch would take each row once."""

    def __init__(self, *, recipe: Recipe, at_once: int, **how: Any) -> None:  # noqa: ANN401
        super().__init__(**how)
        self._recipe, self._at_once = recipe, at_once
        n_rows = len(self.train_dataset)
        self._rate = min(1.0, recipe.batch_size / n_rows)
        self._steps = ceil(n_rows / recipe.batch_size)  # of an epoch
        self._noise = noise_of(
            recipe.epsilon, recipe.delta, self._rate, self._steps * recipe.epochs
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return batches by Poisson sampling."""
        batches = PoissonBatches(
            len(self.train_dataset), self._rate, self._steps, self._recipe.seed
        )
        return _Loader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def training_step(self, model: Any, inputs: Batch, num_items_in_batch: Any = None) -> Any:  # noqa: ANN401
        """Set the gradients of one step; return the mean loss of its texts."""
        del num_items_in_batch
        model.train()
        sums, loss = self._sums(model, inputs)
        spread = self._noise * self._recipe.clip
        expected = self._rate * len(self.train_dataset)
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                noisy = sums[name] + noise_like(sums[name], spread)
                weight.grad = (noisy / expected).to(weight.dtype)
        return loss.detach()

    def _sums(self, model: Any, inputs: Batch) -> tuple[Gradients, torch.Tensor]:  # noqa: ANN401
        recipe, batch = self._recipe, self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            return clipped_sums(model, recipe.form, batch, recipe.clip, self._at_once)

    def privacy(self) -> dict[str, float]:
        """Return what the training comes to: its privacy loss, and what that is made of.

        Raises `EngineError` if no text has a gradient: noise alone moves weights, too, and that of
        a model that learns nothing from its texts says nothing of privacy.
        """
        first = self.data_collator(self.train_dataset[: self._at_once])
        sums, _ = self._sums(self.model, first)
        if not any(bool(each.any()) for each in sums.values()):
            msg = "the texts move no weight; take another method"
            raise EngineError(msg)
        taken = self.state.global_step
        return {
            "epsilon": epsilon_of(self._noise, self._recipe.delta, self._rate, taken),
            "delta": self._recipe.delta,
            "noise_multiplier": self._noise,
            "clip": self._recipe.clip,
            "sampling_rate": self._rate,
            "steps": taken,
        }


def noise_like(sums: torch.Tensor, spread: float) -> torch.Tensor:
    """Draw Gaussian noise for the sum of gradients."""
    return torch.normal(0, spread, sums.shape, device=sums.device)


def clipped_sums(
    model: Any,  # noqa: ANN401 - models are of many types
    form: Form,
    batch: Batch,
    clip: float,
    at_once: int,
) -> tuple[Gradients, torch.Tensor]:
    """Sum the gradients of texts, each cut to a norm; also return the mean loss.

    The whole model is differentiated for each text (torch.func), so that it does not matter how its
    weights are used: tied, as virtual tokens, or within layers that nobody knows. Libraries that
    attach to single layers fail or differ there. It takes memory for the gradients of ``at_once``
    texts.

    Raises `EngineError` if a gradient is no number: then nothing that is said of privacy holds.
    """
    weights = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    sums = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in weights.items()}
    total = torch.zeros((), device=next(iter(sums.values())).device)

    def loss_of(weights: Gradients, row: Batch) -> torch.Tensor:
        each = {name: value[None] for name, value in row.items()}
        labels = each.pop("labels")
        given = each | ({"labels": labels.clamp(min=0)} if form == "seq2seq" else {})
        logits = functional_call(model, weights, kwargs=given, tie_weights=True).logits
        return losses(form, logits, labels)[0]

    gradients = vmap(grad_and_value(loss_of), in_dims=(None, 0), randomness="different")
    n_rows = batch["labels"].shape[0]
    for start in range(0, n_rows, at_once):
        some = {name: value[start : start + at_once] for name, value in batch.items()}
        with _no_look_at_values():
            found, loss = gradients(weights, some)
        norms = sum(each.float().flatten(1).square().sum(1) for each in found.values()).sqrt()
        if not norms.isfinite().all():
            msg = "the gradient of a text is no number; take a lower learning rate"
            raise EngineError(msg)
        share = (clip / norms).clamp(max=1)
        for name, each in found.items():
            sums[name] += torch.einsum("i,i...->...", share, each.float())
        total += loss.sum()
    return sums, total / max(1, n_rows)


@contextmanager
def _no_look_at_values() -> Iterator[None]:
    """Let transformers build masks as when it is traced, whatever stands in them."""
    usual = masking_utils.is_tracing
    masking_utils.is_tracing = lambda _=None: True
    try:
        yield
    finally:
        masking_utils.is_tracing = usual
