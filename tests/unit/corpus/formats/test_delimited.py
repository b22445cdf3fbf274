from __future__ import annotations

import csv

import pytest

from mia_batch.corpus import files, read_documents
from mia_batch.errors import CorpusError


@pytest.fixture
def table(tmp_path):
    """Write a CSV file from bytes, return its path."""

    def write(content, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def rows(path, *names):
    return read_documents(path).documents.select(names).collect().rows()


def refusal(path):
    with pytest.raises(CorpusError) as error:
        read_documents(path)
    return str(error.value)


def test_everything_is_text_and_an_empty_field_is_null(table):
    path = table(b'text,document_id,year\n007,01,1999\n,02,\n"",03," "\n')
    expected = [("007", "01", "1999"), (None, "02", None), (None, "03", " ")]
    assert rows(path, "text", "document_id", "year") == expected


def test_quoted_fields_keep_their_line_ends(table):
    path = table(b'\xef\xbb\xbf"text","l, m"\r\n"a\r\nb ""q""\nc",1\r\n\r\nd,2\r\n\r\n')
    assert rows(path, "text", "l, m") == [('a\r\nb "q"\nc', "1"), ("d", "2")]


def test_unusual_characters_do_not_end_a_line(table):
    wild = "a\u2028b\x85c\x0b\x0c\x1c\0d"
    assert rows(table(f"text,x\n{wild},1\n".encode()), "text") == [(wild,)]


def test_a_quote_within_a_plain_field_is_a_character(table):
    assert rows(table(b'text,x\n5" nail,1\nb,2\n'), "text") == [('5" nail',), ("b",)]


def test_fields_may_be_long_and_the_limit_of_others_stays(table):
    before = csv.field_size_limit()
    long = "word " * 100_000
    assert rows(table(f"text\n{long}\n".encode()), "text") == [(long,)]
    assert csv.field_size_limit() == before


def test_the_last_line_needs_no_end(table):
    assert rows(table(b"text,x\na,1"), "text") == [("a",)]


def test_many_batches_are_one_table(table, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_CHARS", 100)
    content = "".join(f"{n},some text\n" for n in range(1000))
    path = table(f"document_id,text\n{content}".encode())
    assert rows(path, "document_id") == [(str(n),) for n in range(1000)]


def test_columns_of_parts_may_be_in_another_order(table, tmp_path):
    table(b"text,x\na,1\n", "1.csv")
    table(b"x,text\n2,b\n", "2.csv")
    assert rows(tmp_path, "text", "x") == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"a,1\n\nb,2,3\n", "line 4: 3 fields where the header has 2; correct or remove the line"),
        (b'"a\nb",1\nc\n', "line 4: 1 fields where the header has 2; correct or remove the line"),
        (b'a,1\n"b,2\nc,3\n', "line 3: not valid CSV, unexpected end of data; correct or remove "),
        (b'a,1\n"b"c,2\n', "line 3: not valid CSV, ',' expected after '\"'; correct or remove the"),
        (b"a,1\nb\xe9,2\n", "line 3: byte 0xe9 is not valid UTF-8; save the file as UTF-8"),
    ],
)
def test_a_malformed_row_is_refused(table, content, what):
    path = table(b"text,x\n" + content)
    assert refusal(path).startswith(f"{path}, {what}")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_header_is_refused(table, content):
    path = table(content)
    assert refusal(path) == f"{path} is empty; its first line must name the columns"


def test_a_header_must_name_each_column_once(table):
    path = table(b",text\n0,a\n")
    assert refusal(path) == f"{path}, line 1: column 1 has no name; give it a name of its own"
    path = table(b"text,text\na,b\n")
    assert "column 2 is named 'text' like one before it" in refusal(path)


def test_parts_with_other_columns_are_refused(table, tmp_path):
    first, second = table(b"text,x\na,1\n", "1.csv"), table(b"text\nb\n", "2.csv")
    assert refusal(tmp_path) == (
        f"{first} has a column 'x' and {second} has none; give files with the same columns"
    )


def test_tabs_separate_the_fields_of_tsv(table):
    path = table(b'text\tlabel, x\na, b\t1\n"c\td"\t0\n', "a.tsv")
    assert rows(path, "text", "label, x") == [("a, b", "1"), ("c\td", "0")]
