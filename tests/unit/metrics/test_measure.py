"""Attacks beside the blind baseline, on the same labels."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mia_batch.diagnostics import blind
from mia_batch.diagnostics.preflight import check_targets
from mia_batch.diagnostics.unscored import uneven_findings
from mia_batch.inference.findings import VerdictPlan
from mia_batch.metrics.measure import measure
from mia_batch.report import sentences
from mia_batch.report.sentences import labelled_sentences
from mia_batch.schemas import Metrics, Scores, Unscored, Verdicts
from mia_batch.stats.differences import auc_difference

N_DOCUMENTS, N_WINDOWS = 40, 3


@pytest.fixture
def run():
    """Scores and texts of windows of documents without names; every other document is a member."""
    rng = np.random.default_rng(4)
    names = rng.permutation(N_DOCUMENTS * N_WINDOWS)  # the first window is seldom the first name
    rows = pl.DataFrame(
        [
            {
                "target_id": f"{names[number]:032x}",
                "role": "target",
                "member": document % 2 == 0,
                "window_index": window,
                "n_words": 20,
                "n_samples": 1,
                "n_short": 0,
                "target": " ".join(f"w{word}" for word in rng.integers(0, 300, 20)),
                "a_v1": rng.normal() + 0.4 * (document % 2 == 0) + document / 20,
            }
            for number, (document, window) in enumerate(
                (document, window) for document in range(N_DOCUMENTS) for window in range(N_WINDOWS)
            )
        ]
    )
    scores = rows.with_columns(
        pl.lit(None, pl.String).alias(name) for name in ("document_id", "group")
    ).cast({"window_index": pl.UInt32, "n_words": pl.UInt32})
    return scores.select(*Scores.column_names(), "a_v1"), scores


def measured(scores, targets, attacks, primary="a_v1", unscored=None):
    """Metrics, findings and blind scores of these labels."""
    checked = check_targets(targets.lazy().with_columns(n_windows=pl.lit(1)), seed=0)
    metrics = measure(
        scores.lazy(),
        attacks,
        blind_scores=checked.blind_scores.lazy(),
        blind_metrics=checked.blind_metrics,
        preset="default",
        slice_by=(),
        primary=primary,
        seed=0,
    )
    if unscored is None:
        unscored = Unscored.create_empty()
    primary_first = sorted(attacks, key=lambda attack: attack != primary)
    uneven = uneven_findings(scores.lazy(), primary_first, unscored.lazy())
    return metrics, pl.concat([checked.findings, uneven]), checked.blind_scores


def test_documents_without_names_stay_whole_where_few_texts_are_looked_at(run, monkeypatch):
    monkeypatch.setattr(blind, "MAX_TEXTS_PER_CLASS", 25)
    monkeypatch.setattr(blind, "_N_PERMUTATIONS", 9)
    scores, targets = run
    metrics, findings, blind_scores = measured(scores, targets, ["a_v1"])
    Metrics.validate(metrics)
    strongest = findings.filter(subject="members", statistic="strongest")["verdict"].item()
    both = scores.join(blind_scores, on="target_id", maintain_order="left")
    assert both.height == 50
    places = {name: row // N_WINDOWS for row, name in enumerate(scores["target_id"])}
    document = both["target_id"].replace_strict(places).rank("dense") - 1
    expected = auc_difference(
        both["member"].to_numpy(),
        both["a_v1"].to_numpy(),
        both[strongest].to_numpy(),
        cluster=document.to_numpy().astype(np.int32),
    )
    row = metrics.filter(attack="a_v1", versus=strongest).row(0, named=True)
    assert expected.interval is not None
    assert row["value"] == pytest.approx(expected.value)
    assert (row["low"], row["high"]) == pytest.approx(
        (expected.interval.low, expected.interval.high)
    )
    assert row["method"] == expected.interval.method == "cluster_paired_t"


def test_scores_that_members_lack_are_warned_of_before_any_figure(run, monkeypatch):
    """15 of 20 member documents without any score; of two attacks the primary one is told."""
    monkeypatch.setattr(blind, "_N_PERMUTATIONS", 9)
    scores, targets = run
    lost = pl.col("member") & (pl.int_range(pl.len()) < 30 * N_WINDOWS)
    scores = scores.with_columns(
        a_v1=pl.when(~lost).then("a_v1"), b_v1=pl.when(~lost).then(1 - pl.col("a_v1"))
    )
    unscored = scores.filter(lost).select(
        "target_id", attack=pl.lit("b_v1"), reason=pl.lit("the endpoint refused")
    )
    metrics, findings, _ = measured(scores, targets, ["a_v1", "b_v1"], "b_v1", unscored)
    found = findings.filter(check="uneven_scores")
    assert found.filter(verdict="most")["subject"].to_list() == ["b_v1", "a_v1"]
    counts = found.filter(pl.col("statistic").is_in(["n_texts", "n_unscored"]))
    assert counts.select("subject", "statistic", "value", "reason").rows() == [
        ("members", "n_unscored", 45, "the endpoint refused"),
        ("members", "n_texts", 60, None),
        ("non-members", "n_unscored", 0, None),
        ("non-members", "n_texts", 60, None),
    ]
    planned = VerdictPlan(primary="b_v1", level="target", null_set="written later")
    lines = list(sentences(metrics, Verdicts.create_empty().lazy(), findings, planned))
    warning = next(n for n, line in enumerate(lines) if "do not lack scores alike" in line)
    assert lines[warning + 1].startswith("b_v1: AUC ")


def test_nothing_is_said_where_every_text_has_a_score(run, monkeypatch):
    monkeypatch.setattr(blind, "_N_PERMUTATIONS", 9)
    metrics, findings, _ = measured(run[0], run[1], ["a_v1"])
    assert findings.filter(check="uneven_scores").is_empty()
    assert not any("lack scores" in line for line in labelled_sentences(metrics, findings, "a_v1"))
