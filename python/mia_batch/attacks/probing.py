"""Probes: whether the model goes on with the true next words at many points of a text.

Either by what it answers, or by the log-probability that it gives to the true next token.
``..._rarity_...`` attacks weigh each shared word by how rarely the model says it elsewhere.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import CONTINUATION, PROBE, Attack
from mia_batch.attacks.terms import mean, ngrams, share
from mia_batch.attacks.tokens import logprobs, lowest, of_texts

__all__ = ["MATCHED_RARITY_ATTACKS", "PROBE_ATTACKS", "PROBE_LOGPROB_ATTACKS"]

_OURS = "He et al. 2025 (USENIX Security), who compare one greedy token at every position (PETAL)"
_WEIGHED = "weight: inverse document frequency, Spärck Jones 1972, over what the model says"
_TOO_SHORT = "the text is too short for a point"
_WEIGHT = "ln(T / (1 + df))"


def _probe(name: str, term: pl.Expr, formula: str, source: str) -> Attack:
    return Attack(
        name=f"probe_{name}_v1",
        expr=mean(term.cast(pl.Float64)),
        formula=f"mean over the answers at all points of {formula}",
        source=source,
        undefined=_TOO_SHORT,
        reads=(PROBE,),
    )


def _of_words(weighed: str) -> pl.Expr:
    return pl.col(weighed) / pl.col("words_reference").clip(lower_bound=1)


PROBE_ATTACKS = (
    _probe(
        "leading_rarity",
        _of_words("rarity_leading"),
        f"the sum of {_WEIGHT} over the leading words that agree / words asked",
        f"{_OURS}; {_WEIGHED}",
    ),
    _probe("first_word", pl.col("leading_words") >= 1, "1 where the first word is right", _OURS),
    _probe(
        "leading",
        share("leading_words", "words_reference"),
        "leading words that agree / words asked",
        _OURS,
    ),
    _probe(
        "recall_rarity",
        _of_words("rarity_1"),
        f"the sum of {_WEIGHT} over shared words / words asked",
        f"{_OURS}; {_WEIGHED}",
    ),
)
"""Attacks on probes; ``probe_leading_rarity_v1`` first."""

PROBE_LOGPROB_ATTACKS = tuple(
    of_texts(
        f"probe_{name}",
        mean(term),
        formula=f"mean of {which} of the first token after each point",
        source=f"{source}, of the tokens after points instead of all",
        undefined=_TOO_SHORT,
        reads=(PROBE,),
    )
    for name, term, which, source in (
        ("loss", logprobs(PROBE), "logprob", "Yeom et al. 2018 (arXiv:1709.01604), adversary 2"),
        (
            "min_k_20",
            lowest(logprobs(PROBE), 20),
            "the lowest 20 % of logprob",
            "Shi et al. 2024 (arXiv:2310.16789), equation 1, k = 20, at least one",
        ),
    )
)
"""Attacks on the log-probability of the true next token; ``probe_loss_v1`` first."""


def _matched(n: int) -> Attack:
    ending = "" if n == 1 else f"_n{n}"
    expr = mean(pl.col(f"rarity_{n}") / ngrams("words_reference", n).clip(lower_bound=1))
    return Attack(
        name=f"samia_matched_rarity{ending}_v1",
        expr=pl.when(pl.col("words_reference").max() >= n).then(expr),
        formula=f"mean over candidates of the sum of {_WEIGHT} over shared {n}-grams "
        f"/ {n}-grams of the reference",
        source=f"Kaneko et al. 2024 (arXiv:2404.11262v2), N = {n}, on candidates cut to the "
        f"reference's length; {_WEIGHED}",
        undefined=f"the reference has fewer than {n} words" if n > 1 else "the reference is empty",
        reads=(CONTINUATION,),
    )


MATCHED_RARITY_ATTACKS = (_matched(1), _matched(2))
"""The length-matched attacks, weighed."""
