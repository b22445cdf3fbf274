"""Trains an inverter, in the process that `mia_batch.finetuning.making` starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, set_seed

from mia_batch.finetuning.training import IGNORED, fit
from mia_batch.inversion.projection import attach, prepared

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.finetuning.recipe import Recipe

__all__ = ["EMBEDDINGS", "train"]

EMBEDDINGS = "embeddings.npy"


class _InverterTrainer(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], **how: Any) -> Any:  # noqa: ANN401
        """Compute the language-modelling loss of texts after their embeddings."""
        return super().compute_loss(model, prepared(model, inputs), **how)


def train(work: Path, base: str, revision: str | None, recipe: Recipe) -> list[dict[str, float]]:
    """Train a decoder to say the texts whose embeddings it is given, and return its losses."""
    set_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base, revision=revision, trust_remote_code=False)
    decoder = AutoModelForCausalLM.from_pretrained(
        base, revision=revision, dtype=torch.float32, trust_remote_code=False
    )
    embeddings = np.load(work / EMBEDDINGS)
    attach(decoder, embeddings.shape[1]).fit(embeddings)
    texts = pl.read_parquet(work / "texts.parquet")["text"].to_list()
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows = [
        ([*row, tokenizer.eos_token_id], embedding)
        for row, embedding in zip(ids, embeddings, strict=True)
    ]
    longest = max(len(row) for row, _ in rows)
    losses = fit(decoder, rows, _padded, recipe, work, longest, _InverterTrainer)
    tokenizer.save_pretrained(work / "made")
    return losses


def _padded(rows: list[tuple[list[int], Any]]) -> dict[str, torch.Tensor]:
    """Texts side by side; what stands after a text's end is neither seen nor learnt."""
    width = max(len(ids) for ids, _ in rows)
    gaps = [width - len(ids) for ids, _ in rows]
    each = list(zip((ids for ids, _ in rows), gaps, strict=True))
    return {
        "embedding": torch.from_numpy(np.stack([embedding for _, embedding in rows])),
        "input_ids": torch.tensor([ids + [0] * gap for ids, gap in each]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * gap for ids, gap in each]),
        "labels": torch.tensor([ids + [IGNORED] * gap for ids, gap in each]),
    }
