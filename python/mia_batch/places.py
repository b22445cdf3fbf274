"""Where runs lie: a folder, or an address of which a folder is the working copy."""

import os
import re
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from mia_batch.plugins import extra, plugins


def is_url(place: object) -> TypeGuard[str]:
    """Return whether a place is an address, such as ``s3://bucket/run``."""
    if not isinstance(place, str):
        return False
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) is not None


def parse_place(place: Path | str) -> Path | str:
    """Return an address as it is, and anything else as a path."""
    return place if is_url(place) else Path(place)


def check_url(url: str) -> None:
    """Raise ValueError where this is no address of a folder in a bucket."""
    # The message repeats nothing of an address that may hold a password.
    parts = urlsplit(url)
    stores = plugins("places")
    if parts.scheme not in stores:
        schemes = ", ".join(f"{scheme}://" for scheme in sorted(stores))
        raise ValueError(
            f"{parts.scheme}:// is not a known object store; known are {schemes}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "an address has a bucket and a path, no user, '?' or '#': credentials come"
            " from the environment"
        )
    has_bucket = re.fullmatch(r"[\w.-]+", parts.netloc)
    folders = parts.path.removesuffix("/").split("/")[1:]
    has_folder = folders and not {"", ".", ".."} & set(folders)
    if not has_bucket or not has_folder:
        raise ValueError(
            f"name a bucket and a folder in it, such as {parts.scheme}://bucket/run"
        )


def find_working_copy(url: str) -> Path:
    """Return the folder that is the working copy of an address; it may not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    url = url.removesuffix("/")
    digest = sha256(url.encode()).hexdigest()
    run_name = url.rpartition("/")[2]
    return cache / "mia-batch" / digest[:16] / run_name


JOURNAL = "MIA_BATCH_JOURNAL"
"""Environment variable with the file of the journal of runs, or ``off``."""


def journal_path() -> Path | None:
    """Return the journal of a user's runs, by default in the folder of states."""
    setting = os.environ.get(JOURNAL, "")
    if setting:
        return None if setting == "off" else Path(setting)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:  # a user without a home
            return None
    return state / "mia-batch" / "runs.jsonl"


def mirrored(place: Path | str) -> AbstractContextManager[Path]:
    """Lend a folder to write a run in: of an address the working copy."""
    # The store follows it, and has all of it at the end of the block. Messages of
    # errors name the address. Raises `RunFolderError` if the store refuses or a live
    # run holds the folder, `SettingsError` if it is no address or the library for it is
    # not installed.
    if not is_url(place):
        return nullcontext(Path(place))
    folder: AbstractContextManager[Path] = _load_store(place).mirrored(place)
    return folder


def fetched(place: Path | str) -> Path:
    """Return a folder to read a run from: of an address an up-to-date working copy."""
    if is_url(place):
        place = _load_store(place).fetched(place)
    return Path(place)


def settled(place: Path | str) -> AbstractContextManager[None]:
    """Refuse a run in a store that a live run holds, before the block or by its end."""
    if not is_url(place):
        return nullcontext()
    checked: AbstractContextManager[None] = _load_store(place).settled(place)
    return checked


def _load_store(url: str) -> Any:
    check_url(url)
    return extra("places", urlsplit(url).scheme)
