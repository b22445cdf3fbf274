"""What tests of fine-tuning share: texts, recipes, and the bytes of what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia_batch.finetuning.making import Made, Making, made_of
from mia_batch.finetuning.recipe import Recipe
from tests.checkpoints import TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LEARNT = [" ".join(text.split()[:20]) for text in TEXTS[:8]]
"""Texts that differ by their first tokens."""


def recipe(**changed: Any) -> Recipe:
    """Few steps that teach a tiny model something."""
    given = {"epochs": 3, "learning_rate": 1e-2, "batch_size": 4, "rank": 4, "max_tokens": 32}
    return Recipe(**(given | changed))


def making(base: Path, texts: Sequence[str] = LEARNT, **changed: Any) -> Making:
    return Making(base=str(base), revision=None, texts=texts, recipe=recipe(**changed))


def make(
    base: Path,
    out: Path,
    say: Callable[[str], object] = lambda _: None,
    **changed: Any,
) -> Made:
    return made_of(making(base, **changed), out, lambda sentence: (say(sentence), None)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a model."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
