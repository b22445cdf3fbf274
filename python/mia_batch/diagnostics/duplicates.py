"""Texts of one class that stand in the other, word for word or nearly so."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from mia_batch.kernels import shared_runs

__all__ = ["MAX_TEXTS_PER_SIDE", "NearDuplicates", "SideDuplicates", "near_duplicates"]

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
        Texts with a run of 13 words that stands in the other side.
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
        """Share of texts concerned among those compared; null where there are none."""
        n_compared = self.n_texts - self.n_short
        return self.n_concerned / n_compared if n_compared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Near-duplicates between two classes of texts.

    Attributes
    ----------
    first
        Texts whose label is true, against the others.
    second
        Texts whose label is false, against the former.
    names
        What the two are called, in the plural.
    n_null
        Null texts, left out.
    """

    first: SideDuplicates
    second: SideDuplicates
    names: tuple[str, str]
    n_null: int

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        first, second = self.names
        examples = (*self.first.examples, *self.second.examples)
        example = "; for example {} has words of {}".format(*examples[0]) if examples else ""
        return (
            f"Near-duplicates (a run of {_LONG_RUN_WORDS} words or {_HIGH_OVERLAP:.0%} of the runs "
            f"of {_SHORT_RUN_WORDS} words stand on the other side): {_part(self.first, first)}, "
            f"{_part(self.second, second)}{example}."
        )


def near_duplicates(
    texts: pl.LazyFrame,
    *,
    label: str = "member",
    names: tuple[str, str] = ("members", "non-members"),
) -> NearDuplicates:
    """Find texts of each class that the other class has, too.

    Words are those of UAX #29, in lower case, so that punctuation and line breaks do not hide
    a copy. Overlap is counted against all texts of the other side together.

    Parameters
    ----------
    texts
        ``target_id``, ``target`` (the text) and the label. Null texts are left out and counted; of
        more than ``MAX_TEXTS_PER_SIDE`` the first by ``target_id`` (a hash) are compared.
    label
        Boolean column of the classes; rows where it is null are left out.
    names
        What texts whose label is true, and false, are called.

    Returns
    -------
    NearDuplicates
        Counts, shares and examples.

    References
    ----------
    Runs of 13 words: Brown et al. (2020), arXiv:2005.14165, appendix C. 70 % of runs of 8 words:
    Chowdhery et al. (2022), arXiv:2204.02311, section 8.
    """
    labelled = texts.filter(pl.col(label).is_not_null())
    null = pl.col("target").is_null()
    counts = labelled.group_by(label).agg(known=(~null).sum(), null=null.sum())
    counted = counts.collect(engine="streaming")
    first, second = (_read(labelled, side) for side in (pl.col(label), ~pl.col(label)))
    known = dict(counted.select(label, "known").iter_rows())
    return NearDuplicates(
        first=_compare(first, second, known.get(True, 0)),
        second=_compare(second, first, known.get(False, 0)),
        names=names,
        n_null=int(counted["null"].sum()),
    )


def _read(labelled: pl.LazyFrame, side: pl.Expr) -> pl.DataFrame:
    known = labelled.filter(side & pl.col("target").is_not_null())
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


def _part(side: SideDuplicates, name: str) -> str:
    if side.share is None:
        return f"no {name} of {_SHORT_RUN_WORDS} words to compare"
    of = side.n_texts - side.n_short
    left_out = f" ({side.n_left_out:,} more not compared)" if side.n_left_out else ""
    return f"{side.n_concerned:,} of {of:,} {name}, {side.share:.1%}{left_out}"
