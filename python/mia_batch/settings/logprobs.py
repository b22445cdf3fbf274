"""Settings: what log-probabilities are asked of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mia_batch.settings.part import Column, Mark, Part

__all__ = ["LogprobSettings"]


class LogprobSettings(Part):
    """What log-probabilities are asked of, and by which other models."""

    topic = "Log-probabilities"

    reference_model: Annotated[str | None, Mark.MODEL] = Field(
        None,
        min_length=1,
        description="Model to compare with, smaller or the base of a tuned one; it is asked the "
        "same, at points too. With 'non_members' the planned test is made on it, too: a placebo.",
    )
    reference_revision: str | None = Field(
        None, min_length=1, description="Hub revision of the reference model."
    )
    masked_model: Annotated[str | None, Mark.MODEL] = Field(
        None, min_length=1, description="Masked model that makes neighbours of the texts."
    )
    neighbours: int = Field(25, ge=1, le=1000, description="Neighbours made of each text.")
    neighbours_column: Column = Field(
        None, description="Column with lists of neighbours of your own."
    )
    nonmember_shots: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Texts known not to be members, put before each text (ReCaLL).",
    )
    member_shots: Annotated[str | None, Mark.PATH] = Field(
        None, min_length=1, description="Texts known to be members, likewise (Con-ReCaLL)."
    )
    shots: int = Field(10, ge=1, description="Most texts put before each text.")
    frequencies_from: Annotated[str | None, Mark.PATH] = Field(
        None, min_length=1, description="Corpus in which tokens are counted (DC-PDD)."
    )
    extraction_prefix_tokens: int = Field(
        50, ge=1, description="Last tokens of the prefix that an extraction starts from."
    )
    extraction_tokens: int = Field(
        50, ge=1, description="First tokens of the reference that are to be extracted."
    )
    long_texts: Literal["refuse", "stride"] = Field(
        "refuse",
        description="Texts longer than the context get no log-probabilities, or those of pieces "
        "of its length, none of which sees another.",
    )
    logits_memory: int = Field(
        128, ge=1, description="Most memory in MiB for the logits of one forward pass at a time."
    )
