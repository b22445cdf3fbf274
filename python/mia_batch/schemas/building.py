"""Tables of what was built to be audited: evaluation sets with their tests, paraphrases."""

from __future__ import annotations

import dataframely as dy

__all__ = ["BuiltTests", "BuiltTexts", "Paraphrases", "ThrownAway"]


class BuiltTexts(dy.Schema):
    """One text of an evaluation set per row, as an audit takes it.

    Written by ``mia-batch build-set``, a file for each setting and length.
    """

    document_id = dy.String(primary_key=True)
    """The document's identifier, then setting and length: unique over all files of a set."""
    text = dy.String()
    """The text: as many words of the document as ``length`` says, as they stand there."""
    member = dy.Bool()
    """Whether it is a member, by its date or by the label that was given."""
    group = dy.String()
    """Texts whose errors move together: the group that was given, else its pair."""
    pair = dy.UInt32(nullable=True)
    """Number of the pair, one member and one non-member alike; null where nothing was matched."""
    length = dy.UInt32()
    """Words of the text; of ``concatenated`` texts, those that follow the context."""
    setting = dy.Enum(["original", "paraphrased", "concatenated"])
    """What was done to the text."""
    from_document = dy.String()
    """The document that it is of."""
    from_word = dy.UInt32()
    """Words of the document before it."""
    date = dy.Date(nullable=True)
    """Date of the document; null where labels were given instead."""
    source = dy.String(nullable=True)
    """Source of the document; null where none was given."""


class BuiltTests(dy.Schema):
    """How well a classifier that never sees a model tells the classes of a set apart, per row.

    Written by ``mia-batch build-set``.
    """

    length = dy.UInt32()
    """Words of the texts."""
    setting = dy.Enum(["original", "paraphrased", "concatenated"])
    """What was done to the texts."""
    stage = dy.Enum(["before", "after"])
    """Before or after matching; before: the first words of every document."""
    learnt_from = dy.Enum(["the set", "held out"])
    """``the set``: cross-validated within it. ``held out``: trained on documents, drawn at
    random, that had no part in the matching."""
    classifier = dy.String()
    """Name of the classifier; the matching uses all but ``blind_forest_v1``."""
    roc_auc = dy.Float64(nullable=True)
    """Its AUC; higher than 1/2: members score higher."""
    low = dy.Float64(nullable=True)
    """Lower end of its interval, confidence 0.95."""
    high = dy.Float64(nullable=True)
    """Upper end of its interval, confidence 0.95."""
    n_members = dy.UInt32()
    """Members tested."""
    n_nonmembers = dy.UInt32()
    """Non-members tested."""
    reason = dy.String(nullable=True)
    """Why the figures are null."""


class ThrownAway(dy.Schema):
    """One document that is not in a set, or not in one of its files, per row.

    Written by ``mia-batch build-set``.
    """

    document_id = dy.String()
    """The document: its identifier, or its row in the input, counted from 1."""
    member = dy.Bool(nullable=True)
    """Whether it is a member; null where nobody knows."""
    length = dy.UInt32(nullable=True)
    """The length that it is missing from; null for all of them."""
    setting = dy.Enum(["original", "paraphrased", "concatenated"], nullable=True)
    """The setting that it is missing from; null for all of them."""
    reason = dy.Enum(
        [
            "no text",
            "undated",
            "near the cutoff",
            "membership unknown",
            "copy of another document",
            "too short",
            "more documents than are compared",
            "held out to test the set",
            "nothing alike in the other class",
            "set refused",
            "no paraphrase of this length",
        ]
    )
    """Why."""
    other_document = dy.String(nullable=True)
    """Of a copy: a document that has most of its words; null for other reasons."""


class Paraphrases(dy.Schema):
    """One text per row with what a model made of it, as an audit takes it.

    Written by ``mia-batch paraphrase``.
    """

    document_id = dy.String(nullable=True)
    """As in the corpus; of a window, with its number after ``#``."""
    text = dy.String(nullable=True)
    """The text that was paraphrased; null where the corpus' is, or a window repeats another."""
    member = dy.Bool(nullable=True)
    """As in the corpus."""
    group = dy.String(nullable=True)
    """As in the corpus; of a window, its document where the corpus has no groups."""
    paraphrases = dy.List(dy.String(), nullable=True)
    """All that differ from the text and each other, in the order drawn; null where none does."""
    paraphrases_reason = dy.String(nullable=True)
    """Why there are fewer than three; null where there are not."""
