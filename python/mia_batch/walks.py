"""Walks: a model is led through a document by its own words, while it keeps to the text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.kernels import WordRule, word_spans

ROUND_WORDS = 64  # words that are asked for at once
MOST_ROUNDS = 1 << 16
"""Rounds of one walk; ``view_index`` is the draw times this many, plus the round."""

_WINDOW_WORDS = 20
_MOST_MISSES = 5  # words of a window that are others than the document's
_LEAST_WORDS = 20  # of a stretch
_MOST_SKIPPED = 10  # words of the document that may be left out at once


class Text:
    """A text with the places of its words."""

    def __init__(self, text: str, rule: WordRule) -> None:
        self.text = text
        self.rule = rule
        spans = pl.select(word_spans(pl.lit(text), words=rule)).to_series().struct
        self.starts = spans.field("starts").explode(empty_as_null=False).to_numpy()
        self.ends = spans.field("ends").explode(empty_as_null=False).to_numpy()

    def words(self, first: int = 0, last: int | None = None) -> list[str]:
        starts = self.starts[first:last].tolist()
        ends = self.ends[first:last].tolist()
        return [self.text[start:end] for start, end in zip(starts, ends, strict=True)]

    def head(self, n_words: int) -> str:
        if 0 < n_words <= len(self.ends):
            return self.text[: self.ends[n_words - 1]]
        return ""

    def between(self, first: int, last: int) -> str:
        """Return the text behind ``first`` words, to the end of the ``last``."""
        return self.head(min(last, len(self.ends)))[len(self.head(first)) :]


class Step(NamedTuple):
    """How far generated words keep to a document."""

    n_generated: int  # words that were generated up to the last that agrees
    n_document: int  # words of the document up to there
    agrees: NDArray[np.bool_]  # of both side by side up to there
    keeps: bool  # whether all that was generated keeps to the document


def follow(
    generated: Sequence[str],
    expected: Sequence[str],
    earlier: NDArray[np.bool_],
) -> Step:
    """Return how far generated words keep to what a document goes on with."""
    # Both are aligned by difflib's matching blocks, between which stand as many
    # differences as the longer side has words. They keep to it as long as of any 20
    # places in a row, those ``earlier`` included, at most 5 are differences.
    matcher = SequenceMatcher(None, expected, generated, autojunk=False)
    places = list(earlier)
    ends = [(0, 0)] * len(earlier)  # words of both sides up to each place
    n_generated = n_document = 0
    for block in matcher.get_matching_blocks():
        # What the document goes on with after the last block is not missing
        n_missing = block.a - n_document if block.size else 0
        n_differ = max(n_missing, block.b - n_generated)
        places += [False] * n_differ + [True] * block.size
        ends += [(block.b, block.a)] * n_differ
        ends += [(block.b + n, block.a + n) for n in range(1, block.size + 1)]
        n_generated = block.b + block.size
        n_document = block.a + block.size
    agrees = np.array(places, bool)
    n_missed = np.concatenate([np.zeros(_WINDOW_WORDS, bool), ~agrees]).cumsum()
    missed_in_window = n_missed[_WINDOW_WORDS:] - n_missed[:-_WINDOW_WORDS]
    lost = np.flatnonzero(missed_in_window[len(earlier) :] > _MOST_MISSES)
    end = len(earlier) + int(lost[0]) if lost.size else len(agrees)
    agreeing = np.flatnonzero(agrees[len(earlier) : end])
    if not agreeing.size:
        return Step(0, 0, agrees[:0], not lost.size)
    last = len(earlier) + int(agreeing[-1])
    return Step(*ends[last], agrees[len(earlier) : last + 1], not lost.size)


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
    """A walk as far as it has come, from word ``first`` of the document on."""

    window: Window
    document: Text
    draw: int = 0  # 0: each word is the most likely one
    generated: str = ""
    n_rounds: int = 0
    n_tokens: int = 0
    n_verbatim: int = 0
    ended: bool = False
    _tail: str = ""  # generated since the last word that agrees
    # Of the last words up to there: whether each agrees
    _recent: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        self.first = int(np.searchsorted(self.document.starts, self.window.place))
        self.reached = self.first

    def add_answer(
        self,
        candidate: str | None,
        finish_reason: str | None,
        n_tokens: int,
    ) -> None:
        """Go on with a round's answer, with at most as many words as were asked for."""
        # The last word of an answer that was cut may be a part of one.
        rule = self.document.rule
        answer = Text(candidate or "", rule)
        stops = finish_reason == "stop"
        n_whole = len(answer.ends) if stops else len(answer.ends) - 1
        words = answer.head(min(n_whole, ROUND_WORDS))
        self.generated += words
        self.n_rounds += 1
        self.n_tokens += n_tokens
        tail = Text(self._tail + words, rule)
        end = self.reached + len(tail.ends) + _MOST_SKIPPED
        expected = self.document.words(self.reached, end)
        step = follow(tail.words(), expected, self._recent)
        self.reached += step.n_document
        self.n_verbatim += int(step.agrees.sum())
        self._recent = np.concatenate([self._recent, step.agrees])[-_WINDOW_WORDS:]
        self._tail = tail.text[len(tail.head(step.n_generated)) :]
        goes_on = words and step.keeps and self.n_rounds < MOST_ROUNDS
        self.ended = stops or not goes_on

    @property
    def next_word(self) -> int:
        return self.reached + len(Text(self._tail, self.document.rule).ends)

    def build_prompt(self) -> dict[str, object]:
        """Ask what follows the last words, as many as in the prefix; ``text`` is true."""
        rule = self.document.rule
        n_words = len(Text(self.window.prefix, rule).ends)
        text = Text(self.window.prefix + self.generated, rule)
        next_word = self.next_word
        return {
            "target_id": self.window.target_id,
            "target_row": self.window.target_row,
            "n_words": self.window.n_words,
            "view_index": self.draw * MOST_ROUNDS + self.n_rounds,
            "context": text.text[text.starts[-n_words] :] if n_words else "",
            "text": self.document.between(next_word, next_word + ROUND_WORDS),
        }

    @property
    def n_words(self) -> int:
        """Words of the document that came out: 0 where they are too few to say so."""
        n_words = self.reached - self.first
        return n_words if n_words >= _LEAST_WORDS else 0

    @property
    def said(self) -> str:
        """What was generated up to the last word that agrees."""
        return self.generated[: len(self.generated) - len(self._tail)]

    @property
    def stretch(self) -> range:
        """The characters of the document that came out."""
        if not self.n_words:
            return range(self.window.place, self.window.place)
        start = int(self.document.starts[self.first])
        return range(start, int(self.document.ends[self.reached - 1]))


@dataclass
class Walks:
    """The walks of one document, one after the other, from its strongest windows."""

    # Where something came out, the window before is next, and so on back to where
    # nothing does. These walks are greedy; from windows of which nothing came out
    # ``draws`` others are drawn. After ``budget`` tokens nothing further is asked. A
    # walk ends where a stretch begins that came out before, and none starts inside of
    # one.

    document_id: str
    document: Text
    strongest_windows: Sequence[Window]  # the strongest first
    all_windows: Sequence[Window]  # in the document's order
    budget: int
    draws: int = 0
    started: list[Walk] = field(default_factory=list)

    def next_prompt(self) -> dict[str, object] | None:
        """Return what is to be asked next; None where all is done."""
        while self.n_tokens < self.budget:
            walk = self.started[-1] if self.started else None
            if walk is None or walk.ended:
                walk = self._find_next_walk()
                if walk is None:
                    return None
                self.started.append(walk)
            elif self._has_come_out(walk.next_word):
                walk.ended = True
            else:
                return walk.build_prompt() | {"document_id": self.document_id}
        return None

    def _find_next_walk(self) -> Walk | None:
        starts: list[tuple[Window, int]] = []
        if self.started and self.started[-1].n_words:
            place = self.started[-1].window.place
            earlier = [window for window in self.all_windows if window.place < place]
            starts += [(window, 0) for window in earlier[-1:]]
        for draw in range(self.draws + 1):
            starts += [(window, draw) for window in self.strongest_windows]
        used_starts = {(walk.window.target_id, walk.draw) for walk in self.started}
        for window, draw in starts:
            if (window.target_id, draw) not in used_starts:
                walk = Walk(window, self.document, draw)
                if not self._has_come_out(walk.first):
                    return walk
        return None

    @property
    def n_tokens(self) -> int:
        return sum(walk.n_tokens for walk in self.started)

    def _has_come_out(self, word: int) -> bool:
        """Return whether a word is in an ended walk's stretch, or behind the document."""
        if word >= len(self.document.starts):
            return True
        place = int(self.document.starts[word])
        return any(walk.ended and place in walk.stretch for walk in self.started)
