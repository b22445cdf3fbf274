"""Sessions: an opened model or endpoint, ready to work on blocks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import Endpoint
from mia_batch.evidence.endpoint.cost import Tokens, money, most_prompt_tokens
from mia_batch.evidence.executors.local import LocalExecutor
from mia_batch.evidence.sampling import SampleTask
from mia_batch.evidence.workload import Workload, work_of
from mia_batch.models.identity import identify_model
from mia_batch.models.measure import estimate_tokens
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.sessions.endpoints import findings
from mia_batch.pipeline.sessions.starting import started
from mia_batch.pipeline.times import asking
from mia_batch.settings.client import endpoint_settings, endpoint_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.evidence.budget import Budget
    from mia_batch.evidence.executors.executor import Executor
    from mia_batch.evidence.missing import Missing
    from mia_batch.evidence.request import EvidenceKind
    from mia_batch.models.measure import Measure
    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View
    from mia_batch.settings import Settings

__all__ = [
    "Session",
    "cost_lines",
    "expected",
    "expected_work",
    "is_remote",
    "open_session",
    "sample_task",
    "text_cost",
]

_UNSTATED_CONTEXT = 131_072  # endpoints that do not state theirs refuse what is too long
_MOST_ATTEMPTS = 3  # at a candidate of an endpoint; each is paid for


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What works on blocks, and what is known of its model now that it is open."""

    executor: Executor
    tokenizer: Tokenizer | None
    measure: Callable[[list[str], list[str]], list[Measure]]
    max_model_len: int
    max_attempts: int | None = None


@contextmanager
def open_session(
    audit: Audit,
    model: str,
    kind: EvidenceKind,
    columns: frozenset[str] = frozenset(),
    *,
    at_points: bool = False,
) -> Iterator[Session]:
    """Start an engine with one of the run's models, or probe the endpoint of the target model.

    With ``at_points`` an endpoint is asked for log-probabilities of the next token alone. Model,
    tokenizer and engine are recorded in the manifest. Raises `SettingsError` if one is not what the
    run's evidence came from, `EngineError` if it cannot start.
    """
    if is_remote(audit, model):
        opened = _open_endpoint(audit, kind, at_points=at_points)
    else:
        opened = _open_engine(audit, model, kind, columns)
    with opened as session, asking(audit):
        yield session


def sample_task(audit: Audit, session: Session, view: View) -> SampleTask:
    """Ask for the samples of a view, as the run's settings want them."""
    return SampleTask(
        view=view,
        measure=session.measure,
        budget=audit.budget(view, session.max_model_len, session.max_attempts),
        words=audit.settings.word_rule,
        run_seed=audit.settings.seed,
    )


def is_remote(audit: Audit, model: str) -> bool:
    """Whether a model of the run answers at an endpoint."""
    return bool(audit.manifest.evidence["engine"] == "openai") and model == "target"


@contextmanager
def _open_engine(
    audit: Audit, model: str, kind: EvidenceKind, columns: frozenset[str]
) -> Iterator[Session]:
    manifest, run = audit.manifest, audit.run
    manifest.agree_model(model, {"source": audit.source(model)}, run.folder)
    spec, why = audit.spec(model, kind, columns)
    tokenizer = None
    if kind != "fills":
        tokenizer = Tokenizer.load(spec.model, spec.revision)
        manifest.agree_model(model, {"tokenizer": tokenizer.digest}, run.folder)
    turns = audit.kept.serves(spec)
    audit.observer.stage(
        f"the same {spec.engine} goes on as {model}" if turns else f"starting {spec.engine}: {why}"
    )
    with started(audit, model, spec, tokenizer) as (executor, info):
        made_by = {f"{kind} engine": spec.engine, f"{kind} dtype": info.dtype}
        manifest.agree_model(model, made_by, run.folder)
        manifest.engines[f"{kind} of {model}"] = asdict(info)
        audit.save()
        audit.observer.stage(
            f"{info.engine} {info.version} runs {spec.model} in {info.dtype} on {info.device}, "
            f"context {info.max_model_len:,} tokens"
        )
        yield Session(
            executor=executor,
            tokenizer=tokenizer,
            measure=tokenizer.measure if tokenizer else estimate_tokens,
            max_model_len=info.max_model_len,
        )


@contextmanager
def _open_endpoint(audit: Audit, kind: EvidenceKind, *, at_points: bool) -> Iterator[Session]:
    settings = audit.settings
    if kind == "logprobs" and settings.long_texts == "stride":
        msg = "setting 'long_texts': an endpoint cannot be asked in strides; leave it at 'refuse'"
        raise SettingsError(msg)
    endpoint = endpoint_settings(settings)
    tokenizer = endpoint_tokenizer(settings)
    digest = tokenizer.digest if tokenizer else None
    audit.manifest.agree_model("target", {"tokenizer": digest}, audit.run.folder)
    what = " for log-probabilities" if kind == "logprobs" else ""
    what += " at points" if at_points else ""
    audit.observer.stage(f"probing {endpoint.base_url}{what}")
    with Endpoint.open(
        endpoint,
        kind=kind,
        journal=audit.run.folder / "journal.sqlite",
        tokenizer=tokenizer,
        at_points=at_points,
    ) as opened:
        found = opened.capabilities
        identity: dict[str, object] = {
            "logprobs engine": "openai",
            "logprobs base_url": endpoint.base_url,
        }
        if kind == "samples":
            drawn = endpoint.sample_identity(found)
            identity = {f"endpoint {name}": value for name, value in drawn.items()}
        if at_points:
            instruction = endpoint.chat_instruction if endpoint.chat else None
            identity["probe-logprobs chat_instruction"] = instruction
            exact = found.named_token == "honoured"
            identity["probe-logprobs"] = (
                "exact" if exact else f"top {found.top_logprobs}, or bounds"
            )
        audit.manifest.agree_model("target", identity, audit.run.folder)
        audit.manifest.engines[f"{'probe-' * at_points}{kind} of target"] = {
            "engine": "openai",
            "base_url": endpoint.base_url,
            "capabilities": asdict(found),
        }
        audit.save()
        if kind == "samples" or at_points:
            for sentence in findings(settings, found, drawn=kind == "samples" and _draws(audit)):
                audit.observer.stage(sentence)
        yield Session(
            executor=LocalExecutor(opened),
            tokenizer=tokenizer,
            measure=tokenizer.measure if tokenizer else estimate_tokens,
            max_model_len=found.max_model_len or _UNSTATED_CONTEXT,
            max_attempts=_MOST_ATTEMPTS if opened.repeats else 1,
        )


def expected(
    audit: Audit, model: str
) -> tuple[Callable[[list[str], list[str]], list[Measure]], Callable[[View], Budget]]:
    """Say how a model will count tokens, and how far it will decode, before it is open."""
    settings = audit.settings
    if model == "target" and audit.manifest.evidence["engine"] == "openai":
        tokenizer = endpoint_tokenizer(settings)
        return tokenizer.measure if tokenizer else estimate_tokens, partial(
            audit.budget, max_model_len=_UNSTATED_CONTEXT, max_attempts=_MOST_ATTEMPTS
        )
    source = audit.source(model)
    name, revision = str(source["name"]), source["revision"]
    own = settings.engine_arg if model == "target" else {}
    stated = own.get("max_model_len") or identify_model(name, revision).max_model_len
    measure = Tokenizer.load(name, revision).measure
    return measure, partial(audit.budget, max_model_len=int(stated or settings.max_length))


def expected_work(audit: Audit, view: View) -> pl.Expr:
    """Estimate the work of a view's prompts, whatever model and context they meet."""
    return work_of(audit.budget(view, _UNSTATED_CONTEXT), view.samples)


def cost_lines(settings: Settings, workload: Workload) -> Iterator[tuple[str, str]]:
    """Say what an endpoint's work may cost at most, as name and text."""
    if not workload.prompts:
        return
    attempts = _MOST_ATTEMPTS if workload.most_tokens > workload.first_tokens else 1
    yield "requests", f"{workload.prompts:,} to {attempts * workload.samples:,}"
    for name, tokens, times in (
        ("at most, first attempts", workload.first_tokens, 1),
        ("at most, all attempts", workload.most_tokens, attempts),
    ):
        yield name, _cost(settings, workload, tokens, times)


def text_cost(settings: Settings, view: View, missing: Missing) -> Iterator[tuple[str, str]]:
    """Say what an endpoint's log-probabilities may cost at most, as name and text.

    Each text takes one request with what precedes it, and one token is drawn.
    """
    n_bytes = pl.col("context").str.len_bytes() + pl.col("text").str.len_bytes()
    workload = Workload()
    for block in missing.blocks():
        texts = block.units.filter(pl.col("text").is_not_null())
        n = texts.height
        workload += Workload(prompts=n, samples=n, prompt_bytes=texts.select(n_bytes.sum()).item())
    if n := workload.prompts:
        cost = _cost(settings, workload, n)
        yield f"{view.model} {view.name}, at most", f"{n:,} requests, {cost}"


def _cost(settings: Settings, workload: Workload, tokens: int, times: int = 1) -> str:
    """Price a request for each sample, so that the prompt is paid for with each."""
    endpoint, times = endpoint_settings(settings), times * -(-workload.samples // workload.prompts)
    n, n_bytes = times * workload.prompts, times * workload.prompt_bytes
    most = Tokens(most_prompt_tokens(endpoint, prompt_bytes=n_bytes, prompts=n), tokens)
    text = f"{most.given:,} prompt tokens, {most.drawn:,} output tokens"
    cost = money(endpoint, most)
    return text if cost is None else f"{text}, cost {cost:,.2f}"


def _draws(audit: Audit) -> bool:
    """Whether samples are drawn, or all are the most likely answers."""
    settings = audit.settings
    if settings.temperature == 0:
        return False
    reads = {key for attack in audit.reading("samples") for key in attack.reads}
    return settings.samples is not None or CONTINUATION in reads
