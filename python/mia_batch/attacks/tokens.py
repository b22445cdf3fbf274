"""Numbers of the tokens of a text, as expressions over the log-probabilities of one target.

A refused text has null instead of lists, and a token that nothing precedes has null instead of a
number; neither takes part in anything.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import among, mean

__all__ = [
    "CANDIDATE_TEXT",
    "EXTRACTION",
    "LOWERCASE",
    "MEMBER_SHOTS",
    "NEIGHBOUR",
    "NONMEMBER_SHOTS",
    "PERTURBATION",
    "REFERENCE_TEXT",
    "REPEATED",
    "SELF_PROMPT_TEXT",
    "TEXT",
    "UNSCORED",
    "average",
    "averages",
    "cut_alike",
    "first",
    "logprobs",
    "lowest",
    "n_lowest",
    "of_texts",
    "scored",
    "tokens",
]

TEXT = ("target", "text")
LOWERCASE = ("target", "lowercase")
REPEATED = ("target", "repeated")
NEIGHBOUR = ("target", "neighbour")
PERTURBATION = ("target", "perturbation")
NONMEMBER_SHOTS = ("target", "nonmember_shots")
MEMBER_SHOTS = ("target", "member_shots")
EXTRACTION = ("target", "extraction")
REFERENCE_TEXT = ("reference", "text")
SELF_PROMPT_TEXT = ("self_prompt", "text")
CANDIDATE_TEXT = ("candidate", "text")

UNSCORED = "no token of the text has a log-probability"
"""Why an average over tokens can be null."""


def of_texts(
    name: str,
    expr: pl.Expr,
    *,
    formula: str,
    source: str,
    undefined: str = UNSCORED,
    reads: tuple[tuple[str, str], ...] = (TEXT,),
    settings: tuple[str, ...] = (),
) -> Attack:
    """Make an attack from log-probabilities.

    In formulas columns are of the text's tokens, ``loss`` is minus the mean of ``logprob`` over
    tokens, and ``loss(view)`` the same of another text.
    """
    return Attack(
        name=f"{name}_v1",
        expr=expr,
        formula=formula,
        source=source,
        undefined=undefined,
        evidence="logprobs",
        reads=reads,
        settings=settings,
    )


def _of(view: tuple[str, str]) -> pl.Expr:
    """Whether a row is of this model and view."""
    model, name = view
    return (pl.col("model") == model) & (pl.col("view") == name)


def first(column: str, view: tuple[str, str] = TEXT) -> pl.Expr:
    """Take a number that a text has once, such as ``n_bytes``."""
    return pl.col(column).filter(_of(view)).first()


def tokens(*columns: str, view: tuple[str, str] = TEXT) -> tuple[pl.Expr, ...]:
    """Numbers of a text's tokens, side by side in their order, as float64.

    A token that has no number has null.
    """
    there = _of(view) & pl.all_horizontal(pl.col(name).is_not_null() for name in columns)
    return tuple(pl.col(name).filter(there).explode().cast(pl.Float64) for name in columns)


def scored(column: str, view: tuple[str, str] = TEXT) -> pl.Expr:
    """Numbers of those tokens of a text that have a log-probability, else null; as float64."""
    logprob, number = tokens("logprob", column, view=view)
    return pl.when(logprob.is_not_null()).then(number)


def logprobs(view: tuple[str, str] = TEXT) -> pl.Expr:
    """Log-probabilities of a text's tokens, in nats, 0 or less; null where there is none."""
    return tokens("logprob", view=view)[0]


def average(view: tuple[str, str]) -> pl.Expr:
    """Mean log-probability of a text's tokens, in nats; 0 or less."""
    return mean(logprobs(view))


def averages(view: tuple[str, str], *where: pl.Expr) -> pl.Expr:
    """Mean log-probability of each of several texts, in nats; null where one has no tokens."""
    lists = pl.col("logprob").filter(_of(view), *where)
    n = lists.list.len() - lists.list.count_matches(None)
    return pl.when(n > 0).then(lists.cast(pl.List(pl.Float64)).list.sum() / n)


def cut_alike(*views: tuple[str, str]) -> pl.Expr:
    """Whether these texts, one of each model, have numbers and are the same tokens."""
    there = among(views) & pl.col("logprob").is_not_null()
    cuts = pl.col("token_ids").filter(there).drop_nulls()
    return (cuts.len() == len(views)) & (cuts.n_unique() == 1)


def n_lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """How many numbers of a term make up a share of them: rounded down, and at least one."""
    return (term.count() * percent // 100).clip(lower_bound=1)


def lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """Take the lowest numbers of a term, ascending, nulls left out."""
    return term.drop_nulls().sort().head(n_lowest(term, percent))
