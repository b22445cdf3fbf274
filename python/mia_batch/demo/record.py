"""The note that a demo's folder keeps: what made the demo, and which files are its own."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Self

from mia_batch.tables import write_text

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
    """The contents of ``demo.json``."""

    recipe: str  # digest of the settings and of the way they are followed
    files: dict[str, str]  # SHA-256 by path in the folder; empty while files are replaced
    python: str = field(default_factory=platform.python_version)  # whose documentation it is
    packages: dict[str, str] = field(default_factory=_versions)  # that trained the models
    made_by: str = _MADE_BY  # marks the folder as a demo's

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read a folder's record; None where it has none of ours."""
        try:
            record = cls(**json.loads((folder / _NAME).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return record if record.made_by == _MADE_BY else None

    def write(self, folder: Path) -> None:
        """Store the record in a folder."""
        write_text(folder / _NAME, json.dumps(asdict(self), indent=2) + "\n")

    def is_true_of(self, folder: Path) -> bool:
        """Whether the demo was finished and every file of it is there, unchanged."""
        try:
            return bool(self.files) and self.files == digest_files(folder, self.files)
        except OSError:
            return False


def digest_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files by their path in the folder."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
