"""DE-COP: whether the model tells a text from three paraphrases of it, shown in every order.

Every score is a mean over the four labels of what is found where that label is right. A model that
prefers a label whatever it stands for is thereby at chance, 0.25, exactly.
"""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import CHOICE, Attack
from mia_batch.attacks.terms import among, mean
from mia_batch.attacks.tokens import of_texts
from mia_batch.prompts.choices import LABELS

__all__ = ["CHOICE_ATTACKS", "CHOICE_LOGPROB_ATTACKS"]

_PAPER = "Duarte et al. 2024 (arXiv:2402.09910), DE-COP"
_BALANCED = "averaged over the four labels, so that no preference for one counts"
_SETTINGS = ("paraphrases_column",)
_FEW = "the text lacks three paraphrases that differ from it and each other"
_UNREAD = f"{_FEW}, or where some label is right no answer names one label"
_UNSCORED = f"{_FEW}, or where some label is right no order has probabilities"
_RIGHT = pl.col("view_index") % len(LABELS)


def _over_labels(term: pl.Expr) -> pl.Expr:
    """Mean over labels of the mean of a term over the orders where the label is right."""
    means = [
        mean(pl.when(among([CHOICE]), place == _RIGHT).then(term)) for place in range(len(LABELS))
    ]
    return pl.sum_horizontal(means, ignore_nulls=False) / len(LABELS)


def _logprobs() -> list[pl.Expr]:
    """Log-probability of each label."""
    each = (pl.col("logprob").list.get(i, null_on_oob=True) for i in range(len(LABELS)))
    return [logprob.cast(pl.Float64) for logprob in each]


def _probabilities() -> list[pl.Expr]:
    """Probability of each label among the four."""
    odds = [each.exp() for each in _logprobs()]
    return [each / pl.sum_horizontal(odds, ignore_nulls=False) for each in odds]


def _less_means(values: list[pl.Expr]) -> pl.Expr:
    """Take each label's mean off its values; a list."""
    return pl.concat_list(each - _over_labels(each) for each in values)


def _is_highest(values: pl.Expr) -> pl.Expr:
    """1 where the right label's value is the highest, or the first of several such; else 0."""
    return (values.list.arg_max() == _RIGHT).cast(pl.Float64)


_P = _probabilities()

CHOICE_ATTACKS = (
    Attack(
        name="decop_v1",
        expr=_over_labels((pl.col("choice") == _RIGHT).cast(pl.Float64)),
        formula="mean over labels of the share of answers that name the label where it is right",
        source=f"{_PAPER} from answers alone; {_BALANCED}; answers that name no label, or several, "
        "are left out",
        undefined=_UNREAD,
        reads=(CHOICE,),
        settings=_SETTINGS,
    ),
)
"""``decop_v1``, in [0, 1]; 0.25 is chance."""

CHOICE_LOGPROB_ATTACKS = tuple(
    of_texts(
        f"decop_{name}",
        _over_labels(term),
        formula=f"mean over labels of {what} where the label is right",
        source=f"{_PAPER}, {source}; {_BALANCED}",
        undefined=_UNSCORED,
        reads=(CHOICE,),
        settings=_SETTINGS,
    )
    for name, term, what, source in (
        (
            "calibrated",
            _is_highest(_less_means(_P)),
            "1 where, less its mean over the text's orders, the label's probability is the highest",
            "calibrated: the means are of the orders of this text; the authors' released code has "
            "no such step",
        ),
        (
            "log_calibrated",
            _is_highest(_less_means(_logprobs())),
            "1 where, less its mean over the text's orders, the label's log-probability is the "
            "highest",
            "calibrated likewise, but on log-probabilities: whatever is added to the logit of a "
            "label in all orders changes nothing",
        ),
        (
            "logprob",
            _is_highest(pl.col("logprob")),
            "1 where the label's probability is the highest",
            "from probabilities, as in the authors' released code",
        ),
        (
            "probability",
            pl.concat_list(_P).list.get(_RIGHT),
            "its probability among the four",
            "with the probability itself instead of a decision",
        ),
    )
)
"""``decop_calibrated_v1``, ``decop_log_calibrated_v1``, ``decop_logprob_v1`` and
``decop_probability_v1``, likewise."""
