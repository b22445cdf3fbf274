"""SaMIA and its relatives: n-gram overlap between sampled candidates and the reference.

Every score is a mean over a target's candidates. ``samia_...`` attacks read whole candidates and
keep the denominators of the authors' code; ``samia_matched_...`` attacks read each candidate up
to the reference's number of words.

Source of all: Kaneko et al. (2024), "Sampling-based Pseudo-Likelihood for Membership Inference
Attacks", arXiv:2404.11262, version 2 unless stated.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean, ngrams, share

__all__ = ["MATCHED_ATTACKS", "SAMIA_ATTACKS"]

_SIZES = range(1, 6)
_PAPER = "Kaneko et al. 2024 (arXiv:2404.11262v2)"


def _name(family: str, n: int) -> str:
    return f"{family}_v1" if n == 1 else f"{family}_n{n}_v1"


def _recall(n: int) -> pl.Expr:
    """Equation 1 with the code's denominator."""
    return share(f"overlap_{n}", pl.col("words_reference"))


def _samia(family: str, n: int, term: pl.Expr, source: str) -> Attack:
    return Attack(
        name=_name(family, n),
        expr=mean(term),
        source=f"{_PAPER}, {source}, N = {n}; divided by words, as the authors' code does",
        undefined="there is no candidate",
        whole_candidates=True,
    )


def _samia_recall(n: int) -> Attack:
    """Mean n-gram recall over whole candidates, in [0, 1]; equation 5."""
    return _samia("samia", n, _recall(n), "equations 1 and 5")


def _samia_precision(n: int) -> Attack:
    """Mean n-gram precision over whole candidates, in [0, 1]; equation 9 (version 1: 11)."""
    term = share(f"overlap_{n}", pl.col("words_candidate"))
    return _samia("samia_precision", n, term, "equation 9")


def _samia_zlib(n: int) -> Attack:
    """Mean of recall times compressed size in bytes, 0 or more; equation 7."""
    return _samia("samia_zlib", n, _recall(n) * pl.col("zlib_candidate"), "equation 7")


def _samia_plus_zlib() -> Attack:
    """Mean of unigram recall plus compressed size in bytes, above 0; appendix D, no equation."""
    return _samia(
        "samia_plus_zlib", 1, _recall(1) + pl.col("zlib_candidate"), "appendix D, table 11"
    )


def _matched(family: str, n: int, term: pl.Expr, source: str) -> Attack:
    defined = pl.col("words_reference").max() >= n
    return Attack(
        name=_name(family, n),
        expr=pl.when(defined).then(mean(term)),
        source=f"{_PAPER}, {source}, N = {n}; here on candidates cut to the reference's length",
        undefined=f"the reference has fewer than {n} words" if n > 1 else "the reference is empty",
    )


def _matched_recall_term(n: int) -> pl.Expr:
    """Equation 1 on the cut candidate."""
    return share(f"overlap_{n}_matched", ngrams("words_reference", n))


def _matched_recall(n: int) -> Attack:
    """Mean n-gram recall over cut candidates, in [0, 1]; equation 5."""
    return _matched("samia_matched", n, _matched_recall_term(n), "equations 1 and 5")


def _matched_precision(n: int) -> Attack:
    """Mean n-gram precision over cut candidates, in [0, 1]; equation 9."""
    term = share(f"overlap_{n}_matched", ngrams("words_candidate_matched", n))
    return _matched("samia_matched_precision", n, term, "equation 9")


def _matched_zlib(n: int) -> Attack:
    """Mean of recall times compressed size in bytes over cut candidates; equation 7."""
    term = _matched_recall_term(n) * pl.col("zlib_candidate_matched")
    return _matched("samia_matched_zlib", n, term, "equation 7")


MATCHED_ATTACKS: tuple[Attack, ...] = tuple(
    attack(n) for attack in (_matched_recall, _matched_precision, _matched_zlib) for n in _SIZES
)
"""The length-matched family; ``samia_matched_v1`` first."""

SAMIA_ATTACKS: tuple[Attack, ...] = (
    *(attack(n) for attack in (_samia_recall, _samia_precision, _samia_zlib) for n in _SIZES),
    _samia_plus_zlib(),
)
"""The authors' family, over whole candidates; ``samia_v1`` first."""
