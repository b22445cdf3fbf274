"""Targets by name, over the pieces in which their table is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import TYPE_CHECKING

import polars as pl
import pytest

from mia_batch import tables, targets
from mia_batch.schemas import Targets
from mia_batch.targets import TargetLookup
from tests import frames
from tests.processes import HANGS

if TYPE_CHECKING:
    from collections.abc import Callable


COLUMNS = ["target_id", "reference", "n_words"]


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_ROWS_AT_ONCE", 3)
    rows = [{"prefix": f"p{n}", "reference": f"r{n}", "n_words": n} for n in range(8)]
    tables.sink(frames.targets(*rows), tmp_path / "targets.parquet", Targets)
    return TargetLookup(tmp_path / "targets.parquet", COLUMNS)


def names(*numbers: int) -> pl.Series:
    return pl.Series(map(frames.target_id, numbers))


def test_targets_are_taken_from_where_they_are_looked_for(found):
    rows = found.of(names(4, 4, 2, 7), [range(2, 5), range(6, 8)])
    assert rows["n_words"].to_list() == [2, 3, 4, 6, 7]
    assert rows.n_chunks() == 1
    assert "_index" not in vars(found)


def test_places_may_reach_beyond_the_table(found):
    rows = found.of(names(7, 6), [range(6, 12)])
    assert rows.rows() == [(frames.target_id(n), f"r{n}", n) for n in (6, 7)]


@pytest.mark.parametrize("places", [[], [range(3)], [range(3, 6), range(20, 30)]])
def test_targets_that_stand_elsewhere_are_found_once_whatever_the_order(found, places):
    rows = found.of(names(7, 7, 0, 4, 3, 0), places)
    assert rows.rows() == [(frames.target_id(n), f"r{n}", n) for n in (0, 3, 4, 7)]


def test_targets_between_may_come_too_in_one_chunk(found):
    rows = found.of(names(5, 3, 2), [])
    assert rows["n_words"].to_list() == [2, 3, 4, 5]
    assert rows.n_chunks() == 1


def test_unknown_names_have_no_row(found):
    none = found.of(names(9), [])
    assert (none.height, none.columns) == (0, COLUMNS)


def test_no_names_need_no_row(found):
    assert found.of(names().cast(pl.String), []).is_empty()


def test_threads_that_ask_at_once_read_once(found):
    read: Callable[[int], pl.DataFrame] = found._read
    pieces: list[int] = []

    def count(piece: int) -> pl.DataFrame:
        pieces.append(piece)
        return read(piece)

    found._piece = lru_cache(2)(count)
    threads = 8
    together = Barrier(threads, timeout=HANGS)

    def ask(_: int) -> list[int]:
        together.wait()
        return list(found.of(names(3, 4), [range(3, 5)])["n_words"])

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(ask, range(threads))) == [[3, 4]] * threads
    assert pieces == [1]
