"""Tables of evidence: what models were asked, and what they answered."""

from __future__ import annotations

import dataframely as dy

__all__ = ["Features", "LogProbs", "Prompts", "Samples"]


class _OfPrompt(dy.Schema):
    target_id = dy.String(primary_key=True)
    """The target, as in ``targets``."""
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
    """Bytes of the target that stand before the text; null where there is no such cut."""
    context = dy.String(nullable=True)
    """What stands before the text; null where it follows from the target."""
    text = dy.String(nullable=True)
    """What is scored or compared with; null where it follows from the target."""
    reason = dy.String(nullable=True)
    """Why it cannot be asked; null where it can."""


class Samples(_OfPrompt):
    """One row per sampled continuation, or per continuation that could not be had."""

    sample_index = dy.UInt32(primary_key=True)
    """Counts the samples of a prompt from 0."""
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
    answer = dy.Enum(
        [
            "text",
            "thought_removed",
            "prompt_removed",
            "prompt_repeated",
            "empty",
            "thinking",
            "refusal",
            "filtered",
            "not_asked",
        ],
        nullable=True,
    )
    """What came back: ``text``; text less the model's thoughts (``thought_removed``) or the prompt
    (``prompt_removed``) before it; no text, because the answer was ``empty``, all ``thinking``, a
    ``refusal``, ``filtered`` by the provider, or began with the prompt (``prompt_repeated``) where
    others do not; ``not_asked`` where there was no room. Null where nothing came back, and of
    recordings."""
    reason = dy.String(nullable=True)
    """Why there is no candidate; null where there is."""


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
    trained = dy.Bool(nullable=True)
    """Whether the run tuned this model on the target; null where nobody knows."""
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
    """Counts the samples of a prompt from 0."""
    words_candidate = dy.UInt32(nullable=True)
    """Words of the candidate under the run's word rule."""
    words_reference = dy.UInt32(nullable=True)
    """Words of the reference, likewise."""
    n_tokens = dy.UInt32(nullable=True)
    """Tokens decoded, as in ``samples``."""
    short = dy.Bool(nullable=True)
    """Whether the candidate ended short, as in ``samples``."""
