"""Walks: a model is led through a document by its own words, as long as it keeps to the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.kernels import WordRule, word_spans

ROUND_WORDS = 64
"""Words that are asked for at once."""
MOST_ROUNDS = 1 << 16
"""Rounds of one walk; ``view_index`` is that of the draw times this many, and the round."""

_WINDOW_WORDS = 20
_MOST_MISSES = 5  # words of a window that are others than the document's
_LEAST_WORDS = 20  # of a stretch
_AHEAD = 10  # words of the document that may be left out at once


class Text:
    """A text with the places of its words."""

    def __init__(self, text: str, rule: WordRule) -> None:
        self.text, self.rule = text, rule
        spans = pl.select(word_spans(pl.lit(text), words=rule)).to_series().struct
        self.starts = spans.field("starts").explode(empty_as_null=False).to_numpy()
        self.ends = spans.field("ends").explode(empty_as_null=False).to_numpy()

    def words(self, first: int = 0, last: int | None = None) -> list[str]:
        """Return its words from the first up to the last."""
        places = zip(self.starts[first:last].tolist(), self.ends[first:last].tolist(), strict=True)
        return [self.text[start:end] for start, end in places]

    def head(self, n_words: int) -> str:
        """Return it up to the end of a word."""
        return self.text[: self.ends[n_words - 1]] if 0 < n_words <= len(self.ends) else ""

    def between(self, first: int, last: int) -> str:
        """Return its words from the first up to the last, with what stands before the first."""
        return self.head(min(last, len(self.ends)))[len(self.head(first)) :]


class Step(NamedTuple):
    """How far words keep to a document."""

    said: int  # words that were said up to the last that agrees
    passed: int  # words of the document up to there
    agree: NDArray[np.bool_]  # of both side by side up to there: whether they agree
    keeps: bool  # whether all that was said keeps to the document


def follow(said: Sequence[str], ahead: Sequence[str], before: NDArray[np.bool_]) -> Step:
    """Say how far words keep to what a document goes on with.

    Both are aligned by difflib's matching blocks, between which stand as many differences as the
    longer side has words. They keep to it as long as of any 20 places in a row, those ``before``
    included, at most 5 are differences.
    """
    blocks = SequenceMatcher(None, ahead, said, autojunk=False).get_matching_blocks()
    agree, ends = list(before), [(0, 0)] * len(before)
    passed = spoken = 0
    for at, start, length in blocks:
        missing = at - passed if length else 0  # what the document goes on with is not missing
        n_differ = max(missing, start - spoken)
        agree += [False] * n_differ + [True] * length
        ends += [(start, at)] * n_differ
        ends += [(start + n, at + n) for n in range(1, length + 1)]
        spoken, passed = start + length, at + length
    places = np.array(agree, bool)
    missed = np.concatenate([np.zeros(_WINDOW_WORDS, bool), ~places]).cumsum()
    in_window = missed[_WINDOW_WORDS:] - missed[:-_WINDOW_WORDS]
    lost = np.flatnonzero(in_window[len(before) :] > _MOST_MISSES)
    end = len(before) + int(lost[0]) if lost.size else len(places)
    kept = np.flatnonzero(places[len(before) : end])
    if not kept.size:
        return Step(0, 0, places[:0], not lost.size)
    last = len(before) + int(kept[-1])
    return Step(*ends[last], places[len(before) : last + 1], not lost.size)


@dataclass(frozen=True, slots=True)
class Window:
    """A target from which a walk may start."""

    target_id: str
    target_row: int
    start: int  # characters of the document before it
    prefix: str
    n_words: int

    @property
    def place(self) -> int:
        """Characters of the document before what follows the prefix."""
        return self.start + len(self.prefix)


@dataclass
class Walk:
    """A walk as far as it has come, from word ``first`` of the document on.

    ``reached`` is the first word that did not come out yet.
    """

    window: Window
    document: Text
    draw: int = 0  # 0: each word is the most likely one
    said: str = ""
    n_rounds: int = 0
    n_tokens: int = 0
    n_verbatim: int = 0
    ended: bool = False
    _tail: str = ""  # said since the last word that agrees
    _before: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        self.first = int(np.searchsorted(self.document.starts, self.window.place))
        self.reached = self.first

    def take(self, candidate: str | None, finish_reason: str | None, n_tokens: int) -> None:
        """Go on with what the model said in a round, at most as many words as were asked for.

        The last word of an answer that was cut may be a part of one.
        """
        answer = Text(candidate or "", self.document.rule)
        stops = finish_reason == "stop"
        said = answer.head(min(len(answer.ends) - (not stops), ROUND_WORDS))
        self.said += said
        self.n_rounds += 1
        self.n_tokens += n_tokens
        tail = Text(self._tail + said, self.document.rule)
        ahead = self.document.words(self.reached, self.reached + len(tail.ends) + _AHEAD)
        step = follow(tail.words(), ahead, self._before)
        self.reached += step.passed
        self.n_verbatim += int(step.agree.sum())
        self._before = np.concatenate([self._before, step.agree])[-_WINDOW_WORDS:]
        self._tail = tail.text[len(tail.head(step.said)) :]
        self.ended = stops or not (said and step.keeps) or self.n_rounds == MOST_ROUNDS

    @property
    def next_word(self) -> int:
        """The word of the document that is asked for next."""
        return self.reached + len(Text(self._tail, self.document.rule).ends)

    def prompt(self) -> dict[str, object]:
        """Ask what follows the last words, as many as the prefix has; ``text`` is true."""
        spoken = Text(self.window.prefix + self.said, self.document.rule)
        n_words = len(Text(self.window.prefix, self.document.rule).ends)
        at = self.next_word
        return {
            "target_id": self.window.target_id,
            "target_row": self.window.target_row,
            "n_words": self.window.n_words,
            "view_index": self.draw * MOST_ROUNDS + self.n_rounds,
            "context": spoken.text[spoken.starts[-n_words] :] if n_words else "",
            "text": self.document.between(at, at + ROUND_WORDS),
        }

    @property
    def n_words(self) -> int:
        """Words of the document that came out: 0 where they are too few to say so."""
        n_words = self.reached - self.first
        return n_words if n_words >= _LEAST_WORDS else 0

    @property
    def stretch(self) -> range:
        """The characters of the document that came out."""
        end = self.window.place
        if not self.n_words:
            return range(end, end)
        last = int(self.document.ends[self.reached - 1])
        return range(int(self.document.starts[self.first]), last)


@dataclass
class Walks:
    """The walks of one document, one after the other, from its strongest windows.

    Where something came out, the window before is next, and so on back to where nothing does. These
    walks are greedy; from windows of which nothing came out ``draws`` others are drawn. After
    ``budget`` tokens nothing further is asked. A walk ends where a stretch begins that came out
    before, and none starts inside of one.
    """

    document_id: str
    document: Text
    windows: Sequence[Window]  # the strongest, the strongest first
    every: Sequence[Window]  # all of them, in the document's order
    budget: int
    draws: int = 0
    made: list[Walk] = field(default_factory=list)

    def prompt(self) -> dict[str, object] | None:
        """Ask what is to be asked next; None where all is done."""
        while self.n_tokens < self.budget:
            if self.made and not self.made[-1].ended:
                if not self._is_known(self.made[-1].next_word):
                    return self.made[-1].prompt() | {"document_id": self.document_id}
                self.made[-1].ended = True
            tried = {(walk.window.target_id, walk.draw) for walk in self.made}
            drawn = ((each, draw) for draw in range(self.draws + 1) for each in self.windows)
            before = []  # the window before that of the last walk, if something came out of it
            if self.made and self.made[-1].n_words:
                place = self.made[-1].window.place
                before = [(each, 0) for each in self.every if each.place < place][-1:]
            others = (
                Walk(window, self.document, draw)
                for window, draw in (*before, *drawn)
                if (window.target_id, draw) not in tried
            )
            walk = next((walk for walk in others if not self._is_known(walk.first)), None)
            if walk is None:
                return None
            self.made.append(walk)
        return None

    @property
    def n_tokens(self) -> int:
        """Tokens that were decoded."""
        return sum(walk.n_tokens for walk in self.made)

    def _is_known(self, word: int) -> bool:
        """Whether a word has come out in an ended walk, or the document has no such word."""
        if word >= len(self.document.starts):
            return True
        place = int(self.document.starts[word])
        return any(walk.ended and place in walk.stretch for walk in self.made)
