"""The texts of the blind baseline: which ones, and what the classifiers see of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.diagnostics.blind.classifiers import (
    Direction,
    Logistic,
    NaiveBayes,
    Ridge,
)
from mia_batch.kernels import count_words, zlib_size
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from mia_batch.diagnostics.blind.classifiers import Classifier

__all__ = [
    "MAX_CHARACTERS",
    "MAX_TEXTS_PER_CLASS",
    "BlindTexts",
    "build_classifiers",
    "read_texts",
    "seen_of_texts",
]

MAX_TEXTS_PER_CLASS = 500
"""More are left out: the upper limit of so many is 0.56 on average where there is no difference."""

MAX_CHARACTERS = 10_000
"""Of a text that words and n-grams are counted in; the other classifiers see all of it."""


_ROWS_AT_ONCE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindTexts:
    """Texts of both classes, in the order of their ``target_id``.

    Attributes
    ----------
    frame
        ``target_id``, ``label``, ``text`` (its beginning), ``year`` and ``surface`` (a struct).
    cluster
        Cluster of each text, from 0 without gaps.
    n_labelled
        Texts with a label, whether used or not.
    """

    frame: pl.DataFrame
    cluster: NDArray[np.intp]
    n_labelled: int

    @property
    def label(self) -> NDArray[np.bool_]:
        """Class of each text."""
        return self.frame["label"].to_numpy()


def read_texts(texts: pl.LazyFrame, label: str) -> BlindTexts:
    """Choose at most ``MAX_TEXTS_PER_CLASS`` texts of each class, and read them.

    Of each cluster the first text by ``target_id`` (a hash, so an order that means nothing) is
    taken, then of each the second, and so on: as many clusters as can be, as evenly as can be.
    """
    keys = texts.select(
        "target_id",
        label=pl.col(label),
        cluster=cluster_names(texts),
        null=pl.col("target").is_null(),
    ).filter(pl.col("label").is_not_null())
    chosen, n_labelled = _choose(keys)
    wanted = texts.filter(pl.col("target_id").is_in(chosen["target_id"].implode()))
    seen = wanted.select("target_id", *seen_of_texts())
    frame = chosen.join(seen.collect(engine="streaming"), on="target_id", maintain_order="left")
    return BlindTexts(
        frame=frame.drop("cluster"),
        cluster=(chosen["cluster"].rank("dense").to_numpy() - 1).astype(np.intp),
        n_labelled=n_labelled,
    )


def seen_of_texts() -> list[pl.Expr]:
    """Take from each ``target`` what the classifiers see: ``text``, ``year`` and ``surface``."""
    return [_beginning().alias("text"), _year().alias("year"), _surface().alias("surface")]


def build_classifiers(seen: pl.DataFrame) -> Mapping[str, Classifier]:
    """Make every classifier of the columns of `seen_of_texts`, none of them trained yet."""
    text = seen["text"]
    words = _counts(text, token_pattern=r"(?u)\w+")
    grams = _counts(text, analyzer="char_wb", ngram_range=(3, 5)).sign()
    return {
        "blind_naive_bayes_v1": NaiveBayes(words),
        "blind_logistic_v1": Logistic(words.sign()),
        "blind_ngrams_v1": Ridge((grams @ grams.T).toarray(), penalty=0.05),
        "blind_surface_v1": Ridge(_similarity(seen["surface"]), penalty=1.0),
        "blind_year_v1": Direction(-seen["year"].to_numpy().astype(float)),
    }


def _choose(keys: pl.LazyFrame) -> tuple[pl.DataFrame, int]:
    """Choose texts batch by batch, and count how many there are, null ones included.

    What a batch and those before it leave out, later ones cannot bring back: they only add texts
    that come earlier, or in a later place of their cluster.
    """
    chosen = keys.clear().collect().drop("null")
    n_labelled = 0
    for batch in keys.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        n_labelled += batch.height
        known = batch.filter(~pl.col("null")).drop("null")
        chosen = _firsts(pl.concat([chosen, known]))
    return chosen, n_labelled


def _firsts(keys: pl.DataFrame) -> pl.DataFrame:
    place = pl.int_range(pl.len()).over("label", "cluster", order_by="target_id")
    ranked = keys.with_columns(place=place).sort("place", "target_id")
    firsts = ranked.group_by("label").head(MAX_TEXTS_PER_CLASS)
    return firsts.select("target_id", "label", "cluster").sort("target_id")


def _beginning() -> pl.Expr:
    return pl.col("target").str.head(MAX_CHARACTERS)


def _year() -> pl.Expr:
    """Largest number that may be a year, 0 where there is none."""
    years = pl.col("target").str.extract_all("(19|20)[0-9][0-9]")
    return years.list.eval(pl.element().cast(pl.Int32)).list.max().fill_null(0)


def _surface() -> pl.Expr:
    """Length, and how much of it is what kind of character; compression."""
    text = pl.col("target")
    length, n_bytes = text.str.len_chars() + 1, text.str.len_bytes() + 1
    counts = {
        "punctuation": r"[^\w\s]",
        "commas": ",",
        "digits": "[0-9]",
        "numbers": r"[0-9]+",
        "capitals": r"\p{Lu}",
        "spaces": r"\s",
        "lines": "\n",
    }
    shares = [(text.str.count_matches(kind) / length).alias(name) for name, kind in counts.items()]
    return pl.struct(
        length.log().alias("characters"),
        (count_words("target") + 1).log().alias("words"),
        (n_bytes / length).alias("bytes"),
        (zlib_size("target") / n_bytes).alias("zlib"),
        *shares,
    )


def _counts(texts: pl.Series, **options: object) -> csr_array:
    """Count words or n-grams of the lower-cased texts, one row per text."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(dtype=np.float64, **options)
    counts = vectorizer.fit_transform([*texts, "word"])  # it refuses texts without any word
    return csr_array(counts)[:-1]


def _similarity(surface: pl.Series) -> NDArray[np.float64]:
    """Gaussian similarity of standardised numbers, so that no direction is taken for granted."""
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.preprocessing import StandardScaler

    numbers = StandardScaler().fit_transform(surface.struct.unnest().to_numpy())
    similarity: NDArray[np.float64] = rbf_kernel(numbers, gamma=0.5 / numbers.shape[1])
    return similarity
