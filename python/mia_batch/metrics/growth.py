"""How well attacks tell members from non-members with fewer samples, or points, than there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION, PROBE
from mia_batch.attacks.series import with_series
from mia_batch.attacks.terms import among
from mia_batch.stats.roc import roc_curve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.attacks import Attack

__all__ = ["growth"]

_MOST = 10_000  # texts of each class
_KINDS = {"samples": (CONTINUATION[1], "sample_index"), "points": (PROBE[1], "view_index")}
"""What can be fewer: the view that is asked in, and what counts it."""
_KEY = ["target_id", "model", "view", "view_index", "sample_index"]


def growth(
    scores: pl.LazyFrame, evidence: Mapping[str, pl.LazyFrame], attacks: Sequence[Attack]
) -> Iterator[pl.DataFrame]:
    """Yield AUC ``y`` over the first ``x`` samples or points of each text, for one attack of each.

    It is the first of ``attacks`` that reads nothing else; ``evidence`` has the tables of samples'
    features and log-probabilities, as far as there are any. Points are in such an order that the
    first of them are spread over the text. Labelled texts of roles ``target`` and ``non_member``
    count, of each class the first 10,000 by ``target_id``. Nothing where one class has no score, or
    where there is one sample or point.
    """
    labels = _labels(scores)
    if labels["member"].n_unique() < 2:
        return
    for kind, (view, index) in _KINDS.items():
        reading = [
            attack
            for attack in attacks
            if not attack.logprobs
            and {of for _, of in attack.reads} == {view}
            and attack.evidence in evidence
        ]
        for attack in reading[:1]:
            rows = _rows(with_series(evidence[attack.evidence], [attack]), attack, labels)
            points = [*_points(rows, attack, index)]
            made = pl.DataFrame(points, schema=["x", "y", "n"], orient="row")
            yield made.with_columns(attack=pl.lit(attack.name), subject=pl.lit(kind))


def _labels(scores: pl.LazyFrame) -> pl.DataFrame:
    own = pl.col("role").cast(pl.String).is_in(["target", "non_member"])
    known = scores.filter(own, pl.col("member").is_not_null()).select("target_id", "member")
    classes = [known.filter(member=member).bottom_k(_MOST, by="target_id") for member in (0, 1)]
    return pl.concat(classes).collect(engine="streaming")


def _rows(evidence: pl.LazyFrame, attack: Attack, labels: pl.DataFrame) -> pl.DataFrame:
    """Read what an attack reads of some texts, in its order, with their ``member``."""
    there = evidence.collect_schema().names()
    key = [name for name in _KEY if name in there]
    answered = [pl.col("words_candidate").is_not_null()] if attack.evidence == "samples" else []
    rows = evidence.filter(among(attack.reads), *answered)
    rows = rows.select(*key, *sorted({*attack.columns} - {*key}))
    return rows.join(labels.lazy(), on="target_id").sort(key).collect(engine="streaming")


def _points(rows: pl.DataFrame, attack: Attack, index: str) -> Iterator[tuple[float, float, int]]:
    most = int(rows.select(pl.col(index).max().fill_null(0)).item()) + 1
    steps = [*(1 << power for power in range((most - 1).bit_length())), most]
    for k in steps if most > 1 else ():
        value = pl.col("value").cast(pl.Float64)
        scored = (
            rows.lazy()
            .filter(pl.col(index) < k)
            .group_by("target_id", maintain_order=True)
            .agg(pl.col("member").first(), value=attack.expr)
            .filter(value.is_finite())
            .select("member", value)
            .collect()
        )
        member = scored["member"].to_numpy()
        if member.any() and not np.all(member):
            yield float(k), roc_curve(member, scored["value"].to_numpy()).area, scored.height
