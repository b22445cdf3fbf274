from __future__ import annotations

from hashlib import sha256

import polars as pl
import pytest

from mia_batch.corpus import ColumnNames, find_files, read_documents
from mia_batch.corpus import files as books
from mia_batch.corpus.files import Reading
from mia_batch.errors import CorpusError
from tests.books import HEADER, HEADERS, LICENCE, page, write_epub


def test_one_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"  one\n")
    documents = read_documents(tmp_path / "a.txt").documents.collect()
    assert documents.select("document_id", "text").rows() == [("a.txt", "  one\n")]


def test_batches_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(books, "_BATCH_BYTES", 10)
    for number in range(20):
        (tmp_path / f"{number:02d}.txt").write_text("x" * number)
    documents = read_documents(tmp_path).documents
    assert documents.collect()["text"].to_list() == ["x" * number for number in range(20)]
    assert documents.select("document_id").collect().height == 20


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good")
    path = tmp_path / "b.txt"
    path.write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(CorpusError) as error:
        read_documents(tmp_path)
    assert str(error.value) == (
        f"{path}, line 2: byte 0xe9 is not valid UTF-8; save the file as UTF-8"
    )


def texts_of(folder, encoding=None):
    files = find_files(folder).files
    reading = Reading(encoding)
    frames = books.book_rows(files, books.book_schema(files, reading), ["text"], reading)
    return pl.concat(frames)["text"].to_list()


def test_an_encoding_is_that_of_files_that_say_none(tmp_path):
    (tmp_path / "a.txt").write_bytes("café ça".encode("cp1252"))
    (tmp_path / "b.txt").write_bytes("café ça".encode())
    (tmp_path / "c.txt").write_bytes("café ça".encode("utf-16"))
    (tmp_path / "d.html").write_bytes("<p>café ça".encode("cp1252"))
    (tmp_path / "e.html").write_bytes('<meta charset="cp850"><p>café ça'.encode("cp850"))
    page_of = {"x": page("").replace(' encoding="utf-8"', "")}
    further = {"OEBPS/x": page_of["x"].replace("<body>", "<body>café ça").encode("cp1252")}
    write_epub(tmp_path / "f.epub", page_of, further=further)
    assert texts_of(tmp_path, "cp1252") == ["café ça"] * 6


@pytest.mark.parametrize(
    ("says", "encoding"),
    [
        ("Character set encoding: ISO-8859-1", "cp1252"),
        ("Character Set Encoding: ISO Latin-1 (with curly quotes)", "cp1252"),
        ("Character set codering: Windows Code Page 1252", "cp1252"),
        ("Codierung: CP-850", "cp850"),
        ("Character set encoding: ASCII, with a few ISO-8859-1 characters", "latin-1"),
        ("Character set encoding: ISO-8859-1", "utf-8"),
    ],
)
def test_the_encoding_of_gutenbergs_header_is_believed(tmp_path, says, encoding):
    text = HEADERS["the"].replace("Character set encoding: UTF-8", says) + "café ça"
    assert says in text
    (tmp_path / "a.txt").write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert texts_of(tmp_path) == ["café ça"]


def test_a_text_that_is_not_in_the_encoding_of_its_header_is_refused(tmp_path):
    text = HEADERS["the"].replace("encoding: UTF-8", "encoding: ASCII") + "café"
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    line = text.count("\n") + 1
    with pytest.raises(CorpusError, match=rf"a\.txt, line {line}: byte 0xe9 is not valid ASCII; "):
        texts_of(tmp_path)
    assert texts_of(tmp_path, "cp1252") == ["café"]


def test_line_ends_are_kept(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\n\fd\x0be")
    assert texts_of(tmp_path) == ["a\r\nb\rc\n\fd\x0be"]


def test_other_columns_do_not_exist(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(CorpusError, match="has no column 'year', only 'document_id', 'text', 't"):
        read_documents(tmp_path, ColumnNames(group="year"))


def test_kinds_of_books_are_mixed(tmp_path):
    write_epub(tmp_path / "a.epub", {"x": page("<p>one</p>")})
    (tmp_path / "b.HTM").write_text(HEADER.partition("Produced")[0] + "two" + LICENCE)
    (tmp_path / "c.txt").write_text(HEADER + " two\n" + LICENCE)
    (tmp_path / "d.html").write_text(page("<p>three</p>", head="<title>D</title>"))
    (tmp_path / "notes.md").touch()
    found = read_documents(tmp_path)
    documents = found.documents.collect()
    assert documents.select("document_id", "text", "title", "author").rows() == [
        ("a.epub", "one", "The Title", "One Author; Two"),
        ("b.HTM", "two", None, None),
        ("c.txt", " two", "The Raven Book and Other Poems", "Edgar A. Poe"),
        ("d.html", "three", "D", None),
    ]
    assert documents["group"].to_list() == documents["document_id"].to_list()
    assert found.ignored == {f"{tmp_path}/notes.md": "files of kind .md are not read"}
    assert documents["sha256"][2] == sha256((tmp_path / "c.txt").read_bytes()).hexdigest()
    assert documents.select("n_characters", "cut_start", "cut_end").row(2) == (
        *(len(HEADER + " two\n" + LICENCE), len(HEADER), len("\n" + LICENCE)),
    )


def test_books_may_be_grouped_by_another_column(tmp_path):
    (tmp_path / "c.txt").write_text(HEADER + "two")
    documents = read_documents(tmp_path, ColumnNames(group="author")).documents.collect()
    assert documents["group"].to_list() == ["Edgar A. Poe"]
    assert documents["document_id"].to_list() == ["c.txt"]
