from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import dataframely as dy
import polars as pl
import pytest

from mia_batch import tables
from mia_batch.errors import CorpusError, RunFolderError, SchemaMismatchError
from mia_batch.schemas import Curves, Rollup
from tests.damage import damage


class Numbers(dy.Schema):
    name = dy.String(nullable=True)
    value = dy.Int64()


FRAME = pl.DataFrame({"name": ["a", None], "value": [1, 2], "further": [True, False]})


def test_check_allows_further_columns_and_any_order():
    tables.check(FRAME.select("further", "value", "name"), Numbers, what="numbers")
    tables.check(FRAME.lazy(), Numbers, what="numbers")


def test_check_lists_what_is_missing_and_what_is_wrong():
    with pytest.raises(SchemaMismatchError) as error:
        tables.check(pl.DataFrame({"value": [1.5]}), Numbers, what="parts/1.parquet")
    assert str(error.value) == (
        "parts/1.parquet is not a Numbers table: 'name' is missing, "
        "'value' is Float64 instead of Int64"
    )


def test_sink_and_scan_give_the_table_back(tmp_path):
    tables.sink(FRAME.lazy(), tmp_path / "numbers.parquet", Numbers)
    back = tables.scan(tmp_path / "numbers.parquet", Numbers).collect()
    assert back.equals(FRAME)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.parquet"]


def test_sink_writes_the_same_bytes_again(tmp_path):
    long = pl.LazyFrame({"name": [f"row {n}" for n in range(50_000)], "value": range(50_000)})
    for name in ("first", "second"):
        tables.sink(long, tmp_path / name, Numbers)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_sink_replaces_an_older_table(tmp_path):
    path = tmp_path / "numbers.parquet"
    tables.sink(FRAME, path, Numbers)
    tables.sink(FRAME.head(1), path, Numbers)
    assert tables.scan(path, Numbers).collect().height == 1


def test_sink_refuses_another_table_and_writes_nothing(tmp_path):
    with pytest.raises(SchemaMismatchError, match="'value' is missing"):
        tables.sink(FRAME.drop("value"), tmp_path / "numbers.parquet", Numbers)
    assert not list(tmp_path.iterdir())


def test_sink_leaves_nothing_behind_when_the_rows_fail(tmp_path):
    def frames(_names):
        yield FRAME.drop("further")
        msg = "row 3 is wrong"
        raise CorpusError(msg)

    broken = tables.generate(FRAME.drop("further").schema, frames)
    for _ in range(100):  # a late thread may leave a file behind, but not every time
        with pytest.raises(CorpusError, match=r"^row 3 is wrong$"):
            tables.sink(broken, tmp_path / "numbers.parquet", Numbers)
    assert not list(tmp_path.iterdir())


def test_several_tables_at_once_are_as_each_alone(tmp_path):
    long = pl.concat([FRAME] * 5000)
    parts: dict[str, pl.DataFrame | pl.LazyFrame]
    parts = {"a": long, "b": FRAME.clear(), "c": long[3:7].lazy()}
    tables.sink_all({tmp_path / name: part for name, part in parts.items()}, Numbers)
    for name, part in parts.items():
        tables.sink(part, tmp_path / "alone", Numbers)
        assert (tmp_path / name).read_bytes() == (tmp_path / "alone").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


def test_several_tables_are_not_there_when_the_rows_of_one_fail(tmp_path):
    broken = FRAME.lazy().with_columns(value=pl.col("name").str.to_integer())
    with pytest.raises(pl.exceptions.ComputeError, match="strict integer parsing"):
        tables.sink_all({tmp_path / "a": FRAME, tmp_path / "b": broken}, Numbers)
    assert not list(tmp_path.iterdir())


def test_sink_frames_writes_what_sink_writes(tmp_path):
    long = pl.DataFrame({"name": [f"row {n}" for n in range(20_000)], "value": range(20_000)})
    tables.sink(long, tmp_path / "first", Numbers)
    tables.sink_frames(long.iter_slices(1000), tmp_path / "second", Numbers)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_sink_frames_writes_an_empty_table_also_where_a_folder_looks_like_a_pattern(tmp_path):
    folder = tmp_path / "run[1] *"
    folder.mkdir()
    tables.sink_frames([FRAME.clear()], folder / "numbers.parquet", Numbers)
    assert tables.scan(folder / "numbers.parquet", Numbers).collect().equals(FRAME.clear())


def test_sink_frames_leaves_nothing_behind_when_the_rows_fail(tmp_path):
    def frames():
        yield from [FRAME] * 10_000
        msg = "row 3 is wrong"
        raise CorpusError(msg)

    with pytest.raises(CorpusError, match=r"^row 3 is wrong$"):
        tables.sink_frames(frames(), tmp_path / "numbers.parquet", Numbers)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def limit_files():
    """Lets no file of this process grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_sink_says_when_the_disk_is_full_wherever_the_room_ends(tmp_path, limit_files):
    noise = pl.DataFrame({"name": [os.urandom(500).hex()] * 3, "value": [1, 2, 3]})
    path = tmp_path / "numbers.parquet"
    tables.sink(noise, path, Numbers)
    whole = path.read_bytes()
    for size in range(0, len(whole), 13):
        limit_files(size)
        with pytest.raises(RunFolderError) as error:
            tables.sink(noise, path, Numbers)
        reason = "File too large; make room or choose another folder"
        assert str(error.value) == f"{path} cannot be written: {reason}"
        assert path.read_bytes() == whole
        assert len(list(tmp_path.iterdir())) == 1


def test_several_tables_are_the_old_ones_when_the_disk_is_full(tmp_path, limit_files):
    rows = pl.DataFrame({"name": [os.urandom(500).hex()], "value": [1]})
    short, long = tmp_path / "short", tmp_path / "long"
    tables.sink(rows, long, Numbers)
    whole = long.stat().st_size
    for size in range(0, whole, 37):
        tables.sink_all({short: FRAME, long: FRAME}, Numbers)
        limit_files(size)
        with pytest.raises(RunFolderError, match=r"/long cannot be written: File too large; make"):
            tables.sink_all({short: FRAME.head(1), long: rows}, Numbers)
        limit_files(resource.RLIM_INFINITY)
        assert all(pl.read_parquet(path).equals(FRAME) for path in (short, long))
        assert sorted(tmp_path.iterdir()) == [long, short]


def test_sink_frames_says_when_the_disk_is_full(tmp_path, limit_files):
    noise = pl.DataFrame({"name": [os.urandom(500).hex()] * 3, "value": [1, 2, 3]})
    path = tmp_path / "numbers.parquet"
    tables.sink(noise, path, Numbers)
    whole = path.read_bytes()
    for size in range(0, len(whole), 131):
        limit_files(size)
        with pytest.raises(RunFolderError, match=r"numbers\.parquet cannot be written: File too"):
            tables.sink_frames([noise], path, Numbers)
        assert path.read_bytes() == whole
        assert len(list(tmp_path.iterdir())) == 1


def test_write_text_says_when_the_disk_is_full_and_keeps_the_old_file(tmp_path, limit_files):
    limit_files(1000)
    path = tmp_path / "run.json"
    tables.write_text(path, "old")
    with pytest.raises(RunFolderError, match="File too large"):
        tables.write_text(path, "x" * 5000)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_sink_says_when_there_is_no_folder(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"numbers\.parquet cannot be written: .*irectory"):
        tables.sink(FRAME, tmp_path / folder / "numbers.parquet", Numbers)


def test_an_error_of_polars_itself_is_not_blamed_on_the_disk(tmp_path):
    wrong = FRAME.lazy().with_columns(value=pl.col("name").str.to_integer())
    with pytest.raises(pl.exceptions.ComputeError, match="strict integer parsing"):
        tables.sink(wrong, tmp_path / "numbers.parquet", Numbers)
    assert not list(tmp_path.iterdir())


def test_write_text_keeps_line_ends_and_is_utf8(tmp_path):
    tables.write_text(tmp_path / "run.json", "é\r\n")
    assert (tmp_path / "run.json").read_bytes() == b"\xc3\xa9\r\n"


def test_scan_says_what_is_wrong(tmp_path):
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        RunFolderError, match=r"short\.parquet cannot be read as a table: .*; give "
    ):
        tables.scan(tmp_path / "short.parquet", Numbers)
    missing = tmp_path / "missing.parquet"
    with pytest.raises(RunFolderError, match=re.escape(f"{missing} cannot be read as a table: No")):
        tables.scan(missing, Numbers)
    FRAME.drop("name").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(SchemaMismatchError, match=r"other\.parquet is not a Numbers table: 'name'"):
        tables.scan(tmp_path / "other.parquet", Numbers)


def test_a_folder_of_parts_is_one_table_without_unfinished_ones(tmp_path):
    assert tables.scan(tmp_path, Numbers).collect().equals(Numbers.create_empty())
    for name, row in [("b", 1), ("a", 0)]:
        tables.sink(FRAME.slice(row, 1), tmp_path / f"{name}.parquet", Numbers)
    (tmp_path / ".c.parquet.0.tmp").write_bytes(b"PAR1")
    assert tables.scan(tmp_path, Numbers).collect()["value"].to_list() == [1, 2]


@pytest.mark.parametrize("left", [0, 1, 4, 8, 12, 0.5, -1])
def test_a_file_that_was_cut_short_is_not_whole(tmp_path, left):
    path = tmp_path / "numbers.parquet"
    tables.sink(FRAME, path, Numbers)
    assert tables.is_whole(path)
    assert tables.is_sound(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole)) if isinstance(left, float) else left])
    assert not tables.is_whole(path)
    assert not tables.is_sound(path)
    path.write_bytes(whole[-20:])
    assert not tables.is_whole(path)


@pytest.mark.parametrize("changed", [slice(4, 40), slice(-60, -8)], ids=["rows", "end"])
def test_a_file_that_a_disk_has_changed_is_whole_but_not_sound(tmp_path, changed):
    path = tmp_path / "numbers.parquet"
    tables.sink(FRAME, path, Numbers)
    damage(path, changed)
    assert tables.is_whole(path)
    assert not tables.is_sound(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tables.is_sound(path)


def test_scan_takes_a_path_literally(tmp_path):
    folder = tmp_path / "a=1[x]*"
    folder.mkdir()
    tables.sink(FRAME, folder / "numbers.parquet", Numbers)
    assert tables.scan(folder / "numbers.parquet", Numbers).collect().columns == FRAME.columns


def three_frames(names: list[str] | None):
    for start in range(0, 30, 10):
        frame = pl.DataFrame({"a": range(start, start + 10), "b": ["x"] * 10})
        yield frame if names is None else frame.select([*names] or ["a"])


def test_generate_answers_every_kind_of_question():
    frame = tables.generate(pl.Schema({"a": pl.Int64(), "b": pl.String()}), three_frames)
    assert frame.collect()["a"].to_list() == list(range(30))
    assert frame.select("b").collect().shape == (30, 1)
    assert frame.select(pl.len()).collect().item() == 30
    assert frame.filter(pl.col("a") > 25).select("b").collect().height == 4
    assert frame.slice(8, 4).collect()["a"].to_list() == [8, 9, 10, 11]
    assert frame.head(0).collect().height == 0
    assert frame.tail(1).collect()["a"].to_list() == [29]
    assert frame.head(12).filter(pl.col("a") >= 5).collect()["a"].to_list() == [*range(5, 12)]
    assert frame.filter(pl.col("a") >= 5).head(12).collect()["a"].to_list() == [*range(5, 17)]


def test_generate_reads_only_a_little_ahead():
    made = 0

    def frames(_names):
        nonlocal made
        for _ in range(1000):
            made += 1
            yield pl.DataFrame({"a": [made]})

    frame = tables.generate(pl.Schema({"a": pl.Int64()}), frames)
    assert next(iter(frame.collect_batches(chunk_size=1, maintain_order=True))).item() == 1
    assert made < 100


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables.write_text(Path("here.txt"), "x")
    assert Path("here.txt").read_text() == "x"


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    unfinished = f".scores.parquet.{'0' * 32}.tmp"
    (tmp_path / unfinished).mkdir()
    (tmp_path / unfinished / "00000000.parquet").touch()
    (tmp_path / f".run.json.{'a' * 32}.tmp").touch()
    (tmp_path / ".mine.tmp").touch()
    tables.remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.tmp"]


def test_tables_of_earlier_versions_lack_columns_and_choices(tmp_path):
    older = pl.DataFrame(
        {"curve": ["roc"], "attack": ["a_v1"], "subject": [None], "x": [0.0], "y": [0.5], "n": [1]},
        schema=Curves.create_empty().schema | {"curve": pl.Enum(["roc", "strip"])},
    )
    older.write_parquet(tmp_path / "curves.parquet")
    found = tables.scan(tmp_path / "curves.parquet", Curves)
    assert found.collect().equals(older.cast(Curves.create_empty().schema))
    older.cast({"curve": pl.Enum(["roc", "other"])}).write_parquet(tmp_path / "curves.parquet")
    with pytest.raises(SchemaMismatchError, match="'curve' is Enum"):
        tables.scan(tmp_path / "curves.parquet", Curves)
    rollup = Rollup.create_empty().drop("n_passages_20", "n_passages_50", "passages_from")
    rollup.write_parquet(tmp_path / "rollup.parquet")
    scanned = tables.scan(tmp_path / "rollup.parquet", Rollup).collect_schema()
    assert {*scanned} == {*Rollup.column_names()}
