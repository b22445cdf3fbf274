"""A request to a model, its answer, and the tokens and work that it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.models.weights import Measure, estimated_tokens
from mia_batch.schemas import AnswerKind

if TYPE_CHECKING:
    from mia_batch.evidence.parts import Block

EvidenceKind: TypeAlias = Literal["samples", "logprobs", "fills"]
"""What is asked: continuations, log-probabilities of tokens, or variants of a text."""

FinishReason: TypeAlias = Literal["stop", "length", "repeats"]
"""``stop``: the model ended the text; ``length``: the budget or the context ended it; ``repeats``:
the likeliest answer began to repeat itself, and was not decoded further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How tokens are drawn; constant within a run but for requests that are greedy."""

    # ``temperature`` 0 takes the most likely token; ``top_k`` 0 and ``top_p`` 1.0 mean
    # no limit.

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything an engine needs to start, picklable.

    ``dtype`` ``auto`` is float32 on a CPU, and on an accelerator what the engine takes
    for the checkpoint. ``columns`` are those of the logprobs table that are computed
    with ``logprob``; ``logits_bytes`` is the most memory for the logits of one chunk of
    tokens and what is computed from them; None = as the device's memory allows.
    ``engine_args`` go to the engine's own constructor as they are.
    """

    engine: str
    kind: EvidenceKind
    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    tensor_parallel_size: int = 1
    decoding: Decoding = field(default_factory=Decoding)
    columns: frozenset[str] = frozenset()
    logits_bytes: int | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)
    # The token that ends a text, of a tokenizer that is open already: to open a large
    # one again takes as long as to load the weights
    end_token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself; recorded with the run."""

    # ``max_model_len`` counts the tokens of context and text, or of prompt and output,
    # together; ``max_sequences`` is how many the engine works on at once.

    engine: str
    version: str
    device: str
    dtype: str
    max_model_len: int
    max_sequences: int


@dataclass(slots=True, kw_only=True)
class Request:
    """Ask a model one thing about one text."""

    # ``samples``: continue ``context`` ``n`` times; continuation i is drawn with
    # ``seed`` + i. ``logprobs``: the log-probability of each token of ``text`` after
    # ``context``, both read as one text; only tokens that start within ``text`` count.
    # To a ``question`` each token of ``text`` is an answer of its own, with the
    # log-probability that it has right after ``context``. ``fills``: ``n`` variants of
    # ``text``, of the kind that ``view`` names.
    #
    # Token ids may come with the texts, special tokens included in those of the
    # context; an engine reads token ids alone, unless it fills. Whoever sends a request
    # numbers it.

    request_id: int  # unique among requests in flight
    kind: EvidenceKind
    key: str = ""  # what is asked, the same in every run
    view: str = ""
    context: str = ""
    text: str = ""
    context_ids: list[int] | None = None
    text_ids: list[int] | None = None
    context_tokens: int | None = None  # keep only so many last tokens of the context
    # Only so many first tokens of the text; refused where it has fewer
    text_tokens: int | None = None
    noise: float = 0.0  # on the embeddings of the text, see `NoisyEmbeddings`
    is_absolute: bool = False  # the noise is no multiple of the embeddings' own spread
    question: bool = False  # the context asks one: a chat model gets nothing before it
    sends_messages: bool = False  # the context is a conversation, as JSON
    share: float = 0.0  # of the text that fills replace; 0 is the view's own
    n: int = 1
    seed: int = 0
    max_tokens: int = 1  # of the whole answer, ``partial`` included
    partial: Continuation | None = None  # the answer so far: who can goes on from there
    greedy: bool = False  # take the most likely token, whatever the run's decoding
    # A token, and nats that are added to its logit
    nudge: tuple[int, float] | None = None
    # Of the engine's columns, those that this text needs
    columns: frozenset[str] = frozenset()

    def failed(
        self, error: str, *, passes: int = 1, is_eligible: bool = True
    ) -> Answer:
        return Answer(
            request_id=self.request_id,
            passes=passes,
            error=error,
            is_eligible=is_eligible,
        )

    def postponed(self, reason: str) -> Answer:
        """Leave the request unanswered for now."""
        return replace(self.failed(reason, passes=0), is_postponed=True)

    def rest(self) -> Request:
        """Ask for what follows the answer so far, with a seed of its own."""
        partial = self.partial
        if partial is None:
            return self
        # Imported here: its tables start Polars' threads, which a forked engine would
        # not have.
        from mia_batch.prompts import sample_seed

        n_tokens = partial.n_tokens or 0
        ids = partial.token_ids
        return replace(
            self,
            context=self.context + (partial.text or ""),
            context_ids=None if ids is None else [*(self.context_ids or ()), *ids],
            max_tokens=self.max_tokens - n_tokens,
            seed=sample_seed(self.seed, f"after {n_tokens} tokens"),
        )

    def why_no_answers(self, text_ids: list[int]) -> str | None:
        answers = self.text.split()
        if not self.question or len(text_ids) == len(answers):
            return None
        return f"the answers {', '.join(answers)} are not one token each"


@dataclass(slots=True, kw_only=True)
class Continuation:
    """One text that a model gave; special tokens are removed from ``text``."""

    # An engine gives ``token_ids`` (the end-of-text token included), a source of texts
    # ``text``, or the ``reason`` why it is missing.

    text: str | None = None
    token_ids: list[int] | None = None
    n_tokens: int | None = None
    finish_reason: FinishReason | None = None
    answer: AnswerKind = "text"
    reason: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Answer:
    """The answer to one request."""

    # ``tokens`` has arrays by column of the logprobs table, one entry a token:
    # ``logprob`` float32, ``token_ids`` uint32, ``rank`` uint32 with 0 = unscored, ...;
    # NaN = nothing precedes the token, or decoding leaves it out.

    request_id: int
    # In the order of their seeds
    continuations: list[Continuation] = field(default_factory=list)
    tokens: dict[str, NDArray[np.generic]] | None = None
    bos: bool = False  # whether a special token was put before the text
    bounded: bool = False  # whether the log-probability is only an upper bound
    prompt: str | None = None  # the prompt as it came back from the model's tokenizer
    passes: int = 1  # forward passes that it took
    resumed: bool = False  # whether it goes on from the answer so far
    error: str | None = None  # why this one request failed
    # False: the text is not of the kind that was asked for; nothing failed
    is_eligible: bool = True
    is_postponed: bool = False  # whether it is to come another time


class Engine(Protocol):
    """A started model in its own process: requests in any order, many at once.

    The same request gets the same answer whatever else is in flight (to the bit on a
    CPU in float32, in distribution on an accelerator).
    """

    @property
    def info(self) -> EngineInfo:
        """Return what the started engine says of itself."""

    def submit(self, request: Request) -> None:
        """Queue a request; one that cannot be answered comes back with its reason."""

    def step(self) -> list[Answer]:
        """Work for a while; return the answers that are complete, possibly none."""

    def close(self) -> None:
        """Free the model; further calls are not allowed."""


class AnswerSource(Protocol):
    """Whatever answers requests, as the collector sees it: text goes out, text comes back."""

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Check whether to submit more while so many requests and samples are in flight."""

    def submit(self, *requests: Request) -> None:
        """Queue requests; returns at once."""

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers: at least one, except where the time (seconds) passed before.

        Raises `EngineError` if nothing can be answered any more; what was finished
        comes first.
        """


DecodeScope = Literal["matched", "whole"]
"""``matched``: only as far as the reference is long; ``whole``: to the paper's full length."""
MOST_ATTEMPTS = 3
_MOST_LENGTHS = 4  # of the reference, in tokens, that an answer may have
_Tokens = TypeVar("_Tokens", int, pl.Expr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Rule for the tokens to decode."""

    # ``matched`` decodes as many tokens as the reference has, with a margin, and more
    # where a candidate stays short of the reference's words; ``whole`` decodes to
    # ``max_length`` tokens of prompt and output together (the SaMIA paper: 1024).
    # ``spare`` is the least margin, in tokens; ``most_new`` the most tokens to decode,
    # however short the prompt is. ``resumes``: who is asked again goes on from the
    # answer so far, so that no token is decoded twice.

    scope: DecodeScope
    max_length: int
    max_model_len: int
    max_attempts: int = MOST_ATTEMPTS
    spare: int = 8
    most_new: int | None = None
    resumes: bool = True

    @property
    def _limit(self) -> int:
        if self.scope == "whole":
            return min(self.max_model_len, self.max_length)
        return self.max_model_len

    def _usual(self, reference_tokens: _Tokens) -> _Tokens:
        """Compute the tokens that most candidates take to reach the reference's words."""
        # Words of sampled text vary in length, hence the margin of a quarter and
        # ``spare`` tokens; with a single attempt it is all twice as large.
        usual = reference_tokens + reference_tokens // 4 + self.spare
        return usual * (2 if self.max_attempts == 1 else 1)

    def room(self, prompt_tokens: int) -> int:
        """Compute the most tokens to decode after a prompt; 0 or less where it does not fit."""
        room = self._limit - prompt_tokens
        return room if self.most_new is None else min(room, self.most_new)

    def longest(self, prompt_tokens: int, reference_tokens: int) -> int:
        """Compute the most tokens that an answer may have, all attempts together."""
        room = self.room(prompt_tokens)
        if self.scope == "whole":
            return room
        return min(_MOST_LENGTHS * max(reference_tokens, 1), room)

    def first(self, prompt_tokens: int, reference_tokens: int) -> int:
        """Compute the tokens to decode at the first attempt."""
        longest = self.longest(prompt_tokens, reference_tokens)
        if self.scope == "whole":
            return longest
        return min(self._usual(reference_tokens), longest)

    def expected(self, prompt_tokens: pl.Expr, reference_tokens: pl.Expr) -> pl.Expr:
        """Compute `first` of columns, and 0 where there is no room."""
        limits = [self._limit - prompt_tokens, self.most_new]
        if self.scope == "matched":
            matched = _MOST_LENGTHS * reference_tokens.clip(lower_bound=1)
            limits += [self._usual(reference_tokens), matched]
        return pl.min_horizontal(*limits).clip(lower_bound=0)

    def next(self, longest: int, budget: int, attempts: int) -> int | None:
        """Compute the tokens to decode after ``attempts``, the last with a ``budget`` too small."""
        is_last = budget >= longest or attempts == self.max_attempts
        if is_last or self.scope == "whole":
            return None
        return min(2 * budget, longest)

    def attempts(self, prompt_tokens: int, reference_tokens: int) -> list[int]:
        """List the tokens of the answer at each attempt if every one is too short."""
        longest = self.longest(prompt_tokens, reference_tokens)
        budgets: list[int] = []
        budget: int | None = self.first(prompt_tokens, reference_tokens)
        while budget is not None:
            budgets.append(budget)
            budget = self.next(longest, budget, len(budgets))
        return budgets

    def most_tokens(self, prompt_tokens: int, reference_tokens: int) -> int:
        """Compute the tokens that are decoded if every attempt is too short."""
        budgets = self.attempts(prompt_tokens, reference_tokens)
        return budgets[-1] if self.resumes else sum(budgets)


_MOST_MEASURED = 2048
"""Prompts whose tokens are counted; of more, so many spread evenly stand for all."""

_MOST_NAMED = 3
_READ_FOR_ONE = 4
"""Tokens read that count as one decoded: GPUs read some four times as fast (assumed)."""


def estimate_work(budget: Budget, samples: int) -> pl.Expr:
    """Estimate the work of prompts in tokens decoded; those read count a quarter, once."""
    prompt_tokens = estimated_tokens("context")
    decoded = budget.expected(prompt_tokens, estimated_tokens("text"))
    return prompt_tokens // _READ_FOR_ONE + samples * decoded


@dataclass(slots=True, kw_only=True)
class Workload:
    """Sums over the prompts that are to be continued."""

    prompts: int = 0
    samples: int = 0
    too_long: int = 0  # prompts without room to continue
    # Of these by document, as far as measured
    unfit: Counter[str] = field(default_factory=Counter)
    prompt_bytes: int = 0  # each prompt counted once
    read_tokens: int = 0  # likewise, with the text where it is read only
    # As ``first_tokens``, were samples cut where the reference ends
    matched_tokens: int = 0
    first_tokens: int = 0  # most at the first attempt
    most_tokens: int = 0  # most if every candidate stays too short at every attempt
    # Then, of answers that are read again, so that the model goes on
    resent_tokens: int = 0
    estimated: bool = False

    def __add__(self, workload: Workload) -> Workload:
        names = [column.name for column in fields(self) if column.name != "estimated"]
        sums = {name: getattr(self, name) + getattr(workload, name) for name in names}
        return Workload(**sums, estimated=self.estimated or workload.estimated)

    def times(self, n: int) -> Workload:
        """Multiply every number by ``n``."""
        names = {column.name for column in fields(self)} - {"estimated", "unfit"}
        return replace(self, **{name: n * getattr(self, name) for name in names})

    def lines(self) -> Iterator[tuple[str, str]]:
        """Iterate over the label and the text of each line of a summary."""
        about = "about " if self.estimated else ""
        yield "prompts", f"{self.prompts:,}"
        yield "samples", f"{self.samples:,}"
        if self.too_long:
            largest = self.unfit.most_common(_MOST_NAMED)
            examples = ", ".join(f"{n:,} of {document}" for document, n in largest)
            such_as = f", such as {examples}" if examples else ""
            yield (
                "prompts that do not fit the context",
                f"{about}{self.too_long:,}{such_as}",
            )
        yield "tokens to read", f"{about}{self.read_tokens:,}"
        yield (
            "tokens to decode",
            f"{about}{self.first_tokens:,}, at most {self.most_tokens:,}",
        )
        if self.first_tokens > self.matched_tokens:
            yield (
                "with --preset matched",
                f"{about}{self.matched_tokens:,} tokens to decode:"
                " it cuts answers where the true text ends",
            )


def forecast(
    blocks: Iterable[Block],
    measure: Callable[[list[str], list[str]], list[Measure]],
    budget: Budget | int,
) -> Workload:
    """Add up what there is to decode: exactly for up to 2,048 prompts, else from some of them."""
    # Texts that are only read have no budget, but must fit a context of so many tokens.
    rows: list[tuple[str, str, str | None, int]] = []  # every ``step``-th prompt
    step = 1
    n_prompts = n_samples = prompt_bytes = 0
    for block in blocks:
        n = block.last - block.first
        units = block.units
        n_samples += n * units.height
        prompt_bytes += int(units["context"].str.len_bytes().sum())
        nulls = pl.repeat(None, units.height, dtype=pl.String, eager=True)
        documents = units.get_column("document_id", default=nulls)
        for row in zip(units["context"], units["text"], documents, strict=True):
            if n_prompts % step == 0:
                rows.append((*row, n))
                if len(rows) > _MOST_MEASURED:
                    rows = rows[::2]
                    step *= 2
            n_prompts += 1
    measures = measure([row[0] for row in rows], [row[1] for row in rows])
    workload = Workload()
    for (context, _, document, n), tokens in zip(rows, measures, strict=True):
        _add_prompt(workload, context, document, n, tokens, budget)
    if step == 1:
        return workload
    decoded = ("matched_tokens", "first_tokens", "most_tokens", "resent_tokens")
    scale = n_prompts / len(rows)
    sums = {
        name: round(scale * getattr(workload, name))
        for name in ("too_long", "read_tokens", *decoded)
    }
    sums["prompts"] = n_prompts - sums["too_long"]
    sums["samples"] = n_samples - round(n_samples * workload.too_long / len(rows))
    return Workload(
        unfit=workload.unfit,
        prompt_bytes=prompt_bytes,
        estimated=True,
        **sums,
    )


def _add_prompt(
    workload: Workload,
    context: str,
    document: str | None,
    n: int,
    tokens: Measure,
    budget: Budget | int,
) -> None:
    """Add ``n`` samples of a prompt to a workload, or count it as too long."""
    prompt_tokens = tokens.prompt_tokens
    reference_tokens = tokens.reference_tokens
    if isinstance(budget, int):
        room = budget + 1 - prompt_tokens - reference_tokens
    else:
        room = budget.first(prompt_tokens, reference_tokens) if prompt_tokens else 0
    if room <= 0:
        workload.too_long += 1
        if document:
            workload.unfit[document] += 1
        return
    workload.prompts += 1
    workload.samples += n
    workload.prompt_bytes += len(context.encode())
    workload.read_tokens += prompt_tokens
    if isinstance(budget, int):
        workload.read_tokens += reference_tokens
        # Those that are answered, as speeds count them
        workload.first_tokens += reference_tokens
        return
    matched = budget if budget.most_new else replace(budget, scope="matched")
    workload.first_tokens += n * room
    workload.most_tokens += n * budget.most_tokens(prompt_tokens, reference_tokens)
    workload.matched_tokens += n * matched.first(prompt_tokens, reference_tokens)
    if budget.resumes:
        attempts = budget.attempts(prompt_tokens, reference_tokens)
        workload.resent_tokens += n * sum(attempts[:-1])
