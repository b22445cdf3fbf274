"""How frequent each token is in a reference corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dataframely as dy
import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.tables import scan, sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from mia_batch.models.tokens import Tokenizer

__all__ = [
    "Frequencies",
    "count_frequencies",
    "load_frequencies",
    "save_frequencies",
    "stored_frequencies",
]

_BATCH = 4096


class _Table(dy.Schema):
    """One row per token of the vocabulary, in the order of their ids."""

    count = dy.UInt64()
    tokenizer = dy.String()
    """Digest of the tokenizer, the same in every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """How often each token of the vocabulary occurs, and the digest of the tokenizer."""

    counts: npt.NDArray[np.uint64]
    tokenizer: str

    def log_inverse(self) -> npt.NDArray[np.float32]:
        """Log of (total + vocabulary) / (count + 1) of each token, natural, float32, above 0.

        Zhang et al. (2024), arXiv:2409.14781; Laplace smoothing as in the authors' code.
        """
        whole = float(self.counts.sum()) + len(self.counts)
        inverse: npt.NDArray[np.float32] = np.log(whole / (self.counts + 1.0)).astype(np.float32)
        return inverse


def stored_frequencies(
    path: Path, texts: pl.LazyFrame, tokenizer: Tokenizer
) -> npt.NDArray[np.float32]:
    """Log of 1 / frequency of each token, from counts of ``text`` that are kept in a file."""
    if not path.exists():
        batches = texts.select("text").drop_nulls().collect_batches(chunk_size=_BATCH)
        counted = count_frequencies(
            (batch["text"].to_list() for batch in batches),
            encode=tokenizer.encode,
            vocabulary=tokenizer.vocabulary,
            tokenizer=tokenizer.digest,
        )
        save_frequencies(counted, path)
    return load_frequencies(path, tokenizer.digest).log_inverse()


def count_frequencies(
    batches: Iterable[Sequence[str]],
    *,
    encode: Callable[[Sequence[str]], Iterable[Sequence[int]]],
    vocabulary: int,
    tokenizer: str,
) -> Frequencies:
    """Count the tokens of a corpus, batch by batch."""
    counts = np.zeros(vocabulary, np.uint64)
    for texts in batches:
        for ids in encode(texts):
            np.add.at(counts, np.asarray(ids, dtype=np.int64), 1)
    if not counts.any():
        msg = "setting 'frequencies_from': the corpus has no text; give one that has"
        raise SettingsError(msg)
    return Frequencies(counts=counts, tokenizer=tokenizer)


def save_frequencies(frequencies: Frequencies, path: Path) -> None:
    """Write counts to a Parquet file."""
    table = pl.DataFrame({"count": frequencies.counts})
    sink(table.with_columns(tokenizer=pl.lit(frequencies.tokenizer)), path, _Table)


def load_frequencies(path: Path, tokenizer: str) -> Frequencies:
    """Read counts that were saved before; `SettingsError` if another tokenizer cut the corpus."""
    table = scan(path, _Table).collect()
    if set(table["tokenizer"]) != {tokenizer}:
        msg = (
            f"{path} counts the tokens of another tokenizer than the model's; remove it to have "
            "the corpus counted again"
        )
        raise SettingsError(msg)
    return Frequencies(counts=table["count"].to_numpy(), tokenizer=tokenizer)
