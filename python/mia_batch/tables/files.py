"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import polars as pl

from mia_batch.tables.system import system_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Follower",
    "followed",
    "is_followed",
    "move",
    "put_copy",
    "remove",
    "remove_unfinished",
    "replacing",
    "sync_folder",
    "temporary_path",
    "write_text",
]

_ROOM_ASKED_FOR = 1 << 20
_followers: dict[Path, Follower] = {}


class Follower(Protocol):
    """Learns of each change in a folder before it is visible; what it raises prevents it."""

    def put(self, path: Path, content: Path) -> None:
        """Learn that a file gets the content of another, which is never written again."""

    def put_copy(self, path: Path, content: Path) -> None:
        """Learn what a file that is written in place holds now."""

    def remove(self, path: Path) -> None:
        """Learn that a file goes."""


@contextmanager
def followed(folder: Path, follower: Follower) -> Iterator[None]:
    """Tell a follower of every change below a folder while the block runs."""
    _followers[folder] = follower
    try:
        yield
    finally:
        del _followers[folder]


def _follower_of(path: Path) -> Follower | None:
    return next((_followers[folder] for folder in path.parents if folder in _followers), None)


def is_followed(path: Path) -> bool:
    """Tell whether somebody wants to know of a file's changes."""
    return bool(_followers) and _follower_of(path) is not None


def put_copy(path: Path, content: Path) -> None:
    """Tell who follows a file that is written in place what it holds now."""
    if (follower := _follower_of(path)) is not None:
        follower.put_copy(path, content)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically, its line ends as they are."""
    with replacing(path) as stream:
        stream.write(text.encode())
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file of a run, where it is there."""
    if (follower := _follower_of(path)) is not None and path.exists():
        follower.remove(path)
    path.unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Give a file of a run another name, atomically; a file of that name is replaced."""
    if (follower := _follower_of(to)) is not None:
        follower.put(to, path)
        follower.remove(path)
    path.replace(to)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder in which none is at work."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def replacing(
    path: Path, place: Callable[[Path, Path], object] = Path.replace
) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that replaces it at the end, or is ``place``d there.

    It is passed on open: by name, Polars might create it again after a failure, from a thread.
    """
    temporary = temporary_path(path)
    with system_errors(path):
        try:
            with temporary.open("wb") as stream:
                try:
                    yield stream
                except pl.exceptions.ComputeError:
                    _ask_system(stream)
                    raise
                stream.flush()
                os.fsync(stream.fileno())
            if (follower := _follower_of(path)) is not None:
                follower.put(path, temporary)
            place(temporary, path)
        finally:
            with suppress(OSError):  # gone already, or the folder never was
                temporary.unlink()


def temporary_path(path: Path) -> Path:
    """Name what is written beside ``path`` until it is whole; `remove_unfinished` knows it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _ask_system(stream: IO[bytes]) -> None:
    """Raise what the system says to further bytes: Polars hides it where a footer finds no room."""
    stream.write(bytes(_ROOM_ASKED_FOR))
    stream.flush()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    with system_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
