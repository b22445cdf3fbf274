"""Start what gives log-probabilities: an engine with one of a run's models, or an endpoint."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import EndpointScorer
from mia_batch.evidence.process import ScorerProcess
from mia_batch.evidence.scoring import FREQUENCY, LocalScorer
from mia_batch.models.identity import identify_model
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.choosing import scoring, scoring_engine
from mia_batch.pipeline.manifest import describe
from mia_batch.pipeline.remote import UNSTATED_CONTEXT, endpoint_settings, endpoint_tokenizer
from mia_batch.pipeline.resolve import engine_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.engine import EngineSpec
    from mia_batch.evidence.scoring import TextScorer
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.schemas import ModelRole
    from mia_batch.settings import Settings

__all__ = ["opened_scorer"]


@contextmanager
def opened_scorer(
    settings: Settings, role: ModelRole, manifest: Manifest, run: Run, observer: Observer
) -> Iterator[tuple[TextScorer, Tokenizer | None, int]]:
    """Start what scores texts with one of the models.

    Parameters
    ----------
    settings
        How to score.
    role
        Which model; a reference model runs on this machine.
    manifest
        The run's manifest; says what is computed, and records model, tokenizer and engine.
    run
        The run, held.
    observer
        Is told of the engine.

    Yields
    ------
    tuple[TextScorer, Tokenizer or None, int]
        The scorer, ready; the model's tokenizer, null where an endpoint's is not at hand; its
        context in tokens.

    Raises
    ------
    SettingsError
        If model, tokenizer or engine is not the one that the run's log-probabilities came from, or
        the endpoint gives none.
    EngineError
        If the engine cannot start, or the endpoint cannot be reached.
    """
    remote = settings.engine == "openai" and role == "target"
    opened = _opened_endpoint if remote else _opened_engine
    with opened(settings, role, manifest, run, observer) as scorer:
        yield scorer


@contextmanager
def _opened_engine(
    settings: Settings, role: ModelRole, manifest: Manifest, run: Run, observer: Observer
) -> Iterator[tuple[TextScorer, Tokenizer | None, int]]:
    spec, why = _spec(settings, role, set().union(*manifest.scoring.values()))
    identity = identify_model(spec.model, spec.revision)
    tokenizer = Tokenizer.load(spec.model, spec.revision)
    named, prefix = ("model", "") if role == "target" else ("reference_model", "reference_")
    evidence = {
        named: describe(spec.model, spec.revision, identity.digest),
        f"{prefix}tokenizer": tokenizer.digest,
        f"{prefix}scoring_engine": spec.engine,
    }
    manifest.agree(evidence, run)
    observer.stage(f"starting {spec.engine}: {why}")
    with ScorerProcess.start(spec, log=run.engine_log) as engine:
        info = engine.info
        manifest.agree({f"{prefix}scoring_dtype": info.dtype}, run)
        manifest.scorers[role] = asdict(info)
        manifest.write(run)
        observer.stage(
            f"{info.engine} {info.version} runs {spec.model} in {info.dtype} on {info.device}, "
            f"context {info.max_model_len:,} tokens"
        )
        strides = settings.long_texts == "stride"
        yield LocalScorer(engine, tokenizer, strides=strides), tokenizer, info.max_model_len


def _spec(settings: Settings, role: ModelRole, columns: set[str]) -> tuple[EngineSpec, str]:
    """Say what to start, and why with this engine."""
    plain = scoring([], settings)
    computed = replace(plain, **dict.fromkeys(columns - {FREQUENCY}, True))
    engine, why = scoring_engine(settings, computed)  # one for both models
    spec = replace(engine_spec(settings, engine), scoring=computed)
    if role == "target":
        return spec, why
    arguments = {key: value for key, value in spec.engine_args.items() if key != "max_model_len"}
    reference = replace(
        spec,
        model=str(settings.reference_model),
        revision=settings.reference_revision,
        engine_args=arguments,
        scoring=plain,
    )
    return reference, why


@contextmanager
def _opened_endpoint(
    settings: Settings, role: ModelRole, manifest: Manifest, run: Run, observer: Observer
) -> Iterator[tuple[TextScorer, Tokenizer | None, int]]:
    if settings.long_texts == "stride":
        msg = "setting 'long_texts': an endpoint cannot be asked in strides; leave it at 'refuse'"
        raise SettingsError(msg)
    endpoint = endpoint_settings(settings)
    tokenizer = endpoint_tokenizer(settings)
    digest = tokenizer.digest if tokenizer else None
    evidence = {"scoring_base_url": endpoint.base_url, "tokenizer": digest}
    manifest.agree(evidence | {"scoring_engine": "openai"}, run)
    observer.stage(f"probing {endpoint.base_url} for log-probabilities")
    with EndpointScorer.open(endpoint, journal=run.journal_path, tokenizer=tokenizer) as scorer:
        found = scorer.capabilities
        manifest.scorers[role] = {"engine": "openai", "base_url": endpoint.base_url}
        manifest.write(run)
        yield scorer, tokenizer, found.max_model_len or UNSTATED_CONTEXT
