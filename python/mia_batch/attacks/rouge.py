"""ROUGE between whole candidates and the reference, under the run's word rule, in [0, 1].

Source: Lin (2004), "ROUGE: A Package for Automatic Evaluation of Summaries". With the word rule
``rouge`` the counts are those of the ``rouge-score`` package without stemming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean, ngrams, share

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROUGE_ATTACKS"]


def _rouge(kind: str, n: int, shared: str, section: str) -> Iterator[Attack]:
    """Recall, precision and F1 of one kind; a side without n-grams gives 0."""
    recall = share(shared, ngrams("words_reference", n))
    precision = share(shared, ngrams("words_candidate", n))
    f1 = 2 * recall * precision / (recall + precision)
    f1 = pl.when(recall + precision == 0).then(0.0).otherwise(f1)  # null stays null
    there, here = "words_reference", "words_candidate"
    if n > 1:
        there, here = (f"({words} - {n - 1})" for words in (there, here))
    formulas = {
        "": (recall, f"{shared} / {there}"),
        "_precision": (precision, f"{shared} / {here}"),
        "_f1": (f1, f"2 {shared} / ({there} + {here})"),
    }
    for ending, (term, formula) in formulas.items():
        yield Attack(
            name=f"rouge_{kind}{ending}_v1",
            expr=pl.when(pl.col("words_reference").max() >= n).then(mean(term)),
            formula=f"mean over candidates of {formula}",
            source=f"Lin 2004, {section}",
            undefined=(
                f"the reference has fewer than {n} words" if n > 1 else "the reference is empty"
            ),
            whole_candidates=True,
        )


ROUGE_ATTACKS: tuple[Attack, ...] = (
    *(
        attack
        for n in range(1, 6)
        for attack in _rouge(str(n), n, f"overlap_{n}", f"section 2 (ROUGE-N), N = {n}")
    ),
    *_rouge("l", 1, "lcs_words", "section 3.1 (ROUGE-L)"),
)
"""``rouge_1_v1`` (recall), ``rouge_1_precision_v1``, ``rouge_1_f1_v1``, ..., ``rouge_l_f1_v1``."""
