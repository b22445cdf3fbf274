"""Which words of a document form its windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["windows"]


def windows(n_words: int, window_words: int | None, stride: int | None) -> Iterator[range]:
    """Cut a document into windows of equal length.

    A document of at most ``window_words`` words is one window. Of a longer one, windows start
    every ``stride`` words as long as they are full; words after the last full window are left out.

    Parameters
    ----------
    n_words
        Words of the document.
    window_words
        Words of a window; None = the whole document is the window.
    stride
        Words from start to start; None = ``window_words``.

    Yields
    ------
    range
        The words of each window; where ``stride <= window_words``, every word up to the end of
        the last window is in one.
    """
    if window_words is None or n_words <= window_words:
        yield range(n_words)
        return
    for start in range(0, n_words - window_words + 1, stride or window_words):
        yield range(start, start + window_words)
