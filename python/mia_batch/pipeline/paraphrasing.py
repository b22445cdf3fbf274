"""Paraphrases by a model: what DE-COP needs of every text that it asks about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline.auditing import take_up
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import seal
from mia_batch.pipeline.manifest import record_requests, run_timed
from mia_batch.pipeline.stages.samples import RewritingStage
from mia_batch.pipeline.stages.stage import Stage, damage_set_aside
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.prompts.views import N_PARAPHRASES
from mia_batch.schemas import Paraphrases
from mia_batch.settings import Settings, load_settings
from mia_batch.storage.copies import mirrored
from mia_batch.tables import scan

__all__ = ["paraphrase", "plan_paraphrasing"]


def paraphrase(*, observer: Observer | None = None, **settings: object) -> pl.DataFrame:
    """Have a model write each text of a corpus in other words, for an audit with DE-COP.

    Parameters
    ----------
    observer
        Is told what is done; by default nobody is.
    **settings
        Settings of ``mia-batch`` by name: ``input``, the texts; ``model``, which paraphrases and
        should not be the one that is audited; ``out``; where it answers (``engine``, ``base_url``,
        ``chat``, ...); how texts are cut. ``samples`` are drawn of each text, by default 3.

    Returns
    -------
    DataFrame
        One row per text, as `mia_batch.schemas.Paraphrases` says; it lies in ``out`` as
        ``paraphrases.parquet``.

    Raises
    ------
    RequestError
        If the input or a setting is wrong; found before a model is loaded.
    EngineError
        If the engine cannot start or go on; what is complete is kept.
    RunFolderError
        If the folder cannot be used.
    """
    wanted = _settings(settings)
    observer = observer or Observer()
    with mirrored(wanted.place) as folder:
        audit, stages = _begin(wanted, observer)
        with audit.run.held(), damage_set_aside(stages), closing(audit.kept):
            take_up(audit, stages)
            run_timed(audit, [(stage, stage.run) for stage in stages])
            record_requests(audit)
            seal(audit)
        return scan(folder / "paraphrases.parquet", Paraphrases).collect()


def plan_paraphrasing(**settings: object) -> Iterator[tuple[str, str]]:
    """Say what is left to ask for and what it may cost, as name and text; nothing is written."""
    audit, stages = _begin(_settings(settings), Observer())
    yield "engine", f"{audit.manifest.evidence['engine']} ({audit.manifest.engine_choice})"
    for stage in stages:
        yield from stage.left()


def _settings(given: dict[str, object]) -> Settings:
    """Complete and validate what was asked for."""
    settings = load_settings({"samples": N_PARAPHRASES} | given, use_config=False)
    if settings.out is None:
        raise SettingsError("setting 'out' is missing; name the folder that the paraphrases go to")
    if settings.continuations < N_PARAPHRASES:
        least = f"of each text at least {N_PARAPHRASES} are needed"
        raise SettingsError(f"setting 'samples' is {settings.samples}; {least}")
    return settings


def _begin(settings: Settings, observer: Observer) -> tuple[Audit, list[Stage]]:
    audit = Audit.begin(settings, observer)
    return audit, [TargetsStage(audit), RewritingStage(audit)]
