"""Token by token against the base model: where a tuned model has become surer of a text."""

from __future__ import annotations

from functools import reduce
from operator import add

import polars as pl

from mia_batch.attacks.terms import among, total
from mia_batch.attacks.tokens import REFERENCE_TEXT, TEXT, cut_alike, of_texts

__all__ = ["BASE_MODEL_ATTACKS"]

_READS = (TEXT, REFERENCE_TEXT)
_SETTINGS = ("reference_model",)
_WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
_ROUNDING = 1e-5  # nats that one model's numbers of a token may differ from call to call
_UNSCORED = (
    "no token of the text has numbers under both models, or their tokenizers cut it differently"
)
_AGREE = f"to {_ROUNDING:.5f} nats on average, which is rounding"


_ALIKE = cut_alike(*_READS)
_RANKED = _ALIKE & pl.col("rank").filter(among([TEXT])).is_not_null().any()


def _tokens(column: str, view: tuple[str, str], where: pl.Expr) -> pl.Expr:
    """Numbers of the tokens of one text; none of texts that are not compared."""
    return pl.col(column).filter(among([view]) & where).explode().cast(pl.Float64)


def _gain(where: pl.Expr) -> pl.Expr:
    """Log-probability of each token less the base model's; null where either has none."""
    return _tokens("logprob", TEXT, where) - _tokens("logprob", REFERENCE_TEXT, where)


def _differ(gain: pl.Expr) -> pl.Expr:
    """Whether the models differ by more than rounding, of which there would be gains, too."""
    return total(gain.abs()) > _ROUNDING * gain.count()


def _error_zone() -> pl.Expr:
    """Gains over gains and losses, where the target's most likely token is another."""
    rank, gain = _tokens("rank", TEXT, _RANKED), _gain(_RANKED)
    wrong = gain.filter(rank > 1)
    share = total(wrong.clip(lower_bound=0)) / total(wrong.abs())
    known = gain.filter(rank.is_not_null()).count()
    right = (known > 0) & (wrong.count() == 0)
    return pl.when(right).then(1.0).otherwise(pl.when(_differ(wrong)).then(share))


def _windows() -> pl.Expr:
    """Share of windows of one length in which the target is surer, averaged over lengths."""
    gain = _gain(_ALIKE).drop_nulls()
    sums, n = gain.cum_sum(), gain.count()

    def share(length: int) -> pl.Expr:
        inner = sums - sums.shift(length, fill_value=0.0)
        votes = (inner.slice(length - 1) > 0).sum()
        return (
            pl.when(n >= length)
            .then(votes / (n - length + 1).cast(pl.Float64))
            .otherwise((sums.last() > 0).cast(pl.Float64))
        )

    return pl.when(_differ(gain)).then(reduce(add, map(share, _WINDOWS)) / len(_WINDOWS))


BASE_MODEL_ATTACKS = (
    of_texts(
        "ez_mia",
        _error_zone(),
        formula=(
            "sum of max(gain, 0) / sum of abs(gain), over tokens with rank > 1; gain = logprob - "
            "logprob(reference model)"
        ),
        source=(
            "Ilić et al. 2026 (arXiv:2601.12104), the Error Zone score P / N, here as its "
            "increasing function P / (P + N): 1 where no token lost, as where the model gets every "
            "token right, which the paper ranks highest and the authors' code scores 0; every "
            "token with numbers counts, while their code leaves out the first and scores 0 below "
            "two errors"
        ),
        undefined=f"{_UNSCORED}, or the models agree on the tokens that "
        f"the target gets wrong ({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
    of_texts(
        "wbc",
        _windows(),
        formula=(
            "mean over w of the share of windows of w tokens with sum of logprob > sum of "
            f"logprob(reference model); w = {', '.join(map(str, _WINDOWS))}"
        ),
        source=(
            "Chen et al. 2026 (arXiv:2601.02751), algorithm 1 (WBC) with the authors' window "
            "lengths, which their equation 12 gives only nearly; as in their code, a longer window "
            "than the text is the whole text"
        ),
        undefined=f"{_UNSCORED}, or the models agree on it ({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
)
"""``ez_mia_v1``, in [0, 1], and ``wbc_v1``, likewise."""
