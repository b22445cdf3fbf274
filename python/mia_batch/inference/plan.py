"""What a run is to decide and how, recorded before any score is seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia_batch.inference.conformal import Adjustment

__all__ = ["PlanLevel", "Statistic", "TieRule", "VerdictPlan", "preregister"]

PlanLevel = Literal["target", "group", "collection"]
TieRule = Literal["conservative", "random"]
Statistic = Literal["mean", "median", "maximum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPlan:
    """The one analysis that counts; whatever else is computed is exploratory."""

    primary: str  # the attack that decides
    level: PlanLevel
    null_set: str  # which texts are the null, and how it is known that they are outside
    q: float = 0.05  # share of false discoveries allowed
    adjustment: Adjustment = "bh"
    ties: TieRule = "conservative"
    statistic: Statistic = "mean"  # of a group's windows
    windows_per_group: int | None = None  # None: as many as nine groups in ten have
    length_edges: tuple[int, ...] = ()  # words at which a bucket of lengths begins, ascending
    fpr: float = 0.05  # share of nulls above the threshold of the contamination rate
    seed: int = 0  # of tie draws, window patterns and permutations

    def __post_init__(self) -> None:
        windows = self.windows_per_group
        faults = {
            "q must lie between 0 and 1": not 0 < self.q < 1,
            "fpr must lie between 0 and 1": not 0 < self.fpr < 1,
            "windows_per_group must be at least 1": windows is not None and windows < 1,
            "seed must not be negative": self.seed < 0,
            "length_edges must ascend": list(self.length_edges) != sorted(set(self.length_edges)),
        }
        for fault, present in faults.items():
            if present:
                msg = f"{fault}; correct the plan of verdicts"
                raise SettingsError(msg)

    def digest(self) -> str:
        """SHA-256 of the fields as JSON with sorted keys and no spaces, in hexadecimal."""
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return sha256(content.encode()).hexdigest()


def preregister(
    plan: VerdictPlan, rests_on: Mapping[str, int | str] | None, attacks: Sequence[str]
) -> dict[str, Any]:
    """Return what is recorded before the first score; answers to anything else are exploratory.

    ``rests_on`` tells the texts, by their SHA-256, and the numbers of samples and points, for
    others may change any answer; None where there were scores before any plan. ``attacks`` are all
    that are computed, which are tested together; the plan's SHA-256 is not about them.
    """
    made = None if rests_on is None else dict(rests_on)
    return asdict(plan) | {"sha256": plan.digest(), "rests_on": made, "attacks": [*attacks]}
