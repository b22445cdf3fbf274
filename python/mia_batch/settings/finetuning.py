"""Settings: reference models that a run makes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from mia_batch.finetuning.recipe import Method, recipe_field
from mia_batch.settings.part import Mark, Part

__all__ = ["FinetuningSettings"]


def _even(value: int) -> int:
    if value % 2:
        msg = "give an even number: every text is in half of the shadow models"
        raise ValueError(msg)
    return value


class FinetuningSettings(Part):
    """Reference models that a run makes: of what they are made, and how they are compared."""

    topic = "Fine-tuned references"

    prompts_from: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Texts whose first tokens the target goes on with; a reference model is tuned "
        "on what it says (SPV-MIA).",
    )
    prompt_tokens: int = Field(16, ge=1, le=1024, description="First tokens of each such text.")
    generations: int = Field(
        1000, ge=2, le=1_000_000, description="Texts that the target generates."
    )
    generation_tokens: int = Field(
        128, ge=2, le=100_000, description="Most tokens of a generation."
    )
    candidate_from: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Texts of the same kind, on which a second reference model is tuned "
        "(LiRA-Candidate).",
    )
    shadows: Annotated[int, AfterValidator(_even)] | None = Field(
        None,
        ge=2,
        le=1024,
        description="Shadow models, each tuned on a random half of the texts (LiRA, RMIA).",
    )
    tuning: Method = recipe_field("method")
    tuning_rank: int = recipe_field("rank")
    tuning_epochs: int = recipe_field("epochs")
    tuning_rate: float = recipe_field("learning_rate")
    tuning_batch: int = recipe_field("batch_size")
    tuning_tokens: int = recipe_field("max_tokens")
    paraphrases: int = Field(
        10, ge=1, le=1000, description="Symmetric pairs of paraphrases of each text (SPV-MIA)."
    )
    paraphrase_share: float = Field(
        0.2, gt=0, le=1, description="Share of the tokens that a paraphrase replaces."
    )
    noise: float = Field(
        0.1,
        gt=0,
        le=100,
        description="Standard deviation of noise on embeddings, in that of the entries of the "
        "model's embedding matrix.",
    )
