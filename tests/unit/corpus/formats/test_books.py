from __future__ import annotations

from hashlib import sha256

import pytest

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.corpus.formats import books
from mia_batch.errors import CorpusError
from tests.books import HEADER, LICENCE, page, write_epub


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


def test_other_columns_do_not_exist(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(CorpusError, match="has no column 'year', only 'document_id', 'text', 't"):
        read_documents(tmp_path, ColumnNames(group="year"))


def test_kinds_of_books_are_mixed(tmp_path):
    write_epub(tmp_path / "a.epub", {"x": page("<p>one</p>")})
    (tmp_path / "b.HTM").write_text(HEADER + "two" + LICENCE)
    (tmp_path / "c.txt").write_text(HEADER + " two\n" + LICENCE)
    (tmp_path / "d.html").write_text(page("<p>three</p>", head="<title>D</title>"))
    (tmp_path / "notes.md").touch()
    found = read_documents(tmp_path)
    documents = found.documents.collect()
    assert documents.select("document_id", "text", "title", "author").rows() == [
        ("a.epub", "one", "The Title", "One Author; Two"),
        ("b.HTM", documents["text"][1], None, None),
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
