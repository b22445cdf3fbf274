"""Probes: whether the model goes on with the true next words at many points of a text.

Either by what it answers, or by the log-probability that it gives to the true next token.
``..._rarity_...`` attacks weigh each shared word by how rarely the model says it elsewhere.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import CONTINUATION, PROBE, Attack
from mia_batch.attacks.terms import among, mean, ngrams, share
from mia_batch.attacks.tokens import TEXT, average, logprobs, lowest, of_texts

__all__ = [
    "COMBINED_ATTACKS",
    "LOG_HIT_RATE_ATTACKS",
    "MATCHED_RARITY_ATTACKS",
    "PROBE_ATTACKS",
    "PROBE_LOGPROB_ATTACKS",
    "REFERENCE_PROBE_ATTACKS",
]

_REFERENCE_PROBE = ("reference", "probe")
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


def _leading_rarity(view: tuple[str, str]) -> pl.Expr:
    return mean(pl.when(among([view])).then(_of_words("rarity_leading")))


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

REFERENCE_PROBE_ATTACKS = (
    Attack(
        name="probe_rarity_difference_v1",
        expr=_leading_rarity(PROBE) - _leading_rarity(_REFERENCE_PROBE),
        formula="probe_leading_rarity_v1 less the same of the reference model",
        source="Carlini et al. 2021 (arXiv:2012.07805), section 5.2: difference to a reference "
        f"model; {_OURS}; {_WEIGHED}",
        undefined=f"{_TOO_SHORT}, or one of the two models gave no answer",
        reads=(PROBE, _REFERENCE_PROBE),
        settings=("reference_model",),
    ),
)
"""What this model knows that the reference model does not."""


def _log_hit_rate() -> pl.Expr:
    """Log of the smoothed share of hits at each point; rows come point by point."""
    is_last = (pl.col("view_index") != pl.col("view_index").shift(-1)).fill_null(value=True)
    hits = (pl.col("leading_words") >= 1).cum_sum().cast(pl.Float64).filter(is_last)
    answers = pl.int_range(1, pl.len() + 1).cast(pl.Float64).filter(is_last)
    first = hits - hits.shift(1, fill_value=0), answers - answers.shift(1, fill_value=0)
    return ((first[0] + 0.5) / (first[1] + 1)).log()


LOG_HIT_RATE_ATTACKS = (
    Attack(
        name="probe_logprob_v1",
        expr=mean(_log_hit_rate()),
        formula="mean over points of ln((answers whose first word is right + 1/2) / (answers + 1))",
        source=f"Krichevsky and Trofimov 1981 (smoothing); {_OURS}",
        undefined=_TOO_SHORT,
        reads=(PROBE,),
        settings=("samples",),
    ),
)
"""What log-probabilities would be, estimated from drawn answers."""

COMBINED_ATTACKS = (
    Attack(
        name="probe_rarity_loss_v1",
        expr=_leading_rarity(PROBE) + average(TEXT),
        formula="probe_leading_rarity_v1 + loss_v1: per word, and per token, in nats",
        source=f"Church and Hanks 1990 (pointwise mutual information); {_OURS}; {_WEIGHED}",
        undefined=f"{_TOO_SHORT}, or no token has a log-probability",
        reads=(PROBE,),
        logprobs=(TEXT,),
    ),
)
"""Attacks on both kinds of evidence."""

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
