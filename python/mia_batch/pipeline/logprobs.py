"""Collect the log-probabilities that a run lacks, part by part."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, get_args

from mia_batch import tables
from mia_batch.evidence.blocks import Missing, logprob_parts
from mia_batch.evidence.scoring import FREQUENCY, ScoreCollector
from mia_batch.pipeline.choosing import scoring
from mia_batch.pipeline.scorers import opened_scorer
from mia_batch.pipeline.views import Views
from mia_batch.schemas import LogProbs, ModelRole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.attacks import Attack
    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.scoring import View
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["collect_logprobs"]


def collect_logprobs(
    settings: Settings, attacks: list[Attack], manifest: Manifest, run: Run, observer: Observer
) -> None:
    """Have every text that the attacks need scored, and store the rows.

    Parameters
    ----------
    settings
        How to score.
    attacks
        Attacks that read log-probabilities.
    manifest
        The run's manifest; models, engine and forward passes are recorded in it.
    run
        The run, held.
    observer
        Is told of the engines and of progress.

    Raises
    ------
    SettingsError
        If a model or a setting is not the one that the run's log-probabilities came from.
    EngineError
        If an engine cannot start or go on; parts that are complete stay.
    """
    views = Views(settings, attacks, run)
    views.check()
    manifest.agree(views.evidence, run)
    for role in get_args(ModelRole):
        wanted = []
        for view in views.of(role):
            computed = _choose_columns(settings, attacks, view, manifest, run)
            wanted.append((replace(view, wanted=computed), _missing(settings, run, view)))
        if any(missing.count().targets for _, missing in wanted):
            _score(settings, manifest, run, observer, views, wanted)


def _choose_columns(
    settings: Settings, attacks: list[Attack], view: View, manifest: Manifest, run: Run
) -> frozenset[str]:
    """Decide what is computed beside log-probabilities: what was before, and what is needed now."""
    name = f"{view.role} {view.name}"
    reading = [attack for attack in attacks if (view.role, view.name) in attack.views]
    computed = asdict(scoring(reading, settings)).items()
    needed = {column for column, value in computed if value is True}
    if any(FREQUENCY in attack.columns for attack in reading):
        needed.add(FREQUENCY)
    before = manifest.scoring.get(name, [])
    if not needed.issubset(before):
        for part in logprob_parts(run.logprobs_folder, view.role, view.name).paths():
            part.unlink()
        manifest.scoring[name] = sorted(needed.union(before))
        manifest.passes.pop(name, None)
        manifest.write(run)
    return frozenset(needed.union(before))


def _missing(settings: Settings, run: Run, view: View) -> Missing:
    return Missing(
        run.targets_path,
        logprob_parts(run.logprobs_folder, view.role, view.name),
        view.n_texts,
        retry_failed=settings.retry_failed,
    )


def _score(
    settings: Settings,
    manifest: Manifest,
    run: Run,
    observer: Observer,
    views: Views,
    wanted: list[tuple[View, Missing]],
) -> None:
    """Score what one model's parts lack."""
    role = wanted[0][0].role
    if role == "target":
        views.load()
    with opened_scorer(settings, role, manifest, run, observer) as (scorer, tokenizer, context):
        frequencies = None
        if role == "target":
            views.fit(tokenizer, context, manifest, observer)
            frequencies = views.log_inverse_frequency(tokenizer)
        collector = ScoreCollector(scorer, frequencies, scored=observer.worked)
        counts = [(view.n_texts, missing.count()) for view, missing in wanted]
        done = sum(n_texts * work.done for n_texts, work in counts)
        lacking = sum(n_texts * work.targets for n_texts, work in counts)
        observer.working("scoring", done=done, total=done + lacking)
        try:
            for block, rows in collector.collect(_blocks(wanted)):
                tables.sink(rows, run.logprobs_folder / block.part_name, LogProbs)
        finally:
            observer.work_ended()
            for view, passes in collector.passes.items():
                name = f"{role} {view}"
                manifest.passes[name] = manifest.passes.get(name, 0) + passes
            manifest.write(run)
    told = ", ".join(f"{view} {passes:,}" for view, passes in collector.passes.items())
    total = sum(collector.passes.values())
    observer.stage(f"forward passes of the {role} model: {total:,} ({told})")


def _blocks(wanted: list[tuple[View, Missing]]) -> Iterator[tuple[View, Block]]:
    for view, missing in wanted:
        for block in missing.blocks():
            yield view, block
