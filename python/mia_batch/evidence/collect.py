"""Ask a source for the samples of blocks, and turn its answers into rows."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import kernels
from mia_batch.evidence.source import TextRequest
from mia_batch.prompts.seeds import sample_seed
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.budget import Budget
    from mia_batch.evidence.engine import FinishReason
    from mia_batch.evidence.source import Source, TextOutput, TextResult
    from mia_batch.models.measure import Measure

__all__ = ["Collector"]

_SCHEMA = Samples.create_empty().schema


@dataclass(slots=True)
class _Open:
    """A block on its way: rows so far, and how many of its targets are not yet done."""

    block: Block
    measures: list[Measure]
    waiting: int
    pending: list[int] = field(default_factory=list)
    rows: list[tuple[int, dict[str, object]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request in flight: samples ``first .. first + n - 1`` of one target."""

    open: _Open
    row: int
    first: int
    n: int
    budget: int
    attempts: int = 1


class Collector:
    """Keeps a source busy with the requests of successive blocks.

    Parameters
    ----------
    source
        What continues texts.
    measure
        Tells how long prefixes and references are.
    budget
        How many tokens to decode.
    words
        Word rule by which a candidate's length is held against its reference's.
    run_seed
        Seed of the run.
    sampled
        Called as answers arrive, with the targets completed and the tokens decoded since last.
    """

    def __init__(
        self,
        source: Source,
        measure: Callable[[list[str], list[str]], list[Measure]],
        budget: Budget,
        *,
        words: kernels.WordRule,
        run_seed: int,
        sampled: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._measure = measure
        self._budget = budget
        self._words: kernels.WordRule = words
        self._run_seed = run_seed
        self._sampled = sampled
        self._in_flight: dict[int, _Asked] = {}
        self._sequences = 0
        self._request_id = 0
        self._again: deque[_Asked] = deque()
        self._finished: deque[_Open] = deque()

    def collect(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Sample every block.

        Parameters
        ----------
        blocks
            What to sample; read only as far ahead as the engine needs.

        Yields
        ------
        tuple[Block, DataFrame]
            A block, as soon as it is complete, and its rows of the samples table, in the order of
            its targets and of ``sample_index``.

        Raises
        ------
        EngineError
            If the source as a whole cannot go on.
        """
        asked = self._requests(blocks)
        while True:
            while self._again:
                self._submit(self._again.popleft())
            while self._has_room() and (request := next(asked, None)) is not None:
                self._submit(request)
            while self._finished:
                done = self._finished.popleft()
                yield done.block, _table(done)
            if not self._in_flight:
                return
            for result in self._source.results():
                self._take(result)

    def _has_room(self) -> bool:
        return self._source.has_room(requests=len(self._in_flight), samples=self._sequences)

    def _requests(self, blocks: Iterable[Block]) -> Iterator[_Asked]:
        for block in blocks:
            opened = self._open(block)
            n = block.last - block.first
            for row, measure in enumerate(opened.measures):
                budget = self._budget.first(measure.prompt_tokens, measure.reference_tokens)
                if measure.prompt_tokens > 0 and budget > 0:
                    yield _Asked(opened, row, block.first, n, budget)
                else:
                    self._refuse(opened, row, block.first, n, self._too_long(measure))

    def _open(self, block: Block) -> _Open:
        targets = block.targets
        measures = self._measure(targets["prefix"].to_list(), targets["reference"].to_list())
        opened = _Open(block, measures, waiting=targets.height)
        opened.pending = [block.last - block.first] * targets.height
        return opened

    def _too_long(self, measure: Measure) -> str:
        n_tokens = measure.prompt_tokens
        if n_tokens == 0:
            return "the prefix has no token, and the tokenizer adds none"
        limit = n_tokens + self._budget.room(n_tokens)
        return f"the prefix has {n_tokens} tokens, which leaves no room to continue within {limit}"

    def _submit(self, asked: _Asked) -> None:
        targets = asked.open.block.targets
        target_id = targets["target_id"][asked.row]
        self._in_flight[self._request_id] = asked
        self._sequences += asked.n
        request = TextRequest(
            request_id=self._request_id,
            key=f"{target_id}:{asked.first}:{asked.n}:{asked.budget}",
            prompt=targets["prefix"][asked.row],
            prompt_token_ids=asked.open.measures[asked.row].prompt_token_ids,
            seed=sample_seed(self._run_seed, target_id) + asked.first,
            n=asked.n,
            max_tokens=asked.budget,
        )
        self._request_id += 1
        self._source.submit(request)

    def _take(self, result: TextResult) -> None:
        asked = self._in_flight.pop(result.request_id)
        self._sequences -= asked.n
        if result.error is not None:
            self._refuse(asked.open, asked.row, asked.first, asked.n, result.error)
            return
        targets = asked.open.block.targets
        texts = [output.text for output in result.outputs]
        lengths = _count_words([targets["reference"][asked.row], *texts], self._words)
        self._sampled(0, sum(output.n_tokens or 0 for output in result.outputs))
        differs = result.prompt if result.prompt != targets["prefix"][asked.row] else None
        for index, output in enumerate(result.outputs):
            missing = lengths[0] - lengths[index + 1]
            if self._ask_again(asked, index, output, missing):
                continue
            self._keep(
                asked.open,
                asked.row,
                {
                    "sample_index": asked.first + index,
                    "candidate": output.text,
                    "prompt": differs,
                    "n_tokens": output.n_tokens,
                    "finish_reason": output.finish_reason,
                    "short": _is_short(output.finish_reason, missing),
                },
            )

    def _ask_again(self, asked: _Asked, index: int, output: TextOutput, missing: int) -> bool:
        """Decode a candidate again, same seed, if its budget ended it within the words that count.

        The last of those words counts as whole once something follows it.
        """
        if self._budget.scope == "whole" or output.finish_reason != "length" or missing < 0:
            return False
        if missing == 0 and _ends_words(output.text[-1:], self._words):
            return False
        n_tokens = asked.open.measures[asked.row].prompt_tokens
        budget = self._budget.next(n_tokens, asked.budget, asked.attempts)
        if budget is None:
            return False
        again = _Asked(
            asked.open, asked.row, asked.first + index, 1, budget, attempts=asked.attempts + 1
        )
        self._again.append(again)
        return True

    def _refuse(self, opened: _Open, row: int, first: int, n: int, reason: str) -> None:
        for index in range(first, first + n):
            self._keep(opened, row, {"sample_index": index, "reason": reason})

    def _keep(self, opened: _Open, row: int, values: dict[str, object]) -> None:
        target_id = opened.block.targets["target_id"][row]
        opened.rows.append((row, {"target_id": target_id, **values}))
        opened.pending[row] -= 1
        if opened.pending[row] == 0:
            opened.waiting -= 1
            self._sampled(1, 0)
        if opened.waiting == 0:
            self._finished.append(opened)


def _is_short(finish_reason: FinishReason | None, missing: int) -> bool | None:
    return None if finish_reason is None else finish_reason == "length" and missing > 0


def _count_words(texts: list[str], words: kernels.WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(kernels.count_words("text", words=words))
    return counts.to_series().to_list()


def _ends_words(last: str, words: kernels.WordRule) -> bool:
    """Whether nothing that follows this character of a text can belong to a word before it.

    Under ``unicode`` a point may stand inside a word, so only white space is certain.
    """
    match words:
        case "space":
            return last == " "
        case "rouge":
            return re.fullmatch("[a-z0-9]", last.lower()) is None
        case "whitespace" | "unicode":
            return last.isspace()


def _table(done: _Open) -> pl.DataFrame:
    """Put the rows of a complete block in order."""
    ordered = sorted(done.rows, key=lambda item: (item[0], item[1]["sample_index"]))
    return pl.DataFrame([values for _, values in ordered], schema=_SCHEMA)
