"""The combination learns from texts of known membership, and its p-values stay valid."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.conformal import p_values
from mia_batch.inference.sets import combination_findings, combine
from mia_batch.stats.intervals import roc_auc
from tests.unit.inference.scored import table

ATTACKS = ["a_v1", "b_v1", "c_v1"]


def texts(rng, role, n, member, *, windows=1, shift=0.0, together=0.0, name=""):
    """Texts with three scores; those of a group share ``together`` of their deviation."""
    rows = []
    for number in range(n):
        common = together * rng.normal(size=3)
        for window in range(windows):
            scores = common + rng.normal(size=3) + shift
            key = {"role": role, "member": member, "group": f"{name or role}{member}{number}"}
            columns = dict(zip(ATTACKS, scores.tolist(), strict=True))
            rows.append(key | {"window_index": window} | columns)
    return rows


def scores(*parts):
    rows = [row for part in parts for row in part]
    frame = table(rows)
    return frame.with_columns(
        pl.Series(name, [row[name] for row in rows], pl.Float64) for name in ATTACKS[1:]
    )


def combined(frame, seed=0):
    return combine(frame.lazy(), ATTACKS, seed=seed)


def in_sample(frame):
    """What must not be done: non-members teach, and are then compared with."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    known = frame.filter(pl.col("member").is_not_null())
    trees = HistGradientBoostingClassifier(min_samples_leaf=5, random_state=0)
    trees.fit(known.select(ATTACKS).to_numpy(), known["member"].to_numpy())
    return trees.decision_function(frame.select(ATTACKS).to_numpy())


def share_at_most(rng, runs, parts, score=combined, alpha=0.2):
    """Share of p-values of targets that are no members, and the standard error there should be."""
    shares, asked, null = [], np.empty(0), np.empty(0)
    for _ in range(runs):
        frame = scores(*parts(rng))
        found, of = score(frame), frame["role"].cast(pl.String)
        asked = (of == "target") & frame["member"].is_null()
        null = (of == "non_member") if (of == "non_member").any() else ~frame["member"]
        asked, null = asked.to_numpy(), (null.fill_null(False) & (of != "calibration")).to_numpy()
        shares.append(float(np.mean(p_values(found[asked], found[null]) <= alpha)))
    n, m = int(null.sum()), int(asked.sum())
    error = np.sqrt(alpha * (1 - alpha) * (n + m + 1) / (m * (n + 2) * runs))
    return float(np.mean(shares)), float(error)


def calibrated(rng):
    """Non-members and targets that have taught nothing."""
    return (
        texts(rng, "calibration", 40, True, shift=1.0),
        texts(rng, "calibration", 40, False),
        texts(rng, "non_member", 39, False),
        texts(rng, "target", 40, None),
    )


def among_all(rng):
    """Known members against the others, of which a third of the targets are members, too."""
    return (
        texts(rng, "target", 40, True, shift=1.0),
        texts(rng, "target", 39, False),
        texts(rng, "target", 40, None),
        texts(rng, "calibration", 20, True, shift=1.0),
    )


@pytest.mark.parametrize("parts", [calibrated, among_all])
def test_p_values_of_non_members_are_uniform(parts):
    share, error = share_at_most(np.random.default_rng(1), 8, parts)
    assert share == pytest.approx(0.2, abs=3 * error)


def test_non_members_that_teach_and_are_compared_with_would_be_wrong():
    """The same check finds the fault that the scheme avoids."""
    share, error = share_at_most(np.random.default_rng(1), 8, among_all, in_sample)
    assert share > 0.2 + 6 * error


def test_groups_that_move_together_are_exchanged_whole():
    """The mean of each group's windows; no group is scored by what its own windows taught."""

    def parts(rng):
        kinds = (("target", 20, True, 1.0), ("non_member", 19, False, 0), ("target", 20, None, 0))
        return [
            texts(rng, role, n, member, shift=shift, windows=4, together=2.0)
            for role, n, member, shift in kinds
        ]

    rng, shares = np.random.default_rng(2), []
    for _ in range(8):
        frame = scores(*parts(rng))
        mean = frame.with_columns(c=pl.Series(combined(frame))).group_by("role", "member", "group")
        of = mean.agg(pl.col("c").mean())
        asked = of.filter(pl.col("member").is_null())["c"].to_numpy()
        null = of.filter(pl.col("role") == "non_member")["c"].to_numpy()
        shares.append(np.mean(p_values(asked, null) <= 0.2))
    error = np.sqrt(0.2 * 0.8 * 40 / (20 * 21 * 8))
    assert np.mean(shares) == pytest.approx(0.2, abs=3 * error)


def test_a_member_that_is_seen_in_one_attack_or_another_is_found():
    rng = np.random.default_rng(3)
    frame = scores(texts(rng, "target", 300, True), texts(rng, "target", 300, False))
    shown = pl.Series(rng.integers(0, 3, frame.height))
    frame = frame.with_columns(
        pl.col(name) + 3 * (pl.col("member") & (shown == which))
        for which, name in enumerate(ATTACKS)
    )
    member = frame["member"].to_numpy()
    together = roc_auc(member, combined(frame))
    alone = max(roc_auc(member, frame[name].to_numpy()) for name in ATTACKS)
    assert together > alone + 0.1


def test_null_where_every_attack_is_and_where_there_is_too_little_to_learn_from():
    rng = np.random.default_rng(4)
    frame = scores(texts(rng, "target", 20, True, shift=1.0), texts(rng, "target", 20, False))
    lost = frame.with_columns(
        pl.when(pl.int_range(pl.len()) != 3).then(name).alias(name) for name in ATTACKS
    )
    made = combined(lost.with_columns(b_v1=pl.lit(None, pl.Float64)))
    assert np.flatnonzero(np.isnan(made)).tolist() == [3]
    assert np.isnan(combined(frame[11:])).all()
    assert combination_findings(frame[11:].lazy())["verdict"].unique().to_list() == ["too_few"]
    assert np.isfinite(combined(frame[10:])).all()
    found = combination_findings(frame[10:].lazy())
    assert found.select("statistic", "value", "verdict").rows() == [
        ("n_members", 10.0, "all"),
        ("n_others", 20.0, "all"),
    ]


def test_no_text_is_scored_by_what_its_own_group_taught():
    """Labels and scores of a group's other windows change nothing of its windows' scores."""
    rng = np.random.default_rng(5)
    parts = (
        texts(rng, "calibration", 15, True, shift=1.0, windows=2),
        texts(rng, "calibration", 15, False, windows=2),
    )
    frame = scores(*parts)
    own = (pl.col("group") == "calibrationTrue3") & (pl.col("window_index") == 1)
    changed = frame.with_columns(pl.when(~own).then(name).otherwise(-9.0) for name in ATTACKS)
    place = frame.select(own.arg_true()).item() - 1
    assert combined(changed)[place] == combined(frame)[place]
    assert (combined(changed) != combined(frame)).any()
