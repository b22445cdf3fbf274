"""Ask a scorer for the texts of blocks, and turn its answers into rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch import kernels
from mia_batch.evidence.scoring.source import TextScoreRequest
from mia_batch.schemas import LogProbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.scoring.source import TextScorer, TextScoreResult
    from mia_batch.evidence.scoring.view import Seen, View

__all__ = ["FREQUENCY", "ScoreCollector"]

FREQUENCY = "log_inverse_frequency"
"""The one number of tokens that no engine computes."""

_SCHEMA = LogProbs.create_empty().schema
_NUMBERS = ("logprob", "mean", "variance", "kept_mass")


@dataclass(slots=True)
class _Open:
    """A block on its way: the texts that its model shall see, and the answers so far."""

    view: View
    block: Block
    keys: list[tuple[str, int]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


class ScoreCollector:
    """Keeps a scorer busy with the texts of successive blocks.

    Parameters
    ----------
    scorer
        What gives log-probabilities.
    log_inverse_frequency
        Float32 by token id, of the reference corpus; null where there is none.
    scored
        Called as answers arrive, with the texts completed and the tokens scored since last.

    Attributes
    ----------
    passes
        Forward passes so far, by view.
    """

    def __init__(
        self,
        scorer: TextScorer,
        log_inverse_frequency: NDArray[np.float32] | None,
        *,
        scored: Callable[[int, int], None],
    ) -> None:
        self._scorer = scorer
        self._log_inverse_frequency = log_inverse_frequency
        self._scored = scored
        self._in_flight: dict[int, tuple[_Open, int]] = {}
        self._request_id = 0
        self._finished: deque[_Open] = deque()
        self.passes: dict[str, int] = {}

    def collect(self, blocks: Iterable[tuple[View, Block]]) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Have every text of every block scored.

        Parameters
        ----------
        blocks
            Views and the blocks that lack them; read only as far ahead as the scorer needs.

        Yields
        ------
        tuple[Block, DataFrame]
            A block, as soon as it is complete, and its rows of the logprobs table, in the order of
            its targets and of ``view_index``.

        Raises
        ------
        EngineError
            If the scorer as a whole cannot go on.
        """
        asked = self._texts(blocks)
        while True:
            while self._scorer.has_room(requests=len(self._in_flight)):
                if (text := next(asked, None)) is None:
                    break
                self._submit(*text)
            while self._finished:
                done = self._finished.popleft()
                yield done.block, self._table(done)
            if not self._in_flight:
                return
            for result in self._scorer.results():
                self._take(result)

    def _texts(self, blocks: Iterable[tuple[View, Block]]) -> Iterator[tuple[_Open, int]]:
        for view, block in blocks:
            opened = _Open(view, block)
            indices = range(block.first, block.last)
            made = view.make(block.targets, indices)
            for target_id, texts in zip(block.targets["target_id"], made, strict=True):
                opened.keys += [(target_id, index) for index in indices]
                opened.seen += texts
            asked = []
            for row, seen in enumerate(opened.seen):
                if seen.text is None:
                    self._keep(opened, row, {"reason": seen.reason})
                else:
                    asked.append(row)
            yield from ((opened, row) for row in asked)

    def _submit(self, opened: _Open, row: int) -> None:
        seen, view = opened.seen[row], opened.view
        target_id, index = opened.keys[row]
        self._in_flight[self._request_id] = (opened, row)
        request = TextScoreRequest(
            request_id=self._request_id,
            key=f"{target_id}:{view.role}:{view.name}:{index}",
            context=seen.context,
            text=seen.text or "",
            context_tokens=view.context_tokens,
            text_tokens=view.text_tokens,
            wanted=view.wanted,
        )
        self._request_id += 1
        self._scorer.submit(request)

    def _take(self, result: TextScoreResult) -> None:
        opened, row = self._in_flight.pop(result.request_id)
        name = opened.view.name
        self.passes[name] = self.passes.get(name, 0) + result.passes
        scores = result.scores
        if scores is None:
            self._keep(opened, row, {"reason": result.error, "asked": result.asked})
            return
        self._scored(0, scores.logprob.size)
        values: dict[str, Any] = {"bos": scores.bos, "token_ids": scores.token_ids}
        values |= {number: getattr(scores, number) for number in (*_NUMBERS, "rank")}
        frequencies = self._log_inverse_frequency
        if FREQUENCY in opened.view.wanted and frequencies is not None:
            values[FREQUENCY] = frequencies[scores.token_ids]
        self._keep(opened, row, values)

    def _keep(self, opened: _Open, row: int, values: dict[str, Any]) -> None:
        opened.rows[row] = values
        self._scored(1, 0)
        if len(opened.rows) == len(opened.seen):
            self._finished.append(opened)

    def _table(self, done: _Open) -> pl.DataFrame:
        """Put the rows of a complete block in order."""
        rows = [done.rows[row] for row in range(len(done.seen))]
        columns: dict[str, Any] = {
            "target_id": [target_id for target_id, _ in done.keys],
            "model_role": [done.view.role] * len(rows),
            "view": [done.view.name] * len(rows),
            "view_index": [index for _, index in done.keys],
            "text": [
                seen.text if row.get("asked", True) else None
                for seen, row in zip(done.seen, rows, strict=True)
            ],
            "bos": [row.get("bos") for row in rows],
            "reason": [row.get("reason") for row in rows],
        }
        for name in (*_NUMBERS, "token_ids", "rank", FREQUENCY):
            values = [row.get(name) for row in rows]
            columns[name] = [None if value is None else pl.Series(value) for value in values]
        types = {name: dtype for name, dtype in _SCHEMA.items() if name in columns}
        table = pl.DataFrame(columns, schema_overrides=types)
        return table.with_columns(
            pl.col(_NUMBERS).list.eval(pl.element().fill_nan(None)),
            rank=pl.col("rank").list.eval(pl.when(pl.element() > 0).then(pl.element())),
            n_bytes=pl.col("text").str.len_bytes(),
            zlib_size=kernels.zlib_size("text"),
        ).select(_SCHEMA.names())
