"""How much of a book comes out of a model: near-verbatim recall and coverage."""

from __future__ import annotations

from typing import Final

import polars as pl

import mia_batch._native as _native  # noqa: PLR0402 - from would import the package's own page
from mia_batch.errors import SchemaMismatchError
from mia_batch.kernel_arguments import (
    WordRule,
    as_column,
    check_count,
    check_rule,
    check_series,
)
from mia_batch.kernels import apply_kernel

__all__ = ["PASSAGES", "book_coverage", "near_verbatim_recall"]

PASSAGES: Final = pl.List(pl.Struct(dict.fromkeys(("start", "end", "words"), pl.UInt32)))
"""Passages of a book in their order: characters of the book before ``start`` and ``end``, so that
``book[start:end]`` is the passage, and its ``words`` that came out."""

_RECALL: Final = pl.Struct(
    {"words_book": pl.UInt32, "words_generation": pl.UInt32, "passages": PASSAGES}
)


def near_verbatim_recall(
    generation: pl.Expr | str, book: pl.Expr | str, *, words: WordRule = "whitespace"
) -> pl.Expr:
    """How much of a book one long generation repeats near verbatim, in the book's order.

    The matching blocks of ``difflib.SequenceMatcher(None, book, generation, autojunk=False)`` are
    joined where at most 2 words stand between them on either side and these differ in number by at
    most 1; what has at least 20 words is kept. A second pass joins over 10 words and differences of
    3 and keeps what has at least 100. Words between blocks never count.

    Parameters
    ----------
    generation
        String column: what the model wrote, in one piece.
    book
        String column, aligned row by row: the whole text of which it may repeat something.
    words
        How texts are cut into words; another name is a ``SettingsError``.

    Returns
    -------
    Expr
        Struct, null where either side is null. ``recall``: share of the book's words that are
        verbatim and inside a passage that is kept, Float64, null where the book has no words.
        ``verbatim``: these words; ``missing``: the other words of the book; ``additional``: the
        other words of the generation, UInt32. ``passages``: as ``PASSAGES``; their ``words`` are
        verbatim, words between two blocks of a passage not among them.

    Notes
    -----
    The blocks are difflib's own, found by suffix automata: for natural text time grows about in
    line with the words of both, a second or two for 100,000 against 100,000, and at most with
    their power 1.5. Each core needs some 2 kB of memory for a word of its longest book.

    References
    ----------
    Near-verbatim recall: Ahmed, Cooper, Koyejo and Liang (2026), arXiv:2601.02671, whose words are
    those of ``whitespace``; other rules are ours. The difference in number is taken without its
    sign; a published replication takes it with it and so joins more. The place in characters is
    ours.

    Examples
    --------
    >>> book = " ".join(f"w{i}" for i in range(200))
    >>> said = book.replace("w50 ", "x ")
    >>> found = pl.select(near_verbatim_recall(pl.lit(said), pl.lit(book))).item()
    >>> found["recall"], found["missing"], found["additional"]
    (0.995, 1, 1)
    """
    check_rule(words)
    pair = pl.struct(
        as_column("generation", generation).alias("generation"),
        as_column("book", book).alias("book"),
    )
    found = pair.map_batches(
        lambda pairs: apply_kernel(
            lambda *sides: _native.near_verbatim_passages(*sides, words=words),
            *pairs.struct.unnest(),
        ),
        return_dtype=_RECALL,
        is_elementwise=True,
    )
    verbatim = pl.field("passages").list.eval(pl.element().struct.field("words")).list.sum()
    n_words = pl.field("words_book")
    counts = found.struct.with_fields(verbatim=verbatim.cast(pl.UInt32)).struct.with_fields(
        recall=pl.when(n_words > 0).then(pl.field("verbatim") / n_words),
        missing=n_words - pl.field("verbatim"),
        additional=pl.field("words_generation") - pl.field("verbatim"),
    )
    fields = [
        counts.struct.field(name)
        for name in ("recall", "verbatim", "missing", "additional", "passages")
    ]
    there = counts.struct.field("words_book").is_not_null()
    return pl.when(there).then(pl.struct(fields)).alias("near_verbatim")


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

    A span is a run of words that the book and a generation share and that could not be longer on
    either side. Runs of ``m`` words that stand in the generation's own instruction are cut out of
    its spans. A word of the book is covered if it lies in a span, or a piece of one that is left,
    of at least ``k`` words.

    **Some coverage comes by chance**: short runs are common to all texts of a language. Compare
    with the coverage that the same generations have of books that the model cannot know.

    Parameters
    ----------
    book
        The whole text.
    generations
        String column; nulls add nothing.
    instructions
        String column, aligned with the generations: what the model was asked, and so did not have
        to remember. Null, or None for all: nothing is cut out.
    words
        How texts are cut into words; another name is a ``SettingsError``.
    k
        Words of the shortest span that counts, at least 1; else a ``SettingsError``.
    m
        Words of the runs that are cut out, at least 1; else a ``SettingsError``.

    Returns
    -------
    DataFrame
        One row. ``coverage``: share of the book's words that are covered, Float64, null where it
        has none; ``words_book`` and ``covered_words``, UInt32. ``longest_block_words``: words of
        the longest run of covered words, which several generations may have put together.
        ``longest_span_words``: words of the longest span of one generation, with what stands in the
        instruction; 0 where none has ``k``. ``blocks``: the runs of covered words, as
        ``PASSAGES``. ``long_spans``: the spans of more than 20 words, with what stands in the
        instruction: the longest first, then each that overlaps none before it, as ``PASSAGES``;
        ``n_long_spans`` counts them.

    Raises
    ------
    SchemaMismatchError
        If the columns are not text, or not of one length.

    References
    ----------
    bmc@k and the three numbers of spans: Liu et al. (2026), arXiv:2603.20957, algorithm 1 and
    their code, which have k = m = 5. Their words are those of NLTK's wordpunct in lower case that
    hold a letter or digit: ``rouge`` comes near. They look for longest and long spans in the
    excerpt that was asked about, we in the whole book; and of long spans that start at one word
    they look at all, we at the longest.

    Examples
    --------
    >>> said = pl.Series(["so we saw a b c", "b c d e"])
    >>> found = book_coverage("a b c d e f", said, k=3)
    >>> found.select("coverage", "longest_block_words", "longest_span_words").row(0)
    (0.8333333333333334, 5, 4)
    """
    check_rule(words)
    check_count("k", k)
    check_count("m", m)
    if instructions is None:
        instructions = pl.repeat(None, generations.len(), dtype=pl.String, eager=True)
    check_series("generations", generations)
    check_series("instructions", instructions)
    if generations.len() != instructions.len():
        msg = (
            f"there are {generations.len()} generations and {instructions.len()} instructions; "
            "pass columns of one length"
        )
        raise SchemaMismatchError(msg)
    found = apply_kernel(
        lambda *texts: _native.book_coverage(book, *texts, words=words, min_words=k, trim_words=m),
        generations,
        instructions,
    )
    lengths = pl.col("blocks").list.eval(pl.element().struct.field("words")).list
    n_words, covered = pl.col("words_book"), lengths.sum().cast(pl.UInt32)
    return found.struct.unnest().select(
        pl.when(n_words > 0).then(covered / n_words).alias("coverage"),
        "words_book",
        covered.alias("covered_words"),
        lengths.max().fill_null(0).alias("longest_block_words"),
        "longest_span_words",
        pl.col("long_spans").list.len().alias("n_long_spans"),
        "blocks",
        "long_spans",
    )
