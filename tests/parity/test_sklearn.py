"""ROC curves against scikit-learn: ties, classes, what is no number, and sizes."""

import numpy as np
import polars as pl
import pytest
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning

from mia_batch.metrics import evaluate
from mia_batch.stats.intervals import roc_auc, roc_curve


@pytest.mark.parametrize("n", [2, 10, 1000, 100_000])
@pytest.mark.parametrize("distinct", [1, 3, 1_000_000])
def test_curve_and_area(n, distinct):
    rng = np.random.default_rng(n + distinct)
    member = rng.permutation(np.arange(n) % 2 == 0)
    score = rng.integers(0, distinct, n) / 7
    curve = roc_curve(member, score)
    fpr, tpr, threshold = metrics.roc_curve(
        member.astype(int), score, pos_label=1, drop_intermediate=False
    )
    assert np.array_equal(curve.fpr, fpr)
    assert np.array_equal(curve.tpr, tpr)
    assert np.array_equal(curve.threshold, threshold)
    theirs = metrics.roc_auc_score(member.astype(int), score)
    assert roc_auc(member, score) == pytest.approx(theirs, rel=1e-12)


def area(frame: pl.DataFrame) -> tuple[float | None, int]:
    """AUC of a labelled run, and how many targets are unscored."""
    table = evaluate(frame.lazy(), ["a_v1"], preset="default").filter(metric="roc_auc")
    return table["value"].item(), table["n_unscored"].item()


def test_infinities_keep_their_order_in_the_curve():
    """scikit-learn refuses them in the area, so it is given ranks."""
    score = np.array([np.inf, 3.0, -np.inf, 3.0, np.inf, 1.0])
    member = np.array([True, True, True, False, False, False])
    ranks = np.unique(score, return_inverse=True)[1]
    assert roc_auc(member, score) == pytest.approx(metrics.roc_auc_score(member, ranks))


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), float("-inf")])
def test_a_run_leaves_out_what_is_no_finite_number_and_counts_it(missing):
    rng = np.random.default_rng(0)
    member, score = rng.random(300) < 0.4, rng.integers(0, 20, 300).astype(float)
    values = [
        missing if number % 7 == 0 else value for number, value in enumerate(score)
    ]
    kept = np.arange(300) % 7 > 0
    frame = pl.DataFrame(
        {"member": member, "a_v1": values}, schema_overrides={"a_v1": pl.Float64}
    )
    value, n_unscored = area(frame)
    assert value == pytest.approx(
        metrics.roc_auc_score(member[kept], score[kept]), rel=1e-12
    )
    assert n_unscored == 43


@pytest.mark.parametrize("member", [True, False])
@pytest.mark.parametrize("n", [1, 9])
def test_where_scikit_learn_has_no_area_there_is_none(n, member):
    labels, score = np.full(n, member), np.arange(n, dtype=float)
    with pytest.warns(UndefinedMetricWarning):
        assert np.isnan(metrics.roc_auc_score(labels, score))
    assert area(pl.DataFrame({"member": labels, "a_v1": score})) == (None, 0)
