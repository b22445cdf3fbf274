"""The demo's corpus: passages of documentation, and a coin that says which are members."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.demo.passages import (
    choose_passages,
    cut_passages,
    drop_near_duplicates,
    hash_order,
    read_modules,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from mia_batch.demo.passages import Passage
    from mia_batch.demo.settings import DemoSettings

__all__ = ["build_corpus", "build_shots", "draw_members"]

_SCHEMA = {
    "document_id": pl.String,
    "text": pl.String,
    "member": pl.Boolean,
    "group": pl.String,
}


def build_corpus(settings: DemoSettings, library: Path | None = None) -> pl.DataFrame:
    """Make the corpus from the documentation in ``library``, None: this Python's own.

    The order of its rows tells nothing of their membership.
    """
    chosen = _choose(_passages(settings.n_words, library), settings)
    members = draw_members(chosen, settings.seed)
    return _frame(hash_order(chosen, "order", settings.seed), members)


def build_shots(settings: DemoSettings, library: Path | None = None) -> pl.DataFrame:
    """Choose non-members outside the corpus; fewer than asked for where the library has no more."""
    passages = _passages(settings.n_words, library)
    left = set(passages).difference(_choose(passages, settings))
    drawn = hash_order(left, "shots", settings.seed)[: settings.n_shots]
    return _frame(drawn, frozenset())


def _frame(passages: Iterable[Passage], members: Collection[Passage]) -> pl.DataFrame:
    rows = [
        (f"{passage.module}-{passage.index:03}", passage.text, passage in members, passage.module)
        for passage in passages
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


@cache
def _passages(n_words: int, library: Path | None) -> tuple[Passage, ...]:
    passages = [
        passage
        for module, text in read_modules(library)
        for passage in cut_passages(module, text, n_words=n_words)
    ]
    return tuple(drop_near_duplicates(passages))


def _choose(passages: Iterable[Passage], settings: DemoSettings) -> list[Passage]:
    return choose_passages(passages, n_passages=settings.n_passages, per_module=settings.per_group)


def draw_members(passages: Iterable[Passage], seed: int) -> set[Passage]:
    """Draw half of each module's passages (sorted by module), of an odd number the smaller half."""
    members: set[Passage] = set()
    for _, group in groupby(passages, attrgetter("module")):
        drawn = hash_order(group, "member", seed)
        members.update(drawn[: len(drawn) // 2])
    return members
