"""Where runs lie: in a folder, or at an address, of which a folder here is the working copy."""

import os
import re
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from mia_batch.plugins import extra, plugins


def is_url(place: object) -> TypeGuard[str]:
    return (
        isinstance(place, str)
        and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) is not None
    )


def place_of(given: Path | str) -> Path | str:
    """Take an address as it is, and all else as a path."""
    return given if is_url(given) else Path(given)


def check_url(url: str) -> None:
    """Raise ValueError where this is no address of a folder in a bucket."""
    # The message repeats nothing of an address that may hold a password.
    parts = urlsplit(url)
    if parts.scheme not in plugins("places"):
        known = ", ".join(f"{scheme}://" for scheme in sorted(plugins("places")))
        raise ValueError(
            f"{parts.scheme}:// is not a known object store; known are {known}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "an address has a bucket and a path, no user, '?' or '#': credentials come"
            " from the environment"
        )
    folders = parts.path.removesuffix("/").split("/")[1:]
    if (
        not re.fullmatch(r"[\w.-]+", parts.netloc)
        or not folders
        or {"", ".", ".."} & set(folders)
    ):
        raise ValueError(
            f"name a bucket and a folder in it, such as {parts.scheme}://bucket/run"
        )


def copy_of(url: str) -> Path:
    """Name the folder that is the working copy of an address; it need not be there."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = given if given.is_absolute() else Path.home() / ".cache"
    url = url.removesuffix("/")
    return (
        cache
        / "mia-batch"
        / sha256(url.encode()).hexdigest()[:16]
        / url.rpartition("/")[2]
    )


JOURNAL = "MIA_BATCH_JOURNAL"
"""Environment variable that names the file of the journal of runs, or says ``off``."""


def journal_path() -> Path | None:
    """Name the journal of a user's runs, in the folder of the user's states; None if it is off."""
    if given := os.environ.get(JOURNAL, ""):
        return None if given == "off" else Path(given)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:  # a user without a home
            return None
    return state / "mia-batch" / "runs.jsonl"


def mirrored(place: Path | str) -> AbstractContextManager[Path]:
    """Lend a folder to write a run in; of an address, its working copy, which the store follows."""
    # At the end of the block the store has all of it. Messages of errors name the
    # address. Raises `RunFolderError` if the store refuses or a live run holds the
    # folder, `SettingsError` if it is no address or the library for it is not
    # installed.
    if not is_url(place):
        return nullcontext(Path(place))
    folder: AbstractContextManager[Path] = _store_of(place).mirrored(place)
    return folder


def fetched(place: Path | str) -> Path:
    """Return a folder to read a run from; of an address, its working copy, brought up to date."""
    return Path(_store_of(place).fetched(place) if is_url(place) else place)


def settled(place: Path | str) -> AbstractContextManager[None]:
    """Refuse a run in a store that a live run holds, before the block or by its end."""
    if not is_url(place):
        return nullcontext()
    checked: AbstractContextManager[None] = _store_of(place).settled(place)
    return checked


def _store_of(url: str) -> Any:
    check_url(url)
    return extra("places", urlsplit(url).scheme)
