"""An audit: the list of its stages, which running, a dry run, shards and scoring anew walk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from functools import reduce
from heapq import nsmallest
from math import inf
from operator import add
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import polars as pl

from mia_batch import settings as rooms
from mia_batch.attacks import Attack, names
from mia_batch.attacks.attack import meant
from mia_batch.corpus import digest_each, digest_of
from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Shard, Work
from mia_batch.inference.findings import earlier_findings
from mia_batch.observer import Observer, usual_observer
from mia_batch.pipeline import custody, journal, lodged_plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import target_plan, with_files
from mia_batch.pipeline.folder import ORDER, Manifest, RunFolder
from mia_batch.pipeline.results import REPORT, has_report, try_report
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.sessions import speed_key, spent_sentence
from mia_batch.pipeline.stages import (
    Stage,
    damage_set_aside,
    repair,
    run_timed,
)
from mia_batch.pipeline.stages.dress import DressStage
from mia_batch.pipeline.stages.evidence import (
    EvidenceStage,
    FillsStage,
    LogprobsStage,
    PromptsStage,
    SamplesStage,
)
from mia_batch.pipeline.stages.extraction import (
    ControlsStage,
    ExtractionStage,
    RecitalsStage,
)
from mia_batch.pipeline.stages.features import FeaturesStage, RarityStage
from mia_batch.pipeline.stages.known_corpus import KnownStage
from mia_batch.pipeline.stages.questions import list_models
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
from mia_batch.places import is_url, mirrored
from mia_batch.report import earlier_sentences
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
from mia_batch.views import RunModel

# Shards: processes, on one machine or many, that each work on some blocks of one run.


def take_up(audit: Audit, stages: Sequence[Stage]) -> None:
    """Go on from what lies in a folder that is held: repair it, and take in this request."""
    # Another may have been here
    audit.manifest = Manifest.of(audit.run.folder) or audit.manifest
    for sentence in [] if audit.has_others else repair(stages):
        audit.observer.stage(sentence)
    audit.request()


def run_shard(audit: Audit, shard: Shard, stages: Sequence[Stage]) -> None:
    """Collect the evidence of a shard's blocks, and stop before what needs those of all."""
    # What all shards need is made by one while the others wait for their turn. Nothing
    # that another may read is removed while it is at work.
    with (
        audit.run.shared(shard, audit.observer.stage) as turn,
        damage_set_aside(stages),
    ):
        audit.turn = turn
        take_up(audit, stages)
        run_timed(audit, [(stage, stage.prepare) for stage in stages])
        run_timed(
            audit, [(stage, stage.run) for stage in stages if stage.part == "texts"]
        )
        turn.release()
        asked = [stage for stage in stages if stage.part in ("fills", "evidence")]
        run_timed(audit, [(stage, stage.run) for stage in asked])
        work = reduce(add, (stage.answered() for stage in asked))
        evidence = (
            stage for stage in asked if isinstance(stage, LogprobsStage | SamplesStage)
        )
        own = (
            stage.missing(view).count() for stage in evidence for view in stage.views
        )
        said = "has nothing to ask, because there are fewer blocks of texts than shards"
        if reduce(add, own, Work()) != Work():
            said = "is complete"
        audit.observer.stage(
            f"shard {shard} {said}; of all shards {work.done:,} of"
            f" {work.done + work.left:,} prompts are answered; the command without"
            " --shard merges and scores"
        )


# Other runs of the same texts and model, next to this one or in the user's journal of
# runs: each was another try at its answer.

_MOST_FOLDERS, _MOST_LETTERS = 5_000, 100
_LARGEST_FILE = 8 << 20


def earlier_runs(audit: Audit, texts: str) -> dict[str, dict[str, Any]]:
    found = dict[str, dict[str, Any]]()
    known = {_attempt(audit.run.folder, asdict(audit.manifest))}
    for name, stored in neighbours(audit):
        # Else no try
        asked = any(_of(stored, part) for part in ("requests", "plan", "custody"))
        if asked and _of(stored, "made", "targets", "input") == texts:
            known.add(_attempt(audit.run.folder.with_name(name), stored))
            attacks = _of(stored, "settings", "attacks")
            found[name] = {
                "begin": _shown(_of(stored, "times", "begin")),
                "plan": _shown(_of(stored, "plan", "sha256")),
                "primary": _shown(_of(stored, "plan", "primary")),
                "level": _shown(_of(stored, "plan", "level")),
                "n_attacks": len(attacks) if isinstance(attacks, list) else None,
                "finished": bool(_of(stored, "custody", "root")),
                "root": _of(stored, "custody", "root"),
            }
    if is_url(audit.settings.place):
        return found
    return found | _journal_runs(_question(audit, texts), known)


_Attempt: TypeAlias = tuple[str, str, str]


def _attempt(folder: Path, stored: object) -> _Attempt:
    """Tell attempts apart: by their folder, when they began, and what texts were compared with."""
    sets = _of(stored, "made", "targets", "reference_sets")
    compared = dict(sets) if isinstance(sets, dict) else {}
    compared.pop("yardstick", None)
    return (
        journal.hashed(str(folder.absolute())),
        _shown(_of(stored, "times", "begin")),
        journal.hashed(compared),
    )


def _journal_runs(
    question: str, known: Collection[_Attempt]
) -> dict[str, dict[str, Any]]:
    """Find the attempts at a question in the journal that are not ``known``, by name."""
    found = dict[str, dict[str, Any]]()
    for entry in journal.read_entries():
        attempt = tuple(
            _shown(entry.get(key)) for key in ("folder", "begin", "compared")
        )
        if entry.get("question") == question and attempt not in known:
            name, facts = _described(entry)
            found[name] = facts
    return found


def _described(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name an attempt of the journal, and say what its run planned."""
    name, folder, begin, compared = (
        _shown(entry.get(key)) for key in ("name", "folder", "begin", "compared")
    )
    facts = {
        key: _shown(entry.get(key))
        for key in ("begin", "plan", "primary", "level", "root")
    }
    named = f"{name} ({folder[:6]}) of {begin}, compared with {compared[:6]}"
    return named, facts | {"n_attacks": None, "finished": True}


def _question(audit: Audit, texts: str) -> str:
    """Hash which texts are asked about of which model."""
    source = audit.manifest.models["target"]["source"]
    known = source["digest"] or [source["name"], source["revision"], _recording(audit)]
    return journal.hashed([texts, known])


def _recording(audit: Audit) -> object:
    if audit.recording is not None:
        return digest_of(digest_each(audit.recording.source.files))
    return audit.manifest.evidence.get("recording")


def _entry(audit: Audit) -> dict[str, Any]:
    """Describe the answer that a run has by now, in hashes."""
    manifest, plan = audit.manifest, audit.manifest.plan
    folder, begin, compared = _attempt(audit.run.folder, asdict(manifest))
    return {
        "question": _question(audit, manifest.made["targets"]["input"]),
        "compared": compared,
        "folder": folder,
        "name": audit.run.folder.absolute().name,
        "begin": begin,
        "plan": plan.get("sha256"),
        "primary": plan.get("primary"),
        "level": plan.get("level"),
        "root": manifest.custody.get("root"),
    }


def _note_attempt(audit: Audit) -> None:
    """Enter a run that has answered in the journal of its user's runs."""
    if is_url(audit.settings.place):
        return
    why_not = journal.add_entry(_entry(audit))
    if why_not is not None:
        audit.observer.stage(
            f"the journal of your runs cannot be written ({why_not}): runs in other"
            " folders will not count this one"
        )


def neighbours(audit: Audit) -> Iterator[tuple[str, object]]:
    """Yield the name and record of each run of this model that lies next to this one."""
    # Links are not followed, and a ``run.json`` that is large or broken is passed over.
    if is_url(audit.settings.place):
        return
    own = audit.run.folder.absolute()
    try:
        with os.scandir(own.parent) as entries:
            folders = (
                each.name for each in entries if each.is_dir(follow_symlinks=False)
            )
            names = nsmallest(
                _MOST_FOLDERS, (name for name in folders if name != own.name)
            )
    except OSError:
        return
    for name in names:
        stored = _stored(own.parent / name / "run.json")
        if _is_of_model(stored, audit):
            yield _shown(name), stored


_PACE = (  # settings that change how fast answers come, next to those of evidence
    *(
        "samples",
        "probes",
        "token_points",
        "choice_orders",
        "neighbours",
        "paraphrases",
    ),
    *("workers", "base_url", "max_concurrency"),
)
_CUTS = ("window_words", "window_characters", "text_length")


def known_speeds(
    audit: Audit, asked: Iterable[EvidenceStage]
) -> dict[str, tuple[float, str]]:
    """Tokens a second of stages, and which run measured them: this one, else one next to it."""
    # That run asked the same model the same questions, with the same engine and
    # settings.
    runs: list[tuple[str, object]] = [(str(audit.run.folder), asdict(audit.manifest))]
    runs += neighbours(audit)
    found = dict[str, tuple[float, str]]()
    for stage in asked:
        key, own = speed_key(stage.name, stage.foreseen_views), _pace(runs[0][1], stage)
        for name, stored in runs:
            speed = _of(stored, "times", "tokens_per_second", key)
            if (
                isinstance(speed, float)
                and 0 < speed < inf
                and _pace(stored, stage) == own
            ):
                who = _of(stored, "engines", stage.name)
                place = _shown(_of(who, "device") or _of(who, "base_url"))
                where = (
                    f"as {name} measured with {_shown(_of(who, 'engine'))} on {place}"
                )
                found[stage.name] = speed, where
                break
    return found


def _pace(stored: object, stage: EvidenceStage) -> list[object]:
    evidence = _of(stored, "evidence")
    given = {**evidence, "seed": 0, "preset": ""} if isinstance(evidence, dict) else {}
    model = ("models", stage.model)
    source = _of(stored, *model, "source", "digest") or _of(stored, *model, "source")
    pace = [given, source, _of(stored, *model, f"{stage.kind} engine")]
    if stage.foreseen_views & {"probe", "token"} and not any(map(given.get, _CUTS)):
        # A token is asked, all before it read
        pace.append(_of(stored, "made", "targets", "input"))
    return pace + [_of(stored, "settings", name) for name in _PACE]


def note_earlier(
    audit: Audit, texts: str, own: dict[str, dict[str, Any]] | None = None
) -> None:
    """Record the earlier runs unless this one is finished and its plan the same; say them."""
    manifest = audit.manifest
    if (
        own
        or not manifest.custody
        or manifest.plan.get("sha256") != audit.plan.digest()
    ):
        manifest.earlier |= earlier_runs(audit, texts) | (own or {})
    for sentence in earlier_sentences(earlier_findings(manifest.earlier)):
        audit.observer.stage(sentence)


def _own_attempt(audit: Audit) -> dict[str, dict[str, Any]]:
    """Describe the answer that this folder has by now, if other comparison texts are given."""
    manifest = audit.manifest
    if "verdicts" not in manifest.made:
        return {}
    sets = audit.corpora.fingerprint(audit.settings)["reference_sets"]
    before = manifest.made["targets"]["reference_sets"]
    roles = {*sets, *before} - {"yardstick"}
    if all(sets.get(role) == before.get(role) for role in roles):
        return {}
    name, facts = _described(_entry(audit))
    return {name: facts}


def _is_of_model(stored: object, audit: Audit) -> bool:
    """Whether a run's model is this one, by its digest, else by its name and the recording."""
    own = audit.manifest.models["target"]["source"]
    other = _of(stored, "models", "target", "source")
    if own["digest"] and (digest := _of(other, "digest")):
        return bool(own["digest"] == digest)
    return own == other and _recording(audit) == _of(stored, "evidence", "recording")


def _of(stored: object, *keys: str) -> object:
    for key in keys:
        stored = stored.get(key) if isinstance(stored, dict) else None
    return stored


def _shown(text: object) -> str:
    """Write out what cannot be printed, so that another's text does nothing where it is said."""
    plain = text if isinstance(text, str) else "unknown"
    return (plain if plain.isprintable() else ascii(plain))[:_MOST_LETTERS]


def _stored(path: Path) -> object:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, encoding="utf-8") as file:
            return json.loads(file.read(_LARGEST_FILE))
    except (OSError, TypeError, ValueError, RecursionError):
        return None


def stages_of(audit: Audit) -> list[Stage]:
    models = list_models(audit)
    made = [model for model in models if RunModel.parse(model).is_trained_here]
    return [
        TargetsStage(audit),
        PreflightStage(audit),
        PromptsStage(audit),
        FillsStage(audit),
        *(SamplesStage(audit, model) for model in ("target", "reference")),
        *(LogprobsStage(audit, model) for model in models if model not in made),
        GenerationsStage(audit),
        TuningStage(audit, made),
        *(LogprobsStage(audit, model) for model in made),
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
    texts: rooms.TextSettings | Table | None = None,
    columns: rooms.ColumnSettings | Table | None = None,
    sampling: rooms.SamplingSettings | Table | None = None,
    engine: rooms.EngineSettings | Table | str | None = None,
    logprobs: rooms.LogprobSettings | Table | None = None,
    tuning: rooms.FinetuningSettings | Table | str | None = None,
    endpoint: rooms.EndpointSettings | Table | None = None,
    recording: rooms.RecordingSettings | Table | None = None,
    cluster: rooms.ClusterSettings | Table | None = None,
    verdict: rooms.VerdictSettings | Table | None = None,
    extract: rooms.ExtractionSettings | Table | bool | None = None,
    report: rooms.ReportSettings | Table | bool | None = None,
    **unknown: object,
) -> Run:
    """Audit a corpus against a model, or go on with an audit that stopped.

    Parameters
    ----------
    input
        Texts: a path or glob, a table, a list of texts or of records.
    model
        Folder of a checkpoint or an adapter, hub name, or the name at the endpoint.
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
        ``sampling=SamplingSettings(samples=5)`` of `mia_batch.settings`.
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
    **unknown
        Nothing: settings of other names are refused, with the name that is meant.

    Returns
    -------
    Run
        The finished run; its tables are Polars frames. Of a ``shard``, the run as it is
        by then.

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
    >>> mia_batch.audit("corpus.parquet", "models/llama", sampling={"samples": 0})
    Traceback (most recent call last):
    ...
    mia_batch.errors.SettingsError: samples= must be at least 1, not 0
    """
    given = {
        name: each
        for name, each in locals().items()
        if name not in ("observer", "unknown")
    }
    settings = flatten(given | unknown)
    return run_audit(load_settings(with_files(settings)), observer or usual_observer())


def run_audit(settings: Settings, observer: Observer) -> Run:
    if settings.config is not None:
        observer.stage(f"settings are read from {settings.config}")
    observer.step("looking at the texts and the model")
    if (made := custody.made_from(settings)) is not None and custody.is_unchanged(
        settings.folder, made
    ):
        run = Run(settings.folder)
        end = datetime.fromisoformat(run.manifest.times["end"])
        observer.stage(
            f"{run.folder} was finished on {end:%Y-%m-%d at %H:%M} UTC and nothing has"
            " changed since; this is its answer"
        )
        return run
    with mirrored(settings.place):
        audit = Audit.begin(settings, observer)
        n_documents, cut = audit.corpora.input.n_documents, windows_of(audit.settings)
        documents = f"{n_documents:,} document{'s' * (n_documents != 1)}"
        observer.stage(f"{settings.dataset or settings.input}: {documents}{cut}")
        for sentence in audit.corpora.notes():
            observer.stage(sentence)
        lodged = lodged_plan.check(audit)
        stages = stages_of(audit)
        if audit.shard is not None:
            run_shard(audit, audit.shard, stages)
            return Run(audit.run.folder)
        with audit.run.held(), damage_set_aside(stages), closing(audit.kept):
            take_up(audit, stages)
            lodged_plan.record(audit, lodged)
            note_earlier(audit, texts_of(audit), _own_attempt(audit))
            run_timed(audit, _steps(audit, stages))
            record_requests(audit)
            if not audit.manifest.custody:
                write_responses(audit)
            _finish(audit)
            if made is not None and has_report(audit):
                custody.record_unchanged(audit.run.folder, made)
            if (spent := spent_sentence(audit)) is not None:
                observer.stage(spent)
    return Run(audit.run.folder)


def _steps(
    audit: Audit, stages: Sequence[Stage]
) -> Iterator[tuple[Stage, Callable[[], None]]]:
    yield from ((stage, stage.prepare) for stage in stages)
    in_rounds = [stage for stage in stages if stage.part in ("evidence", "scores")]
    for stage in stages:
        if stage.part == "fills":  # the texts are there, and no model was asked
            yield from ((each, each.check) for each in stages)
        if stage is in_rounds[0]:
            for _ in _rounds(audit):
                yield from ((each, each.run) for each in in_rounds)
        if not stage.turns:
            audit.kept.close()
        yield stage, stage.run


def _rounds(audit: Audit) -> Iterator[None]:
    if (test := audit.rounds()) is None:
        return
    for number in range(len(test.rounds.ends)):
        scores = np.full(audit.manifest.targets["total"], np.nan)
        if number:
            scores = read_finite(
                audit.run.scan("scores"), audit.plan.primary, scores.size
            )
        decided = test.decisions(scores, number)
        if not decided.asked.any():
            return
        audit.among = test.asked(decided, number)
        audit.observer.stage(
            f"round {number + 1} of {len(test.rounds.ends)}: {decided.asked.sum():,} of"
            f" {test.n_groups:,} groups are asked, and {decided.nulls_asked.sum():,} of"
            f" {test.n_null:,} outside the training data"
        )
        yield


def _finish(audit: Audit) -> None:
    """Seal the run, and write its report, which carries the root; one of before is outdated."""
    # A run that was finished and came out as it was is left as it is.
    run, say = audit.run, audit.observer
    if audit.settings.plan_lodged is not None:
        audit.manifest.plan["lodged"] = audit.settings.plan_lodged
    custody.record_inputs(audit)
    remove(run.path(ORDER))  # which can be drawn again
    has_walks = audit.settings.extract  # whose tables are made anew each time
    if not audit.manifest.is_as_stored or has_walks or not has_report(audit):
        say.step("hashing what was made")
        remove(run.folder / REPORT)
        custody.seal(audit)
        _note_attempt(audit)
        say.step("writing the report")
        if audit.settings.report and (fault := try_report(run)) is not None:
            say.stage(fault)


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
        Settings that say how to score, by table as in `audit`, such as ``attacks`` or
        ``verdict={"primary": ...}``; others are those of the run's latest request.

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
        stored["attacks"] = (
            None  # those of an earlier request would hide those of the file
        )
    if changed.get("attacks_from") or changed.get("attacks"):
        stored["primary"] = None  # it need not be among these
    _refuse_stored_code(stored, changed)
    settings = load_settings({**stored, "out": str(place), **changed}, use_config=False)
    _refuse_other_scores(settings, stored, changed)
    with mirrored(place) as folder:
        audit = Audit.finished(RunFolder(folder), settings, observer or Observer())
        stages = stages_of(audit)
        with audit.run.held(), damage_set_aside(stages):
            audit.manifest = audit.run.manifest
            remove(audit.run.path(ORDER))
            audit.record_replaced()
            lodged_plan.record_rescored(audit)
            note_earlier(audit, audit.manifest.made["targets"]["input"])
            for stage in stages:
                if audit.rounds() is None and (short := stage.unscorable()):
                    raise SettingsError(
                        f"attacks: {', '.join(short)} cannot be scored from what the"
                        " run has; give the run's own command with these attacks,"
                        " which collects the rest"
                    )
            again = [stage for stage in stages if stage.part in ("scores", "answers")]
            prepared = [(stage, stage.prepare) for stage in stages]
            run_timed(audit, prepared + [(stage, stage.run) for stage in again])
            audit.manifest.settings = audit.settings.model_dump(mode="json")
            audit.manifest.unchanged = ""
            _finish(audit)
    return Run(audit.run.folder)


_ADDED = frozenset(
    {*VerdictSettings.model_fields, *ReportSettings.model_fields} - {"primary"}
)
_ADDED |= {"attacks", "attacks_from", "primary", "out"}
"""Settings that add scores or sentences, or of which the plan says what they may be."""


def _refuse_other_scores(
    settings: Settings, stored: Mapping[str, object], changed: Mapping[str, object]
) -> None:
    """Refuse what would make the planned scores others, unless it is to replace them."""
    before = stored_settings(stored)
    others = [
        name
        for name in sorted(changed.keys() - _ADDED)
        if name in Settings.model_fields
    ]
    for name in others:
        old, new = getattr(before, name), getattr(settings, name)
        if old != new and not settings.replace:
            raise SettingsError(
                f"{name}= was {old!r} and is {new!r} now, which makes other scores: the"
                " planned answer stays. Give replace= to score so instead, marked as"
                " exploratory"
            )


def _refuse_stored_code(stored: dict[str, Any], changed: Mapping[str, object]) -> None:
    """Leave out the file of attacks that the run names; refuse where its attacks need it."""
    path = stored.pop("attacks_from", None)
    wanted = split_names(changed.get("attacks") or stored.get("attacks") or ())
    unknown = [
        name for name in wanted if isinstance(name, str) and not meant(name, names())
    ]
    if path and unknown and not changed.get("attacks_from"):
        raise SettingsError(
            f"attacks: {unknown[0]} may be defined in {path}, whose code is run only if"
            f" you name it; give --attacks-from {path} too, or other --attacks"
        )


def texts_of(audit: Audit) -> str:
    return str(audit.corpora.fingerprint(audit.settings)["input"])


def windows_of(settings: Settings) -> str:
    if (window := target_plan(settings).window) is None:
        return ""
    unit = "words" if settings.window_characters is None else "characters"
    most = settings.max_windows_per_document
    chosen = f", at most {most:,} of a document" if most else ""
    return f", cut into windows of {window:,} {unit}{chosen}"
