"""What each text, or cluster of texts, adds to the error of a ROC AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.clusters import effective_number, few, is_enough
from mia_batch.stats.roc import n_beaten, pieces, roc_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AucEstimate", "estimate_auc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AucEstimate:
    """A ROC AUC and what is known of its error.

    Attributes
    ----------
    value
        The AUC, in [0, 1].
    variance
        Its estimated variance; 0 where undefined (a single text or cluster of a class).
    sizes
        Members and non-members; where texts are clustered, as many texts as there would be were
        those of a cluster equal (Kish's effective number of clusters).
    clustered
        Whether texts share clusters.
    """

    value: float
    variance: float
    sizes: tuple[float, float]
    clustered: bool

    @property
    def lack(self) -> str | None:
        """Why there is no interval."""
        if self.n_groups is None or is_enough(self.n_groups):
            return None
        return few(self.n_groups, " in each class")

    @property
    def n_groups(self) -> float | None:
        """Effective number of clusters of the class that has fewer; None of independent texts."""
        return min(self.sizes) if self.clustered else None

    def quantile(self, z: float) -> float:
        """Widen a normal quantile where few groups tell of their own spread.

        With ``n_groups - 1`` degrees of freedom, an effective number, at the same probability.
        """
        if self.n_groups is None:
            return z
        from scipy.stats import norm, t

        return float(t.isf(norm.sf(z), self.n_groups - 1))


def estimate_auc(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    cluster: NDArray[np.int32] | None = None,
) -> tuple[AucEstimate, NDArray[np.float64]]:
    """Compute a ROC AUC and the influence of each text or cluster.

    The sum of the influences' squares estimates the AUC's variance, the sum of their products with
    those of another AUC over the same texts their covariance. A cluster counts in
    both classes where it has texts of both.

    Influences are float64, of the texts or of the clusters in the order of codes.

    References
    ----------
    Independent texts: DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or
    more correlated receiver operating characteristic curves", equations 4 to 6. Clusters:
    Obuchowski (1997), "Nonparametric analysis of clustered ROC curve data", section 2, where each
    class has a factor K / (K - 1). It is here 1 / (1 - w) of each cluster, which has the share w of
    the class's texts and draws the AUC towards itself by as much (Bell and McCaffrey 2002, "Bias
    reduction in standard errors for linear regression with multi-stage samples"): the same where
    clusters are of one size.
    """
    curve = roc_curve(member, score)
    value = curve.area
    codes = np.arange(member.size, dtype=np.int32) if cluster is None else cluster
    influence = np.zeros(int(codes.max()) + 1)
    sizes = []
    for rows, others, sign, mean in (
        (np.flatnonzero(member), curve.nonmembers, 1, value),
        (np.flatnonzero(~member), curve.members, -1, 1 - value),
    ):
        counts = np.zeros(influence.size, np.int32)
        np.add.at(counts, codes[rows], 1)
        sizes.append(effective_number(counts))
        own = np.zeros_like(influence)
        for piece in pieces(rows):
            placement = n_beaten(score[piece], others) / others.size - mean
            np.add.at(own, codes[piece], placement / rows.size)
        influence += sign * own / np.sqrt(np.maximum(1 - counts / rows.size, 1 / rows.size))
    if min(sizes) == 1:  # a class is one text or cluster
        influence[:] = 0
    estimate = AucEstimate(
        value=value,
        variance=float(influence @ influence),
        sizes=(sizes[0], sizes[1]),
        clustered=cluster is not None,
    )
    return estimate, influence
