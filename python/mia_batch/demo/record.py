"""The note that a demo's folder keeps: what made the demo, and which files are its own."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Self

from mia_batch import tables

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Record", "digest_files"]

_NAME = "demo.json"
_MADE_BY = "mia-batch demo"
_PACKAGES = ("tokenizers", "torch", "transformers")


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The contents of ``demo.json``.

    Attributes
    ----------
    recipe
        Digest of the settings and of the way they are followed.
    files
        SHA-256 of each file of the demo, by its path in the folder; empty while files are replaced.
    python
        Version of the Python whose documentation the corpus is.
    packages
        Versions of the packages that trained the model.
    made_by
        Marks the folder as a demo's.
    """

    recipe: str
    files: dict[str, str]
    python: str = field(default_factory=platform.python_version)
    packages: dict[str, str] = field(default_factory=_versions)
    made_by: str = _MADE_BY

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read a folder's record; null where it has none of ours."""
        try:
            record = cls(**json.loads((folder / _NAME).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return record if record.made_by == _MADE_BY else None

    def write(self, folder: Path) -> None:
        """Store the record in a folder."""
        tables.write_text(folder / _NAME, json.dumps(asdict(self), indent=2) + "\n")

    def is_true_of(self, folder: Path) -> bool:
        """Whether the demo was finished and every file of it is there, unchanged."""
        try:
            return bool(self.files) and self.files == digest_files(folder, self.files)
        except OSError:
            return False


def digest_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files.

    Parameters
    ----------
    folder
        Where the files are.
    names
        Their paths in the folder.

    Returns
    -------
    dict[str, str]
        Hexadecimal digest by path.

    Raises
    ------
    OSError
        If one cannot be read.
    """
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
