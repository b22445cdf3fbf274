from __future__ import annotations

import json

import pytest

from mia_batch.corpus import read_documents
from mia_batch.errors import CorpusError


@pytest.fixture
def lines(tmp_path):
    """Write a file of JSON Lines from bytes, return its path."""

    def write(content, name="a.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def texts(path):
    return read_documents(path).documents.collect()["text"].to_list()


def test_byte_order_mark_blank_lines_and_crlf_are_no_content(lines):
    path = lines(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n \t\n{"text": "b"}\n\n')
    assert texts(path) == ["a", "b"]


def test_the_last_line_needs_no_end(lines):
    assert texts(lines(b'{"text": "a"}\n{"text": "b"}')) == ["a", "b"]


def test_strings_come_through_as_they_are(lines):
    wild = 'é🦆 \u2028\u0085\x7f"\\\\ud800/\0\r\n\t ' + "long" * 500_000
    assert texts(lines(json.dumps({"text": wild}).encode())) == [wild]
    assert texts(lines(json.dumps({"text": wild}, ensure_ascii=False).encode())) == [wild]


def test_a_key_may_come_late_or_lack(lines):
    rows = [b'{"text": "a"}\n'] * 3000 + [b'{"text": "b", "label": 1, "place": "x"}\n', b"{}\n"]
    documents = read_documents(lines(b"".join(rows))).documents.tail(3).collect()
    assert documents.select("text", "member", "place").rows() == [
        ("a", None, None),
        ("b", True, "x"),
        (None, None, None),
    ]


def test_further_columns_keep_their_values(lines):
    path = lines(
        b'{"text": "a", "n": 9223372036854775807, "f": 1, "d": 123456789012345678901, "b": true}\n'
        b'{"text": "b", "n": -9223372036854775808, "f": 0.5, "d": 1, "m": {"k": [1, "\\u00e9"]}}\n'
    )
    documents = read_documents(path).documents.select("n", "f", "d", "b", "m").collect()
    assert documents.rows() == [
        (2**63 - 1, 1.0, "123456789012345678901", True, None),
        (-(2**63), 0.5, "1", None, '{"k": [1, "é"]}'),
    ]


def test_long_integers_are_identifiers_too(lines):
    path = lines(b'{"text": "a", "document_id": 123456789012345678901}\n')
    assert read_documents(path).documents.collect()["document_id"].item() == "123456789012345678901"


def test_files_may_lack_each_others_keys(lines, tmp_path):
    lines(b'{"text": "a", "x": null}\n', "1.jsonl")
    lines(b'{"text": "b", "x": 1, "y": "z"}\n', "2.jsonl")
    documents = read_documents(tmp_path).documents.select("text", "x", "y").collect()
    assert documents.rows() == [("a", None, None), ("b", 1, "z")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "b"', "not valid JSON, EOF while parsing an object at column 12"),
        (b'{"text": "b"} {"text": "c"}', "not valid JSON, trailing characters at column 15"),
        (b'{"text": "b\x00"}', "not valid JSON, control character"),
        (b'["b"]', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"text": "\\ud800b"}', "not valid JSON, unexpected end of hex escape"),
        (b'{"text": "\\udc00b"}', "not valid JSON, lone leading surrogate in hex escape"),
        (b'{"text": "b", "x": 1e400}', "error parsing line: InvalidNumber"),
        (b'{"text": ' + b"[" * 100_000, "not valid JSON, recursion limit exceeded"),
    ],
)
def test_a_malformed_line_is_refused(lines, line, what):
    path = lines(b'{"text": "a"}\n\n' + line + b'\n{"text": "c"}\n')
    with pytest.raises(CorpusError) as error:
        texts(path)
    assert str(error.value).startswith(f"{path}, line 3: {what}")
    assert str(error.value).endswith("; correct or remove the line")


@pytest.mark.parametrize(("wrong", "byte"), [(b"\xff", "0xff"), (b"\xed\xa0\x80", "0xed")])
def test_a_line_that_is_not_utf8_is_refused(lines, wrong, byte):
    path = lines(b'{"text": "a"}\n{"text": "b' + wrong + b'"}\n')
    with pytest.raises(CorpusError) as error:
        texts(path)
    assert str(error.value) == (
        f"{path}, line 2: byte {byte} is not valid UTF-8; save the file as UTF-8"
    )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("1", '"1"', ("a number", "a string")),
        ("true", "1", ("a boolean", "a number")),
        ("[1]", "{}", ("an array", "an object")),
    ],
)
def test_two_types_in_one_column_are_refused(lines, first, second, words):
    path = lines(b'{"text": "a", "x": %s}\n{"text": "b", "x": null}\n' % first.encode())
    other = lines(b'{"text": "c", "x": %s}\n' % second.encode(), "b.jsonl")
    with pytest.raises(CorpusError) as error:
        texts(path.parent)
    assert str(error.value) == (
        f"column 'x' is {words[0]} in {path}, line 1, but {words[1]} in {other}, line 1; "
        "give it one type"
    )


def test_a_broken_archive_is_refused(lines):
    path = lines(b"\x1f\x8b\x08 this is not gzip", "a.jsonl.gz")
    with pytest.raises(CorpusError, match=r"a\.jsonl\.gz cannot be read: "):
        texts(path)
