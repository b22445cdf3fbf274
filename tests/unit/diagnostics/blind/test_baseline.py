from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.diagnostics.blind import BLIND_CLASSIFIERS, blind_baseline
from mia_batch.schemas import Metrics

WORDS = np.array([f"{letter}{letter}" for letter in "abcdefghijklmnopqrst"])


def texts(label, *, group=None, seed=0, n_words=8, mark=None):
    """Random words; texts of the first class, or those marked, have one more."""
    generator = np.random.default_rng(seed)
    drawn = [" ".join(generator.choice(WORDS, n_words)) for _ in label]
    marks = [""] * len(label) if mark is None else mark
    columns = {
        "target_id": [f"{place:04}" for place in range(len(label))],
        "target": [f"{text} {mark}" for text, mark in zip(drawn, marks, strict=True)],
        "member": label,
        "group": group if group is None else list(map(str, group)),
        "document_id": None,
    }
    schema = {"member": pl.Boolean, "group": pl.String, "document_id": pl.String}
    return pl.LazyFrame(columns, schema_overrides=schema)


def coin(n, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(n) < n // 2)


@pytest.fixture(scope="module")
def separable():
    label = coin(60)
    return blind_baseline(texts(label, mark=np.where(label, "old", "new")))


def test_labels_that_a_word_gives_away_are_separable(separable):
    assert separable.verdict == "separable"
    assert separable.p_value == pytest.approx(1 / 20)  # of 19 permutations
    assert separable.auc == separable.metrics["value"].max()
    assert separable.auc is not None
    assert separable.auc > 0.99


def test_rows_of_the_metrics_table(separable):
    metrics = Metrics.validate(separable.metrics)
    assert metrics["attack"].to_list() == list(BLIND_CLASSIFIERS)
    assert metrics.select("metric", "slice", "confidence").unique().row(0) == (
        "roc_auc",
        "all",
        0.95,
    )
    assert metrics.select("n_members", "n_nonmembers", "n_unscored").unique().row(0) == (30, 30, 0)
    assert (metrics["low"] < metrics["high"]).all()
    assert metrics["reason"].null_count() == 5


def test_scores_are_of_every_text_used(separable):
    scores = separable.scores
    assert scores.columns == ["target_id", *BLIND_CLASSIFIERS]
    assert scores["target_id"].to_list() == [f"{place:04}" for place in range(60)]
    values = scores.drop("target_id")
    assert values.min_horizontal().min() > 0
    assert values.max_horizontal().max() < 1
    # No year in any text: each text scores as the mean of its fold.
    assert values["blind_year_v1"].unique().to_list() == [0.5]


def test_few_texts_decide_nothing():
    found = blind_baseline(texts(coin(24, seed=1)))
    assert found.verdict == "undecided"
    assert found.upper is not None
    assert found.upper > 0.60


def test_labels_by_coin_of_many_texts_are_not_separable():
    found = blind_baseline(texts(coin(1000, seed=2), n_words=3))
    assert found.verdict == "not separable"
    assert found.upper is not None
    assert 0.5 < found.upper <= 0.60
    assert found.scores.height == 1000


def test_what_only_marks_groups_is_no_difference_between_classes():
    """Every group has a word of its own: a giveaway of labels only if it is seen in training."""
    group = np.repeat(np.arange(30), 4)
    label = np.repeat(coin(30), 4)
    marks = [f"group{number}x" * 2 for number in group]
    alone, grouped = (
        blind_baseline(texts(label, group=groups, mark=marks)) for groups in (None, group)
    )
    assert alone.verdict == "separable"
    assert grouped.p_value is not None
    assert grouped.p_value > 0.05


def test_the_order_of_rows_means_nothing():
    rows = texts(coin(40))
    found, turned = blind_baseline(rows), blind_baseline(rows.reverse())
    assert_frame_equal(found.scores, turned.scores)
    assert_frame_equal(found.metrics, turned.metrics)
    assert found.p_value == turned.p_value


def test_another_seed_deals_other_folds():
    rows = texts(coin(40))
    assert blind_baseline(rows, seed=1).auc != blind_baseline(rows, seed=2).auc


@pytest.mark.parametrize("label", [[True] * 5, [False] * 5, [True] + [False] * 9])
def test_without_five_clusters_of_a_class_there_is_a_reason(label):
    found = blind_baseline(texts(label))
    assert found.verdict is None
    assert found.reason == "each class needs texts of 5 clusters"
    assert Metrics.validate(found.metrics)["reason"].unique().to_list() == [found.reason]
    assert found.metrics["value"].null_count() == 5
    assert found.scores.shape == (0, 6)


def test_null_texts_are_left_out_and_counted():
    rows = texts(coin(20)).with_columns(
        target=pl.when(pl.col("target_id") != "0003").then("target")
    )
    found = blind_baseline(rows)
    assert found.scores.height == 19
    assert found.metrics["n_unscored"].to_list() == [1] * 5


@pytest.mark.parametrize(
    ("length", "words", "year"),
    [pytest.param(64, 0.96, 0.91, marks=pytest.mark.long), (128, 0.91, 0.90)],
)
def test_figures_of_wikimia(shared_data, length, words, year):
    lines = (shared_data / "wikimia" / f"{length}.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = blind_baseline(
        pl.LazyFrame(
            {
                "target_id": [f"{place:04}" for place in range(len(rows))],
                "target": [row["input"] for row in rows],
                "member": [row["label"] == 1 for row in rows],
                "group": pl.Series([None] * len(rows), dtype=pl.String),
                "document_id": pl.Series([None] * len(rows), dtype=pl.String),
            }
        )
    )
    auc = dict(found.metrics.select("attack", "value").iter_rows())
    assert auc["blind_naive_bayes_v1"] == pytest.approx(words, abs=0.02)
    assert auc["blind_year_v1"] == pytest.approx(year, abs=0.02)
    assert found.auc is not None
    assert found.auc >= auc["blind_naive_bayes_v1"]
    assert found.verdict == "separable"
