"""Views: each turns targets into prompts of one kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import polars as pl

from mia_batch.schemas import Prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["SHADOW", "Decode", "View"]

SHADOW = "shadow-"
"""What names of shadow models begin with; a number follows."""

_SCHEMA = Prompts.create_empty().schema
_CUTS = {
    (): {},
    ("prefix", "reference"): {"context": pl.col("prefix"), "text": pl.col("reference")},
    ("target",): {
        "context": pl.col("target").cast(pl.Binary).bin.head(pl.col("cut")).cast(pl.String),
        "text": pl.col("target").cast(pl.Binary).bin.slice(pl.col("cut")).cast(pl.String),
    },
}
"""What a prompt's context and text are where the table of prompts does not hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How far answers are decoded, as in `Budget`; ``scope`` None: as the run's attacks need it."""

    scope: Literal["matched", "whole"] | None = None
    most_new: int | None = None
    max_attempts: int | None = None
    spare: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one model of a run is asked about every target.

    ``make`` turns rows of the targets table into prompts: ``target_id`` and those columns of
    `Prompts` that are not null or 0 throughout. Where it is None, another stage makes them, or
    the masked model does (``filled``). ``columns`` are those of the targets table that prompts are
    cut from; ``column_setting`` names the setting of a column of the corpus that they need, too.
    ``evidence`` are the settings that change prompts, and ``answers`` those that change samples.
    """

    name: str
    model: str = "target"
    make: Callable[[pl.DataFrame], pl.DataFrame] | None
    columns: tuple[str, ...] = ()
    n: int = 1  # prompts of each target
    samples: int = 1  # continuations of each prompt
    greedy: bool = False  # as in a request
    context_tokens: int | None = None  # as in a request
    text_tokens: int | None = None
    noise: float = 0.0  # as in a request; prompts are pairs, of which the second has the opposite
    share: float = 0.0  # as in a request
    question: bool = False  # as in a request
    decode: Decode = Decode()
    filled: bool = False
    column_setting: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict, hash=False)
    answers: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def read_as(self) -> tuple[str, str]:
        """Model and view as attacks name what they read: all shadow models have one name."""
        return self.model.partition("-")[0], self.name

    @property
    def key(self) -> tuple[str, str]:
        """Model and view, as an attack names what it reads."""
        return self.model, self.name

    def rows(self, made: pl.DataFrame) -> pl.DataFrame:
        """Complete what was made to rows of the prompts table."""
        given = {"model": pl.lit(self.model), "view": pl.lit(self.name), "view_index": pl.lit(0)}
        columns = [
            (pl.col(name) if name in made.columns else given.get(name, pl.lit(None)))
            .cast(dtype)
            .alias(name)
            for name, dtype in _SCHEMA.items()
        ]
        return made.select(columns)

    def resolve(
        self,
        prompts: pl.DataFrame,
        targets: pl.DataFrame,
        whole: Collection[str] = ("context", "text"),
    ) -> pl.DataFrame:
        """Join prompts to their targets, in the targets' order; what ``whole`` names is whole."""
        joined = targets.join(
            prompts.drop("model", "view"), on="target_id", maintain_order="left_right"
        )
        return joined.with_columns(
            pl.when(pl.col("reason").is_null()).then(pl.coalesce(name, cut)).alias(name)
            for name, cut in _CUTS[self.columns].items()
            if name in whole
        )
