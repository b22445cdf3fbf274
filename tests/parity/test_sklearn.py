"""ROC curves against scikit-learn: the rule for ties and the classes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from mia_batch.verdict import roc_auc, roc_curve


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
    assert curve.fpr.tolist() == fpr.tolist()
    assert curve.tpr.tolist() == tpr.tolist()
    assert curve.threshold.tolist() == threshold.tolist()
    theirs = metrics.roc_auc_score(member.astype(int), score)
    assert roc_auc(member, score) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("n", [50, 5000])
@pytest.mark.parametrize("budget", [0.05, 0.1, 0.5])
def test_tpr_at_a_budget_is_a_point_of_scikit_learns_curve(n, budget):
    rng = np.random.default_rng(n)
    member = np.arange(n) % 2 == 0
    score = rng.normal(size=n) + member
    fpr, tpr, _ = metrics.roc_curve(member, score, drop_intermediate=False)
    assert roc_curve(member, score).at_fpr(budget).tpr == max(tpr[fpr <= budget])
