"""Set right what a crash of the machine has cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch import tables
from mia_batch.errors import RunFolderError

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.pipeline.run import Run

__all__ = ["repair"]


def repair(run: Run) -> list[str]:
    """Remove tables that are not whole, so that they are made again; costs one read of each end.

    A part of samples or log-probabilities is set aside beside its place, with ``.broken`` after
    its name. What was made from it goes too, because a GPU draws other samples the second time.

    Parameters
    ----------
    run
        The run, held.

    Returns
    -------
    list of str
        What was repaired, a sentence each; empty where all is well.

    Raises
    ------
    RunFolderError
        If the folder cannot be read or written.
    """
    try:
        return _repair(run)
    except OSError as error:
        where = error.filename or run.folder
        msg = f"{where} cannot be repaired: {error.strerror}; choose another --out"
        raise RunFolderError(msg) from error


def _repair(run: Run) -> list[str]:
    """Remove the latest stage's tables first: killed in between, it begins again."""
    parts = {path.name for path in run.samples_folder.glob("*.parquet")}
    broken = _broken([run.samples_folder / name for name in sorted(parts)])
    scored = _broken(sorted(run.logprobs_folder.glob("*.parquet")))
    features = sorted(run.features_folder.glob("*.parquet"))
    without = parts - {path.name for path in broken}
    stale = [path for path in features if path.name not in without]
    stale += _broken([path for path in features if path.name in without])
    judged = [run.unscored_path, run.metrics_path, run.verdicts_path]
    whole = [run.targets_path, run.scores_path, *judged]
    lost = _broken([path for path in whole if path.exists()])
    if (stale or broken or scored) and run.scores_path.exists() and run.scores_path not in lost:
        lost.append(run.scores_path)
    for path in (*lost, *stale):
        path.unlink()
    for path in (*broken, *scored):
        path.replace(path.with_name(f"{path.name}.broken"))
    said = [f"{path} was cut short; set aside, its samples are missing again" for path in broken]
    said += [f"{path} was cut short; set aside, its texts are scored again" for path in scored]
    return said + [f"{path} is made again" for path in (*stale, *lost)]


def _broken(paths: list[Path]) -> list[Path]:
    return [path for path in paths if not tables.is_whole(path)]
