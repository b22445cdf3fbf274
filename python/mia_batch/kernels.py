"""The compiled kernels as Polars expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import index
from typing import Final, Literal, TypeAlias, get_args

import dataframely as dy
import polars as pl

from mia_batch import _native
from mia_batch.errors import MiaBatchError, SchemaMismatchError, SettingsError
from mia_batch.schemas import Table

__all__ = [
    "FEATURES",
    "GROUPS",
    "WORD_RULES",
    "Group",
    "WordRule",
    "apply_kernel",
    "count_words",
    "fields",
    "foreseen_words",
    "pair_features",
    "shared_runs",
    "word_spans",
    "zlib_size",
]


# What the kernels are asked for: names of word rules and of groups, and checks of
# arguments.

WordRule: TypeAlias = Literal[
    "whitespace", "space", "rouge", "unicode", "script", "folded"
]
"""How a text is cut into words; another name is a ``SettingsError``.

``whitespace`` cuts at white space, as ``text.split()`` does; ``space`` at U+0020 only,
as ``text.split(" ")`` does, less its empty strings (newlines and tabs stay inside
words). ``rouge`` takes the runs of ASCII letters and digits of the lower-cased text, as
the rouge-score package does without stemming: text of other scripts has no words.
``unicode`` takes the segments of UAX #29 that hold a letter or a number, for text
without spaces: a word in most scripts, one character in Chinese, hiragana and Thai.
Where a colon or its like follows a letter and a joiner and a pictograph follow it, the
annex ends the word before the colon; here they all are one. ``script`` is
``whitespace`` where a script has spaces between words; stretches of one that has none
(Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan ...) are cut as ``unicode`` does,
and punctuation next to them is no word. ``folded`` cuts as ``script`` does, and words
that differ in typography alone are the same: both are compared in Unicode's form NFC,
with straight quotes, one ``-`` for any dashes in a row, ``...`` for an ellipsis, the
letters of a ligature and s for the long s. Counts of characters are of the texts as
they stand."""

WORD_RULES: Final[tuple[WordRule, ...]] = get_args(WordRule)
"""Every word rule."""

Group: TypeAlias = Literal[
    "unigrams",
    "ngrams",
    "zlib",
    "lcs",
    "blocks",
    "coverage",
    "distinct",
    "characters",
    "leading",
    "matched",
]
"""Fields of ``pair_features`` that are computed only on request.

``unigrams``
    ``overlap_1``: words that both texts have, each at most as often as it occurs on
    both sides.
``ngrams``
    ``overlap_2`` to ``overlap_5``: n-grams of words likewise.
``zlib``
    ``zlib_candidate``: size of the candidate's words, joined by single spaces, as
    ``zlib_size`` measures it.
``lcs``
    ``lcs_words``: length of the longest common subsequence of words.
``blocks``
    ``longest_block_words``: length of the longest run of words that both texts have,
    and ``longest_block_start`` the word of the reference, counted from 0, where it
    first starts (of several such runs, the one that starts first); null where no word
    is shared. ``longest_block_chars`` and ``longest_block_chars_start`` say the same of
    Unicode characters of the raw texts, white space included. ``near_verbatim_words``:
    words of the reference inside common blocks of at least ``near_verbatim_min_words``
    words: the longest block is taken first, then the longest before it and behind it on
    both sides, and so on, those of equal length from the reference's start, then the
    candidate's. Each core needs some 200 bytes of memory for a character of its longest
    reference.
``coverage``
    ``covered_2`` to ``covered_12``: words of the candidate inside some span of at least
    that many words that occurs in the reference, each length for itself;
    ``covered_reference_2`` to ``covered_reference_12``: words of the reference inside
    such a span of the candidate. Spans start and end between words.
``distinct``
    ``distinct_candidate`` and ``distinct_reference``: different words.
``characters``
    ``characters_candidate`` and ``characters_reference``: Unicode characters of the raw
    texts, white space included; ``characters_overlap_3`` and ``characters_overlap_5``:
    n-grams of them as in ``ngrams``, for text without spaces.
``leading``
    ``leading_words`` and ``leading_characters`` (as in ``characters``): how many stand
    before the first at which the two texts differ.
``matched``
    Fields that end in ``_matched`` say the same of the candidate cut to the reference's
    number of words: ``words_candidate_matched`` and one for each field of the other
    groups, but for those that count the reference alone. A cut candidate ends with the
    last word kept."""

GROUPS: Final[tuple[Group, ...]] = get_args(Group)
"""Every group, in the order of its fields."""

_SPANS: Final = pl.Struct({"starts": pl.List(pl.UInt32), "ends": pl.List(pl.UInt32)})
_FORESEEN: Final = pl.Struct(
    {"foreseen": pl.List(pl.UInt32), "cut": pl.List(pl.UInt32)}
)
_DEFAULT_GROUPS: Final[tuple[Group, ...]] = ("unigrams", "ngrams", "zlib", "matched")
_MAX_COUNT: Final = 2**32 - 1

# The compiled kernels as Polars expressions: text in, numbers out. Only this file names
# the compiled library.
#
# Every expression is elementwise: it runs in eager, lazy and streaming queries, over
# all cores and without the GIL. A literal is repeated for every row. Null gives null. A
# column that is not text is a ``SchemaMismatchError``, and a text of more than 1 GiB or
# with bytes that are not UTF-8 a ``MiaBatchError``, when the query runs. An unknown
# word rule or group and a count that is no whole number, at least 1, are a
# ``SettingsError`` at once.


def apply_kernel(
    kernel: Callable[..., _native.ArrowArray], *columns: pl.Series
) -> pl.Series:
    """Call the compiled library; its errors become ours.

    Nulls of no type are passed as text, because Arrow libraries disagree on their
    layout.
    """
    typed_columns = (
        column.cast(pl.String) if column.dtype == pl.Null else column
        for column in columns
    )
    try:
        return pl.Series(kernel(*typed_columns))
    except TypeError as error:
        raise SchemaMismatchError(str(error)) from error
    except ValueError as error:
        raise MiaBatchError(str(error)) from error


def _check(words: str = "whitespace", **counts: int) -> None:
    if words not in WORD_RULES:
        raise SettingsError(
            f"unknown word rule {words!r}; use one of {', '.join(WORD_RULES)}"
        )
    for name, count in counts.items():
        try:
            is_allowed = 1 <= index(count) <= _MAX_COUNT
        except TypeError:
            is_allowed = False
        if not is_allowed:
            raise SettingsError(
                f"{name} is {count!r}; use a whole number of 1 to {_MAX_COUNT}"
            )


def _check_groups(groups: Iterable[Group]) -> list[Group]:
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise SettingsError(f"groups is {groups!r}; use a list of names")
    names = list(groups)
    for name in names:
        if name not in GROUPS:
            raise SettingsError(
                f"unknown group {name!r}; use some of {', '.join(GROUPS)}"
            )
    return names


def _column(name: str, column: object) -> pl.Expr:
    """Build an expression from a user's expression or name of a column."""
    if isinstance(column, str):
        return pl.col(column)
    if isinstance(column, pl.Expr):
        return column
    raise SchemaMismatchError(
        f"{name} is of type {type(column).__name__}; use an expression or the name of a"
        " column"
    )


def _check_series(**columns: object) -> None:
    for name, column in columns.items():
        if not isinstance(column, pl.Series):
            raise SchemaMismatchError(
                f"{name} is of type {type(column).__name__}; use a series of strings"
            )


def _map_text(
    text: pl.Expr | str,
    kernel: Callable[..., _native.ArrowArray],
    dtype: pl.DataType,
) -> pl.Expr:
    return _column("text", text).map_batches(
        lambda texts: apply_kernel(kernel, texts),
        return_dtype=dtype,
        is_elementwise=True,
    )


def _map_pairs(
    pair: Mapping[str, pl.Expr | str],
    kernel: Callable[..., _native.ArrowArray],
    dtype: pl.DataType,
) -> pl.Expr:
    columns = pl.struct(
        _column(name, column).alias(name) for name, column in pair.items()
    )

    def call(pairs: pl.Series) -> pl.Series:
        return apply_kernel(kernel, *pairs.struct.unnest())

    return columns.map_batches(call, return_dtype=dtype, is_elementwise=True)


def fields(groups: Iterable[Group] = _DEFAULT_GROUPS) -> pl.Struct:
    """Return the data type of ``pair_features`` for groups in any order.

    Its fields are UInt32.

    >>> [field.name for field in fields(["lcs"]).fields]
    ['words_candidate', 'words_reference', 'lcs_words']
    """
    names = _native.pair_fields(_check_groups(groups))
    return pl.Struct(dict.fromkeys(names, pl.UInt32))


FEATURES: Final = fields()
"""Data type of ``pair_features`` with ``unigrams``, ``ngrams``, ``zlib`` and ``matched``."""


def pair_features(
    candidate: pl.Expr | str,
    reference: pl.Expr | str,
    *,
    words: WordRule = "whitespace",
    groups: Iterable[Group] = _DEFAULT_GROUPS,
    near_verbatim_min_words: int = 8,
) -> pl.Expr:
    """Compare each candidate with its reference, by numbers from one reading of both.

    ``words_candidate`` and ``words_reference`` count words. The other fields come in
    groups, in the order of ``fields(groups)``; ``Group`` says what they count.

    Parameters
    ----------
    candidate
        String column: the sampled continuation.
    reference
        String column: the true continuation, aligned row by row. Rows that share one
        should stand together: it is then read once.
    words
        How texts are cut into words.
    groups
        What to compute; what is left out costs nothing.
    near_verbatim_min_words
        Words of the shortest block that ``near_verbatim_words`` counts.

    Returns
    -------
    Expr
        Struct column of data type ``fields(groups)``, named ``features``: UInt32, at
        least 0; null, fields included, where either text is null.

    References ---------- Clipped overlap: ROUGE-N, Lin (2004), section 2; SaMIA, Kaneko
    et al. (2024), equation 5. Size after compression: the same, equation 7. Longest
    common subsequence: ROUGE-L, Lin (2004), section 3.1. Coverage: Hallinan et al.
    (2025), arXiv:2508.09603, whose code matches detokenised text and finds spans of one
    length only. Near-verbatim blocks: the matching of Ratcliff and Metzener (1988), as
    in Python's ``difflib``; blocks are not joined, as `near_verbatim_recall` joins
    them. Character n-grams: as chrF, Popović (2015), counts them, but with white space.

    Examples
    --------
    >>> pairs = pl.DataFrame({"candidate": ["a b c d"], "reference": ["b c a"]})
    >>> features = pairs.select(pair_features("candidate", "reference")).unnest(
    ...     "features"
    ... )
    >>> features.select("overlap_1", "overlap_2", "overlap_1_matched").row(0)
    (3, 1, 3)
    """
    _check(words, near_verbatim_min_words=near_verbatim_min_words)
    group_names = _check_groups(groups)
    kernel = partial(
        _native.pair_features,
        words=words,
        groups=group_names,
        near_verbatim_min_words=near_verbatim_min_words,
    )
    pair = {"candidate": candidate, "reference": reference}
    return _map_pairs(pair, kernel, fields(group_names)).alias("features")


def zlib_size(text: pl.Expr | str) -> pl.Expr:
    """Count the bytes of the text after zlib at level 6: UInt32, at least 8.

    Header and checksum are included. It equals ``len(zlib.compress(text.encode()))``
    where Python runs on classic zlib (1.2.8 to 1.3.1 agree), and does not depend on
    Python's own. The stream: RFC 1950 and RFC 1951; what of it is chosen: zlib 1.3.1,
    deflate.c and trees.c. SaMIA multiplies by this size: Kaneko et al. (2024), equation
    7.
    """
    return _map_text(text, _native.zlib_size, pl.UInt32())


def count_words(text: pl.Expr | str, *, words: WordRule = "whitespace") -> pl.Expr:
    """Count the words of the text: UInt32, 0 where it has nothing but separators."""
    _check(words)
    kernel = partial(_native.count_words, words=words)
    return _map_text(text, kernel, pl.UInt32())


def shared_runs(
    texts: pl.Series,
    others: pl.Series,
    *,
    run_words: int,
    words: WordRule = "whitespace",
) -> pl.DataFrame:
    """Count runs of words of each text that occur in any of the others.

    Runs of ``run_words`` words are compared by hashes of 64 bits; only the rule
    ``rouge`` ignores case. Memory: 30 to 50 bytes per word of the others. Runs of 8 to
    13 words that training and test data share: Brown et al. (2020), arXiv:2005.14165,
    appendix C.

    One row per text, UInt32, null where the text is null. ``runs`` counts the places
    where a run starts: 0 where the text has fewer words. ``shared`` counts those whose
    run some other text has, too. ``other`` is the row of the first of ``others`` that
    has the first shared run; null where none is shared.

    >>> texts, others = pl.Series(["a b c d"]), pl.Series(["x", "b c d"])
    >>> shared_runs(texts, others, run_words=2).row(0)
    (3, 2, 1)
    """
    _check(words, run_words=run_words)
    _check_series(texts=texts, others=others)
    kernel = partial(_native.shared_runs, words=words, run_words=run_words)
    return apply_kernel(kernel, texts, others).struct.unnest()


def word_spans(text: pl.Expr | str, *, words: WordRule = "whitespace") -> pl.Expr:
    """Find start and end of each word of the text: a struct of two lists of UInt32.

    ``starts`` are the characters before a word's first, ``ends`` those before what
    follows its last, so that ``text[start:end]`` is the word as it stands in the text.

    >>> pl.select(word_spans(pl.lit("“né”, 我们"), words="unicode")).item()
    {'starts': [1, 6, 7], 'ends': [3, 7, 8]}
    """
    _check(words)
    kernel = partial(_native.word_spans, words=words)
    return _map_text(text, kernel, _SPANS)


def foreseen_words(
    before: pl.Expr | str,
    text: pl.Expr | str,
    *,
    words: WordRule = "whitespace",
) -> pl.Expr:
    """Find the words of the text that a reader of what stands before could foresee.

    A reader takes the text token by token (numbers, words, marks), case ignored. Rules
    guess each token: what followed the same tokens before; what stood some tokens
    before; the next value in a column of numbers, dates, letters or names of a series
    (the same, one more, equal differences or ratios, sums, primes, ...); a word changed
    as one before it was changed. The trust in a rule is an exponential average of its
    hits, with weight 1/4 for the last, over all tokens and over those after the same
    token. A token is foreseen if a rule guesses it whose trust was at least 1/2, and a
    word if all its tokens are: a rule must have been right in this text before it
    counts.

    Parameters
    ----------
    before
        String column: what stands before the text, of which the last 512 words are
        read.
    text
        String column, aligned row by row.
    words
        How texts are cut into words.

    Returns
    -------
    Expr
        Struct of two lists of UInt32, the numbers of words of the text from 0, in
        order; null where either text is null. ``foreseen`` are words that could be
        foreseen. ``cut`` are all from the first to the last of these in any 12 words in
        a row of which 6 could be foreseen.

    References ---------- Prediction with expert advice, Herbster and Warmuth (1998),
    Machine Learning 32, 151: here every expert above the threshold counts, in place of
    a weighted vote.

    Examples
    --------
    >>> words = foreseen_words(pl.lit("1 2 3 4 5 6"), pl.lit("7 8 nine"))
    >>> pl.select(words).item()
    {'foreseen': [0, 1], 'cut': []}
    """
    _check(words)
    kernel = partial(_native.foreseen_words, words=words)
    pair = {"before": before, "text": text}
    return _map_pairs(pair, kernel, _FORESEEN).alias("foreseen")


# How complex a series of numbers is: Lempel-Ziv complexity and approximate entropy.


def lempel_ziv_complexity(logprobs: pl.Expr | str, *, bins: int) -> pl.Expr:
    """Divide the words of the parse of Lempel and Ziv by the values: in (0, 1].

    Null where a value is not finite. The distance from the lowest value to 0 is cut
    into 99 equal parts: a value's level is 0 where it is the lowest, else the number of
    the part that it lies in, counted from 1, or at whose upper end. Then 0 to the
    highest level is cut into ``bins`` equal parts: a value's symbol is that of the part
    in which, or at whose upper end, its level is. From the left, each word is the
    shortest run of symbols that was no word before; one that the end of the series cuts
    short does not count. Numbers above 0 count as 0, and nulls in lists are left out.

    Parse: Ziv and Lempel (1978). Levels, symbols and words over values: the code of
    Chang et al. (2024), arXiv:2409.13745, which takes the first 200 log-probabilities
    and 3, 4 and 5 bins.

    >>> series = pl.lit([0.0, -9.0, -9.0, 0.0, 0.0, 0.0], pl.List(pl.Float64))
    >>> pl.select(lempel_ziv_complexity(series, bins=2)).item()  # 1, 0, 01 and 11
    0.6666666666666666
    """
    _check(bins=bins)
    kernel = partial(_native.lempel_ziv_complexity, bins=bins)
    return _map_lists(logprobs, kernel)


def approximate_entropy(
    values: pl.Expr | str,
    *,
    m: int,
    r: float,
) -> pl.Expr:
    """Compute how often pieces of a series that were alike go on differently, in nats.

    ``|phi(m) - phi(m + 1)|``: ``phi(m)`` is the mean, over all runs of ``m`` values, of
    the log of the share of such runs that are like it, itself among them. Runs are
    alike where no two of their values differ by more than ``r`` times the (population)
    standard deviation of all values. Null without ``m + 2`` values, or where one is not
    finite. Time grows with the square of the length.

    Pincus (1991), "Approximate entropy as a measure of system complexity", whose
    difference can be below 0 for a short series; Chang et al. (2024), arXiv:2409.13745,
    take it without its sign, with m = 8 and r = 0.8. Their code gives 0 for a series
    too short.

    >>> series = pl.lit([0.0, 1.0] * 8, pl.List(pl.Float64))
    >>> pl.select(approximate_entropy(series, m=2, r=0.5)).item() < 0.01
    True
    """
    _check(m=m)
    if not 0 <= r < inf:
        raise SettingsError(f"r is {r!r}; use a finite number, 0 or more")
    kernel = partial(_native.approximate_entropy, m=m, r=r)
    return _map_lists(values, kernel)


def _map_lists(
    values: pl.Expr | str, kernel: Callable[..., _native.ArrowArray]
) -> pl.Expr:
    def call(column: pl.Series) -> pl.Series:
        dtype = column.dtype
        is_list = isinstance(dtype, pl.List)
        item_type = dtype.inner if isinstance(dtype, pl.List) else dtype
        is_numbers = is_list and item_type.is_numeric()
        if item_type != pl.Null and not is_numbers:
            raise SchemaMismatchError(
                f"values must be a column of lists of numbers, not {dtype}; cast it"
            )
        return apply_kernel(kernel, column.cast(pl.List(pl.Float64)))

    column = _column("values", values)
    return column.map_batches(call, return_dtype=pl.Float64(), is_elementwise=True)


# How much of a book comes out of a model: near-verbatim recall and coverage.

PASSAGES: Final = pl.List(
    pl.Struct(dict.fromkeys(("start", "end", "words"), pl.UInt32))
)
"""Passages of a book in their order: characters of the book before ``start`` and ``end``, so that
``book[start:end]`` is the passage, and its ``words`` that came out."""

_COUNTS = dict.fromkeys(("words_book", "words_generation"), pl.UInt32)
_RECALL: Final = pl.Struct({**_COUNTS, "passages": PASSAGES})


def near_verbatim_recall(
    generation: pl.Expr | str,
    book: pl.Expr | str,
    *,
    words: WordRule = "whitespace",
) -> pl.Expr:
    """Measure what a long generation repeats near verbatim, in the book's order.

    The matching blocks of ``difflib.SequenceMatcher(None, book, generation,
    autojunk=False)`` are joined where at most 2 words stand between them on either side
    and these differ in number by at most 1; what has at least 20 words is kept. A
    second pass joins over 10 words and differences of 3 and keeps what has at least
    100. Words between blocks never count.

    A struct, null where either side is null. ``recall``: share of the book's words that
    are verbatim and inside a passage that is kept, null where the book has no words;
    ``verbatim``: these words; ``missing``: the other words of the book; ``additional``:
    the other words of the generation; ``passages``: as `PASSAGES`, of verbatim words.

    Blocks are found by suffix automata: a second or two for 100,000 words against
    100,000, and at most with their power 1.5. Each core needs some 2 kB of memory for a
    word of its longest book.

    Ahmed, Cooper, Koyejo and Liang (2026), arXiv:2601.02671, whose words are those of
    ``whitespace``. The difference in number is taken without its sign; a published
    replication takes it with it and so joins more.

    >>> book = " ".join(f"w{i}" for i in range(200))
    >>> copy = book.replace("w50 ", "x ")
    >>> figures = pl.select(near_verbatim_recall(pl.lit(copy), pl.lit(book))).item()
    >>> figures["recall"], figures["missing"], figures["additional"]
    (0.995, 1, 1)
    """
    _check(words)
    kernel = partial(_native.near_verbatim_passages, words=words)
    pair = {"generation": generation, "book": book}
    counts = _map_pairs(pair, kernel, _RECALL)
    n_words = pl.field("words_book")
    n_verbatim = pl.field("verbatim")
    words_of_passages = pl.field("passages").list.eval(
        pl.element().struct.field("words")
    )
    with_verbatim = counts.struct.with_fields(
        verbatim=words_of_passages.list.sum().cast(pl.UInt32)
    )
    with_shares = with_verbatim.struct.with_fields(
        recall=pl.when(n_words > 0).then(n_verbatim / n_words),
        missing=n_words - n_verbatim,
        additional=pl.field("words_generation") - n_verbatim,
    )
    names = ("recall", "verbatim", "missing", "additional", "passages")
    figures = pl.struct(with_shares.struct.field(name) for name in names)
    has_both = with_shares.struct.field("words_book").is_not_null()
    return pl.when(has_both).then(figures).alias("near_verbatim")


def book_coverage(
    book: str,
    generations: pl.Series,
    *,
    instructions: pl.Series | None = None,
    words: WordRule = "whitespace",
    k: int = 5,
    m: int = 5,
) -> pl.DataFrame:
    """Measure what of a book comes out in any of many generations (bmc@k).

    A span is a run of words that the book and a generation share and that could not be
    longer on either side. Runs of ``m`` words that stand in the generation's own
    instruction are cut out of its spans. A word of the book is covered if it lies in a
    span, or a piece of one that is left, of at least ``k`` words. **Some coverage comes
    by chance**: compare with that of books that the model cannot know.

    One row. ``coverage``: share of the book's words that are covered, null where it has
    none. ``longest_block_words``: words of the longest run of covered words, which
    several generations may have put together. ``longest_span_words``: words of the
    longest span of one generation, with what stands in the instruction; 0 where none
    has ``k``. ``blocks``: the runs of covered words, as `PASSAGES`. ``long_spans``: the
    spans of more than 20 words, with what stands in the instruction: the longest first,
    then each that overlaps none before it, as `PASSAGES`.

    Liu et al. (2026), arXiv:2603.20957, algorithm 1 and their code, which have k = m =
    5. Their words are those of NLTK's wordpunct in lower case that hold a letter or
    digit: ``rouge`` comes near. They look for longest and long spans in the excerpt
    that was asked about, we in the whole book; and of long spans that start at one word
    they look at all, we at the longest.

    >>> generations = pl.Series(["so we saw a b c", "b c d e"])
    >>> figures = book_coverage("a b c d e f", generations, k=3)
    >>> figures.select("coverage", "longest_block_words", "longest_span_words").row(0)
    (0.8333333333333334, 5, 4)
    """
    _check(words, k=k, m=m)
    if instructions is None:
        instructions = pl.repeat(None, generations.len(), dtype=pl.String, eager=True)
    _check_series(generations=generations, instructions=instructions)
    if generations.len() != instructions.len():
        raise SchemaMismatchError(
            f"there are {generations.len()} generations and {instructions.len()}"
            " instructions; pass columns of one length"
        )
    kernel = partial(
        _native.book_coverage, book, words=words, min_words=k, trim_words=m
    )
    figures = apply_kernel(kernel, generations, instructions).struct.unnest()
    words_of_blocks = pl.col("blocks").list.eval(pl.element().struct.field("words"))
    n_covered = words_of_blocks.list.sum().cast(pl.UInt32)
    n_words = pl.col("words_book")
    return figures.select(
        pl.when(n_words > 0).then(n_covered / n_words).alias("coverage"),
        "words_book",
        n_covered.alias("covered_words"),
        words_of_blocks.list.max().fill_null(0).alias("longest_block_words"),
        "longest_span_words",
        pl.col("long_spans").list.len().alias("n_long_spans"),
        "blocks",
        "long_spans",
    )


# Rarity: how often a model says an n-gram elsewhere weighs n-grams that are shared.

RARITY_FIELDS = tuple(
    pl.Field(name, pl.Float64())
    for name in ("rarity_leading", "rarity_1", "rarity_2", "rarity_3")
)
"""What `RarityTable.weigh` returns."""

_BITS = 22  # of an index into the counts, which take 16 MB


class Rarity(Table):
    """One row per entry of a view's `RarityTable` that is not 0."""

    model = dy.String(primary_key=True)
    view = dy.String(primary_key=True)
    entry = dy.UInt32(primary_key=True)
    count = dy.UInt32()
    n_groups = dy.UInt32()
    """Groups that were counted, the same in every row of a view."""


@dataclass(frozen=True, slots=True)
class RarityTable:
    """In how many groups of texts a model says each n-gram of one to three words."""

    # The table has a fixed size, 2^22 entries: n-grams whose hashes begin alike share
    # one. Of N different n-grams about N / 2^22 have too large a count: at 30,000 one
    # in 140. A text without a group is one of its own.

    native: _native.RarityTable
    n_groups: int
    # Whether a candidate that is weighed was counted; None: all were
    is_counted: pl.Expr | None = None

    @classmethod
    def count(
        cls,
        batches: Iterable[pl.DataFrame],
        *,
        n_groups: int,
        words: WordRule,
    ) -> RarityTable:
        """Count the ``candidate`` of rows whose ``row`` numbers the group."""
        # Rows of one group come one after the other; groups may come in any order.
        _check(words)
        native = _native.RarityTable(_BITS)
        for batch in batches:
            groups = batch["row"].cast(pl.UInt32).rechunk()
            native.add(batch["candidate"], groups, words=words)
        return cls(native, n_groups)

    @classmethod
    def from_rows(
        cls, rows: pl.DataFrame, *, is_counted: pl.Expr | None = None
    ) -> RarityTable:
        """Load a table from its rows of the table `Rarity`."""
        zeros = pl.zeros(1 << _BITS, pl.UInt32, eager=True)
        counts = zeros.scatter(rows["entry"], rows["count"])
        native = _native.RarityTable.counted(counts.rechunk())
        n_groups = rows["n_groups"].max() or 0
        return cls(native, int(str(n_groups)), is_counted)

    def __reduce__(self) -> tuple[Callable[..., RarityTable], tuple[pl.DataFrame]]:
        """Send the counts: the compiled table cannot be pickled."""
        load = partial(RarityTable.from_rows, is_counted=self.is_counted)
        return load, (self.rows("", ""),)

    def rows(self, model: str, view: str) -> pl.DataFrame:
        """Build the rows of the table `Rarity`."""
        counts = pl.DataFrame({"count": pl.Series(self.native.counts())})
        entries = counts.with_row_index("entry").filter(pl.col("count") > 0)
        return entries.select(
            pl.lit(model).alias("model"),
            pl.lit(view).alias("view"),
            "entry",
            "count",
            n_groups=pl.lit(self.n_groups, pl.UInt32),
        )

    def weigh(
        self,
        candidate: pl.Expr | str,
        reference: pl.Expr | str,
        *,
        words: WordRule,
    ) -> pl.Expr:
        """Weigh what a candidate, cut to the reference's number of words, shares with it.

        The weight of an n-gram g is ``ln(T / (1 + df))``: df is the number of other
        groups among whose candidates the model says g at least once. What a candidate
        shares was said in its own group, so where that was counted 1 + df is the count
        over all groups. T is the number of groups, and one more where some texts were
        not counted: the same for all texts.

        A struct of Float64, at least 0, null where either text is null:
        ``rarity_leading``, the sum of weights of the words with which both begin, and
        ``rarity_1`` to ``rarity_3``, that of shared n-grams, each as often as both have
        it. Inverse document frequency, Spärck Jones (1972); clipped overlap, Lin
        (2004), section 2.
        """
        total = self.n_groups
        is_counted = pl.lit(value=True)
        if self.is_counted is not None:
            total += 1
            is_counted = self.is_counted
        n_own_groups = (~is_counted).cast(pl.UInt32)  # that the counts leave out
        kernel = partial(self.native.weigh, words=words, total=total)

        def call(columns: Sequence[pl.Series]) -> pl.Series:
            candidates, references, own_groups = columns
            if own_groups.len() == 1:  # a literal
                own_groups = own_groups.new_from_index(0, candidates.len())
            return pl.Series(kernel(candidates, references, own_groups.rechunk()))

        return pl.map_batches(
            [
                _column("candidate", candidate).cast(pl.String),
                _column("reference", reference).cast(pl.String),
                n_own_groups,
            ],
            call,
            return_dtype=pl.Struct(list(RARITY_FIELDS)),
            is_elementwise=True,
        ).alias("rarity")
