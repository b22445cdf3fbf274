"""Opened models: engines here or on a cluster, and endpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

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
from mia_batch.evidence.dress import Rule, rule_of
from mia_batch.evidence.endpoint import Capabilities, ClientSettings, Endpoint
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.wire import (
    MOST_BYTES_PER_TOKEN,
    Tokens,
    money,
    most_prompt_tokens,
)
from mia_batch.evidence.parts import Block, Missing, Work
from mia_batch.evidence.process import LocalSource
from mia_batch.evidence.starts import N_TEXTS, StartFigures, compare_starts
from mia_batch.inference.findings import finding_rows
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import Measure, estimate_tokens
from mia_batch.pipeline.context import Audit, reads_tokens
from mia_batch.pipeline.timing import asking
from mia_batch.plugins import extra
from mia_batch.report.sentences import start_sentences, worn
from mia_batch.settings import Settings, endpoint_settings, endpoint_tokenizer
from mia_batch.tables import in_background, is_followed
from mia_batch.views import RunModel, View

if TYPE_CHECKING:
    from mia_batch.extras.tune.jobs import Made, Wanted

AnyTask = TypeVar("AnyTask", bound="Task")
Measuring: TypeAlias = Callable[[list[str], list[str]], list[Measure]]


# What a run says of its endpoint.


def findings(settings: Settings, found: Capabilities, *, drawn: bool) -> Iterator[str]:
    known, dialect = found.max_model_len, found.dialect
    context = f"context {known:,} tokens" if known else "context unknown"
    yield f"{settings.base_url} serves {settings.model}, {context}"
    if found.serves is not None:
        yield f"its answers say that {found.serves} wrote them: check model="
    if found.named_token == "honoured":
        yield "it honours 'logprob_token_ids': log-probabilities are exact"
    elif found.named_token is not None:
        yield (
            f"it {_verb(found.named_token)} 'logprob_token_ids': a true token that is"
            f" not among the {found.top_logprobs} most likely ones has an upper bound"
            " instead of its log-probability"
        )
    if not drawn:
        return
    honours = [
        (found.n, "'n': one request for each sample"),
        (found.seed, "'seed': another run would draw other samples"),
        (found.top_k, f"'top_k': any token may be drawn, not only {settings.top_k}"),
        (found.greedy, "temperature 0: what asks for the likeliest text is drawn"),
    ]
    for honour, what in honours:
        if honour not in ("honoured", None):
            yield f"it {_verb(honour)} {what}"
    if not found.varied:
        yield (
            "it gives the same text whatever the seed: its samples are copies, not"
            " draws"
        )
    acting = [name for name, honour in found.neutral.items() if honour != "honoured"]
    if acting := acting + sorted(
        {"temperature", "top_p"}.intersection(dialect.withdrawn)
    ):
        yield (
            f"its own values of {', '.join(acting)} may act: it ignores or refuses"
            " neutral ones"
        )
    if dialect.limit != "max_tokens":
        yield f"it takes {dialect.limit!r} for the limit of tokens"
    if dialect.added:
        (name, value), *_ = dialect.added.items()
        yield (
            f"the model would think before it answers: {name} {value} keeps it from"
            " that"
        )
    if dialect.thinking:
        yield (
            "the model thinks before it answers, which cannot be kept off: each answer"
            f" may take {dialect.thinking:,} tokens more"
        )
    yield from _around_answers(found)


def _around_answers(found: Capabilities) -> Iterator[str]:
    if found.dress:
        around = worn((layer["kind"], layer["text"]) for layer in found.dress)
        yield (
            "classics that it continues have more around them, which is taken off:"
            f" {around}"
        )
    if found.dialect.repeats_prompt:
        yield "it puts the prompt before each answer: it is taken off"


def _verb(honour: str | None) -> str:
    return "ignores" if honour == "ignored" else "refuses"


# Starts what works on blocks: an engine of this machine, or many on a cluster.


def spread(audit: Audit) -> AbstractContextManager[Callable[..., None]]:
    """Lend a function that runs calls in threads, or on the cores of a cluster of machines."""
    settings, folder = audit.settings, audit.run.folder
    runner: AbstractContextManager[Callable[..., None]] = in_background()
    if (
        settings.executor
        and settings.ray is not None
        and not is_followed(folder / "run.json")
    ):
        runner = extra("executors", settings.executor).spread(settings.ray, folder)
    return runner


@contextmanager
def _here(
    audit: Audit, model: str, spec: request.EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, request.EngineInfo]]:
    with audit.kept.borrowed(
        spec, audit.run.engine_log, keep=RunModel.parse(model).is_trained_here
    ) as engine:
        if tokenizer is not None:
            texts = start_texts(audit, model)
            figures = compare_starts(engine, tokenizer, texts) if texts else None
            settle_start(audit, model, tokenizer, figures)
        source = LocalSource(
            engine, tokenizer, strides=audit.settings.long_texts == "stride"
        )
        say = audit.observer.stage
        yield LocalExecutor(source, source.restart, say, source.listen), engine.info


def start_texts(audit: Audit, model: str) -> list[str]:
    """Choose texts to be read with and without a start token; none where that is settled."""
    run, of_model = audit.run, audit.manifest.models[model]
    is_settled = "start" in of_model or RunModel.parse(model).is_trained_here
    parts = (run.path(table).glob(f"*.{model}-*") for table in ("samples", "logprobs"))
    # Evidence that is there began as the tokenizer has it.
    if is_settled or not run.path("targets").exists() or any(map(any, parts)):
        return []
    texts = run.scan("targets").filter(pl.col("target").is_not_null())
    some = texts.bottom_k(N_TEXTS, by="target_id").select("target").collect()
    return some["target"].to_list()


def settle_start(
    audit: Audit, model: str, tokenizer: Tokenizer, figures: StartFigures | None
) -> None:
    """Keep the better way to begin texts for all evidence of a model."""
    if RunModel.parse(model).is_trained_here or not audit.run.path("targets").exists():
        return
    with audit.settling():
        of_model = audit.manifest.models[model]
        is_new = "start" not in of_model  # another shard may have settled it meanwhile
        if is_new:
            of_model["start"] = {} if figures is None else figures._asdict()
            audit.save()
    if of_model["start"].get("is_better_otherwise"):
        tokenizer.toggle_start()
    if is_new:
        for sentence in start_sentences(start_findings({model: of_model})):
            audit.observer.stage(sentence)


def start_findings(models: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of check ``start_token``: models that are not read as their tokenizers begin texts."""
    starts = {model: of_model.get("start", {}) for model, of_model in models.items()}
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

_UNSTATED_CONTEXT = (
    131_072  # endpoints that do not state theirs refuse what is too long
)
_PROBED = "some thirty small requests of each probe come on top"
_TIMED = ("sampling", "log-probabilities")
_SECONDS_TO_TELL_SPEED = 10.0  # less is mostly the beginning and the end


class Session(NamedTuple):
    """What works on blocks, and what is known of its model now that it is open."""

    key: str  # kind of evidence and model, as the run's record names them
    executor: Executor
    tokenizer: Tokenizer | None
    max_model_len: int
    max_attempts: int = request.MOST_ATTEMPTS


@contextmanager
def open_session(
    audit: Audit,
    model: str,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
    *,
    at_points: bool = False,
    same: str | None = None,
) -> Iterator[Session]:
    """Start an engine with one of the run's models, or probe the endpoint of the target model."""
    # With ``at_points`` an endpoint is asked for log-probabilities of the next token
    # alone. ``same`` names the engine that is to answer, of which attacks read nothing.
    if is_remote(audit, model):
        opened = _open_endpoint(audit, kind, at_points=at_points)
    else:
        opened = _open_engine(audit, model, kind, columns, same)
    with opened as session, asking(audit):
        yield session


def sample_task(audit: Audit, session: Session, view: View) -> SampleTask:
    budget = audit.budget(view, session.max_model_len, session.max_attempts)
    measure = session.tokenizer.measure if session.tokenizer else estimate_tokens
    settings, words, seed = (
        audit.settings,
        audit.settings.word_rule,
        audit.settings.seed,
    )
    # Which the endpoint may have decided after the view was made
    if not settings.nudge:
        view = replace(view, nudge=0.0)
    view = replace(view, greedy=view.greedy or settings.temperature == 0)
    rule: Rule = ()
    if view.model == "target" and view.continues_texts:
        rule = rule_of(audit.manifest.dress.get("rule", ()))
    task = SampleTask(
        view=view, measure=measure, budget=budget, words=words, run_seed=seed
    )
    return replace(task, rule=rule)


def ask(
    audit: Audit,
    session: Session,
    doing: str,
    work: Work,
    wanted: Iterable[
        tuple[AnyTask, Iterable[Block], Callable[[Block, pl.DataFrame], Any]]
    ],
    *,
    on_answer: OnAnswer | None = None,
    on_block: Callable[[AnyTask, Block, Any], None] | None = None,
) -> None:
    """Ask an open session about blocks, task by task: this loop alone hands work to an executor."""
    listen, began, decoded = on_answer or audit.observer.answered, time.monotonic(), 0
    views = set[str]()

    def count(label: str, texts: int, tokens: int, passes: int) -> None:
        nonlocal decoded
        decoded += tokens
        views.add(label.rpartition("-")[2])
        listen(label, texts, tokens, passes)

    with audit.observer.progress(doing, done=work.done, left=work.left, unit=work.unit):
        for task, blocks, store in wanted:
            for block, kept in session.executor.collect(task, blocks, count, store):
                if on_block is not None:
                    on_block(task, block, kept)
    took = time.monotonic() - began
    if doing in _TIMED and took >= _SECONDS_TO_TELL_SPEED:
        with audit.settling():
            speeds = audit.manifest.times.setdefault("tokens_per_second", {})
            speeds[speed_key(session.key, views)] = round(decoded / took, 1)


def speed_key(stage: str, views: Iterable[str]) -> str:
    return f"{stage}: {', '.join(sorted(views))}"


def is_remote(audit: Audit, model: str) -> bool:
    return bool(audit.manifest.evidence["engine"] == "openai") and model == "target"


def chosen_engine(
    audit: Audit,
    model: str,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
    same: str | None = None,
) -> tuple[request.EngineSpec, str, Tokenizer | None]:
    """Say what is to be started, why this engine, and its tokenizer; nothing starts."""
    with audit.settling():
        audit.agree({"source": audit.source(model)}, model)
        spec, why = audit.spec(model, kind, columns, same)
        if kind == "fills":
            return spec, why, None
        tokenizer = Tokenizer.load(spec.model, spec.revision)
        if audit.manifest.models[model].get("start", {}).get("is_better_otherwise"):
            tokenizer.toggle_start()
        own = {} if same else {f"{kind} engine": spec.engine}
        audit.agree({"tokenizer": tokenizer.digest} | own, model)
        return spec, why, tokenizer


def chosen_endpoint(
    audit: Audit, kind: request.EvidenceKind
) -> tuple[ClientSettings, Tokenizer | None]:
    settings = audit.settings
    if kind == "logprobs" and settings.long_texts == "stride":
        raise SettingsError(
            "long_texts: an endpoint cannot be asked in strides; leave it at 'refuse'"
        )
    endpoint, tokenizer = endpoint_settings(settings), endpoint_tokenizer(settings)
    audit.agree({"tokenizer": tokenizer.digest if tokenizer else None}, "target")
    return endpoint, tokenizer


def foresee(
    audit: Audit,
    model: str,
    kind: request.EvidenceKind,
    columns: frozenset[str] = frozenset(),
) -> None:
    if not is_remote(audit, model):
        chosen_engine(audit, model, kind, columns)
        return
    address = chosen_endpoint(audit, kind)[0].base_url
    own = {"logprobs base_url": address}
    audit.agree(
        {"endpoint base_url": address.rstrip("/")} if kind == "samples" else own,
        "target",
    )


@contextmanager
def _open_engine(
    audit: Audit,
    model: str,
    kind: request.EvidenceKind,
    columns: frozenset[str],
    same: str | None,
) -> Iterator[Session]:
    spec, why, tokenizer = chosen_engine(audit, model, kind, columns, same)
    turns = audit.kept.serves(spec)
    audit.observer.stage(
        f"the same {spec.engine} goes on as {model}"
        if turns
        else f"starting {spec.engine}: {why}"
    )
    name = audit.settings.executor
    start = _here if name is None else extra("executors", name).engines
    with start(audit, model, spec, tokenizer) as (executor, info):
        if same is None:
            with audit.settling():
                audit.agree(
                    {f"{kind} engine": spec.engine, f"{kind} dtype": info.dtype}, model
                )
                audit.manifest.engines[f"{kind} of {model}"] = asdict(info)
                audit.save()
        audit.observer.stage(
            f"{info.engine} {info.version} runs {spec.model} in {info.dtype} on"
            f" {info.device}, context {info.max_model_len:,} tokens"
        )
        yield Session(f"{kind} of {model}", executor, tokenizer, info.max_model_len)


@contextmanager
def _open_endpoint(
    audit: Audit, kind: request.EvidenceKind, *, at_points: bool
) -> Iterator[Session]:
    settings = audit.settings
    endpoint, tokenizer = chosen_endpoint(audit, kind)
    what = " for log-probabilities" if kind == "logprobs" else ""
    what += " at points" if at_points else ""
    audit.observer.stage(f"probing {endpoint.base_url}{what}")
    journal = audit.run.folder / "journal.sqlite"
    with Endpoint.open(
        endpoint,
        kind=kind,
        journal=journal,
        tokenizer=tokenizer,
        at_points=at_points,
        nudges=kind == "samples" and settings.nudge > 0 and reads_tokens(audit),
    ) as opened:
        found = opened.capabilities
        if found.nudge not in ("honoured", None):
            fault = (
                f"the endpoint {endpoint.base_url} {_verb(found.nudge)} 'logit_bias',"
                " by which "
            )
            fault += "the true token is nudged"
            asked = any(audit.run.path("samples").glob(f"*.{'-'.join(TOKEN)}-*"))
            if asked or "nudge" in settings.model_fields_set:
                raise SettingsError(
                    f"{fault}; give nudge= 0 to ask without, or attacks= probe to ask"
                    " for words"
                )
            audit.settings = settings.model_copy(update={"nudge": 0.0})
            audit.manifest.evidence["nudge"] = audit.manifest.settings["nudge"] = 0.0
            audit.observer.stage(
                f"{fault}: next tokens are asked without, which finds less"
            )
        identity: dict[str, object] = {"logprobs engine": "openai"}
        identity["logprobs base_url"] = endpoint.base_url
        if kind == "samples":
            drawn = endpoint.sample_identity(found)
            identity = {f"endpoint {name}": value for name, value in drawn.items()}
        if at_points:
            instruction = endpoint.chat_instruction if endpoint.chat else None
            identity["probe-logprobs chat_instruction"] = instruction
            bounds = f"top {found.top_logprobs}, or bounds"
            identity["probe-logprobs"] = (
                "exact" if found.named_token == "honoured" else bounds
            )
        audit.agree(identity, "target")
        who = {
            "engine": "openai",
            "base_url": endpoint.base_url,
            "capabilities": asdict(found),
        }
        audit.manifest.engines[f"{'probe-' * at_points}{kind} of target"] = who
        audit.save()
        if kind == "samples" or at_points:
            draws = kind == "samples" and settings.temperature != 0
            draws = draws and (settings.samples is not None or audit.continues)
            for sentence in findings(settings, found, drawn=draws):
                audit.observer.stage(sentence)
        room = found.max_model_len or _UNSTATED_CONTEXT
        attempts = request.MOST_ATTEMPTS if opened.repeats else 1
        yield Session(
            f"{kind} of target", LocalExecutor(opened), tokenizer, room, attempts
        )


def expected(
    audit: Audit, model: str
) -> tuple[Measuring, Callable[[View], request.Budget]]:
    """Say how a model will count tokens, and how far it will decode, before it is open."""
    settings = audit.settings
    if is_remote(audit, model):
        resumes = not settings.chat
        most = partial(audit.budget, max_model_len=_UNSTATED_CONTEXT, resumes=resumes)
        tokenizer = endpoint_tokenizer(settings)
        return (tokenizer.measure if tokenizer else estimate_tokens), most
    source = audit.source(model)
    name, revision = str(source["name"]), source["revision"]
    own = settings.engine_arg if model == "target" else {}
    stated = own.get("max_model_len") or audit.identity(name, revision).max_model_len
    measure = Tokenizer.load(name, revision).measure
    return measure, partial(
        audit.budget, max_model_len=int(stated or settings.max_length)
    )


def expected_work(audit: Audit, view: View) -> pl.Expr:
    """Estimate the work of a view's prompts, whatever model and context they meet."""
    return request.work_of(audit.budget(view, _UNSTATED_CONTEXT), view.samples)


def cost_lines(audit: Audit, workload: request.Workload) -> Iterator[tuple[str, str]]:
    if not workload.prompts:
        return
    settings = audit.settings
    attempts = (
        request.MOST_ATTEMPTS if workload.most_tokens > workload.first_tokens else 1
    )
    yield "requests", f"{workload.prompts:,} to {attempts * workload.samples:,}"
    each = -(-workload.samples // workload.prompts)
    expected = Tokens(each * workload.read_tokens, workload.first_tokens)
    yield "expected", f"about {_priced(settings, expected)}"
    first = _most(settings, workload, workload.first_tokens)
    worst = _most(settings, workload, workload.most_tokens, attempts)
    cost = money(endpoint_settings(settings), expected)
    if settings.max_cost is not None and cost is not None and cost > settings.max_cost:
        yield (
            "limit",
            "expected to stop the run before its end: give a higher --max-cost",
        )
    yield "at most, first attempts", _priced(settings, first)
    yield "at most, all attempts", _priced(settings, worst)
    audit.most_paid.append(worst)


def whole_cost(audit: Audit) -> Iterator[tuple[str, str]]:
    """Say what all parts of a run can cost at an endpoint, and whether its limit may stop it."""
    if not audit.most_paid:
        return
    settings, total = audit.settings, Tokens(0, 0)
    for part in audit.most_paid:
        total = total.plus(part)
    yield "the whole run, at most", f"{_priced(settings, total)} ({_PROBED})"
    cost, limit = money(endpoint_settings(settings), total), settings.max_cost
    if cost is not None and limit is not None and cost > limit:
        yield (
            "limit",
            f"--max-cost may stop the run, which could cost {amount(settings, cost)}",
        )


def text_cost(audit: Audit, view: View, missing: Missing) -> Iterator[tuple[str, str]]:
    if not is_remote(audit, view.model):
        return
    n_bytes = pl.col("context").str.len_bytes() + pl.col("text").str.len_bytes()
    asked = pl.col("text").is_not_null()
    sizes = [
        each.units.filter(asked).select(n_bytes).to_series()
        for each in missing.blocks()
    ]
    if n := sum(map(len, sizes)):
        size = sum(int(each.sum()) for each in sizes)
        workload = request.Workload(prompts=n, samples=n, prompt_bytes=size)
        most = _most(audit.settings, workload, n)
        audit.most_paid.append(most)
        cost = _priced(audit.settings, most)
        yield f"{view.model} {view.name}, at most", f"{n:,} requests, {cost}"


def _most(
    settings: Settings, workload: request.Workload, tokens: int, times: int = 1
) -> Tokens:
    """Count a request for each sample, so that the prompt is paid for with each."""
    endpoint, times = (
        endpoint_settings(settings),
        times * -(-workload.samples // workload.prompts),
    )
    n, n_bytes = times * workload.prompts, times * workload.prompt_bytes
    if tokens > workload.first_tokens:
        n_bytes += MOST_BYTES_PER_TOKEN * workload.resent_tokens
    return Tokens(most_prompt_tokens(endpoint, prompt_bytes=n_bytes, prompts=n), tokens)


def _priced(settings: Settings, tokens: Tokens) -> str:
    text = f"{tokens.given:,} prompt tokens, {tokens.drawn:,} output tokens"
    cost = money(endpoint_settings(settings), tokens)
    return text if cost is None else f"{text}, cost: {amount(settings, cost)}"


def amount(settings: Settings, cost: float) -> str:
    """Write an amount of money; a small one with two digits that are not 0."""
    number = f"{cost:,.2f}" if cost >= 0.1 or not cost else f"{cost:.2g}"
    return f"{settings.currency} {number}"


def spent_sentence(audit: Audit) -> str | None:
    """Say what the run has paid for, earlier calls included; None where no endpoint was asked."""
    settings, journal = audit.settings, audit.run.folder / "journal.sqlite"
    if audit.manifest.evidence["engine"] != "openai" or not journal.exists():
        return None
    with Journal(journal) as answers:
        spent = answers.spent()
    cost, more = money(endpoint_settings(settings), spent), _PROBED
    if cost is None:
        return (
            f"spent {spent.given:,} prompt tokens and {spent.drawn:,} output tokens"
            f" ({more})"
        )
    limit = "" if settings.max_cost is None else f" of at most {settings.max_cost:,.2f}"
    return f"spent {amount(settings, cost)}{limit} (prices as given; {more})"


# Where models are tuned: one after another in this process, or on the machines of a
# cluster.


def trained(
    settings: Settings,
    folder: Path,
    wanted: Iterator[Wanted],
    say: Callable[[str], None],
) -> Generator[tuple[str, Made]]:
    """Make models, several at once on Ray where the settings want it; yield each as it is there."""
    if settings.executor is not None:
        if not is_followed(folder / "run.json"):
            yield from extra("executors", settings.executor).trained(
                settings, folder, wanted, say
            )
            return
        say(
            "models are tuned one after another: no worker sees the folder of a run in"
            " a store"
        )
    for name, making, path in wanted:
        yield (
            name,
            extra("models", "tuned").made_of(making, path, partial(named, say, name)),
        )


def named(say: Callable[[str], None], name: str, sentence: str) -> None:
    say(f"{name}: {sentence}")
