"""In which languages targets and non-members are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["LanguageDifference", "language_difference"]

_MOST_TEXTS = 2000
"""Texts of a side that are looked at; of more, the first by ``target_id`` (a hash)."""

_CHARACTERS = 1000  # of a text
_SHOWN = 3  # languages of a side
_PERMUTATIONS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageDifference:
    """Languages of two sides, compared.

    Attributes
    ----------
    targets
        Share of the targets by language (ISO 639-1), the largest first.
    nulls
        The same of the non-members.
    distance
        Total variation distance of the two: the share of texts that would have to be in another
        language for both to be alike; in [0, 1].
    p_value
        Share of permutations of the sides of clusters, the true one included, that lie as far
        apart.
    """

    targets: Mapping[str, float]
    nulls: Mapping[str, float]
    distance: float
    p_value: float

    @property
    def sentence(self) -> str:
        """What was found; never that the texts are exchangeable."""
        return (
            f"Languages of targets: {_shares(self.targets)}; of non-members: "
            f"{_shares(self.nulls)}; {self.distance:.0%} would have to be in another for both "
            f"to be alike (p = {self.p_value:.2g})."
        )


def language_difference(
    texts: pl.LazyFrame, *, label: str, seed: int = 0
) -> LanguageDifference | None:
    """Compare the languages of targets and non-members.

    Languages are told by the beginning of a text. Sides are permuted by cluster; where a cluster
    has texts on both sides, they count as two.

    Parameters
    ----------
    texts
        ``target_id``, ``target`` (the text), ``document_id``, ``group``, ``window_index`` and the
        label. Texts without a letter are left out.
    label
        Boolean column, true for targets; rows where it is null are left out.
    seed
        Of the permutations.

    Returns
    -------
    LanguageDifference | None
        The comparison; none where a side has no text.

    References
    ----------
    Languages: Lui and Baldwin (2012), "langid.py: an off-the-shelf language identification tool".
    """
    named = texts.with_columns(cluster=cluster_names(texts))
    sides = [_read(named, side) for side in (pl.col(label), ~pl.col(label))]
    if any(side.is_empty() for side in sides):
        return None
    rows = pl.concat(side.with_columns(side=pl.lit(n)) for n, side in enumerate(sides))
    counts = rows.pivot("language", index=["side", "cluster"], values="n", aggregate_function="sum")
    languages = [name for name in counts.columns if name not in ("side", "cluster")]
    by_unit = counts.select(languages).fill_null(0).to_numpy().astype(np.float64)
    true_side = counts["side"].to_numpy() == 0
    generator = np.random.default_rng(seed)
    drawn = np.stack([true_side, *(generator.permutation(true_side) for _ in range(_PERMUTATIONS))])
    distances = _distances(drawn.astype(np.float64), by_unit)
    shares = [_normalised(by_unit[mask].sum(axis=0)) for mask in (true_side, ~true_side)]
    ordered = [
        dict(sorted(zip(languages, of, strict=True), key=lambda pair: (-pair[1], pair[0])))
        for of in shares
    ]
    return LanguageDifference(
        targets=ordered[0],
        nulls=ordered[1],
        distance=float(distances[0]),
        p_value=float(np.mean(distances >= distances[0] - 1e-12)),
    )


def _read(named: pl.LazyFrame, side: pl.Expr) -> pl.DataFrame:
    """Count one side's texts by ``cluster`` and ``language``."""
    from py3langid import classify

    beginning = pl.col("target").str.head(_CHARACTERS)
    first = (
        named.filter(side, beginning.str.contains(r"\p{L}"))
        .select("target_id", "cluster", text=beginning)
        .bottom_k(_MOST_TEXTS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    languages = pl.Series([classify(text)[0] for text in first["text"]], dtype=pl.String)
    counted = first.select("cluster", language=languages).group_by("cluster", "language").len("n")
    return counted.sort("cluster", "language")


def _distances(of_targets: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Total variation distance for each assignment of units to the targets' side."""
    first = _normalised(of_targets @ counts)
    second = _normalised((1 - of_targets) @ counts)
    distances: NDArray[np.float64] = np.abs(first - second).sum(axis=-1) / 2
    return distances


def _normalised(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = counts / counts.sum(axis=-1, keepdims=True)
    return shares


def _shares(of: Mapping[str, float]) -> str:
    shown = [f"{name} {share:.0%}" for name, share in of.items() if share > 0][:_SHOWN]
    return ", ".join(shown)
