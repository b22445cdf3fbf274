"""Tables that several processes may write: the first one's stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from mia_batch.errors import RunFolderError
from mia_batch.schemas import Rollup, Unscored
from mia_batch.tables import sink_new


def table(reason: str) -> pl.DataFrame:
    rows = {"target_id": ["a" * 64], "attack": ["samia_v1"], "reason": [reason]}
    schema = Unscored.create_empty().schema
    return pl.DataFrame({name: rows.get(name, [None]) for name in schema}, schema=schema)


def test_of_many_writers_one_writes_and_is_told_so(tmp_path):
    path = tmp_path / "part.parquet"
    with ThreadPoolExecutor(16) as pool:
        wrote = list(pool.map(lambda n: sink_new(table(f"{n}"), path, Unscored), range(16)))
    assert sum(wrote) == 1
    assert pl.read_parquet(path)["reason"].to_list() == [f"{wrote.index(True)}"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_has_one_writer_too(tmp_path, monkeypatch):
    def no_links(self: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    path = tmp_path / "part.parquet"
    assert [sink_new(table(each), path, Unscored) for each in "ab"] == [True, False]
    assert pl.read_parquet(path)["reason"].to_list() == ["a"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_named_as_it_is_to_be_called(tmp_path):
    with pytest.raises(RunFolderError) as error:
        sink_new(table("a"), tmp_path / "missing" / "part.parquet", Unscored)
    assert str(error.value).startswith(f"{tmp_path / 'missing' / 'part.parquet'} cannot be written")
    with pytest.raises(TypeError, match=r"part\.parquet is not a Rollup table"):
        sink_new(table("a"), tmp_path / "part.parquet", Rollup)
