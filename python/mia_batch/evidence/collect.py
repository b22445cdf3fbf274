"""Ask a source about the units of blocks, and turn its answers into rows."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import (
    Answer,
    AnswerSource,
    Budget,
    Continuation,
    EvidenceKind,
    Request,
)
from mia_batch.kernels import WordRule, count_words, zlib_size
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import Measure
from mia_batch.prompts.views import View, numbered, sample_seed
from mia_batch.schemas import LogProbs, Samples
from mia_batch.tables import scan, sink

Values: TypeAlias = dict[str, Any]
"""Values of a row of evidence by column."""

Told: TypeAlias = Callable[[str, int, int, int], None]
"""Takes a block's label, and units, tokens and forward passes since last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request about one unit of a block, before it has a number."""

    unit: int  # position in the block
    request: Request
    first: int = 0  # number of the first row that is asked for
    reference_words: int = 0  # words of what is to be reached
    attempts: int = 1


class Task(Protocol):
    """What is asked about units, and how answers become rows."""

    @property
    def kind(self) -> EvidenceKind:
        """What is asked."""

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Values]]]]:
        """Yield what to ask, and rows (with their unit) of what cannot be asked."""

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Values], list[Asked]]:
        """Turn an answer into rows, and ask again where it does not suffice."""

    def table(self, block: Block, rows: list[tuple[int, Values]]) -> pl.DataFrame:
        """Put the rows of a complete block, each with its unit, in order."""


@dataclass(slots=True)
class _Open:
    """A block on its way: rows so far, and how many rows of each unit are to come."""

    block: Block
    pending: list[int]
    rows: list[tuple[int, Values]] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.waiting = len(self.pending)


class Collector:
    """Keeps a source busy with the requests of successive blocks.

    ``told`` is called as answers arrive, with the block's label, and the units completed, the
    tokens decoded or read, and the forward passes made since last.
    """

    def __init__(self, source: AnswerSource, task: Task, told: Told) -> None:
        self._source = source
        self._task = task
        self._told = told
        self._in_flight: dict[int, tuple[_Open, Asked]] = {}
        self._samples = 0
        self._request_id = 0
        self._again: deque[tuple[_Open, Asked]] = deque()
        self._finished: deque[_Open] = deque()

    def collect(self, blocks: Iterable[Block | None]) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Yield each block as soon as it is complete, and its rows in the order of its units.

        Blocks are read only as far ahead as the source needs; None among them is none for now.
        Raises `EngineError` if the source as a whole cannot go on.
        """
        asked = self._requests(blocks)
        while True:
            while self._again:
                self._submit(*self._again.popleft())
            while (
                self._source.has_room(requests=len(self._in_flight), samples=self._samples)
                and (request := next(asked, None)) is not None
            ):
                self._submit(*request)
            while self._finished:
                done = self._finished.popleft()
                yield done.block, self._task.table(done.block, done.rows)
            if not self._in_flight:
                return
            for answer in self._source.results():
                self._take(answer)

    def _requests(self, blocks: Iterable[Block | None]) -> Iterator[tuple[_Open, Asked] | None]:
        for block in blocks:
            if block is None:
                yield None
                continue
            opened = _Open(block, [block.last - block.first] * block.units.height)
            for asked, refused in self._task.ask(block):
                self._keep(opened, refused)
                if asked is not None:
                    yield opened, asked

    def _submit(self, opened: _Open, asked: Asked) -> None:
        number = self._request_id
        self._request_id += 1
        self._in_flight[number] = opened, asked
        self._samples += asked.request.n
        self._source.submit(replace(asked.request, request_id=number))

    def _take(self, answer: Answer) -> None:
        opened, asked = self._in_flight.pop(answer.request_id)
        self._samples -= asked.request.n
        rows, again = self._task.read(opened.block, asked, answer)
        tokens = sum(given.n_tokens or 0 for given in answer.continuations)
        if answer.tokens is not None:
            tokens += answer.tokens["logprob"].size
        self._told(opened.block.label, 0, tokens, answer.passes)
        self._again.extend((opened, each) for each in again)
        self._keep(opened, [(asked.unit, row) for row in rows])

    def _keep(self, opened: _Open, rows: list[tuple[int, Values]]) -> None:
        for unit, row in rows:
            opened.rows.append((unit, row))
            opened.pending[unit] -= 1
            if opened.pending[unit] == 0:
                opened.waiting -= 1
                self._told(opened.block.label, 1, 0, 0)
        if rows and opened.waiting == 0:
            self._finished.append(opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    """Continue the context of each prompt; ``measure`` tells lengths, ``budget`` how far to go."""

    view: View
    measure: Callable[[list[str], list[str]], list[Measure]]
    budget: Budget
    words: WordRule
    run_seed: int
    kind: EvidenceKind = "samples"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Values]]]]:
        """Ask for all samples of a prompt at once; one without room has a reason."""
        prompts = block.units
        contexts, texts = prompts["context"].to_list(), prompts["text"].to_list()
        measures = self.measure(contexts, texts)
        counts = _count_words(texts, self.words)
        n, view = block.last - block.first, self.view
        rows = prompts.select("target_id", "view_index").iter_rows()
        for unit, ((target_id, index), measure) in enumerate(zip(rows, measures, strict=True)):
            budget = self.budget.first(measure.prompt_tokens, measure.reference_tokens)
            if measure.prompt_tokens == 0 or budget <= 0:
                row = {"reason": self._too_long(measure), "answer": "not_asked"}
                indices = range(block.first, block.last)
                yield None, [(unit, {"sample_index": index, **row}) for index in indices]
                continue
            request = Request(
                request_id=0,
                kind="samples",
                key=f"{target_id}:{view.model}:{view.name}:{index}:{block.first}:{n}:{budget}",
                context=contexts[unit],
                context_ids=measure.prompt_token_ids,
                n=n,
                seed=sample_seed(self.run_seed, target_id, view.name, index) + block.first,
                max_tokens=budget,
                greedy=view.greedy,
                question=view.question,
            )
            yield (
                Asked(unit=unit, request=request, first=block.first, reference_words=counts[unit]),
                [],
            )

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Values], list[Asked]]:
        """Keep candidates that suffice; ask again, same seed, for those that end too early."""
        del block
        if answer.error is not None:
            indices = range(asked.first, asked.first + asked.request.n)
            return [{"sample_index": index, "reason": answer.error} for index in indices], []
        texts = [given.text or "" for given in answer.continuations]
        differs = answer.prompt if answer.prompt != asked.request.context else None
        rows, again = [], []
        for index, (given, count) in enumerate(
            zip(answer.continuations, _count_words(texts, self.words), strict=True)
        ):
            missing = asked.reference_words - count
            if (further := self._further(asked, index, given, missing)) is not None:
                again.append(further)
                continue
            finish = None if given.reason else given.finish_reason
            rows.append(
                {
                    "sample_index": asked.first + index,
                    "candidate": given.text,
                    "prompt": differs,
                    "n_tokens": given.n_tokens,
                    "finish_reason": given.finish_reason,
                    "short": None if finish is None else finish == "length" and missing > 0,
                    "answer": given.answer,
                    "reason": given.reason,
                }
            )
        return rows, again

    def table(self, block: Block, rows: list[tuple[int, Values]]) -> pl.DataFrame:
        keys = list(block.units.select("target_id", "view_index").iter_rows())
        ordered = sorted(rows, key=lambda item: (item[0], item[1]["sample_index"]))
        own = {"model": self.view.model, "view": self.view.name}
        made: list[Values] = [
            {"target_id": keys[unit][0], "view_index": keys[unit][1], **own, **values}
            for unit, values in ordered
        ]
        return pl.DataFrame(made, schema=Samples.create_empty().schema)

    def _further(self, asked: Asked, index: int, given: Continuation, missing: int) -> Asked | None:
        """Decode a candidate again if its budget ended it within the words that count.

        The last of those words counts as whole once something follows it.
        """
        ended = given.finish_reason != "length" or given.reason is not None
        if self.budget.scope == "whole" or ended or missing < 0:
            return None
        if missing == 0 and _ends_words((given.text or "")[-1:], self.words):
            return None
        request = asked.request
        ids = request.context_ids
        n_tokens = (
            self.measure([request.context], [""])[0].prompt_tokens if ids is None else len(ids)
        )
        budget = self.budget.next(n_tokens, request.max_tokens, asked.attempts)
        if budget is None:
            return None
        first, seed = asked.first + index, request.seed + index
        key = f"{request.key.rsplit(':', 3)[0]}:{first}:1:{budget}"
        request = replace(request, key=key, n=1, seed=seed, max_tokens=budget)
        return replace(asked, first=first, attempts=asked.attempts + 1, request=request)

    def _too_long(self, measure: Measure) -> str:
        n_tokens = measure.prompt_tokens
        if n_tokens == 0:
            return "the prefix has no token, and the tokenizer adds none"
        limit = n_tokens + self.budget.room(n_tokens)
        return f"the prefix has {n_tokens} tokens, which leaves no room to continue within {limit}"


def _count_words(texts: list[str], words: WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(count_words("text", words=words))
    return counts.to_series().to_list()


def _ends_words(last: str, words: WordRule) -> bool:
    """Whether nothing that follows this character of a text can belong to a word before it.

    Under ``unicode`` a point may stand inside a word, so only white space is certain.
    """
    match words:
        case "space":
            return last == " "
        case "rouge":
            return re.fullmatch("[a-z0-9]", last.lower()) is None
        case "whitespace" | "unicode" | "script":
            return last.isspace()


QUESTION = "question"
"""What an engine says of itself that gives log-probabilities of several answers to a question."""
NOISE = "noise"
"""View whose embeddings have noise, and what an engine that can read them says of itself."""
FREQUENCY = "log_inverse_frequency"
"""The one column of numbers of tokens that no engine computes."""

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

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Values]]]]:
        view, columns = self.views[block.label]
        prompts = block.units.select("target_id", "view_index", "context", "text", "reason")
        yield (
            None,
            [(unit, {"reason": reason}) for unit, reason in enumerate(prompts["reason"]) if reason],
        )
        for unit, (target_id, index, context, text, reason) in enumerate(prompts.iter_rows()):
            if reason is not None:
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
            yield Asked(unit=unit, request=request), []

    def _noise(self, view: View, target_id: str, index: int) -> dict[str, Any]:
        """Give both prompts of a pair the same noise, the second with the opposite sign."""
        if not view.noise:
            return {}
        seed = sample_seed(self.run_seed, target_id, view.name, index // 2)
        return {"noise": -view.noise if index % 2 else view.noise, "seed": seed}

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Values], list[Asked]]:
        del asked
        if answer.tokens is None:
            return [{"reason": answer.error, "asked": answer.asked}], []
        row: Values = {"bos": answer.bos, "bounded": answer.bounded, **answer.tokens}
        if FREQUENCY in self.views[block.label][1] and self.log_inverse_frequency is not None:
            row[FREQUENCY] = self.log_inverse_frequency[answer.tokens["token_ids"]]
        return [row], []

    def table(self, block: Block, rows: list[tuple[int, Values]]) -> pl.DataFrame:
        view, _ = self.views[block.label]
        by_unit = dict(rows)
        ordered = [by_unit[unit] for unit in range(block.units.height)]
        texts = block.units["text"].to_list()
        known = pl.DataFrame(schema={"target_id": pl.String, "trained": pl.Boolean})
        trained = block.units.select("target_id").join(
            known if self.trained is None else self.trained,
            on="target_id",
            how="left",
            maintain_order="left",
        )
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
            "trained": trained["trained"],
            "bounded": [row.get("bounded") for row in ordered],
            "reason": [row.get("reason") for row in ordered],
        }
        for name in _LISTS:
            values = [row.get(name) for row in ordered]
            columns[name] = [None if value is None else pl.Series(value) for value in values]
        schema = LogProbs.create_empty().schema
        types = {name: dtype for name, dtype in schema.items() if name in columns}
        table = pl.DataFrame(columns, schema_overrides={**types, "text": pl.String})
        return table.with_columns(
            pl.col(_FLOATS).list.eval(pl.element().fill_nan(None)),
            rank=pl.col("rank").list.eval(pl.when(pl.element() > 0).then(pl.element())),
            n_bytes=pl.col("text").str.len_bytes(),
            zlib_size=zlib_size("text"),
        ).select(schema.names())


@dataclass(frozen=True, slots=True, kw_only=True)
class FillTask:
    """Ask a masked model for variants of each target; the first ones are the same however many."""

    view: View
    run_seed: int
    kind: EvidenceKind = "fills"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Values]]]]:
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

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Values], list[Asked]]:
        """Keep the variants that are wanted; those that are not there have a reason."""
        texts = [given.text for given in answer.continuations]
        target_id = block.units["target_id"][asked.unit]
        return numbered(target_id, texts, range(block.first, block.last), answer.error), []

    def table(self, block: Block, rows: list[tuple[int, Values]]) -> pl.DataFrame:
        del block
        ordered = sorted(rows, key=lambda item: (item[0], item[1]["view_index"]))
        names = {"view_index": pl.UInt32, "text": pl.String, "reason": pl.String}
        return self.view.rows(pl.DataFrame([row for _, row in ordered], schema_overrides=names))


_BATCH = 4096


class _Table(dy.Schema):
    """One row per token of the vocabulary, in the order of their ids."""

    count = dy.UInt64()
    tokenizer = dy.String()
    """Digest of the tokenizer, the same in every row."""


def stored_frequencies(
    path: Path, texts: pl.LazyFrame, tokenizer: Tokenizer
) -> npt.NDArray[np.float32]:
    """Log of 1 / frequency of each token, from counts of ``text`` that are kept in a file."""
    if not path.exists():
        batches = texts.select("text").drop_nulls().collect_batches(chunk_size=_BATCH)
        counts = np.zeros(tokenizer.vocabulary, np.uint64)
        for ids in (ids for batch in batches for ids in tokenizer.encode(batch["text"].to_list())):
            np.add.at(counts, np.asarray(ids, dtype=np.int64), 1)
        if not counts.any():
            raise SettingsError(
                "setting 'frequencies_from': the corpus has no text; give one that has"
            )
        counted = pl.DataFrame({"count": counts}).with_columns(tokenizer=pl.lit(tokenizer.digest))
        sink(counted, path, _Table)
    table = scan(path, _Table).collect()
    if set(table["tokenizer"]) != {tokenizer.digest}:
        raise SettingsError(
            f"{path} counts the tokens of another tokenizer than the model's; remove it to have "
            "the corpus counted again"
        )
    return log_inverse(table["count"].to_numpy())


def log_inverse(counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Log of (total + vocabulary) / (count + 1) of each token, natural, float32, above 0.

    Zhang et al. (2024), arXiv:2409.14781; Laplace smoothing as in the authors' code.
    """
    whole = float(counts.sum()) + len(counts)
    inverse: npt.NDArray[np.float32] = np.log(whole / (counts + 1.0)).astype(np.float32)
    return inverse
