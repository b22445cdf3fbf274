"""Tables of long extraction: how far a model was followed through documents, and what came out."""

from __future__ import annotations

import dataframely as dy

__all__ = ["ExtractedDocuments", "Extraction"]


_PLACE: dict[str, dy.Column] = {"start": dy.UInt32(), "end": dy.UInt32()}


class Extraction(dy.Schema):
    """One row per walk: from a strong window on, the model's own words lead through the document.

    Walks from which nothing came out have their row, too.
    """

    document_id = dy.String(primary_key=True)
    """The document that is followed."""
    walk = dy.UInt32(primary_key=True)
    """Counts the walks of a document from 0, that of the strongest window first."""
    target_id = dy.String()
    """The window whose prefix was given."""
    draw = dy.UInt32()
    """0: of all words the most likely one was said; else the number of the draw."""
    start = dy.UInt32()
    """Characters of the document before the stretch that came out."""
    end = dy.UInt32()
    """Characters of the document before what follows it: ``start`` where nothing came out."""
    n_words = dy.UInt32()
    """Words of the document in the stretch."""
    n_verbatim = dy.UInt32()
    """Those of them that were said."""
    n_rounds = dy.UInt32()
    """How often the model was asked."""
    n_tokens = dy.UInt32()
    """Tokens decoded."""


class ExtractedDocuments(dy.Schema):
    """One row per document with walks; what the walks said is compared with the whole of it."""

    document_id = dy.String(primary_key=True)
    """The document that is followed."""
    words_document = dy.UInt32()
    """Its words."""
    n_walks = dy.UInt32()
    """Walks through it."""
    n_tokens = dy.UInt32()
    """Tokens decoded in all of them."""
    coverage = dy.Float64(nullable=True)
    """Share of the words in some stretch."""
    longest_words = dy.UInt32()
    """Words of the longest stretch, or of several without a gap."""
    near_verbatim_recall = dy.Float64(nullable=True)
    """`mia_batch.extraction.near_verbatim_recall` of all that was said, in the document's order."""
    bmc_5 = dy.Float64(nullable=True)
    """`mia_batch.extraction.book_coverage` by spans of 5 words, less those of the prefixes."""
    bmc_5_others = dy.Float64(nullable=True)
    """The mean of the same coverage of other documents, the level of chance; null without any."""
    n_others = dy.UInt32()
    """Other documents that were compared, at most 8."""
    passages_20 = dy.List(dy.Struct(_PLACE), nullable=True)
    """Passages of at least 20 words that one walk said word for word, less what it was given:
    characters of the document before each, and before what follows it."""
    passages_50 = dy.List(dy.Struct(_PLACE), nullable=True)
    """Likewise of at least 50 words."""
