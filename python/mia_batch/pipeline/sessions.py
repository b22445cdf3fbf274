"""Opened models: engines here or on a cluster, and endpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import polars as pl

from mia_batch.attacks.attack import TOKEN
from mia_batch.errors import SettingsError
from mia_batch.evidence import request
from mia_batch.evidence.collect import (
    Executor,
    LocalExecutor,
    OnAnswer,
    SampleTask,
    Task,
)
from mia_batch.evidence.dress import Rule, parse_rule
from mia_batch.evidence.endpoint import Capabilities, ClientSettings, Endpoint
from mia_batch.evidence.parts import Block, Work
from mia_batch.evidence.process import LocalSource
from mia_batch.evidence.recorded_logprobs import LogprobRecording
from mia_batch.evidence.starts import N_TEXTS, StartFigures, compare_starts
from mia_batch.inference.findings import finding_rows
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import Measure, estimate_tokens
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.endpoint_notes import describe_endpoint, refusal_verb
from mia_batch.pipeline.timing import asking
from mia_batch.plugins import extra
from mia_batch.report.sentences import start_sentences
from mia_batch.settings import endpoint_settings, endpoint_tokenizer
from mia_batch.tables import in_background, is_followed
from mia_batch.views import TARGET, RunModel, View

AnyTask = TypeVar("AnyTask", bound="Task")
Measuring: TypeAlias = Callable[[list[str], list[str]], list[Measure]]


# Starts what works on blocks: an engine of this machine, or many on a cluster.


def open_background(audit: Audit) -> AbstractContextManager[Callable[..., None]]:
    """Open a function that runs calls in threads, or on the cores of a cluster of machines."""
    settings, folder = audit.settings, audit.run.folder
    is_on_cluster = settings.executor and settings.ray is not None
    if is_on_cluster and not is_followed(folder / "run.json"):
        cluster = extra("executors", str(settings.executor))
        runner: AbstractContextManager[Callable[..., None]]
        runner = cluster.spread(settings.ray, folder)
        return runner
    return in_background()


@contextmanager
def _start_here(
    audit: Audit, model: RunModel, spec: request.EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, request.EngineInfo]]:
    """Start an engine of this machine, or go on with the one that was kept."""
    stays = model.is_trained_here or (audit.awaits_engine and model == TARGET)
    with audit.kept_engine.borrowed(spec, audit.run.engine_log, keep=stays) as engine:
        if tokenizer is not None:
            texts = choose_start_texts(audit, model)
            figures = compare_starts(engine, tokenizer, texts) if texts else None
            settle_start(audit, model, tokenizer, figures)
        source = LocalSource(
            engine, tokenizer, strides=audit.settings.long_texts == "stride"
        )
        executor = LocalExecutor(
            source, source.restart, audit.observer.stage, source.listen
        )
        yield executor, engine.info


# Whether a model reads texts after its start token.


def choose_start_texts(audit: Audit, model: RunModel) -> list[str]:
    """Return texts to be read with and without a start token; none where that is settled."""
    run, model_record = audit.run, audit.manifest.models[model]
    if "start" in model_record or model.is_trained_here:
        return []
    has_evidence = any(  # which began as the tokenizer has it
        any(run.path(table).glob(f"*.{model}-*")) for table in ("samples", "logprobs")
    )
    if has_evidence or not run.path("targets").exists():
        return []
    texts = run.scan("targets").filter(pl.col("target").is_not_null())
    some_texts = texts.bottom_k(N_TEXTS, by="target_id").select("target").collect()
    return some_texts["target"].to_list()


def settle_start(
    audit: Audit, model: RunModel, tokenizer: Tokenizer, figures: StartFigures | None
) -> None:
    """Keep the better way to begin texts for all evidence of a model."""
    if model.is_trained_here or not audit.run.path("targets").exists():
        return
    with audit.changing_manifest():
        model_record = audit.manifest.models[model]
        # Another shard may have settled it meanwhile
        is_new = "start" not in model_record
        if is_new:
            model_record["start"] = {} if figures is None else figures._asdict()
            audit.save()
    if model_record["start"].get("is_better_otherwise"):
        tokenizer.toggle_start()
    if is_new:
        findings = build_start_findings({model: model_record})
        for sentence in start_sentences(findings):
            audit.observer.stage(sentence)


def build_start_findings(
    model_records: Mapping[str, Mapping[str, Any]],
) -> pl.DataFrame:
    """Rows of check ``start_token``: models that are not read as their tokenizers begin texts."""
    starts = {model: record.get("start", {}) for model, record in model_records.items()}
    rows = [
        {
            "subject": model,
            "statistic": start["statistic"],
            "value": start["by_tokenizer"],
            "high": start["otherwise"],
            "verdict": start["change"],
            "reason": start["token"],
        }
        for model, start in starts.items()
        if start.get("is_better_otherwise")
    ]
    return finding_rows("start_token", rows)


# Sessions: an opened model or endpoint, ready to work on blocks.

_UNSTATED_CONTEXT = 131_072
"""Tokens that are asked of endpoints which do not state theirs: they refuse what is too long."""
CONTINUING = "continuing the texts of highest scores"
_TIMED_ACTIVITIES = ("sampling", "log-probabilities", CONTINUING)
_MIN_SECONDS_TIMED = 10.0
"""What takes less is mostly the beginning and the end."""


class Session(NamedTuple):
    """What works on blocks, and what is known of its model now that it is open."""

    key: str  # kind of evidence and model, as the run's record names them
    executor: Executor
    tokenizer: Tokenizer | None
    max_model_len: int
    max_attempts: int = request.MOST_ATTEMPTS
    # What may still be spent; None without a limit
    money_left: Callable[[], float | None] = lambda: None


@contextmanager
def open_session(
    audit: Audit,
    model: RunModel,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
    *,
    at_points: bool = False,
    started_engine: str | None = None,
) -> Iterator[Session]:
    """Start an engine with one of the run's models, or probe the endpoint of the target model.

    With ``at_points`` an endpoint is asked for log-probabilities of the next token
    alone. ``started_engine`` names the engine that is to answer, of which attacks read
    nothing.
    """
    if audit.asks_endpoint(model):
        opened = _open_endpoint(audit, kind, at_points=at_points)
    else:
        opened = _open_engine(audit, model, kind, columns, started_engine)
    with opened as session, asking(audit):
        yield session


def build_sample_task(audit: Audit, session: Session, view: View) -> SampleTask:
    settings = audit.settings
    if (
        not settings.nudge
    ):  # which the endpoint may have decided after the view was made
        view = replace(view, nudge=0.0)
    dress_rule: Rule = ()
    if view.model == "target" and view.continues_texts:
        dress_rule = parse_rule(audit.manifest.dress.get("rule", ()))
    return SampleTask(
        view=replace(view, greedy=view.greedy or settings.temperature == 0),
        measure=session.tokenizer.measure if session.tokenizer else estimate_tokens,
        budget=audit.build_budget(view, session.max_model_len, session.max_attempts),
        words=settings.word_rule,
        run_seed=settings.seed,
        rule=dress_rule,
    )


def ask(
    audit: Audit,
    session: Session,
    activity: str,
    work: Work,
    tasks: Iterable[
        tuple[AnyTask, Iterable[Block], Callable[[Block, pl.DataFrame], Any]]
    ],
    *,
    on_answer: OnAnswer | None = None,
    on_block: Callable[[AnyTask, Block, Any], None] | None = None,
    tokens: int = 0,
) -> None:
    """Ask an open session about blocks, task by task: this loop alone hands work to an executor.

    A task comes with its blocks, and with what stores the rows of a block. ``tokens``
    are as many as all of it is expected to take; 0 where that is unknown.
    """
    if audit.batch is not None:
        activity += " by batch files"
    listen, start = on_answer or audit.observer.answered, time.monotonic()
    n_decoded, views = 0, set[str]()

    def count(label: str, texts: int, tokens: int, passes: int) -> None:
        nonlocal n_decoded
        n_decoded += tokens
        views.add(label.rpartition("-")[2])
        listen(label, texts, tokens, passes)

    progress = audit.observer.progress(
        activity, done=work.done, left=work.left, unit=work.unit, tokens=tokens
    )
    with progress:
        for task, blocks, store in tasks:
            for block, stored in session.executor.collect(task, blocks, count, store):
                if on_block is not None:
                    on_block(task, block, stored)
    if audit.batch is not None:
        audit.batch.stop_if_left()
        return
    seconds = time.monotonic() - start
    if activity in _TIMED_ACTIVITIES and seconds >= _MIN_SECONDS_TIMED:
        with audit.changing_manifest():
            speeds = audit.manifest.times.setdefault("tokens_per_second", {})
            speeds[speed_key(session.key, views)] = round(n_decoded / seconds, 1)


def speed_key(stage: str, views: Iterable[str]) -> str:
    return f"{stage}: {', '.join(sorted(views))}"


def settle_engine(
    audit: Audit,
    model: RunModel,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
    started_engine: str | None = None,
) -> tuple[request.EngineSpec, str, Tokenizer | None]:
    """Return what is to be started, why this engine, and its tokenizer; nothing starts."""
    with audit.changing_manifest():
        audit.agree({"source": audit.find_source(model)}, model)
        spec, reason = audit.build_spec(model, kind, columns, started_engine)
        if kind == "fills":
            return spec, reason, None
        tokenizer = Tokenizer.load(spec.model, spec.revision)
        spec = replace(spec, end_token=tokenizer.end)
        if audit.settings.conversations == "answers":
            tokenizer.read_conversations()
        if audit.manifest.models[model].get("start", {}).get("is_better_otherwise"):
            tokenizer.toggle_start()
        identity = {"tokenizer": tokenizer.digest}
        if not started_engine:
            identity[f"{kind} engine"] = spec.engine
        audit.agree(identity, model)
        return spec, reason, tokenizer


def settle_endpoint(
    audit: Audit, kind: request.EvidenceKind
) -> tuple[ClientSettings, Tokenizer | None]:
    """Return how an endpoint is asked, and the tokenizer of its model if it is known."""
    settings = audit.settings
    if kind == "logprobs" and settings.long_texts == "stride":
        raise SettingsError(
            "long_texts: an endpoint cannot be asked in strides; leave it at 'refuse'"
        )
    endpoint, tokenizer = endpoint_settings(settings), endpoint_tokenizer(settings)
    audit.agree({"tokenizer": tokenizer.digest if tokenizer else None}, "target")
    return endpoint, tokenizer


def validate_dry_run(
    audit: Audit,
    model: RunModel,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
) -> None:
    """Refuse what opening a session would refuse; nothing starts and nobody is asked."""
    if not audit.asks_endpoint(model):
        settle_engine(audit, model, kind, columns)
        return
    address = settle_endpoint(audit, kind)[0].base_url
    if kind == "samples":
        audit.agree({"endpoint base_url": address.rstrip("/")}, "target")
    else:
        audit.agree({"logprobs base_url": address}, "target")


@contextmanager
def _open_engine(
    audit: Audit,
    model: RunModel,
    kind: request.EvidenceKind,
    columns: frozenset[str],
    started_engine: str | None,
) -> Iterator[Session]:
    spec, reason, tokenizer = settle_engine(audit, model, kind, columns, started_engine)
    is_kept = audit.kept_engine.serves(spec)
    if is_kept:
        name = "" if model == TARGET else f" as {model}"
        audit.observer.stage(f"the same {spec.engine} goes on{name}")
    else:
        audit.observer.stage(f"starting {spec.engine}: {reason}")
    executor_name = audit.settings.executor
    start = _start_here
    if executor_name is not None:
        start = extra("executors", executor_name).engines
    with start(audit, model, spec, tokenizer) as (executor, info):
        if started_engine is None:
            identity = {f"{kind} engine": spec.engine, f"{kind} dtype": info.dtype}
            with audit.changing_manifest():
                audit.agree(identity, model)
                audit.manifest.engines[f"{kind} of {model}"] = asdict(info)
                audit.save()
        if not (is_kept and model == TARGET):
            audit.observer.stage(
                f"{info.engine} {info.version} runs {spec.model} in {info.dtype} on"
                f" {info.device}, context {info.max_model_len:,} tokens"
            )
        yield Session(f"{kind} of {model}", executor, tokenizer, info.max_model_len)


@contextmanager
def _open_endpoint(
    audit: Audit, kind: request.EvidenceKind, *, at_points: bool
) -> Iterator[Session]:
    settings, asks_samples = audit.settings, kind == "samples"
    endpoint, tokenizer = settle_endpoint(audit, kind)
    purpose = "" if asks_samples else " for log-probabilities"
    if at_points:
        purpose += " at points"
    audit.observer.stage(f"probing {endpoint.base_url}{purpose}")
    with Endpoint.open(
        endpoint,
        kind=kind,
        journal=audit.run.folder / "journal.sqlite",
        tokenizer=tokenizer,
        at_points=at_points,
        nudges=asks_samples and settings.nudge > 0 and audit.reads_tokens,
        batch=audit.batch,
    ) as opened:
        target_record = audit.manifest.models["target"]
        repeats_prompt = target_record.get("endpoint prompt before the answer")
        if asks_samples and repeats_prompt is not None:
            opened.settle_repeated_prompts(repeats_prompt=repeats_prompt)
        capabilities = opened.capabilities
        if capabilities.nudge not in ("honoured", None):
            _ask_without_nudge(audit, endpoint, capabilities)
        identity = _identify_endpoint(
            audit.manifest.evidence["engine"],
            endpoint,
            capabilities,
            kind,
            at_points=at_points,
        )
        audit.agree(identity, "target")
        prefix = "probe-" if at_points else ""
        audit.manifest.engines[f"{prefix}{kind} of target"] = {
            "engine": audit.manifest.evidence["engine"],
            "base_url": endpoint.base_url,
            "capabilities": asdict(capabilities),
        }
        audit.save()
        if asks_samples or at_points:
            draws_samples = (
                asks_samples
                and settings.temperature != 0
                and (settings.samples is not None or audit.continues_texts)
            )
            for sentence in describe_endpoint(
                settings, capabilities, draws_samples=draws_samples
            ):
                audit.observer.stage(sentence)
        yield Session(
            f"{kind} of target",
            LocalExecutor(opened),
            tokenizer,
            capabilities.max_model_len or _UNSTATED_CONTEXT,
            request.MOST_ATTEMPTS if opened.repeats else 1,
            lambda: opened.money_left,
        )


@contextmanager
def open_recorded(
    audit: Audit,
    model: RunModel,
    recording: LogprobRecording,
    texts: Iterable[pl.DataFrame],
) -> Iterator[Session]:
    """Open log-probabilities of another program, in place of a model that gives them.

    ``texts`` have ``target_id`` and ``text`` of what will be asked about; a file that
    has none of them is refused.
    """
    agreed_as = "recording" if model == "target" else f"{model} recording"
    audit.digest_input(recording.setting, recording.source.files, agreed_as)
    for name, text in recording.describe():
        audit.observer.stage(f"{name}: {text}")
    tokenizer = endpoint_tokenizer(audit.settings)
    with recording.opened(audit.run.folder / "replay", tokenizer) as source:
        source.check_texts(texts)
        record = {"engine": audit.manifest.evidence["engine"]}
        audit.manifest.engines[f"logprobs of {model}"] = record
        try:
            yield Session(
                f"logprobs of {model}",
                LocalExecutor(source),
                tokenizer,
                _UNSTATED_CONTEXT,
            )
        finally:
            counts = asdict(source.counts)
            with audit.changing_manifest():
                audit.manifest.engines[f"logprobs of {model}"]["counts"] = counts
            sentence = ", ".join(f"{count:,} {name}" for name, count in counts.items())
            audit.observer.stage(f"{recording.setting}: {sentence}")


def _ask_without_nudge(
    audit: Audit, endpoint: ClientSettings, capabilities: Capabilities
) -> None:
    """Ask for tokens without a nudge where an endpoint has none and nobody asked for it."""
    fault = (
        f"the endpoint {endpoint.base_url} {refusal_verb(capabilities.nudge)}"
        " 'logit_bias', by which the true token is nudged"
    )
    has_samples = any(audit.run.path("samples").glob(f"*.{'-'.join(TOKEN)}-*"))
    if has_samples or "nudge" in audit.settings.model_fields_set:
        raise SettingsError(
            f"{fault}; give nudge= 0 to ask without, or attacks= probe to ask for words"
        )
    audit.request = audit.request.without_nudge()
    audit.manifest.evidence["nudge"] = audit.manifest.settings["nudge"] = 0.0
    audit.observer.stage(f"{fault}: next tokens are asked without, which finds less")


def _identify_endpoint(
    engine: str,
    endpoint: ClientSettings,
    capabilities: Capabilities,
    kind: request.EvidenceKind,
    *,
    at_points: bool,
) -> dict[str, object]:
    """Return what of an endpoint changes its answers."""
    identity: dict[str, object]
    if kind == "samples":
        drawn = endpoint.sample_identity(capabilities)
        identity = {f"endpoint {name}": value for name, value in drawn.items()}
    else:
        identity = {
            "logprobs engine": engine,
            "logprobs base_url": endpoint.base_url,
        }
    if at_points:
        instruction = endpoint.chat_instruction if endpoint.chat else None
        identity["probe-logprobs chat_instruction"] = instruction
        is_exact = capabilities.named_token == "honoured"
        bounds = f"top {capabilities.top_logprobs}, or bounds"
        identity["probe-logprobs"] = "exact" if is_exact else bounds
    return identity


# What a model is expected to take, before it is open.


def forecast_reading(
    audit: Audit, model: RunModel
) -> tuple[Measuring, Callable[[View], request.Budget]]:
    """Return how a model will count tokens, and how far it will decode each view."""
    settings = audit.settings
    if audit.asks_endpoint(model):
        tokenizer = endpoint_tokenizer(settings)
        measure = tokenizer.measure if tokenizer else estimate_tokens
        return measure, partial(
            audit.build_budget,
            max_model_len=_UNSTATED_CONTEXT,
            resumes=not settings.chat,
        )
    source = audit.find_source(model)
    name, revision = str(source["name"]), source["revision"]
    arguments = settings.engine_arg if model == "target" else {}
    context = (
        arguments.get("max_model_len")
        or audit.identify(name, revision).max_model_len
        or settings.max_length
    )
    measure = Tokenizer.load(name, revision).measure
    return measure, partial(audit.build_budget, max_model_len=int(context))


def estimate_work(audit: Audit, view: View) -> pl.Expr:
    """Estimate the work of a view's prompts, whatever model and context they meet."""
    return request.estimate_work(
        audit.build_budget(view, _UNSTATED_CONTEXT), view.samples
    )
