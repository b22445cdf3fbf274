"""Scores of several runs to rows: which texts count, and what belongs together."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mia_batch.errors import SettingsError
from mia_batch.inference.paired import compare_scores


def table(gaps, **columns):
    """Texts of unknown membership, each a document and a cluster, that differ by so much."""
    n = len(gaps)
    return pl.DataFrame(
        {
            "score_0": np.zeros(n),
            "score_1": gaps,
            "member": pl.Series([None] * n, dtype=pl.Boolean),
            "cluster": range(n),
            "document": range(n),
            "group": [0] * n,
            "grouped": [False] * n,
        }
        | columns,
        strict=False,
    )


def compare(scores, **options):
    options = {"retrained": False, "overlapping": False} | options
    names = [f"run {number}" for number in range(sum("score" in name for name in scores.columns))]
    return compare_scores(scores, names, **options)


def test_targets_without_a_score_in_every_run_are_counted():
    gaps = [0.1, 0.2, 0.4, 0.1, 0.2, None, float("nan")]
    (row,) = compare(table(gaps)).iter_rows(named=True)
    assert row["value"] == pytest.approx(0.2)
    assert (row["n_targets"], row["n_unscored"], row["set"]) == (5, 2, "unknown")


def test_without_any_common_score_there_is_no_table():
    with pytest.raises(SettingsError, match="no target has a score in every run"):
        compare(table([None, float("inf")]))


def test_texts_of_one_cluster_count_once():
    gaps = np.repeat([0.1, 0.2, 0.4, 0.1, 0.2], 3)
    row = compare(table(gaps, cluster=np.repeat(range(5), 3))).row(0, named=True)
    alone = compare(table(gaps[::3])).row(0, named=True)
    assert row["n_clusters"] == 5
    assert row["p_value"] == pytest.approx(alone["p_value"])


def test_few_clusters_have_a_value_and_a_reason():
    row = compare(table([0.1, 0.2, 0.3])).row(0, named=True)
    assert row["value"] == pytest.approx(0.2)
    assert [row[name] for name in ("low", "high", "p_value", "method", "confidence")] == [None] * 5
    assert row["reason"].endswith("these are worth 3")


def test_a_group_has_its_documents_as_clusters_and_a_document_its_windows():
    gaps = np.random.default_rng(0).normal(1, 0.1, 24)
    scores = table(
        gaps,
        document=np.repeat(range(12), 2),
        group=np.repeat([0, 1], 12),
        grouped=[True] * 24,
        cluster=np.repeat([0, 1], 12),
    )
    found = compare(scores)
    groups = found.filter(level="group")
    assert groups["unit"].to_list() == [0, 1]
    assert groups["n_clusters"].to_list() == [6, 6]
    assert groups["value"].to_list() == pytest.approx([gaps[:12].mean(), gaps[12:].mean()])
    assert found.filter(level="document")["n_clusters"].to_list() == [2] * 12
    assert found.filter(level="set")["p_value"].item() is None


def test_a_group_of_one_document_has_no_row_of_its_own():
    scores = table([0.1] * 6, document=[0] * 6, grouped=[True] * 6)
    assert compare(scores)["level"].to_list() == ["set", "document"]


def test_documents_are_adjusted_by_benjamini_and_hochberg():
    gaps = np.random.default_rng(1).normal(0.5, 1, 20)
    found = compare(table(gaps, document=np.repeat([0, 1], 10))).filter(level="document")
    low, high = sorted(found["p_value"])
    assert sorted(found["adjusted_p"]) == pytest.approx([min(2 * low, high), high])


def test_labels_of_one_class_have_no_area():
    found = compare(table([0.1, 0.2, 0.4, 0.1, 0.2], member=[True] * 5))
    assert found["statistic"].to_list() == ["mean_difference"]
    assert found["set"].to_list() == ["members"]


def test_areas_in_clusters_use_them():
    rng = np.random.default_rng(2)
    member = np.repeat([True, False], 20)
    scores = table(
        rng.normal(size=40), member=member, score_0=rng.normal(size=40), cluster=np.arange(40) // 4
    )
    areas = compare(scores).filter(statistic="roc_auc_difference")
    assert areas["method"].item() == "cluster_paired_t"
    assert areas["n_clusters"].item() == 10
