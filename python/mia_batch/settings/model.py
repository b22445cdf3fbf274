"""The settings of a run: their names, types, defaults and what they need of each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

__all__ = ["EVIDENCE_SETTINGS", "Settings"]

EVIDENCE_SETTINGS = (
    "engine",
    "dtype",
    "engine_arg",
    "tensor_parallel_size",
    "preset",
    "prefix_ratio",
    "word_rule",
    "window_words",
    "stride",
    "text_length",
    "max_length",
    "temperature",
    "top_k",
    "top_p",
    "seed",
)
"""Settings that change a sample, beside the model: a run holds samples of one value of each."""

_RESOURCES = frozenset(
    {
        "batch_size",
        "cpu_offload_gb",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_batched_tokens",
        "max_num_seqs",
        "swap_space",
    }
)
"""Arguments of engines that decide how much memory they take, never what they sample."""


def _names(value: object) -> object:
    """Accept ``"a,b"`` as well as a list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def _arguments(value: object) -> object:
    """Accept ``["key=value", ...]`` as well as a table; a value is JSON where it parses as such."""
    if not isinstance(value, list | tuple):
        return value
    pairs = [str(item).partition("=") for item in value]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        msg = f"each must read KEY=VALUE, but {wrong[0]!r} does not"
        raise ValueError(msg)
    return {key.replace("-", "_"): _literal(text) for key, _, text in pairs}


def _literal(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


_ENGINE_OF = {"base_url": "openai", "samples_from": "replay"}
"""Settings that only one engine has, and which."""

Column = Annotated[str | None, Field(min_length=1)]


class Settings(BaseModel):
    """Everything that decides what a run does; frozen, validated as a whole.

    Attributes are described by their fields; ``mia-batch --help`` prints the same sentences.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

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
    attacks: Annotated[tuple[str, ...] | None, BeforeValidator(_names)] = Field(
        None, description="Attacks, separated by commas.  [default: the preset's]"
    )
    samples: int = Field(10, ge=1, le=65536, description="Continuations sampled per target.")
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
    engine_arg: Annotated[dict[str, Any], BeforeValidator(_arguments)] = Field(
        default_factory=dict,
        description="KEY=VALUE for the engine itself, such as max_model_len=2048; repeatable.",
    )
    prefix_ratio: float = Field(
        0.5, gt=0, lt=1, description="Share of a target's words that is given to the model."
    )
    word_rule: Literal["whitespace", "space"] = Field(
        "whitespace",
        description="How text is split into words.  [default: whitespace; samia preset: space]",
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
    reference_model: str | None = Field(
        None, min_length=1, description="Model to compare with, smaller or the base of a tuned one."
    )
    reference_revision: str | None = Field(
        None, min_length=1, description="Hub revision of the reference model."
    )
    masked_model: str | None = Field(
        None, min_length=1, description="Masked model that makes neighbours of the texts."
    )
    neighbours: int = Field(25, ge=1, le=1000, description="Neighbours made of each text.")
    neighbours_column: Column = Field(
        None, description="Column with lists of neighbours of your own."
    )
    nonmember_shots: str | None = Field(
        None,
        min_length=1,
        description="Texts known not to be members, put before each text (ReCaLL).",
    )
    member_shots: str | None = Field(
        None, min_length=1, description="Texts known to be members, likewise (Con-ReCaLL)."
    )
    shots: int = Field(10, ge=1, description="Most texts put before each text.")
    frequencies_from: str | None = Field(
        None, min_length=1, description="Corpus in which tokens are counted (DC-PDD)."
    )
    extraction_prefix_tokens: int = Field(
        50, ge=1, description="Last tokens of the prefix that an extraction starts from."
    )
    extraction_tokens: int = Field(
        50, ge=1, description="First tokens of the reference that are to be extracted."
    )
    long_texts: Literal["refuse", "stride"] = Field(
        "refuse",
        description="Texts longer than the context get no log-probabilities, or those of pieces "
        "of its length, none of which sees another.",
    )
    head_memory: int = Field(
        128, ge=1, description="Most memory in MiB for the logits of one forward pass at a time."
    )
    base_url: str | None = Field(
        None, description="Address of an OpenAI-compatible endpoint, such as http://host:8000/v1."
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY", min_length=1, description="Environment variable with the endpoint's key."
    )
    chat: bool = Field(
        default=False, description="Ask the endpoint's chat completions, for chat-only models."
    )
    chat_instruction: str | None = Field(
        None, min_length=1, description="What a chat model is told before the text to continue."
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Folder or hub name of the endpoint's tokenizer.  [default: tokens estimated]",
    )
    max_concurrency: int = Field(32, ge=1, le=4096, description="Most requests in flight.")
    requests_per_minute: float | None = Field(None, gt=0, description="Limit kept by the client.")
    tokens_per_minute: float | None = Field(None, gt=0, description="Limit kept by the client.")
    timeout: float = Field(600.0, gt=0, description="Seconds that an endpoint's answer may take.")
    max_retries: int = Field(8, ge=0, le=100, description="Times that a request is repeated.")
    price_in: float | None = Field(None, ge=0, description="Money per million prompt tokens.")
    price_out: float | None = Field(None, ge=0, description="Money per million output tokens.")
    max_cost: float | None = Field(
        None, gt=0, description="Stop before this much money is spent; needs both prices."
    )
    samples_from: str | None = Field(
        None,
        min_length=1,
        description="Recorded continuations (Parquet or JSONL), scored without a model.",
    )
    candidate_column: str = Field(
        "candidate", min_length=1, description="Column with the recorded continuation."
    )
    text_column: str = Field("text", min_length=1, description="Column with the text.")
    document_id_column: Column = Field(
        None, description="Column that identifies documents.  [default: document_id, if there]"
    )
    member_column: Column = Field(
        None, description="Column with true/false/null membership.  [default: member, if there]"
    )
    label_column: Column = Field(
        None, description="Column with membership as 1/0/null.  [default: label, if there]"
    )
    group_column: Column = Field(
        None, description="Column with the group, such as a book.  [default: group, if there]"
    )
    prefix_column: Column = Field(
        None, description="Column with a prefix of your own.  [default: prefix, if there]"
    )
    reference_column: Column = Field(
        None, description="Column with its true continuation.  [default: reference, if there]"
    )

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("preset") == "samia":
            values.setdefault("word_rule", "space")
        if values.get("preset") == "min-k":
            values.setdefault("evidence", "logprobs")
        if values.get("engine", "auto") == "auto":
            for setting, engine in _ENGINE_OF.items():
                if values.get(setting) is not None:
                    values["engine"] = engine
        if values.get("engine") == "replay":
            values.setdefault("model", "recorded")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and field.annotation is not bool:
            msg = "input should be no truth value"
            raise ValueError(msg)
        return value

    @field_validator("out", mode="before")
    @classmethod
    def _named_folder(cls, value: object) -> object:
        if value == "":
            msg = "name a folder"
            raise ValueError(msg)
        return value

    @field_validator("engine_arg")
    @classmethod
    def _possible_context(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        length = arguments.get("max_model_len", 1)
        if not isinstance(length, int) or length < 1:
            msg = "max_model_len should be a whole number of at least 1"
            raise ValueError(msg)
        return arguments

    @field_validator("text_length", mode="before")
    @classmethod
    def _text_length_number(cls, value: object) -> object:
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        from mia_batch.attacks import get

        if names is None:
            return None
        if not names:
            msg = "name at least one attack; `mia-batch attacks` lists them"
            raise ValueError(msg)
        return tuple(get(name).name for name in dict.fromkeys(names))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for setting, engine in _ENGINE_OF.items():
            given = getattr(self, setting) is not None
            if given and self.engine != engine:
                msg = f"setting {setting!r} belongs to engine {engine!r}; leave one of the two out"
                raise ValueError(msg)
            if not given and self.engine == engine:
                msg = f"engine {engine!r} needs setting {setting!r} beside it"
                raise ValueError(msg)
        for name in ("input", "model"):
            if os.path.realpath(self.folder) == os.path.realpath(getattr(self, name)):
                msg = f"setting 'out' is the {name} itself, {str(self.folder)!r}; choose another"
                raise ValueError(msg)
        if self.max_cost is not None and None in (self.price_in, self.price_out):
            msg = "setting 'max_cost' needs prices; give 'price_in' and 'price_out' beside it"
            raise ValueError(msg)
        if self.chat_instruction is not None and not self.chat:
            msg = "setting 'chat_instruction' belongs to 'chat'; set that too"
            raise ValueError(msg)
        if self.stride is not None and self.window_words is None:
            msg = "setting 'stride' needs 'window_words' beside it"
            raise ValueError(msg)
        if self.preset == "samia" and self.word_rule != "space":
            msg = f"setting 'word_rule' is {self.word_rule!r}, but preset 'samia' needs 'space'"
            raise ValueError(msg)
        if self.text_length is not None and self.preset != "samia":
            msg = "setting 'text_length' belongs to preset 'samia'; leave it out or set the preset"
            raise ValueError(msg)
        if self.text_length is not None and self.window_words not in (None, self.text_length):
            msg = (
                f"settings 'window_words' ({self.window_words}) and 'text_length' "
                f"({self.text_length}) must be equal where both are given"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _consistent_views(self) -> Self:
        if self.neighbours_column is not None and self.window_words is not None:
            msg = "setting 'neighbours_column' is about whole texts; leave 'window_words' out"
            raise ValueError(msg)
        if self.member_shots is not None and self.nonmember_shots is None:
            msg = "setting 'member_shots' needs 'nonmember_shots' beside it"
            raise ValueError(msg)
        return self

    @property
    def columns(self) -> dict[str, str | None]:
        """The settings that name columns of the corpus."""
        names = [name for name in type(self).model_fields if name.endswith("_column")]
        return self.model_dump(include=set(names) - {"candidate_column", "neighbours_column"})

    @property
    def folder(self) -> Path:
        """The run folder: ``out``, or ``runs/<input>-<model>`` in the working directory."""
        if self.out is not None:
            return self.out
        return Path("runs") / f"{_file_name(self.input)}-{_file_name(self.model)}"

    @property
    def evidence_values(self) -> dict[str, Any]:
        """The settings that change a sample, by name, as JSON values."""
        values = self.model_dump(mode="json", include=set(EVIDENCE_SETTINGS))
        arguments = values["engine_arg"].items()
        kept = {name: value for name, value in arguments if name not in _RESOURCES}
        return values | {"engine_arg": kept}


def _file_name(path_or_name: str) -> str:
    """Last part of a path or hub name without its suffix; wildcards become ``_``."""
    path = Path(path_or_name)
    name = path.stem if path.suffix in {".parquet", ".jsonl", ".ndjson", ".csv"} else path.name
    return "".join("_" if letter in "*?[]" else letter for letter in name) or "here"
