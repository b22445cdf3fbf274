"""Who may use a run's folder: one run, readers, or the shards of a run.

Locks are the system's own (flock), so they end with their process, however it ends. ``.lock`` is
held by a run alone and shared by readers; shards hold it in turns, while they make or store what
all of them share. ``.shard-I-of-N.lock`` is held by a shard as long as it lives, and taken only by
who has ``.lock``: a run or a reader that has ``.lock`` and finds no live shard has the folder.
"""

from __future__ import annotations

import fcntl
import re
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError
from mia_batch.evidence.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["alone", "as_shard", "is_lock", "others_at_work", "reading"]

_LOCK = ".lock"
_OF_SHARDS = ".shard-*.lock"
_NAMES = re.compile(r"\.lock|\.shard-(\d+)-of-(\d+)\.lock")
_SECONDS_OF_A_LOOK = 1.0
"""For which a lock is held by who only stores a manifest, or looks who is at work."""


def is_lock(name: str) -> bool:
    """Whether a file in a run's folder is one of its locks."""
    return _NAMES.fullmatch(name) is not None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder against all others; raises `RunFolderError` if one of them holds it."""
    with _held(FileLock(folder / _LOCK, timeout=0), folder):
        if others_at_work(folder):
            raise RunFolderError(_refusal(folder))
        for path in folder.glob(_OF_SHARDS):  # of shards that have ended
            path.unlink()
        yield


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep a folder as it is; raises `RunFolderError` if a live run or shard holds it."""
    with ExitStack() as closing:
        with suppress(OSError):  # where there is no lock, nobody has held the folder
            stream = closing.enter_context((folder / _LOCK).open("rb"))
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                busy = bool(others_at_work(folder))
            except BlockingIOError:
                busy = True
            if busy:
                msg = f"{folder} is held by a live run, so it has no root; wait for it"
                raise RunFolderError(msg)
        yield


@contextmanager
def as_shard(folder: Path, shard: Shard, say: Callable[[str], None]) -> Iterator[FileLock]:
    """Hold a folder as one of its shards; yields the lock that they hold in turns, held.

    Waits for its turn, and says so. Raises `RunFolderError` if this shard, shards of another
    number or an ordinary run hold the folder.
    """
    turn = FileLock(folder / _LOCK)
    own = FileLock(folder / f".shard-{shard.number}-of-{shard.of}.lock", timeout=_SECONDS_OF_A_LOOK)
    _wait_for(turn, folder, say)
    try:
        with _held(own, folder):
            others = others_at_work(folder, shard)
            if any(other.of != shard.of for other in others):
                msg = (
                    f"{folder} is held by {_named(others)}, and shard {shard} would ask what they "
                    "ask; wait for them, or go on with shards of their number"
                )
                raise RunFolderError(msg)
            yield turn
    finally:
        turn.release(force=True)


def others_at_work(folder: Path, shard: Shard | None = None) -> list[Shard]:
    """Return the live shards of a run, less this one."""
    found = []
    for path in folder.glob(_OF_SHARDS):
        named = _NAMES.fullmatch(path.name)
        if named is None or (one := Shard(*map(int, named.groups()))) == shard:
            continue
        with suppress(FileNotFoundError), path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(one)
    return sorted(found, key=lambda one: (one.of, one.number))


def _wait_for(turn: FileLock, folder: Path, say: Callable[[str], None]) -> None:
    said = False
    while True:
        try:
            turn.acquire(timeout=_SECONDS_OF_A_LOOK)
        except Timeout:
            if not (others := others_at_work(folder)):
                raise RunFolderError(_refusal(folder)) from None
            if not said:
                say(f"waiting for what all shards need, which {_named(others)} makes")
            said = True
        else:
            return


@contextmanager
def _held(lock: FileLock, folder: Path) -> Iterator[None]:
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(_refusal(folder)) from None
    try:
        yield
    finally:
        lock.release()


def _refusal(folder: Path) -> str:
    return f"{folder} is held by another live run; wait for it, or choose another --out"


def _named(shards: list[Shard]) -> str:
    several = len(shards) > 1
    return f"shard{'s' * several} {', '.join(map(str, shards))}"
