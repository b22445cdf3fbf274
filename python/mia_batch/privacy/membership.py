"""Membership in what a variant's target learnt, by the attacks that audits have, too."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks import get
from mia_batch.attacks.apply import score
from mia_batch.metrics.evaluate import evaluate
from mia_batch.schemas import Features, LogProbs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia_batch.finetuning.recipe import Form

__all__ = ["attacks_of", "metrics_of", "scores_of"]

_WITH_SHADOWS = (
    "lira_online_fixed_v1",
    "lira_online_v1",
    "lira_offline_fixed_v1",
    "rmia_v1",
)
_RATIO = "reference_token_difference_v1"
_LISTS = pl.List(pl.Float32)


def attacks_of(form: Form, n_shadows: int) -> tuple[str, ...]:
    """Name the attacks, the primary one first: LiRA, or the ratio to the pre-trained model.

    The paper takes the first for encoders and the second for models that generate (appendix B.1);
    a pre-trained encoder has no head that could be asked.
    """
    with_shadows = _WITH_SHADOWS if n_shadows else ()
    ratio = () if form == "classifier" else (_RATIO,)
    first = with_shadows if form == "classifier" else ratio
    return tuple(dict.fromkeys((*first, *with_shadows, *ratio, "loss_v1")))


def scores_of(
    texts: pl.DataFrame,
    told: Mapping[str, Sequence[list[float]]],
    trained: Mapping[str, Sequence[bool]],
    attacks: Sequence[str],
) -> pl.DataFrame:
    """Score texts.

    ``told`` has by model (``target``, ``reference``, ``shadow-0``, ...) the log-probabilities of
    what it says of each text; of an encoder, that of the label alone, whose log-odds LiRA then
    takes, as in the paper. ``trained`` says of shadow models which texts they learnt.
    """
    ids = [blake2b(str(each).encode(), digest_size=16).hexdigest() for each in texts["id"]]
    targets = texts.select(
        "id",
        "member",
        "group",
        target_id=pl.Series(ids),
        role=pl.lit("target"),
        document_id=pl.lit(None, pl.String),
        window_index=pl.lit(0, pl.UInt32),
        n_words=pl.lit(None, pl.UInt32),
    )
    frames = [
        pl.DataFrame({"target_id": ids, "logprob": pl.Series(values, dtype=_LISTS)}).with_columns(
            model=pl.lit(name),
            view=pl.lit("text"),
            view_index=pl.lit(0, pl.UInt32),
            logprob=pl.when(pl.col("logprob").list.len() > 0).then("logprob"),
            trained=pl.Series(trained.get(name, [None] * len(ids)), dtype=pl.Boolean),
            token_ids=pl.col("logprob").list.eval(pl.int_range(0, pl.len())),
        )
        for name, values in told.items()
    ]
    logprobs = _completed(pl.concat(frames))
    wanted = [get(name) for name in attacks]
    found = score(Features.create_empty().lazy(), targets.lazy(), wanted, logprobs=logprobs.lazy())
    return pl.concat(found)


def _completed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of the table that nothing is known of."""
    schema = LogProbs.create_empty().schema
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    )


def metrics_of(scores: pl.DataFrame, attacks: Sequence[str], seed: int) -> pl.DataFrame:
    """Measure how well members are told from the others."""
    return evaluate(scores.lazy(), attacks, preset="default", primary=attacks[0], seed=seed)
