"""Words of a candidate that stand in spans which the reference has, too.

Source: Hallinan et al. (2025), "The Surprising Effectiveness of Membership Inference with Simple
N-Gram Coverage", arXiv:2508.09603. The released code matches detokenised text, so that parts of
words match, and finds spans for one length only; here spans start and end between words, and each
length is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import AGGREGATES, share

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COVERAGE_ATTACKS"]

_PAPER = "Hallinan et al. 2025 (arXiv:2508.09603)"
_LENGTH = 3  # words of a span, as published
_LENGTHS = range(2, 13)
_CANDIDATE = pl.col("words_candidate")
_LONGER = pl.max_horizontal("words_candidate", "words_reference")


def _candidate(length: int) -> pl.Expr:
    """Share of the candidate's words that are covered, in [0, 1]."""
    return share(f"covered_{length}", _CANDIDATE)


def _coverages() -> dict[str, pl.Expr]:
    """Cov_cand, cov_ref and cov_total of one candidate, each in [0, 1]."""
    covered = pl.col(f"covered_{_LENGTH}")
    return {
        "": _candidate(_LENGTH),
        "_reference": share(covered, _LONGER),
        "_total": share(2 * covered, _CANDIDATE + _LONGER),
    }


def _attacks(name: str, term: pl.Expr, source: str) -> Iterator[Attack]:
    for ending, aggregate in AGGREGATES.items():
        yield Attack(
            name=f"{name}{ending}_v1",
            expr=aggregate(term.cast(pl.Float64)),
            source=f"{_PAPER}, {source}",
            undefined="there is no candidate",
            whole_candidates=True,
        )


COVERAGE_ATTACKS: tuple[Attack, ...] = (
    *(
        attack
        for kind, term in _coverages().items()
        for attack in _attacks(f"ngram_coverage{kind}", term, f"coverage, L = {_LENGTH}")
    ),
    *_attacks(
        "creativity",
        pl.sum_horizontal((_candidate(length) for length in _LENGTHS), ignore_nulls=False),
        f"sum of coverages, L = {_LENGTHS[0]} to {_LENGTHS[-1]}",
    ),
)
"""``ngram_coverage_v1`` (mean), ``ngram_coverage_max_v1``, and so on, then ``creativity_v1``."""
