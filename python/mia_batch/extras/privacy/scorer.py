"""A model that is opened to be asked for log-probabilities of texts."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mia_batch.models.weights import quiet
from mia_batch.recipes import Recipe

_AT_ONCE = 16


class Opened:
    """A base, or what was made of it, opened to be asked for log-probabilities."""

    def __init__(
        self, base: str, revision: str | None, recipe: Recipe, made: Path | None = None
    ) -> None:
        import torch

        from mia_batch.extras.tune.training import opened

        adapter = made if recipe.method != "full" else None
        where = (base, revision) if made is None or adapter else (str(made), None)
        with quiet():
            model, self.tokenizer, self._row_of = opened(
                *where, recipe, dtype=torch.float32
            )
            if adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, adapter)
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._form = recipe.form

    def logprobs(
        self, texts: Sequence[str], targets: Sequence[str | None]
    ) -> pl.Series:
        """List the log-probabilities, in nats, of what is learnt of each text; empty: nothing."""
        import torch

        from mia_batch.extras.tune.training import logprobs, padded

        lists = list[list[float]]()
        for start in range(0, len(texts), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            rows = [*map(self._row_of, texts[some], targets[some])]
            batch = {
                name: value.to(self.model.device)
                for name, value in padded(rows).items()
            }
            labels = batch.pop("labels")
            given = batch | (
                {"labels": labels.clamp(min=0)} if self._form == "seq2seq" else {}
            )
            with torch.inference_mode():
                found = logprobs(self._form, self.model(**given).logits, labels)
            lists += (row[~row.isnan()].tolist() for row in found.cpu())
        return pl.Series(lists, dtype=pl.List(pl.Float64))

    def losses(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Mean negative log-likelihood of each text, in nats a token; null where it has none."""
        return -self.logprobs(texts, targets).list.mean()

    def sums(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Log-perplexity of each text: the sum over its tokens, in nats; null where it has none."""
        found = self.logprobs(texts, targets)
        return pl.select(
            pl.when(found.list.len() > 0).then(-found.list.sum())
        ).to_series()
