"""Settings: what is audited, and how it is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from mia_batch.settings.part import Column, Mark, Part, arguments, known_encoding, names
from mia_batch.storage import check_url, is_url, place_of

__all__ = ["SamplingSettings"]


class SamplingSettings(Part):
    """Corpus, model, attacks, and how continuations are sampled."""

    topic = "Texts and sampling"

    input: Annotated[str, Mark.PATH, Mark.USUAL] = Field(
        min_length=1,
        description="Corpus: a file, folder or glob of Parquet, Arrow, JSON, CSV, TSV, or books "
        "(.txt, .epub, .html).",
    )
    model: Annotated[str, Mark.MODEL, Mark.USUAL] = Field(
        min_length=1,
        description="Folder of a checkpoint or an adapter, hub name, or the name at the endpoint.",
    )
    out: Annotated[Path | str | None, Mark.PATH, Mark.USUAL] = Field(
        None,
        description="Run folder, here or in an object store (s3://bucket/run).  "
        "[default: runs/INPUT-MODEL]",
    )
    config: Annotated[str | None, Mark.PATH, Mark.USUAL] = Field(
        None,
        min_length=1,
        description="TOML file of settings.  [default: mia-batch.toml in the working directory, if "
        "there]",
    )
    evidence: Annotated[
        Literal["samples", "logprobs", "probe-logprobs", "both"] | None, Mark.USUAL
    ] = Field(
        None,
        description="Sampled continuations, log-probabilities of all tokens, those of the true "
        "next token at each point, or the first two.  [default: what the attacks need]",
    )
    preset: Annotated[
        Literal["default", "matched", "samia", "min-k", "spv"], Mark.EVIDENCE, Mark.USUAL
    ] = Field(
        "default",
        description="default: probes at many points; matched: length-matched continuations; samia: "
        "the SaMIA authors' procedure whole; min-k: that of the Min-K% paper; spv: that of the "
        "SPV-MIA paper and later attacks on fine-tuned models.",
    )
    attacks: Annotated[tuple[str, ...] | None, BeforeValidator(names), Mark.USUAL] = Field(
        None, description="Attacks, separated by commas.  [default: the preset's]"
    )
    attacks_from: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Python file with attacks of your own; computed unless attacks names others.",
    )
    samples: Annotated[int | None, Mark.USUAL] = Field(
        None,
        ge=1,
        description="Continuations drawn of each prompt.  [default: 10; at probes the most likely "
        "one, which is not drawn]",
    )
    probes: Annotated[int, Mark.USUAL] = Field(
        32, ge=1, le=4096, description="Most points of a text at which the next words are asked."
    )
    probe_every: int = Field(1, ge=1, description="Words between two points, at least.")
    probe_words: int = Field(1, ge=1, le=64, description="Words asked for at each point.")
    paraphrases_column: Column = Field(
        None, description="Column with lists of three paraphrases of each text (DE-COP)."
    )
    choice_orders: int = Field(
        24,
        ge=4,
        le=24,
        multiple_of=4,
        description="Orders in which a text and its paraphrases are shown (DE-COP).",
    )
    seed: Annotated[int, Mark.EVIDENCE] = Field(
        0, ge=0, lt=2**62, description="Seed of the run; same seed, same samples."
    )
    engine: Annotated[str, Mark.EVIDENCE, Mark.USUAL] = Field(
        "auto",
        description="Where samples come from; auto: openai with base-url, replay with "
        "samples-from, else vllm where it can run, else transformers.",
    )
    revision: str | None = Field(None, min_length=1, description="Hub revision of the model.")
    dtype: Annotated[Literal["auto", "float32", "float16", "bfloat16"], Mark.EVIDENCE] = Field(
        "auto",
        description="auto: float32 on a CPU; on a GPU the engine's choice for the checkpoint.",
    )
    tensor_parallel_size: Annotated[int, Mark.EVIDENCE] = Field(
        1, ge=1, description="GPUs that share one copy of the model."
    )
    engine_arg: Annotated[dict[str, Any], BeforeValidator(arguments), Mark.EVIDENCE] = Field(
        default_factory=dict,
        description="KEY=VALUE for the engine itself, such as max_model_len=2048; repeatable.",
    )
    encoding: Annotated[str, AfterValidator(known_encoding)] | None = Field(
        None,
        description="Encoding of text files that declare none.  [default: UTF-8]",
    )
    bad_input: Literal["refuse", "set-aside"] = Field(
        "refuse",
        description="Files and rows that cannot be read: refuse the first, or list them with their "
        "reasons in the table set_aside and go on with the others.",
    )
    prefix_ratio: Annotated[float, Mark.EVIDENCE] = Field(
        0.5, gt=0, lt=1, description="Share of a target's words that is given to the model."
    )
    word_rule: Annotated[
        Literal["whitespace", "space", "rouge", "unicode", "script"], Mark.EVIDENCE
    ] = Field(
        "script",
        description="How text is split into words; script: at white space, and character by "
        "character or so where a script has none between words.  [default: script; samia preset: "
        "space]",
    )
    window_words: Annotated[int | None, Mark.EVIDENCE, Mark.USUAL] = Field(
        None,
        ge=2,
        description="Cut documents into windows of this many words.  [default: 128 for books, else "
        "a document is one target]",
    )
    window_characters: Annotated[int | None, Mark.EVIDENCE] = Field(
        None,
        ge=2,
        description="Cut documents into windows of at most this many characters instead.",
    )
    max_windows_per_document: Annotated[int | None, Mark.USUAL] = Field(
        None,
        ge=1,
        description="Ask about this many windows of a document at most, evenly spread; a larger "
        "number later adds to them.  [default: all]",
    )
    stride: Annotated[int | None, Mark.EVIDENCE] = Field(
        None,
        ge=1,
        description="Words, or characters, between the starts of windows.  [default: those of a "
        "window]",
    )
    text_length: Annotated[Literal[32, 64, 128, 256] | None, Mark.EVIDENCE] = Field(
        None, description="Nominal words of a text (samia preset).  [default: each text's own]"
    )
    max_length: Annotated[int, Mark.EVIDENCE] = Field(
        1024, ge=2, description="Most tokens of prompt and output, where whole candidates count."
    )
    temperature: Annotated[float, Mark.EVIDENCE] = Field(
        1.0, ge=0, description="Divides the logits; 0: always take the most likely token."
    )
    top_k: Annotated[int, Mark.EVIDENCE] = Field(
        50, ge=0, description="Draw from the k most likely tokens only; 0: all."
    )
    top_p: Annotated[float, Mark.EVIDENCE] = Field(
        1.0, gt=0, le=1, description="Draw from this much probability only."
    )
    rarity_from: Annotated[Path | None, Mark.PATH] = Field(
        None,
        description="Run that tells how often the model says each word elsewhere: scores then "
        "depend on the text alone.  [default: this run]",
    )
    extract: bool = Field(
        default=False,
        description="Follow the model through the documents, from their strongest windows on.",
    )
    extract_starts: int = Field(
        3,
        ge=1,
        description="Strongest windows of a document that it is followed from, and back from there "
        "as long as text comes out.",
    )
    extract_draws: int = Field(
        0,
        ge=0,
        le=1000,
        description="Walks that are drawn from each of these windows where the greedy one, of the "
        "most likely words, led nowhere.",
    )
    extract_tokens: int = Field(
        2000, ge=1, description="Tokens of a document after which nothing further is asked."
    )
    controls: bool = Field(
        default=False,
        description="Ask for passages that came out after an unrelated prefix, too, and look for "
        "them in the other documents: what is common is no evidence.",
    )
    retry_failed: bool = Field(
        default=False, description="Try again what could not be sampled before."
    )
    max_failed: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of targets that may fail; with more the exit code is 1.",
    )
    report: bool = Field(default=True, description="Write report.html at the end.")

    @field_validator("out", mode="before")
    @classmethod
    def _named_folder(cls, value: object) -> object:
        if value == "":
            msg = "name a folder"
            raise ValueError(msg)
        return value

    @field_validator("out")
    @classmethod
    def _path_or_url(cls, value: Path | str | None) -> Path | str | None:
        if is_url(value):
            check_url(value)
        return None if value is None else place_of(value)

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
