"""Tables of answers: scores, what they show, and what may be concluded."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from mia_batch.schemas.texts import Role

__all__ = ["Blind", "Findings", "Metrics", "Scores", "Unscored", "VerdictLevel", "Verdicts"]

VerdictLevel = pl.Enum(["target", "document", "group", "collection"])
"""What a verdict is about; ``collection``: all audited texts together."""


class Scores(dy.Schema):
    """One row per target.

    Each attack adds a Float64 column of its name: null = unscored, higher = more likely a member.
    ``placebo_of_`` and the primary attack's name: what it gives the reference model.
    """

    target_id = dy.String(primary_key=True)
    """The target, as in ``targets``."""
    role = dy.Enum(Role.categories.to_list())
    """As in ``targets``."""
    document_id = dy.String(nullable=True)
    """The document that the target was cut from."""
    group = dy.String(nullable=True)
    """The document's group."""
    member = dy.Bool(nullable=True)
    """Known membership; null = unknown."""
    window_index = dy.UInt32()
    """Position of the window in its document, from 0."""
    n_words = dy.UInt32(nullable=True)
    """Words of the target."""
    n_samples = dy.UInt32()
    """Samples that the scores rest on, of all views."""
    n_short = dy.UInt32()
    """Samples that ended short of the reference's length."""


class Unscored(dy.Schema):
    """One row per missing score."""

    target_id = dy.String(primary_key=True)
    """The target, as in ``targets``."""
    attack = dy.String(primary_key=True)
    """The attack that has no score of it."""
    reason = dy.String()
    """Why, as a short sentence."""


class Metrics(dy.Schema):
    """One fact of a labelled run per row; rates and areas lie in [0, 1], differences in [-1, 1].

    ``roc_auc``, ``tpr_at_fpr``, ``balanced_accuracy``; ``fpr_at_threshold``: the range of the true
    FPR of a budget's threshold, where few non-members make it unstable; ``roc_auc_difference``:
    ``attack`` less ``versus``; ``roc_auc_simultaneous``: lower bounds that hold all at once.
    """

    attack = dy.String()
    """Its name, or that of a classifier that never sees the model (``blind_year_v1``)."""
    versus = dy.String(nullable=True)
    """The other one, in comparisons."""
    slice = dy.String()
    """Which targets: ``all``, ``column=value``, ``about 64 words``, ``macro``, the average over
    such lengths, or ``blind quintile 1``, least like members to the blind classifier, to 5."""
    metric = dy.String()
    """Name of the figure; see above."""
    fpr = dy.Float64(nullable=True)
    """The budget of a TPR@FPR; null for other metrics."""
    value = dy.Float64(nullable=True)
    """Null where the data cannot support the figure."""
    low = dy.Float64(nullable=True)
    """Lower end of the interval."""
    high = dy.Float64(nullable=True)
    """Upper end of the interval."""
    confidence = dy.Float64(nullable=True)
    """Share of such intervals that cover the true figure."""
    method = dy.String(nullable=True)
    """How the interval was made."""
    reason = dy.String(nullable=True)
    """Why value or its limits are null, or what makes them unstable."""
    n_members = dy.UInt32()
    """Scored members."""
    n_nonmembers = dy.UInt32()
    """Scored non-members."""
    n_unscored = dy.UInt32()
    """Labelled targets without a score."""


class Findings(dy.Schema):
    """One check of the texts or of the run per row; every sentence of a report is made from rows.

    A check that is about two things has a row for each.
    """

    check = dy.String()
    """``roles``, ``blind_baseline``, ``weights``, ``duplicates``, ``undeclared_books``, ``power``
    (of texts); ``plan``, ``gate`` (may targets be compared with non-members?), ``uneven_scores``,
    ``reported``, ``placebo`` (on the reference model), ``e_values`` (what rounds decided),
    ``null_audits``, ``top`` (so many of the highest at least), ``max_t`` (all attacks together),
    ``combination``, ``dataset_inference``, ``codec``, ``yardstick``, ``absence`` (of scores);
    ``verbatim`` (what came out word for word), ``prompts`` (what was given), ``endpoint`` (fields
    that it honours), ``answers`` (kinds that came back), ``held_back`` (``filtered`` or refused
    unevenly), ``chance`` (whether models predict the texts better), ``earlier_runs`` (of the same
    texts and model, in folders beside the run's)."""
    subject = dy.String(nullable=True)
    """What it is about: a set of texts, a level, an attack."""
    statistic = dy.String()
    """Name of the number, such as ``roc_auc``, ``share`` or ``n_texts``."""
    value = dy.Float64(nullable=True)
    """The number; null where it could not be computed."""
    low = dy.Float64(nullable=True)
    """Lower end of its interval."""
    high = dy.Float64(nullable=True)
    """Upper end of its interval."""
    p_value = dy.Float64(nullable=True)
    """Of the check's own test."""
    verdict = dy.String(nullable=True)
    """What follows from it, as one word of the check's own list."""
    reason = dy.String(nullable=True)
    """Why value, limits or verdict are null; or what an example is."""


class Blind(dy.Schema):
    """One row per text that classifiers which never see the model have ranked.

    Each classifier adds a Float64 column of its name, in (0, 1): the share of the texts of its fold
    that score below it. Members and non-members are ranked in columns of the classifiers' names,
    targets and the texts that they are compared with in columns ``targets_`` and the name.
    """

    target_id = dy.String(primary_key=True)
    """The target, as in ``targets``."""


class Verdicts(dy.Schema):
    """One answer about one target, document, group or the whole collection per row.

    A row has a p-value, or an ``estimate`` with its interval, or a reason why there is neither.
    """

    attack = dy.String()
    """The attack that the answer rests on; ``dataset_inference_v1`` rests on all."""
    level = dy.Enum(VerdictLevel.categories.to_list())
    """What the answer is about."""
    key = dy.String(nullable=True)
    """``target_id``, ``document_id`` (without one, its first ``target_id``), or ``group``; null for
    the collection. Of canaries the name of their set, at level ``group``."""
    versus = dy.String()
    """What it is compared with: ``non_members``, texts known to be outside the training data, or
    ``controls``, the canaries that stayed unpublished."""
    planned = dy.Bool()
    """Whether attack and level were named before scores were seen."""
    score = dy.Float64(nullable=True)
    """What the p-value compares: the attack's score, or the group's statistic; of ``e-bh`` the
    e-value, whose p-value is 1 / e."""
    standard_error = dy.Float64(nullable=True)
    """Monte-Carlo error of the score over its samples, where the attack takes their mean."""
    n_null = dy.UInt32(nullable=True)
    """Independent units that it is compared with: texts, or groups of texts."""
    p_value = dy.Float64(nullable=True)
    """Share of units outside the training data, this one included, that score as high."""
    q_value = dy.Float64(nullable=True)
    """Adjusted p-value: report all up to q, and at most a share q of them are false on average."""
    adjustment = dy.String(nullable=True)
    """The procedure of the q-value: ``bh`` (Benjamini-Hochberg) ``by`` (Benjamini-Yekutieli) or
    ``e-bh``, which holds wherever rounds are stopped."""
    sensitivity_bound = dy.Float64(nullable=True)
    """Rosenbaum's gamma: bias in the odds of scoring high, without membership, that would lift the
    p-value above 0.05."""
    estimate = dy.String(nullable=True)
    """Name of the estimated number, such as ``contamination_rate``; null beside a p-value."""
    value = dy.Float64(nullable=True)
    """The estimated number."""
    low = dy.Float64(nullable=True)
    """Lower end of its interval, or a lower bound."""
    high = dy.Float64(nullable=True)
    """Upper end of its interval."""
    confidence = dy.Float64(nullable=True)
    """Share of such intervals that cover the true number."""
    method = dy.String(nullable=True)
    """How p-value or interval was made."""
    assumption = dy.String(nullable=True)
    """What must hold for the estimate, as a sentence; null beside a p-value."""
    reason = dy.String(nullable=True)
    """Why p-value, q-value or value is null."""
