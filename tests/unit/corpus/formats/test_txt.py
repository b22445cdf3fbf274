from __future__ import annotations

import pytest

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.corpus.formats import txt
from mia_batch.errors import CorpusError


def test_one_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"  one\n")
    documents = read_documents(tmp_path / "a.txt").documents.collect()
    assert documents.select("document_id", "text").rows() == [("a.txt", "  one\n")]


def test_batches_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(txt, "_BATCH_BYTES", 10)
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
    with pytest.raises(CorpusError, match="has no column 'author', only 'document_id', 'text'"):
        read_documents(tmp_path, ColumnNames(group="author"))
