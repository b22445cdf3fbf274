"""Tables that a report shows as they are."""

from __future__ import annotations

import dataframely as dy

__all__ = ["Curves", "Perplexities", "Rollup"]


class Rollup(dy.Schema):
    """One row per document, per group of several, and per document known to be outside.

    No documents where each is one window, no groups where each is one document. Numbers are of the
    primary attack, over the windows asked about. Further columns are what the corpus says of the
    whole: ``group``, ``member``, title, author, ISBN ...; of a group null where its documents
    differ. Columns of the corpus that hold lists, or have the name of a column here, are left out.
    """

    level = dy.Enum(["document", "group", "outside"])
    """What the row is about: an audited document or group, or for comparison, on the same scale, a
    document of the non-members, whose ``member`` is false."""
    key = dy.String()
    """``document_id`` (without one, the first ``target_id``) or ``group``."""
    attack = dy.String()
    """The primary attack."""
    n_windows = dy.UInt32()
    """Windows that there are."""
    n_asked = dy.UInt32()
    """Windows that were asked about."""
    n_scored = dy.UInt32()
    """Windows that have a score."""
    mean = dy.Float64(nullable=True)
    """Mean score, with its 95 % interval; null where fewer than two windows have a score. The
    interval is null where all scores are equal."""
    mean_low = dy.Float64(nullable=True)
    """Lower end of the mean's interval."""
    mean_high = dy.Float64(nullable=True)
    """Upper end of the mean's interval."""
    p_value = dy.Float64(nullable=True)
    """Of the verdict at this level."""
    q_value = dy.Float64(nullable=True)
    """Likewise."""
    contamination = dy.Float64(nullable=True)
    """Share of windows that the model was trained on, with its 95 % interval; null where there is
    a lower bound alone."""
    contamination_low = dy.Float64(nullable=True)
    """Lower end of its interval, which is claimed: 0 where the row's q is above that of the run, or
    null."""
    contamination_low_alone = dy.Float64(nullable=True)
    """Lower end that holds for this row had it been the only one looked at, not for all rows at
    once."""
    contamination_high = dy.Float64(nullable=True)
    """Upper end of its interval."""
    contamination_reason = dy.String(nullable=True)
    """Why the share or its interval is null."""
    n_common = dy.UInt32(nullable=True)
    """Windows whose passage came out and is common, as ``controls`` says. Neither they nor
    stretches that start with them count in shares, runs and the verdict. Null without controls."""
    share_verbatim = dy.Float64(nullable=True)
    """Share of windows of which a sample repeats at least 20 words in a row; null where no
    continuations were sampled."""
    share_near_verbatim = dy.Float64(nullable=True)
    """Share of windows of which near-verbatim blocks of a sample hold at least 20 words."""
    extraction_probability = dy.Float64(nullable=True)
    """The highest probability that the model continues the prefix of a window with the whole
    reference (its first ``extraction_tokens``); null without scores of ``extraction_v1``."""
    share_extractable = dy.Float64(nullable=True)
    """Share of the windows with such a score of which it is at least 0.001; null likewise."""
    longest_words = dy.UInt32(nullable=True)
    """Words of the longest run that a sample repeats."""
    longest_target_id = dy.String(nullable=True)
    """The window of which it is repeated."""
    longest_sample_index = dy.UInt32(nullable=True)
    """The sample that repeats it."""
    n_passages_20 = dy.UInt32(nullable=True)
    """Passages of at least 20 words that one answer repeats word for word. Those that overlap in
    the document count once; of a group they are added up. Null without such answers."""
    n_passages_50 = dy.UInt32(nullable=True)
    """Likewise of at least 50 words."""
    passages_from = dy.Enum(["samples", "walks", "samples and walks"], nullable=True)
    """Which answers were looked at: continuations of windows, walks of extraction, or both."""
    extracted_words = dy.UInt32(nullable=True)
    """Words of the longest near-verbatim stretch that extraction gave; null without extraction."""
    extracted_share = dy.Float64(nullable=True)
    """Share of the document's words in such stretches; null likewise, and of groups."""
    bmc_5 = dy.Float64(nullable=True)
    """Share of its words in spans of 5 that extraction gave, whichever document was followed."""
    bmc_5_others = dy.Float64(nullable=True)
    """The mean of the same over other documents: the level of chance."""
    verdict = dy.Enum(["comes_out", "known_better", "cannot_tell", "above_all", "nothing_found"])
    """A verbatim run or extracted stretch of 20 words; else reported at the run's q; else no
    p-value; else above every comparison text, which are too few to report it; else neither."""
    reason = dy.String(nullable=True)
    """Why there is no p-value."""


class Perplexities(dy.Schema):
    """One row per text with log-probabilities: how sure the models are of it, token by token."""

    target_id = dy.String(primary_key=True)
    """The text, as in ``targets``."""
    perplexity = dy.Float64(nullable=True)
    """Of the whole text under the target model: exp of its loss per token, at least 1."""
    entropy = dy.Float64(nullable=True)
    """Mean entropy of the target model's predictions at its tokens, in nats: how open it held what
    follows."""
    reference_perplexity = dy.Float64(nullable=True)
    """Its perplexity under the reference model, the control, by that model's own tokens."""
    reason = dy.String(nullable=True)
    """Why there is no ``perplexity``."""
    entropy_reason = dy.String(nullable=True)
    """Why there is no ``entropy``."""
    reference_reason = dy.String(nullable=True)
    """Why there is no ``reference_perplexity``."""


class Curves(dy.Schema):
    """One point of a picture per row."""

    curve = dy.Enum(["roc", "growth", "distribution", "strip"])
    """``roc``: TPR over FPR; ``growth``: AUC over the first samples, or points, of each text that
    the score rests on; ``distribution``: share of texts over the middle of a bin of scores;
    ``strip``: memory over the position in a document."""
    attack = dy.String()
    """The attack whose scores are drawn."""
    subject = dy.String(nullable=True)
    """Of growth what ``x`` counts, ``samples`` or ``points``; of a distribution the set of texts
    (``members``, ``non-members``, ``targets``); of a strip the ``document_id`` (without one, the
    first ``target_id``)."""
    x = dy.Float64()
    """Of a strip the first character of a stretch, as share of the characters up to the last
    window's end, in [0, 1)."""
    y = dy.Float64(nullable=True)
    """Of a strip the mean, over the stretch's windows, of the share of texts known to be outside
    the training data (without any: of all texts) that score lower, in [0, 1]; null without a score.
    """
    n = dy.UInt32()
    """Texts that the point rests on; 0 where a gap in a strip begins: no window was asked about
    from there to the next point."""
