"""Settings: what is audited, and how it is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mia_batch.settings.part import Part, arguments, names

__all__ = ["SamplingSettings"]


class SamplingSettings(Part):
    """Corpus, model, attacks, and how continuations are sampled.

    Attributes are described by their fields.
    """

    input: str = Field(
        min_length=1,
        description="Corpus: Parquet (file, folder or glob), JSONL, CSV, or a folder of .txt.",
    )
    model: str = Field(
        min_length=1, description="Checkpoint folder, hub name, or the name at the endpoint."
    )
    out: Path | None = Field(None, description="Run folder.  [default: runs/INPUT-MODEL]")
    evidence: Literal["samples", "logprobs", "both"] | None = Field(
        None,
        description="Sampled continuations, token log-probabilities, or both.  [default: what the "
        "attacks need]",
    )
    preset: Literal["default", "samia", "min-k"] = Field(
        "default",
        description="default: length-matched attacks; samia: the SaMIA authors' procedure whole; "
        "min-k: that of the Min-K% paper.",
    )
    attacks: Annotated[tuple[str, ...] | None, BeforeValidator(names)] = Field(
        None, description="Attacks, separated by commas.  [default: the preset's]"
    )
    samples: int = Field(10, ge=1, description="Continuations sampled per target.")
    seed: int = Field(0, ge=0, lt=2**62, description="Seed of the run; same seed, same samples.")
    engine: Literal["auto", "vllm", "transformers", "openai", "replay"] = Field(
        "auto",
        description="Where samples come from; auto: openai with base-url, replay with "
        "samples-from, else vllm where it can run, else transformers.",
    )
    revision: str | None = Field(None, min_length=1, description="Hub revision of the model.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description="auto: float32 on a CPU; on a GPU the engine's choice for the checkpoint.",
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one copy of the model.")
    engine_arg: Annotated[dict[str, Any], BeforeValidator(arguments)] = Field(
        default_factory=dict,
        description="KEY=VALUE for the engine itself, such as max_model_len=2048; repeatable.",
    )
    prefix_ratio: float = Field(
        0.5, gt=0, lt=1, description="Share of a target's words that is given to the model."
    )
    word_rule: Literal["whitespace", "space", "rouge", "unicode"] = Field(
        "whitespace",
        description="How text is split into words; unicode: for text without spaces.  "
        "[default: whitespace; samia preset: space]",
    )
    window_words: int | None = Field(
        None, ge=2, description="Cut documents into windows of this many words."
    )
    stride: int | None = Field(
        None, ge=1, description="Words between the starts of windows.  [default: window-words]"
    )
    text_length: Literal[32, 64, 128, 256] | None = Field(
        None, description="Nominal words of a text (samia preset).  [default: each text's own]"
    )
    max_length: int = Field(
        1024, ge=2, description="Most tokens of prompt and output, where whole candidates count."
    )
    temperature: float = Field(1.0, gt=0, description="Divides the logits.")
    top_k: int = Field(50, ge=0, description="Draw from the k likeliest tokens only; 0: all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Draw from this much probability only.")
    retry_failed: bool = Field(
        default=False, description="Try again what could not be sampled before."
    )
    max_failed: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of targets that may fail; with more the exit code is 1.",
    )
