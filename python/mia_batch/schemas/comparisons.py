"""The table that several runs of one corpus are compared in."""

from __future__ import annotations

import dataframely as dy

__all__ = ["Comparisons"]


class Comparisons(dy.Schema):
    """One fact about a run, or about its difference to the first run, per row.

    ``roc_auc``; ``roc_auc_difference`` and ``mean_difference``: the run less the first;
    ``removed_share``: how much of the difference between the first run and that of the retrained
    model is gone. Written by ``mia-batch compare --out``; a run's folder has none.
    """

    attack = dy.String()
    """The attack whose scores are compared."""
    run = dy.String()
    """Name of the run's folder; a second of that name has ``(2)`` behind it."""
    versus = dy.String(nullable=True)
    """The run that it is compared with; null for ``roc_auc``."""
    statistic = dy.Enum(["roc_auc", "roc_auc_difference", "mean_difference", "removed_share"])
    """Name of the figure; see above."""
    level = dy.Enum(["set", "document", "group"])
    """Whether the figure is about a set of texts, one document or one group."""
    set = dy.Enum(["labelled", "members", "non_members", "unknown"])
    """Which texts by their membership; ``labelled``: members and non-members."""
    key = dy.String(nullable=True)
    """``document_id`` (without one, its first ``target_id``) or ``group``; null for sets."""
    value = dy.Float64(nullable=True)
    """The figure: an area, a difference of areas or of scores, a share that may leave [0, 1]."""
    low = dy.Float64(nullable=True)
    """Lower end of its interval."""
    high = dy.Float64(nullable=True)
    """Upper end of its interval."""
    confidence = dy.Float64(nullable=True)
    """Share of such intervals that cover the true figure."""
    method = dy.String(nullable=True)
    """How the interval was made."""
    p_value = dy.Float64(nullable=True)
    """Two-sided, of no difference."""
    adjusted_p = dy.Float64(nullable=True)
    """Of sets by Holm, over all runs and sets, areas and means apart; of documents, or groups, a
    q-value by Benjamini and Hochberg over all runs and documents, or groups."""
    adjustment = dy.Enum(["holm", "bh"], nullable=True)
    """Which of both."""
    n_targets = dy.UInt32()
    """Targets that it rests on: they have a score in every run."""
    n_clusters = dy.UInt32()
    """Independent units among them: groups, else documents, else targets; of a document its
    windows, of a group its documents."""
    n_unscored = dy.UInt32(nullable=True)
    """Targets of the set that all runs have, but not all have scored; null for documents and
    groups."""
    reason = dy.String(nullable=True)
    """Why value, limits or p-value are null."""
