"""Trains an inverter, for `mia_batch.inversion.making`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, set_seed

from mia_batch.finetuning.forms import padded
from mia_batch.finetuning.training import fit
from mia_batch.inversion.projection import attach, prepared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mia_batch.inversion.making import InverterMaking

__all__ = ["train"]


class _InverterTrainer(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], **how: Any) -> Any:  # noqa: ANN401
        """Compute the language-modelling loss of texts after their embeddings."""
        return super().compute_loss(model, prepared(model, inputs), **how)


def train(making: InverterMaking, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Train a decoder to say the texts whose embeddings it is given, and return what `fit` does."""
    set_seed(making.recipe.seed)
    how = {"revision": making.revision, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(making.base, **how)
    decoder = AutoModelForCausalLM.from_pretrained(making.base, dtype=torch.float32, **how)
    embeddings = making.embeddings
    attach(decoder, embeddings.shape[1]).fit(embeddings)
    said = ([*ids, tokenizer.eos_token_id] for ids in _ids(tokenizer, [*making.texts]))
    rows = [
        {"input_ids": ids, "labels": ids, "embedding": embedding}
        for ids, embedding in zip(said, embeddings, strict=True)
    ]
    done = fit(decoder, rows, _collated, making.recipe, work, say, _InverterTrainer)
    tokenizer.save_pretrained(work / "made")
    return done


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:  # noqa: ANN401
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def _collated(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    embeddings = torch.from_numpy(np.stack([row["embedding"] for row in rows]))
    return {**padded(rows), "embedding": embeddings}
