"""ROUGE between whole candidates and the reference, under the run's word rule.

Source: Lin (2004), "ROUGE: A Package for Automatic Evaluation of Summaries". With the word rule
``rouge`` the counts are those of the ``rouge-score`` package without stemming.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean, ngrams, share

__all__ = ["ROUGE_ATTACKS"]

_SIZES = range(1, 6)


def _rouge(kind: str, n: int, shared: str, section: str) -> list[Attack]:
    """Mean recall, precision and F1 of one kind, each in [0, 1].

    Recall is the share of the reference's n-grams (of its words, for the longest common
    subsequence) that the candidate has, precision the same of the candidate's, F1 their harmonic
    mean; a side without n-grams gives 0.
    """
    recall = share(shared, ngrams("words_reference", n))
    precision = share(shared, ngrams("words_candidate", n))
    f1 = 2 * recall * precision / (recall + precision)
    f1 = pl.when(recall + precision == 0).then(0.0).otherwise(f1)  # null stays null
    terms = {"": recall, "_precision": precision, "_f1": f1}
    defined = pl.col("words_reference").max() >= n
    return [
        Attack(
            name=f"rouge_{kind}{ending}_v1",
            expr=pl.when(defined).then(mean(term)),
            source=f"Lin 2004, {section}",
            undefined=(
                f"the reference has fewer than {n} words" if n > 1 else "the reference is empty"
            ),
            whole_candidates=True,
        )
        for ending, term in terms.items()
    ]


ROUGE_ATTACKS: tuple[Attack, ...] = (
    *(
        attack
        for n in _SIZES
        for attack in _rouge(str(n), n, f"overlap_{n}", f"section 2 (ROUGE-N), N = {n}")
    ),
    *_rouge("l", 1, "lcs_words", "section 3.1 (ROUGE-L)"),
)
"""``rouge_1_v1`` (recall), ``rouge_1_precision_v1``, ``rouge_1_f1_v1``, ..., ``rouge_l_f1_v1``."""
