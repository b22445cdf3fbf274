"""Forms in which a model's files come, and who reads each: checkpoints, and what plug-ins add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from mia_batch.errors import SettingsError
from mia_batch.models import checkpoint_tokens, weights
from mia_batch.models.chat import ChatTemplate
from mia_batch.plugins import load_all


class Codec(Protocol):
    """How a model's own library cuts texts into tokens, and joins tokens to texts."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides how text is cut."""

    @property
    def start(self) -> int | None:
        """The token that starts a text, whether or not it is put there; None = no such token."""

    @property
    def start_text(self) -> str:
        """The start token as it is written."""

    @property
    def end(self) -> int | None:
        """The token that ends a text; None = no such token."""

    @property
    def size(self) -> int:
        """Number of token ids, those of added tokens included."""

    @property
    def finds_spans(self) -> bool:
        """Whether `encode_spans` works."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How the model writes conversations; None where nobody has said it."""

    def reading_marks(self) -> Codec:
        """Return the same codec for texts in which special tokens are spelt out, as these."""

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        """Return the token ids of each text, with the special tokens put around it if wanted."""

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of a text, and where each begins and ends, in characters."""

    def decode(
        self, ids: list[list[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each list of token ids."""

    def find_bytes(self) -> dict[int, bytes]:
        """Return the bytes of each token in any text; empty where they vary with the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFormat:
    """A form in which a model's files come.

    Attributes
    ----------
    name
        As sentences name it; an `EngineType` says by it what its engine opens.
    matches
        Checks whether a model, by its name or path, has this form; opens no library.
    identify
        Takes a model, its revision and what it is for, checks that it is there and
        whole, and returns which one it is; raises `SettingsError`.
    load_codec
        Takes a model, its revision and the setting that names it; returns its `Codec`.
    find_files
        Returns the files of a model on this disk; none of a hub's.
    """

    name: str
    matches: Callable[[str], bool]
    identify: Callable[[str, str | None, str], weights.ModelIdentity]
    load_codec: Callable[[str, str | None, str], Codec]
    find_files: Callable[[str], list[Path]]


CHECKPOINT = ModelFormat(
    name="checkpoints",
    matches=lambda _: True,
    identify=weights.identify_model,
    load_codec=checkpoint_tokens.load_codec,
    find_files=weights.find_files,
)
"""Folders and names at the hub, as transformers has them: what no other form matches."""


@cache
def _load_formats() -> tuple[ModelFormat, ...]:
    formats = []
    for place, model_format in load_all("formats"):
        if not isinstance(model_format, ModelFormat):
            raise SettingsError(f"{place} is no ModelFormat; remove its package")
        formats.append(model_format)
    return (*formats, CHECKPOINT)


def find_format(model: str) -> ModelFormat:
    """Return the form in which a model comes."""
    formats = _load_formats()
    return next(model_format for model_format in formats if model_format.matches(model))


def stamp_files(model: str) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a model's files, by which a change is seen."""
    stamps = []
    for path in find_format(model).find_files(model):
        status = path.stat()
        stamps.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(stamps)
