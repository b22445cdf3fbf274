"""One request and one answer for everything that a model is asked.

No engine library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Answer",
    "AnswerKind",
    "Continuation",
    "Decoding",
    "Engine",
    "EngineInfo",
    "EngineSpec",
    "EvidenceKind",
    "FinishReason",
    "Request",
    "Source",
]

EvidenceKind: TypeAlias = Literal["samples", "logprobs", "fills"]
"""What is asked: continuations, log-probabilities of a text's tokens, or variants of a text."""

FinishReason: TypeAlias = Literal["stop", "length"]
"""``stop``: the model ended the text; ``length``: the budget or the context ended it."""


AnswerKind: TypeAlias = Literal[
    "text",
    "thought_removed",
    "prompt_removed",
    "prompt_repeated",
    "empty",
    "thinking",
    "refusal",
    "filtered",
]
"""What came back, as column ``answer`` of the samples table has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How tokens are drawn; constant within a run but for requests that are greedy.

    ``temperature`` 0 takes the most likely token; ``top_k`` 0 and ``top_p`` 1.0 mean no limit.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything an engine needs to start, picklable.

    ``dtype`` ``auto`` is float32 on a CPU, and on an accelerator what the engine takes for the
    checkpoint. ``columns`` are those of the logprobs table that are computed beside ``logprob``;
    ``logits_bytes`` is the most memory for the logits of one chunk of tokens and what is computed
    from them. ``engine_args`` go to the engine's own constructor as they are.
    """

    engine: str
    kind: EvidenceKind
    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    tensor_parallel_size: int = 1
    decoding: Decoding = field(default_factory=Decoding)
    columns: frozenset[str] = frozenset()
    logits_bytes: int = 128 << 20
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself; recorded with the run.

    ``max_model_len`` counts the tokens of context and text, or of prompt and output, together;
    ``max_sequences`` is how many the engine works on at once.
    """

    engine: str
    version: str
    device: str
    dtype: str
    max_model_len: int
    max_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask a model one thing about one text.

    ``samples``: continue ``context`` ``n`` times; continuation i is drawn with ``seed`` + i.
    ``logprobs``: the log-probability of each token of ``text`` after ``context``, both read as one
    text; only tokens that start within ``text`` count. To a ``question`` each token of ``text`` is
    an answer of its own, with the log-probability that it has right after ``context``. ``fills``:
    ``n`` variants of ``text``, of the kind that ``view`` names.

    Token ids may be given beside the texts, special tokens included in those of the context; an
    engine in its own process gets token ids alone.
    """

    request_id: int  # unique among requests in flight
    kind: EvidenceKind
    key: str = ""  # what is asked, the same in every run
    view: str = ""
    context: str = ""
    text: str = ""
    context_ids: list[int] | None = None
    text_ids: list[int] | None = None
    context_tokens: int | None = None  # keep only so many last tokens of the context
    text_tokens: int | None = None  # only so many first tokens of the text; refused where fewer
    noise: float = 0.0  # on the embeddings of the text, see `NoisyEmbeddings`
    question: bool = False  # the context asks one: a chat model is told nothing before it
    share: float = 0.0  # of the text that fills replace; 0 is the view's own
    n: int = 1
    seed: int = 0
    max_tokens: int = 1
    greedy: bool = False  # take the most likely token, whatever the run's decoding
    columns: frozenset[str] = frozenset()  # of the engine's columns, those that this text needs

    def why_no_answers(self, text_ids: list[int]) -> str | None:
        """Why these tokens of the text are not the answers to a question, one each."""
        answers = self.text.split()
        if not self.question or len(text_ids) == len(answers):
            return None
        return f"the answers {', '.join(answers)} are not one token each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """One text that a model gave; special tokens are removed from ``text``.

    An engine gives ``token_ids`` (the end-of-text token included), a source of texts ``text``, or
    the ``reason`` why there is none.
    """

    text: str | None = None
    token_ids: list[int] | None = None
    n_tokens: int | None = None
    finish_reason: FinishReason | None = None
    answer: AnswerKind = "text"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The answer to one request.

    ``tokens`` has arrays by column of the logprobs table, one entry a token: ``logprob`` float32,
    ``token_ids`` uint32, ``rank`` uint32 with 0 = unscored, ...; NaN = nothing precedes the token,
    or decoding leaves it out.
    """

    request_id: int
    continuations: list[Continuation] = field(default_factory=list)  # in the order of their seeds
    tokens: dict[str, NDArray[np.generic]] | None = None
    bos: bool = False  # whether a special token was put before the text
    bounded: bool = False  # whether the log-probability is only an upper bound
    prompt: str | None = None  # the prompt as it came back from the model's tokenizer
    passes: int = 1  # forward passes that it took
    error: str | None = None  # why this one request failed
    asked: bool = True  # False: the text is not of the kind that was asked for; nothing failed


class Engine(Protocol):
    """A started model in its own process: requests in any order, many at once.

    The same request gets the same answer whatever else is in flight (to the bit on a CPU in
    float32, in distribution on an accelerator).
    """

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""

    def submit(self, request: Request) -> None:
        """Queue a request; one that cannot be answered comes back with its reason."""

    def step(self) -> list[Answer]:
        """Work for a while; answers that are complete, possibly none."""

    def close(self) -> None:
        """Free the model; further calls are not allowed."""


class Source(Protocol):
    """Whatever answers requests, as the collector sees it: text goes out, text comes back."""

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Whether more should be submitted while so many requests and samples are in flight."""

    def submit(self, request: Request) -> None:
        """Queue a request; returns at once."""

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers: at least one, except where the time (seconds) passed before.

        Raises `EngineError` if nothing can be answered any more; what was finished comes first.
        """
