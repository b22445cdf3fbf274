"""Ranks of a text's tokens, and how certain the model was of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import TEXT, UNSCORED, n_lowest, scored, tokens

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


RANK_ATTACKS: tuple[Attack, ...] = (
    Attack(
        name="rank_v1",
        expr=-mean(scored("rank")),
        source=f"{_MITCHELL} (Rank); minus the mean rank",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="log_rank_v1",
        expr=-mean(scored("rank").log()),
        source=f"{_MITCHELL} (LogRank); minus the mean log rank",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="top_1_share_v1",
        expr=mean((scored("rank") == 1).cast(int)),
        source="Gehrmann et al. 2019 (arXiv:1906.04043), test 2; share of rank 1",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="entropy_v1",
        expr=mean(scored("vocabulary_mean")),
        source=f"{_MITCHELL} (Entropy); minus the mean entropy of the predictions",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="surprising_20_v1",
        expr=mean(_surprising()),
        source=(
            "Zhang and Wu 2024 (arXiv:2407.21248), tokens of low entropy (below "
            f"{_CERTAIN} nats) and low probability; here among the lowest {_PERCENT} percent"
        ),
        undefined="the model was certain of none of the least likely tokens",
        evidence="logprobs",
        reads=(TEXT,),
    ),
)
"""``rank_v1``, ``log_rank_v1``, ``top_1_share_v1``, ``entropy_v1``, ``surprising_20_v1``."""
