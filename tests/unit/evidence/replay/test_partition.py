from __future__ import annotations

import polars as pl
import pytest

from mia_batch.errors import RunFolderError
from mia_batch.evidence.replay import Partition, pack


def test_portions_come_back_in_order(tmp_path):
    partition = Partition(tmp_path / "replay")
    added = [pl.DataFrame({"text": [f"{number}", None, "\0"]}) for number in range(5)]
    for number, rows in enumerate(added):
        partition.append(number % 2, pack(rows))
    assert [rows["text"][0] for rows in partition.read(0)] == ["0", "2", "4"]
    assert all(rows.equals(added[1 + 2 * at]) for at, rows in enumerate(partition.read(1)))
    assert partition.read(2) == []


def test_what_was_left_there_is_removed(tmp_path):
    Partition(tmp_path / "replay").append(0, pack(pl.DataFrame({"text": ["old"]})))
    partition = Partition(tmp_path / "replay")
    assert partition.read(0) == []
    partition.remove()
    partition.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be used: Not a directory; make room"):
        Partition(tmp_path / "file" / "replay")


def test_a_full_disk_is_said(tmp_path):
    partition = Partition(tmp_path / "replay")
    (tmp_path / "replay" / "00000003").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match="cannot be used: No space left on device"):
        partition.append(3, pack(pl.DataFrame({"text": ["a" * 100_000]})))
