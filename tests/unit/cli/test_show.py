"""What is shown fits its terminal, and nothing that is needed is cut."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from mia_batch.attacks import defaults, get, names
from mia_batch.cli import show
from mia_batch.verdict import evaluate


def shown(width, print_to):
    console = Console(file=io.StringIO(), width=width)
    print_to(console)
    return console.file.getvalue()


class Finished:
    """A run's tables: 40 labelled targets, or two that are not."""

    unscored = pl.DataFrame(
        schema={"target_id": pl.String, "attack": pl.String, "reason": pl.String}
    )

    def __init__(self, **columns):
        n = 40 if "member" in columns else 2
        values = np.random.default_rng(0).random((n, 15))
        keys = {
            "target_id": [f"{i:032x}" for i in range(n)],
            "document_id": [None] * n,
            "group": [None] * n,
            "member": [None] * n,
            "window_index": [0] * n,
            "n_short": [0] * n,
        }
        schema = {"document_id": pl.String, "group": pl.String, "member": pl.Boolean}
        attacks = dict(zip(["samia_v1", *defaults("default")], values.T, strict=False))
        self.scores = pl.DataFrame(keys | columns | attacks, schema_overrides=schema)
        self.targets = self.scores.select("target_id", target=pl.lit("some  text " * 20))
        self.manifest = {"scored": {"attacks": ["samia_v1"]}}
        labelled = "member" in columns
        self.metrics = (
            evaluate(self.scores, [*attacks], preset="default") if labelled else pl.DataFrame()
        )


class Where:
    folder = "runs/x"


@pytest.mark.parametrize("width", [30, 80, 99, 100, 200])
def test_metrics_are_never_cut_and_fit_eighty_columns(width):
    run = Finished(member=[True, False] * 20)
    out = shown(width, lambda console: show.show_run(run, Where, console))
    assert "…" not in out
    table = out[: out.index("20 members")].splitlines()
    assert max(map(len, table)) <= max(width, 80)
    assert all(f"{name} " in out for name in run.metrics["attack"])


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_highest_scores_are_whole_on_every_terminal(width):
    out = shown(width, lambda console: show.show_run(Finished(), Where, console))
    heading = next(line for line in out.splitlines() if line.startswith("score"))
    assert heading.split() == ["score", "document", "text"]
    assert all(f"{score:.3f}  " in out for score in Finished().scores["samia_v1"])


def test_groups_and_windows_are_shown_where_there_are_any():
    run = Finished(group=["a book", None], window_index=[0, 7], document_id=["one", "two"])
    out = shown(100, lambda console: show.show_run(run, Where, console))
    heading = next(line for line in out.splitlines() if line.startswith("score"))
    assert heading.split() == ["score", "document", "group", "window", "text"]
    assert "a book" in out


def test_a_run_without_a_score_says_so():
    run = Finished()
    run.scores = run.scores.with_columns(samia_v1=pl.lit(None, dtype=pl.Float64))
    out = shown(100, lambda console: show.show_run(run, Where, console))
    assert "no target has a score" in out


def test_attacks_are_told_apart_on_every_terminal():
    out = shown(30, lambda console: show.show_attacks(list(map(get, names())), console))
    assert all(f"{name} " in out for name in names())
