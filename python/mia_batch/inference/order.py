"""Changes of a service while it was asked: by the versions it names, and scores by time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from mia_batch.inference.findings import finding_rows
from mia_batch.stats import Floats
from mia_batch.stats.intervals import holm

LEVEL = 0.01
"""Share of services that do not change and whose scores are said to have moved; of all tests."""
FEW = 0.01
"""Share of answers from other versions that moves no p-value by more than about itself."""
_N_ORDERS = 1999
_MOST_SHUFFLED = 2000  # values; of more, the limit of the statistic is near enough
_FEWEST = 8  # texts of a set whose scores are tested
_MOST_NAMED = 3  # versions
_LONGEST_NAME = 60  # characters

_IS_TARGET = pl.col("role") == "target"
SETS: Final[Mapping[str, pl.Expr]] = {
    "comparison texts": (
        (pl.col("role") == "non_member")
        | (_IS_TARGET & pl.col("member").eq(other=False))
    ),
    "audited texts": _IS_TARGET & pl.col("member").is_null(),
    "members": _IS_TARGET & pl.col("member"),
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
    distances = np.abs(_cumulate(_centred_ranks(values)))
    k = int(distances.argmax())
    return k + 1, float(distances[k])


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
    distance = float(np.abs(_cumulate(ranks)).max())
    if distance == 0:
        return 1.0
    if ranks.size > _MOST_SHUFFLED:
        return float(kolmogorov(distance / np.sqrt(np.square(ranks).sum())))
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(ranks, (_N_ORDERS, 1)), axis=1)
    distances = np.abs(_cumulate(shuffled)).max(axis=1)
    n_as_large = (distances >= distance - 1e-9).sum()
    return float(1 + n_as_large) / (1 + _N_ORDERS)


def _centred_ranks(values: Floats) -> Floats:
    from scipy.stats import rankdata

    return 2 * rankdata(values) - (values.size + 1)


def _cumulate(ranks: Floats) -> Floats:
    sums: Floats = ranks.cumsum(axis=-1)
    return sums


def score_rows(scores: pl.DataFrame, seed: int) -> list[dict[str, Any]]:
    """Test scores of each set of texts against the order of asking, which was drawn by lot.

    ``scores`` has ``role``, ``member`` and ``score`` in that order. p-values are Holm's
    over the sets, so that all tests together have the level `LEVEL`, however texts of a
    group depend on each other: the lot is drawn text by text.
    """
    scored = scores.filter(pl.col("score").is_finite())
    sets = dict[str, Floats]()
    for name, is_in_set in SETS.items():
        values = scored.filter(is_in_set)["score"].to_numpy()
        if values.size >= _FEWEST:
            sets[name] = values
    p_values = [change_p_value(values, seed) for values in sets.values()]
    adjusted = holm(np.array(p_values)).tolist()
    rows = []
    for (name, values), p_value in zip(sets.items(), adjusted, strict=True):
        k, _ = change_point(values)
        is_last = k == values.size
        rows.append(
            {
                "subject": name,
                "statistic": "change_after",
                "value": k,
                "low": values[:k].mean(),
                "high": (values if is_last else values[k:]).mean(),
                "p_value": p_value,
                "verdict": "moves" if p_value <= LEVEL else "steady",
            }
        )
    return rows


def sort_by_time(scores: pl.DataFrame, responses: pl.DataFrame) -> pl.DataFrame:
    """Sort scores by when each text was first asked about; of a ``cluster`` the mean of both.

    That is the order of a run that has grown: texts that were added are asked last, so
    that the lot says nothing of them, and only clusters can be exchanged.
    """
    times = responses.group_by("target_id").agg(time=pl.col("sent").min())
    scored = scores.filter(pl.col("score").is_finite())
    timed = scored.join(times, on="target_id")
    clusters = timed.group_by("cluster", "role", "member", maintain_order=True)
    means = clusters.agg(
        pl.col("target_id").first(),
        pl.col("time").mean(),
        pl.col("score").mean(),
    )
    return means.sort("time", maintain_order=True)


def version_rows(
    responses: pl.DataFrame,
    roles: pl.DataFrame,
    seed: int,
    *,
    by_lot: bool,
) -> list[dict[str, Any]]:
    """Count answers by version, and test whether versions depend on time or role.

    ``responses`` are in the order of their times, ``roles`` says of texts whether they
    are ``compared`` or not. Verdicts: ``changed``, ``uneven`` (one set of texts met
    another mixture), ``few``, ``in_turn``; no row where there is one version.
    """
    versions = responses.select("target_id", "view", version=_name_version(responses))
    counts = Counter(versions["version"].to_list())
    if len(counts) <= 1:
        return []
    main_version, n_main = counts.most_common(1)[0]
    units = versions.group_by("view", "target_id", maintain_order=True).agg(
        share=(pl.col("version") == main_version).mean()
    )
    p_time = change_p_value(units["share"].to_numpy(), seed)
    p_role = _role_p_value(units, roles, seed)
    share_of_others = 1 - n_main / responses.height
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
            "low": responses.height - n_main,
            "high": responses.height,
            "p_value": min(p_time, p_role) if by_lot else None,
            "verdict": verdict,
        }
    ]
    in_time = list(counts)
    first = in_time[:_MOST_NAMED]
    listed = [name for name in in_time if name == main_version or name in first]
    rows += [
        {
            "statistic": "n_answers",
            "subject": name[:_LONGEST_NAME],
            "value": counts[name],
        }
        for name in listed[-_MOST_NAMED:]
    ]
    return rows


def _name_version(responses: pl.DataFrame) -> pl.Expr:
    """Build the name of an answer's version, without a model's name that all share."""
    names = pl.col("served_model", "system_fingerprint")
    n_served_models = responses["served_model"].n_unique()
    if n_served_models <= 1:
        return pl.col("system_fingerprint").fill_null("not given")
    return pl.concat_str(names.fill_null("not given"), separator=", ")


def _role_p_value(units: pl.DataFrame, roles: pl.DataFrame, seed: int) -> float:
    """Permutation test of the difference between the shares of two sets of texts."""
    texts = units.group_by("target_id", maintain_order=True)
    mean_shares = texts.agg(pl.col("share").mean())
    # Texts that the input no longer has, and answers to older versions, have no role:
    # left out.
    with_roles = mean_shares.join(
        roles,
        on="target_id",
        how="inner",
        maintain_order="left",
    )
    shares = with_roles["share"].to_numpy()
    compared = with_roles["compared"].to_numpy()
    if compared.all() or not compared.any():
        return 1.0
    centred = shares - shares.mean()
    observed = abs(centred[compared].sum())
    rng = np.random.default_rng(seed)
    n_as_large = 0
    for _ in range(_N_ORDERS):
        drawn_sum = abs(rng.permutation(centred)[compared].sum())
        n_as_large += int(drawn_sum >= observed - 1e-9)
    return float(1 + n_as_large) / (1 + _N_ORDERS)


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
    rows = list[dict[str, Any]]()
    if responses.height:
        rows += version_rows(responses, roles, seed, by_lot=by_lot)
    rows += score_rows(scores, seed)
    verdicts = {row.get("verdict") for row in rows}
    if verdicts & {"changed", "uneven", "moves"}:
        answer = {
            "statistic": "answer",
            "verdict": "exploratory" if exploratory else "withheld",
            "reason": change_reason(rows),
        }
        rows.append(answer)
    return finding_rows("order", rows)


def change_reason(rows: list[dict[str, Any]]) -> str:
    """Return one clause on what changed."""
    verdict = None
    for row in rows:
        if row["statistic"] == "n_versions":
            verdict = row["verdict"]
    if verdict == "uneven":
        versions = " and ".join(_count_answers(rows))
        return (
            "audited and comparison texts met different versions of the service"
            f" ({versions})"
        )
    if verdict == "changed":
        changes = ", then ".join(_count_answers(rows))
    else:
        changes = "; ".join(_list_moves(rows))
    return f"the service changed while it was asked ({changes})"


def _count_answers(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["statistic"] == "n_answers":
            n = row["value"]
            noun = "answer" if n == 1 else "answers"
            yield f"{n:,.0f} {noun} of version {row['subject']}"


def _list_moves(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row.get("verdict") == "moves":
            direction = "fell" if row["high"] < row["low"] else "rose"
            yield (
                f"scores of {row['subject']} {direction} after the first"
                f" {row['value']:,.0f}, p = {row['p_value']:.2g}"
            )
