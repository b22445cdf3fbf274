"""Split a target into prefix and reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mia_batch.targets.reasons import (
    COPY,
    EMPTY_TEXT,
    NO_REFERENCE,
    NULL_TEXT,
    TOO_SHORT,
    WORDLESS_PART,
)

if TYPE_CHECKING:
    from mia_batch.targets.words import Words

__all__ = ["NULL_SPLIT", "Split", "as_copy", "split_as_given", "split_at_word", "split_samia"]


class Split(NamedTuple):
    """A target with its prefix and reference, or with the reason why it has none."""

    target: str | None
    prefix: str | None
    reference: str | None
    n_words: int | None
    reason: str | None
    start: int | None = 0
    n_windows: int = 1


NULL_SPLIT = Split(None, None, None, None, NULL_TEXT, None)
"""What becomes of a null text."""


def as_copy(split: Split) -> Split:
    """Leave of a window its place: what it says is asked elsewhere."""
    return Split(None, None, None, None, COPY, split.start, split.n_windows)


def split_at_word(target: str, words: Words, ratio: float) -> Split:
    """Split after the first ``int(n_words * ratio)`` words.

    Prefix and reference join to the target. The prefix ends with a word; what stands between two
    words, such as white space, or punctuation where the word rule leaves it out, belongs to the
    reference.
    """
    n_words = len(words.ends)
    n_prefix = int(n_words * ratio)
    if n_words == 0:
        return Split(target, None, None, 0, EMPTY_TEXT)
    if not 0 < n_prefix < n_words:
        return Split(target, None, None, n_words, TOO_SHORT)
    cut = int(words.ends[n_prefix - 1])
    return Split(target, target[:cut], target[cut:], n_words, None)


def split_samia(target: str, n_words: int, ratio: float, text_length: int | None) -> Split:
    """Split as the authors of SaMIA do.

    The prefix is the first ``int(n_words * ratio)`` words of ``target.split()``, the reference
    the words of ``target.split(" ")`` that are not empty, less the first
    ``round(text_length * 0.5)``, whatever the ratio; both are joined by single spaces. Without
    ``text_length``, ``n_words`` takes its place.
    Source: Kaneko et al., "Sampling-based pseudo-likelihood for membership inference attacks"
    (2024), and the authors' code, which differs from the paper in these rules.
    """
    if n_words == 0:
        return Split(target, None, None, 0, EMPTY_TEXT)
    n_prefix = int(n_words * ratio)
    prefix = " ".join(target.split(maxsplit=n_prefix)[:n_prefix])
    if not prefix:
        return Split(target, None, None, n_words, TOO_SHORT)
    n_cut = round((text_length or n_words) * 0.5)
    reference = " ".join([word for word in target.split(" ") if word][n_cut:])
    if not reference:
        return Split(target, None, None, n_words, NO_REFERENCE)
    return Split(target, prefix, reference, n_words, None)


def split_as_given(prefix: str, reference: str, words: Words) -> Split:
    """Take the user's own parts as they are; ``words`` are those of ``prefix + reference``."""
    target = prefix + reference
    n_words = len(words.starts)
    cut = len(prefix)
    if n_words == 0:
        return Split(target, None, None, 0, EMPTY_TEXT)
    if words.starts[0] >= cut or words.ends[-1] <= cut:
        return Split(target, None, None, n_words, WORDLESS_PART)
    return Split(target, prefix, reference, n_words, None)
