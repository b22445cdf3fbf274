from __future__ import annotations

from importlib import import_module

import numpy as np
import polars as pl
import pytest

from mia_batch.metrics.evaluate import evaluate
from mia_batch.metrics.labels import Labelled
from mia_batch.stats.bootstrap import resample
from mia_batch.stats.influence import estimate_auc

parts = import_module("mia_batch.metrics.parts")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of runs that are small enough for tests."""
    monkeypatch.setattr(parts, "_MOST_TEXTS", 400)
    monkeypatch.setattr(parts, "_FEWEST_UNITS", 40)
    monkeypatch.setattr(parts, "_N_RESAMPLES_OF_PARTS", 300)


def labelled(member, cluster=None, slices=None):
    return Labelled(
        scores=pl.LazyFrame(),
        calibration=None,
        member=member,
        cluster=cluster,
        slices={"all": slice(None), **(slices or {})},
    )


def groups(n_groups, size, rng, *, auc_shift=1.0):
    """Texts of groups, half of them members, that share half of their variance."""
    cluster = np.repeat(np.arange(n_groups, dtype=np.int32), size)
    member = cluster < n_groups // 2
    noise = rng.normal(size=n_groups)[cluster] + rng.normal(size=cluster.size)
    return member, cluster, noise / 2**0.5 + auc_shift * member


def test_few_texts_are_all_in_one_part_of_all_slices():
    member = np.arange(400) % 2 == 0
    made = labelled(member, slices={"some": np.arange(10)})
    (part,) = parts.find_parts(made, 7)
    assert (part.rows, part.share, part.seed, part.n_resamples) == (slice(None), 1.0, 7, 2000)
    assert list(part.slices) == ["all", "some"]


def test_of_many_texts_each_slice_has_a_part_with_the_same_share_of_each_class():
    member = np.arange(4000) < 1000
    slices = {"late": np.arange(500, 2500), "members": np.arange(10), "few": np.arange(990, 1010)}
    everything, late, few = parts.find_parts(labelled(member, slices=slices), 0)
    assert (everything.share, everything.rows.size, everything.member.sum()) == (0.1, 400, 100)
    assert (late.share, late.rows.size, late.member.sum()) == (0.2, 400, 100)
    assert late.rows.min() >= 500
    assert late.rows.max() < 2500
    assert (late.member == member[late.rows]).all()
    assert (few.share, few.rows.tolist()) == (1.0, list(range(990, 1010)))
    assert len({everything.seed, late.seed, few.seed}) == 3


@pytest.mark.parametrize(("n_groups", "share"), [(400, 0.2), (100, 0.8), (60, 1.0)])
def test_groups_are_in_a_part_whole_and_are_not_too_few(n_groups, share):
    """400 of 2,000 texts are a quintile; of 50 groups of each class 40 are kept, of 30 all."""
    member, cluster, _ = groups(n_groups, 2000 // n_groups, np.random.default_rng(0))
    (part,) = parts.find_parts(labelled(member, cluster), 0)
    assert part.share == pytest.approx(max(share, 400 / member.size))
    kept, sizes = np.unique(cluster[part.rows], return_counts=True)
    assert kept.size == round(part.share * n_groups / 2) * 2
    assert (sizes == 2000 // n_groups).all()
    assert np.unique(part.units.code).tolist() == list(range(kept.size))


def test_groups_of_both_classes_are_chosen_from_among_all():
    cluster = np.repeat(np.arange(400, dtype=np.int32), 5)
    member = np.arange(2000) % 2 == 0
    (part,) = parts.find_parts(labelled(member, cluster), 0)
    assert len(part.units.strata) == 1
    assert part.units.strata[0].size == 80


def test_deviations_shrink_with_the_share_around_the_whole_area():
    member = np.arange(1600) % 2 == 0
    (part,) = parts.find_parts(labelled(member), 0)
    draws = np.array([[0.6, 0.2], [0.8, 0.4], [np.nan, np.nan]])
    made = part.widened(draws, 0.75)
    assert part.share == 0.25
    assert made[:2] == pytest.approx(np.array([[0.7, 0.25], [0.8, 0.35]]))
    assert np.isnan(made[2]).all()


def test_an_attack_that_scored_less_than_half_of_a_part_has_no_resamples():
    member = np.arange(1600) % 2 == 0
    (part,) = parts.find_parts(labelled(member), 0)
    score = np.where(np.arange(1600) % 4 == 1, np.nan, 1.0)
    assert [name for name, _ in part.rankings(np.ones(1600))] == ["all"]
    assert [name for name, _ in part.rankings(np.where(member, np.nan, 1.0))] == []
    assert [name for name, _ in part.rankings(np.where(np.arange(1600) > 300, np.nan, score))] == []


def test_the_spread_of_a_part_is_that_of_all_texts():
    """Obuchowski's standard error of all groups."""
    rng = np.random.default_rng(0)
    member, cluster, score = groups(800, 10, rng)
    estimate, _ = estimate_auc(member, score, cluster)
    (part,) = parts.find_parts(labelled(member, cluster), 0)
    assert part.share == pytest.approx(40 / 400)
    ((_, ranking),) = part.rankings(score)
    drawn = resample([ranking], part.units, seed=part.seed, n_resamples=400)[:, 0]
    made = part.widened(drawn, estimate.value)
    assert made.mean() == pytest.approx(estimate.value, abs=1e-12)
    assert made.std() == pytest.approx(estimate.variance**0.5, rel=0.2)


def test_intervals_by_parts_say_so_and_others_are_those_of_all_texts(monkeypatch):
    member, cluster, score = groups(400, 5, np.random.default_rng(0))
    frame = pl.DataFrame(
        {"member": member, "group": cluster.astype(str), "a": score, "b": score**3}
    ).with_columns(c=pl.when(pl.int_range(pl.len()) % 5 == 0).then("a"))
    found = evaluate(frame.lazy(), ["a", "b", "c"], preset="default", primary="a")
    monkeypatch.setattr(parts, "_MOST_TEXTS", 10_000)
    whole = evaluate(frame.lazy(), ["a", "b", "c"], preset="default", primary="a")
    assert found["value"].to_list() == whole["value"].to_list()
    bounds = [
        table.filter(metric="roc_auc_simultaneous")["low"].to_numpy() for table in (found, whole)
    ]
    assert np.abs(bounds[0] - bounds[1]).max() < 0.02
