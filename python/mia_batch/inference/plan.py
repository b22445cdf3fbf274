"""What a run is to decide and how, fixed before any score is seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from mia_batch.inference.groups import Statistic
    from mia_batch.inference.multiplicity import Adjustment

__all__ = ["PlanLevel", "TieRule", "VerdictPlan"]

PlanLevel = Literal["target", "group", "collection"]
TieRule = Literal["conservative", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPlan:
    """The one analysis that counts; whatever else is computed is exploratory.

    Attributes
    ----------
    primary
        The attack that decides.
    level
        What is decided about: each ``target``, each ``group``, or the ``collection`` of groups.
    null_set
        Which texts are the null, and how it is known that they are outside the training data.
    q
        Share of false discoveries allowed, in (0, 1).
    adjustment
        The procedure that bounds it; where nulls share groups, Benjamini-Yekutieli whatever is
        named here.
    ties
        Whether a null counts as higher than an equal score, or a seeded draw decides.
    statistic
        What is taken of a group's windows.
    windows_per_group
        Windows compared of each group; none: so many as nine groups in ten have.
    length_edges
        Words at which a new bucket of lengths begins, rising: targets are compared with nulls of
        their own bucket. None: all lengths together.
    fpr
        Share of nulls above the threshold at which the contamination rate is estimated.
    seed
        Of tie draws, of the pattern of windows and of permutations; not negative.

    Raises
    ------
    SettingsError
        If a number is out of its range.
    """

    primary: str
    level: PlanLevel
    null_set: str
    q: float = 0.05
    adjustment: Adjustment = "bh"
    ties: TieRule = "conservative"
    statistic: Statistic = "mean"
    windows_per_group: int | None = None
    length_edges: tuple[int, ...] = ()
    fpr: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        windows = self.windows_per_group
        faults = {
            "q must lie between 0 and 1": not 0 < self.q < 1,
            "fpr must lie between 0 and 1": not 0 < self.fpr < 1,
            "windows_per_group must be at least 1": windows is not None and windows < 1,
            "seed must not be negative": self.seed < 0,
            "length_edges must rise": list(self.length_edges) != sorted(set(self.length_edges)),
        }
        for fault, present in faults.items():
            if present:
                msg = f"{fault}; correct the plan of verdicts"
                raise SettingsError(msg)

    def digest(self) -> str:
        """Hash the plan.

        Returns
        -------
        str
            SHA-256 of its fields as JSON with sorted keys and no spaces, 64 hexadecimal digits.
        """
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return sha256(content.encode()).hexdigest()
