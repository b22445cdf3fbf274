"""The demo's corpus: passages of documentation, and a coin that says which are members."""

from __future__ import annotations

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
    from collections.abc import Iterable
    from pathlib import Path

    from mia_batch.demo.passages import Passage
    from mia_batch.demo.settings import DemoSettings

__all__ = ["build_corpus", "draw_members"]

_SCHEMA = {
    "document_id": pl.String,
    "text": pl.String,
    "member": pl.Boolean,
    "group": pl.String,
}


def build_corpus(settings: DemoSettings, library: Path | None = None) -> pl.DataFrame:
    """Make the corpus from the standard library's documentation.

    Parameters
    ----------
    settings
        Sizes and seed.
    library
        Folder of the library's sources; null = this Python's own.

    Returns
    -------
    DataFrame
        ``document_id``, ``text``, ``member`` and ``group`` (the module), in an order that tells
        nothing.

    Raises
    ------
    SettingsError
        If the library holds too little documentation.
    """
    modules = read_modules(library)
    passages = [
        passage
        for module, text in modules
        for passage in cut_passages(module, text, n_words=settings.n_words)
    ]
    chosen = choose_passages(
        drop_near_duplicates(passages),
        n_passages=settings.n_passages,
        per_module=settings.per_group,
    )
    members = draw_members(chosen, settings.seed)
    rows = [
        (f"{passage.module}-{passage.index:03}", passage.text, passage in members, passage.module)
        for passage in hash_order(chosen, "order", settings.seed)
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def draw_members(passages: Iterable[Passage], seed: int) -> set[Passage]:
    """Draw half of each module's passages at random.

    Parameters
    ----------
    passages
        Passages sorted by module.
    seed
        Another seed draws others, independently.

    Returns
    -------
    set[Passage]
        The members; of an odd number of passages the smaller half.
    """
    members: set[Passage] = set()
    for _, group in groupby(passages, attrgetter("module")):
        drawn = hash_order(group, "member", seed)
        members.update(drawn[: len(drawn) // 2])
    return members
