"""Targets by name, over the pieces in which their table is read."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch import tables
from mia_batch.pipeline import halves
from mia_batch.pipeline.halves import Halves
from mia_batch.schemas import Targets
from tests import frames


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(halves, "_ROWS_AT_ONCE", 3)
    rows = [{"prefix": f"p{n}", "reference": f"r{n}", "n_words": n} for n in range(8)]
    tables.sink(frames.targets(*rows), tmp_path / "targets.parquet", Targets)
    return Halves(tmp_path / "targets.parquet")


def test_each_target_comes_once(found):
    names = pl.Series(map(frames.target_id, [7, 7, 0, 4, 3, 0]))
    assert found.of(names).rows() == [
        (frames.target_id(n), f"p{n}", f"r{n}", n) for n in (0, 3, 4, 7)
    ]


def test_unknown_names_have_no_row(found):
    none = found.of(pl.Series([frames.target_id(9)]))
    assert (none.height, none.columns) == (0, ["target_id", "prefix", "reference", "n_words"])
