"""Which texts resamples are drawn from: all of them, or of very many a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.bootstrap import N_RESAMPLES, Ranking, Units, find_units, rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mia_batch.metrics.labels import Labelled

__all__ = ["Part", "find_parts"]

_MOST_TEXTS = 100_000
"""Of more labelled texts parts are resampled, of about so many texts."""

_FEWEST_UNITS = 200
"""A part has so many units of each stratum, or all of them: it must tell how units differ."""

_N_RESAMPLES_OF_PARTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Texts that resamples are drawn from.

    Attributes
    ----------
    rows
        Which of the labelled targets they are.
    member
        Whether each is a member.
    units
        What is drawn.
    slices
        Positions among ``rows`` of each slice that is measured in these resamples.
    share
        Share of each stratum's units that the part has, in (0, 1].
    seed
        Of its resamples.
    n_resamples
        How many.
    """

    rows: NDArray[np.intp] | slice
    member: NDArray[np.bool_]
    units: Units
    slices: dict[str, NDArray[np.intp] | slice]
    share: float
    seed: int
    n_resamples: int

    @property
    def n_rows(self) -> int:
        """Texts of all slices together."""
        return sum(self.member[rows].size for rows in self.slices.values())

    def rankings(self, score: NDArray[np.float64]) -> Iterator[tuple[str, Ranking]]:
        """Sort an attack's scores on each slice for `resample`.

        Slices that have scored texts of both classes; of less than all texts, those of which more
        than half of both classes are scored, for fewer tell too little of their spread.
        """
        own = score[self.rows]
        for name, rows in self.slices.items():
            scored = ~np.isnan(own[rows])
            member, unit = self.member[rows], self.units.code[rows]
            fewest = min(scored[member].mean(), scored[~member].mean()) if _both(member) else 0.0
            if fewest > (0.0 if self.share == 1 else 0.5):
                yield name, rank(member[scored], own[rows][scored], unit[scored])

    def widened(self, draws: NDArray[np.float64], auc: float) -> NDArray[np.float64]:
        """Give resamples of a part the spread of resamples of all texts, around the full AUC.

        Deviations shrink with the square root of the number of units, so those of m units are
        multiplied by sqrt(m / n).

        ``draws`` are AUC and rates in resamples, one row each.

        References
        ----------
        Bickel, Goetze and van Zwet (1997), "Resampling fewer than n observations"; Politis, Romano
        and Wolf (1999), "Subsampling", section 2.2, for the factor.
        """
        if self.share == 1:
            return draws
        centre = np.nanmean(draws, axis=0)
        made: NDArray[np.float64] = centre + (draws - centre) * self.share**0.5
        made[:, 0] += auc - centre[0]
        return made


def find_parts(labelled: Labelled, seed: int) -> list[Part]:
    """Decide which texts the resamples of each slice are drawn from.

    Up to 100,000 targets: one part of all texts and slices, with 2,000 resamples. Of more, a part
    for each slice that has both classes, with 1,000 resamples: about 100,000 of its texts as whole
    units drawn without replacement from each stratum, but at least 200 of its units; the resamples
    of two slices are then independent, which makes bounds over both wider.
    """
    member, cluster = labelled.member, labelled.cluster
    if member.size <= _MOST_TEXTS:
        units = find_units(member, cluster)
        whole = Part(
            rows=slice(None),
            member=member,
            units=units,
            slices=labelled.slices,
            share=1.0,
            seed=seed,
            n_resamples=N_RESAMPLES,
        )
        return [whole]
    return [
        _part(labelled, name, np.random.default_rng([seed, number]))
        for number, (name, rows) in enumerate(labelled.slices.items())
        if _both(member[rows])
    ]


def _part(labelled: Labelled, name: str, rng: np.random.Generator) -> Part:
    rows = labelled.slices[name]
    member = labelled.member[rows]
    cluster = None if labelled.cluster is None else labelled.cluster[rows]
    chosen, share = _choose(member, cluster, rng)
    codes = None
    if cluster is not None:
        codes = np.unique(cluster[chosen], return_inverse=True)[1].astype(np.int32)
    return Part(
        rows=chosen if isinstance(rows, slice) else rows[chosen],
        member=member[chosen],
        units=find_units(member[chosen], codes),
        slices={name: slice(None)},
        share=share,
        seed=int(rng.integers(2**31)),
        n_resamples=_N_RESAMPLES_OF_PARTS,
    )


def _choose(
    member: NDArray[np.bool_], cluster: NDArray[np.int32] | None, rng: np.random.Generator
) -> tuple[NDArray[np.intp], float]:
    """Choose whole units, the same share of each stratum; positions of their texts."""
    code = np.arange(member.size, dtype=np.int32) if cluster is None else cluster
    of_members, of_nonmembers = (
        np.bincount(code[rows], minlength=code.max() + 1) > 0 for rows in (member, ~member)
    )
    strata = [of_members, of_nonmembers]
    if (of_members & of_nonmembers).any():
        strata = [of_members | of_nonmembers]
    units = [np.flatnonzero(stratum) for stratum in strata]
    fewest = min(stratum.size for stratum in units)
    share = min(1.0, max(_MOST_TEXTS / member.size, _FEWEST_UNITS / fewest))
    kept = np.zeros(of_members.size, np.bool_)
    for stratum in units:
        kept[rng.choice(stratum, round(share * stratum.size), replace=False)] = True
    return np.flatnonzero(kept[code]), share


def _both(member: NDArray[np.bool_]) -> bool:
    return bool(member.any() and not member.all())
