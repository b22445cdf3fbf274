"""Texts to targets: windows, each split into prefix and reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.targets.split import NULL_SPLIT, Split, split_as_given, split_at_word, split_samia
from mia_batch.targets.words import Words, find_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mia_batch.targets.plan import TargetPlan

__all__ = ["character_windows", "cut_documents", "windows"]


def cut_documents(
    texts: Iterable[str | None],
    prefixes: Iterable[str | None],
    references: Iterable[str | None],
    plan: TargetPlan,
) -> Iterator[Iterator[Split]]:
    """Yield each document's targets, at least one; given prefix and reference are its only one."""
    rows = list(zip(texts, prefixes, references, strict=True))
    whole = [_whole(*row) for row in rows]
    rule = "whitespace" if plan.preset == "samia" else plan.words
    for row, text, words in zip(rows, whole, find_words(whole, rule), strict=True):
        match row:
            case (_, str(prefix), str(reference)):
                yield iter([split_as_given(prefix, reference, words)])
            case (None, _, _):
                yield iter([NULL_SPLIT])
            case _:
                yield _cut(text, words, plan)


def _whole(text: str | None, prefix: str | None, reference: str | None) -> str:
    if prefix is None or reference is None:
        return text or ""
    return prefix + reference


def _cut(text: str, words: Words, plan: TargetPlan) -> Iterator[Split]:
    """Yield the windows of a text, each split; a single one is the text to its ends."""
    n_words = len(words.starts)
    if plan.window_characters is None:
        cut = list(windows(n_words, plan.window_words, plan.stride))
    else:
        cut = list(character_windows(words, plan.window_characters, plan.stride))
    for window in cut:
        if len(window) == n_words:
            yield _split(text, words, plan)
        else:
            begin, end = int(words.starts[window.start]), int(words.ends[window.stop - 1])
            split = _split(text[begin:end], words.part(window), plan)
            yield split._replace(start=begin, n_windows=len(cut))


def _split(target: str, words: Words, plan: TargetPlan) -> Split:
    if plan.preset == "samia":
        return split_samia(target, len(words.starts), plan.prefix_ratio, plan.text_length)
    return split_at_word(target, words, plan.prefix_ratio)


def windows(n_words: int, window_words: int | None, stride: int | None) -> Iterator[range]:
    """Cut a document into windows of equal length.

    A document of at most ``window_words`` words (None: any) is one window. Of a longer one, windows
    start every ``stride`` words (None: ``window_words``) as long as they are full; words after
    the last full window are left out.
    """
    if window_words is None or n_words <= window_words:
        yield range(n_words)
        return
    for start in range(0, n_words - window_words + 1, stride or window_words):
        yield range(start, start + window_words)


def character_windows(words: Words, size: int, stride: int | None) -> Iterator[range]:
    """Cut a document into windows of whole words that have at most ``size`` characters.

    A document of at most that many, its outer whitespace left out, is one window. In a longer one
    room for a window begins every ``stride`` characters (None: with the first word that the window
    before does not have) as long as it is full; the window is all words inside, or the first alone
    where that is too long. None has the words of the one before.
    """
    starts, ends, n_words = words.starts, words.ends, len(words.starts)
    if not n_words or ends[-1] - starts[0] <= size:
        yield range(n_words)
        return
    begin, before = int(starts[0]), range(0)
    while begin <= min(starts[-1], ends[-1] - size):
        first = int(np.searchsorted(starts, begin))
        last = int(np.searchsorted(ends, begin + size, side="right"))
        window = range(first, max(last, first + 1))
        if window != before:
            yield window
            before = window
        if stride is None and window.stop == n_words:
            return
        begin = begin + stride if stride else int(starts[window.stop])
