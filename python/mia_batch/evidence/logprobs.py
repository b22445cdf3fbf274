"""Log-probabilities of the tokens of prompts' texts, and the rows made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.evidence.collect import Asked, Row
from mia_batch.evidence.request import Request
from mia_batch.kernels import zlib_size
from mia_batch.prompts.seeds import sample_seed
from mia_batch.schemas import LogProbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.request import Answer, EvidenceKind
    from mia_batch.prompts.view import View

__all__ = ["FREQUENCY", "NOISE", "QUESTION", "LogprobTask", "abilities"]

QUESTION = "question"
"""What an engine says of itself that gives log-probabilities of several answers to a question."""
NOISE = "noise"
"""View whose embeddings have noise, and what an engine that can read them says of itself."""
FREQUENCY = "log_inverse_frequency"
"""The one column of numbers of tokens that no engine computes."""

_SCHEMA = LogProbs.create_empty().schema
_FLOATS = ("logprob", "vocabulary_mean", "vocabulary_variance", "support_mass")
_LISTS = (*_FLOATS, "token_ids", "rank", FREQUENCY)


def abilities(views: Iterable[View]) -> set[str]:
    """Say what an engine must be able to do for some views beside columns."""
    return {NOISE for view in views if view.noise} | {QUESTION for view in views if view.question}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTask:
    """Ask for the log-probabilities of each prompt's text, and columns beside them.

    ``views`` are known by the labels of their blocks, each with its columns.
    ``log_inverse_frequency`` is float32 by token id, of the reference corpus. ``trained`` says by
    ``target_id`` whether the run tuned the model on it.
    """

    views: Mapping[str, tuple[View, frozenset[str]]]
    run_seed: int = 0
    log_inverse_frequency: NDArray[np.float32] | None = None
    trained: pl.DataFrame | None = None
    kind: EvidenceKind = "logprobs"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Row]]]]:
        """Ask about each prompt that can be asked."""
        view, columns = self.views[block.label]
        prompts = block.units.select("target_id", "view_index", "context", "text", "reason")
        refused: list[tuple[int, Row]] = []
        asked = []
        for unit, (target_id, index, context, text, reason) in enumerate(prompts.iter_rows()):
            if reason is not None:
                refused.append((unit, {"reason": reason}))
                continue
            request = Request(
                request_id=0,
                kind="logprobs",
                key=f"{target_id}:{view.model}:{view.name}:{index}",
                context=context,
                text=text,
                context_tokens=view.context_tokens,
                text_tokens=view.text_tokens,
                question=view.question,
                **self._noise(view, target_id, index),
                columns=columns - {FREQUENCY},
            )
            asked.append(Asked(unit=unit, request=request))
        yield None, refused
        for each in asked:
            yield each, []

    def _noise(self, view: View, target_id: str, index: int) -> dict[str, Any]:
        """Give both prompts of a pair the same noise, the second with the opposite sign."""
        if not view.noise:
            return {}
        seed = sample_seed(self.run_seed, target_id, view.name, index // 2)
        return {"noise": -view.noise if index % 2 else view.noise, "seed": seed}

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Row], list[Asked]]:
        """Make the one row of a prompt."""
        del asked
        if answer.tokens is None:
            return [{"reason": answer.error, "asked": answer.asked}], []
        row: Row = {"bos": answer.bos, "bounded": answer.bounded, **answer.tokens}
        if FREQUENCY in self.views[block.label][1] and self.log_inverse_frequency is not None:
            row[FREQUENCY] = self.log_inverse_frequency[answer.tokens["token_ids"]]
        return [row], []

    def _trained(self, units: pl.DataFrame) -> pl.Series:
        if self.trained is None:
            return pl.Series([None] * units.height, dtype=pl.Boolean)
        known = units.select("target_id").join(
            self.trained, on="target_id", how="left", maintain_order="left"
        )
        return known["trained"]

    def table(self, block: Block, rows: list[tuple[int, Row]]) -> pl.DataFrame:
        """Put the rows in the order of the prompts."""
        view, _ = self.views[block.label]
        by_unit = dict(rows)
        ordered = [by_unit[unit] for unit in range(block.units.height)]
        texts = block.units["text"].to_list()
        columns: dict[str, Any] = {
            "target_id": block.units["target_id"],
            "model": [view.model] * len(ordered),
            "view": [view.name] * len(ordered),
            "view_index": block.units["view_index"],
            "text": [
                text if "logprob" in row or row.get("asked", False) else None
                for text, row in zip(texts, ordered, strict=True)
            ],
            "bos": [row.get("bos") for row in ordered],
            "trained": self._trained(block.units),
            "bounded": [row.get("bounded") for row in ordered],
            "reason": [row.get("reason") for row in ordered],
        }
        for name in _LISTS:
            values = [row.get(name) for row in ordered]
            columns[name] = [None if value is None else pl.Series(value) for value in values]
        types = {name: dtype for name, dtype in _SCHEMA.items() if name in columns}
        table = pl.DataFrame(columns, schema_overrides={**types, "text": pl.String})
        return table.with_columns(
            pl.col(_FLOATS).list.eval(pl.element().fill_nan(None)),
            rank=pl.col("rank").list.eval(pl.when(pl.element() > 0).then(pl.element())),
            n_bytes=pl.col("text").str.len_bytes(),
            zlib_size=zlib_size("text"),
        ).select(_SCHEMA.names())
