"""One secret among controls that could have stood in its place: rank, exact p, exposure."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from mia_batch.stats import Floats

__all__ = ["ControlRank", "rank_among_controls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRank:
    """Where a secret stands among its controls.

    Attributes
    ----------
    n_controls
        Controls that have a score.
    n_as_high
        Of these, those that score as high as the secret, or higher.
    """

    n_controls: int
    n_as_high: int

    @property
    def p_value(self) -> float:
        return (1 + self.n_as_high) / (1 + self.n_controls)

    @property
    def smallest(self) -> float:
        """The smallest p-value that so many controls allow."""
        return 1 / (1 + self.n_controls)

    @property
    def exposure(self) -> float:
        """In bits, at most the logarithm of one more than the controls."""
        return log2(1 + self.n_controls) - log2(1 + self.n_as_high)


def rank_among_controls(score: float, controls: Floats) -> ControlRank | None:
    r"""Rank the score of a secret among those of controls; higher is likelier.

    With \(r\) one more than the controls that score as high,
    \(p = r / (1 + N)\): if the secret was drawn as the controls were, all ranks
    have the same probability whatever the scores are, so that \(p\) is exact, and ties
    count against the secret. The exposure is
    \(\log_2 |R| - \log_2 \mathrm{rank}\) of Carlini et al. (2019, arXiv:1802.08232,
    definition 2), with the secret and its controls for all \(|R|\) that could be: an
    estimate that cannot exceed \(\log_2 (1 + N)\).

    None where the secret has no score, or no control has one.
    """
    scored = controls[np.isfinite(controls)]
    if not np.isfinite(score) or not scored.size:
        return None
    return ControlRank(n_controls=scored.size, n_as_high=int((scored >= score).sum()))
