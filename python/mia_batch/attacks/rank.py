"""Ranks of a text's tokens, and how certain the model was of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import n_lowest, of_texts, scored, tokens

if TYPE_CHECKING:
    import polars as pl

__all__ = ["RANK_ATTACKS"]

_MITCHELL = "Mitchell et al. 2023 (arXiv:2301.11305), baselines"
_PERCENT = 20
_CERTAIN = 2.0  # nats of entropy


def _surprising() -> pl.Expr:
    """Log-probabilities of the least likely tokens where the model was certain."""
    logprob, expected = tokens("logprob", "vocabulary_mean")
    unlikely = logprob.rank("ordinal") <= n_lowest(logprob, _PERCENT)
    return logprob.filter(unlikely & (-expected < _CERTAIN))


RANK_ATTACKS = (
    of_texts(
        "rank",
        -mean(scored("rank")),
        formula="-mean of rank",
        source=f"{_MITCHELL} (Rank); minus the mean rank",
    ),
    of_texts(
        "log_rank",
        -mean(scored("rank").log()),
        formula="-mean of log(rank)",
        source=f"{_MITCHELL} (LogRank); minus the mean log rank",
    ),
    of_texts(
        "top_1_share",
        mean((scored("rank") == 1).cast(int)),
        formula="share of tokens with rank = 1",
        source="Gehrmann et al. 2019 (arXiv:1906.04043), test 2; share of rank 1",
    ),
    of_texts(
        "entropy",
        mean(scored("vocabulary_mean")),
        formula="mean of vocabulary_mean",
        source=f"{_MITCHELL} (Entropy); minus the mean entropy of the predictions",
    ),
    of_texts(
        "surprising_20",
        mean(_surprising()),
        formula=(
            f"mean of logprob, where it is among the lowest {_PERCENT} % and "
            f"-vocabulary_mean < {_CERTAIN}"
        ),
        source=(
            "Zhang and Wu 2024 (arXiv:2407.21248), tokens of low entropy (below "
            f"{_CERTAIN} nats) and low probability; here among the lowest {_PERCENT} percent"
        ),
        undefined="the model was certain of none of the least likely tokens",
    ),
)
"""``rank_v1``, ``log_rank_v1``, ``top_1_share_v1``, ``entropy_v1``, ``surprising_20_v1``."""
