"""Classifiers against scikit-learn and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB

from mia_batch.diagnostics.blind import Direction, Logistic, NaiveBayes, Ridge

GENERATOR = np.random.default_rng(0)
COUNTS = GENERATOR.poisson(0.7, (40, 15)).astype(float)
TRAIN, TEST = np.arange(0, 40, 2), np.arange(1, 40, 2)
LABELS = GENERATOR.permuted(np.tile(np.arange(20)[:, None] < 8, 3), axis=0)


def test_naive_bayes_is_that_of_scikit_learn_less_the_prior():
    found = NaiveBayes(csr_array(COUNTS)).scores(TRAIN, TEST, LABELS)
    for column, label in enumerate(LABELS.T):
        joint = MultinomialNB().fit(COUNTS[TRAIN], label).predict_joint_log_proba(COUNTS[TEST])
        prior = np.log(8 / 12)
        assert found[:, column] == pytest.approx(joint[:, 1] - joint[:, 0] - prior)


def test_naive_bayes_by_hand():
    """Words a, b: members have 2 and 0, non-members 1 and 1; shares 3/4, 1/4 against 1/2, 1/2."""
    counts = csr_array(np.array([[2.0, 0.0], [1.0, 1.0], [3.0, 1.0]]))
    found = NaiveBayes(counts).scores(np.array([0, 1]), np.array([2]), np.array([[True], [False]]))
    assert found.item() == pytest.approx(3 * np.log(3 / 2) + np.log(1 / 2))


def test_logistic_regression_is_near_the_exact_one():
    found = Logistic(csr_array(COUNTS)).scores(TRAIN, TEST, LABELS)
    for column, label in enumerate(LABELS.T):
        # liblinear penalises the intercept, as if it were one more number of each text.
        values = np.column_stack([COUNTS, np.ones(40)])
        exact = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
        odds = exact.fit(values[TRAIN], label).decision_function(values[TEST])
        assert found[:, column] == pytest.approx(odds, abs=0.02)


def test_ridge_solves_its_equations():
    """Of numbers X and centred classes y, with w = (X'X + alpha)^-1 X'y."""
    similarity = COUNTS @ COUNTS.T
    found = Ridge(similarity, penalty=0.5).scores(TRAIN, TEST, LABELS)
    seen = COUNTS[TRAIN]
    alpha = 0.5 * np.mean([row @ row for row in COUNTS])
    weights = np.linalg.solve(
        seen.T @ seen + alpha * np.eye(15), seen.T @ (LABELS - LABELS.mean(axis=0))
    )
    assert found == pytest.approx(COUNTS[TEST] @ weights)


def test_ridge_of_texts_that_have_nothing_in_common():
    found = Ridge(np.zeros((4, 4)), penalty=0.1).scores(
        np.array([0, 1]), np.array([2, 3]), np.array([[True], [False]])
    )
    assert found.tolist() == [[0.0], [0.0]]


def test_direction_is_learned_from_the_training_texts():
    value = np.array([1.0, 2.0, 3.0, 2.0, 9.0])
    train, test = np.arange(3), np.array([3, 4])
    labels = np.array([[True, False, False], [False, False, True], [False, True, False]])
    found = Direction(value).scores(train, test, labels)
    # First, last, and middle text true: AUC 0, 1 and 1/2.
    assert found.tolist() == [[-2.0, 2.0, 2.0], [-9.0, 9.0, 9.0]]
