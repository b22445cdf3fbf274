from __future__ import annotations

import polars as pl
import pytest

from mia_batch.corpus import files, read_documents
from mia_batch.corpus.files import agreed_schema
from mia_batch.errors import CorpusError

TEXTS = [f"text number {n:05d} of many" for n in range(5000)]


def refusal(path):
    with pytest.raises(CorpusError) as error:
        read_documents(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def plain(tmp_path):
    """A file of 5,000 texts, not compressed, so that a byte of a text is a byte of the file."""
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": TEXTS}).write_parquet(path, compression="uncompressed")
    return path


def test_one_large_row_group_is_read_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SLICE_BYTES", 1000)
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": TEXTS, "n": range(5000)}).write_parquet(path, row_group_size=5000)
    found = read_documents(path)
    assert path.stat().st_size > 5 * 1000
    assert found.documents.collect()["text"].to_list() == TEXTS
    assert found.documents.filter(pl.col("n") == 4999).select("text").collect().item() == TEXTS[-1]


@pytest.mark.parametrize("size", [0, 3, 1000, -1])
def test_a_truncated_file_is_refused(plain, size):
    plain.write_bytes(plain.read_bytes()[:size])
    assert refusal(plain).startswith(f"{plain} cannot be read as Parquet: ")


def test_text_that_is_not_utf8_is_refused_with_its_row(plain):
    plain.write_bytes(plain.read_bytes().replace(b"number 03333", b"number\xff03333"))
    message = refusal(plain)
    assert message.startswith(f"{plain} is broken at row 3334: ")
    assert message.endswith("invalid UTF-8; restore the file")


def test_a_damaged_page_is_refused_with_the_first_row_it_hits(plain):
    content = bytearray(plain.read_bytes())
    content[4:60] = b"\xff" * 56  # the first page's header
    plain.write_bytes(content)
    assert refusal(plain).startswith(f"{plain} is broken at row 1: ")


def test_a_file_that_broke_after_the_check_is_said_when_read(plain):
    found = read_documents(plain)
    plain.write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match="cannot be read as Parquet"):
        found.documents.collect()


def test_a_file_without_rows_is_a_part_like_others(tmp_path):
    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"text": []}, schema={"text": pl.String}).write_parquet(tmp_path / "0.parquet")
    assert read_documents(tmp_path).documents.collect()["text"].to_list() == ["a"]


def test_parts_of_other_types_are_refused(tmp_path):
    pl.DataFrame({"text": ["a"], "x": [1]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"x": [None], "text": ["a"]}).write_parquet(tmp_path / "2.parquet")
    pl.DataFrame({"text": ["a"], "x": ["1"]}).write_parquet(tmp_path / "3.parquet")
    assert refusal(tmp_path) == (
        f"column 'x' is Int64 in {tmp_path}/1.parquet but String in {tmp_path}/3.parquet; "
        "give it one type in all files"
    )


def test_further_columns_of_any_type_pass_through(tmp_path):
    further = {"l": [[1], None], "s": [{"a": 1}, {"a": 2}], "d": [b"x", None]}
    frame = pl.DataFrame({"text": ["a", "b"], **further})
    frame.write_parquet(tmp_path / "a.parquet")
    documents = read_documents(tmp_path / "a.parquet").documents.collect()
    assert documents.select(*further).equals(frame.select(*further))


def test_names_of_folders_are_no_columns(tmp_path):
    path = tmp_path / "year=1999" / "[a]*.parquet"
    path.parent.mkdir()
    pl.DataFrame({"text": ["a"]}).write_parquet(path)
    assert "year" not in read_documents(path).documents.collect_schema()


def test_one_schema_is_agreed_with_itself():
    schema = pl.Schema({"a": pl.Int64(), "b": pl.Null()})
    assert agreed_schema({"x": schema}) == schema


def test_columns_of_nulls_take_the_others_type():
    schemas = {
        "x": pl.Schema({"a": pl.Null(), "b": pl.Int64()}),
        "y": pl.Schema({"b": pl.Null(), "a": pl.String()}),
    }
    assert agreed_schema(schemas) == pl.Schema({"a": pl.String(), "b": pl.Int64()})


def test_a_column_that_only_one_file_has_is_refused():
    schemas = {
        "x": pl.Schema({"a": pl.Int64()}),
        "y": pl.Schema({"a": pl.Int64(), "b": pl.Int64()}),
    }
    with pytest.raises(CorpusError, match=r"^y has a column 'b' and x has none; give files"):
        agreed_schema(schemas)
    with pytest.raises(CorpusError, match=r"^y has a column 'b' and x has none; give files"):
        agreed_schema(dict(reversed(schemas.items())))


def test_a_column_of_two_types_is_refused():
    schemas = {"x": pl.Schema({"a": pl.Int64()}), "y": pl.Schema({"a": pl.Int32()})}
    with pytest.raises(CorpusError, match=r"^column 'a' is Int64 in x but Int32 in y; give it one"):
        agreed_schema(schemas)


def test_arrow_files_and_streams_are_read(tmp_path):
    frame = pl.DataFrame({"text": TEXTS, "n": range(5000)})
    frame.write_ipc(tmp_path / "1.arrow")
    frame.write_ipc_stream(tmp_path / "2.arrow")  # as the datasets library writes them
    frame.write_ipc(tmp_path / "3.feather", compression="zstd")
    found = read_documents(tmp_path)
    assert found.documents.collect()["text"].to_list() == 3 * TEXTS
    assert found.documents.collect()["n"].sum() == 3 * sum(range(5000))


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0rubbish"])
def test_a_broken_arrow_file_is_refused(tmp_path, content):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path} cannot be read as Arrow: ")
