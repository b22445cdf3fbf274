"""One schema per table: the columns that a stage may rely on, and what they mean.

Tables may carry further columns of the user's corpus (pass-through); they follow the named ones.
"""

from __future__ import annotations

import dataframely as dy
import polars as pl

__all__ = [
    "Blind",
    "Documents",
    "Features",
    "Findings",
    "LogProbs",
    "Metrics",
    "Prompts",
    "Role",
    "Samples",
    "Scores",
    "Targets",
    "Unscored",
    "VerdictLevel",
    "Verdicts",
]

Role = pl.Enum(["target", "non_member", "calibration", "canary", "shot"])
"""Why a text is in the targets table: its membership is asked, or it helps to answer."""

VerdictLevel = pl.Enum(["target", "document", "group", "collection"])
"""What a verdict is about; ``collection``: all audited texts together."""


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


class Targets(dy.Schema):
    """One row per text whose membership is asked, or that helps to answer."""

    target_id = dy.String(primary_key=True, regex="^[0-9a-f]{32}$")
    """Hash of the document's identity, the window and the text; the same on every machine."""
    role = dy.Enum(Role.categories.to_list())
    document_id = dy.String(nullable=True)
    group = dy.String(nullable=True)
    member = dy.Bool(nullable=True)
    window_index = dy.UInt32()
    """Position of the window in its document, from 0."""
    target = dy.String(nullable=True)
    """The text asked about; null where the document's text is null."""
    prefix = dy.String(nullable=True)
    """The part given to the model; null where the target cannot be split."""
    reference = dy.String(nullable=True)
    """The true continuation; null where the target cannot be split."""
    n_words = dy.UInt32(nullable=True)
    """Words of the target under the run's word rule; null where the target is null."""
    reason = dy.String(nullable=True)
    """Why the target cannot be sampled; null where it can."""


class _OfPrompt(dy.Schema):
    target_id = dy.String(primary_key=True)
    model = dy.String(primary_key=True)
    """Name of the model in the run: ``target``, ``reference``, ..."""
    view = dy.String(primary_key=True)
    """Kind of the prompt: ``continuation``, ``text``, ``lowercase``, ``neighbour``, ..."""
    view_index = dy.UInt32(primary_key=True)
    """Counts the prompts of a view from 0."""


class Prompts(_OfPrompt):
    """One row per thing that a model is asked about a target.

    ``context`` stands before ``text``, which is what is scored, or what a continuation is compared
    with. Where they can be cut from the target, they are null: with ``cut``, so many bytes from its
    start; without, they are the target's own prefix and reference.
    """

    cut = dy.UInt32(nullable=True)
    context = dy.String(nullable=True)
    text = dy.String(nullable=True)
    reason = dy.String(nullable=True)
    """Why it cannot be asked; null where it can."""


class Samples(_OfPrompt):
    """One row per sampled continuation, or per continuation that could not be had."""

    sample_index = dy.UInt32(primary_key=True)
    candidate = dy.String(nullable=True)
    """The decoded prompt and output, less the decoded prompt, without special tokens."""
    prompt = dy.String(nullable=True)
    """The decoded prompt where it differs from the target's prefix, else null."""
    n_tokens = dy.UInt32(nullable=True)
    """Tokens decoded, the end-of-text token included."""
    finish_reason = dy.String(nullable=True)
    """``stop`` (the model ended the text) or ``length`` (the budget or the context ended it)."""
    short = dy.Bool(nullable=True)
    """True where the candidate ended by length with fewer words than its reference."""
    reason = dy.String(nullable=True)


class LogProbs(_OfPrompt):
    """One row per text seen by one model: numbers of its tokens, or why there are none.

    Lists have one entry per token, null where nothing precedes it; what no attack needed is null.
    """

    n_bytes = dy.UInt32(nullable=True)
    """Bytes of the text in UTF-8; null where there is no text of this view to ask about."""
    zlib_size = dy.UInt32(nullable=True)
    """Bytes of the text after zlib at level 6; null likewise."""
    bos = dy.Bool(nullable=True)
    """Whether the tokenizer put a special token before the text by itself."""
    token_ids = dy.List(dy.UInt32(), nullable=True)
    """The text's tokens; null where only the endpoint knows them."""
    logprob = dy.List(dy.Float32(nullable=True), nullable=True)
    """Log-probability of each token given those before it, natural."""
    bounded = dy.Bool(nullable=True)
    """Whether ``logprob`` is only an upper bound: an endpoint does not list the token."""
    vocabulary_mean = dy.List(dy.Float32(nullable=True), nullable=True)
    """Mean of the log-probability over the vocabulary, at each token."""
    vocabulary_variance = dy.List(dy.Float32(nullable=True), nullable=True)
    """Variance of the log-probability over the vocabulary, centred."""
    rank = dy.List(dy.UInt32(nullable=True), nullable=True)
    """1 + number of tokens with a larger logit."""
    support_mass = dy.List(dy.Float32(nullable=True), nullable=True)
    """Log of the probability mass that the run's decoding keeps; null where it leaves the token."""
    log_inverse_frequency = dy.List(dy.Float32(), nullable=True)
    """Log of 1 / frequency of each token in the reference corpus."""
    reason = dy.String(nullable=True)
    """Why there are no numbers; null where there are."""


class Features(_OfPrompt):
    """One row per candidate-reference pair, numbers only; null where there is no such pair.

    The fields of `mia_batch.kernels.pair_features` that the run's attacks need follow the columns
    named here; ``n_tokens`` and ``short`` are those of the samples table.
    """

    sample_index = dy.UInt32(primary_key=True)
    words_candidate = dy.UInt32(nullable=True)
    words_reference = dy.UInt32(nullable=True)
    n_tokens = dy.UInt32(nullable=True)
    short = dy.Bool(nullable=True)


class Scores(dy.Schema):
    """One row per target.

    Each attack adds a Float64 column of its name: null = unscored, higher = more likely a member.
    """

    target_id = dy.String(primary_key=True)
    role = dy.Enum(Role.categories.to_list())
    document_id = dy.String(nullable=True)
    group = dy.String(nullable=True)
    member = dy.Bool(nullable=True)
    window_index = dy.UInt32()
    n_words = dy.UInt32(nullable=True)
    n_samples = dy.UInt32()
    """Samples that the scores rest on, of all views."""
    n_short = dy.UInt32()
    """Samples that ended short of the reference's length."""


class Unscored(dy.Schema):
    """One row per missing score."""

    target_id = dy.String(primary_key=True)
    attack = dy.String(primary_key=True)
    reason = dy.String()


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
    fpr = dy.Float64(nullable=True)
    """The budget of a TPR@FPR; null for other metrics."""
    value = dy.Float64(nullable=True)
    """Null where the data cannot support the figure."""
    low = dy.Float64(nullable=True)
    high = dy.Float64(nullable=True)
    confidence = dy.Float64(nullable=True)
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
    """``roles``, ``blind_baseline``, ``duplicates``, ``power`` (before scores); ``plan``,
    ``uneven_scores``, ``reported`` (of scores)."""
    subject = dy.String(nullable=True)
    """What it is about: a set of texts, a level, an attack."""
    statistic = dy.String()
    """Name of the number, such as ``roc_auc``, ``share`` or ``n_texts``."""
    value = dy.Float64(nullable=True)
    low = dy.Float64(nullable=True)
    high = dy.Float64(nullable=True)
    p_value = dy.Float64(nullable=True)
    verdict = dy.String(nullable=True)
    """What follows from it, as one word of the check's own list."""
    reason = dy.String(nullable=True)
    """Why value, limits or verdict are null; or what an example is."""


class Blind(dy.Schema):
    """One row per labelled text that classifiers which never see the model have ranked.

    Each classifier adds a Float64 column of its name, in (0, 1): the share of the texts of its fold
    that score below it. Empty without labels of both classes.
    """

    target_id = dy.String(primary_key=True)


class Verdicts(dy.Schema):
    """One answer about one target, document, group or the whole collection per row.

    A row has a p-value, or an ``estimate`` with its interval, or a reason why there is neither.
    """

    attack = dy.String()
    level = dy.Enum(VerdictLevel.categories.to_list())
    key = dy.String(nullable=True)
    """``target_id``, ``document_id`` (without one, its first ``target_id``), or ``group``; null for
    the collection. Of canaries the name of their set, at level ``group``."""
    versus = dy.String()
    """What it is compared with: ``non_members``, texts known to be outside the training data, or
    ``controls``, the canaries that stayed unpublished."""
    planned = dy.Bool()
    """Whether attack and level were named before scores were seen."""
    score = dy.Float64(nullable=True)
    """What the p-value compares: the attack's score, or the group's statistic."""
    standard_error = dy.Float64(nullable=True)
    """Monte-Carlo error of the score over its samples, where the attack takes their mean."""
    n_null = dy.UInt32(nullable=True)
    """Independent units that it is compared with: texts, or groups of texts."""
    p_value = dy.Float64(nullable=True)
    """Share of units outside the training data, this one included, that score as high."""
    q_value = dy.Float64(nullable=True)
    """Adjusted p-value: report all up to q, and at most a share q of them are false on average."""
    adjustment = dy.String(nullable=True)
    """The procedure of the q-value: ``bh`` (Benjamini-Hochberg) or ``by`` (Benjamini-Yekutieli)."""
    sensitivity_bound = dy.Float64(nullable=True)
    """Rosenbaum's gamma: bias in the odds of scoring high, without membership, that would lift the
    p-value above 0.05."""
    estimate = dy.String(nullable=True)
    """Name of the estimated number, such as ``contamination_rate``; null beside a p-value."""
    value = dy.Float64(nullable=True)
    low = dy.Float64(nullable=True)
    high = dy.Float64(nullable=True)
    confidence = dy.Float64(nullable=True)
    method = dy.String(nullable=True)
    """How p-value or interval was made."""
    assumption = dy.String(nullable=True)
    """What must hold for the estimate, as a sentence; null beside a p-value."""
    reason = dy.String(nullable=True)
    """Why p-value, q-value or value is null."""
