"""Table of controls: what else a passage that came out comes out of."""

from __future__ import annotations

import dataframely as dy

__all__ = ["Controls"]


class Controls(dy.Schema):
    """One row per passage that came out word for word, and per control that speaks to it.

    A passage is the longest run of at least 20 words that a continuation repeats, else the first 64
    words of a stretch that extraction gave. Where a control marks it ``common``, it is no evidence:
    roll-up and verdicts leave it out.
    """

    target_id = dy.String(primary_key=True)
    """The window that it is of."""
    control = dy.Enum(
        ["unrelated_prefix", "unrelated_prefix_16_words", "reference_model", "other_document"],
        primary_key=True,
    )
    """``unrelated_prefix``: the model continued the prefix of another document;
    ``unrelated_prefix_16_words``: that, and the last 16 words of the own prefix behind it, which
    shows how few words suffice and marks nothing; ``reference_model``: the reference model
    continued the own prefix; ``other_document``: no model, all documents of other groups were
    searched."""
    n_samples = dy.UInt32(nullable=True)
    """Continuations that were compared; null where no model is asked."""
    longest_words = dy.UInt32(nullable=True)
    """Words in a row of the passage in the best of them, or in the other document."""
    common = dy.Bool(nullable=True)
    """Whether these are at least 20; null where it cannot be said."""
    other_document = dy.String(nullable=True)
    """The document whose prefix was given, or that has the passage, too; without a name, the
    ``target_id`` of the window that the prefix is of, or the document's number in its file."""
    reason = dy.String(nullable=True)
    """Why ``longest_words`` is null."""
