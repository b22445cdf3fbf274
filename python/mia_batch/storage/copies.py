"""Runs that lie in a store: fetched to look at, mirrored while they are worked on, settled."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.storage.lease import Lease, holder, is_live, lease_of
from mia_batch.storage.mirror import Mirror
from mia_batch.storage.store import Store
from mia_batch.storage.urls import check_url, is_url
from mia_batch.storage.working_copy import WorkingCopy
from mia_batch.tables.files import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["fetched", "mirrored", "settled"]


@contextmanager
def mirrored(place: Path | str, tell: Callable[[str], None] | None = None) -> Iterator[Path]:
    """Lend a folder to write a run in; of an address, its working copy, which the store follows.

    Parameters
    ----------
    place
        A folder, or an address in an object store.
    tell
        Is told, in a sentence, of work that may take long.

    Yields
    ------
    Path
        The folder. At the end of the block the store has all of it. A message of an error names
        the address instead.

    Raises
    ------
    RunFolderError
        If the store refuses, or a live run holds the folder; the working copy keeps what the store
        has not.
    SettingsError
        If the address is none, or the library for it is not installed.
    """
    if not is_url(place):
        yield Path(place)
        return
    with ExitStack() as closing:
        store, copy = _opened(place)
        with copy.lock("looking"):
            try:
                closing.enter_context(copy.lock("writing", 0))
            except Timeout:
                msg = f"{place} is held by another live run; wait for it, or choose another --out"
                raise RunFolderError(msg) from None
            own = copy.name
            lease = Lease.take(store, own)
            closing.callback(lease.release)
            if lease.copy != own:
                copy.follow(store)
                copy.lead(lease.copy)
            mirror = Mirror(store, copy, lease)
            if tell and (left := mirror.left()):
                tell(f"{place}: storing {left:,} changes of a run that was stopped")
        try:
            with followed(copy.folder, mirror):
                yield copy.folder
        except BaseException as error:
            with suppress(RunFolderError):  # what is queued waits for the next run
                mirror.finish()
            if isinstance(error, MiaBatchError) and str(copy.folder) in str(error):
                raise type(error)(str(error).replace(str(copy.folder), place)) from error
            raise
        if tell and (left := mirror.left()):
            tell(f"{place}: storing the last {left:,} changes")
        mirror.finish()


def fetched(place: Path | str) -> Path:
    """Return a folder to read a run from; of an address, its working copy, brought up to date."""
    if not is_url(place):
        return Path(place)
    store, copy = _opened(place)
    with copy.lock("looking"), suppress(Timeout), copy.lock("writing", 0):
        if copy.name is None or copy.name != holder(store, lease_of(store)):
            copy.follow(store)
    return copy.folder


@contextmanager
def settled(place: Path | str) -> Iterator[None]:
    """Refuse a run in a store that a live run holds, before the block or by its end."""
    if not is_url(place):
        yield
        return
    store, copy = _opened(place)
    before = lease_of(store)
    held = RunFolderError(f"{place} is held by a live run, so it has no root; wait for it")
    if holder(store, before) != copy.name and is_live(store, before):
        raise held
    yield
    if lease_of(store) != before:
        raise held


def _opened(url: str) -> tuple[Store, WorkingCopy]:
    try:
        check_url(url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return Store.open(url), WorkingCopy.of(url)
