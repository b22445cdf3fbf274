"""Settings: texts that help to answer, and how the answer is given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mia_batch.settings.part import Part, names

__all__ = ["VerdictSettings"]


class VerdictSettings(Part):
    """Texts that help to answer, and how the answer is given.

    Attributes are described by their fields.
    """

    non_members: str | None = Field(
        None,
        min_length=1,
        description="Texts known not to be in the training data: each target is compared with "
        "them.  [default: the input's own of member = false]",
    )
    non_members_known: str | None = Field(
        None,
        min_length=1,
        description="How it is known that they are not, in a sentence that is printed with the "
        "result.",
    )
    calibration: str | None = Field(
        None,
        min_length=1,
        description="Other texts of known membership, from which thresholds and rates are taken.",
    )
    canaries: str | None = Field(
        None,
        min_length=1,
        description="Sets of texts of which one each, drawn at random, was published.",
    )
    primary: str | None = Field(
        None,
        min_length=1,
        description="The attack that the answer rests on.  [default: samia_matched_v1, or "
        "min_k_plus_plus_20_v1 without samples]",
    )
    level: Literal["target", "group"] = Field(
        "target", description="What is asked about: each target, or each whole group."
    )
    group_targets: int | None = Field(
        None, ge=1, description="Targets that stand for a group (level group).  [default: 10]"
    )
    statistic: Literal["mean", "median", "maximum"] = Field(
        "mean", description="What is compared of a group's targets (level group)."
    )
    q: float = Field(
        0.05, gt=0, lt=1, description="Most false ones among what is reported, as a share."
    )
    adjust: Literal["bh", "by"] = Field(
        "bh", description="Benjamini-Hochberg, or Benjamini-Yekutieli for any dependence."
    )
    ties: Literal["conservative", "random"] = Field(
        "conservative", description="Equal scores count against the target, or are broken by lot."
    )
    second_draw: bool = Field(
        default=False, description="Sample twice, to see which answers would have been others."
    )
    slice_by: Annotated[tuple[str, ...], BeforeValidator(names)] = Field(
        (), description="Columns, separated by commas, by whose values metrics are given as well."
    )
