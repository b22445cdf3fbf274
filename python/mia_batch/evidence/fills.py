"""Variants of targets that a masked model makes: they are prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence.collect import Asked, Row
from mia_batch.evidence.request import Request
from mia_batch.prompts.given import numbered
from mia_batch.prompts.seeds import sample_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.request import Answer, EvidenceKind
    from mia_batch.prompts.view import View

__all__ = ["FillTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillTask:
    """Ask a masked model for variants of each target; the first ones are the same however many."""

    view: View
    run_seed: int
    kind: EvidenceKind = "fills"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Row]]]]:
        """Ask for all variants of a target at once."""
        targets = block.units.select("target_id", "target").iter_rows()
        for unit, (target_id, text) in enumerate(targets):
            request = Request(
                request_id=0,
                kind="fills",
                key=f"{target_id}:{self.view.name}",
                view=self.view.name,
                text=text,
                n=block.last,
                share=self.view.share,
                seed=sample_seed(self.run_seed, target_id),
            )
            yield Asked(unit=unit, request=request), []

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Row], list[Asked]]:
        """Keep the variants that are wanted; those that are not there have a reason."""
        texts = [given.text for given in answer.continuations]
        target_id = block.units["target_id"][asked.unit]
        return numbered(target_id, texts, range(block.first, block.last), answer.error), []

    def table(self, block: Block, rows: list[tuple[int, Row]]) -> pl.DataFrame:
        """Put the prompts in the order of the targets."""
        del block
        ordered = sorted(rows, key=lambda item: (item[0], item[1]["view_index"]))
        names = {"view_index": pl.UInt32, "text": pl.String, "reason": pl.String}
        return self.view.rows(pl.DataFrame([row for _, row in ordered], schema_overrides=names))
