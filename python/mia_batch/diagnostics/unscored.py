"""Scores that one class misses more often than the other: what is left to measure is selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.schemas import Findings
from mia_batch.stats import Codes, Flags
from mia_batch.tables import read_numbers
from mia_batch.targets import cluster_names

_SIGNIFICANT = 0.01
_WORTH_SAYING = 0.01  # a smaller difference moves no figure, however sure it is


def count_reasons(rows: pl.LazyFrame) -> dict[str, int]:
    """Count targets by ``reason``, the most frequent first.

    Reasons that differ in their numbers alone count as one, without the numbers.
    """
    shape = pl.col("reason").str.replace_all(r"\d+(?:[,.]\d+)*", "…")
    several = pl.col("reason").n_unique() > 1
    return dict(
        rows.group_by(shape=shape)
        .agg(
            reason=pl.when(several).then(shape.first()).otherwise(pl.col("reason").first()),
            n=pl.col("target_id").n_unique(),
        )
        .sort("n", "reason", descending=[True, False])
        .select("reason", "n")
        .collect(engine="streaming")
        .iter_rows()
    )


class UnevenScores(NamedTuple):
    """Attacks that score one class less often than the other; pairs are members, non-members."""

    attacks: tuple[str, ...]  # those of the largest difference; they miss scores of the same texts
    n_texts: tuple[int, int]
    n_unscored: tuple[int, int]
    # Fisher's exact test of these, two-sided, times the number of tests made; at most 1
    p_value: float
    reasons: tuple[str | None, str | None] = (None, None)  # the most frequent ones
    others: tuple[str, ...] = ()  # further attacks that score the classes unevenly

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of texts without a score."""
        return self.n_unscored[0] / self.n_texts[0], self.n_unscored[1] / self.n_texts[1]

    @property
    def difference(self) -> float:
        return abs(self.shares[0] - self.shares[1])


def uneven_findings(
    scores: pl.LazyFrame, attacks: Sequence[str], unscored: pl.LazyFrame
) -> pl.DataFrame:
    """Rows of check ``uneven_scores`` about attacks (``most`` or ``more`` uneven) and classes."""
    counts = pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
    classes = scores.filter(counts).select(pl.col("member").n_unique()).collect().item()
    found = find_uneven_scores(scores, counts, attacks, unscored=unscored) if classes == 2 else None
    rows: list[dict[str, object]] = []
    if found is not None:
        most = {"verdict": "most", "value": found.difference, "p_value": found.p_value}
        rows = [{"subject": name, "statistic": "difference"} | most for name in found.attacks]
        for name in found.others:
            rows.append({"subject": name, "statistic": "difference", "verdict": "more"})
        rows += class_rows(found)
    of = {"check": "uneven_scores"}
    return pl.DataFrame([of | row for row in rows], schema=Findings.create_empty().schema)


def class_rows(
    found: UnevenScores, names: tuple[str, str] = ("members", "non-members")
) -> list[dict[str, object]]:
    """Make rows of findings of what is missing of each class."""
    rows: list[dict[str, object]] = []
    for which, name in enumerate(names):
        figures = {
            "n_unscored": found.n_unscored[which],
            "n_texts": found.n_texts[which],
            "share": found.shares[which],
        }
        rows += [{"subject": name, "statistic": each, "value": figures[each]} for each in figures]
        rows[-3]["reason"] = found.reasons[which]
    return rows


def find_uneven_scores(
    scores: pl.LazyFrame,
    counts: pl.Expr,
    attacks: Sequence[str],
    *,
    unscored: pl.LazyFrame | None = None,
) -> UnevenScores | None:
    """Find attacks that score one class less often than the other, beyond what chance does.

    ``counts`` says which targets count. None where all shares differ by less than one in a hundred
    texts or have p above 0.01. Attacks that miss scores of the same texts are one test.
    """
    labelled = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    lost = {attack: ~pl.col(attack).is_finite().fill_null(value=False) for attack in attacks}
    counted = labelled.select(pl.len(), *(lost[name].sum().alias(name) for name in lost))
    n_texts, *n_lost = counted.collect(engine="streaming").row(0)
    alike: dict[bytes, list[str]] = {}  # attacks by what they miss, one bit for each text
    for attack, n in zip(attacks, n_lost, strict=True):
        if n:
            bits = np.packbits(read_numbers(labelled, lost[attack], n_texts, np.bool_))
            alike.setdefault(bits.tobytes(), []).append(attack)
    if not alike:
        return None
    hashes = labelled.select("member", pl.col("cluster").hash()).collect(engine="streaming")
    member = hashes["member"].to_numpy()
    cluster = np.unique(hashes["cluster"].to_numpy(), return_inverse=True)[1]
    tests = []
    for packed, names in alike.items():
        missing = np.unpackbits(np.frombuffer(packed, np.uint8), count=member.size)
        tests.append(_compare(tuple(names), missing, member, cluster))
    adjusted = [one._replace(p_value=min(1.0, len(tests) * one.p_value)) for one in tests]
    uneven = [
        one
        for one in sorted(adjusted, key=lambda one: -one.difference)
        if one.difference >= _WORTH_SAYING and one.p_value <= _SIGNIFICANT
    ]
    if not uneven:
        return None
    most, *others = uneven
    named = {} if unscored is None else _reasons(labelled, unscored, most.attacks[0])
    return most._replace(
        reasons=(named.get(True), named.get(False)),
        others=tuple(name for one in others for name in one.attacks),
    )


def _compare(
    attacks: tuple[str, ...], lost: NDArray[np.uint8], member: Flags, cluster: Codes
) -> UnevenScores:
    """Test counts divided by the design effect, for texts of one cluster are lost together.

    Rao & Scott (1992), "A simple method for the analysis of clustered binary data".
    """
    from scipy.stats import fisher_exact

    n_texts = int(member.sum()), int((~member).sum())
    n_lost = int(lost[member].sum()), int(lost[~member].sum())
    table = np.array([[k, n - k] for k, n in zip(n_lost, n_texts, strict=True)])
    # Variance of the classes' difference by clusters, over that by texts, as if they missed alike.
    terms = (member - member.mean()) * (lost - lost.mean())
    of_texts = float(np.square(terms).sum())
    of_clusters = float(np.square(np.bincount(cluster, terms)).sum())
    effect = max(1.0, of_clusters / of_texts) if of_texts else 1.0
    p_value = float(fisher_exact(np.rint(table / effect).astype(np.int64)).pvalue)
    return UnevenScores(attacks, n_texts, n_lost, p_value)


def _reasons(labelled: pl.LazyFrame, unscored: pl.LazyFrame, attack: str) -> dict[bool, str]:
    """Most frequent reason of each class, the first in the alphabet of several."""
    of_attack = unscored.filter(attack=attack).select("target_id", "reason")
    found = (
        labelled.select("target_id", "member")
        .join(of_attack, on="target_id")
        .group_by("member")
        .agg(pl.col("reason").mode().sort().first())
        .collect(engine="streaming")
    )
    return dict(found.iter_rows())
