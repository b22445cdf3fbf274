from __future__ import annotations

import hashlib

import pytest

from mia_batch.demo.making import Record, digest_files


def test_record_survives_writing(tmp_path):
    record = Record(recipe="r", files={"a": "0"})
    record.write(tmp_path)
    assert Record.of(tmp_path) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"made_by": "me"}',
        '{"recipe": "", "files": {}, "made_by": "me"}',
    ],
)
def test_notes_of_others_are_no_records(tmp_path, text):
    (tmp_path / "demo.json").write_text(text)
    assert Record.of(tmp_path) is None


def test_record_is_true_while_every_file_is_unchanged(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    files = digest_files(tmp_path, ["a"])
    assert files == {"a": hashlib.sha256(b"x").hexdigest()}
    assert Record(recipe="r", files=files).is_true_of(tmp_path)
    assert not Record(recipe="r", files={**files, "b": ""}).is_true_of(tmp_path)
    assert not Record(recipe="r", files={}).is_true_of(tmp_path)
    (tmp_path / "a").write_bytes(b"y")
    assert not Record(recipe="r", files=files).is_true_of(tmp_path)
