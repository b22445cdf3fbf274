"""Scores of texts: log-probabilities that a model gives to what is learnt of them."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mia_batch.models.weights import quiet
from mia_batch.recipes import Recipe

_AT_ONCE = 16


class TextScorer:
    """Opens a base, or the model that was trained from it, and scores texts by it."""

    def __init__(
        self,
        base: str,
        revision: str | None,
        recipe: Recipe,
        trained: Path | None = None,
    ) -> None:
        import torch

        from mia_batch.extras.tune.training import load_base

        is_adapter = recipe.method != "full"
        source = (base, revision)
        if trained is not None and not is_adapter:
            source = (str(trained), None)
        with quiet():
            model, self.tokenizer, self._encode = load_base(
                *source, recipe, dtype=torch.float32
            )
            if trained is not None and is_adapter:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, trained)
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._form = recipe.form

    def logprobs(
        self, texts: Sequence[str], targets: Sequence[str | None]
    ) -> pl.Series:
        """List log-probabilities, in nats, of what is learnt of each text, if anything."""
        import torch

        from mia_batch.extras.tune.training import label_logprobs, pad_rows

        lists = list[list[float]]()
        for start in range(0, len(texts), _AT_ONCE):
            end = start + _AT_ONCE
            rows = [*map(self._encode, texts[start:end], targets[start:end])]
            padded = pad_rows(rows)
            batch = {
                name: value.to(self.model.device) for name, value in padded.items()
            }
            labels = batch.pop("labels")
            if self._form == "seq2seq":
                batch["labels"] = labels.clamp(min=0)
            with torch.inference_mode():
                logits = self.model(**batch).logits
                values = label_logprobs(self._form, logits, labels)
            lists += (row[~row.isnan()].tolist() for row in values.cpu())
        return pl.Series(lists, dtype=pl.List(pl.Float64))

    def losses(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Mean negative log-likelihood of each text, in nats a token; null without any."""
        return -self.logprobs(texts, targets).list.mean()

    def sums(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Log-perplexity of each text: the sum over its tokens, in nats; null without any."""
        logprobs = self.logprobs(texts, targets).list
        has_tokens = logprobs.len() > 0
        return pl.select(pl.when(has_tokens).then(-logprobs.sum())).to_series()
