"""Words of a candidate in spans that the reference has, too; and the longest such spans.

Source of coverage and longest substrings: Hallinan et al. (2025), "The Surprising Effectiveness of
Membership Inference with Simple N-Gram Coverage", arXiv:2508.09603. The released code matches
detokenised text, so that parts of words match, and finds spans for one length only; here spans
start and end between words, and each length is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import AGGREGATES, share

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COVERAGE_ATTACKS", "VERBATIM_ATTACKS"]

_PAPER = "Hallinan et al. 2025 (arXiv:2508.09603)"
_SUBSTRING = f"{_PAPER}, longest common substring"
_BLOCKS = (
    "Ahmed et al. 2026 (arXiv:2601.02671), near-verbatim recall, here of blocks of 8 words or more "
    "as they are: for whole books, theirs joins blocks across gaps and keeps 20, then 100 words"
)
_LENGTH = 3  # words of a span, as published
_LENGTHS = range(2, 13)
_CANDIDATE = pl.col("words_candidate")
_LONGER = pl.max_horizontal("words_candidate", "words_reference")
_COVERED = pl.col(f"covered_{_LENGTH}")


def _attacks(name: str, term: pl.Expr, formula: str, source: str) -> Iterator[Attack]:
    """Mean, maximum, median and minimum of a term over candidates."""
    for ending, aggregate in AGGREGATES.items():
        yield Attack(
            name=f"{name}{ending}_v1",
            expr=aggregate(term.cast(pl.Float64)),
            formula=f"{ending.removeprefix('_') or 'mean'} over candidates of {formula}",
            source=source,
            undefined="there is no candidate",
            whole_candidates=True,
        )


def _coverage(kind: str, part: pl.Expr, whole: pl.Expr, formula: str) -> Iterator[Attack]:
    """One of cov_cand, cov_ref and cov_total, in [0, 1]."""
    source = f"{_PAPER}, coverage, L = {_LENGTH}"
    return _attacks(f"ngram_coverage{kind}", share(part, whole), formula, source)


_LONGER_TEXT = "max(words_candidate, words_reference)"
COVERAGE_ATTACKS: tuple[Attack, ...] = (
    *_coverage("", _COVERED, _CANDIDATE, f"covered_{_LENGTH} / words_candidate"),
    *_coverage("_reference", _COVERED, _LONGER, f"covered_{_LENGTH} / {_LONGER_TEXT}"),
    *_coverage(
        "_total",
        2 * _COVERED,
        _CANDIDATE + _LONGER,
        f"2 covered_{_LENGTH} / (words_candidate + {_LONGER_TEXT})",
    ),
    *_attacks(
        "creativity",
        pl.sum_horizontal(
            (share(f"covered_{length}", _CANDIDATE) for length in _LENGTHS), ignore_nulls=False
        ),
        f"(covered_{_LENGTHS[0]} + ... + covered_{_LENGTHS[-1]}) / words_candidate",
        f"{_PAPER}, sum of coverages, L = {_LENGTHS[0]} to {_LENGTHS[-1]}",
    ),
)
"""``ngram_coverage_v1`` (mean), ``ngram_coverage_max_v1``, and so on, then ``creativity_v1``."""

VERBATIM_ATTACKS: tuple[Attack, ...] = (
    *_attacks(
        "longest_block",
        pl.col("longest_block_words"),
        "longest_block_words",
        f"{_SUBSTRING}, in words",
    ),
    *_attacks(
        "longest_block_chars",
        pl.col("longest_block_chars"),
        "longest_block_chars",
        f"{_SUBSTRING}, in characters",
    ),
    *_attacks(
        "longest_block_share",
        share("longest_block_words", "words_reference"),
        "longest_block_words / words_reference",
        f"{_SUBSTRING}, by the reference's words",
    ),
    *_attacks(
        "near_verbatim",
        share("near_verbatim_words", "words_reference"),
        "near_verbatim_words / words_reference",
        _BLOCKS,
    ),
)
"""``longest_block_v1`` in words, ``_chars``, ``_share``, and ``near_verbatim_v1``."""
