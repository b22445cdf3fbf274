"""Ask a source about the units of blocks, and turn its answers into rows."""

import gc
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.dress import NOTHING_LEFT, Rule, undress
from mia_batch.evidence.parts import Block
from mia_batch.evidence.repetition import text_loop_end
from mia_batch.evidence.request import (
    Answer,
    AnswerSource,
    Budget,
    Continuation,
    Request,
)
from mia_batch.kernels import WordRule, count_words, zlib_size
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import Measure
from mia_batch.prompts import number_texts, sample_seed
from mia_batch.schemas import LogProbs, Samples, Table
from mia_batch.tables import scan, sink
from mia_batch.views import View

Result = TypeVar("Result")
Row: TypeAlias = tuple[int, Any]
"""Position of a unit in its block, and the values of a row of evidence, as its task keeps them."""

OnAnswer: TypeAlias = Callable[[str, int, int, int], None]
"""Takes a block's label, and units, tokens and forward passes since the last call."""

CompleteBlock: TypeAlias = tuple[Block, pl.DataFrame]
"""A block, and all its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRequest:
    """A request about one unit of a block, before it has a number."""

    unit: int  # position in the block
    request: Request
    first: int = 0  # number of the first row that is asked for
    reference_words: int = 0  # words of what is to be reached
    most_tokens: int = 0  # that an answer may have after the last attempt
    attempts: int = 1


AnsweredRequest: TypeAlias = tuple[UnitRequest, Answer]


class Task(Protocol):
    """What is asked about units, and how answers become rows."""

    def ask(self, block: Block) -> Iterator[UnitRequest | Row]:
        """Iterate over what to ask, and rows of what cannot be asked."""

    def read(
        self, block: Block, answered: Sequence[AnsweredRequest], /
    ) -> Iterator[UnitRequest | Row]:
        """Turn answers into rows, and ask again where one does not suffice."""

    def table(self, block: Block, rows: list[Row], /) -> pl.DataFrame:
        """Put the rows of a complete block in order."""


class Executor(Protocol):
    """Works on blocks; nothing outside it knows where."""

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        on_answer: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Result],
        /,
    ) -> Iterator[tuple[Block, Result]]:
        """Iterate over complete blocks, with what ``keep`` returned for block and rows.

        ``keep`` may be called in another process or on another machine; it and ``task``
        can be pickled.
        """


REFUSED = "the engine ended each time that it was asked about this text"

_AT_ONCE = 256  # requests in one message to an engine
# Pieces of a block, and of each of them: a start costs more than a few texts
_SPLIT = 8
_MAX_CRASHES = 2  # of engines with one text in hand and nothing else
# Texts in a row that crash the engine: then it is not the texts
_MAX_CONSECUTIVE_CRASHES = 3


def refuse(task: Task, block: Block, reason: str = REFUSED) -> pl.DataFrame:
    """Build the rows of a block that is not asked about: each has the reason."""
    rows: list[Row] = []
    for item in task.ask(block):
        if isinstance(item, UnitRequest):
            answer = item.request.failed(reason, passes=0)
            failed = task.read(block, [(item, answer)])
            rows += (row for row in failed if isinstance(row, tuple))
        else:
            rows.append(item)
    return task.table(block, rows)


@dataclass(slots=True)
class _BlockInPieces:
    """A block, and the rows of its complete pieces by their first unit."""

    block: Block
    pieces: int = 1  # that are not complete
    is_postponed: bool = False  # whether answers to some of it are to come another time
    rows: dict[int, pl.DataFrame] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Piece:
    """Units that are asked about together: a block, or a few of its units once they are suspect."""

    whole: _BlockInPieces
    block: Block
    first: int = 0
    suspect: bool = False
    crashes: int = 0  # of the engine, with nothing else in hand
    rows: list[Row] = field(default_factory=list)
    # Rows that are to come, of each unit that has any
    pending: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        n_rows = self.block.last - self.block.first
        self.pending = dict.fromkeys(range(self.n_units), n_rows)

    @property
    def n_units(self) -> int:
        return self.block.units.height


class _Collector:
    """Keeps a source busy with requests of successive blocks, and outlives its engines."""

    # Pieces in hand when an engine crashes are suspect: each is tried alone, then in
    # pieces of its own. A single text that crashes it twice is refused.
    # ``_tokens_in_advance`` were counted before the answers that they belong to.

    def __init__(
        self,
        source: AnswerSource,
        task: Task,
        blocks: Iterable[Block | None],
        on_answer: OnAnswer,
    ) -> None:
        self._source = source
        self._task = task
        self._blocks = iter(blocks)
        self._on_answer = on_answer
        self._ids = count()
        self._suspects: deque[_Piece] = deque()
        self._ready: deque[_Piece] = deque()
        self._consecutive_crashes = 0
        self._tokens_in_advance = 0
        self._clear()

    def count_in_advance(self, n_tokens: int) -> None:
        """Count tokens that have come, of answers that are not complete."""
        self._tokens_in_advance += n_tokens
        if self._in_hand:
            self._on_answer(self._in_hand[0].block.label, 0, n_tokens, 0)

    def _clear(self) -> None:
        self._in_hand: list[_Piece] = []
        self._in_flight: dict[int, tuple[_Piece, UnitRequest]] = {}
        self._samples = 0
        self._requests = self._next_requests()
        self._retries: deque[tuple[_Piece, UnitRequest]] = deque()

    def collect(self) -> Iterator[CompleteBlock]:
        """Iterate over the blocks as soon as they are complete, with their rows."""
        # Blocks are read only as far ahead as the source needs.
        while True:
            self._submit()
            if self._ready:
                while self._ready:
                    piece = self._ready.popleft()
                    rows = self._task.table(piece.block, piece.rows)
                    yield from self._complete(piece, rows)
            elif not self._in_flight:
                return
            else:
                self._read()

    def _submit(self) -> None:
        while True:
            requests = [*islice(self._to_submit(), _AT_ONCE)]
            if not requests:
                return
            self._source.submit(*requests)

    def _read(self) -> None:
        by_piece: defaultdict[_Piece, list[AnsweredRequest]] = defaultdict(list)
        for answer in self._source.results():
            piece, item = self._in_flight.pop(answer.request_id)
            piece.whole.is_postponed |= answer.is_postponed
            self._samples -= item.request.n
            by_piece[piece].append((item, answer))
        for piece, pairs in by_piece.items():
            n_tokens = n_passes = 0
            for item, answer in pairs:
                n_tokens += _count_new_tokens(item.request, answer)
                n_passes += answer.passes
            n_counted = min(n_tokens, self._tokens_in_advance)
            self._tokens_in_advance -= n_counted
            label = piece.block.label
            self._on_answer(label, 0, n_tokens - n_counted, n_passes)
            self._keep(piece, self._task.read(piece.block, pairs))

    def recover(self, error: EngineError) -> Iterator[CompleteBlock]:
        """Decide what to try again; iterate over a block that a refused text completes."""
        pieces = self._in_hand
        self._clear()
        if not pieces:
            raise error
        is_alone = len(pieces) == 1
        suspects = []
        for piece in pieces:
            # Units that count as complete, of pieces that are not
            n_complete = piece.n_units - len(piece.pending)
            self._on_answer(piece.block.label, -n_complete, 0, 0)
            suspect = _Piece(
                piece.whole,
                piece.block,
                piece.first,
                suspect=True,
                crashes=piece.crashes + is_alone,
            )
            suspects.append(suspect)
        piece = suspects[0]
        if not is_alone:
            self._suspects.extend(suspects)
        elif piece.n_units > 1:
            self._split(piece)
        elif piece.crashes < _MAX_CRASHES:
            self._suspects.appendleft(piece)
        else:
            self._consecutive_crashes += 1
            if self._consecutive_crashes == _MAX_CONSECUTIVE_CRASHES:
                raise error
            self._on_answer(piece.block.label, 1, 0, 0)
            yield from self._complete(piece, refuse(self._task, piece.block))

    def _split(self, piece: _Piece) -> None:
        """Put pieces of a piece first among the suspects, in their order."""
        size = -(-piece.n_units // _SPLIT)
        starts = range(0, piece.n_units, size)
        piece.whole.pieces += len(starts) - 1
        for start in reversed(starts):
            units = piece.block.units[start : start + size]
            block = replace(piece.block, units=units)
            smaller = _Piece(piece.whole, block, piece.first + start, suspect=True)
            self._suspects.appendleft(smaller)

    def _next_piece(self) -> _Piece | None:
        # A suspect is asked about while nothing else is in hand, so that a crash is its
        # own.
        if self._suspects or any(piece.suspect for piece in self._in_hand):
            return None if self._in_hand else self._suspects.popleft()
        block = next(self._blocks, None)
        return None if block is None else _Piece(_BlockInPieces(block), block)

    def _next_requests(self) -> Iterator[tuple[_Piece, UnitRequest] | None]:
        """Iterate over requests; None means: nothing to ask yet, poll again."""
        while True:
            piece = self._next_piece()
            if piece is None:
                yield None
                continue
            self._in_hand.append(piece)
            for item in self._task.ask(piece.block):
                if isinstance(item, UnitRequest):
                    yield piece, item
                else:
                    self._keep(piece, [item])

    def _to_submit(self) -> Iterator[Request]:
        """Iterate over what is asked again, then over as many new requests as have room."""
        in_flight = self._in_flight
        while self._retries or self._source.has_room(
            requests=len(in_flight), samples=self._samples
        ):
            if self._retries:
                pair: tuple[_Piece, UnitRequest] | None = self._retries.popleft()
            else:
                pair = next(self._requests)
            if pair is None:
                return
            request = pair[1].request
            request.request_id = next(self._ids)
            in_flight[request.request_id] = pair
            self._samples += request.n
            yield request

    def _keep(self, piece: _Piece, items: Iterable[UnitRequest | Row]) -> None:
        pending = piece.pending
        n_before = len(pending)
        for item in items:
            if isinstance(item, UnitRequest):
                self._retries.append((piece, item))
                continue
            piece.rows.append(item)
            unit, _ = item
            pending[unit] -= 1
            if pending[unit] == 0:
                del pending[unit]
        n_complete = n_before - len(pending)
        if n_complete == 0:
            return
        self._on_answer(piece.block.label, n_complete, 0, 0)
        if not pending:
            self._in_hand.remove(piece)
            self._ready.append(piece)

    def _complete(self, piece: _Piece, rows: pl.DataFrame) -> Iterator[CompleteBlock]:
        """Add the rows of a piece; iterate over its block, if that was the last piece."""
        if piece.crashes < _MAX_CRASHES:
            self._consecutive_crashes = 0
        whole = piece.whole
        whole.rows[piece.first] = rows
        whole.pieces -= 1
        if whole.pieces == 0 and not whole.is_postponed:
            in_order = [whole.rows[first] for first in sorted(whole.rows)]
            yield whole.block, pl.concat(in_order)


def _count_new_tokens(request: Request, answer: Answer) -> int:
    """Count the tokens that an answer took, less those of the answer so far."""
    if answer.tokens is not None:
        return answer.tokens["logprob"].size
    n_tokens = sum(part.n_tokens or 0 for part in answer.continuations)
    if request.partial and answer.resumed:
        n_tokens -= request.partial.n_tokens or 0
    return n_tokens


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Asks one source about all blocks."""

    # With ``restart`` an engine that ends in the middle is started again, and ``say``
    # hears of it; texts that end it are found, and their rows have the reason.
    # ``listen`` takes who is to hear of tokens as they come.

    source: AnswerSource
    restart: Callable[[], None] | None = None
    say: Callable[[str], None] = lambda _: None
    listen: Callable[[Callable[[int], None]], None] = lambda _: None

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block | None],
        on_answer: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Result],
    ) -> Iterator[tuple[Block, Result]]:
        """Iterate over complete blocks; a None in blocks means: nothing to ask yet, poll again."""
        collector = _Collector(self.source, task, blocks, on_answer)
        refused: list[CompleteBlock] = []
        self.listen(collector.count_in_advance)
        # Else Python looks through all that was loaded again and again: half the time
        gc.freeze()
        try:
            while True:
                try:
                    for block, rows in chain(refused, collector.collect()):
                        yield block, keep(block, rows)
                except EngineError as error:
                    if self.restart is None:
                        raise
                    refused = [*collector.recover(error)]
                    self.restart()
                    self.say(
                        f"the engine has been started again, because it ended: {error}"
                    )
                else:
                    return
        finally:
            gc.unfreeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    """Continue the context of each prompt; ``measure`` counts tokens, ``budget`` limits them."""

    view: View
    measure: Callable[[list[str], list[str]], list[Measure]]
    budget: Budget
    words: WordRule
    run_seed: int
    rule: Rule = ()  # what is taken off the answers

    def ask(self, block: Block) -> Iterator[UnitRequest | Row]:
        """Ask for all samples of a prompt at once; one without room has a reason."""
        view = self.view
        prompts = block.units.select("target_id", "view_index", "context", "text")
        measures = self._measure(prompts)
        word_counts = _count_words(prompts["text"].to_list(), self.words)
        n = block.last - block.first
        for unit, (target_id, index, context, _) in enumerate(prompts.iter_rows()):
            measure, nudge = self._cut_nudged(measures[unit])
            n_tokens = measure.prompt_tokens
            budget = self.budget.first(n_tokens, measure.reference_tokens)
            if n_tokens == 0 or budget <= 0:
                reason = self._why_no_room(n_tokens)
                for number in range(block.first, block.last):
                    yield unit, (number, *_NOTHING, "not_asked", reason, None)
                continue
            prompt_key = f"{target_id}:{view.model}:{view.name}:{index}"
            seed = sample_seed(self.run_seed, target_id, view.name, index)
            request = Request(
                request_id=0,
                kind="samples",
                key=f"{prompt_key}:{block.first}:{n}:{budget}",
                context=context,
                context_ids=measure.prompt_token_ids,
                n=n,
                seed=seed + block.first,
                max_tokens=budget,
                greedy=view.greedy,
                question=view.is_question,
                sends_messages=view.sends_messages,
                nudge=nudge,
            )
            # Else there is nothing to be reached
            has_reference = view.decode.most_new is None
            yield UnitRequest(
                unit=unit,
                request=request,
                first=block.first,
                reference_words=word_counts[unit] if has_reference else 0,
                most_tokens=self.budget.longest(n_tokens, measure.reference_tokens),
            )

    def _measure(self, prompts: pl.DataFrame) -> list[Measure]:
        contexts = prompts["context"].to_list()
        texts = prompts["text"].to_list()
        if self.view.nudge:
            pairs = zip(contexts, texts, strict=True)
            contexts = [context + text for context, text in pairs]
        return self.measure(contexts, texts)

    def _cut_nudged(self, measure: Measure) -> tuple[Measure, tuple[int, float] | None]:
        """Remove the last token of a prompt whose view nudges it: it is not read."""
        token_ids = measure.prompt_token_ids
        if not (self.view.nudge and token_ids):
            return measure, None
        shorter = replace(
            measure,
            prompt_token_ids=token_ids[:-1],
            prompt_tokens=len(token_ids) - 1,
        )
        return shorter, (token_ids[-1], self.view.nudge)

    def _why_no_room(self, n_tokens: int) -> str:
        if n_tokens == 0:
            return "the prefix has no token, and the tokenizer adds none"
        limit = n_tokens + self.budget.room(n_tokens)
        return (
            f"the prefix has {n_tokens} tokens, which leaves no room to"
            f" continue within {limit}"
        )

    def read(
        self, _: Block, answered: Sequence[AnsweredRequest], /
    ) -> Iterator[UnitRequest | Row]:
        """Keep candidates that suffice; ask again for the rest of those that end too early."""
        undressed: list[Continuation] = []
        for item, answer in answered:
            if item.request.greedy:
                answer.continuations = list(map(_cut_loop, answer.continuations))
            context = item.request.context
            undressed += (self._undress(part, context) for part in answer.continuations)
        texts = [bare.text or "" for bare in undressed]
        word_counts = iter(_count_words(texts, self.words))
        remaining = iter(undressed)
        for item, answer in answered:
            if answer.error is not None:
                for number in range(item.first, item.first + item.request.n):
                    yield item.unit, (number, *_NOTHING, None, answer.error, None)
                continue
            prompt = answer.prompt if answer.prompt != item.request.context else None
            for index, continuation in enumerate(answer.continuations):
                bare = next(remaining)
                n_missing = item.reference_words - next(word_counts)
                retry = self._ask_on(item, index, continuation, n_missing)
                if retry is not None:
                    yield retry
                    continue
                finish = bare.finish_reason
                is_short = None
                if finish is not None and not bare.reason:
                    is_short = finish != "stop" and n_missing > 0
                values = (
                    bare.text,
                    prompt,
                    bare.n_tokens,
                    finish,
                    is_short,
                    bare.answer,
                    bare.reason,
                    continuation.text if continuation.text != bare.text else None,
                )
                yield item.unit, (item.first + index, *values)

    def _undress(self, continuation: Continuation, context: str) -> Continuation:
        if continuation.text is None or not self.rule:
            return continuation
        text = undress(continuation.text, context, self.rule)
        if text.strip() or not continuation.text.strip():
            return replace(continuation, text=text)
        return replace(continuation, text=None, reason=NOTHING_LEFT)

    def table(self, block: Block, rows: list[Row]) -> pl.DataFrame:
        rows.sort()  # by unit and number
        schema = Samples.create_empty().schema
        columns = zip(*(values for _, values in rows), strict=True)
        series = [
            pl.Series(name, values, schema[name])
            for name, values in zip(_SAMPLE_COLUMNS, columns, strict=True)
        ]
        index = pl.col("view_index").cast(schema["view_index"])
        keys = block.units.select("target_id", index)
        table = keys[[unit for unit, _ in rows]].with_columns(
            *series,
            model=pl.lit(self.view.model),
            view=pl.lit(self.view.name),
        )
        return table.select(schema.names())

    def _ask_on(
        self,
        item: UnitRequest,
        index: int,
        continuation: Continuation,
        n_missing: int,
    ) -> UnitRequest | None:
        """Ask for more of a candidate that its budget ended within the words that count."""
        # The last of those words counts as whole once something follows it.
        is_whole = (
            continuation.finish_reason != "length" or self.budget.scope == "whole"
        )
        if is_whole or continuation.reason is not None or n_missing < 0:
            return None
        last = (continuation.text or "")[-1:]
        if n_missing == 0 and _ends_words(last, self.words):
            return None
        request = item.request
        n_tokens = max(request.max_tokens, continuation.n_tokens or 0)
        budget = self.budget.next(item.most_tokens, n_tokens, item.attempts)
        if budget is None:
            return None
        first = item.first + index
        prompt_key = request.key.rsplit(":", 3)[0]
        following = replace(
            request,
            key=f"{prompt_key}:{first}:1:{budget}",
            n=1,
            seed=request.seed + index,
            max_tokens=budget,
            partial=replace(continuation, n_tokens=continuation.n_tokens or n_tokens),
        )
        return replace(
            item,
            first=first,
            attempts=item.attempts + 1,
            request=following,
        )


def _cut_loop(continuation: Continuation) -> Continuation:
    """Cut the likeliest text where it is in a loop, if no engine that knows its tokens did."""
    has_tokens = continuation.token_ids is not None
    if has_tokens or continuation.finish_reason != "length":
        return continuation
    text = continuation.text or ""
    end = text_loop_end(text)
    if end is None:
        return continuation
    return replace(continuation, text=text[:end], finish_reason="repeats")


_NOTHING = (None,) * 5
"""Values of a sample from ``candidate`` to ``short`` where nothing came back."""
_SAMPLE_COLUMNS = Samples.column_names()[Samples.column_names().index("sample_index") :]
"""Columns that a row of samples has values of, in this order."""


def _count_words(texts: list[str], words: WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(count_words("text", words=words))
    return counts.to_series().to_list()


def _ends_words(last: str, words: WordRule) -> bool:
    """Check that nothing after this character of a text can belong to a word before it."""
    match words:
        case "space":
            return last == " "
        case "rouge":
            return re.fullmatch("[a-z0-9]", last.lower()) is None
        case _:  # a point may stand inside a word of ``unicode``
            return last.isspace()


FREQUENCY = "log_inverse_frequency"
"""The one column of numbers of tokens that no engine computes."""

_FLOATS = (
    "logprob",
    "vocabulary_mean",
    "vocabulary_variance",
    "top_logprob",
    "support_mass",
)
_COLUMNS = (*_FLOATS, "token_ids", "rank", FREQUENCY, "bos", "bounded", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTask:
    """Ask for the log-probabilities of each prompt's text, and further columns."""

    # ``views``: by the label of a block its view, and the columns to compute.
    # ``log_inverse_frequency`` is float32 by token id, of the reference corpus.
    # ``trained`` says by ``target_id`` whether the run tuned the model on it.

    views: Mapping[str, tuple[View, frozenset[str]]]
    run_seed: int = 0
    log_inverse_frequency: npt.NDArray[np.float32] | None = None
    trained: pl.DataFrame | None = None

    def ask(self, block: Block) -> Iterator[UnitRequest | Row]:
        """Ask for a text at a time; prompts of a pair have the same noise, with two signs."""
        view, columns = self.views[block.label]
        names = ("target_id", "view_index", "context", "text", "reason")
        prompts = block.units.select(names).iter_rows()
        for unit, (target_id, index, context, text, reason) in enumerate(prompts):
            if reason is not None:
                yield unit, {"reason": reason}
                continue
            seed = 0
            if view.noise:
                seed = sample_seed(self.run_seed, target_id, view.name, index // 2)
            request = Request(
                request_id=0,
                kind="logprobs",
                key=f"{target_id}:{view.model}:{view.name}:{index}",
                context=context,
                text=text,
                context_tokens=view.context_tokens,
                text_tokens=view.text_tokens,
                question=view.is_question,
                noise=-view.noise if index % 2 else view.noise,
                is_absolute=view.is_absolute,
                seed=seed,
                columns=columns - {FREQUENCY},
            )
            yield UnitRequest(unit=unit, request=request)

    def read(
        self, block: Block, answered: Sequence[AnsweredRequest], /
    ) -> Iterator[UnitRequest | Row]:
        _, columns = self.views[block.label]
        frequencies = self.log_inverse_frequency if FREQUENCY in columns else None
        for item, answer in answered:
            if answer.tokens is None:
                is_eligible = answer.is_eligible
                yield item.unit, {"reason": answer.error, "is_eligible": is_eligible}
                continue
            row: dict[str, Any] = {
                "bos": answer.bos,
                "bounded": answer.bounded,
                **answer.tokens,
            }
            if frequencies is not None:
                row[FREQUENCY] = frequencies[answer.tokens["token_ids"]]
            yield item.unit, row

    def table(self, block: Block, rows: list[Row]) -> pl.DataFrame:
        view, _ = self.views[block.label]
        by_unit = dict(rows)
        ordered = [by_unit[unit] for unit in range(block.units.height)]
        schema = LogProbs.create_empty().schema
        columns: list[pl.Series] = []
        for name in _COLUMNS:
            cells = [row.get(name) for row in ordered]
            cells = [pl.Series(x) if isinstance(x, np.ndarray) else x for x in cells]
            columns.append(pl.Series(name, cells).cast(schema[name]))
        keeps_text = pl.Series(
            ["logprob" in row or row.get("is_eligible", False) for row in ordered]
        )
        text = pl.when(keeps_text).then("text")
        units = block.units.select("target_id", "view_index", text=text)
        trained = self.trained
        if trained is None:
            trained = pl.DataFrame(
                schema={"target_id": pl.String, "trained": pl.Boolean}
            )
        table = units.join(
            trained,
            on="target_id",
            how="left",
            maintain_order="left",
        ).with_columns(*columns, model=pl.lit(view.model), view=pl.lit(view.name))
        positive = pl.when(pl.element() > 0).then(pl.element())
        return table.with_columns(
            pl.col(_FLOATS).list.eval(pl.element().fill_nan(None)),
            rank=pl.col("rank").list.eval(positive),
            n_bytes=pl.col("text").str.len_bytes(),
            zlib_size=zlib_size("text"),
        ).select(schema.names())


@dataclass(frozen=True, slots=True, kw_only=True)
class FillTask:
    """Ask a masked model for variants of targets; the first ones are the same however many."""

    view: View
    run_seed: int

    def ask(self, block: Block) -> Iterator[UnitRequest | Row]:
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
            yield UnitRequest(unit=unit, request=request)

    def read(
        self, block: Block, answered: Sequence[AnsweredRequest], /
    ) -> Iterator[UnitRequest | Row]:
        """Keep the variants that the block lacks; missing ones have a reason."""
        indices = range(block.first, block.last)
        for item, answer in answered:
            texts = [continuation.text for continuation in answer.continuations]
            target_id = block.units["target_id"][item.unit]
            for row in number_texts(target_id, texts, indices, answer.error):
                yield item.unit, row

    def table(self, _: Block, rows: list[Row], /) -> pl.DataFrame:
        ordered = sorted(rows, key=lambda row: (row[0], row[1]["view_index"]))
        types = {"view_index": pl.UInt32, "text": pl.String, "reason": pl.String}
        variants = [row for _, row in ordered]
        return self.view.fill_prompts(pl.DataFrame(variants, schema_overrides=types))


class _Counts(Table):
    """One row per token of the vocabulary, in the order of their ids."""

    count = dy.UInt64()
    tokenizer = dy.String()  # digest of the tokenizer, the same in every row


def stored_frequencies(
    path: Path, texts: pl.LazyFrame, tokenizer: Tokenizer
) -> npt.NDArray[np.float32]:
    """Compute the log of 1 / frequency of each token, from counts that are kept in a file."""
    if not path.exists():
        _store_counts(path, texts, tokenizer)
    table = scan(path, _Counts).collect()
    if set(table["tokenizer"]) != {tokenizer.digest}:
        raise SettingsError(
            f"{path} counts the tokens of another tokenizer than the model's; remove it"
            " to have the corpus counted again"
        )
    return log_inverse(table["count"].to_numpy())


def _store_counts(path: Path, texts: pl.LazyFrame, tokenizer: Tokenizer) -> None:
    """Count the tokens of ``text``, and write the counts to a file."""
    counts = np.zeros(tokenizer.vocabulary, np.uint64)
    for batch in texts.select("text").drop_nulls().collect_batches(chunk_size=4096):
        for ids in tokenizer.encode(batch["text"].to_list()):
            np.add.at(counts, np.asarray(ids, dtype=np.int64), 1)
    if not counts.any():
        raise SettingsError(
            "frequencies_from: the corpus has no text; give one that has"
        )
    table = pl.DataFrame({"count": counts})
    sink(table.with_columns(tokenizer=pl.lit(tokenizer.digest)), path, _Counts)


def log_inverse(counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Compute log((total + vocabulary) / (count + 1)) of each token, float32, above 0.

    Zhang et al. (2024), arXiv:2409.14781; Laplace smoothing as in the authors' code.
    """
    total = float(counts.sum()) + len(counts)
    inverse: npt.NDArray[np.float32] = np.log(total / (counts + 1.0)).astype(np.float32)
    return inverse
