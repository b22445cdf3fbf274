"""Passages that stand in several documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.kernels import pair_features, shared_runs, word_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Hashes = NDArray[np.uint64]

__all__ = ["RUN_WORDS", "find_elsewhere"]

RUN_WORDS = 20
"""Words in a row that two documents must share."""

_TOO_SHORT = f"the passage has fewer than {RUN_WORDS} words"
_NO_OTHER = "there is no document of another group"
_NOWHERE = f"no other document has {RUN_WORDS} words in a row of it"
_PASSAGES_AT_ONCE = 4096
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = pow(_BASE, -1, 1 << 64)


def find_elsewhere(passages: pl.DataFrame, documents: pl.LazyFrame) -> pl.DataFrame:
    """Find the first document of another owner that has 20 words in a row of a passage.

    ``passages`` has ``passage`` and ``owner``, ``documents`` has ``text``, ``owner`` and ``name``.
    One row per passage: ``name`` of the document, ``longest_words`` that both have in a row, and
    ``common``, whether there is one; null with a ``reason`` where nothing can be said. Words are
    those of UAX #29, in lower case, so that punctuation and line breaks do not hide a copy.
    Documents are read once, a batch at a time; runs are looked up by hashes of 64 bits and then
    compared. Memory: some 70 bytes per word of the passages, and 50 per letter of a document.
    """
    texts, owners = passages["passage"].str.to_lowercase(), passages["owner"].to_numpy()
    hashes, rows = _index(texts)
    is_long = np.isin(np.arange(texts.len()), rows)
    found: dict[int, tuple[str, int]] = {}
    searched: set[int] = set()  # two owners are enough
    for batch in documents.drop_nulls("text").collect_batches(maintain_order=True):
        searched |= {*batch["owner"].unique().head(2)}
        for text, owner, name in _having_any(batch, texts).iter_rows():
            near = np.unique(rows[_places(hashes, _run_hashes(text)[0])])
            others = [row for row in near[owners[near] != owner].tolist() if row not in found]
            for row, words in zip(others, _longest(texts.gather(others), text), strict=True):
                if words >= RUN_WORDS:
                    found[row] = (name, words)
    has_other = np.array([bool(searched - {owner}) for owner in owners.tolist()], bool)
    return _said(found, is_long, has_other)


def _said(
    found: dict[int, tuple[str, int]], is_long: NDArray[np.bool_], has_other: NDArray[np.bool_]
) -> pl.DataFrame:
    named = [found.get(row, (None, None)) for row in range(is_long.size)]
    rows = pl.DataFrame(named, {"name": pl.String, "longest_words": pl.UInt32}, orient="row")
    reasons = np.where(is_long, np.where(has_other, _NOWHERE, _NO_OTHER), _TOO_SHORT)
    is_found = pl.col("longest_words").is_not_null()
    return rows.with_columns(
        common=pl.when(pl.Series(is_long & has_other)).then(is_found),
        reason=pl.when(~is_found).then(pl.Series(reasons, dtype=pl.String)),
    )


def _having_any(documents: pl.DataFrame, passages: pl.Series) -> pl.DataFrame:
    """Keep the documents with a run of any passage, their text in lower case."""
    lower = documents.select(pl.col("text").str.to_lowercase(), "owner", "name")
    runs = shared_runs(lower["text"], passages, run_words=RUN_WORDS, words="unicode")
    return lower.filter(runs["shared"] > 0)


def _index(texts: pl.Series) -> tuple[_Hashes, NDArray[np.int64]]:
    """Hash the runs of all passages, in order, and say of each which passage it is of."""
    parts = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for start in range(0, texts.len(), _PASSAGES_AT_ONCE):
        some = texts.slice(start, _PASSAGES_AT_ONCE)
        found, starts = _run_hashes("\n".join(some))
        ends = np.cumsum(some.str.len_chars().to_numpy().astype(np.int64) + 1)
        of_words = np.searchsorted(ends, starts, side="right")
        first, last = of_words[: found.size], of_words[of_words.size - found.size :]
        parts.append((found[first == last], start + first[first == last]))
    hashes, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(hashes)
    return hashes[order], rows[order]


def _places(ordered: _Hashes, wanted: _Hashes) -> NDArray[np.int64]:
    """Find where any of the wanted hashes stands among ordered ones."""
    wanted = np.unique(wanted)
    first, last = (np.searchsorted(ordered, wanted, side) for side in ("left", "right"))
    return np.repeat(first, last - first) + _counted(last - first)


def _counted(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count from 0 within groups of these sizes."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _run_hashes(text: str) -> tuple[_Hashes, NDArray[np.int64]]:
    """Hash each run of words, and say where each word starts; letters make words, words runs."""
    spans = pl.select(word_spans(pl.lit(text), words="unicode")).to_series().struct
    starts, ends = (
        spans.field(name).explode(empty_as_null=False).to_numpy().astype(np.int64)
        for name in ("starts", "ends")
    )
    letters = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    sums = np.append(np.uint64(0), np.cumsum(letters * _powers(_BASE, letters.size)))
    words = (sums[ends] - sums[starts]) * _powers(_INVERSE, letters.size + 1)[starts]
    n_runs = max(words.size - RUN_WORDS + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(RUN_WORDS):
        word = words[place : place + n_runs]
        hashes = hashes * np.uint64(_BASE) + (word ^ (word >> np.uint64(29)))
    return hashes, starts


def _powers(base: int, n: int) -> _Hashes:
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _longest(passages: pl.Series, document: str) -> list[int]:
    """Count the words of the longest run that each passage shares with a document."""
    pairs = pl.DataFrame({"passage": passages}).with_columns(document=pl.lit(document))
    blocks = pair_features("passage", "document", words="unicode", groups=["blocks"])
    words: list[int] = (
        pairs.select(blocks.struct.field("longest_block_words")).to_series().to_list()
    )
    return words
