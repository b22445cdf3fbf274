"""Scores of several runs to rows: which texts count, and what belongs together."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

from mia_batch.errors import SettingsError
from mia_batch.inference import paired
from mia_batch.inference.paired import agreement, compare_scores


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
    names = [
        f"run {number}"
        for number in range(sum("score" in name for name in scores.columns))
    ]
    return compare_scores(scores, names, **options)


def test_targets_without_a_score_in_every_run_are_counted_and_none_make_no_table():
    gaps = [0.1, 0.2, 0.4, 0.1, 0.2, None, float("nan")]
    (row,) = compare(table(gaps)).iter_rows(named=True)
    assert row["value"] == pytest.approx(0.2)
    assert (row["n_targets"], row["n_unscored"], row["set"]) == (5, 2, "unknown")
    with pytest.raises(SettingsError, match="no target has a score in every run"):
        compare(table([None, float("inf")]))


def test_texts_of_one_cluster_count_once_and_few_clusters_have_a_reason():
    gaps = np.repeat([0.1, 0.2, 0.4, 0.1, 0.2], 3)
    row = compare(table(gaps, cluster=np.repeat(range(5), 3))).row(0, named=True)
    alone = compare(table(gaps[::3])).row(0, named=True)
    assert row["n_clusters"] == 5
    assert row["p_value"] == pytest.approx(alone["p_value"])
    row = compare(table([0.1, 0.2, 0.3])).row(0, named=True)
    assert row["value"] == pytest.approx(0.2)
    assert [
        row[name] for name in ("low", "high", "p_value", "method", "confidence")
    ] == [None] * 5
    assert row["reason"].endswith("these are worth 3")


def test_a_group_has_its_documents_as_clusters_and_of_one_document_no_row():
    gaps = np.random.default_rng(0).normal(1, 0.1, 24)
    scores = table(
        gaps,
        document=np.repeat(range(12), 2),
        group=np.repeat([0, 1], 12),
        grouped=[True] * 24,
        cluster=np.repeat([0, 1], 12),
    )
    comparisons = compare(scores)
    groups = comparisons.filter(level="group")
    assert groups["unit"].to_list() == [0, 1]
    assert groups["n_clusters"].to_list() == [6, 6]
    assert groups["value"].to_list() == pytest.approx(
        [gaps[:12].mean(), gaps[12:].mean()]
    )
    assert comparisons.filter(level="document")["n_clusters"].to_list() == [2] * 12
    assert comparisons.filter(level="set")["p_value"].item() is None
    scores = table([0.1] * 6, document=[0] * 6, grouped=[True] * 6)
    assert compare(scores)["level"].to_list() == ["set", "document"]


def test_documents_are_adjusted_by_benjamini_and_hochberg():
    gaps = np.random.default_rng(1).normal(0.5, 1, 20)
    comparisons = compare(table(gaps, document=np.repeat([0, 1], 10))).filter(
        level="document"
    )
    low, high = sorted(comparisons["p_value"])
    assert sorted(comparisons["adjusted_p"]) == pytest.approx(
        [min(2 * low, high), high]
    )


def test_areas_use_clusters_and_labels_of_one_class_have_none():
    comparisons = compare(table([0.1, 0.2, 0.4, 0.1, 0.2], member=[True] * 5))
    assert comparisons["statistic"].to_list() == ["mean_difference"]
    assert comparisons["set"].to_list() == ["members"]
    rng = np.random.default_rng(2)
    member = np.repeat([True, False], 20)
    scores = table(
        rng.normal(size=40),
        member=member,
        score_0=rng.normal(size=40),
        cluster=np.arange(40) // 4,
    )
    areas = compare(scores).filter(statistic="roc_auc_difference")
    assert areas["method"].item() == "cluster_paired_t"
    assert areas["n_clusters"].item() == 10


# Whether a model ranks texts as one that never saw them.


def test_agreement_by_hand_and_with_scipy():
    """T ranks five texts as R does, and D the other way round: 1, -1, and no sample disagrees."""
    ordered = np.arange(5.0)
    correlations, limits, p_value = agreement(
        np.stack([ordered, ordered**3, -ordered], 1), np.arange(5)
    )
    assert correlations.tolist() == [pytest.approx(1), pytest.approx(-1)]
    alike = 5 * (1 / 5) ** 5  # samples of one text alone, which has no rank correlation
    assert p_value == pytest.approx(alike, abs=0.003)
    assert limits.tolist() == [pytest.approx(2), pytest.approx(2)]
    scores = np.random.default_rng(1).normal(size=(40, 3)).round(1)
    correlations, limits, p_value = agreement(scores, np.repeat(np.arange(20), 2))
    expected = [
        spearmanr(scores[:, 0], scores[:, column]).statistic for column in (1, 2)
    ]
    assert correlations == pytest.approx(np.array(expected))
    assert limits[0] < expected[0] - expected[1] < limits[1]


@pytest.mark.parametrize(
    ("is_seen", "alike", "lower_limit", "upper_limit"),
    [
        (False, True, 0.9, 1.0),  # never seen: nearly always certified
        (True, True, 0.0, 0.05),  # learnt, and remembered as the copy does: hardly ever
        (None, True, 0.0, 0.1),  # as near to one as to the other: one in 20
        # Learnt, but other texts are remembered: wrongly certified
        (
            True,
            False,
            0.5,
            1.0,
        ),
    ],
)
def test_what_agreement_certifies(
    monkeypatch, is_seen, alike, lower_limit, upper_limit
):
    """The last case is why a small p-value holds only where models that learn remember alike."""
    monkeypatch.setattr(paired, "_REPLICATES", 199)
    rng, agreements = np.random.default_rng(2), []
    for _ in range(60):
        hard, memory, noise_memory = rng.normal(size=(3, 100))
        noise = 0.3 * rng.normal(size=(3, 100))
        memory_of_seen = {True: memory if alike else noise_memory, False: 0, None: 0}[
            is_seen
        ]
        learnt = hard if is_seen is None else hard + memory
        agreements.append(
            agreement(
                np.stack([hard + memory_of_seen, hard, learnt], 0).T + noise.T,
                np.arange(100),
            )
        )
    certified = np.mean(
        [p_value is not None and p_value <= 0.05 for _, _, p_value in agreements]
    )
    assert lower_limit <= certified <= upper_limit


def test_agreement_is_a_row_of_each_set_or_has_a_reason():
    rng = np.random.default_rng(4)
    first, second, learnt = rng.normal(size=(3, 40))
    scores = table(first + second, score_0=first, score_2=first + learnt)
    apart = compare(table(second, score_0=first, score_2=learnt), learnt=True)
    row = apart.filter(statistic="rank_correlation_difference").row(0, named=True)
    assert row["p_value"] is None
    assert "do not rank these texts alike" in row["reason"]
    rows = compare(scores, learnt=True)
    assert {*rows["statistic"]} == {
        *("mean_difference", "rank_correlation", "rank_correlation_difference")
    }
    row = rows.filter(statistic="rank_correlation_difference").row(0, named=True)
    assert (row["run"], row["versus"], row["set"]) == ("run 1", "run 2", "unknown")
    assert row["low"] < row["value"] < row["high"]
    assert row["p_value"] == row["adjusted_p"]
    too_few = compare(scores.head(19), learnt=True).filter(
        statistic="rank_correlation_difference"
    )
    assert too_few["value"].item() is None
    assert too_few["reason"].item() == "19 independent units are too few, 20 are needed"
