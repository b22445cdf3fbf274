"""Makes the demo's folder once, and reuses it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mia_batch.demo.making import DemoFolder, make_demo, recipe_of, write_config
from mia_batch.demo.record import Record
from mia_batch.demo.settings import DemoSettings
from mia_batch.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["prepare"]

_LOCK = ".demo.lock"


def prepare(
    folder: Path,
    *,
    fresh: bool = False,
    notify: Callable[[str], None] | None = None,
    settings: DemoSettings | None = None,
) -> DemoFolder:
    """Make corpus, models and settings of the demo, or find those that were made before.

    The folder must be new, empty or an earlier demo's. ``fresh`` makes them anew; other files in
    the folder stay. ``notify`` receives a line per step; without ``settings``, the defaults hold.
    """
    folder, settings = Path(folder), settings or DemoSettings()
    notify = notify or (lambda _line: None)
    try:
        _refuse_other_things(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, notify):
            if fresh or not _is_kept(folder, settings, notify):
                make_demo(folder, settings, notify)
            elif not DemoFolder.at(folder).config.exists():
                write_config(folder)
    except OSError as error:
        why = error.strerror or error
        msg = f"the demo's folder {folder} cannot be used: {why}; name another folder"
        raise RunFolderError(msg) from error
    return DemoFolder.at(folder)


def _refuse_other_things(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and _LOCK not in names and Record.of(folder) is None:
        msg = f"the folder {folder} holds other things than a demo; name a new or an empty folder"
        raise SettingsError(msg)


@contextmanager
def _alone(folder: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes out of the folder."""
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        notify(f"waiting for another mia-batch demo that works in {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_kept(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> bool:
    record = Record.of(folder)
    if record is None:
        return False
    kept = record.recipe == recipe_of(settings) and record.is_true_of(folder)
    if kept:
        notify(f"corpus and model in {folder} are kept from before; --fresh makes them anew")
    else:
        notify(f"corpus and model in {folder} are unfinished, changed or of another version")
    return kept
