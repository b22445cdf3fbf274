"""How much noise keeps DP-SGD to a privacy loss, and the loss that a training had."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["epsilon_of", "noise_of"]

_TOLERANCE = 1e-3


@cache
def noise_of(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Least noise multiplier with which so many steps keep to (epsilon, delta).

    By privacy loss distributions (Koskela et al. 2020, arXiv:1906.03049; library dp-accounting), of
    Gaussian noise on Poisson-sampled batches, where data sets differ by one record more or less.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def event(noise: float) -> DpEvent:
        return _event(noise, rate, steps)

    # Renyi divergences are fast, and say too much noise, never too little.
    most = calibrate_dp_mechanism(RdpAccountant, event, epsilon, delta, tol=_TOLERANCE)
    near = ExplicitBracketInterval(most / 2, most)
    return float(calibrate_dp_mechanism(PLDAccountant, event, epsilon, delta, near, tol=_TOLERANCE))


def epsilon_of(noise: float, delta: float, rate: float, steps: int) -> float:
    """Return the privacy loss of so many steps."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(_event(noise, rate, steps))
    return float(accountant.get_epsilon(delta))


def _event(noise: float, rate: float, steps: int) -> DpEvent:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
