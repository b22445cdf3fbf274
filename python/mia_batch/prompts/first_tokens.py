"""Prompts that are the first tokens of texts, for a model to go on with as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.targets.identity import from_text, target_id, text_digest

if TYPE_CHECKING:
    from mia_batch.models.tokens import Tokenizer

__all__ = ["first_tokens"]


def first_tokens(
    texts: pl.LazyFrame, *, n: int, n_tokens: int, tokenizer: Tokenizer | None
) -> pl.DataFrame:
    """Cut up to ``n`` different texts to their first tokens; without a tokenizer, words.

    Which texts does not depend on their order: those of the lowest hash, so that more are added to
    the ones there are. Rows are ``target_id``, ``view_index``, ``context`` and an empty ``text``.
    """
    there = texts.filter(pl.col("text").str.contains(r"\S")).unique("text")
    found = there.collect(engine="streaming")["text"].to_list()
    named = {target_id(from_text(text_digest(text), 0), 0, text): text for text in found}
    chosen = sorted(named)[:n]
    cut = [_first(named[name], n_tokens, tokenizer) for name in chosen]
    return pl.DataFrame(
        {"target_id": chosen, "context": cut},
        schema={"target_id": pl.String, "context": pl.String},
    ).with_columns(view_index=pl.lit(0, pl.UInt32), text=pl.lit(""))


def _first(text: str, n_tokens: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return " ".join(text.split()[:n_tokens])
    return tokenizer.keep_first(text, n_tokens)
