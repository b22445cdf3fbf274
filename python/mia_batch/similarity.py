"""How alike two words are in meaning, by embeddings that come with the package wordllama."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.kernels import word_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from mia_batch.kernels import WordRule

__all__ = ["SIMILARITY_FIELDS", "similarity", "why_no_similarity"]

SIMILARITY_FIELDS = (pl.Field("similarity", pl.Float64()),)
"""What `similarity` gives."""

_PACKAGE = "wordllama"
_SIZE = 256  # of an embedding
_VECTORS = "weights/l2_supercat_256.safetensors"
_TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"


def why_no_similarity() -> str | None:
    """Say why words cannot be compared on this machine; None where they can."""
    if find_spec(_PACKAGE) is None:
        return f"the package {_PACKAGE} is not installed (pip install 'mia-batch[petal]')"
    return None


def similarity(candidate: pl.Expr, reference: pl.Expr, *, words: WordRule) -> pl.Expr:
    """Cosine of the embeddings of the first words of candidate and reference.

    A struct of Float64 in [-1, 1], 1 for equal words and 0 where one of the texts has no word; null
    where either is null. An embedding is the mean of those of a word's tokens in WordLlama 256.
    """
    firsts = [_first_word(text, words) for text in (candidate, reference)]
    return pl.map_batches(
        firsts,
        lambda columns: _cosines(*columns).alias("similarity").to_frame().to_struct("similarity"),
        return_dtype=pl.Struct(list(SIMILARITY_FIELDS)),
        is_elementwise=True,
    ).alias("similarity")


def _first_word(text: pl.Expr, words: WordRule) -> pl.Expr:
    """Take the first word; "" where there is none."""
    spans = word_spans(text, words=words).struct
    start = spans.field("starts").list.first()
    word = text.str.slice(start, spans.field("ends").list.first() - start)
    return pl.when(text.is_not_null()).then(word.fill_null(""))


def _cosines(one: pl.Series, other: pl.Series) -> pl.Series:
    said = pl.concat([one, other]).drop_nulls().unique()
    vectors = np.vstack([_embed(said.to_list()), np.zeros(_SIZE, np.float32)])
    numbers = pl.int_range(said.len(), eager=True)
    left, right = (
        side.replace_strict(said, numbers, default=said.len(), return_dtype=pl.Int64)
        for side in (one, other)
    )
    cosines = np.einsum("ij,ij->i", vectors[left.to_numpy()], vectors[right.to_numpy()])
    there = one.is_not_null() & other.is_not_null()
    return pl.select(pl.when(there).then(pl.Series(cosines, dtype=pl.Float64))).to_series()


def _embed(said: list[str]) -> NDArray[np.float32]:
    """Make unit vectors of words, a row each; zeros of the empty one."""
    tokenizer, table = _load()
    means: NDArray[np.float32] = np.zeros((len(said), _SIZE), np.float32)
    for row, encoded in zip(
        means, tokenizer.encode_batch(said, add_special_tokens=False), strict=True
    ):
        if encoded.ids:
            row[:] = table[encoded.ids].mean(0, dtype=np.float32)
    lengths = np.linalg.norm(means, axis=1, keepdims=True).astype(np.float32)
    np.divide(means, lengths, out=means, where=lengths > 0)
    return means


@cache
def _load() -> tuple[Tokenizer, NDArray[np.float16]]:
    """Read what lies in the package; importing it would change the log level of the process."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    found = find_spec(_PACKAGE)
    if found is None or found.submodule_search_locations is None:
        msg = f"words cannot be compared: {why_no_similarity()}"
        raise SettingsError(msg)
    folder = Path(found.submodule_search_locations[0])
    tokenizer = Tokenizer.from_file(str(folder / _TOKENS))
    return tokenizer, load_file(folder / _VECTORS)["embedding.weight"]
