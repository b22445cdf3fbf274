"""Whether a service changed while it was asked: the versions it names, and scores by time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from mia_batch.inference.findings import finding_rows
from mia_batch.stats import Floats

LEVEL = 0.01
"""Share of services that do not change and whose scores are said to have moved; of all tests."""
FEW = 0.01
"""Share of answers from other versions that moves no p-value by more than about itself."""
_N_ORDERS = 1999
_MOST_SHUFFLED = 2000  # values; of more, the limit of the statistic is near enough
_LEAST = 8  # texts of a set whose scores are tested
_NAMED, _LONGEST = 3, 60  # versions that are named, and characters of a name

SETS: Final[Mapping[str, pl.Expr]] = {
    "comparison texts": (
        (pl.col("role") == "non_member")
        | ((pl.col("role") == "target") & pl.col("member").eq(other=False))
    ),
    "audited texts": (pl.col("role") == "target") & pl.col("member").is_null(),
    "members": (pl.col("role") == "target") & pl.col("member"),
    "calibration texts": pl.col("role") == "calibration",
    "canaries": pl.col("role") == "canary",
}
"""Sets of texts whose scores are tested, each by itself; none is in two of them."""


def change_point(values: Floats) -> tuple[int, float]:
    r"""Find after how many values in a row their level changes most, and how far.

    With ranks \(R_i\) (ties share a mean rank) the distance is \(K = \max_k |U_k|\),
    \(U_k = 2 \sum_{i \le k} R_i - k (n + 1)\): Pettitt (1979), "A non-parametric
    approach to the change-point problem", Applied Statistics 28(2), section 2.3.
    """
    sums = np.abs(_sums(_centred_ranks(values)))
    k = int(sums.argmax())
    return k + 1, float(sums[k])


def change_p_value(values: Floats, seed: int) -> float:
    r"""Test whether values come in an order drawn by lot, against a change of their level.

    Where the order was drawn by lot, every other order was as likely, whatever the
    values depend on: the p-value is the share of 2,000 orders, this one included, whose
    distance `change_point` is as large. Of more than 2,000 values it is that of the
    limit, the largest distance of a Brownian bridge (Rosen 1965; Kolmogorov's
    distribution).
    """
    from scipy.special import kolmogorov

    ranks = _centred_ranks(values)
    distance = float(np.abs(_sums(ranks)).max())
    if distance == 0:
        return 1.0
    if ranks.size > _MOST_SHUFFLED:
        return float(kolmogorov(distance / np.sqrt(np.square(ranks).sum())))
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(ranks, (_N_ORDERS, 1)), axis=1)
    as_large = np.abs(_sums(shuffled)).max(axis=1) >= distance - 1e-9
    return float(1 + as_large.sum()) / (1 + _N_ORDERS)


def _centred_ranks(values: Floats) -> Floats:
    from scipy.stats import rankdata

    return 2 * rankdata(values) - (values.size + 1)


def _sums(ranks: Floats) -> Floats:
    sums: Floats = ranks.cumsum(axis=-1)
    return sums


def score_rows(scores: pl.DataFrame, seed: int) -> list[dict[str, Any]]:
    """Test scores of each set of texts against the order of asking, which was drawn by lot.

    ``scores`` has ``role``, ``member`` and ``score`` in that order. p-values are Holm's
    over the sets, so that all tests together have the level `LEVEL`, however texts of a
    group depend on each other: the lot is drawn text by text.
    """
    scored = scores.filter(pl.col("score").is_finite())
    sets = {name: scored.filter(own)["score"].to_numpy() for name, own in SETS.items()}
    sets = {name: values for name, values in sets.items() if values.size >= _LEAST}
    p_values = [change_p_value(values, seed) for values in sets.values()]
    adjusted = dict(zip(sets, _holm(p_values), strict=True))
    rows = []
    for name, values in sets.items():
        k, _ = change_point(values)
        after = values[k:].mean() if k < values.size else values.mean()
        rows.append(
            {
                "subject": name,
                "statistic": "change_after",
                "value": k,
                "low": values[:k].mean(),
                "high": after,
                "p_value": adjusted[name],
                "verdict": "moves" if adjusted[name] <= LEVEL else "steady",
            }
        )
    return rows


def by_time(scores: pl.DataFrame, responses: pl.DataFrame) -> pl.DataFrame:
    """Sort scores by when each text was first asked about; of a ``cluster`` the mean of both.

    That is the order of a run that has grown: texts that were added are asked last, so
    that the lot says nothing of them, and only clusters can be exchanged.
    """
    first = responses.group_by("target_id").agg(time=pl.col("sent").min())
    timed = scores.filter(pl.col("score").is_finite()).join(first, on="target_id")
    means = timed.group_by("cluster", "role", "member", maintain_order=True).agg(
        pl.col("target_id").first(), pl.col("time").mean(), pl.col("score").mean()
    )
    return means.sort("time", maintain_order=True)


def _holm(p_values: list[float]) -> list[float]:
    """Adjust p-values for several tests (Holm 1979)."""
    order, adjusted, largest = (
        np.argsort(p_values, kind="stable"),
        [1.0] * len(p_values),
        0.0,
    )
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def version_rows(
    responses: pl.DataFrame, roles: pl.DataFrame, seed: int, *, by_lot: bool
) -> list[dict[str, Any]]:
    """Say whether answers came from several versions, and whether these depend on time or role.

    ``responses`` are in the order of their times, ``roles`` says of texts whether they
    are ``compared`` or not. Verdicts: ``changed``, ``uneven`` (one set of texts met
    another mixture), ``few``, ``in_turn``; no row where there is one version.
    """
    names = ("served_model", "system_fingerprint")
    version = pl.concat_str(pl.col(names).fill_null("not given"), separator=", ")
    n_names = responses.select(pl.col(names).n_unique()).row(0)
    if n_names[0] <= 1:
        version = pl.col("system_fingerprint").fill_null("not given")
    versions = responses.select("target_id", "view", "n_samples", version=version)
    counts = Counter(versions["version"].to_list())
    if len(counts) <= 1:
        return []
    in_time = list(dict.fromkeys(versions["version"]))
    most, n_most = counts.most_common(1)[0]
    units = versions.group_by("view", "target_id", maintain_order=True).agg(
        share=(pl.col("version") == most).mean()
    )
    shares = units["share"].to_numpy()
    p_time = change_p_value(shares, seed)
    p_role = _role_p_value(units, roles, seed)
    share_of_others = 1 - n_most / responses.height
    verdict = "in_turn"
    if not by_lot:
        verdict = "changed"
    elif share_of_others <= FEW:
        verdict = "few"
    elif p_time <= LEVEL:
        verdict = "changed"
    elif p_role <= LEVEL:
        verdict = "uneven"
    rows: list[dict[str, Any]] = [
        {
            "statistic": "n_versions",
            "value": len(counts),
            "low": responses.height - n_most,
            "high": responses.height,
            "p_value": min(p_time, p_role) if by_lot else None,
            "verdict": verdict,
        }
    ]
    shown = [name for name in in_time if name == most or name in in_time[:_NAMED]][
        -_NAMED:
    ]
    of_each = {"statistic": "n_answers"}
    return rows + [
        of_each | {"subject": name[:_LONGEST], "value": counts[name]} for name in shown
    ]


def _role_p_value(units: pl.DataFrame, roles: pl.DataFrame, seed: int) -> float:
    """Permutation test of the difference between the shares of two sets of texts."""
    of_texts = units.group_by("target_id", maintain_order=True).agg(
        pl.col("share").mean()
    )
    # Texts that the input no longer has, and answers to older versions, have no role:
    # left out.
    known = of_texts.join(roles, on="target_id", how="inner", maintain_order="left")
    shares, compared = known["share"].to_numpy(), known["compared"].to_numpy()
    if compared.all() or not compared.any():
        return 1.0
    centred = shares - shares.mean()
    rng = np.random.default_rng(seed)
    observed = abs(centred[compared].sum())
    drawn = (abs(rng.permutation(centred)[compared].sum()) for _ in range(_N_ORDERS))
    as_large = sum(sum_of_set >= observed - 1e-9 for sum_of_set in drawn)
    return float(1 + as_large) / (1 + _N_ORDERS)


def order_findings(
    scores: pl.DataFrame,
    responses: pl.DataFrame,
    seed: int,
    *,
    by_lot: bool,
    exploratory: bool,
) -> pl.DataFrame:
    """Rows of check ``order``; the verdict of its ``answer`` closes or marks all comparisons.

    ``scores`` has ``target_id``, ``role``, ``member`` and ``score`` in the order of
    asking; empty where that is unknown.
    """
    compared = SETS["comparison texts"].fill_null(value=False)
    roles = scores.select("target_id", compared=compared)
    rows = (
        version_rows(responses, roles, seed, by_lot=by_lot) if responses.height else []
    )
    rows += score_rows(scores, seed)
    moved = {row.get("verdict") for row in rows} & {"changed", "uneven", "moves"}
    if moved:
        verdict = "exploratory" if exploratory else "withheld"
        rows.append(
            {"statistic": "answer", "verdict": verdict, "reason": change_reason(rows)}
        )
    return finding_rows("order", rows)


def change_reason(rows: list[dict[str, Any]]) -> str:
    """Say in one clause what changed."""
    named = [row for row in rows if row["statistic"] == "n_answers"]
    verdict = next(
        (row["verdict"] for row in rows if row["statistic"] == "n_versions"), None
    )
    if verdict == "uneven":
        counted = " and ".join(_counted(named))
        return (
            "audited and comparison texts met different versions of the service"
            f" ({counted})"
        )
    found = (
        ", then ".join(_counted(named))
        if verdict == "changed"
        else "; ".join(_moves(rows))
    )
    return f"the service changed while it was asked ({found})"


def _counted(named: list[dict[str, Any]]) -> Iterator[str]:
    for row in named:
        n = row["value"]
        yield f"{n:,.0f} answer{'s' * (n != 1)} of version {row['subject']}"


def _moves(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row.get("verdict") == "moves":
            way = "fell" if row["high"] < row["low"] else "rose"
            yield (
                f"scores of {row['subject']} {way} after the first {row['value']:,.0f},"
                f" p = {row['p_value']:.2g}"
            )
