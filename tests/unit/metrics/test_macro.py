from __future__ import annotations

import pytest

from mia_batch.metrics.evaluate import MetricRow, macro_averages


def row(value, low, high, *, metric="roc_auc", fpr=None, reason=None):
    confidence, method = (0.95, "some") if low is not None else (None, None)
    return MetricRow(
        metric=metric, fpr=fpr, value=value, low=low, high=high, confidence=confidence,
        method=method, reason=reason,
    )  # fmt: skip


def counts(n):
    return {"n_members": n, "n_nonmembers": 2 * n, "n_unscored": 1}


def test_two_independent_buckets_by_hand():
    """Distances 0.03 and 0.04 below make 0.05, halved; 0.05 and 0.12 above make 0.13."""
    buckets = [(counts(10), [row(0.6, 0.57, 0.65)]), (counts(20), [row(0.8, 0.76, 0.92)])]
    ((sizes, average),) = macro_averages(buckets, clustered=False)
    assert average.value == pytest.approx(0.7)
    assert (average.low, average.high) == pytest.approx((0.675, 0.765))
    assert (average.method, average.confidence) == ("mover over 2", 0.95)
    assert sizes == {"n_members": 30, "n_nonmembers": 60, "n_unscored": 2}


def test_clusters_may_err_together():
    buckets = [(counts(10), [row(0.6, 0.57, 0.65)]), (counts(20), [row(0.8, 0.76, 0.92)])]
    ((_, average),) = macro_averages(buckets, clustered=True)
    assert (average.low, average.high) == pytest.approx((0.665, 0.785))
    assert average.method == "average_conservative over 2"


def test_only_buckets_that_have_the_figure_count():
    rate = {"metric": "tpr_at_fpr", "fpr": 0.01}
    buckets = [
        (counts(1), [row(None, None, None, reason="too few", **rate)]),
        (counts(2), [row(0.4, 0.3, 0.5, **rate)]),
        (counts(4), [row(0.6, 0.5, 0.7, **rate), row(0.1, 0, 1, metric="fpr_at_threshold")]),
    ]
    ((sizes, average),) = macro_averages(buckets, clustered=False)
    assert (average.metric, average.fpr, average.value) == ("tpr_at_fpr", 0.01, 0.5)
    assert average.reason is None
    assert sizes["n_members"] == 6


def test_a_bucket_without_limits_leaves_the_average_without():
    buckets = [
        (counts(1), [row(0.4, 0.3, 0.5)]),
        (counts(2), [row(0.6, None, None, reason="few groups")]),
    ]
    ((_, average),) = macro_averages(buckets, clustered=True)
    assert (average.value, average.low, average.high) == (0.5, None, None)
    assert (average.method, average.reason) == (None, "few groups")
