"""What a tuned model is good for, with intervals of the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import t

from mia_batch.privacy.measures import utility


class _Opened:
    """Says of each text the losses that are given, by label or of all its tokens."""

    def __init__(self, losses):
        self._losses = losses

    def sums(self, texts, labels):
        return pl.Series(np.where(np.array(self._losses) == labels[0], 0.0, 1.0))

    def losses(self, texts, targets):
        return pl.Series(self._losses)


def opened(losses) -> Any:
    return _Opened(losses)


def texts(groups):
    n = len(groups)
    return pl.DataFrame({"text": ["a"] * n, "target": ["yes"] * n, "group": groups})


def test_the_loss_has_an_interval_over_groups():
    losses = np.arange(40) / 10
    (row,) = utility(opened(losses), texts([*map(str, range(40))]), "generation", ()).to_dicts()
    half = t.ppf(0.975, 39) * losses.std(ddof=1) / 40**0.5
    assert row["value"] == pytest.approx(losses.mean())
    assert (row["low"], row["high"]) == pytest.approx((losses.mean() - half, losses.mean() + half))
    (few,) = utility(opened(losses), texts(["a", "b"] * 20), "generation", ()).to_dicts()
    assert (few["value"], few["low"], few["n"]) == (row["value"], None, 40)


def test_accuracy_has_an_interval_within_0_and_1():
    said = ["yes"] * 38 + ["no"] * 2
    asked = texts([*map(str, range(40))])
    (row,) = utility(opened(said), asked, "classification", ("no", "yes")).to_dicts()
    assert row["value"] == pytest.approx(0.95)
    assert 0.8 < row["low"] < 0.95 < row["high"] < 1
