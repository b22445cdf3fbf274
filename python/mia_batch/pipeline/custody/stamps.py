"""Time stamps of a run's root, which its user has had made and laid into its folder."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from mia_batch.tables import digest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["STAMPS", "described", "holds"]

STAMPS = {"root.tsr": "RFC 3161", "root.ots": "OpenTimestamps"}
"""Files of time stamps, and their kind."""


def holds(path: Path, root: str) -> bool:
    """Whether a stamp is of this root: the root itself, or a file that holds its 64 characters."""
    of_files = (sha256(f"{root}{end}".encode()).digest() for end in ("", "\n"))
    content = path.read_bytes()
    return any(each in content for each in (bytes.fromhex(root), *of_files))


def described(folder: Path, root: str) -> str:
    """Name the stamps in a folder with their SHA-256, and whether they are of this root."""
    return "; ".join(
        f"{name} ({kind}), SHA-256 {digest(path)}, "
        + ("of this root" if holds(path, root) else "of ANOTHER root")
        for name, kind in STAMPS.items()
        if (path := folder / name).is_file()
    )
