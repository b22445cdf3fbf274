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
from mia_batch.schemas import LogProbs, Samples
from mia_batch.tables import scan, sink
from mia_batch.views import View

Kept = TypeVar("Kept")
Row: TypeAlias = tuple[int, Any]
"""Position of a unit in its block, and the values of a row of evidence, as its task keeps them."""

OnAnswer: TypeAlias = Callable[[str, int, int, int], None]
"""Takes a block's label, and units, tokens and forward passes since the last call."""

Found: TypeAlias = tuple[Block, pl.DataFrame]
"""A block, and all its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request about one unit of a block, before it has a number."""

    unit: int  # position in the block
    request: Request
    first: int = 0  # number of the first row that is asked for
    reference_words: int = 0  # words of what is to be reached
    most_tokens: int = 0  # that an answer may have after the last attempt
    attempts: int = 1


Pair: TypeAlias = tuple[Asked, Answer]


class Task(Protocol):
    """What is asked about units, and how answers become rows."""

    def ask(self, block: Block) -> Iterator[Asked | Row]:
        """Yield what to ask, and rows of what cannot be asked."""

    def read(self, block: Block, answered: Sequence[Pair], /) -> Iterator[Asked | Row]:
        """Turn answers into rows, and ask again where one does not suffice."""

    def table(self, block: Block, rows: list[Row], /) -> pl.DataFrame:
        """Put the rows of a complete block in order."""


class Executor(Protocol):
    """Works on blocks; nothing outside it knows where."""

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        seen: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Kept],
        /,
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete, with what ``keep`` returned for block and rows.

        ``keep`` may be called in another process or on another machine; it and ``task``
        can be pickled.
        """


REFUSED = "the engine ended each time that it was asked about this text"

_AT_ONCE = 256  # requests in one message to an engine
_SPLIT = (
    8  # pieces of a block, and of each of them: a start costs more than a few texts
)
_MOST_DEATHS = 2  # of engines with one text in hand and nothing else
_MOST_IN_VAIN = 3  # texts in a row that end the engine: then it is not the texts


def refuse(task: Task, block: Block, reason: str = REFUSED) -> pl.DataFrame:
    rows: list[Row] = []
    for each in task.ask(block):
        if isinstance(each, Asked):
            answer = each.request.failed(reason, passes=0)
            rows += (
                row
                for row in task.read(block, [(each, answer)])
                if isinstance(row, tuple)
            )
        else:
            rows.append(each)
    return task.table(block, rows)


@dataclass(slots=True)
class _Whole:
    """A block, and the rows of its complete pieces by their first unit."""

    block: Block
    pieces: int = 1  # that are not complete
    rows: dict[int, pl.DataFrame] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Piece:
    """Units that are asked about together: a block, or a few of its units once they are suspect."""

    whole: _Whole
    block: Block
    first: int = 0
    suspect: bool = False
    deaths: int = 0
    rows: list[Row] = field(default_factory=list)
    # Rows that are to come, of each unit that has any
    pending: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.pending = dict.fromkeys(
            range(self.n_units), self.block.last - self.block.first
        )

    @property
    def n_units(self) -> int:
        return self.block.units.height


class _Collector:
    """Keeps a source busy with the requests of successive blocks, and outlives its engines."""

    # Pieces in hand when an engine ends are suspect: each is tried alone, then in
    # pieces of its own. A single text that ends it twice is refused. ``_in_advance``
    # are tokens that were seen before the answers that they belong to.

    def __init__(
        self,
        source: AnswerSource,
        task: Task,
        blocks: Iterable[Block | None],
        seen: OnAnswer,
    ) -> None:
        self._source = source
        self._task = task
        self._blocks = iter(blocks)
        self._seen = seen
        self._ids = count()
        self._suspects: deque[_Piece] = deque()
        self._finished: deque[_Piece] = deque()
        self._in_vain = 0
        self._in_advance = 0
        self._clear()

    def decoding(self, n_tokens: int) -> None:
        """Learn of tokens that have come, of answers that are not complete."""
        self._in_advance += n_tokens
        if self._in_hand:
            self._seen(self._in_hand[0].block.label, 0, n_tokens, 0)

    def _clear(self) -> None:
        self._in_hand: list[_Piece] = []
        self._in_flight: dict[int, tuple[_Piece, Asked]] = {}
        self._samples = 0
        self._requests = self._next_requests()
        self._again: deque[tuple[_Piece, Asked]] = deque()

    def collect(self) -> Iterator[Found]:
        """Yield each block as soon as it is complete, with its rows."""
        # Blocks are read only as far ahead as the source needs.
        while True:
            while requests := [*islice(self._to_submit(), _AT_ONCE)]:
                self._source.submit(*requests)
            if self._finished:
                while self._finished:
                    piece = self._finished.popleft()
                    yield from self._done(
                        piece, self._task.table(piece.block, piece.rows)
                    )
            elif not self._in_flight:
                return
            else:
                self._read()

    def _read(self) -> None:
        found: defaultdict[_Piece, list[Pair]] = defaultdict(list)
        for answer in self._source.results():
            piece, asked = self._in_flight.pop(answer.request_id)
            self._samples -= asked.request.n
            found[piece].append((asked, answer))
        for piece, pairs in found.items():
            tokens = sum(_new_tokens(asked.request, answer) for asked, answer in pairs)
            n_seen = min(tokens, self._in_advance)
            self._in_advance -= n_seen
            passes = sum(answer.passes for _, answer in pairs)
            self._seen(piece.block.label, 0, tokens - n_seen, passes)
            self._keep(piece, self._task.read(piece.block, pairs))

    def recover(self, error: EngineError) -> Iterator[Found]:
        """Decide what is tried again, and yield a block that is complete without a refused text."""
        pieces = self._in_hand
        self._clear()
        if not pieces:
            raise error
        for each in pieces:  # units that count as complete, of pieces that are not
            self._seen(each.block.label, len(each.pending) - each.n_units, 0, 0)
        alone = len(pieces) == 1
        again = [
            _Piece(
                each.whole,
                each.block,
                each.first,
                suspect=True,
                deaths=each.deaths + alone,
            )
            for each in pieces
        ]
        piece = again[0]
        if alone and piece.n_units > 1:
            size = -(-piece.n_units // _SPLIT)
            starts = range(0, piece.n_units, size)
            piece.whole.pieces += len(starts) - 1
            for start in reversed(starts):
                block = replace(
                    piece.block, units=piece.block.units[start : start + size]
                )
                split = _Piece(piece.whole, block, piece.first + start, suspect=True)
                self._suspects.appendleft(split)
        elif alone and piece.deaths < _MOST_DEATHS:
            self._suspects.appendleft(piece)
        elif alone:
            self._in_vain += 1
            if self._in_vain == _MOST_IN_VAIN:
                raise error
            self._seen(piece.block.label, 1, 0, 0)
            yield from self._done(piece, refuse(self._task, piece.block))
        else:
            self._suspects.extend(again)

    def _next_requests(self) -> Iterator[tuple[_Piece, Asked] | None]:
        """Yield requests; None while no block is there, or a suspect may not be asked about yet."""
        # A suspect is asked about while nothing else is in hand, so that an end is its
        # own.
        while True:
            piece = None
            if self._suspects or any(each.suspect for each in self._in_hand):
                if not self._in_hand:
                    piece = self._suspects.popleft()
            elif (block := next(self._blocks, None)) is not None:
                piece = _Piece(_Whole(block), block)
            if piece is None:
                yield None
                continue
            self._in_hand.append(piece)
            for each in self._task.ask(piece.block):
                if isinstance(each, Asked):
                    yield piece, each
                else:
                    self._keep(piece, [each])

    def _to_submit(self) -> Iterator[Request]:
        """Yield what is asked again, and then as many new requests as the source has room for."""
        source, in_flight = self._source, self._in_flight
        while self._again or source.has_room(
            requests=len(in_flight), samples=self._samples
        ):
            found = self._again.popleft() if self._again else next(self._requests)
            if found is None:
                return
            request = found[1].request
            request.request_id = next(self._ids)
            in_flight[request.request_id] = found
            self._samples += request.n
            yield request

    def _keep(self, piece: _Piece, found: Iterable[Asked | Row]) -> None:
        pending, n_before = piece.pending, len(piece.pending)
        for each in found:
            if isinstance(each, Asked):
                self._again.append((piece, each))
                continue
            piece.rows.append(each)
            pending[each[0]] -= 1
            if pending[each[0]] == 0:
                del pending[each[0]]
        if done := n_before - len(pending):
            self._seen(piece.block.label, done, 0, 0)
            if not pending:
                self._in_hand.remove(piece)
                self._finished.append(piece)

    def _done(self, piece: _Piece, rows: pl.DataFrame) -> Iterator[Found]:
        if piece.deaths < _MOST_DEATHS:
            self._in_vain = 0
        whole = piece.whole
        whole.rows[piece.first] = rows
        whole.pieces -= 1
        if whole.pieces == 0:
            yield (
                whole.block,
                pl.concat(whole.rows[first] for first in sorted(whole.rows)),
            )


def _new_tokens(request: Request, answer: Answer) -> int:
    """Count the tokens that an answer took, less those of the answer so far."""
    if answer.tokens is not None:
        return answer.tokens["logprob"].size
    n_tokens = sum(given.n_tokens or 0 for given in answer.continuations)
    partial = request.partial
    return n_tokens - (partial.n_tokens or 0 if partial and answer.resumed else 0)


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
        seen: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete; None among ``blocks``: there is none for now."""
        collector, refused = _Collector(self.source, task, blocks, seen), list[Found]()
        self.listen(collector.decoding)
        gc.freeze()  # else Python looks through all that was loaded again and again: half the time
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

    def ask(self, block: Block) -> Iterator[Asked | Row]:
        """Ask for all samples of a prompt at once; one without room has a reason."""
        prompts = block.units.select("target_id", "view_index", "context", "text")
        contexts, texts = prompts["context"].to_list(), prompts["text"].to_list()
        n, view = block.last - block.first, self.view
        nudged = [
            context + text if view.nudge else context
            for context, text in zip(contexts, texts, strict=True)
        ]
        measures, words = self.measure(nudged, texts), _count_words(texts, self.words)
        for unit, (target_id, index, context, _) in enumerate(prompts.iter_rows()):
            measure, nudge = measures[unit], None
            if view.nudge and (ids := measure.prompt_token_ids):
                measure = replace(
                    measure, prompt_token_ids=ids[:-1], prompt_tokens=len(ids) - 1
                )
                nudge = ids[-1], view.nudge
            budget = self.budget.first(measure.prompt_tokens, measure.reference_tokens)
            if measure.prompt_tokens == 0 or budget <= 0:
                why = "the prefix has no token, and the tokenizer adds none"
                if n_tokens := measure.prompt_tokens:
                    limit = n_tokens + self.budget.room(n_tokens)
                    why = (
                        f"the prefix has {n_tokens} tokens, which leaves no room to"
                        f" continue within {limit}"
                    )
                for number in range(block.first, block.last):
                    yield unit, (number, *_NOTHING, "not_asked", why, None)
                continue
            request = Request(
                request_id=0,
                kind="samples",
                key=f"{target_id}:{view.model}:{view.name}:{index}:{block.first}:{n}:{budget}",
                context=context,
                context_ids=measure.prompt_token_ids,
                n=n,
                seed=sample_seed(self.run_seed, target_id, view.name, index)
                + block.first,
                max_tokens=budget,
                greedy=view.greedy,
                question=view.is_question,
                nudge=nudge,
            )
            # Nothing to be reached
            n_words = words[unit] if view.decode.most_new is None else 0
            longest = self.budget.longest(
                measure.prompt_tokens, measure.reference_tokens
            )
            yield Asked(
                unit=unit,
                request=request,
                first=block.first,
                reference_words=n_words,
                most_tokens=longest,
            )

    def read(self, _: Block, answered: Sequence[Pair], /) -> Iterator[Asked | Row]:
        """Keep candidates that suffice; ask again for the rest of those that end too early."""
        for asked, answer in answered:
            if asked.request.greedy:
                answer.continuations = [
                    _without_loop(given) for given in answer.continuations
                ]
        bare = [
            self._without_dress(given, asked.request.context)
            for asked, answer in answered
            for given in answer.continuations
        ]
        words = iter(_count_words([given.text or "" for given in bare], self.words))
        undressed = iter(bare)
        for asked, answer in answered:
            if answer.error is not None:
                for number in range(asked.first, asked.first + asked.request.n):
                    yield asked.unit, (number, *_NOTHING, None, answer.error, None)
                continue
            prompt = answer.prompt if answer.prompt != asked.request.context else None
            for index, raw in enumerate(answer.continuations):
                given = next(undressed)
                missing = asked.reference_words - next(words)
                if (further := self._further(asked, index, raw, missing)) is not None:
                    yield further
                    continue
                finish = given.finish_reason
                is_cut = None if given.reason or finish is None else finish != "stop"
                values = (
                    given.text,
                    prompt,
                    given.n_tokens,
                    finish,
                    is_cut and missing > 0,
                )
                number = asked.first + index
                said = raw.text if raw.text != given.text else None
                yield asked.unit, (number, *values, given.answer, given.reason, said)

    def _without_dress(self, given: Continuation, context: str) -> Continuation:
        if given.text is None or not self.rule:
            return given
        text = undress(given.text, context, self.rule)
        if text.strip() or not given.text.strip():
            return replace(given, text=text)
        return replace(given, text=None, reason=NOTHING_LEFT)

    def table(self, block: Block, rows: list[Row]) -> pl.DataFrame:
        rows.sort()  # by unit and number
        columns = zip(*(values for _, values in rows), strict=True)
        schema = Samples.create_empty().schema
        made = [
            pl.Series(name, values, schema[name])
            for name, values in zip(_SAMPLE_COLUMNS, columns, strict=True)
        ]
        keys = block.units.select(
            "target_id", pl.col("view_index").cast(schema["view_index"])
        )
        own = {"model": pl.lit(self.view.model), "view": pl.lit(self.view.name)}
        return (
            keys[[unit for unit, _ in rows]]
            .with_columns(*made, **own)
            .select(schema.names())
        )

    def _further(
        self, asked: Asked, index: int, given: Continuation, missing: int
    ) -> Asked | None:
        """Decode a candidate again if its budget ended it within the words that count."""
        # The last of those words counts as whole once something follows it.
        ended = given.finish_reason != "length" or given.reason is not None
        if self.budget.scope == "whole" or ended or missing < 0:
            return None
        if missing == 0 and _ends_words((given.text or "")[-1:], self.words):
            return None
        request = asked.request
        tried = max(request.max_tokens, given.n_tokens or 0)
        budget = self.budget.next(asked.most_tokens, tried, asked.attempts)
        if budget is None:
            return None
        first, seed = asked.first + index, request.seed + index
        key = f"{request.key.rsplit(':', 3)[0]}:{first}:1:{budget}"
        partial = replace(given, n_tokens=given.n_tokens or tried)
        again = replace(
            request, key=key, n=1, seed=seed, max_tokens=budget, partial=partial
        )
        return replace(asked, first=first, attempts=asked.attempts + 1, request=again)


def _without_loop(given: Continuation) -> Continuation:
    """Cut the likeliest text where it is in a loop, if no engine that knows its tokens did."""
    if given.token_ids is not None or given.finish_reason != "length":
        return given
    text = given.text or ""
    end = text_loop_end(text)
    return (
        given
        if end is None
        else replace(given, text=text[:end], finish_reason="repeats")
    )


_NOTHING = (None,) * 5
"""Values of a sample from ``candidate`` to ``short`` where nothing came back."""
_SAMPLE_COLUMNS = Samples.column_names()[Samples.column_names().index("sample_index") :]
"""Columns that a row of samples has values of, in this order."""


def _count_words(texts: list[str], words: WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(count_words("text", words=words))
    return counts.to_series().to_list()


def _ends_words(last: str, words: WordRule) -> bool:
    """Whether nothing that follows this character of a text can belong to a word before it."""
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

    # ``views`` are known by the labels of their blocks, each with its columns.
    # ``log_inverse_frequency`` is float32 by token id, of the reference corpus.
    # ``trained`` says by ``target_id`` whether the run tuned the model on it.

    views: Mapping[str, tuple[View, frozenset[str]]]
    run_seed: int = 0
    log_inverse_frequency: npt.NDArray[np.float32] | None = None
    trained: pl.DataFrame | None = None

    def ask(self, block: Block) -> Iterator[Asked | Row]:
        """Ask for a text at a time; both prompts of a pair have the same noise, with two signs."""
        view, columns = self.views[block.label]
        prompts = block.units.select(
            "target_id", "view_index", "context", "text", "reason"
        )
        for unit, (target_id, index, context, text, reason) in enumerate(
            prompts.iter_rows()
        ):
            if reason is not None:
                yield unit, {"reason": reason}
                continue
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
                seed=(
                    sample_seed(self.run_seed, target_id, view.name, index // 2)
                    if view.noise
                    else 0
                ),
                columns=columns - {FREQUENCY},
            )
            yield Asked(unit=unit, request=request)

    def read(self, block: Block, answered: Sequence[Pair], /) -> Iterator[Asked | Row]:
        for asked, answer in answered:
            if answer.tokens is None:
                yield asked.unit, {"reason": answer.error, "asked": answer.asked}
                continue
            row: dict[str, Any] = {
                "bos": answer.bos,
                "bounded": answer.bounded,
                **answer.tokens,
            }
            if (
                FREQUENCY in self.views[block.label][1]
                and self.log_inverse_frequency is not None
            ):
                row[FREQUENCY] = self.log_inverse_frequency[answer.tokens["token_ids"]]
            yield asked.unit, row

    def table(self, block: Block, rows: list[Row]) -> pl.DataFrame:
        view, _ = self.views[block.label]
        by_unit = dict(rows)
        ordered = [by_unit[unit] for unit in range(block.units.height)]
        schema = LogProbs.create_empty().schema
        columns: list[pl.Series] = []
        for name in _COLUMNS:
            values = (row.get(name) for row in ordered)
            cells = [
                pl.Series(each) if isinstance(each, np.ndarray) else each
                for each in values
            ]
            columns.append(pl.Series(name, cells).cast(schema[name]))
        is_kept = pl.Series(
            ["logprob" in row or row.get("asked", False) for row in ordered]
        )
        text = pl.when(is_kept).then("text")
        units = block.units.select("target_id", "view_index", text=text)
        known = pl.DataFrame(schema={"target_id": pl.String, "trained": pl.Boolean})
        trained = known if self.trained is None else self.trained
        table = units.join(
            trained, on="target_id", how="left", maintain_order="left"
        ).with_columns(*columns, model=pl.lit(view.model), view=pl.lit(view.name))
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

    def ask(self, block: Block) -> Iterator[Asked | Row]:
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
            yield Asked(unit=unit, request=request)

    def read(self, block: Block, answered: Sequence[Pair], /) -> Iterator[Asked | Row]:
        """Keep the variants that are wanted; those that are not there have a reason."""
        wanted = range(block.first, block.last)
        for asked, answer in answered:
            texts = [given.text for given in answer.continuations]
            target_id = block.units["target_id"][asked.unit]
            for row in number_texts(target_id, texts, wanted, answer.error):
                yield asked.unit, row

    def table(self, _: Block, rows: list[Row], /) -> pl.DataFrame:
        ordered = sorted(rows, key=lambda row: (row[0], row[1]["view_index"]))
        names = {"view_index": pl.UInt32, "text": pl.String, "reason": pl.String}
        return self.view.fill_prompts(
            pl.DataFrame([row for _, row in ordered], schema_overrides=names)
        )


class _Counts(dy.Schema):
    """One row per token of the vocabulary, in the order of their ids."""

    count = dy.UInt64()
    tokenizer = dy.String()  # digest of the tokenizer, the same in every row


def stored_frequencies(
    path: Path, texts: pl.LazyFrame, tokenizer: Tokenizer
) -> npt.NDArray[np.float32]:
    """Log of 1 / frequency of each token, from counts of ``text`` that are kept in a file."""
    if not path.exists():
        counts = np.zeros(tokenizer.vocabulary, np.uint64)
        for batch in texts.select("text").drop_nulls().collect_batches(chunk_size=4096):
            for ids in tokenizer.encode(batch["text"].to_list()):
                np.add.at(counts, np.asarray(ids, dtype=np.int64), 1)
        if not counts.any():
            raise SettingsError(
                "frequencies_from: the corpus has no text; give one that has"
            )
        counted = pl.DataFrame({"count": counts}).with_columns(
            tokenizer=pl.lit(tokenizer.digest)
        )
        sink(counted, path, _Counts)
    table = scan(path, _Counts).collect()
    if set(table["tokenizer"]) != {tokenizer.digest}:
        raise SettingsError(
            f"{path} counts the tokens of another tokenizer than the model's; remove it"
            " to have the corpus counted again"
        )
    return log_inverse(table["count"].to_numpy())


def log_inverse(counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Log of (total + vocabulary) / (count + 1) of each token, natural, float32, above 0.

    Zhang et al. (2024), arXiv:2409.14781; Laplace smoothing as in the authors' code.
    """
    whole = float(counts.sum()) + len(counts)
    inverse: npt.NDArray[np.float32] = np.log(whole / (counts + 1.0)).astype(np.float32)
    return inverse
