"""Tables of an embedding inversion."""

from __future__ import annotations

import dataframely as dy

__all__ = ["Inversion", "InversionTexts"]

METHODS = ["inverter", "nearest", "shuffled", "unconditional"]


class InversionTexts(dy.Schema):
    """One row per text under attack and method: what it gave back, and how much of the text it is.

    Written by ``mia-batch invert``; a run's folder has none.
    """

    document_id = dy.String(nullable=True)
    """As in the corpus."""
    group = dy.String(nullable=True)
    """As in the corpus."""
    cluster = dy.Int64(nullable=True)
    """Texts of one number hang together, by group or by being equal, and none of them is auxiliary;
    null where there is no text."""
    text = dy.String(nullable=True)
    """The text that was embedded."""
    method = dy.Enum(METHODS)
    """Who answers: see the table ``inversion``."""
    recovered = dy.String(nullable=True)
    """What it says that the text was; null where nobody was asked."""
    true_tokens = dy.UInt32(nullable=True)
    """Tokens of the text."""
    recovered_tokens = dy.UInt32(nullable=True)
    """Tokens of what was given back."""
    shared_tokens = dy.UInt32(nullable=True)
    """Tokens that both have, each as often as the one that has it less often."""
    precision = dy.Float64(nullable=True)
    """Share of the recovered tokens that are shared; null where there is none."""
    recall = dy.Float64(nullable=True)
    """Share of the true tokens that are shared."""
    f1 = dy.Float64(nullable=True)
    """Harmonic mean of both."""
    exact = dy.Bool(nullable=True)
    """Whether the tokens are the same, in the same order."""
    reason = dy.String(nullable=True)
    """Why nobody was asked: there is no text, or it is too long."""


class Inversion(dy.Schema):
    """One figure about what embeddings give back, per row.

    ``inverter``: the trained decoder. ``nearest``: the auxiliary text whose embedding is most alike
    (cosine). ``shuffled``: the decoder, given the embedding of a text of another group.
    ``unconditional``: the decoder, given the mean auxiliary embedding.
    """

    method = dy.Enum(METHODS)
    """Who answers; see above."""
    versus = dy.Enum(METHODS, nullable=True)
    """The method that is taken off; null where the figure is no difference."""
    unit = dy.Enum(["tokens", "token_sets", "names", "numbers"])
    """What is counted: tokens, as often as both have them; different tokens; names; numbers."""
    metric = dy.Enum(["precision", "recall", "f1", "exact"])
    """Micro figures, over all texts together; ``exact``: share of texts that come back whole."""
    value = dy.Float64(nullable=True)
    """The figure, in [0, 1], or a difference of two."""
    low = dy.Float64(nullable=True)
    """Lower end of its interval."""
    high = dy.Float64(nullable=True)
    """Upper end of its interval."""
    confidence = dy.Float64(nullable=True)
    """Share of such intervals that cover the true figure."""
    method_of_interval = dy.String(nullable=True)
    """How the interval was made."""
    n_texts = dy.UInt32()
    """Texts that it rests on: those that have such a unit, in the text or in what was recovered; of
    exact matches and of recall in the text."""
    n_clusters = dy.UInt32()
    """Independent units among them."""
    n_unscored = dy.UInt32()
    """Texts under attack that nobody was asked about."""
    reason = dy.String(nullable=True)
    """Why value or limits are null."""
