"""An audit: the list of its stages, which running, a dry run, shards and scoring anew walk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import polars as pl

from mia_batch import settings as setting_groups
from mia_batch.attacks import Attack, names
from mia_batch.attacks.attack import find_attack_names
from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.batch import RequestsLeftError
from mia_batch.evidence.parts import Shard, Work
from mia_batch.observer import Observer, usual_observer
from mia_batch.pipeline import batches, custody, lodged_plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import build_windowing, write_texts
from mia_batch.pipeline.costs import describe_spending, forecast_whole_cost
from mia_batch.pipeline.earlier_runs import (
    describe_own_attempt,
    note_attempt,
    record_earlier_runs,
)
from mia_batch.pipeline.folder import (
    ORDER,
    AuditFolder,
    Manifest,
    RunFolder,
    choose_place,
    holds_answers,
)
from mia_batch.pipeline.results import REPORT, has_report, try_report
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.stages import (
    Stage,
    damage_set_aside,
    repair,
    run_timed,
)
from mia_batch.pipeline.stages.answers import AnswersStage
from mia_batch.pipeline.stages.dress import DressStage
from mia_batch.pipeline.stages.evidence import (
    EvidenceStage,
    FillsStage,
    LogprobsStage,
    PromptsStage,
    SamplesStage,
)
from mia_batch.pipeline.stages.extraction import ControlsStage, ExtractionStage
from mia_batch.pipeline.stages.features import FeaturesStage, RarityStage
from mia_batch.pipeline.stages.known_corpus import KnownStage
from mia_batch.pipeline.stages.questions import list_models
from mia_batch.pipeline.stages.recitals import RecitalsStage
from mia_batch.pipeline.stages.responses import write_responses
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.pipeline.stages.training import GenerationsStage, TuningStage
from mia_batch.pipeline.stages.verdicts import (
    PreflightStage,
    ScoresStage,
    SummaryStage,
    VerdictsStage,
)
from mia_batch.pipeline.timing import record_requests
from mia_batch.places import mirrored
from mia_batch.settings import (
    ReportSettings,
    Settings,
    VerdictSettings,
    flatten,
    load_settings,
    split_names,
    stored_settings,
)
from mia_batch.tables import read_finite, remove

# Shards: processes, on one machine or many, that each work on some blocks of one run.


def resume(audit: Audit, stages: Sequence[Stage]) -> None:
    """Repair a locked run folder and record this request."""
    # Another process may have worked in it since
    begun_run = Manifest.load(audit.run.folder)
    if begun_run is not None and audit.begins_anew:
        audit.begins_anew = not holds_answers(audit.run.folder, begun_run)
        if audit.begins_anew:
            _forget_unanswered(audit, stages)
    if not audit.begins_anew:
        audit.manifest = begun_run or audit.manifest
    if not audit.has_other_shards:
        for sentence in repair(stages):
            audit.observer.stage(sentence)
    audit.record_request()


def _forget_unanswered(audit: Audit, stages: Sequence[Stage]) -> None:
    """Remove the texts and prompts of an earlier request to which no answer came."""
    audit.observer.stage(
        f"no answer came to an earlier request in {audit.run.folder}: it begins anew"
    )
    for stage in reversed(stages):
        for path in stage.list_files():
            remove(path)
    for path in audit.run.path("prompts").glob("*.parquet"):
        remove(path)
    remove(audit.run.path(ORDER))
    audit.manifest.write(audit.run.folder)


def run_alone(audit: Audit, stages: Sequence[Stage]) -> None:
    """Run stages that no report follows, such as those of an extra, and seal what they wrote."""
    with audit.run.held(), damage_set_aside(stages), closing(audit.kept_engine):
        resume(audit, stages)
        run_timed(audit, [(stage, stage.prepare) for stage in stages])
        run_timed(audit, [(stage, stage.run) for stage in stages])
        record_requests(audit)
        remove(audit.run.path(ORDER))
        if not audit.manifest.custody:
            custody.seal(audit)
        spent = describe_spending(audit)
        if spent is not None:
            audit.observer.stage(spent)


_BATCH_FILES = "by batch files"  # which runs of an extra do not take


def forecast_alone(
    audit: Audit,
    stages: Sequence[Stage],
    unchecked: tuple[type[Stage], ...] = (),
) -> Iterator[tuple[str, str]]:
    """Iterate over what `run_alone` has left to ask and its cost, as name and text."""
    yield "engine", f"{audit.manifest.evidence['engine']}"
    for stage in stages:
        if not isinstance(stage, unchecked):
            stage.validate_dry_run()
        yield from stage.remaining()
    for name, text in forecast_whole_cost(audit):
        if not name.endswith(_BATCH_FILES):
            yield name, text


def run_shard(audit: Audit, shard: Shard, stages: Sequence[Stage]) -> None:
    """Collect the evidence of a shard's blocks, and stop before what needs those of all."""
    # What all shards need is made by one while the others wait for their turn. Nothing
    # that another may read is removed while it is at work.
    with (
        audit.run.shared(shard, audit.observer.stage) as turn,
        damage_set_aside(stages),
    ):
        audit.turn = turn
        resume(audit, stages)
        run_timed(audit, [(stage, stage.prepare) for stage in stages])
        text_stages = [stage for stage in stages if stage.phase == "texts"]
        run_timed(audit, [(stage, stage.run) for stage in text_stages])
        turn.release()
        asking = [stage for stage in stages if stage.phase in ("fills", "evidence")]
        run_timed(audit, [(stage, stage.run) for stage in asking])
        _report_shard(audit, shard, asking)


def _report_shard(audit: Audit, shard: Shard, stages: Sequence[Stage]) -> None:
    whole_work = reduce(add, (stage.count_prompts() for stage in stages))
    own_work = Work()
    for stage in stages:
        if isinstance(stage, EvidenceStage):
            for view in stage.views:
                own_work += stage.find_missing(view).count()
    outcome = "is complete"
    if own_work == Work():
        outcome = (
            "has nothing to ask, because there are fewer blocks of texts than shards"
        )
    audit.observer.stage(
        f"shard {shard} {outcome}; of all shards {whole_work.done:,} of"
        f" {whole_work.done + whole_work.left:,} prompts are answered; the command"
        " without --shard merges and scores"
    )


# The stages of an audit.


def build_stages(audit: Audit) -> list[Stage]:
    models = list_models(audit)
    trained = [model for model in models if model.is_trained_here]
    return [
        TargetsStage(audit),
        PreflightStage(audit),
        PromptsStage(audit),
        FillsStage(audit),
        *(SamplesStage(audit, model) for model in models[:2]),
        AnswersStage(audit),
        *(LogprobsStage(audit, model) for model in models if model not in trained),
        GenerationsStage(audit),
        TuningStage(audit, trained),
        *(LogprobsStage(audit, model) for model in trained),
        DressStage(audit),
        RarityStage(audit),
        FeaturesStage(audit),
        ScoresStage(audit),
        VerdictsStage(audit),
        RecitalsStage(audit),
        ExtractionStage(audit),
        ControlsStage(audit),
        KnownStage(audit),
        SummaryStage(audit),
    ]


Table: TypeAlias = Mapping[str, Any]  # settings of a table by name


class ArrowTable(Protocol):
    """A table of another library, such as pandas or pyarrow, that exports Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None, /) -> object:
        """Export the table as Arrow's C stream."""


Texts: TypeAlias = (  # a path or a glob, a list of texts or of records, columns by name, or a table
    "str | os.PathLike[str] | Sequence[str] | Sequence[Mapping[str, Any]] | "
    "Mapping[str, Sequence[Any]] | pl.DataFrame | pl.LazyFrame | ArrowTable"
)


def audit(
    input: Texts | None = None,  # noqa: A002 - the setting's name
    model: str | Path | None = None,
    *,
    observer: Observer | None = None,
    dataset: str | None = None,
    dataset_sha256: str | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    evidence: Literal["samples", "logprobs", "probe-logprobs", "both"] | None = None,
    preset: Literal["default", "matched", "samia", "min-k", "spv"] | None = None,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    attacks_from: str | Path | None = None,
    seed: int | None = None,
    max_failed: float | None = None,
    texts: setting_groups.TextSettings | Table | None = None,
    columns: setting_groups.ColumnSettings | Table | None = None,
    sampling: setting_groups.SamplingSettings | Table | None = None,
    engine: setting_groups.EngineSettings | Table | str | None = None,
    logprobs: setting_groups.LogprobSettings | Table | None = None,
    tuning: setting_groups.FinetuningSettings | Table | str | None = None,
    endpoint: setting_groups.EndpointSettings | Table | None = None,
    batch: setting_groups.BatchSettings | Table | None = None,
    recording: setting_groups.RecordingSettings | Table | None = None,
    cluster: setting_groups.ClusterSettings | Table | None = None,
    verdict: setting_groups.VerdictSettings | Table | None = None,
    extract: setting_groups.ExtractionSettings | Table | bool | None = None,
    report: setting_groups.ReportSettings | Table | bool | None = None,
    **settings: object,
) -> Run:
    """Audit a corpus against a model, or go on with an audit that stopped.

    Parameters
    ----------
    input
        Texts: a path or glob, a table, a list of texts or of records.
    model
        Folder of a checkpoint or an adapter, GGUF file, hub name, or the name at the
        endpoint.
    observer
        Is shown what the run does; by default a notebook shows it on one line, and else
        nobody.
    dataset
        Data set by its name, such as ``wikimia:64``; then ``input`` is a local copy of
        it, if any.
    dataset_sha256
        SHA-256 that its rows must have; by default that of its record.
    out
        Run folder, here or in an object store.
    config
        TOML file of settings; by default ``mia-batch.toml`` in the working directory,
        if there. What it leaves open may stand in your own,
        ``~/.config/mia-batch/mia-batch.toml``.
    evidence
        ``samples``, ``logprobs``, ``probe-logprobs`` or ``both``; by default what
        attacks need, and without attacks one pass of log-probabilities where the model
        runs here.
    preset
        ``default``, ``matched``, ``samia``, ``min-k`` or ``spv``.
    attacks
        Attacks or their names, in a list or separated by commas; by default the
        preset's.
    attacks_from
        Python file with attacks of your own.
    seed
        Seed of the run; same seed, same samples.
    max_failed
        Share of targets that may fail.
    texts
        How texts are read and cut into windows. This and what follows are tables of
        settings: ``sampling={"samples": 5}`` is
        ``sampling=SamplingSettings(samples=5)`` of `mia_batch.settings`, and
        ``samples=5``.
    columns
        Names of the columns of the corpus.
    sampling
        How continuations are sampled.
    engine
        What answers for the model; its name alone is ``{"engine": NAME}``.
    logprobs
        What log-probabilities are asked of, and by which other models.
    tuning
        Reference models that the run makes; a method alone is ``{"tuning": METHOD}``.
    endpoint
        How an endpoint is reached and asked.
    batch
        Requests to an endpoint that are written to files instead of being sent.
    recording
        Continuations that were generated elsewhere.
    cluster
        How many engines work on the run, and where.
    verdict
        Reference sets, and how the answer is given.
    extract
        How the model is followed through documents; True is ``{"extract": True}``.
    report
        What the report shows; False is ``{"report": False}``.
    **settings
        Settings of these tables by their names alone, as on the command line:
        ``samples=5``, ``non_members="new-books/"``.

    Returns
    -------
    Run
        The finished run; its tables are Polars frames. Of a ``shard``, or where
        requests were written, the run as it is by then.

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
    >>> mia_batch.audit("corpus.parquet", "models/llama", samples=0)
    Traceback (most recent call last):
    ...
    mia_batch.errors.SettingsError: samples= must be at least 1, not 0
    """
    named = {
        name: value
        for name, value in locals().items()
        if name not in ("observer", "settings")
    }
    written = write_texts(flatten(named | settings))
    return run_audit(load_settings(written), observer or usual_observer())


def run_audit(settings: Settings, observer: Observer) -> Run:
    if settings.texts_to is not None:
        raise SettingsError(
            "texts_to= writes texts and audits nothing; give it to the command"
            " `mia-batch audit`"
        )
    settings = choose_place(settings)
    if settings.config is not None:
        observer.stage(f"settings are read from {settings.config}")
    observer.step("looking at the texts and the model")
    sources_hash = custody.hash_sources(settings)
    if sources_hash is not None and custody.is_unchanged(settings.folder, sources_hash):
        run = Run(settings.folder)
        end = datetime.fromisoformat(run.manifest.times["end"])
        observer.stage(
            f"{run.folder} was finished on {end:%Y-%m-%d at %H:%M} UTC and nothing has"
            " changed since; this is its answer"
        )
        return run
    with mirrored(settings.place):
        audit = Audit.begin(settings, observer)
        _report_texts(audit)
        lodged = lodged_plan.check(audit)
        stages = build_stages(audit)
        if audit.shard is not None:
            run_shard(audit, audit.shard, stages)
        else:
            _run_whole(audit, stages, lodged, sources_hash)
    return Run(audit.run.folder)


def _run_whole(
    audit: Audit,
    stages: Sequence[Stage],
    lodged: dict[str, Any] | None,
    sources_hash: str | None,
) -> None:
    """Run all stages in a folder that nobody else works in."""
    with audit.run.held(), damage_set_aside(stages), closing(audit.kept_engine):
        resume(audit, stages)
        lodged_plan.record(audit, lodged)
        record_earlier_runs(audit, hash_texts(audit), describe_own_attempt(audit))
        if not _run_stages(audit, stages):
            return
        record_requests(audit)
        if not audit.manifest.custody:
            write_responses(audit)
        _finish(audit)
        if sources_hash is not None and has_report(audit):
            custody.record_unchanged(audit.run.folder, sources_hash)
        spent = describe_spending(audit)
        if spent is not None:
            audit.observer.stage(spent)


def _run_stages(audit: Audit, stages: Sequence[Stage]) -> bool:
    """Run all stages; return False where requests are left to a batch service before the end."""
    is_complete = True
    with batches.opening_files(audit):
        try:
            run_timed(audit, _iterate_steps(audit, stages))
        except RequestsLeftError:
            is_complete = False
        batches.finish_files(audit)
    return is_complete


def _report_texts(audit: Audit) -> None:
    settings = audit.settings
    audit.observer.stage(
        f"{settings.dataset or settings.input}: {audit.corpora.input.write_number()}"
        f"{describe_windows(settings)}"
    )
    for sentence in (*audit.corpora.notes(), *audit.request.notes):
        audit.observer.stage(sentence)


def _iterate_steps(
    audit: Audit, stages: Sequence[Stage]
) -> Iterator[tuple[Stage, Callable[[], None]]]:
    """Iterate over what a whole audit does, step by step, each with its stage."""
    for stage in stages:
        yield stage, stage.prepare
    repeated = [stage for stage in stages if stage.phase in ("evidence", "scores")]
    for stage in stages:
        if stage.phase == "fills":  # the texts are there, and no model was asked
            for other in stages:
                yield other, other.validate
        if stage is repeated[0]:
            for _ in _iterate_rounds(audit):
                for other in repeated:
                    batches.stop_before(audit, other)
                    yield other, other.run
        if not (stage.reuses_engine or audit.awaits_engine):
            audit.kept_engine.close()
        batches.stop_before(audit, stage)
        yield stage, stage.run


def _iterate_rounds(audit: Audit) -> Iterator[None]:
    """Choose the texts of each round of a test that stops when groups are decided."""
    test = audit.build_rounds_test()
    if test is None:
        return
    n_rounds = len(test.rounds.ends)
    scores = np.full(audit.manifest.targets["total"], np.nan)
    for number in range(n_rounds):
        if number:
            table = audit.run.scan("scores")
            scores = read_finite(table, audit.rule.primary, scores.size)
        decisions = test.decisions(scores, number)
        if not decisions.undecided.any():
            return
        audit.askable_targets = test.list_texts(decisions, number)
        audit.observer.stage(
            f"round {number + 1} of {n_rounds}: {decisions.undecided.sum():,} of"
            f" {test.n_groups:,} groups are asked, and"
            f" {decisions.nulls_left.sum():,} of {test.n_null:,} outside the training"
            " data"
        )
        yield


def _finish(audit: Audit) -> None:
    """Seal the run, and write its report, which carries the root; one of before is outdated."""
    # A run that was finished and came out as it was is left as it is.
    run, observer = audit.run, audit.observer
    if audit.settings.plan_lodged is not None:
        audit.manifest.plan["lodged"] = audit.settings.plan_lodged
    custody.record_inputs(audit)
    remove(run.path(ORDER))  # which can be drawn again
    has_walks = audit.settings.extract  # whose tables are made anew each time
    if audit.manifest.is_as_stored and not has_walks and has_report(audit):
        return
    observer.step("hashing what was made")
    remove(run.folder / REPORT)
    custody.seal(audit)
    note_attempt(audit)
    observer.step("writing the report")
    fault = try_report(run) if audit.settings.report else None
    if fault is not None:
        observer.stage(fault)


def rescore(
    place: Path | str,
    *,
    observer: Observer | None = None,
    **changed: Any,
) -> Run:
    """Score a finished run with other attacks, from the evidence that it has; no model is loaded.

    Scores are added, marked as later ones, and the planned attack still answers. What
    changes that answer needs ``verdict={"replace": True}``, and is recorded in
    ``run.json``.

    Parameters
    ----------
    place
        The run's folder, or its address.
    observer
        Is shown what is done; by default nobody is.
    **changed
        Settings that say how to score, as in `audit`, such as ``attacks`` or
        ``primary``; others are those of the run's latest request.

    Returns
    -------
    Run
        The run.

    Raises
    ------
    RunFolderError
        If there is no run.
    SettingsError
        If an attack needs evidence that the run does not have.
    """
    changed = flatten(changed)
    stored = dict(RunFolder(place).manifest.settings)
    if changed.get("attacks_from") and not changed.get("attacks"):
        # Those of an earlier request would hide those of the file
        stored["attacks"] = None
    if changed.get("attacks_from") or changed.get("attacks"):
        stored["primary"] = None  # it need not be among these
    _refuse_stored_code(stored, changed)
    settings = load_settings({**stored, "out": str(place), **changed}, use_config=False)
    _refuse_other_scores(settings, stored, changed)
    with mirrored(place) as folder:
        audit = Audit.reopen(AuditFolder(folder), settings, observer or Observer())
        stages = build_stages(audit)
        with audit.run.held(), damage_set_aside(stages):
            _score_again(audit, stages)
    return Run(audit.run.folder)


def _score_again(audit: Audit, stages: Sequence[Stage]) -> None:
    audit.manifest = audit.run.manifest
    remove(audit.run.path(ORDER))
    audit.record_replaced()
    lodged_plan.record_rescored(audit)
    record_earlier_runs(audit, audit.manifest.made["targets"]["input"])
    if audit.build_rounds_test() is None:
        for stage in stages:
            unscorable = stage.list_unscorable()
            if unscorable:
                raise SettingsError(
                    f"attacks: {', '.join(unscorable)} cannot be scored from what the"
                    " run has; give the run's own command with these attacks, which"
                    " collects the rest"
                )
    scoring = [stage for stage in stages if stage.phase in ("scores", "answers")]
    steps = [(stage, stage.prepare) for stage in stages]
    run_timed(audit, steps + [(stage, stage.run) for stage in scoring])
    audit.manifest.settings = audit.settings.model_dump(mode="json")
    audit.manifest.unchanged = ""
    _finish(audit)


_SETTINGS_THAT_ADD = frozenset(
    {
        *VerdictSettings.model_fields,
        *ReportSettings.model_fields,
        "attacks",
        "attacks_from",
        "out",
        "primary",
    }
)
"""Settings that add scores or sentences, or of which the plan says what they may be."""


def _refuse_other_scores(
    settings: Settings, stored: Mapping[str, object], changed: Mapping[str, object]
) -> None:
    """Refuse what would make the planned scores others, unless it is to replace them."""
    if settings.replace:
        return
    stored_values = stored_settings(stored)
    for name in sorted(changed.keys() - _SETTINGS_THAT_ADD):
        if name not in Settings.model_fields:
            continue
        old, new = getattr(stored_values, name), getattr(settings, name)
        if old != new:
            raise SettingsError(
                f"{name}= was {old!r} and is {new!r} now, which makes other scores: the"
                " planned answer stays. Give replace= to score so instead, marked as"
                " exploratory"
            )


def _refuse_stored_code(stored: dict[str, Any], changed: Mapping[str, object]) -> None:
    """Leave out the file of attacks that the run names; refuse where its attacks need it."""
    path = stored.pop("attacks_from", None)
    if not path or changed.get("attacks_from"):
        return
    attacks = split_names(changed.get("attacks") or stored.get("attacks") or ())
    for name in attacks:
        if isinstance(name, str) and not find_attack_names(name, names()):
            raise SettingsError(
                f"attacks: {name} may be defined in {path}, whose code is run only if"
                f" you name it; give --attacks-from {path} too, or other --attacks"
            )


def hash_texts(audit: Audit) -> str:
    return str(audit.corpora.fingerprint(audit.settings)["input"])


def describe_windows(settings: Settings) -> str:
    """Return how texts are cut, as the end of a sentence; empty where they are not."""
    window = build_windowing(settings).window
    if window is None:
        return ""
    unit = "words" if settings.window_characters is None else "characters"
    sentence = f", cut into windows of {window:,} {unit}"
    if settings.max_windows_per_document:
        sentence += f", at most {settings.max_windows_per_document:,} of a document"
    return sentence
