"""Passages that stand in other documents of a run's texts, reference sets included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.diagnostics.quotations import find_elsewhere
from mia_batch.targets.clusters import owner_of_documents

if TYPE_CHECKING:
    from mia_batch.corpus import Corpus
    from mia_batch.pipeline.context import Audit

__all__ = ["other_documents"]


def other_documents(audit: Audit, passages: pl.DataFrame) -> pl.DataFrame:
    """Say of each passage in which other document it stands, row by row."""
    corpora = audit.corpora
    sets = {"target": corpora.input, **corpora.reference_sets}
    documents = pl.concat(
        [_named(corpus, role) for role, corpus in sets.items() if role != "yardstick"]
    )
    return find_elsewhere(passages, documents).rename({"name": "other_document"})


def _named(corpus: Corpus, role: str) -> pl.LazyFrame:
    places = corpus.documents.with_row_index("place", 1)
    number = pl.format(f"document {{}} of the {role} texts", "place")
    return places.select(
        "text",
        owner=owner_of_documents(role).hash(),
        name=pl.coalesce("document_id", number),
    )
