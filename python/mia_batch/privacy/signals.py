"""What a model says of texts: the log-probability of each token that it was tuned on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.finetuning.recipe import Recipe

__all__ = ["Opened"]

_AT_ONCE = 16


class Opened:
    """A model that was tuned, or its base, opened to be asked.

    Parameters
    ----------
    path
        Folder of the model or adapter, or the base's name.
    revision
        Hub revision of the base.
    recipe
        How it was tuned.
    """

    def __init__(self, path: str, revision: str | None, recipe: Recipe) -> None:
        import torch
        from transformers import AutoTokenizer

        from mia_batch.finetuning.base import longest_text
        from mia_batch.finetuning.forms import encoder, model_class
        from mia_batch.models.adapter import tokenizer_source, weights_source
        from mia_batch.models.quiet import quiet

        base, base_revision = weights_source(path, revision)
        head = {"num_labels": len(recipe.labels)} if recipe.form == "classifier" else {}
        with quiet():
            model = model_class(recipe.form).from_pretrained(
                base, revision=base_revision, dtype=torch.float32, trust_remote_code=False, **head
            )
            if base != path:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, path)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device).eval()
        name, revision = tokenizer_source(path, revision)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        most = longest_text(model.config, recipe)
        self._form = recipe.form
        self._row_of = encoder(recipe.form, tokenizer, most, recipe.labels)

    def logprobs(
        self, texts: Sequence[str], targets: Sequence[str | None]
    ) -> Iterator[list[float]]:
        """Yield the log-probabilities, in nats, of what is learnt of each text; empty: nothing."""
        import torch

        from mia_batch.finetuning.forms import logprobs, padded

        for start in range(0, len(texts), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            rows = [*map(self._row_of, texts[some], targets[some])]
            batch = {name: value.to(self.device) for name, value in padded(rows).items()}
            labels = batch.pop("labels")
            given = batch | ({"labels": labels.clamp(min=0)} if self._form == "seq2seq" else {})
            with torch.inference_mode():
                found = logprobs(self._form, self.model(**given).logits, labels)
            for row in found.cpu():
                yield row[~row.isnan()].tolist()

    def losses(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Mean negative log-likelihood of each text, in nats a token; null where it has none."""
        return -self._lists(texts, targets).list.mean()

    def sums(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Log-perplexity of each text: the sum over its tokens, in nats; null where it has none."""
        found = self._lists(texts, targets)
        return pl.select(pl.when(found.list.len() > 0).then(-found.list.sum())).to_series()

    def _lists(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        return pl.Series([*self.logprobs(texts, targets)], dtype=pl.List(pl.Float64))
