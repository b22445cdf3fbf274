"""Tables of texts: what is audited."""

from __future__ import annotations

import dataframely as dy
import polars as pl

__all__ = ["Documents", "Role", "SetAside", "Targets"]

Role = pl.Enum(["target", "non_member", "calibration", "canary", "shot", "copy", "yardstick"])
"""Why a text is in the targets table: its membership is asked, or it helps to answer.

A ``copy`` keeps the place of a window whose passage is asked about in earlier windows.
"""


class Documents(dy.Schema):
    """One row per text of the user's corpus, whole, in the corpus' order."""

    document_id = dy.String(nullable=True)
    """The user's identifier, unique; null throughout where the corpus has none."""
    text = dy.String(nullable=True)
    """The text as it was read; null texts are kept and end up unscored."""
    member = dy.Bool(nullable=True)
    """Whether the text was in the training data; null = unknown."""
    group = dy.String(nullable=True)
    """Documents whose errors move together (book, author, site); null = a group of its own."""
    prefix = dy.String(nullable=True)
    """The user's own prefix; null = cut from the text."""
    reference = dy.String(nullable=True)
    """The user's own reference; null = cut from the text."""


class SetAside(dy.Schema):
    """One row per file or row that was not read, the audit going on without it."""

    setting = dy.String()
    """The setting that names the texts: ``input``, ``non_members`` ..."""
    place = dy.String()
    """The file, or the file and its line, item or row, counted from 1."""
    reason = dy.String()
    """Why it was not read."""


class Targets(dy.Schema):
    """One row per text whose membership is asked, or that helps to answer."""

    target_id = dy.String(primary_key=True, regex="^[0-9a-f]{32}$")
    """Hash of the document's identity, the window and the text; the same on every machine."""
    role = dy.Enum(Role.categories.to_list())
    """Why it is here: ``target`` asks about it, the others help to answer."""
    document_id = dy.String(nullable=True)
    """The document that it was cut from, as in the corpus."""
    group = dy.String(nullable=True)
    """As in the corpus; ``undeclared book`` for non-members without one that look like parts of one
    book."""
    member = dy.Bool(nullable=True)
    """As in the corpus."""
    window_index = dy.UInt32()
    """Position of the window in its document, from 0."""
    n_windows = dy.UInt32()
    """Windows that the document has, whether they are asked about or not."""
    start = dy.UInt32(nullable=True)
    """Characters of the document before the target; null where the text is null."""
    target = dy.String(nullable=True)
    """The text asked about; null where the document's is, or the window repeats an earlier one."""
    prefix = dy.String(nullable=True)
    """The part given to the model; null where the target cannot be split."""
    reference = dy.String(nullable=True)
    """The true continuation; null where the target cannot be split."""
    n_words = dy.UInt32(nullable=True)
    """Words of the target under the run's word rule; null where the target is null."""
    reason = dy.String(nullable=True)
    """Why the target cannot be sampled; null where it can."""
