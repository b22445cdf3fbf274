"""Settings: reference sets, and how the answer is given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from mia_batch.settings.part import Mark, Part, names

__all__ = ["CLASSICS", "NO_YARDSTICK", "VerdictSettings"]

CLASSICS, NO_YARDSTICK = "default", "none"
"""Yardsticks that are no file."""


class VerdictSettings(Part):
    """Reference sets, and how the answer is given."""

    topic = "Reference sets and answers"

    non_members: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Texts known not to be in the training data: each target is compared with "
        "them.  [default: the input's own of member = false]",
    )
    non_members_known: Annotated[str, StringConstraints(strip_whitespace=True)] | None = Field(
        None,
        min_length=1,
        description="How it is known that they are not, in a sentence that is printed with the "
        "result.",
    )
    calibration: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Other texts of known membership, from which thresholds and rates are taken.",
    )
    canaries: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Sets of texts of which one each, drawn at random, was published.",
    )
    yardstick: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Texts that the model knows to a known degree, with a column level: they are "
        "asked in the same way and say what finding nothing means. default: 115 passages of "
        "classics; none, or --no-yardstick: no such texts.  [default: the classics for books, else "
        "none]",
    )
    combine: bool = Field(
        default=False,
        description="Learn from texts of known membership how to combine the scores of all "
        "attacks, as a further attack: combination_v1.",
    )
    primary: str | None = Field(
        None,
        min_length=1,
        description="The attack that the answer rests on.  [default: "
        "probe_leading_rarity_v1, samia_matched_v1 or min_k_plus_plus_20_v1, the first that is "
        "computed]",
    )
    level: Literal["target", "group", "collection"] = Field(
        "target",
        description="What the answer is about: each target, each whole group, or all groups "
        "together.",
    )
    windows_per_group: int | None = Field(
        None,
        ge=1,
        description="Targets compared of each group; groups with fewer get no answer.  [default: "
        "as many as nine groups in ten have]",
    )
    exploratory: bool = Field(
        default=False,
        description="Print p-values, lists and estimates, marked as exploratory, even where a "
        "classifier that never sees the model tells the targets from the non-members.",
    )
    statistic: Literal["mean", "median", "maximum"] = Field(
        "mean", description="What is compared of a group's targets."
    )
    q: float = Field(
        0.05, gt=0, lt=1, description="Largest share of false ones among what is reported."
    )
    adjustment: Literal["bh", "by"] = Field(
        "bh", description="Benjamini-Hochberg, or Benjamini-Yekutieli for any dependence."
    )
    anyway: bool = Field(
        default=False,
        description="Go on where no answer can come of it: so few non-members allow none at this "
        "level, or they can be told apart from the targets without the model.",
    )
    stop_when_decided: bool = Field(
        default=False,
        description="Ask about the windows of groups in rounds, each group until it is reported or "
        "can no longer be (e-BH), instead of about all: saves tokens. Needs --level group.",
    )
    ties: Literal["conservative", "random"] = Field(
        "conservative",
        description="Equal scores count against the target, or are ordered at random.",
    )
    length_edges: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(names)] = (
        Field(
            (),
            description="Words at which a new bucket begins, separated by commas: targets are "
            "compared with non-members of their own bucket.",
        )
    )
    fpr: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Share of non-members above the threshold at which the contamination rate is "
        "estimated.",
    )
    plan_lodged: Annotated[str, StringConstraints(strip_whitespace=True)] | None = Field(
        None,
        min_length=1,
        description="When and where the plan was lodged before the run, in a sentence that the "
        "report shows; --dry-run prints the plan's SHA-256.",
    )
    slice_by: Annotated[tuple[str, ...], BeforeValidator(names)] = Field(
        (), description="Columns, separated by commas, by whose values metrics are given as well."
    )
