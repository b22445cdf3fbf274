"""Texts that are in a corpus more than once: in both classes, or in several clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from mia_batch.kernels import shared_runs
from mia_batch.targets.clusters import cluster_names

__all__ = ["MAX_TEXTS_PER_SIDE", "SideDuplicates", "count_copies", "near_duplicates"]

MAX_TEXTS_PER_SIDE = 10_000
"""More are left out; so many of 128 words take about 50 MB."""

_LONG_RUN_WORDS = 13
_SHORT_RUN_WORDS = 8
_HIGH_OVERLAP = 0.7
_N_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDuplicates:
    """What the texts of one side have in common with those of the other.

    Attributes
    ----------
    n_texts
        Texts compared.
    n_left_out
        Texts beyond the most that are compared.
    n_short
        Texts of fewer than 8 words, which nothing is said about.
    n_long_run
        Texts with a run of 13 words that is in the other side.
    n_high_overlap
        Texts with at least 70 % of their runs of 8 words in the other side.
    n_concerned
        Texts with either.
    examples
        ``target_id`` of some of these, each with that of a text of the other side.
    """

    n_texts: int
    n_left_out: int
    n_short: int
    n_long_run: int
    n_high_overlap: int
    n_concerned: int
    examples: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float | None:
        """Share of texts concerned among those compared; None where there are none."""
        n_compared = self.n_texts - self.n_short
        return self.n_concerned / n_compared if n_compared else None


def near_duplicates(
    texts: pl.LazyFrame, *, label: str = "member"
) -> tuple[SideDuplicates, SideDuplicates]:
    """Find texts of each class that are in the other, too: label true first, then label false.

    ``texts`` has ``target_id``, ``target`` (the text) and the Boolean label; rows without text or
    label are left out. Words are those of UAX #29, in lower case, so that punctuation and line
    breaks do not hide a copy. Overlap is counted against all texts of the other side together; of
    more than ``MAX_TEXTS_PER_SIDE`` texts the first by ``target_id`` (a hash) are compared.

    References
    ----------
    Runs of 13 words: Brown et al. (2020), arXiv:2005.14165, appendix C. 70 % of runs of 8 words:
    Chowdhery et al. (2022), arXiv:2204.02311, section 8.
    """
    known = texts.filter(pl.col(label).is_not_null(), pl.col("target").is_not_null())
    counts = dict(known.group_by(label).len().collect(engine="streaming").iter_rows())
    first, second = (_read(known, side) for side in (pl.col(label), ~pl.col(label)))
    return (
        _compare(first, second, counts.get(True, 0)),
        _compare(second, first, counts.get(False, 0)),
    )


def count_copies(texts: pl.LazyFrame) -> tuple[int, int]:
    """Count texts, and those that are in another cluster byte for byte (by 64-bit hashes).

    ``texts`` has ``target`` (the text) and the columns of `cluster_names`; null texts are left out.
    Each of two equal texts is a copy.
    """
    clusters = texts.with_columns(cluster=cluster_names(texts))
    known = clusters.filter(pl.col("target").is_not_null())
    hashes = known.select(pl.col("target").hash(), pl.col("cluster").hash())
    text, cluster = (column.to_numpy() for column in hashes.collect(engine="streaming"))
    if not text.size:
        return 0, 0
    order = np.lexsort((cluster, text))
    text, cluster = text[order], cluster[order]
    is_same = text[1:] == text[:-1]
    starts = np.flatnonzero(np.append(True, ~is_same))
    is_elsewhere = np.append(False, is_same & (cluster[1:] != cluster[:-1]))
    sizes = np.diff(np.append(starts, text.size))
    return text.size, int(sizes[np.logical_or.reduceat(is_elsewhere, starts)].sum())


def _read(texts: pl.LazyFrame, side: pl.Expr) -> pl.DataFrame:
    known = texts.filter(side)
    keys = known.select("target_id").bottom_k(MAX_TEXTS_PER_SIDE, by="target_id")
    firsts = keys.collect(engine="streaming").to_series()
    wanted = known.filter(pl.col("target_id").is_in(firsts.implode()))
    lower = wanted.select("target_id", pl.col("target").str.to_lowercase())
    return lower.collect(engine="streaming").sort("target_id")


def _compare(texts: pl.DataFrame, others: pl.DataFrame, n_known: int) -> SideDuplicates:
    long, short = (
        shared_runs(texts["target"], others["target"], run_words=n_words, words="unicode")
        for n_words in (_LONG_RUN_WORDS, _SHORT_RUN_WORDS)
    )
    long_run = long["shared"] > 0
    high_overlap = (short["shared"] > 0) & (short["shared"] >= _HIGH_OVERLAP * short["runs"])
    concerned = long_run | high_overlap
    return SideDuplicates(
        n_texts=texts.height,
        n_left_out=n_known - texts.height,
        n_short=int((short["runs"] == 0).sum()),
        n_long_run=int(long_run.sum()),
        n_high_overlap=int(high_overlap.sum()),
        n_concerned=int(concerned.sum()),
        examples=_examples(
            texts["target_id"].filter(concerned),
            others["target_id"],
            # Where no long run is shared, a short one is.
            long["other"].fill_null(short["other"]).filter(concerned),
        ),
    )


def _examples(
    texts: pl.Series, others: pl.Series, places: pl.Series
) -> tuple[tuple[str, str], ...]:
    pairs = zip(texts.head(_N_EXAMPLES), others.gather(places).head(_N_EXAMPLES), strict=True)
    return tuple(pairs)
