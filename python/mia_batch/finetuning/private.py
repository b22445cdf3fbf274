"""Training with differential privacy: DP-SGD (Abadi et al. 2016, arXiv:1607.00133, algorithm 1).

One text is one record. Each step takes each text by a coin of its own (Poisson sampling, which the
accountant assumes), cuts the gradient of each to a norm, adds noise to their sum, and divides by
the number of texts that is expected.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer

from mia_batch.errors import EngineError
from mia_batch.finetuning.accounting import epsilon_of, noise_of
from mia_batch.finetuning.clipping import clipped_sums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.finetuning.clipping import Batch, Gradients
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["PoissonBatches", "PrivateTrainer"]


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

    def privacy(self) -> dict[str, Any]:
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
