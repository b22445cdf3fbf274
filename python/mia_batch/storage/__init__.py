"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import TypeGuard
from urllib.parse import urlsplit

_SCHEMES = ("s3", "gs", "az")


def is_url(place: object) -> TypeGuard[str]:
    """Whether this is an address and not a path."""
    return isinstance(place, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) is not None


def place_of(given: Path | str) -> Path | str:
    """Take an address as it is, and all else as a path."""
    return given if is_url(given) else Path(given)


def check_url(url: str) -> None:
    """Raise ValueError where this is no address of a folder in a bucket.

    The message repeats nothing of an address that may hold a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise ValueError(f"{parts.scheme}:// is not a known object store; known are {known}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "an address has a bucket and a path, no user, '?' or '#': credentials come from the "
            "environment"
        )
    folders = parts.path.removesuffix("/").split("/")[1:]
    if not re.fullmatch(r"[\w.-]+", parts.netloc) or not folders or {"", ".", ".."} & set(folders):
        raise ValueError(f"name a bucket and a folder in it, such as {parts.scheme}://bucket/run")


def copy_of(url: str) -> Path:
    """Name the folder that is the working copy of an address; it need not be there."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = given if given.is_absolute() else Path.home() / ".cache"
    url = url.removesuffix("/")
    return cache / "mia-batch" / sha256(url.encode()).hexdigest()[:16] / url.rpartition("/")[2]
