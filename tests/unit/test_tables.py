"""Tables: checked, written whole or not at all, read in bounded memory."""

import os
import re
import resource
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dataframely as dy
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import tables
from mia_batch.errors import RunFolderError, SchemaMismatchError
from mia_batch.schemas import Curves, Rollup, Table, Unscored
from mia_batch.tables import put_copy, remove
from tests.damage import damage


class Numbers(Table):
    name = dy.String(nullable=True)
    value = dy.Int64()


FRAME = pl.DataFrame({"name": ["a", None], "value": [1, 2], "further": [True, False]})


def test_check_lists_what_is_missing_and_what_is_wrong():
    with pytest.raises(SchemaMismatchError) as error:
        tables.check(pl.DataFrame({"value": [1.5]}), Numbers, name="parts/1.parquet")
    assert (
        str(error.value)
        == "parts/1.parquet is not a Numbers table: 'name' is missing, "
        "'value' is Float64 instead of Int64"
    )


def test_a_table_is_written_over_an_older_one_and_in_every_way_to_the_same_bytes(
    tmp_path,
):
    folder = tmp_path / "a=1[x]*"  # taken literally
    folder.mkdir()
    path = folder / "numbers.parquet"
    long = pl.LazyFrame(
        {"name": [f"row {n}" for n in range(50_000)], "value": range(50_000)}
    )
    written = []
    for frame in (long, FRAME.lazy(), long):
        tables.sink(frame, path, Numbers)
        written.append(path.read_bytes())
        assert tables.scan(path, Numbers).collect().equals(frame.collect())
        assert [*folder.iterdir()] == [path]
    assert written[0] == written[2]
    folder = tmp_path / "run[1] *"  # which is no pattern
    folder.mkdir()
    whole = pl.DataFrame(
        {"name": [f"row {n}" for n in range(20_000)], "value": range(20_000)}
    )
    parts: dict[str, pl.DataFrame | pl.LazyFrame]
    parts = {"a": whole, "b": FRAME.clear(), "c": whole[3:7].lazy()}
    tables.sink_all({folder / name: part for name, part in parts.items()}, Numbers)
    for name, part in parts.items():
        tables.sink(part, folder / "alone", Numbers)
        assert (folder / name).read_bytes() == (folder / "alone").read_bytes()
        pieces = (
            part.lazy().collect().iter_slices(1000)
            if part is whole
            else [part.lazy().collect()]
        )
        tables.sink_frames(pieces, folder / "pieces", Numbers)
        assert (folder / name).read_bytes() == (folder / "pieces").read_bytes()
    assert len(list(folder.iterdir())) == 5


def test_another_table_is_refused_and_nothing_written(tmp_path):
    wrong = FRAME.lazy().with_columns(value=pl.col("name").str.to_integer())
    path = tmp_path / "numbers.parquet"
    with pytest.raises(SchemaMismatchError, match="'value' is missing"):
        tables.sink(FRAME.drop("value"), path, Numbers)
    with pytest.raises(pl.exceptions.ComputeError, match="strict integer parsing"):
        tables.sink(wrong, path, Numbers)  # which is not blamed on the disk
    with pytest.raises(pl.exceptions.ComputeError, match="strict integer parsing"):
        tables.sink_all({tmp_path / "a": FRAME, tmp_path / "b": wrong}, Numbers)
    frames = pl.concat([FRAME.drop("further")] * 5000).iter_slices(2)
    broken = (
        frame.select(pl.col("name").str.to_integer(), "value") for frame in frames
    )
    with pytest.raises(pl.exceptions.PolarsError, match="strict integer parsing"):
        tables.sink_frames(broken, path, Numbers)
    assert not list(tmp_path.iterdir())


def test_sink_says_when_the_disk_is_full_wherever_the_room_ends(tmp_path, limit_files):
    noise = pl.DataFrame({"name": [os.urandom(500).hex()] * 3, "value": [1, 2, 3]})
    path = tmp_path / "numbers.parquet"
    tables.sink(noise, path, Numbers)
    whole = path.read_bytes()
    for size in range(0, len(whole), 13):
        limit_files(size)
        if size % 10 == 0:
            with pytest.raises(RunFolderError, match="File too large"):
                tables.write_text(path, "x" * 5000)
            with pytest.raises(
                RunFolderError, match=r"numbers\.parquet cannot be written: File"
            ):
                tables.sink_frames([noise], path, Numbers)
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
        with pytest.raises(
            RunFolderError, match=r"/long cannot be written: File too large; make"
        ):
            tables.sink_all({short: FRAME.head(1), long: rows}, Numbers)
        limit_files(resource.RLIM_INFINITY)
        assert all(pl.read_parquet(path).equals(FRAME) for path in (short, long))
        assert sorted(tmp_path.iterdir()) == [long, short]


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_sink_says_when_there_is_no_folder(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(
        RunFolderError, match=r"cannot be written: .*irectory; make (the folder|room)"
    ):
        tables.sink(FRAME, tmp_path / folder / "numbers.parquet", Numbers)
    with pytest.raises(
        RunFolderError, match=r"numbers\.parquet cannot be written: .*irectory"
    ):
        tables.sink_new(FRAME, tmp_path / folder / "numbers.parquet", Numbers)


def test_scan_says_what_is_wrong(tmp_path):
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        RunFolderError, match=r"short\.parquet cannot be read as a table: .*; give "
    ):
        tables.scan(tmp_path / "short.parquet", Numbers)
    missing = tmp_path / "missing.parquet"
    with pytest.raises(
        RunFolderError, match=re.escape(f"{missing} cannot be read as a table: No")
    ):
        tables.scan(missing, Numbers)
    FRAME.drop("name").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(
        SchemaMismatchError, match=r"other\.parquet is not a Numbers table: 'name'"
    ):
        tables.scan(tmp_path / "other.parquet", Numbers)


def test_small_tables_are_kept_until_they_change(tmp_path, monkeypatch):
    path = tmp_path / "numbers.parquet"
    kept = tables._read_small.cache_info

    def read():
        return tables.scan(path, Numbers).collect()

    monkeypatch.setattr(tables, "_TICK_NS", 0)
    tables.sink(FRAME, path, Numbers)
    hits = kept().hits
    assert read().equals(FRAME)
    assert read().equals(FRAME)
    assert kept().hits == hits + 1
    tables.sink(FRAME.reverse(), path, Numbers)
    assert read().equals(FRAME.reverse())
    many = pl.concat([FRAME] * 5000)
    tables.sink(many, path, Numbers)
    assert path.stat().st_size < tables._SMALL_BYTES
    states = tables._file_states([path])
    assert tables._read_small(states, Numbers, path) is None  # more than a row group
    assert read().equals(many)
    damage(path, slice(4, 40))
    with pytest.raises(tables.READ_ERRORS):
        read()
    monkeypatch.setattr(tables, "_TICK_NS", 10**18)
    assert tables._file_states([path]) is None  # it has only just changed


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
    path.write_bytes(
        whole[: int(left * len(whole)) if isinstance(left, float) else left]
    )
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


def three_frames(names: list[str] | None):
    for start in range(0, 30, 10):
        frame = pl.DataFrame({"a": range(start, start + 10), "b": ["x"] * 10})
        yield frame if names is None else frame.select([*names] or ["a"])


def test_generate_answers_every_kind_of_question_and_reads_only_a_little_ahead():
    frame = tables.generate(
        pl.Schema({"a": pl.Int64(), "b": pl.String()}), three_frames
    )
    assert frame.collect()["a"].to_list() == list(range(30))
    assert frame.select("b").collect().shape == (30, 1)
    assert frame.select(pl.len()).collect().item() == 30
    assert frame.filter(pl.col("a") > 25).select("b").collect().height == 4
    assert frame.slice(8, 4).collect()["a"].to_list() == [8, 9, 10, 11]
    assert frame.head(0).collect().height == 0
    assert frame.tail(1).collect()["a"].to_list() == [29]
    assert frame.head(12).filter(pl.col("a") >= 5).collect()["a"].to_list() == [
        *range(5, 12)
    ]
    assert frame.filter(pl.col("a") >= 5).head(12).collect()["a"].to_list() == [
        *range(5, 17)
    ]
    made = 0

    def frames(_names):
        nonlocal made
        for _ in range(1000):
            made += 1
            yield pl.DataFrame({"a": [made]})

    frame = tables.generate(pl.Schema({"a": pl.Int64()}), frames)
    assert (
        next(iter(frame.collect_batches(chunk_size=1, maintain_order=True))).item() == 1
    )
    assert made < 100


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
        {
            "curve": ["roc"],
            "attack": ["a_v1"],
            "subject": [None],
            "x": [0.0],
            "y": [0.5],
            "n": [1],
        },
        schema=Curves.create_empty().schema | {"curve": pl.Enum(["roc", "strip"])},
    )
    older.write_parquet(tmp_path / "curves.parquet")
    found = tables.scan(tmp_path / "curves.parquet", Curves)
    assert found.collect().equals(older.cast(Curves.create_empty().schema))
    older.cast({"curve": pl.Enum(["roc", "other"])}).write_parquet(
        tmp_path / "curves.parquet"
    )
    with pytest.raises(SchemaMismatchError, match="'curve' is Enum"):
        tables.scan(tmp_path / "curves.parquet", Curves)
    rollup = Rollup.create_empty().drop(
        "n_passages_20", "n_passages_50", "passages_from"
    )
    rollup.write_parquet(tmp_path / "rollup.parquet")
    scanned = tables.scan(tmp_path / "rollup.parquet", Rollup).collect_schema()
    assert {*scanned} == {*Rollup.column_names()}


@pytest.mark.parametrize(
    ("call", "after", "raised"),
    [
        ((divmod, 1, 2), None, None),
        ((divmod, 1, 0), None, ZeroDivisionError),
        ((divmod, 1, 0), KeyError, KeyError),  # that of the block comes first
    ],
)
def test_calls_are_made_before_the_block_ends_which_raises_what_they_raise(
    call, after, raised
):
    made: list[int] = []

    def ask():
        with tables.in_background() as later:
            if after is not None:
                later(*call)
                raise after
            for number in range(100):
                later(made.append, number)
                later(*call)

    if raised is None:
        ask()
        assert sorted(made) == list(range(100))
    else:
        with pytest.raises(raised):
            ask()
        assert len(made) < 20  # nobody goes on asking


class Listing:
    """Writes down what it learns, and how the file was at that time."""

    def __init__(self):
        self.learned = []

    def put(self, path, content):
        self.learned.append((path.name, self._seen(path), content.read_text()))

    def put_copy(self, path, content):
        self.learned.append((path.name, "copy", content.read_text()))

    def remove(self, path):
        self.learned.append((path.name, self._seen(path), None))

    def _seen(self, path):
        return path.read_text() if path.exists() else None


def test_it_learns_in_order_what_becomes_visible_and_what_goes(tmp_path):
    listing = Listing()
    (tmp_path / "parts").mkdir()
    part = tmp_path / "parts" / "one"
    tables.write_text(part, "unseen")
    with tables.followed(tmp_path, listing):
        assert tables.is_followed(part)
        tables.write_text(part, "first")
        tables.write_text(part, "second")
        tables.move(part, tmp_path / "two")
        put_copy(tmp_path / "log", tmp_path / "two")
        remove(tmp_path / "two")
        remove(tmp_path / "two")  # gone already
    tables.write_text(part, "unseen")
    assert not tables.is_followed(part)
    assert listing.learned == [
        ("one", "unseen", "first"),
        ("one", "first", "second"),
        ("two", None, "second"),
        ("one", "second", None),
        ("log", "copy", "second"),
        ("two", "second", None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_what_it_raises_prevents_the_change(tmp_path):
    class Refusing(Listing):
        def put(self, path, content):
            raise OSError(28, "full")

        def remove(self, path):
            raise ValueError(path)

    path = tmp_path / "one"
    tables.write_text(path, "first")
    with tables.followed(tmp_path, Refusing()):
        with pytest.raises(Exception, match="No space left"):
            tables.write_text(path, "second")
        with pytest.raises(ValueError, match="one"):
            remove(path)
    assert path.read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["one"]


N = 100_000


def test_a_column_is_read_in_order_over_many_batches(tmp_path):
    path = tmp_path / "table.parquet"
    values = pl.Series("a", np.arange(N)).cast(pl.Float64)
    frame = pl.DataFrame([values]).with_columns(a=pl.when(values % 7 > 0).then("a"))
    frame.write_parquet(path, row_group_size=1000)
    found = tables.read_numbers(pl.scan_parquet(path), pl.col("a"), N, np.float64)
    expected = np.where(np.arange(N) % 7 > 0, np.arange(N), np.nan)
    assert np.array_equal(found, expected, equal_nan=True)
    empty = pl.LazyFrame(schema={"a": pl.Boolean})
    assert tables.read_numbers(empty, pl.col("a"), 0, np.bool_).tolist() == []


KEYS = st.lists(st.none() | st.sampled_from("abcde"), max_size=30)


def index_of(keys: Sequence[str | None]) -> tables.RowIndex:
    return tables.RowIndex(pl.LazyFrame({"key": keys}, schema={"key": pl.String}))


@given(KEYS, KEYS)
def test_every_row_of_a_key_is_found_in_order(table, keys):
    index = index_of(table)
    assert index.height == len(table)
    which, rows = index.find(pl.Series(keys, dtype=pl.String))
    expected = [
        (place, row)
        for place, key in enumerate(keys)
        for row, known in enumerate(table)
        if key is not None and key == known
    ]
    assert list(zip(which.tolist(), rows.tolist(), strict=True)) == expected
    counts = [0 if key is None else table.count(key) for key in keys]
    assert index.count(pl.Series(keys, dtype=pl.String)).tolist() == counts


def test_rows_of_several_reads_are_found(monkeypatch):
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 300)
    keys = [f"{number % 800}" for number in range(2000)]
    which, found = index_of(keys).find(pl.Series(["7", "x", "799"]))
    assert which.tolist() == [0, 0, 0, 2, 2]
    assert found.tolist() == [7, 807, 1607, 799, 1599]


def test_building_holds_no_second_index():
    n_keys = 300_000
    keys = pl.LazyFrame({"key": pl.int_range(n_keys, eager=True).cast(pl.String)})
    tracemalloc.start()
    try:
        index = tables.RowIndex(keys)
        # The index itself is mapped, so not in it
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert index.n_keys == n_keys
    assert peak < 12 * n_keys


def unscored(reason: str) -> pl.DataFrame:
    rows = {"target_id": ["a" * 64], "attack": ["samia_v1"], "reason": [reason]}
    schema = Unscored.create_empty().schema
    return pl.DataFrame(
        {name: rows.get(name, [None]) for name in schema}, schema=schema
    )


def test_of_many_writers_one_writes_and_knows_it(tmp_path):
    path = tmp_path / "part.parquet"
    with ThreadPoolExecutor(16) as pool:
        wrote = list(
            pool.map(
                lambda n: tables.sink_new(unscored(f"{n}"), path, Unscored), range(16)
            )
        )
    assert sum(wrote) == 1
    assert pl.read_parquet(path)["reason"].to_list() == [f"{wrote.index(True)}"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_has_one_writer_too(tmp_path, monkeypatch):
    def no_links(self: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    path = tmp_path / "part.parquet"
    assert [tables.sink_new(unscored(each), path, Unscored) for each in "ab"] == [
        True,
        False,
    ]
    assert pl.read_parquet(path)["reason"].to_list() == ["a"]
    assert list(tmp_path.iterdir()) == [path]
