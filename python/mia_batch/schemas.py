"""Every table of a run, with the meaning of its columns.

A column's meaning is its description, or stands below it where that is longer than the
line. Tables may carry further columns of the user's corpus (pass-through); they follow
the named ones.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar, Literal, TypeAlias, TypeVar, get_args

import dataframely as dy
import polars as pl

_Column = TypeVar("_Column", bound=dy.Column)


def maybe(kind: Callable[..., _Column], meaning: str) -> _Column:
    """Make a column that may be null."""
    return kind(nullable=True, description=meaning)


class Table(dy.Schema):
    """A table of a run: beside its columns stands how they have changed."""

    # One more with each change after which stored rows no longer say what new ones
    # would: a run makes the table anew, or is refused where it cannot be made anew.
    version: ClassVar[int] = 1
    # Columns that tables of earlier runs do not have; there they are null.
    younger: ClassVar[tuple[str, ...]] = ()


def combine_versions(tables: Iterable[type[Table]]) -> int:
    """Return one number of several tables, which grows with the version of each."""
    return 1 + sum(table.version - 1 for table in tables)


# Tables of texts: what is audited.


Role = pl.Enum(
    ["target", "non_member", "calibration", "canary", "shot", "copy", "yardstick"]
)
"""Why a text is in the targets table: its membership is asked, or it helps to answer.

A ``copy`` keeps the place of a window whose passage is asked about in earlier windows.
"""

CHAPTERS = pl.List(pl.Struct({"start": pl.UInt32, "heading": pl.String}))
"""Of a book: where each chapter begins, in characters of its text, in their order."""


class Documents(Table):
    """One row per text of the user's corpus, whole, in the corpus' order."""

    document_id = maybe(
        dy.String,
        "The user's identifier, unique; all null where the corpus names none.",
    )
    text = maybe(
        dy.String, "The text as it was read; null texts are kept and end up unscored."
    )
    member = maybe(
        dy.Bool, "Whether the text was in the training data; null = unknown."
    )
    group = dy.String(nullable=True)
    """Documents whose errors move together (book, author, site); null = a group of its own."""
    prefix = maybe(dy.String, "The user's own prefix; null = cut from the text.")
    reference = maybe(dy.String, "The user's own reference; null = cut from the text.")


class SetAside(Table):
    """One row per file or row that was not read, the audit going on without it."""

    setting = dy.String(
        description="The setting that names the texts, such as ``non_members``."
    )
    place = dy.String(
        description="The file, or the file and its line, item or row, from 1."
    )
    reason = dy.String(description="Why it was not read.")


class Targets(Table):
    """One row per text whose membership is asked, or that helps to answer."""

    version = 3

    target_id = dy.String(primary_key=True, regex="^[0-9a-f]{32}$")
    """Hash of the document's identity, the window and the text; the same on every machine."""
    role = dy.Enum(Role.categories.to_list())
    """Why it is here: ``target`` asks about it, the others help to answer."""
    document_id = maybe(
        dy.String, "The document that it was cut from, as in the corpus."
    )
    group = dy.String(nullable=True)
    """As in the corpus; ``undeclared book`` for non-members without one that look like parts of one
    book; ``near copies of`` the first for comparison texts that are copies of each other."""
    member = maybe(dy.Bool, "As in the corpus.")
    window_index = dy.UInt32(
        description="Position of the window in its document, from 0."
    )
    n_windows = dy.UInt32(
        description="Windows of the document, whether asked about or not."
    )
    start = maybe(
        dy.UInt32, "Characters of the document before the target; null of a null text."
    )
    target = dy.String(nullable=True)
    """The text asked about; null where the document's is, or the window repeats an earlier one."""
    prefix = maybe(
        dy.String, "The part given to the model; null where the target cannot be split."
    )
    reference = maybe(
        dy.String, "The true continuation; null where the target cannot be split."
    )
    n_words = maybe(
        dy.UInt32, "Words of the target under the run's word rule; null if it is null."
    )
    reason = maybe(dy.String, "Why the target cannot be sampled; null where it can.")


# Tables of evidence: what models were asked, and what they answered.


FILTERED = "the provider filtered"
"""How the reason of a filtered prompt or answer begins; asking again would bring the same."""

AnswerKind: TypeAlias = Literal[
    "text",
    "thought_removed",
    "prompt_removed",
    "prompt_repeated",
    "empty",
    "thinking",
    "refusal",
    "filtered",
]


class _OfPrompt(Table):
    target_id = dy.String(
        primary_key=True, description="The target, as in ``targets``."
    )
    model = dy.String(primary_key=True)
    """Name of the model in the run: ``target``, ``reference``, ..."""
    view = dy.String(primary_key=True)
    """Kind of the prompt: ``continuation``, ``text``, ``lowercase``, ``neighbour``, ..."""
    view_index = dy.UInt32(
        primary_key=True, description="Counts the prompts of a view from 0."
    )


class Prompts(_OfPrompt):
    """One row per thing that a model is asked about a target.

    ``context`` stands before ``text``, which is what is scored, or what a continuation
    is compared with. Where they can be cut from the target, they are null: with
    ``cut``, so many bytes from its start; without, they are the target's own prefix and
    reference.
    """

    cut = maybe(
        dy.UInt32,
        "Bytes of the target before the text; null where there is no such cut.",
    )
    context = maybe(
        dy.String, "What stands before the text; null where the target says it."
    )
    text = maybe(
        dy.String, "What is scored or compared with; null where the target says it."
    )
    reason = maybe(dy.String, "Why it cannot be asked; null where it can.")


class Samples(_OfPrompt):
    """One row per sampled continuation, or per continuation that could not be had."""

    younger = ("raw",)

    sample_index = dy.UInt32(
        primary_key=True, description="Counts the samples of a prompt from 0."
    )
    candidate = dy.String(nullable=True)
    """The decoded prompt and output, less the decoded prompt, without special tokens."""
    prompt = maybe(
        dy.String, "The decoded prompt, where it differs from the target's prefix."
    )
    n_tokens = maybe(dy.UInt32, "Tokens decoded, the end-of-text token included.")
    finish_reason = dy.String(nullable=True)
    """``stop`` (the model ended the text), ``length`` (four times the reference's tokens, the third
    attempt or the context ended it) or ``repeats`` (the likeliest text had begun to repeat itself:
    four times the same tokens one after the other, 32 or more in all)."""
    short = maybe(dy.Bool, "Whether it was cut with fewer words than its reference.")
    answer = dy.Enum([*get_args(AnswerKind), "not_asked"], nullable=True)
    """What came back: ``text``; text less the model's thoughts (``thought_removed``) or the prompt
    (``prompt_removed``) before it; no text, because the answer was ``empty``, all ``thinking``, a
    ``refusal``, ``filtered`` by the provider, or the prompt and nothing more
    (``prompt_repeated``); ``not_asked`` where there was no room. Null where nothing came back, and
    of recordings."""
    reason = maybe(dy.String, "Why there is no candidate; null where there is.")
    raw = maybe(
        dy.String, "The answer as it came, where the run took off what stood around it."
    )


class Responses(Table):
    """One row per answer of an endpoint, by time: when it was asked for, and what gave it.

    What older versions did not record is null.
    """

    target_id = maybe(dy.String, "The target, as in ``targets``.")
    model = maybe(dy.String, "Name of the model in the run.")
    view = maybe(dy.String, "Kind of the prompt.")
    view_index = maybe(dy.UInt32, "Counts the prompts of a view from 0.")
    sample_index = dy.UInt32(description="The first sample that the answer brought.")
    n_samples = dy.UInt32(description="Samples that it brought.")
    place = maybe(dy.UInt32, "Place of the target in the order of asking, from 0.")
    block = maybe(dy.UInt32, "Number of its block in that order.")
    sent = dy.Datetime(
        time_zone="UTC", time_unit="ms", description="When it was asked for."
    )
    system_fingerprint = maybe(dy.String, "Version that the endpoint gave.")
    served_model = maybe(dy.String, "Model that the endpoint named.")


class LogProbs(_OfPrompt):
    """One row per text seen by one model: numbers of its tokens, or why there are none.

    Lists have one entry per token, null where nothing precedes it; what no attack
    needed is null.
    """

    younger = ("bounded", "trained", "top_logprob")

    n_bytes = maybe(
        dy.UInt32, "Bytes of the text in UTF-8; null where this view has no text."
    )
    zlib_size = maybe(
        dy.UInt32, "Bytes of the text after zlib at level 6; null likewise."
    )
    bos = maybe(
        dy.Bool, "Whether the tokenizer put a special token before the text by itself."
    )
    token_ids = dy.List(dy.UInt32(), nullable=True)
    """The text's tokens; null where only the endpoint knows them."""
    logprob = dy.List(dy.Float32(nullable=True), nullable=True)
    """Log-probability of each token given those before it, natural."""
    trained = maybe(
        dy.Bool, "Whether the run tuned this model on the target; null: unknown."
    )
    bounded = dy.Bool(nullable=True)
    """Whether ``logprob`` is only an upper bound: an endpoint does not list the token."""
    vocabulary_mean = dy.List(dy.Float32(nullable=True), nullable=True)
    """Mean of the log-probability over the vocabulary, at each token; an endpoint gives a bound."""
    vocabulary_variance = dy.List(dy.Float32(nullable=True), nullable=True)
    """Variance of the log-probability over the vocabulary, centred."""
    rank = dy.List(dy.UInt32(nullable=True), nullable=True)
    """1 + number of tokens with a larger logit."""
    top_logprob = dy.List(dy.Float32(nullable=True), nullable=True)
    """Log-probability of the most likely token at each place, natural."""
    support_mass = dy.List(dy.Float32(nullable=True), nullable=True)
    """Log of the probability mass that the run's decoding keeps; null where it leaves the token."""
    log_inverse_frequency = dy.List(dy.Float32(), nullable=True)
    """Log of 1 / frequency of each token in the reference corpus."""
    reason = maybe(dy.String, "Why there are no numbers; null where there are.")


class Features(_OfPrompt):
    """One row per candidate-reference pair, numbers only; null where there is no such pair.

    The fields of `mia_batch.kernels.pair_features` that the run's attacks need follow
    the columns named here; ``n_tokens`` and ``short`` are those of the samples table.
    """

    sample_index = dy.UInt32(
        primary_key=True, description="Counts the samples of a prompt from 0."
    )
    words_candidate = maybe(
        dy.UInt32, "Words of the candidate under the run's word rule."
    )
    words_reference = maybe(dy.UInt32, "Words of the reference, likewise.")
    n_tokens = maybe(dy.UInt32, "Tokens decoded, as in ``samples``.")
    short = maybe(dy.Bool, "Whether the candidate ended short, as in ``samples``.")


# Tables of answers: scores, what they show, and what may be concluded.


class Scores(Table):
    """One row per target.

    Each attack adds a Float64 column of its name: null = unscored, higher = more likely
    a member. ``placebo_of_`` and the primary attack's name: what it gives the reference
    model.
    """

    target_id = dy.String(
        primary_key=True, description="The target, as in ``targets``."
    )
    role = dy.Enum(Role.categories.to_list(), description="As in ``targets``.")
    document_id = maybe(dy.String, "The document that the target was cut from.")
    group = maybe(dy.String, "The document's group.")
    member = maybe(dy.Bool, "Known membership; null = unknown.")
    window_index = dy.UInt32(
        description="Position of the window in its document, from 0."
    )
    n_words = maybe(dy.UInt32, "Words of the target.")
    n_samples = dy.UInt32(description="Samples that the scores rest on, of all views.")
    n_short = dy.UInt32(
        description="Samples that ended short of the reference's length."
    )


class Unscored(Table):
    """One row per missing score."""

    target_id = dy.String(
        primary_key=True, description="The target, as in ``targets``."
    )
    attack = dy.String(
        primary_key=True, description="The attack that has no score of it."
    )
    reason = dy.String(description="Why, as a short sentence.")


class Metrics(Table):
    """One fact of a labelled run per row; rates and areas lie in [0, 1], differences in [-1, 1].

    ``roc_auc``, ``tpr_at_fpr``, ``balanced_accuracy``; ``fpr_at_95_tpr``: the lowest
    FPR at which at least 95 % of the members are flagged; ``fpr_at_threshold``: the
    range of the true FPR of a budget's threshold, where few non-members make it
    unstable;
    ``roc_auc_difference``: ``attack`` less ``versus``; ``roc_auc_simultaneous``: lower
    bounds that hold all at once.
    """

    attack = dy.String()
    """Its name, or that of a classifier that never sees the model (``blind_year_v1``)."""
    versus = maybe(dy.String, "The other one, in comparisons.")
    slice = dy.String()
    """Which targets: ``all``, ``column=value``, ``about 64 words``, ``macro``, the average over
    such lengths, or ``blind quintile 1``, least like members to the blind classifier, to 5."""
    metric = dy.String(description="Name of the figure; see above.")
    fpr = maybe(dy.Float64, "The budget of a TPR@FPR; null for other metrics.")
    value = maybe(dy.Float64, "Null where the data cannot support the figure.")
    low = maybe(dy.Float64, "Lower end of the interval.")
    high = maybe(dy.Float64, "Upper end of the interval.")
    confidence = maybe(
        dy.Float64, "Share of such intervals that cover the true figure."
    )
    method = maybe(dy.String, "How the interval was made.")
    reason = maybe(
        dy.String, "Why value or its limits are null, or what makes them unstable."
    )
    n_members = dy.UInt32(description="Scored members.")
    n_nonmembers = dy.UInt32(description="Scored non-members.")
    n_unscored = dy.UInt32(description="Labelled targets without a score.")


class Findings(Table):
    """One check of the texts or of the run per row; every sentence of a report is made from rows.

    A check that is about two things has a row for each.
    """

    version = 3

    check = dy.String()
    """``roles``, ``blind_baseline``, ``plain_differences`` (of length, date, script,
    punctuation and digits, one by one), ``weights``, ``duplicates``, ``undeclared_books``,
    ``near_copies`` (comparison texts that are copies of each other), ``authors`` (do several
    texts have one author?), ``power`` (of texts); ``plan``, ``gate`` (may targets be compared
    with non-members?), ``uneven_scores``, ``reported``, ``placebo`` (on the reference model),
    ``e_values`` (what rounds decided), ``null_audits``, ``top`` (so many of the highest at
    least), ``max_t`` (all attacks together), ``combination``, ``dataset_inference``, ``codec``,
    ``yardstick``, ``absence``, ``dose`` (of scores: about how many copies were learnt);
    ``draw`` (how many documents were drawn of how many), ``known_share`` and
    ``verbatim_share`` (of all documents and of each source, from those drawn);
    ``verbatim`` (what came out word for word), ``continued`` (how many texts of highest
    scores were continued, and what the others would cost), ``prompts`` (what was given),
    ``endpoint`` (fields that it honours), ``answers`` (kinds that came back), ``dress`` (what stood
    around continuations, and what was taken off), ``held_back`` (``filtered`` or refused
    unevenly), ``order`` (whether the service changed while it was asked), ``chance``
    (whether models predict the texts better), ``quantisation`` (models whose weights are
    rounded to few bits), ``start_token`` (added or left out because texts are read better
    so), ``earlier_runs`` (of the same texts and model, in folders next to the
    run's)."""
    subject = maybe(dy.String, "What it is about: a set of texts, a level, an attack.")
    statistic = dy.String(
        description="Name of the number, such as ``roc_auc`` or ``n_texts``."
    )
    value = maybe(dy.Float64, "The number; null where it could not be computed.")
    low = maybe(dy.Float64, "Lower end of its interval.")
    high = maybe(dy.Float64, "Upper end of its interval.")
    p_value = maybe(dy.Float64, "Of the check's own test.")
    verdict = maybe(
        dy.String, "What follows from it, as one word of the check's own list."
    )
    reason = maybe(
        dy.String, "Why value, limits or verdict are null; or what an example is."
    )


class Blind(Table):
    """One row per text that classifiers which never see the model have ranked.

    Each classifier adds a Float64 column of its name, in (0, 1): the share of the texts
    of its fold that score below it. Members and non-members are ranked in columns of
    the classifiers' names, targets and the texts that they are compared with in columns
    ``targets_`` and the name. Numbers in which these two sets differ
    (``targets_blind_plain_length``) have such a column, too.
    """

    target_id = dy.String(
        primary_key=True, description="The target, as in ``targets``."
    )


class Verdicts(Table):
    """One answer about one target, document, group or the whole collection per row.

    A row has a p-value, or an ``estimate`` with its interval, or a reason why there is
    neither.
    """

    version = 8

    attack = dy.String(
        description="The attack behind the answer; ``dataset_inference_v1``: all."
    )
    level = dy.Enum(["target", "document", "group", "collection"])
    """What the answer is about; ``collection``: all audited texts together."""
    key = dy.String(nullable=True)
    """``target_id``, ``document_id`` (without one, its first ``target_id``), or ``group``; null for
    the collection. Of canaries the name of their set, at level ``group``."""
    versus = dy.String()
    """What it is compared with: ``non_members``, texts known to be outside the training data, or
    ``controls``, the canaries that stayed unpublished."""
    planned = dy.Bool(
        description="Whether attack and level were named before scores were seen."
    )
    score = dy.Float64(nullable=True)
    """What the p-value compares: the attack's score, or the group's statistic; of ``e-bh`` the
    e-value, whose p-value is 1 / e."""
    standard_error = dy.Float64(nullable=True)
    """Monte-Carlo error of the score over its samples, where the attack takes their mean."""
    n_null = maybe(
        dy.UInt32, "Independent units that it is compared with: texts or groups."
    )
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
    """Name of the estimated number, such as ``contamination_rate``; null with a p-value."""
    value = maybe(dy.Float64, "The estimated number.")
    low = maybe(dy.Float64, "Lower end of its interval, or a lower bound.")
    high = maybe(dy.Float64, "Upper end of its interval.")
    confidence = maybe(
        dy.Float64, "Share of such intervals that cover the true number."
    )
    method = maybe(dy.String, "How p-value or interval was made.")
    assumption = maybe(
        dy.String, "What must hold for the estimate, in words; null with a p-value."
    )
    reason = maybe(dy.String, "Why p-value, q-value or value is null.")


# Tables of long extraction: how far a model was followed through documents, and what
# came out.


_PLACE: dict[str, dy.Column] = {"start": dy.UInt32(), "end": dy.UInt32()}


class Extraction(Table):
    """One row per walk: from a strong window on, the model's own words lead through the document.

    Walks from which nothing came out have their row, too.
    """

    younger = ("words_before", "text", "said")

    document_id = dy.String(
        primary_key=True, description="The document that is followed."
    )
    walk = dy.UInt32(primary_key=True)
    """Counts the walks of a document from 0, that of the strongest window first."""
    target_id = dy.String(description="The window whose prefix was given.")
    draw = dy.UInt32(
        description="0: the most likely words were said; else the number of the draw."
    )
    start = dy.UInt32(
        description="Characters of the document before the stretch that came out."
    )
    end = dy.UInt32()
    """Characters of the document before what follows it: ``start`` where nothing came out."""
    n_words = dy.UInt32(description="Words of the document in the stretch.")
    n_verbatim = dy.UInt32(description="Those of them that were said.")
    n_rounds = dy.UInt32(description="How often the model was asked.")
    n_tokens = dy.UInt32(description="Tokens decoded.")
    words_before = maybe(dy.UInt32, "Words of the document before the stretch.")
    text = maybe(dy.String, "The stretch itself; null where nothing came out.")
    said = maybe(dy.String, "What the model said of it, to its last word that agrees.")


class ExtractedDocuments(Table):
    """One row per document with walks; what the walks said is compared with the whole of it."""

    younger = ("passages_20", "passages_50")

    document_id = dy.String(
        primary_key=True, description="The document that is followed."
    )
    words_document = dy.UInt32(description="Its words.")
    n_walks = dy.UInt32(description="Walks through it.")
    n_tokens = dy.UInt32(description="Tokens decoded in all of them.")
    coverage = maybe(dy.Float64, "Share in some stretch; 0 where ``longest_words`` is.")
    longest_words = dy.UInt32(
        description="Of the longest of ``passages_20``; 0 without one."
    )
    near_verbatim_recall = dy.Float64(nullable=True)
    """`mia_batch.kernels.near_verbatim_recall` of all that was said, in the document's order."""
    bmc_5 = dy.Float64(nullable=True)
    """`mia_batch.kernels.book_coverage` by spans of 5 words, less those of the prefixes."""
    bmc_5_others = dy.Float64(nullable=True)
    """The mean of the same coverage of other documents, the level of chance; null without any."""
    n_others = dy.UInt32(description="Other documents that were compared, at most 8.")
    passages_20 = dy.List(dy.Struct(_PLACE), nullable=True)
    """Passages of at least 20 words that one walk said word for word, less what it was given:
    characters of the document before each, and before what follows it."""
    passages_50 = dy.List(dy.Struct(_PLACE), nullable=True)
    """Likewise of at least 50 words."""


# Table of controls: what else a passage that came out comes out of.


class Controls(Table):
    """One row per passage that came out word for word, and per control that speaks to it.

    A passage is the longest run of at least 20 words that a continuation repeats, else
    the first 64 words of a stretch that extraction gave. Where a control marks it
    ``common``, it is no evidence: roll-up and verdicts leave it out.
    """

    target_id = dy.String(primary_key=True, description="The window that it is of.")
    control = dy.Enum(
        [
            "unrelated_prefix",
            "unrelated_prefix_16_words",
            "reference_model",
            "other_document",
        ],
        primary_key=True,
    )
    """``unrelated_prefix``: the model continued the prefix of another document;
    ``unrelated_prefix_16_words``: that, and the last 16 words of the own prefix behind it, which
    shows how few words suffice and marks nothing; ``reference_model``: the reference model
    continued the own prefix; ``other_document``: no model, all documents of other groups were
    searched."""
    n_samples = maybe(
        dy.UInt32, "Continuations that were compared; null where no model is asked."
    )
    longest_words = dy.UInt32(nullable=True)
    """Words in a row of the passage in the best of them, or in the other document."""
    common = maybe(
        dy.Bool, "Whether these are at least 20; null where it cannot be said."
    )
    other_document = dy.String(nullable=True)
    """The document whose prefix was given, or that has the passage, too; without a name, the
    ``target_id`` of the window that the prefix is of, or the document's number in its file."""
    reason = maybe(dy.String, "Why ``longest_words`` is null.")


class Known(Table):
    """One row per passage of ``controls``: where it stands in a corpus that is known.

    Texts are compared by their words, in lower case; an index by its tokens, with and
    without a space before them.
    """

    target_id = dy.String(primary_key=True, description="The window that it is of.")
    n_occurrences = dy.UInt64(
        nullable=True, description="How often the whole passage stands there."
    )
    n_documents = dy.UInt64(nullable=True)
    """Documents that hold it whole; null where an index has more than were looked at."""
    document = maybe(
        dy.String, "The first of them; of an index the lowest number looked at."
    )
    n_near_documents = maybe(
        dy.UInt64, "Documents with 20 words in a row of it; null of an index."
    )
    reason = maybe(dy.String, "Why there are no counts.")


# Tables that a report shows as they are.


class Rollup(Table):
    """One row per document, per group of several, and per document known to be outside.

    No documents where each is one window, no groups where each is one document. Numbers
    are of the primary attack, over the windows asked about. Further columns are what
    the corpus says of the whole: ``group``, ``member``, title, author, ISBN ...; of a
    group null where its documents differ. Columns of the corpus that hold lists, or
    have the name of a column here, are left out.
    """

    version = 4
    younger = ("n_passages_20", "n_passages_50", "passages_from")

    level = dy.Enum(["document", "group", "outside"])
    """What the row is about: an audited document or group, or for comparison, on the same scale, a
    document of the non-members, whose ``member`` is false."""
    key = dy.String(
        description="``document_id``, else the first ``target_id``, or ``group``."
    )
    attack = dy.String(description="The primary attack.")
    n_windows = dy.UInt32(description="Windows that there are.")
    n_asked = dy.UInt32(description="Windows that were asked about.")
    n_scored = dy.UInt32(description="Windows that have a score.")
    mean = dy.Float64(nullable=True)
    """Mean score, with its 95 % interval; null where fewer than two windows have a score. The
    interval is null where all scores are equal."""
    mean_low = maybe(dy.Float64, "Lower end of the mean's interval.")
    mean_high = maybe(dy.Float64, "Upper end of the mean's interval.")
    p_value = maybe(dy.Float64, "Of the verdict at this level.")
    q_value = maybe(dy.Float64, "Likewise.")
    contamination = dy.Float64(nullable=True)
    """Share of windows that the model was trained on, with its 95 % interval; null where there is
    a lower bound alone."""
    contamination_low = dy.Float64(nullable=True)
    """Lower end of its interval, which is claimed: 0 where the row's q is above that of the run, or
    null."""
    contamination_high = maybe(dy.Float64, "Upper end of its interval.")
    contamination_reason = maybe(dy.String, "Why the share or its interval is null.")
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
    longest_words = maybe(dy.UInt32, "Words of the longest run that a sample repeats.")
    longest_target_id = maybe(dy.String, "The window of which it is repeated.")
    longest_sample_index = maybe(dy.UInt32, "The sample that repeats it.")
    n_passages_20 = dy.UInt32(nullable=True)
    """Passages of at least 20 words that one answer repeats word for word. Those that overlap in
    the document count once; of a group they are added up. Null without such answers."""
    n_passages_50 = maybe(dy.UInt32, "Likewise of at least 50 words.")
    passages_from = dy.Enum(["samples", "walks", "samples and walks"], nullable=True)
    """Which answers were looked at: continuations of windows, walks of extraction, or both."""
    extracted_words = dy.UInt32(nullable=True)
    """Words of the longest near-verbatim stretch that extraction gave; null without extraction."""
    extracted_share = dy.Float64(nullable=True)
    """Share of the document's words in such stretches; null likewise, and of groups."""
    bmc_5 = dy.Float64(nullable=True)
    """Share of its words in spans of 5 that extraction gave, whichever document was followed."""
    bmc_5_others = maybe(
        dy.Float64, "The mean of the same over others: the level of chance."
    )
    verdict = dy.Enum(
        ["comes_out", "known_better", "cannot_tell", "above_all", "nothing_found"]
    )
    """A verbatim run or extracted stretch of 20 words; else reported at the run's q; else no
    p-value; else above every comparison text, which are too few to report it; else neither."""
    reason = maybe(dy.String, "Why there is no p-value.")


class Perplexities(Table):
    """One row per text with log-probabilities: how sure the models are of it, token by token."""

    target_id = dy.String(primary_key=True, description="The text, as in ``targets``.")
    perplexity = maybe(
        dy.Float64, "Of the text under the target model: exp of its loss per token."
    )
    entropy = dy.Float64(nullable=True)
    """Mean entropy of the target model's predictions at its tokens, in nats: how open it held what
    follows."""
    reference_perplexity = dy.Float64(nullable=True)
    """Its perplexity under the reference model, the control, by that model's own tokens."""
    reason = maybe(dy.String, "Why there is no ``perplexity``.")
    entropy_reason = maybe(dy.String, "Why there is no ``entropy``.")
    reference_reason = maybe(dy.String, "Why there is no ``reference_perplexity``.")


class Bounds(Table):
    """One row per strong passage: the probability that one sample comes near to its true text."""

    target_id = dy.String(primary_key=True, description="The text, as in ``targets``.")
    n_tokens = dy.UInt32(
        description="First tokens of the true continuation that are looked at."
    )
    distance = dy.Enum(["hamming", "levenshtein"])
    """How a sample is compared with them: place by place, or by edits."""
    within = dy.UInt32(
        description="Most tokens, or edits, in which a near sample differs."
    )
    temperature = dy.Float64(description="Of the decoding that is bounded.")
    top_k = dy.UInt32(description="Tokens that it draws from; 0: all.")
    top_p = dy.Float64(description="Probability that it draws from.")
    lower = maybe(dy.Float64, "Least probability of a near sample.")
    upper = maybe(dy.Float64, "Most probability of a near sample.")
    likely_upper = dy.Float64(nullable=True)
    """The same with confidence 97.5 %: what was left out is bounded by draws from it."""
    estimate = maybe(dy.Float64, "The probability, right on average.")
    tokens_asked = maybe(dy.UInt32, "Tokens read beyond the prompt.")
    reason = maybe(dy.String, "Why there are no bounds.")


class Curves(Table):
    """One point of a picture per row."""

    curve = dy.Enum(["roc", "growth", "distribution", "strip"])
    """``roc``: TPR over FPR; ``growth``: AUC over the first samples, or points, of each text that
    the score rests on; ``distribution``: share of texts over the middle of a bin of scores;
    ``strip``: memory over the position in a document."""
    attack = dy.String(description="The attack whose scores are drawn.")
    subject = dy.String(nullable=True)
    """Of growth what ``x`` counts, ``samples`` or ``points``; of a distribution the set of texts
    (``members``, ``non-members``, ``targets``); of a strip the ``document_id`` (without one, the
    first ``target_id``)."""
    x = dy.Float64()
    """Of a strip the first character of a stretch, as share of the characters up to the last
    window's end, in [0, 1)."""
    y = dy.Float64(nullable=True)
    """Of a strip the mean, over the stretch's windows, of the share of texts known to be outside
    the training data (of others than the document itself; without any: of all texts) that score
    lower, in [0, 1]; null without a score."""
    n = dy.UInt32()
    """Texts that the point rests on; 0 where a gap in a strip begins: no window was asked about
    from there to the next point."""


# The table that several runs of one corpus are compared in.


class Comparisons(Table):
    """One fact about a run, or about its difference to the first run, per row.

    ``roc_auc``; ``roc_auc_difference`` and ``mean_difference``: the run less the first;
    ``removed_share``: how much of the difference between the first run and that of the
    retrained model is gone; ``rank_correlation``: Spearman's, of the scores with the
    first run's; ``rank_correlation_difference``: that of the reference model less that
    of the one that learnt the texts. Written by ``mia-batch compare --out``; a run's
    folder has none.
    """

    attack = dy.String(description="The attack whose scores are compared.")
    run = dy.String(
        description="Name of the run's folder; a second one has ``(2)`` behind it."
    )
    versus = maybe(dy.String, "The run that it is compared with; null for ``roc_auc``.")
    statistic = dy.Enum(
        [
            *("roc_auc", "roc_auc_difference", "mean_difference", "removed_share"),
            *("rank_correlation", "rank_correlation_difference"),
        ]
    )
    """Name of the figure; see above."""
    level = dy.Enum(["set", "document", "group"])
    """Whether the figure is about a set of texts, one document or one group."""
    set = dy.Enum(["labelled", "members", "non_members", "unknown"])
    """Which texts by their membership; ``labelled``: members and non-members."""
    key = dy.String(nullable=True)
    """``document_id`` (without one, its first ``target_id``) or ``group``; null for sets."""
    value = dy.Float64(nullable=True)
    """The figure: an area, a difference of areas or of scores, a share that may leave [0, 1]."""
    low = maybe(dy.Float64, "Lower end of its interval.")
    high = maybe(dy.Float64, "Upper end of its interval.")
    confidence = maybe(
        dy.Float64, "Share of such intervals that cover the true figure."
    )
    method = maybe(dy.String, "How the interval was made.")
    p_value = dy.Float64(nullable=True)
    """Two-sided, of no difference; one-sided for ``rank_correlation_difference``: not above 0."""
    adjusted_p = dy.Float64(nullable=True)
    """Of sets by Holm, over all runs and sets, areas and means apart; of documents, or groups, a
    q-value by Benjamini and Hochberg over all runs and documents, or groups."""
    adjustment = dy.Enum(["holm", "bh"], nullable=True, description="Which of both.")
    n_targets = dy.UInt32(
        description="Targets that it rests on: they have a score in every run."
    )
    n_clusters = dy.UInt32()
    """Independent units among them: groups, else documents, else targets; of a document its
    windows, of a group its documents."""
    n_unscored = dy.UInt32(nullable=True)
    """Targets of the set that all runs have, but not all have scored; null for documents and
    groups."""
    reason = maybe(dy.String, "Why value, limits or p-value are null.")


# Tables of what was built to be audited: evaluation sets with their tests, paraphrases.


class BuiltTexts(Table):
    """One text of an evaluation set per row, as an audit takes it.

    Written by ``mia-batch build-set``, a file for each setting and length.
    """

    document_id = dy.String(primary_key=True)
    """The document's identifier, then setting and length: unique over all files of a set."""
    text = dy.String()
    """The text: as many words of the document as ``length`` says, as they stand there."""
    member = dy.Bool(
        description="Whether it is a member, by its date or the label given."
    )
    group = dy.String()
    """Texts whose errors move together: the group that was given, else its pair."""
    pair = dy.UInt32(nullable=True)
    """Number of the pair, one member and one non-member alike; null where nothing was matched."""
    length = dy.UInt32()
    """Words of the text; of ``concatenated`` texts, those that follow the context."""
    setting = dy.Enum(["original", "paraphrased", "concatenated"])
    """What was done to the text."""
    from_document = dy.String(description="The document that it is of.")
    from_word = dy.UInt32(description="Words of the document before it.")
    date = maybe(dy.Date, "Date of the document; null where labels were given instead.")
    source = maybe(dy.String, "Source of the document; null where none was given.")


class BuiltTests(Table):
    """How well a classifier that never sees a model tells the classes of a set apart, per row.

    Written by ``mia-batch build-set``.
    """

    length = dy.UInt32(description="Words of the texts.")
    setting = dy.Enum(["original", "paraphrased", "concatenated"])
    """What was done to the texts."""
    stage = dy.Enum(["before", "after"])
    """Before or after matching; before: the first words of every document."""
    learnt_from = dy.Enum(["the set", "held out"])
    """``the set``: cross-validated within it. ``held out``: trained on documents, drawn at
    random, that had no part in the matching."""
    classifier = dy.String(
        description="Its name; the matching uses all but ``blind_forest_v1``."
    )
    roc_auc = maybe(dy.Float64, "Its AUC; higher than 1/2: members score higher.")
    low = maybe(dy.Float64, "Lower end of its interval, confidence 0.95.")
    high = maybe(dy.Float64, "Upper end of its interval, confidence 0.95.")
    n_members = dy.UInt32(description="Members tested.")
    n_nonmembers = dy.UInt32(description="Non-members tested.")
    reason = maybe(dy.String, "Why the figures are null.")


class ThrownAway(Table):
    """One document that is not in a set, or not in one of its files, per row.

    Written by ``mia-batch build-set``.
    """

    document_id = dy.String(
        description="Its identifier, or its row in the input, counted from 1."
    )
    member = maybe(dy.Bool, "Whether it is a member; null where nobody knows.")
    length = maybe(
        dy.UInt32, "The length that it is missing from; null for all of them."
    )
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
    other_document = maybe(
        dy.String, "Of a copy: a document with most of its words; else null."
    )


class Paraphrases(Table):
    """One text per row with what a model made of it, as an audit takes it.

    Written by ``mia-batch paraphrase``.
    """

    document_id = maybe(
        dy.String, "As in the corpus; of a window, with its number after ``#``."
    )
    text = dy.String(nullable=True)
    """The text that was paraphrased; null where the corpus' is, or a window repeats another."""
    member = maybe(dy.Bool, "As in the corpus.")
    group = maybe(dy.String, "As in the corpus; of a window without one, its document.")
    paraphrases = dy.List(dy.String(), nullable=True)
    """All that differ from the text and each other, in the order drawn; null where none does."""
    paraphrases_reason = dy.String(nullable=True)
    """Why there are fewer than three; null where there are not."""


# The table of a benchmark's tests.


class BenchmarkTests(Table):
    """One row per model and test of whether it has seen a benchmark.

    Written by ``mia-batch benchmark``.
    """

    set = dy.String(description="Name of the benchmark, or of its file.")
    model = dy.String(description="The model that was asked.")
    test = dy.Enum(["rows", "options", "rewritten", "next-row"])
    """What is compared: orders of rows, of options, other numbers, or which row is next."""
    verdict = dy.Enum(["seen", "not shown", "exploratory", "none"])
    """``seen`` where ``p_adjusted`` is at most 0.01; ``none`` where there is no p-value."""
    n_units = dy.UInt32(description="Shards, rows or places that were compared.")
    n_unscored = dy.UInt32(
        description="Units without the score of some alternative, which are left out."
    )
    n_first = maybe(
        dy.UInt32, "Units in which the published one is above all alternatives."
    )
    difference = dy.Float64(nullable=True)
    """Mean over units of the published score less that of the others: nats, or answers of four."""
    smallest_p = maybe(dy.Float64, "The smallest p-value that these units allow.")
    p_value = dy.Float64(nullable=True)
    """Exact, if the published order could as well have been any of the others."""
    p_adjusted = dy.Float64(nullable=True)
    """Holm's over all tests of the table that are not exploratory."""
    exploratory = maybe(
        dy.String, "Why the p-value is no error rate; null where it is one."
    )
    order_sha256 = dy.String(description="Hash of the rows in their order.")
    rows_sha256 = dy.String(description="Hash of the rows in whatever order.")
    reason = maybe(dy.String, "Why there is no p-value; null where there is one.")


# The table of secrets.


class Secrets(Table):
    """One row per model and secret: whether it is given back, and likelier than its controls.

    Written by ``mia-batch secrets``, and at the end of a training with canaries. It does
    not hold the secrets, but where each of them stands.
    """

    model = dy.String(description="The model that was asked.")
    row = dy.UInt32(
        description="Row of the file, or document of the corpus, that has it first, from 1."
    )
    n_rows = dy.UInt32(description="How often it stands there.")
    kind = dy.Enum(["key", "email", "iban", "card", "phone", "secret"])
    """What it is: one of the identifiers that are found in texts, or another ``secret``."""
    n_characters = dy.UInt32(description="Its length.")
    n_contexts = dy.UInt32(description="Contexts of its own that were asked about.")
    verdict = dy.Enum(["memorised", "given back", "not shown", "exploratory", "none"])
    """``memorised``: ``q_value`` is at most 0.05; else ``given back``: an answer has it, and none a
    control; ``none``: there is neither a p-value nor an answer."""
    own_likeliest = dy.Bool(nullable=True)
    """Whether the likeliest answer after a context of its own has it; null: not asked."""
    other_likeliest = maybe(dy.Bool, "Likewise after contexts of other secrets.")
    none_likeliest = maybe(dy.Bool, "Likewise after a line break alone.")
    n_own_drawn = dy.UInt32(
        description="Answers that were drawn after its own contexts."
    )
    own_drawn = dy.UInt32(description="Of these, those that have it.")
    own_low = dy.Float64(nullable=True)
    """Lower end of the 95 % interval of their share (Clopper and Pearson)."""
    own_high = maybe(dy.Float64, "Its upper end.")
    other_drawn = dy.UInt32(
        description="Answers drawn after other contexts that have it."
    )
    none_drawn = dy.UInt32(description="Answers drawn after a line break that have it.")
    controls_back = dy.UInt32(
        description="Controls that an answer after its own contexts has."
    )
    own_bits = dy.Float64(nullable=True)
    """log2 of its probability after its own contexts, the mean of them; null: without a context, or
    without probabilities."""
    other_bits = maybe(dy.Float64, "Likewise after a context of another secret.")
    none_bits = maybe(dy.Float64, "Likewise after a line break alone.")
    control_bits = dy.Float64(nullable=True)
    """The median of its controls, where it is compared with them."""
    compared = dy.Enum(["own", "none"], nullable=True)
    """After which contexts it is compared with its controls."""
    score = dy.Enum(["probability", "answers"], nullable=True)
    """What is compared: probabilities, or how many answers have it."""
    n_controls = dy.UInt32(description="Controls that it is compared with.")
    n_as_high = maybe(dy.UInt32, "Of these, those that are as likely, or likelier.")
    exposure = dy.Float64(nullable=True)
    """log2(controls + 1) - log2(its rank): bits, at most log2(controls + 1)."""
    smallest_p = maybe(dy.Float64, "The smallest p-value that its controls allow.")
    p_value = dy.Float64(nullable=True)
    """Exact, if chance made the secret as it made the controls."""
    q_value = dy.Float64(nullable=True)
    """By Benjamini and Hochberg over all secrets of a model that are not exploratory."""
    exploratory = maybe(
        dy.String, "Why the p-value is no error rate; null where it is one."
    )
    reason = maybe(dy.String, "Why there is no p-value; null where there is one.")


# Tables of an embedding inversion.


METHODS = ["inverter", "nearest", "shuffled", "unconditional"]


class InversionTexts(Table):
    """One row per text under attack and method: what it gave back, and how much of the text it is.

    Written by ``mia-batch invert``; a run's folder has none.
    """

    document_id = maybe(dy.String, "As in the corpus.")
    group = maybe(dy.String, "As in the corpus.")
    cluster = dy.Int64(nullable=True)
    """Texts of one number hang together, by group or by being equal, and none of them is auxiliary;
    null where there is no text."""
    text = maybe(dy.String, "The text that was embedded.")
    method = dy.Enum(METHODS, description="Who answers: see the table ``inversion``.")
    recovered = maybe(
        dy.String, "What it says that the text was; null where nobody was asked."
    )
    true_tokens = maybe(dy.UInt32, "Tokens of the text.")
    recovered_tokens = maybe(dy.UInt32, "Tokens of what was given back.")
    shared_tokens = maybe(
        dy.UInt32, "Tokens that both have, each as often as both have it."
    )
    precision = maybe(
        dy.Float64, "Share of the recovered tokens that are shared; null of none."
    )
    recall = maybe(dy.Float64, "Share of the true tokens that are shared.")
    f1 = maybe(dy.Float64, "Harmonic mean of both.")
    exact = maybe(dy.Bool, "Whether the tokens are the same, in the same order.")
    reason = maybe(
        dy.String, "Why nobody was asked: there is no text, or it is too long."
    )


class Inversion(Table):
    """One figure about what embeddings give back, per row.

    ``inverter``: the trained decoder. ``nearest``: the auxiliary text whose embedding
    is most alike (cosine). ``shuffled``: the decoder, given the embedding of a text of
    another group. ``unconditional``: the decoder, given the mean auxiliary embedding.
    """

    method = dy.Enum(METHODS, description="Who answers; see above.")
    versus = dy.Enum(METHODS, nullable=True)
    """The method that is taken off; null where the figure is no difference."""
    unit = dy.Enum(["tokens", "token_sets", "names", "numbers", "attribute"])
    """What is counted: tokens, as often as both have them; different tokens; names; numbers; the
    attribute of a text, which a classifier tells instead of the decoder, and is ``exact`` where it
    is right; ``unconditional`` is then the most frequent one."""
    metric = dy.Enum(["precision", "recall", "f1", "exact"])
    """Micro figures, over all texts together; ``exact``: share of texts that come back whole."""
    value = maybe(dy.Float64, "The figure, in [0, 1], or a difference of two.")
    low = maybe(dy.Float64, "Lower end of its interval.")
    high = maybe(dy.Float64, "Upper end of its interval.")
    confidence = maybe(
        dy.Float64, "Share of such intervals that cover the true figure."
    )
    method_of_interval = maybe(dy.String, "How the interval was made.")
    n_texts = dy.UInt32()
    """Texts that it rests on: those that have such a unit, in the text or in what was recovered; of
    exact matches and of recall in the text."""
    n_clusters = dy.UInt32(description="Independent units among them.")
    n_unscored = dy.UInt32(
        description="Texts under attack that nobody was asked about."
    )
    reason = maybe(dy.String, "Why value or limits are null.")
