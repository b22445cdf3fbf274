"""What every engine promises, and the values that go in and out.

A sampling engine continues prompts; a scorer gives the log-probabilities of a text's own tokens.

No engine library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Decoding",
    "Engine",
    "EngineInfo",
    "EngineName",
    "EngineSpec",
    "FinishReason",
    "SampleOutput",
    "SampleRequest",
    "SampleResult",
    "ScoreRequest",
    "ScoreResult",
    "Scorer",
    "Scoring",
    "TokenScores",
]

EngineName = Literal["vllm", "transformers"]
"""Engines by name."""

FinishReason = Literal["stop", "length"]
"""``stop``: the model ended the text; ``length``: the budget or the context ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How tokens are drawn; constant within a run.

    Attributes
    ----------
    temperature
        Divides the logits; above 0.
    top_k
        Only the k likeliest tokens can be drawn; 0 = all.
    top_p
        Only the smallest set of likeliest tokens with this mass can be drawn; 1.0 = all.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What a scorer computes of each token beside its log-probability; constant within a run.

    Attributes
    ----------
    moments
        Mean and variance of the log-probability over the vocabulary.
    rank
        The token's place among all tokens.
    kept_mass
        Probability mass of the tokens that the run's decoding can draw.
    head_bytes
        Most memory for the logits of one chunk of tokens and what is computed from them; a chunk
        has at least one token.
    """

    moments: bool = False
    rank: bool = False
    kept_mass: bool = False
    head_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything an engine needs to start, picklable.

    Attributes
    ----------
    engine
        ``vllm`` or ``transformers``, already chosen.
    model
        Checkpoint folder or hub name.
    revision
        Hub revision; null = the default branch.
    dtype
        ``float32``, ``float16``, ``bfloat16``, or ``auto``: float32 on a CPU, and on an
        accelerator what the engine takes for the checkpoint.
    tensor_parallel_size
        Accelerators that share one copy of the model.
    decoding
        How tokens are drawn.
    scoring
        What a scorer computes; null = the engine samples.
    engine_args
        Further arguments for the engine's own constructor, passed on as they are.
    """

    engine: EngineName
    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    tensor_parallel_size: int = 1
    decoding: Decoding = field(default_factory=Decoding)
    scoring: Scoring | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself; recorded with the run.

    Attributes
    ----------
    engine, version
        Name and version of the engine.
    device
        Name of the hardware the model runs on, such as ``cpu`` or ``NVIDIA H200``.
    dtype
        Type the model runs in, such as ``float32``.
    max_model_len
        Most tokens of prompt and output together.
    max_sequences
        Sequences that the engine works on at once; callers keep about twice as many in flight.
    """

    engine: str
    version: str
    device: str
    dtype: str
    max_model_len: int
    max_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Ask for ``n`` continuations of one prompt.

    Attributes
    ----------
    request_id
        Chosen by the caller; unique among requests in flight.
    prompt_token_ids
        The prompt, special tokens included; at least one, fewer than the model's context.
    seed
        Seed of the first continuation; continuation ``i`` is drawn with ``seed + i``.
    n
        Continuations asked for, at least 1.
    max_tokens
        Most tokens to decode per continuation; with the prompt at most the model's context.
    """

    request_id: int
    prompt_token_ids: list[int]
    seed: int
    n: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutput:
    """One sampled continuation.

    Attributes
    ----------
    token_ids
        What was decoded, the end-of-text token included where it was drawn.
    finish_reason
        ``stop`` where the model ended the text, ``length`` where ``max_tokens`` did.
    """

    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    outputs
        ``n`` continuations in the order of their seeds; empty where ``error`` is set.
    error
        Why this one request failed; null where it did not.
    """

    request_id: int
    outputs: list[SampleOutput]
    error: str | None = None


class Engine(Protocol):
    """A model that answers sample requests, in any order, many at once.

    The same prompt and seed give the same continuation whatever else is in flight (to the bit on a
    CPU in float32, in law on an accelerator).
    """

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""

    def submit(self, request: SampleRequest) -> None:
        """Queue a request."""

    def step(self) -> list[SampleResult]:
        """Work on what is queued for a while.

        Returns
        -------
        list of SampleResult
            Answers that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine as a whole cannot go on.
        """

    def close(self) -> None:
        """Free the model; further calls are not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Ask for the log-probabilities of a text's own tokens.

    Attributes
    ----------
    request_id
        Chosen by the caller; unique among requests in flight.
    token_ids
        The text, special tokens included; at most the model's context.
    first
        Index of the first token to score, at least 1; those before it are context.
    """

    request_id: int
    token_ids: list[int]
    first: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What a model says of tokens, each given all tokens before it.

    Natural logarithms over the model's whole vocabulary at temperature 1; every array has one entry
    per scored token.

    Attributes
    ----------
    logprob
        Log-probability of the token, at most 0.
    mean
        Mean of the log-probability over the vocabulary, ``sum(p * log(p))``: minus the entropy;
        null where not asked for.
    variance
        Its variance, ``sum(p * (log(p) - mean)**2)``; null where not asked for.
    rank
        1 + the number of tokens with a larger logit; null where not asked for.
    kept_mass
        Log of the probability mass that the run's decoding keeps, top-k and then top-p, NaN where
        it leaves the token out; null where not asked for.
    """

    logprob: NDArray[np.float32]
    mean: NDArray[np.float32] | None = None
    variance: NDArray[np.float32] | None = None
    rank: NDArray[np.uint32] | None = None
    kept_mass: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    scores
        Of ``token_ids[first:]``; null where ``error`` is set.
    error
        Why this one request failed; null where it did not.
    """

    request_id: int
    scores: TokenScores | None = None
    error: str | None = None


class Scorer(Protocol):
    """A model that scores texts, in any order, many at once.

    A text gets the same values, but for rounding, whatever else is in flight.
    """

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""

    def submit(self, request: ScoreRequest) -> None:
        """Queue a request."""

    def step(self) -> list[ScoreResult]:
        """Work on what is queued for a while.

        Returns
        -------
        list of ScoreResult
            Answers that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine as a whole cannot go on.
        """

    def close(self) -> None:
        """Free the model; further calls are not allowed."""
