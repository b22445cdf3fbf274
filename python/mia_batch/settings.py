"""The settings of a run: their groups, and one validated value from options and TOML files."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mia_batch.errors import SettingsError
from mia_batch.places import check_url, find_working_copy, is_url, parse_place
from mia_batch.recipes import Method, recipe_field

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from mia_batch.evidence.endpoint import ClientSettings
    from mia_batch.evidence.engines.registry import SourceKind
    from mia_batch.models.tokens import Tokenizer

Text = Annotated[
    str,
    Field(min_length=1),
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
]
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Column = Annotated[str | None, Field(min_length=1)]
"""Name of a column; None = that of its role."""


class Mark(Enum):
    """What is to be known of a setting, next to its type; stands in its annotation."""

    EVIDENCE = "changes a sample: a run holds evidence of one value"
    PATH = "names a file or folder"
    ADDRESS = "names texts, which may lie at an address"
    MODEL = "names a model, at a hub or by its folder"
    USUAL = "is among the first of the help"


@dataclass(frozen=True, slots=True)
class UserOnly:
    """Stands in the annotation of a setting that no file decides, since it may be a stranger's."""

    reason: str
    addresses: bool = False  # only of a value that is an address


SENDS = "says where texts and keys are sent"
FETCHES = UserOnly("may name another machine, which is then asked", addresses=True)
"""Of settings that name texts, which may lie at an address."""


class SettingsGroup(BaseModel):
    """Some of the settings: frozen, and nothing unknown among them.

    ``topic`` heads them in the help, ``table`` is their table in TOML and their keyword
    in Python, None at the top level. Where they belong to answers of one source,
    ``keys`` are those of which this source needs one.
    """

    topic: ClassVar[str]
    table: ClassVar[str | None] = None
    of_source: ClassVar[SourceKind | None] = None
    keys: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def marked(cls, mark: Mark) -> tuple[str, ...]:
        return tuple(
            name for name, field in cls.model_fields.items() if mark in field.metadata
        )

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
        use_attribute_docstrings=True,
    )

    def __init_subclass__(cls, **class_variables: object) -> None:
        for name, value in class_variables.items():
            setattr(cls, name, value)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Join the lines of descriptions; the help breaks its own lines."""
        for field in cls.model_fields.values():
            description = " ".join((field.description or "").split())
            field.description = description.replace(" [default", "  [default")


def split_names(value: Any) -> Any:
    """Accept ``"a,b"`` as well as a list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def register_attacks(value: object) -> object:
    """Accept attacks by their names or as objects, which are registered; one or several."""
    from mia_batch.attacks import Attack, register

    attacks = split_names([value] if isinstance(value, Attack) else value)
    if not isinstance(attacks, list | tuple):
        return attacks
    return [
        register(attack).name if isinstance(attack, Attack) else attack
        for attack in attacks
    ]


def check_run_place(value: Path | str | None) -> Path | str | None:
    if value == "":
        raise ValueError("name a folder")
    if is_url(value):
        check_url(value)
    return None if value is None else parse_place(value)


def check_on_disk(path: str | None) -> str | None:
    if is_url(path):
        raise ValueError("it must be on a disk; only a run may be in an object store")
    return path


def check_texts_address(address: str) -> str:
    from mia_batch.corpus.addresses import check_address

    return check_address(address)


def check_address(value: object) -> object:
    """Refuse several addresses: a load balancer spreads requests over servers."""
    addresses = [value] if isinstance(value, str) else value
    if (
        not isinstance(addresses, list | tuple)
        or len(addresses) != 1
        or "," in str(addresses[0])
    ):
        raise ValueError(
            "give one address; to ask several servers, put a load balancer in front of"
            " them"
        )
    return addresses[0]


def check_encoding(value: str) -> str:
    from mia_batch.corpus.books import find_codec

    codec = find_codec(value)
    if codec is None:
        raise ValueError("name an encoding of text, such as cp1252, latin-1 or gb18030")
    return codec


def check_dataset(value: str) -> str:
    from mia_batch.known import find_set

    try:
        return find_set(value).name
    except SettingsError as error:
        raise ValueError(str(error)) from None


def check_sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError("give the 64 hexadecimal digits of a SHA-256")
    return value


def check_shard(value: str) -> str:
    from mia_batch.evidence.parts import Shard

    return str(Shard.parse(value))


def engine_names() -> list[str]:
    from mia_batch.evidence.engines.registry import engine_types

    of_audits = {"samples", "logprobs"}
    engines = [name for name, kind in engine_types().items() if kind.kinds & of_audits]
    return ["auto", *engines]


def source_of_engine(name: object) -> SourceKind:
    """Return where answers come from under the name of an engine."""
    from mia_batch.evidence.engines.registry import find_source_kind

    return find_source_kind(str(name))


def remote_engine_name(source: SourceKind) -> str:
    """Return what ``engine`` is for answers that no engine here gives."""
    from mia_batch.evidence.engines.registry import find_remote_engine

    return find_remote_engine(source)


def parse_arguments(value: object) -> object:
    """Accept ``["key=value", ...]`` as well as a table; a value is JSON where it parses as such."""
    if not isinstance(value, list | tuple):
        return value
    arguments: dict[str, object] = {}
    for item in value:
        key, equals, text = str(item).partition("=")
        if not (key and equals):
            raise ValueError(f"each must read KEY=VALUE, but {key!r} does not")
        name = key.replace("-", "_")
        try:
            arguments[name] = json.loads(text)
        except json.JSONDecodeError:
            arguments[name] = text
    return arguments


class EndpointSettings(
    SettingsGroup,
    topic="Endpoint",
    table="endpoint",
    of_source="endpoint",
    keys=("base_url",),
):
    """How an endpoint is reached and asked."""

    base_url: Annotated[
        Text | None, BeforeValidator(check_address), Mark.USUAL, UserOnly(SENDS)
    ] = None
    """Address of an OpenAI-compatible endpoint, such as http://host:8000/v1."""
    api_key_env: Annotated[Text, UserOnly("names a secret of your environment")] = (
        "OPENAI_API_KEY"
    )
    """Environment variable with the endpoint's key."""
    chat: bool = False
    """Ask the endpoint's chat completions, for chat-only models."""
    chat_instruction: Text | None = None
    """What is said to a chat model before the text to continue."""
    tokenizer: Annotated[Text | None, Mark.MODEL] = None
    """Folder, hub name or GGUF file of the endpoint's tokenizer; probe-logprobs need it,
    and token ids in --logprobs-from. [default: tokens estimated]"""
    max_concurrency: int = Field(default=32, ge=1, le=4096)
    """Most requests in flight."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Most requests in a minute; the client waits."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Most tokens in a minute; the client waits."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds that an endpoint's answer may take."""
    max_retries: int = Field(default=8, ge=0, le=100)
    """Times that a request is repeated."""
    price_in: float | None = Field(default=None, ge=0)
    """Money per million prompt tokens."""
    price_out: float | None = Field(default=None, ge=0)
    """Money per million output tokens."""
    currency: Annotated[
        str, StringConstraints(strip_whitespace=True, pattern=r"^\S{1,8}$")
    ] = "USD"
    """Currency of the prices, as money is printed."""
    max_cost: float | None = Field(default=None, gt=0)
    """Stop before this much money is spent; needs both prices."""


def _list_paths(value: object) -> object:
    """Accept one path as well as several."""
    return (value,) if isinstance(value, str | Path) else value


class BatchSettings(
    SettingsGroup, topic="Batch files", table="batch", of_source="endpoint"
):
    """Requests to an endpoint that are written to files, and answers that are read from some."""

    requests_to: Annotated[
        Text | None, AfterValidator(check_on_disk), UserOnly("writes files")
    ] = Field(default=None, exclude=True)
    """Folder to which what is left to ask is written, as files for a batch service,
    instead of being asked."""
    answers_from: Annotated[
        tuple[Annotated[Text, AfterValidator(check_on_disk)], ...],
        BeforeValidator(_list_paths),
    ] = Field(default=(), exclude=True)
    """File, folder or glob of answers that a batch service gave back; repeatable. What
    they do not answer is not asked."""
    batch_price: float = Field(default=0.5, ge=0, le=1)
    """What a batch service takes, as a share of the prices."""


class RecordingSettings(
    SettingsGroup,
    topic="Recording",
    table="recording",
    of_source="recording",
    keys=("samples_from", "logprobs_from", "texts_to"),
):
    """Continuations or log-probabilities that another program computed."""

    samples_from: Annotated[Text | None, Mark.PATH] = None
    """Recorded continuations (Parquet or JSONL), scored without a model."""
    candidate_column: Text = "candidate"
    """Column with the recorded continuation."""
    logprobs_from: Annotated[Text | None, Mark.PATH] = None
    """Log-probabilities of the tokens of each text (Parquet or JSONL), scored without a
    model."""
    reference_logprobs_from: Annotated[Text | None, Mark.PATH] = None
    """The same of the reference model."""
    texts_to: Annotated[Text | None, Mark.PATH, UserOnly("writes a file")] = None
    """Write the texts of which log-probabilities are needed to this file (JSONL), and
    end."""


class ColumnSettings(SettingsGroup, topic="Columns of the corpus", table="columns"):
    """The user's names for the columns of a corpus."""

    text_column: Text = "text"
    """Column with the text."""
    document_id_column: Column = None
    """Column that identifies documents. [default: document_id, if there]"""
    member_column: Column = None
    """Column with true/false/null membership. [default: member, if there]"""
    label_column: Column = None
    """Column with membership as 1/0/null. [default: label, if there]"""
    group_column: Column = None
    """Column with the group, such as a book. [default: group, if there]"""
    author_column: Column = None
    """Column with the author; books of one count once together. [default: author, if
    there]"""
    prefix_column: Column = None
    """Column with a prefix of your own. [default: prefix, if there]"""
    reference_column: Column = None
    """Column with its true continuation. [default: reference, if there]"""


def parse_digits(value: object) -> object:
    """Read digits, which a list of numbers does not accept as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _check_workers(value: object) -> object:
    if value in (None, "auto"):
        return value
    if str(value).isdecimal() and 1 <= int(str(value)) <= 100_000:
        return value
    raise ValueError(f"give a number from 1 to 100000, or auto, not {value!r}")


class ClusterSettings(SettingsGroup, topic="Many GPUs and machines", table="cluster"):
    """How many engines or processes work on a run, and where; none of it is stored with the run."""

    workers: Annotated[
        int | Literal["auto"] | None, BeforeValidator(_check_workers)
    ] = Field(default=None, exclude=True)
    """Engines at work, or models tuned at once, each with tensor_parallel_size GPUs, or
    cores without GPUs; auto: as many as fit. Needs Ray. [default: one, without Ray]"""
    ray: Annotated[Text | None, UserOnly("says which machines run the work")] = Field(
        default=None, exclude=True
    )
    """Address of a Ray cluster, or auto for the one that runs here. [default: with
    workers, Ray on this machine alone]"""
    shard: Annotated[str | None, AfterValidator(check_shard)] = Field(
        default=None, exclude=True
    )
    """I/N: work on every N-th block only, as one of N processes that share the run
    folder; the command without it merges and scores."""

    @property
    def executor(self) -> str | None:
        """The entry point of what spreads work over processes and machines; None for this one."""
        return "ray" if self.ray is not None or self.workers is not None else None


class LogprobSettings(SettingsGroup, topic="Log-probabilities", table="logprobs"):
    """What log-probabilities are asked of, and by which other models."""

    reference_model: Annotated[Text | None, Mark.MODEL] = None
    """Model to compare with, smaller or the base of a tuned one; it is asked the same,
    at points too. With --non-members the planned test is made on it, too: a placebo."""
    reference_revision: Text | None = None
    """Hub revision of the reference model."""
    reference_kind: Literal["base", "other"] | None = None
    """Whether it is the base of the model, or made as the base: the planned attack then
    reads it. [default: base where both are of the same architecture and size]"""
    masked_model: Annotated[Text | None, Mark.MODEL] = None
    """Masked model that makes neighbours of the texts."""
    neighbours: int = Field(default=25, ge=1, le=1000)
    """Neighbours made of each text."""
    neighbours_column: Column = None
    """Column with lists of neighbours of your own."""
    nonmember_shots: Annotated[Text | None, Mark.PATH] = None
    """Texts known not to be members, put before each text (ReCaLL)."""
    member_shots: Annotated[Text | None, Mark.PATH] = None
    """Texts known to be members, likewise (Con-ReCaLL)."""
    shots: int = Field(default=10, ge=1)
    """Most texts put before each text."""
    frequencies_from: Annotated[Text | None, Mark.PATH] = None
    """Corpus in which tokens are counted (DC-PDD)."""
    extraction_prefix_tokens: int = Field(default=50, ge=1)
    """Last tokens of the prefix that an extraction starts from."""
    extraction_tokens: int = Field(default=50, ge=1)
    """First tokens of the reference that are to be extracted."""
    long_texts: Literal["refuse", "stride"] = "refuse"
    """Texts longer than the context get no log-probabilities, or those of pieces of its
    length, none of which sees another. [default: pieces where one pass is the default,
    else refuse]"""


class MainSettings(SettingsGroup, topic="What everybody needs"):
    """What is audited, and by which attacks; these stand in no table."""

    input: Annotated[Text, Mark.PATH, Mark.ADDRESS, Mark.USUAL, FETCHES]
    """Corpus: a file, folder or glob of Parquet, Arrow, JSON, CSV, TSV, or books (.txt,
    .epub, .html), or an address (s3://, gs://, https://, hf://datasets/); with
    --dataset, a copy of it."""
    dataset: Annotated[Text | None, AfterValidator(check_dataset), Mark.USUAL] = None
    """Data set by its name, such as wikimia:64; `mia-batch datasets` lists them."""
    dataset_sha256: Annotated[str, AfterValidator(check_sha256)] | None = None
    """SHA-256 that the rows of the data set must have. [default: that of its record]"""
    model: Annotated[Text, Mark.MODEL, Mark.USUAL]
    """Folder of a checkpoint or an adapter, GGUF file, hub name, or the name at the
    endpoint."""
    out: Annotated[
        Path | str | None,
        AfterValidator(check_run_place),
        Mark.PATH,
        Mark.USUAL,
        UserOnly(SENDS, addresses=True),
    ] = None
    """Run folder, here or in an object store (s3://bucket/run). [default:
    runs/INPUT-MODEL]"""
    config: Annotated[
        Text | None, Mark.PATH, Mark.USUAL, UserOnly("names this file")
    ] = None
    """TOML file of settings. [default: mia-batch.toml in the working directory, if
    there, and what that leaves open from your own,
    ~/.config/mia-batch/mia-batch.toml]"""
    plan: Annotated[Text | None, Mark.PATH, UserOnly("says what is audited")] = None
    """Plan that --dry-run wrote, plan.json: the audit is made exactly by it, or says
    what differs. Settings that are not given are taken from it; texts and models are
    named again."""
    evidence: Literal["samples", "logprobs", "probe-logprobs", "both"] | None = None
    """Sampled continuations, log-probabilities of all tokens, those of the true next
    token at each point, or the first two. [default: what the attacks need; without
    attacks one pass of log-probabilities where the model runs here, else samples]"""
    preset: Annotated[
        Literal["default", "matched", "samia", "min-k", "spv"],
        Mark.EVIDENCE,
        Mark.USUAL,
    ] = "default"
    """default: one pass of log-probabilities, or next tokens or words of an endpoint;
    matched: length-matched continuations; samia, min-k, spv: the whole procedures of
    the SaMIA, Min-K% and SPV-MIA papers."""
    attacks: Annotated[
        tuple[str, ...] | None, BeforeValidator(register_attacks), Mark.USUAL
    ] = None
    """Attacks, separated by commas: by name, family (min-k++) or as papers call them;
    `mia-batch attacks` lists them. [default: the preset's]"""
    attacks_from: Annotated[Text | None, Mark.PATH, UserOnly("runs code")] = None
    """Python file with attacks of your own, which are computed with those in
    attacks."""
    seed: Annotated[int, Mark.EVIDENCE] = Field(default=0, ge=0, lt=2**62)
    """Seed of the run; same seed, same samples."""
    max_failed: float = Field(default=0.05, ge=0, le=1)
    """Share of targets that may fail; with more the exit code is 1."""


class TextSettings(SettingsGroup, topic="Texts", table="texts"):
    """How the texts are read and cut."""

    encoding: Annotated[str, AfterValidator(check_encoding)] | None = None
    """Encoding of text files that declare none. [default: UTF-8]"""
    bad_input: Literal["refuse", "set-aside"] = "refuse"
    """Files and rows that cannot be read: refuse the first, or list them with their
    reasons in the table set_aside and go on with the others."""
    conversations: Annotated[Literal["answers", "text"] | None, Mark.EVIDENCE] = None
    """Rows of messages, or of prompts and answers: answers: ask about each answer after
    what came before it, by the model's chat template; text (--as-text): read each row as
    one plain text. [default: answers]"""
    documents: Annotated[int | None, Mark.USUAL] = Field(
        default=None, ge=1, le=1_000_000
    )
    """Draw this many documents of the corpus by lot, and say what share of all is known;
    a larger number later adds to them. [default: all documents are asked about]"""
    draw_by: Column = None
    """Draw so many documents of each value of this column, such as a source."""
    word_rule: Annotated[
        Literal["whitespace", "space", "rouge", "unicode", "script", "folded"],
        Mark.EVIDENCE,
    ] = "folded"
    """How text is split into words; script: at white space, and character by character
    or so where a script has none between words; folded: so, too, and quotes, dashes,
    ligatures, the long s and accents count as the same however they are written.
    [default: folded; samia preset: space]"""
    window_words: Annotated[int | None, Mark.EVIDENCE, Mark.USUAL] = Field(
        default=None, ge=2
    )
    """Cut documents into windows of this many words. [default: 128 for books, else a
    document is one target]"""
    window_characters: Annotated[int | None, Mark.EVIDENCE] = Field(default=None, ge=2)
    """Cut documents into windows of at most this many characters instead."""
    max_windows_per_document: Annotated[int | None, Mark.USUAL] = Field(
        default=None, ge=1
    )
    """Ask about this many windows of a document at most, evenly spread; a larger number
    later adds to them. [default: all]"""
    stride: Annotated[int | None, Mark.EVIDENCE] = Field(default=None, ge=1)
    """Words, or characters, between the starts of windows. [default: those of a
    window]"""
    text_length: Annotated[
        Literal[32, 64, 128, 256] | None, BeforeValidator(parse_digits), Mark.EVIDENCE
    ] = None
    """Nominal words of a text (samia preset). [default: each text's own]"""
    prefix_ratio: Annotated[float, Mark.EVIDENCE] = Field(default=0.5, gt=0, lt=1)
    """Share of a target's words that is given to the model."""


class EngineSettings(SettingsGroup, topic="Engine", table="engine"):
    """What answers for the model."""

    engine: Annotated[str, Mark.EVIDENCE, Mark.USUAL] = "auto"
    """What answers; auto: openai with --base-url, replay with --samples-from or
    --logprobs-from, llama-cpp for a GGUF file, else vllm or transformers, whichever
    runs and is faster."""
    revision: Text | None = None
    """Hub revision of the model."""
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"], Mark.EVIDENCE
    ] = "auto"
    """auto: float32 on a CPU; on a GPU the engine's choice for the checkpoint; a GGUF
    file's own."""
    tensor_parallel_size: Annotated[int, Mark.EVIDENCE] = Field(default=1, ge=1)
    """GPUs that share one copy of the model."""
    engine_arg: Annotated[
        dict[str, Any], BeforeValidator(parse_arguments), Mark.EVIDENCE
    ] = Field(default_factory=dict)
    """KEY=VALUE for the engine itself, such as max_model_len=2048; repeatable."""
    logits_memory: int | None = Field(default=None, ge=1)
    """Most memory in MiB for logits at a time. [default: 128 on a CPU; on a GPU an
    eighth of what the weights leave free, at most 4096]"""

    @field_validator("engine_arg")
    @classmethod
    def _possible_context(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        length = arguments.get("max_model_len", 1)
        if not isinstance(length, int) or length < 1:
            raise ValueError("max_model_len should be a whole number of at least 1")
        return arguments


class SamplingSettings(SettingsGroup, topic="Sampling", table="sampling"):
    """How continuations are sampled."""

    samples: Annotated[int | None, Mark.USUAL] = Field(default=None, ge=1)
    """Continuations drawn of each prompt. [default: 10; at probes the most likely one,
    which is not drawn]"""
    probes: int = Field(default=32, ge=1, le=4096)
    """Most points of a text at which the next words are asked. [default: 32; 128 of
    probe-logprobs]"""
    probe_every: int = Field(default=1, ge=1)
    """Words between two points, at least."""
    probe_words: int = Field(default=1, ge=1, le=64)
    """Words asked for at each point."""
    token_points: int = Field(default=256, ge=1, le=4096)
    """Most points of a text at which the next token alone is asked."""
    masked_words: int = Field(default=8, ge=1, le=64)
    """Most words of a text that are hidden, one at a time."""
    nudge: float = Field(default=5.0, ge=0, le=100)
    """Nats that are added to the true next token's logit there; 0: nothing is added."""
    max_length: Annotated[int, Mark.EVIDENCE] = Field(default=1024, ge=2)
    """Most tokens of prompt and output, where whole candidates count."""
    temperature: Annotated[float, Mark.EVIDENCE] = Field(default=1.0, ge=0)
    """Divides the logits; 0: always take the most likely token."""
    top_k: Annotated[int, Mark.EVIDENCE] = Field(default=50, ge=0)
    """Draw from the k most likely tokens only; 0: all."""
    top_p: Annotated[float, Mark.EVIDENCE] = Field(default=1.0, gt=0, le=1)
    """Draw from this much probability only."""
    continue_strongest: int | None = Field(default=None, ge=0)
    """Texts of highest scores that are continued where no attack asks for
    continuations; 0: none. [default: 64 where attacks, evidence and preset are left
    open, else 0]"""
    paraphrases_column: Column = None
    """Column with lists of three paraphrases of each text (DE-COP)."""
    choice_orders: int = Field(default=24, ge=4, le=24, multiple_of=4)
    """Orders in which a text and its paraphrases are shown (DE-COP)."""
    rarity_from: Annotated[Path | None, Mark.PATH] = None
    """Run that tells how often the model says each word elsewhere: scores then depend
    on the text alone. [default: this run]"""
    answer_tokens: int = Field(default=4096, ge=1)
    """Most tokens of each of the model's own two answers (Self-Critique)."""
    retry_failed: bool = False
    """Try again what could not be sampled before."""


class ExtractionSettings(SettingsGroup, topic="Extraction", table="extract"):
    """How the model is followed through documents."""

    extract: bool = False
    """Follow the model through the documents, from their strongest windows on."""
    extract_starts: int = Field(default=3, ge=1)
    """Strongest windows of a document that it is followed from, and back from there as
    long as text comes out."""
    extract_draws: int = Field(default=0, ge=0, le=1000)
    """Walks that are drawn from each of these windows where the greedy one, of the most
    likely words, led nowhere."""
    extract_tokens: int = Field(default=2000, ge=1)
    """Tokens of a document after which nothing further is asked."""
    controls: bool = False
    """Ask for passages that came out after an unrelated prefix, too, and look for them
    in the other documents: what is common is no evidence."""
    known_corpus: Annotated[Text | None, Mark.PATH, Mark.ADDRESS, FETCHES] = None
    """Texts of a corpus that is known: each passage that comes out is looked for in
    them."""
    known_index: Annotated[Text | None, UserOnly(SENDS, addresses=True)] = None
    """The same in an index of infini-gram: ADDRESS#INDEX of its API, to which the
    passages are sent, or FOLDER#TOKENIZER on this machine, of which nothing is sent."""


class ReportSettings(SettingsGroup, topic="Report", table="report"):
    """What the report shows."""

    report: bool = True
    """Write report.html at the end."""
    slice_by: Annotated[tuple[str, ...], BeforeValidator(split_names)] = ()
    """Columns, separated by commas, by whose values metrics are given as well."""
    plan_lodged: Sentence | None = None
    """When and where the plan was lodged before the run, in a sentence that the report
    shows; --dry-run writes the plan and prints its SHA-256."""


class FinetuningSettings(SettingsGroup, topic="Fine-tuned references", table="tuning"):
    """Reference models that a run makes: of what they are made, and how they are compared."""

    prompts_from: Annotated[Text | None, Mark.PATH, Mark.ADDRESS, FETCHES] = None
    """Texts whose first tokens the target goes on with; a reference model is tuned on
    what it says (SPV-MIA)."""
    prompt_tokens: int = Field(default=16, ge=1, le=1024)
    """First tokens of each such text."""
    generations: int = Field(default=1000, ge=2, le=1_000_000)
    """Texts that the target generates."""
    generation_tokens: int = Field(default=128, ge=2, le=100_000)
    """Most tokens of a generation."""
    candidate_from: Annotated[Text | None, Mark.PATH, Mark.ADDRESS, FETCHES] = None
    """Texts of the same kind, on which a second reference model is tuned
    (LiRA-Candidate)."""
    shadows: int | None = Field(default=None, ge=2, le=1024, multiple_of=2)
    """Shadow models, an even number: each text is in half of them, at random (LiRA,
    RMIA)."""
    tuning: Method = recipe_field("method")
    tuning_rank: int = recipe_field("rank")
    tuning_epochs: int = recipe_field("epochs")
    tuning_rate: float = recipe_field("learning_rate")
    tuning_batch: int = recipe_field("batch_size")
    tuning_tokens: int = recipe_field("max_tokens")
    paraphrases: int = Field(default=10, ge=1, le=1000)
    """Symmetric pairs of paraphrases of each text (SPV-MIA)."""
    paraphrase_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the tokens that a paraphrase replaces."""
    noise: float = Field(default=0.1, gt=0, le=100)
    """Standard deviation of noise on embeddings. [default: 0.1; with an absolute scale
    0.05]"""
    noise_scale: Literal["relative", "absolute"] = "relative"
    """What that is measured in: the standard deviation of the entries of the model's
    embedding matrix, or none: the number itself, as the SPV-MIA paper gives it."""


# Yardsticks that are no file
N_STRONGEST = 64
"""Texts of highest scores that are continued by default: at an endpoint for a fifth of what it
costs to score as many by words, so that a large run hardly costs more."""
CLASSICS = "default"
NO_YARDSTICK = "none"


class VerdictSettings(
    SettingsGroup, topic="Reference sets and answers", table="verdict"
):
    """Reference sets, and how the answer is given."""

    non_members: Annotated[
        Text | None, Mark.PATH, Mark.ADDRESS, Mark.USUAL, FETCHES
    ] = None
    """Texts known not to be in the training data: each text is compared with them.
    [default: the input's own of member = false]"""
    non_members_known: Annotated[Sentence | None, Mark.USUAL] = None
    """How it is known that they are not, in a sentence that is printed with the
    result."""
    calibration: Annotated[Text | None, Mark.PATH, Mark.ADDRESS, FETCHES] = None
    """Other texts of known membership, from which thresholds and rates are taken."""
    canaries: Annotated[Text | None, Mark.PATH] = None
    """Sets of texts of which one each, drawn at random, was published."""
    yardstick: Annotated[Text | None, Mark.PATH] = None
    """Texts that the model knows to a known degree, with a column level, or copies:
    they are asked in the same way and say what finding nothing means, and how often
    texts were learnt. default: 115 passages of classics; none, or --no-yardstick: no
    such texts. [default: the classics for books that are compared or continued, else
    none]"""
    replace: bool = Field(default=False, exclude=True)
    """Let this request take the place of what the run has answered: another primary
    attack, level or threshold then answers, marked as exploratory, and scores that are
    not asked for are taken away; run.json keeps a record. [default: scores are added,
    and the planned answer stays]"""
    combine: bool = False
    """Learn from texts of known membership how to combine the scores of all attacks, as
    a further attack: combination_v1."""
    primary: Text | None = None
    """The attack that the answer rests on. [default: min_k_plus_plus_20_v1,
    token_hits_less_expected_v1, token_hits_v1, probe_leading_rarity_v1 or
    samia_matched_v1, the first that is computed]"""
    level: Literal["target", "group", "collection"] = "target"
    """What the answer is about: each target, each whole group, or all groups
    together."""
    windows_per_group: int | None = Field(default=None, ge=1)
    """Targets compared of each group; groups with fewer get no answer. [default: as
    many as nine groups in ten have]"""
    exploratory: bool = False
    """Print p-values, lists and estimates, marked as exploratory, even where a
    classifier that never sees the model tells the targets from the non-members."""
    statistic: Literal["mean", "median", "maximum"] = "mean"
    """What is compared of a group's targets."""
    q: float = Field(default=0.05, gt=0, lt=1)
    """Largest share of false ones among what is reported."""
    adjustment: Literal["bh", "by"] = "bh"
    """Benjamini-Hochberg, or Benjamini-Yekutieli for any dependence."""
    anyway: bool = False
    """Go on where no answer can come of it: so few non-members allow none at this
    level, or they can be distinguished from the targets without the model; and where
    the audit differs from its --plan. Print the numbers, marked as exploratory, where
    the service changed while it was asked. End with 0 where the model predicts no
    better than chance."""
    stop_when_decided: bool = False
    """Ask about the windows of groups in rounds, each group until it is reported or can
    no longer be (e-BH), instead of about all: saves tokens. Needs --level group."""
    ties: Literal["conservative", "random"] = "conservative"
    """Equal scores count against the target, or are ordered at random."""
    length_edges: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(split_names)
    ] = ()
    """Words at which a new bucket begins, separated by commas: targets are compared
    with non-members of their own bucket."""
    fpr: float = Field(default=0.05, gt=0, lt=1)
    """Share of non-members above the threshold at which the contamination rate is
    estimated."""


RESOURCES = frozenset(
    {
        "batch_size",
        "cpu_offload_gb",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_batched_tokens",
        "max_num_seqs",
        "n_threads",
        "swap_space",
    }
)
"""Arguments of engines that decide how much memory they take, never what they sample."""

_WHOLE_TEXTS = ("neighbours_column", "paraphrases_column")
_ROUNDS = {"level": "group", "adjustment": "bh", "ties": "conservative"}
"""What e-BH in rounds is valid for."""
_ONE_PROCESS = {
    "endpoint": "an endpoint is asked by one process; raise --max-concurrency",
    "recording": "a recording is read by one process",
}
_ALSO_OF = {"recording": ("tokenizer",)}
"""Settings of another source's group that a source takes, too."""
_HOW_KNOWN = (
    ": say how it is known that these texts are not in the training data, such as"
    " 'written in 2026'"
)
_NEEDED = (  # a setting, those of which it needs one, and what for
    ("max_cost", ("price_in",), ""),
    ("max_cost", ("price_out",), ""),
    ("chat_instruction", ("chat",), ""),
    ("dataset_sha256", ("dataset",), ""),
    ("draw_by", ("documents",), ""),
    ("stride", ("window_words", "window_characters"), ""),
    ("member_shots", ("nonmember_shots",), ""),
    ("reference_logprobs_from", ("logprobs_from",), ""),
    ("non_members", ("non_members_known",), _HOW_KNOWN),
)


_FOLLOWING = (  # a setting, a value of it, and the default that another has then
    ("preset", "samia", "word_rule", "space"),
    ("preset", "min-k", "evidence", "logprobs"),
    ("preset", "spv", "evidence", "logprobs"),
    # Generations are to be the target's own distribution
    ("preset", "spv", "top_k", 0),
    ("noise_scale", "absolute", "noise", 0.05),  # of the SPV-MIA paper
    *(("temperature", zero, "samples", 1) for zero in (0, "0", "0.0")),
)


class Settings(
    ColumnSettings,
    ReportSettings,
    ExtractionSettings,
    ClusterSettings,
    RecordingSettings,
    BatchSettings,
    EndpointSettings,
    VerdictSettings,
    FinetuningSettings,
    LogprobSettings,
    EngineSettings,
    SamplingSettings,
    TextSettings,
    MainSettings,
):
    """Everything that decides what a run does; frozen, validated as a whole.

    Attributes are described by the fields of the groups; ``mia-batch --help`` prints the
    same sentences.
    """

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("dataset") is not None:
            values.setdefault("input", values["dataset"])  # until its files are located
        for setting, value, follower, default in _FOLLOWING:
            if values.get(setting) == value:
                values.setdefault(follower, default)
        if values.get("engine", "auto") == "auto":
            for setting, source in _SOURCE_BY_KEY.items():
                if values.get(setting) is not None:
                    values["engine"] = remote_engine_name(source)
        if source_of_engine(values.get("engine")) == "recording":
            values.setdefault("model", "recorded")
        if values.get("reference_logprobs_from") is not None:
            values.setdefault("reference_model", "recorded reference")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _path_or_no_boolean(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        is_path = Mark.PATH in field.metadata
        if is_path and isinstance(value, os.PathLike):
            return os.fspath(value)
        if is_path and info.field_name != "out" and is_url(value):
            if Mark.ADDRESS in field.metadata:
                return check_texts_address(value)
            raise ValueError(
                "only a run and its texts may have an address; copy this to a disk first"
            )
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("it must not be true or false")
        return value

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        engines = engine_names()
        if name not in engines:
            raise ValueError(f"known engines are {', '.join(engines)}")
        return name

    @field_validator("attacks", "primary")
    @classmethod
    def _known_attacks(
        cls, value: tuple[str, ...] | str | None, info: ValidationInfo
    ) -> tuple[str, ...] | str | None:
        from mia_batch.attacks import names, resolve
        from mia_batch.attacks.attack import find_attack_names

        if value is None:
            return None
        if not value:
            raise ValueError("name at least one attack; `mia-batch attacks` lists them")
        keeps_unknown = info.context and info.context["unknown attacks"]
        registered = names()
        full_names = dict[str, None]()
        for name in [value] if isinstance(value, str) else value:
            attacks = find_attack_names(name, registered)
            attacks = attacks or ((name,) if keeps_unknown else resolve(name))
            full_names |= dict.fromkeys(attacks)
        return next(iter(full_names)) if isinstance(value, str) else tuple(full_names)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in chain(
            self._engine_faults(),
            self._text_faults(),
            self._dependency_faults(),
            self._value_faults(),
        ):
            raise ValueError(fault)
        return self

    def _engine_faults(self) -> Iterator[str]:
        if self.shard is not None and self.source in _ONE_PROCESS:
            reason = _ONE_PROCESS[self.source]
            yield f"shard= cannot be used with engine {self.engine!r}: {reason}"
        for name, source in _SOURCE_BY_KEY.items():
            if getattr(self, name) is not None and self.source != source:
                engine = remote_engine_name(source)
                yield f"{name}= belongs to engine {engine!r}; leave one of the two out"
        for group in GROUPS:
            if group.of_source == self.source:
                yield from self._key_faults(group)
            elif group.of_source is not None:
                for name, field in group.model_fields.items():
                    if name in _ALSO_OF.get(self.source, ()):
                        continue
                    if getattr(self, name) != field.default:
                        engine = remote_engine_name(group.of_source)
                        yield f"{name}= belongs to engine {engine!r}; leave it out"

    def _key_faults(self, group: type[SettingsGroup]) -> Iterator[str]:
        """Iterate over faults of the settings of which an engine needs one."""
        given = [name for name in group.keys if getattr(self, name) is not None]
        if group.keys and not given:
            alternatives = " or ".join(f"{name}=" for name in group.keys)
            yield f"engine {self.engine!r} needs {alternatives}"
        if len(given) > 1:
            yield f"{given[0]}= and {given[1]}= are two; leave out one of them"

    def _text_faults(self) -> Iterator[str]:
        length = self.text_length
        windows = [self.window_words, self.window_characters]
        if None not in windows:
            yield "window_words= and window_characters= are two; leave out one of them"
        if self.preset == "samia" and self.word_rule != "space":
            yield f"word_rule= is {self.word_rule!r}, but preset 'samia' needs 'space'"
        if length is not None and self.preset != "samia":
            yield (
                "text_length= belongs to preset 'samia'; leave it out or set the preset"
            )
        if length is not None and self.window_words not in (None, length):
            lengths = f"window_words= ({self.window_words}) and text_length= ({length})"
            yield f"{lengths} must be equal where both are given"
        if self.documents is not None and self.dataset is not None:
            yield (
                "documents= draws from a corpus of your own, and the rows of dataset="
                " are checked as a whole; leave one of the two out"
            )
        for name in _WHOLE_TEXTS:
            if getattr(self, name) is not None and windows != [None, None]:
                yield f"{name}= is about whole texts; leave windows out"

    def _dependency_faults(self) -> Iterator[str]:
        for name, alternatives, reason in _NEEDED:
            values = [getattr(self, setting) for setting in alternatives]
            # A price of 0 is a price
            is_absent = all(value is None or value is False for value in values)
            if getattr(self, name) is not None and is_absent:
                needed = " or ".join(f"{setting}=" for setting in alternatives)
                yield f"{name}= needs {needed} as well{reason}"
        if self.known_corpus is not None and self.known_index is not None:
            yield "known_corpus= and known_index= are two; leave out one of them"

    def _value_faults(self) -> Iterator[str]:
        from mia_batch.prompts import SAMPLES_PER_TARGET

        n, folder = self.continuations, str(self.folder)
        if n > SAMPLES_PER_TARGET:
            limit = f"a target has seeds for {SAMPLES_PER_TARGET} samples"
            yield f"samples= is {n}: {limit}; ask for fewer"
        if self.temperature == 0 and n > 1:
            reason = "at temperature 0 all samples of a text are the same"
            yield f"samples= is {n}, but {reason}; ask for 1"
        if self.folder.exists() and not self.folder.is_dir():
            yield f"out= is {folder!r}, which is a file; name a folder"
        for name, path in (("input", self.input), ("model", self.model)):
            if os.path.realpath(folder) == os.path.realpath(path):
                yield f"out= is the {name} itself, {folder!r}; choose another"
        attacks = self.attacks or (self.primary,)
        if self.primary is not None and self.primary not in attacks:
            yield f"primary= is {self.primary!r}, which attacks= does not name"
        if self.stop_when_decided:
            for name, needed in _ROUNDS.items():
                value = getattr(self, name)
                if value != needed:
                    yield f"stop_when_decided= needs {name}= {needed!r}, not {value!r}"
        if list(self.length_edges) != sorted(set(self.length_edges)):
            yield (
                f"length_edges= is {self.length_edges}: each must exceed the one before"
            )

    @property
    def source(self) -> SourceKind:
        """Where answers about the target model come from."""
        return source_of_engine(self.engine)

    @property
    def has_yardstick(self) -> bool:
        return self.yardstick not in (None, NO_YARDSTICK)

    @property
    def columns(self) -> dict[str, Any]:
        names = {name for name in type(self).model_fields if name.endswith("_column")}
        columns = self.model_dump(include=names - {"candidate_column", *_WHOLE_TEXTS})
        if self.author_column is None:  # runs of earlier versions had no such setting
            del columns["author_column"]
        return columns

    @property
    def continuations(self) -> int:
        return 10 if self.samples is None else self.samples

    @property
    def place(self) -> Path | str:
        """Where the run lies: its folder, or its address in an object store."""
        return self.folder if self.out is None else self.out

    @property
    def folder(self) -> Path:
        """The run folder: ``out``, or ``runs/<input>-<model>`` in the working directory."""
        # Of an address, the folder that is its working copy.
        if is_url(self.out):
            return find_working_copy(self.out)
        if self.out is not None:
            return Path(self.out)
        name = _file_name(self.input)
        if self.dataset:
            name = re.sub("[:/]", "_", self.dataset)
        return Path("runs") / f"{name}-{_file_name(self.model)}"

    @property
    def longer_folder(self) -> Path:
        """``runs/<input>-<whose>-<model>``, where `folder` has a run of another such model."""
        whose = Path(self.model).parent.name
        if self.base_url is not None:
            host = urlsplit(self.base_url).netloc.rpartition("@")[2].replace(":", "_")
            whose = "-".join(filter(None, (host, whose)))
        end = f"-{_file_name(self.model)}"
        start = self.folder.name.removesuffix(end)
        return self.folder.with_name(f"{start}-{_file_name(whose or 'here')}{end}")

    @property
    def evidence_values(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", include=set(self.marked(Mark.EVIDENCE)))
        arguments = values["engine_arg"].items()
        # Resources decide no sample, and other presets sample alike
        values["engine_arg"] = {
            name: value for name, value in arguments if name not in RESOURCES
        }
        values["preset"] = "samia" if self.preset == "samia" else "default"
        return values


GROUPS: tuple[type[SettingsGroup], ...] = Settings.__bases__[::-1]
"""The groups of the settings, in the order of the help."""
_SOURCE_BY_KEY = {
    key: group.of_source
    for group in GROUPS
    if group.of_source is not None
    for key in group.keys
}


_NAME_BYTES = 100  # of each half of a folder's name, of which there may be 255


def _file_name(path_or_name: str) -> str:
    """Return the end of a path or hub name without its suffix; wildcards become ``_``."""
    path = Path(path_or_name)
    is_table = path.suffix in {".parquet", ".jsonl", ".ndjson", ".csv"}
    name = path.stem if is_table else path.name
    name = name.encode(errors="ignore")[:_NAME_BYTES].decode(errors="ignore")
    return "".join("_" if letter in "*?[]" else letter for letter in name) or "here"


def endpoint_settings(settings: Settings) -> ClientSettings:
    """Return what the client follows; the key comes from the environment variable named."""
    from mia_batch.evidence.endpoint import CHAT_INSTRUCTION, ClientSettings

    variable = settings.api_key_env
    key = os.environ.get(variable)
    if key is None and variable != Settings.model_fields["api_key_env"].default:
        problem = (
            f"api_key_env= is {variable!r}, but there is no such environment variable"
        )
        raise SettingsError(f"{problem}; set it to the endpoint's key")
    names = {field.name for field in fields(ClientSettings)} - {"api_key"}
    values: dict[str, Any] = {name: getattr(settings, name) for name in names}
    values["base_url"] = values["base_url"] or ""
    values["chat_instruction"] = values["chat_instruction"] or CHAT_INSTRUCTION
    return ClientSettings(**values, api_key=key)


def endpoint_tokenizer(settings: Settings) -> Tokenizer | None:
    if settings.tokenizer is None:
        return None
    from mia_batch.models.tokens import Tokenizer

    return Tokenizer.load(settings.tokenizer, setting="tokenizer")


CONFIG_NAME = "mia-batch.toml"
"""Settings file that is looked for in the working directory, never in the input's folder."""


def user_config_path() -> Path:
    """Return the path of the user's own file of settings, which may set all; it may not exist."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not config_home.is_absolute():
        config_home = Path("~/.config").expanduser()
    return config_home / "mia-batch" / CONFIG_NAME


_TABLES = {group.table: group for group in GROUPS if group.table is not None}
_HOMES: dict[str, str | None] = {}
"""Of each setting its table."""
for _group in GROUPS:
    _HOMES |= dict.fromkeys(_group.model_fields, _group.table)


def flatten(values: Mapping[str, object], origin: str = "") -> dict[str, Any]:
    """Return settings without their tables; in a file each stands in its own table."""
    # A table is a mapping, or a group of settings, of which what is set counts.
    # ``engine``, ``tuning``, ``extract`` and ``report`` are names of a table and of a
    # setting in it: a value that is no table is that setting. ``origin`` is the file, in
    # messages; arguments in Python have none.
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        group = _TABLES.get(name)
        if group is not None and isinstance(value, Mapping | group):
            table = value
            if not isinstance(table, Mapping):
                table = table.model_dump(exclude_unset=True)
            for table_key, table_value in table.items():
                setting = str(table_key).replace("-", "_")
                _check_table(setting, group.table, origin)
                _add_once(flat, setting, table_value)
        elif group is not None and name not in _HOMES and value is not None:
            examples = ", ".join([*group.model_fields][:3])
            raise SettingsError(
                f"{name!r}{origin} is a table of settings, such as {examples}"
            )
        else:
            if origin:
                _check_table(name, None, origin)
            _add_once(flat, name, value)
    return flat


def _add_once(flat: dict[str, Any], name: str, value: object) -> None:
    """Add a setting; refuse two values of one, such as by its name and in its table."""
    if flat.get(name) is not None and value is not None:
        raise SettingsError(f"{name}= is given twice: by itself and in a table")
    if value is not None or name not in flat:
        flat[name] = value


def _check_table(name: str, table: str | None, origin: str) -> None:
    """Refuse a setting of another table; outside of tables a later check knows the names."""
    if name not in _HOMES and table is not None:
        settings = _TABLES[table].model_fields
        raise SettingsError(f"table [{table}]{origin}: {_no_setting(name, settings)}")
    home = _HOMES.get(name, table)
    if home == table or (table is None and home == name):
        return
    setting = f"`{name}`{origin}" if origin else f"{name}="
    if home is None:
        way_out = "write it above all tables" if origin else f"write {name}=..."
        raise SettingsError(f"{setting} stands in no table: {way_out}")
    way_out = (
        f"write it below [{home}]" if origin else f"write {home}={{{name!r}: ...}}"
    )
    raise SettingsError(f"{setting} stands in the table {home!r}: {way_out}")


def nested(flat: Mapping[str, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in flat.items():
        home = _HOMES.get(name)
        table = values if home is None else values.setdefault(home, {})
        table[name] = value
    return values


# Arguments of engines that can load no code, whatever their value
_SAFE_ARGUMENTS = RESOURCES | {
    "block_size",
    "device_map",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enforce_eager",
    "kv_cache_dtype",
    "max_model_len",
    "n_gpu_layers",
    "pipeline_parallel_size",
    "quantization",
    "seed",
}


# A plan that was lodged: it binds every setting that can change an answer.

PLAN_OPEN = frozenset(
    {
        "out",
        "config",
        "plan",
        "plan_lodged",
        "report",
        "anyway",
        "retry_failed",
        "texts_to",
        "workers",
        "ray",
        "shard",
        "api_key_env",
        "max_concurrency",
        "requests_per_minute",
        "timeout",
        "tokens_per_minute",
        "max_retries",
        "price_in",
        "price_out",
        "currency",
        "max_cost",
        "requests_to",
        "answers_from",
        "batch_price",
        "logits_memory",
        "dataset_sha256",
        "replace",
    }
)
"""Settings that a plan leaves open: where a run lies, what it may cost, what is shown."""
PLAN_PLACES = frozenset(
    {
        *Settings.marked(Mark.PATH),
        *Settings.marked(Mark.MODEL),
        "attacks",
        "base_url",
        "known_index",
        "revision",
        "reference_revision",
    }
)
"""Settings that name what a plan knows by its content: texts, models, formulas."""
_LARGEST_PLAN = 1 << 20
_PLAN_SECTIONS = ("attacks", "inputs", "models", "settings")


def read_plan(path: Path | str) -> dict[str, Any]:
    """Read a plan that `--dry-run` wrote, which may be a stranger's."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            plan = json.loads(file.read(_LARGEST_PLAN))
    except FileNotFoundError:
        raise SettingsError(
            f"plan: there is no file {path}; --dry-run writes a plan"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or "it is no JSON, or longer than 1 MB"
        raise SettingsError(f"plan: {path} cannot be read: {cause}") from None
    if not _is_plan(plan):
        raise SettingsError(
            f"plan: {path} is no plan of an audit; --dry-run writes one"
        )
    return dict(plan)


def _is_plan(plan: object) -> bool:
    """Return whether all sections are tables, and inputs and models tables of tables."""
    if not isinstance(plan, dict):
        return False
    sections = [plan.get(name) for name in _PLAN_SECTIONS]
    if not all(isinstance(section, dict) for section in sections):
        return False
    records = (*plan["inputs"].values(), *plan["models"].values())
    return all(isinstance(record, dict) for record in records)


def _settings_of_plan(options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the plan that the user leaves open; none that names a place."""
    path = str(options["plan"])
    plan = read_plan(path)
    settings = dict[str, object]()
    for name, value in plan["settings"].items():
        field = Settings.model_fields.get(name)
        is_place = name in PLAN_OPEN | PLAN_PLACES
        is_place = is_place and value not in (CLASSICS, NO_YARDSTICK)
        if field is None or is_place or find_user_only(name) is not None:
            continue
        if value != field.get_default(call_default_factory=True):
            settings[name] = tuple(value) if isinstance(value, list) else value
    if "attacks_from" not in options:
        attacks = plan["settings"].get("attacks") or plan["attacks"]
        settings["attacks"] = tuple(attacks)
    if options.keys() & {"attacks", "attacks_from"}:
        settings.pop("primary", None)  # which may not be among these
    user_arguments: Any = options.get("engine_arg", ())
    refuse_code(settings.get("engine_arg"), path, but=user_arguments)
    return settings


def load_settings(
    options: Mapping[str, object], *, use_config: bool = True
) -> Settings:
    """Join options and the settings file, options first, and validate the whole."""
    # Settings that are None count as missing. The file is the option ``config``, by
    # default ``mia-batch.toml`` in the working directory, where there is one; what it
    # leaves open the user's own file may say. Paths in a file are relative to its
    # folder, and only the user's own can name what is `UserOnly`. Without
    # ``use_config`` no file is read. The code that ``attacks_from`` names runs last,
    # after all else was found right and the input was found. `SettingsError` has a line
    # for each setting that is wrong: its name, what came, what is allowed.
    values = {name: value for name, value in options.items() if value is not None}
    if use_config and "plan" in values:
        values = _settings_of_plan(values) | values
    origins: dict[str, Path | None] = {}
    if use_config:
        paths = _config_files(values.get("config"))
        for path in paths:
            in_file = _read_config(path)
            origins |= dict.fromkeys(in_file.keys() - values.keys(), path)
            values = in_file | values
        values["config"] = " and ".join(map(str, paths)) or None
    keeps_unknown = "attacks_from" in values
    settings = _validate(values, origins, keeps_unknown=keeps_unknown)
    if settings.dataset is not None and settings.input == values.get("dataset"):
        from mia_batch.known import find_set

        values = {**values, "input": find_set(settings.dataset).locate()}
        settings = _validate(values, origins, keeps_unknown=keeps_unknown)
    if settings.attacks_from is None:
        return settings
    from mia_batch.attacks import load_file
    from mia_batch.corpus import find_files

    if use_config:
        find_files(settings.input)
    attacks = (*(settings.attacks or ()), *load_file(settings.attacks_from))
    return _validate(values | {"attacks": tuple(dict.fromkeys(attacks))}, origins)


def _config_files(config: object) -> list[Path]:
    """Return the files of settings to read, the one that counts more first."""
    user_config = user_config_path()
    user_files = [user_config] if user_config.is_file() else []
    if config is not None:
        return [Path(str(config)), *user_files]
    default = Path(CONFIG_NAME)
    return [default, *user_files] if default.is_file() else user_files


def stored_settings(stored_values: Mapping[str, object], **changed: object) -> Settings:
    # A run may be a stranger's: no code that it names is loaded, and attacks that
    # nobody here knows stay names.
    values = {name: value for name, value in stored_values.items() if value is not None}
    try:
        return _validate(values | changed, {}, keeps_unknown=True)
    except SettingsError as error:
        if changed:
            raise
        raise SettingsError(
            f"run.json holds a setting that none can be: {error}"
        ) from None


def _validate(
    values: Mapping[str, object],
    origins: Mapping[str, Path | None],
    *,
    keeps_unknown: bool = False,
) -> Settings:
    """Validate the whole; ``origins`` has the file of each setting that is of a file."""
    try:
        context = {"unknown attacks": keeps_unknown}
        return Settings.model_validate(values, context=context)
    except ValidationError as error:
        text = "\n".join(_sentence(detail, origins) for detail in error.errors())
        in_file = {name: f"`{name}` in {path}" for name, path in origins.items()}
        raise SettingsError(spell_settings(text, in_file)) from None


def spell_settings(message: str, forms: Mapping[str, str]) -> str:
    """Write settings that a message names, as ``samples=`` or ``samples:``, in other forms."""
    return _NAMED.sub(lambda match: forms.get(match[1] or match[2], match[0]), message)


FLAGS = {name: f"--{name.replace('_', '-')}" for name in Settings.model_fields}
"""Settings as options of the command line, for `spell_settings`."""
_NAMES = "|".join(Settings.model_fields)
_NAMED = re.compile(
    rf"(?<![^\s(])({_NAMES})=(?=[\s,.;:)]|$)|^({_NAMES})(?=:)", re.MULTILINE
)


def refuse_code(engine_arg: object, origin: str, *, but: Iterable[str] = ()) -> None:
    """Refuse arguments of engines that may load code, since a file may be a stranger's."""
    # ``but`` names those that the user set as well.
    arguments = engine_arg if isinstance(engine_arg, dict | list | tuple) else ()
    allowed = _SAFE_ARGUMENTS.union(map(_argument_name, but))
    for name in map(_argument_name, arguments):
        if name not in allowed:
            way_out = f"give it on the command line instead: --engine-arg {name}=VALUE"
            raise SettingsError(
                f"engine_arg: {origin} sets {name}, which may load code; {way_out}"
            )


def _argument_name(argument: object) -> str:
    return str(argument).partition("=")[0].replace("-", "_")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"config: there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"config: {path} cannot be read as TOML: {error}") from None
    values = flatten(tables, f" in {path}")
    if path != user_config_path():
        _refuse_user_only(values, path)
    paths = Settings.marked(Mark.PATH)
    for name in paths + Settings.marked(Mark.MODEL):
        value = values.get(name)
        if name == "yardstick" and value in (CLASSICS, NO_YARDSTICK):
            continue
        is_path = name in paths or (path.parent / str(value)).exists()
        if isinstance(value, str) and value and is_path and not is_url(value):
            values[name] = str(path.parent / value)
    return values


def find_user_only(name: str) -> UserOnly | None:
    """Return why a setting, or an address as its value, is only read from the user's own file."""
    field = Settings.model_fields.get(name)
    for mark in field.metadata if field else ():
        if isinstance(mark, UserOnly):
            return mark
    return None


def _refuse_user_only(values: Mapping[str, object], path: Path) -> None:
    for name, value in values.items():
        rule = find_user_only(name)
        if value is None or rule is None:
            continue
        if rule.addresses and "://" not in str(value):
            continue
        way_out = "give it as an option"
        if name != "config":
            own_file = f"your own file of settings, {user_config_path()}"
            way_out += f", or write it in {own_file}"
        raise SettingsError(
            f"{name}= {rule.reason} and cannot be set in {path}; {way_out}"
        )
    refuse_code(values.get("engine_arg"), str(path))


def _no_setting(name: str, settings: Iterable[str], origin: str = "") -> str:
    near = difflib.get_close_matches(name, settings, n=1, cutoff=0.65)
    hint = f"did you mean {near[0]!r}?" if near else "`mia-batch help` lists them all"
    return f"there is no setting {name!r}{origin}; {hint}"


_RULES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
}


def _sentence(detail: ErrorDetails, origins: Mapping[str, Path | None]) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        origin = f" in {origins[name]}" if name in origins else ""
        return _no_setting(name, [*Settings.model_fields, *_TABLES], origin)
    if detail["type"] == "missing":
        return f"{name}= is missing; give it, or write {name} = ... in {CONFIG_NAME}"
    message = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    value = detail["input"]
    rule = _RULES.get(detail["type"])
    if rule is not None:
        allowed = rule.format(**detail.get("ctx", {}))
        return f"{name}= must be {allowed}, not {value!r}"
    # An address may hold a password.
    is_shown = is_url(value) or repr(value) in message
    separator = ":" if is_shown else f"= is {value!r}:"
    return f"{name}{separator} {message[0].lower()}{message[1:]}"
