"""SaMIA and its relatives: n-gram overlap between sampled candidates and the reference.

``samia_...`` attacks read whole candidates and keep the denominators of the authors' code;
``samia_matched_...`` attacks read each candidate up to the reference's number of words.

Source of all: Kaneko et al. (2024), "Sampling-based Pseudo-Likelihood for Membership Inference
Attacks", arXiv:2404.11262, version 2 (equation 9 is 11 in version 1).
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean, ngrams, share

__all__ = ["MATCHED_ATTACKS", "SAMIA_ATTACKS"]

_PAPER = "Kaneko et al. 2024 (arXiv:2404.11262v2)"
_KINDS = {
    "": "equations 1 and 5",
    "_precision": "equation 9",
    "_zlib": "equation 7",
    "_plus_zlib": "appendix D, table 11",
}
"""Mean recall and precision lie in [0, 1]; with compressed sizes in bytes a score is 0 or more."""


def _attack(kind: str, n: int, *, matched: bool) -> Attack:
    cut = "_matched" if matched else ""
    side = f"words_candidate{cut}" if kind == "_precision" else "words_reference"
    overlap, zlib = f"overlap_{n}{cut}", f"zlib_candidate{cut}"
    term = share(overlap, ngrams(side, n) if matched else pl.col(side))
    formula = f"{overlap} / ({side} - {n - 1})" if matched and n > 1 else f"{overlap} / {side}"
    if kind == "_zlib":
        term, formula = term * pl.col(zlib), f"{formula} * {zlib}"
    if kind == "_plus_zlib":
        term, formula = term + pl.col(zlib), f"{formula} + {zlib}"
    expr, undefined = mean(term), "there is no candidate"
    if matched:
        expr = pl.when(pl.col("words_reference").max() >= n).then(expr)
        undefined = f"the reference has fewer than {n} words" if n > 1 else "the reference is empty"
    of_candidates = (
        "here on candidates cut to the reference's length"
        if matched
        else "divided by words, as the authors' code does"
    )
    return Attack(
        name=f"samia{cut}{kind}{'' if n == 1 else f'_n{n}'}_v1",
        expr=expr,
        formula=f"mean over candidates of {formula}",
        source=f"{_PAPER}, {_KINDS[kind]}, N = {n}; {of_candidates}",
        undefined=undefined,
        whole_candidates=not matched,
    )


def _family(*, matched: bool) -> tuple[Attack, ...]:
    kinds = ("", "_precision", "_zlib")
    return tuple(_attack(kind, n, matched=matched) for kind in kinds for n in range(1, 6))


MATCHED_ATTACKS = _family(matched=True)
"""The length-matched family; ``samia_matched_v1`` first."""

SAMIA_ATTACKS = (*_family(matched=False), _attack("_plus_zlib", 1, matched=False))
"""The authors' family, over whole candidates; ``samia_v1`` first."""
