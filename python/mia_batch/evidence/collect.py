"""Ask an engine for the samples of blocks, and turn its answers into rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import polars as pl

from mia_batch import kernels
from mia_batch.evidence.engine import SampleRequest
from mia_batch.evidence.seeds import sample_seed
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.budget import Budget
    from mia_batch.evidence.engine import EngineInfo, SampleOutput, SampleResult
    from mia_batch.evidence.tokens import Tokenizer

__all__ = ["Collector", "SampleSource"]

_SCHEMA = Samples.create_empty().schema


class SampleSource(Protocol):
    """A started engine, as the collector sees it."""

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself."""

    def submit(self, request: SampleRequest) -> None:
        """Queue a request."""

    def results(self, timeout: float | None = None) -> list[SampleResult]:
        """Wait for answers."""


@dataclass(slots=True)
class _Open:
    """A block on its way: rows so far, and how many of its targets are not yet done."""

    block: Block
    prompts: list[list[int]]
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


class Collector:
    """Keeps an engine busy with the requests of successive blocks.

    Parameters
    ----------
    source
        The engine.
    tokenizer
        The model's tokenizer.
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
        source: SampleSource,
        tokenizer: Tokenizer,
        budget: Budget,
        *,
        words: kernels.WordRule,
        run_seed: int,
        sampled: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
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
            If the engine as a whole cannot go on.
        """
        asked = self._requests(blocks)
        most = 2 * self._source.info.max_sequences
        while True:
            while self._again:
                self._submit(self._again.popleft())
            while self._sequences < most and (request := next(asked, None)) is not None:
                self._submit(request)
            while self._finished:
                done = self._finished.popleft()
                yield done.block, _table(done)
            if not self._in_flight:
                return
            for result in self._source.results():
                self._take(result)

    def _requests(self, blocks: Iterable[Block]) -> Iterator[_Asked]:
        for block in blocks:
            opened = self._open(block)
            for row, budget in enumerate(self._first_budgets(opened)):
                n = block.last - block.first
                if budget > 0:
                    yield _Asked(opened, row, block.first, n, budget)
                else:
                    self._refuse(opened, row, block.first, n, self._too_long(opened, row))

    def _open(self, block: Block) -> _Open:
        prompts = self._tokenizer.encode_prompts(block.targets["prefix"].to_list())
        opened = _Open(block, prompts, waiting=block.targets.height)
        opened.pending = [block.last - block.first] * block.targets.height
        return opened

    def _first_budgets(self, opened: _Open) -> list[int]:
        references = opened.block.targets["reference"].to_list()
        lengths = self._tokenizer.count_tokens(references)
        return [
            self._budget.first(len(prompt), length) if prompt else 0
            for prompt, length in zip(opened.prompts, lengths, strict=True)
        ]

    def _too_long(self, opened: _Open, row: int) -> str:
        n_tokens = len(opened.prompts[row])
        if n_tokens == 0:
            return "the prefix has no token, and the tokenizer adds none"
        limit = n_tokens + self._budget.room(n_tokens)
        return f"the prefix has {n_tokens} tokens, which leaves no room to continue within {limit}"

    def _submit(self, asked: _Asked) -> None:
        target_id = asked.open.block.targets["target_id"][asked.row]
        self._in_flight[self._request_id] = asked
        self._sequences += asked.n
        request = SampleRequest(
            request_id=self._request_id,
            prompt_token_ids=asked.open.prompts[asked.row],
            seed=sample_seed(self._run_seed, target_id) + asked.first,
            n=asked.n,
            max_tokens=asked.budget,
        )
        self._request_id += 1
        self._source.submit(request)

    def _take(self, result: SampleResult) -> None:
        asked = self._in_flight.pop(result.request_id)
        self._sequences -= asked.n
        if result.error is not None:
            self._refuse(asked.open, asked.row, asked.first, asked.n, result.error)
            return
        token_ids = [output.token_ids for output in result.outputs]
        prompt, candidates = self._tokenizer.decode_candidates(
            asked.open.prompts[asked.row], token_ids
        )
        targets = asked.open.block.targets
        lengths = _count_words([targets["reference"][asked.row], *candidates], self._words)
        self._sampled(0, sum(map(len, token_ids)))
        differs = prompt if prompt != targets["prefix"][asked.row] else None
        for index, (output, candidate) in enumerate(zip(result.outputs, candidates, strict=True)):
            missing = lengths[0] - lengths[index + 1]
            if self._ask_again(asked, index, output, candidate, missing):
                continue
            self._keep(
                asked.open,
                asked.row,
                {
                    "sample_index": asked.first + index,
                    "candidate": candidate,
                    "prompt": differs,
                    "n_tokens": len(output.token_ids),
                    "finish_reason": output.finish_reason,
                    "short": output.finish_reason == "length" and missing > 0,
                },
            )

    def _ask_again(
        self, asked: _Asked, index: int, output: SampleOutput, candidate: str, missing: int
    ) -> bool:
        """Decode a candidate again, same seed, if its budget ended it within the words that count.

        The last of those words counts as whole once something follows it.
        """
        if self._budget.scope == "whole" or output.finish_reason != "length":
            return False
        if missing < 0 or (missing == 0 and candidate[-1:].isspace()):
            return False
        budget = self._budget.next(len(asked.open.prompts[asked.row]), asked.budget)
        if budget is None:
            return False
        self._again.append(_Asked(asked.open, asked.row, asked.first + index, 1, budget))
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


def _count_words(texts: list[str], words: kernels.WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(kernels.count_words("text", words=words))
    return counts.to_series().to_list()


def _table(done: _Open) -> pl.DataFrame:
    """Put the rows of a complete block in order."""
    ordered = sorted(done.rows, key=lambda item: (item[0], item[1]["sample_index"]))
    return pl.DataFrame([values for _, values in ordered], schema=_SCHEMA)
