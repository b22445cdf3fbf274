"""What every engine promises, and the values that go in and out of one that samples.

No engine library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from mia_batch.evidence.scorer import Scoring

__all__ = [
    "Decoding",
    "Engine",
    "EngineInfo",
    "EngineName",
    "EngineSpec",
    "FinishReason",
    "Model",
    "SampleOutput",
    "SampleRequest",
    "SampleResult",
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


_Request_contra = TypeVar("_Request_contra", contravariant=True)
_Result = TypeVar("_Result")


class Model(Protocol[_Request_contra, _Result]):
    """A started model that answers requests, in any order, many at once."""

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""

    def submit(self, request: _Request_contra) -> None:
        """Queue a request."""

    def step(self) -> list[_Result]:
        """Work on what is queued for a while.

        Returns
        -------
        list
            Answers that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine as a whole cannot go on.
        """

    def close(self) -> None:
        """Free the model; further calls are not allowed."""


class Engine(Model[SampleRequest, SampleResult], Protocol):
    """A model that continues prompts.

    The same prompt and seed give the same continuation whatever else is in flight (to the bit on a
    CPU in float32, in law on an accelerator).
    """
