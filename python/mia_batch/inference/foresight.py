"""Words that a reader who never saw a text could foresee from what stands before them.

A reader takes a text token by token (numbers, words, marks). Rules of going on guess each token:
to copy what followed the same context before, or stood so many tokens before; to count on in one of
many columns, whose differences are equal, or whose ratio is; to change a word as one before it was
changed. A rule has a trust, an exponential average of its hits, of all places and of those after
the same token: a token can be foreseen where a rule guesses it whose trust is at least one half. So
a rule must have been right in this text before it counts, and a rule that is right by chance fades:
this is prediction with expert advice (Herbster and Warmuth 1998, Machine Learning 32, 151), with
all experts above the threshold in place of their weighted vote. A word can be foreseen where all
its tokens can.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.inference.series import CYCLES, NUMBERS, ORDERS
from mia_batch.kernels import WordRule, word_spans

STRETCH_WORDS: Final = 12  # words in a row that are cut out of a run
FORESEEN_WORDS: Final = 6  # where so many of them can be foreseen

_BEFORE = 512  # words that a reader has read before the first that is asked about
_AT_ONCE = 2048  # words that one reader is asked about, which bounds its memory
_TOKEN = re.compile(
    r"\n"
    r"|(?:0x)?[a-f]*\d[\da-f]*(?:[.,:]\d+)*"  # a number, also a hexadecimal one
    r"|[^\W\d_]+(?:[-'\u2019][^\W\d_]+)*"  # a word
    r"|\S"
)
_CLOCK = re.compile(r"(\d{1,2})[.:]([0-5]\d)")
_ROMAN = re.compile(r"m{0,3}(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_ROMAN_DIGITS = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_MOST_DIGITS = 18
_MOST_PRIME = 10**6
_MODULUS = {"clock": 24 * 60}

_EXACT = (1, 2, 3, 5)  # tokens of a context that must be the same
_BUT_NUMBERS = (2, 4, 6)  # tokens that must be the same but for numbers
_BUT_SERIES = (1, 2, 4)  # tokens that must be the same but for words of series, too
_RECENT = 4  # places of a context that are kept
_POINTER = 4  # tokens that must be the same but for numbers to be at the place they were
_LAGS = range(1, 9)
_EDIT_LAGS = (1, 2, 3)
_RATE = 0.25  # weight of the last guess in a rule's trust
_TRUSTED = 0.5
_LONG_CONTEXT = 5  # tokens from which on a context is trusted at once


def _read_series() -> Iterator[tuple[str, dict[str, int], int]]:
    """Yield kind, value of each word, and after how many it begins anew (0: never)."""
    for language, (small, large) in NUMBERS.items():
        values = {word: value for value, word in enumerate(small.split())}
        larger = [*range(20, 101, 10), 1000]
        yield language, values | dict(zip(large.split(), larger, strict=True)), 0
    for words in (*CYCLES, *ORDERS):
        names = words.split()
        values = {name: place for place, name in enumerate(names, 1)}
        yield words, values, len(names) if words in CYCLES else 0


_SERIES = {kind: values for kind, values, _ in _read_series()}
_MODULUS |= {kind: modulus for kind, _, modulus in _read_series() if modulus}


class Token(NamedTuple):
    """A token with its values by their kind: a number, a clock's minute, a place in a series."""

    text: str
    values: dict[str, int]
    but_numbers: str  # itself, but for numbers
    but_series: str  # itself, but for numbers and words of series


@lru_cache(1 << 14)
def token_of(text: str) -> Token:
    if any(map(str.isdecimal, text)):
        return Token(text, _number_values(text), "0", "0")
    values = _word_values(text) if text[0].isalpha() else {}
    return Token(text, values, text, "a" if values else text)


def _number_values(text: str) -> dict[str, int]:
    digits = re.sub("[.,:]", "", text.removeprefix("0x"))
    if not 0 < len(digits) <= _MOST_DIGITS:
        return {}
    values = {"hexadecimal": int(digits, 16)}
    if digits.isdecimal():
        values["number"] = int(digits)
    if set(digits) <= {"0", "1"} and len(digits) > 2:
        values["binary"] = int(digits, 2)
    if clock := _CLOCK.fullmatch(text):
        values["clock"] = 60 * int(clock[1]) + int(clock[2])
    return values


def _word_values(text: str) -> dict[str, int]:
    values = {}
    parts = text.split("-")
    for kind, series in _SERIES.items():
        if text in series:
            values[kind] = series[text]
        elif kind in NUMBERS and all(part in series for part in parts):
            values[kind] = sum(series[part] for part in parts)
    if len(text) == 1:
        values["letter"] = ord(text)
    if _ROMAN.fullmatch(text):
        digits = [_ROMAN_DIGITS[letter] for letter in text]
        pairs = pairwise([*digits, 0])
        values["roman"] = sum(-one if one < other else one for one, other in pairs)
    return values


@lru_cache(1 << 12)
def _next_prime(number: int) -> int:
    candidate = max(number, 1) + 1
    while any(candidate % divisor == 0 for divisor in range(2, isqrt(candidate) + 1)):
        candidate += 1
    return candidate


def continued(column: Sequence[int], kind: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield what each rule of counting guesses after a column, whose last value is first."""
    last = column[0]
    yield "the same", (last,)
    yield "one more", (last + 1,)
    yield "one less", (last - 1,)
    if kind == "number" and last < _MOST_PRIME:
        yield "next prime", (_next_prime(last),)
    if len(column) < 2:
        return
    before = column[1]
    linear = 2 * last - before
    yield "equal differences", (linear,)
    yield "nearly equal differences", (linear - 1, linear, linear + 1)
    yield "sum", (last + before,)
    yield "product", (last * before,)
    if modulus := _MODULUS.get(kind):
        yield "begins anew", (linear % modulus, linear % modulus or modulus)
    if before and last * last % before == 0:
        yield "equal ratios", (last * last // before,)
    if before and last % before == 0:
        yield "growing ratios", (last * (last // before + 1),)
    if len(column) > 2:
        yield "second differences", (3 * last - 3 * before + column[2],)
    if len(column) > 3:
        yield "third differences", (4 * last - 6 * before + 4 * column[2] - column[3],)


def edit(one: str, other: str) -> tuple[str, str]:
    """Find what changes between two words: of twenty-one and twenty-two it is (one, two)."""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[start : len(one) - end], other[start : len(other) - end]


class Reader:
    """Reads a text and says of each token whether it could be foreseen."""

    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._places: dict[tuple[object, ...], tuple[int, ...]] = {}  # of each context, last first
        self._trust: dict[tuple[object, ...], float] = defaultdict(float)
        self._values: dict[str, list[int]] = defaultdict(list)  # of each kind, in order
        self._words: list[str] = []
        self._edits: set[tuple[int, tuple[str, str]]] = set()
        self._pointer: int | None = None  # the place that comes next, if the text repeats itself

    def read(self, text: str) -> bool:
        """Take a token; whether it could be foreseen."""
        token = token_of(text)
        contexts = list(self._contexts())
        columns = {each[:2]: self._places[each] for each in contexts if each in self._places}
        if self._pointer is not None:
            columns["pointer", 0] = (self._pointer,)
        is_foreseen = self._is_copied(token, columns)
        if token.values:
            is_foreseen |= self._is_counted(token, columns)
        if text[0].isalpha():
            is_foreseen |= self._is_edited(text)
        self._remember(token, contexts)
        return is_foreseen

    def _contexts(self) -> Iterator[tuple[object, ...]]:
        recent = self._tokens[-max(*_EXACT, *_BUT_NUMBERS, *_BUT_SERIES) :]
        for field, sizes in (("text", _EXACT), ("numbers", _BUT_NUMBERS), ("series", _BUT_SERIES)):
            index = {"text": 0, "numbers": 2, "series": 3}[field]
            forms = [token[index] for token in recent]
            for size in sizes:
                if len(forms) >= size:
                    yield field, size, *forms[-size:]

    def _judge(self, rule: tuple[object, ...], *, hit: bool, trust: float = 0.0) -> bool:
        """Whether a rule that is trusted guessed the token; its trust changes."""
        is_trusted = False
        for key in (rule, (*rule, "after", self._tokens[-1].but_series if self._tokens else "")):
            before = self._trust.get(key, trust)
            is_trusted |= before >= _TRUSTED
            self._trust[key] = before + _RATE * (hit - before)
        return is_trusted and hit

    def _is_copied(self, token: Token, columns: dict[tuple[object, ...], tuple[int, ...]]) -> bool:
        is_copied = False
        for name, places in columns.items():
            is_long = name == ("text", _LONG_CONTEXT)
            hit = self._tokens[places[0]].text == token.text
            is_copied |= self._judge(("copy", *name), hit=hit, trust=_TRUSTED * is_long)
        if token.text.isalnum():
            for lag in _LAGS[1 : len(self._tokens)]:
                hit = len(self._tokens) >= lag and self._tokens[-lag].text == token.text
                is_copied |= self._judge(("lag", lag), hit=hit)
        return is_copied

    def _is_counted(self, token: Token, columns: dict[tuple[object, ...], tuple[int, ...]]) -> bool:
        """Whether it could be foreseen that a value comes, and which."""
        is_due = False
        for name, places in columns.items():
            hit = self._tokens[places[0]].but_series == token.but_series
            is_due |= self._judge(("due", *name), hit=hit)
        is_counted = False
        for kind, value in token.values.items():
            for name, column in self._columns(kind, columns):
                for rule, guesses in continued(column, kind):
                    key = ("count", rule, kind, *name)
                    is_counted |= self._judge(key, hit=value in guesses)
        return is_due and is_counted

    def _columns(
        self, kind: str, columns: dict[tuple[object, ...], tuple[int, ...]]
    ) -> Iterator[tuple[tuple[object, ...], list[int]]]:
        """Yield earlier values of a kind, the last first: after such contexts, and at lags."""
        for name, places in columns.items():
            values = [self._tokens[place].values for place in places]
            column = [each[kind] for each in values if kind in each]
            if column:
                yield name, column
        values_of_kind = self._values[kind]
        for lag in _LAGS:
            column = values_of_kind[-lag : -lag * _RECENT - 1 : -lag]
            if len(values_of_kind) >= lag:
                yield ("lag", lag), column

    def _is_edited(self, word: str) -> bool:
        is_edited = False
        for lag in _EDIT_LAGS:
            if len(self._words) >= lag:
                change = (lag, edit(self._words[-lag], word))
                is_edited |= self._judge(("edit", lag), hit=change in self._edits)
                self._edits.add(change)
        return is_edited

    def _remember(self, token: Token, contexts: Iterable[tuple[object, ...]]) -> None:
        place = len(self._tokens)
        for context in contexts:
            self._places[context] = (place, *self._places.get(context, ())[: _RECENT - 1])
        self._tokens.append(token)
        for kind, value in token.values.items():
            self._values[kind].append(value)
        if token.text[0].isalpha():
            self._words.append(token.text)
        last = (each.but_numbers for each in self._tokens[-_POINTER:])
        found = self._places.get(("numbers", _POINTER, *last))
        if found:
            self._pointer = found[0]
        elif self._pointer is not None:
            self._pointer += 1


def foreseen_words(
    text: str, starts: Sequence[int], ends: Sequence[int], first: int, n_words: int
) -> NDArray[np.bool_]:
    """Say of ``n_words`` words of a text, from word ``first`` on, which could be foreseen.

    ``starts`` and ``ends`` are the places of all its words. A reader has read the 512 words before
    the first of each 2,048.
    """
    found = np.zeros(n_words, bool)
    for begin in range(first, first + n_words, _AT_ONCE):
        reader = Reader()
        end = min(begin + _AT_ONCE, first + n_words)
        for word in range(max(begin - _BEFORE, 0), end):
            gap = text[ends[word - 1] if word else 0 : starts[word]]
            for token in _TOKEN.findall(gap.lower()):
                reader.read(token)
            tokens = _TOKEN.findall(text[starts[word] : ends[word]].lower())
            is_foreseen = [reader.read(token) for token in tokens]
            if word >= begin:
                found[word - first] = all(is_foreseen)
    return found


def cut_words(foreseen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark what stands between those that could be foreseen, wherever 6 of 12 words could."""
    is_cut = np.zeros(foreseen.size, bool)
    counts = np.concatenate([[0], foreseen.cumsum()])
    inside = counts[STRETCH_WORDS:] - counts[:-STRETCH_WORDS]
    for start in np.flatnonzero(inside >= FORESEEN_WORDS):
        places = start + np.flatnonzero(foreseen[start : start + STRETCH_WORDS])
        is_cut[places[0] : places[-1] + 1] = True
    return is_cut


class RunWords(NamedTuple):
    """Words of a run."""

    n_left: int  # those that count
    n_foreseen: int  # those that could be foreseen, of stretches that are cut or of others


def _spans(text: str, rule: WordRule) -> tuple[list[int], list[int]]:
    spans: dict[str, list[int]] = pl.select(word_spans(pl.lit(text), words=rule)).item()
    return spans["starts"], spans["ends"]


@lru_cache(1 << 14)
def words_of_run(prefix: str, reference: str, first: int, n_words: int, rule: WordRule) -> RunWords:
    """Count the words of a run of ``n_words``, from word ``first`` of the reference on."""
    before, after = (_spans(text, rule) for text in (prefix, reference))
    starts, ends = (
        one + [place + len(prefix) + 1 for place in other]
        for one, other in zip(before, after, strict=True)
    )
    place = len(before[0]) + first
    there = max(min(n_words, len(starts) - place), 0)
    foreseen = foreseen_words(f"{prefix} {reference}", starts, ends, place, there)
    return RunWords(n_words - int(cut_words(foreseen).sum()), int(foreseen.sum()))
