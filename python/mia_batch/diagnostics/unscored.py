"""Scores that one class lacks more often than the other: what is left to measure is selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.schemas import Findings
from mia_batch.stats import Codes, Flags
from mia_batch.tables import read_numbers
from mia_batch.targets import cluster_names

_SIGNIFICANT = 0.01
_WORTH_SAYING = 0.01


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassGaps:
    """What was not scored of one class."""

    n_texts: int  # texts of the class, at least one
    n_unscored: int  # those without a score
    reason: str | None = None  # their most frequent reason; None where none is known

    @property
    def share(self) -> float:
        """Share of texts without a score."""
        return self.n_unscored / self.n_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenScores:
    """Attacks that score one class less often than the other."""

    attacks: tuple[str, ...]  # those of the largest difference; they lack scores of the same texts
    members: ClassGaps  # what these lack
    nonmembers: ClassGaps
    # Fisher's exact test of these, two-sided, times the number of tests made; at most 1
    p_value: float
    others: tuple[str, ...] = ()  # further attacks that score the classes unevenly

    @property
    def difference(self) -> float:
        """How far the classes' shares of unscored texts are apart, in [0, 1]."""
        return abs(self.members.share - self.nonmembers.share)


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
        rows += [{"subject": name, "statistic": "difference"} | most for name in found.attacks]
        more: dict[str, object] = {"statistic": "difference", "verdict": "more"}
        rows += [more | {"subject": name} for name in found.others]
        rows += class_rows(found)
    of = {"check": "uneven_scores"}
    return pl.DataFrame([of | row for row in rows], schema=Findings.create_empty().schema)


def class_rows(
    found: UnevenScores, names: tuple[str, str] = ("members", "non-members")
) -> list[dict[str, object]]:
    """Make rows of findings of what each class lacks."""
    rows: list[dict[str, object]] = []
    for name, gaps in zip(names, (found.members, found.nonmembers), strict=True):
        figures = {"n_unscored": gaps.n_unscored, "n_texts": gaps.n_texts, "share": gaps.share}
        rows += [{"subject": name, "statistic": each, "value": figures[each]} for each in figures]
        rows[-3]["reason"] = gaps.reason
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
    texts or have p above 0.01. Attacks that lack scores of the same texts are one test. Texts of
    one cluster are lost together, so counts are divided by the design effect: Rao & Scott (1992),
    "A simple method for the analysis of clustered binary data".
    """
    labelled = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    alike = _alike(labelled, attacks)
    if not alike:
        return None
    hashes = labelled.select("member", pl.col("cluster").hash()).collect(engine="streaming")
    member = hashes["member"].to_numpy()
    cluster = np.unique(hashes["cluster"].to_numpy(), return_inverse=True)[1]
    made = [
        _compare(names, np.unpackbits(lost, count=member.size), member, cluster)
        for lost, names in alike
    ]
    adjusted = [replace(one, p_value=min(1.0, len(made) * one.p_value)) for one in made]
    uneven = [
        one
        for one in sorted(adjusted, key=lambda one: -one.difference)
        if one.difference >= _WORTH_SAYING and one.p_value <= _SIGNIFICANT
    ]
    if not uneven:
        return None
    most, *others = uneven
    reasons = {} if unscored is None else _reasons(labelled, unscored, most.attacks[0])
    return replace(
        most,
        members=replace(most.members, reason=reasons.get(True)),
        nonmembers=replace(most.nonmembers, reason=reasons.get(False)),
        others=tuple(name for one in others for name in one.attacks),
    )


def _alike(
    labelled: pl.LazyFrame, attacks: Sequence[str]
) -> list[tuple[NDArray[np.uint8], tuple[str, ...]]]:
    """Put attacks together that lack the same scores: one bit for each text, and their names."""
    lost = {attack: ~pl.col(attack).is_finite().fill_null(value=False) for attack in attacks}
    counted = labelled.select(pl.len(), *(lost[name].sum().alias(name) for name in lost))
    n_texts, *n_lost = counted.collect(engine="streaming").row(0)
    alike: dict[bytes, list[str]] = {}
    for attack, n in zip(attacks, n_lost, strict=True):
        if n:
            bits = np.packbits(read_numbers(labelled, lost[attack], n_texts, np.bool_))
            alike.setdefault(bits.tobytes(), []).append(attack)
    return [(np.frombuffer(bits, np.uint8), tuple(names)) for bits, names in alike.items()]


def _compare(
    attacks: tuple[str, ...], lost: NDArray[np.uint8], member: Flags, cluster: Codes
) -> UnevenScores:
    from scipy.stats import fisher_exact

    sides = [
        ClassGaps(n_texts=int(of.sum()), n_unscored=int(lost[of].sum())) for of in (member, ~member)
    ]
    table = np.array([[side.n_unscored, side.n_texts - side.n_unscored] for side in sides])
    # Variance of the classes' difference by clusters, over that by texts, as if they lacked alike.
    terms = (member - member.mean()) * (lost - lost.mean())
    of_texts = float(np.square(terms).sum())
    of_clusters = float(np.square(np.bincount(cluster, terms)).sum())
    effect = max(1.0, of_clusters / of_texts) if of_texts else 1.0
    counts = np.rint(table / effect).astype(np.int64)
    return UnevenScores(
        attacks=attacks,
        members=sides[0],
        nonmembers=sides[1],
        p_value=float(fisher_exact(counts).pvalue),
    )


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
