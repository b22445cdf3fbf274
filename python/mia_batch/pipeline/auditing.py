"""An audit: every stage in order, going on where an earlier call stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from mia_batch.evidence.blocks import Missing, sample_parts
from mia_batch.models.identity import identify_model
from mia_batch.pipeline.choosing import chosen_attacks
from mia_batch.pipeline.corpora import check_paths, open_corpora
from mia_batch.pipeline.failures import count_failures
from mia_batch.pipeline.logprobs import collect_logprobs
from mia_batch.pipeline.manifest import Manifest, describe_model
from mia_batch.pipeline.observer import SilentObserver
from mia_batch.pipeline.remote import endpoint_settings, endpoint_tokenizer
from mia_batch.pipeline.repair import damage_set_aside, repair
from mia_batch.pipeline.replaying import open_recording, recorded_settings, replay_samples
from mia_batch.pipeline.resolve import chosen_engine, decode_scope, runs_here
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.sampling import collect_samples
from mia_batch.pipeline.scoring import choose_features, make_missing_features, score_run
from mia_batch.pipeline.targeting import make_targets
from mia_batch.pipeline.verdicts import preflight, verdict_plan
from mia_batch.report import preflight_sentences
from mia_batch.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.corpus import Corpus
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.pipeline.observer import Observer
    from mia_batch.settings import Settings

__all__ = ["audit", "run_audit"]


def audit(
    *, config: Path | None = None, observer: Observer | None = None, **settings: object
) -> Run:
    """Audit a corpus against a model, or go on with an audit that stopped.

    Parameters
    ----------
    config
        A TOML file of settings; by default ``mia-batch.toml`` beside the input, else in the
        working directory, where there is one.
    observer
        Is told what the run does; by default nobody is.
    **settings
        The settings of ``mia-batch`` by name: ``input``, ``model``, ``samples``, ...

    Returns
    -------
    Run
        The finished run; its tables are Polars frames.

    Raises
    ------
    RequestError
        If the input or a setting is wrong; found before a model is loaded.
    EngineError
        If the engine cannot start or go on; what is complete is kept.
    RunFolderError
        If the run folder cannot be used.

    Examples
    --------
    >>> import mia_batch
    >>> mia_batch.audit(input="corpus.parquet", model="models/llama", samples=0)
    Traceback (most recent call last):
    ...
    mia_batch.errors.SettingsError: setting 'samples' is 0: input should be greater than or equal...
    """
    return run_audit(load_settings(settings, config), observer or SilentObserver())


def run_audit(settings: Settings, observer: Observer) -> Run:
    """Run an audit from validated settings; see `audit`.

    Parameters
    ----------
    settings
        What to do.
    observer
        Is told what the run does.

    Returns
    -------
    Run
        The finished run.
    """
    recording = open_recording(settings)
    if recording is not None:
        settings = recorded_settings(settings, recording)
    attacks = chosen_attacks(settings)
    planned = verdict_plan(settings, [attack.name for attack in attacks])
    check_paths(settings)  # which takes less than to load a model's libraries
    run = Run(settings.folder)
    manifest = Manifest.of(run) or _new_manifest(settings)
    corpora = open_corpora(settings)
    observer.stage(_corpus_sentence(settings.input, corpora.input))
    with run.held(), damage_set_aside(run):
        manifest = Manifest.of(run) or manifest  # another live run may have been here till now
        for sentence in repair(run):
            observer.stage(sentence)
        sampling = [attack for attack in attacks if attack.evidence == "samples"]
        scoring = [attack for attack in attacks if attack.evidence == "logprobs"]
        decode = {"decode": None if recording else decode_scope(sampling)} if sampling else {}
        manifest.request(settings, decode, run)
        make_targets(settings, corpora, manifest, run)
        observer.stage(_targets_sentence(manifest.targets))
        _check_targets(settings, planned, manifest, run)
        for sentence in preflight_sentences(run.findings):
            observer.stage(sentence)
        choose_features(sampling, manifest, run)
        parts = sample_parts(run.samples_folder, recorded=recording is not None)
        missing = Missing(
            run.targets_path, parts, settings.samples, retry_failed=settings.retry_failed
        )
        if recording is not None:
            replay_samples(settings, recording, manifest, run, missing, observer)
        elif sampling and missing.count().targets:
            collect_samples(settings, manifest, run, missing, observer)
        if scoring:
            collect_logprobs(settings, scoring, manifest, run, observer)
        manifest.failed = count_failures(run, manifest.targets)
        make_missing_features(settings, manifest, run, parts, observer)
        observer.stage(f"scoring {len(attacks)} attacks")
        score_run(settings, attacks, manifest, run)
    return run


def _check_targets(settings: Settings, plan: VerdictPlan, manifest: Manifest, run: Run) -> None:
    """Make the preflight's tables, unless those that are there are up to date."""
    made_from = {"input": manifest.input, "seed": settings.seed, "plan": asdict(plan)}
    del made_from["plan"]["primary"]
    made_from = json.loads(json.dumps(made_from))
    there = all(run.path(name).exists() for name in ("findings", "blind", "blind_metrics"))
    if there and manifest.checked == made_from:
        return
    manifest.checked, manifest.scored = {}, {}
    manifest.write(run)
    preflight(run, plan, seed=settings.seed)
    manifest.checked = made_from
    manifest.write(run)


def _new_manifest(settings: Settings) -> Manifest:
    """Begin a manifest; what is wrong with engine or model is said before the corpus is read."""
    engine, why = chosen_engine(settings)
    digest = None
    if engine == "openai":
        endpoint_settings(settings)
        endpoint_tokenizer(settings)
    if runs_here(settings):
        digest = identify_model(settings.model, settings.revision).digest
    model = describe_model(settings, digest)
    evidence = {"model": model} | settings.evidence_values | {"engine": engine}
    return Manifest(evidence=evidence, engine_choice=why)


def _corpus_sentence(source: str, corpus: Corpus) -> str:
    """Say how many documents there are, and whether files were left out."""
    sentence = f"{source}: {corpus.n_documents:,} documents"
    if not corpus.ignored:
        return sentence
    left_out = f"{len(corpus.ignored):,} files of other kinds, such as {corpus.ignored[0]}"
    return f"{sentence}; left out: {left_out}"


def _targets_sentence(targets: dict[str, int]) -> str:
    """Say how many targets there are, and how many cannot be sampled, by reason."""
    refused = [f"{count:,} {reason}" for reason, count in targets.items() if reason != "total"]
    left_out = f" (cannot be sampled: {'; '.join(refused)})" if refused else ""
    return f"{targets['total']:,} targets{left_out}"
