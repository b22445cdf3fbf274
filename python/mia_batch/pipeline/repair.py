"""Set right what a crash of the machine has cut short, or a disk has changed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mia_batch import tables
from mia_batch.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mia_batch.pipeline.run import Run

__all__ = ["damage_set_aside", "repair"]


@contextmanager
def damage_set_aside(run: Run) -> Iterator[None]:
    """Look for damaged tables where one could not be read, and set them aside as `repair` does.

    Parameters
    ----------
    run
        The run, held.

    Yields
    ------
    None
        While tables are read.

    Raises
    ------
    RunFolderError
        If there were any, or the folder cannot be read or written.
    """
    try:
        yield
    except tables.READ_ERRORS as error:
        said = repair(run, tables.is_sound, "is damaged")
        if not said:
            raise
        msg = f"{'; '.join(said)}: give the same command again"
        raise RunFolderError(msg) from error


def repair(
    run: Run,
    is_good: Callable[[Path], bool] = tables.is_whole,
    fault: str = "was cut short",
) -> list[str]:
    """Remove tables that are not good, so that they are made again.

    A part of samples or log-probabilities is set aside beside its place, with ``.broken`` after
    its name. What was made from it goes too, because a GPU draws other samples the second time.

    Parameters
    ----------
    run
        The run, held.
    is_good
        Tells whether a table is; by default from its end.
    fault
        What has happened to those that are not.

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
        return _repair(run, is_good, fault)
    except OSError as error:
        where = error.filename or run.folder
        msg = f"{where} cannot be repaired: {error.strerror}; choose another --out"
        raise RunFolderError(msg) from error


def _repair(run: Run, is_good: Callable[[Path], bool], fault: str) -> list[str]:
    """Remove the latest stage's tables first: killed in between, it begins again."""

    def broken_of(paths: Iterable[Path]) -> list[Path]:
        return [path for path in paths if not is_good(path)]

    parts = {path.name for path in run.samples_folder.glob("*.parquet")}
    broken = broken_of([run.samples_folder / name for name in sorted(parts)])
    scored = broken_of(sorted(run.logprobs_folder.glob("*.parquet")))
    features = sorted(run.features_folder.glob("*.parquet"))
    without = parts - {path.name for path in broken}
    stale = [path for path in features if path.name not in without]
    stale += broken_of([path for path in features if path.name in without])
    judged = [run.unscored_path, run.metrics_path, run.verdicts_path]
    judged += [run.path(name) for name in ("findings", "blind", "blind_metrics")]
    whole = [run.targets_path, run.scores_path, *judged]
    lost = broken_of([path for path in whole if path.exists()])
    if (stale or broken or scored) and run.scores_path.exists() and run.scores_path not in lost:
        lost.append(run.scores_path)
    for path in (*lost, *stale):
        path.unlink()
    for path in (*broken, *scored):
        path.replace(path.with_name(f"{path.name}.broken"))
    said = [f"{path} {fault}; set aside, its samples are missing again" for path in broken]
    said += [f"{path} {fault}; set aside, its texts are scored again" for path in scored]
    return said + [f"{path} is made again" for path in (*stale, *lost)]
