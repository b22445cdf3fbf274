from __future__ import annotations

import polars as pl
import pytest

from mia_batch.corpus.documents import ColumnNames, check_rows, resolve
from mia_batch.errors import CorpusError


def check(*frames):
    columns = resolve(ColumnNames(), frames[0].schema, where="corpus")

    def read(names):
        return (frame.select(names) for frame in frames)

    return check_rows(read, columns, place_of="row {}".format, wrong=refuse)


def refuse(row, what):
    raise CorpusError(f"row {row}: {what}")


def frame(identifiers, **further):
    return pl.DataFrame({"text": ["a"] * len(identifiers), "document_id": identifiers, **further})


def test_rows_are_counted_over_frames():
    assert check(frame([1, 2]), frame([3]), frame([], label=[]).select("text", "document_id")) == 3


def test_the_nearest_duplicate_is_named():
    with pytest.raises(CorpusError, match=r"^row 4: document_id '2' is also in row 1; identifiers"):
        check(frame([1, 2]), frame([3, 4, 2]), frame([1]))


def test_equal_hashes_of_different_identifiers_are_no_duplicates(monkeypatch):
    monkeypatch.setattr(pl.Expr, "hash", lambda self: self.str.len_bytes().cast(pl.UInt64))
    monkeypatch.setattr(pl.Series, "hash", lambda self: self.str.len_bytes().cast(pl.UInt64))
    assert check(frame([11, 22, 33])) == 3
    with pytest.raises(CorpusError, match="row 3: document_id '22' is also in row 1"):
        check(frame([11, 22, 33, 22]))


def test_the_first_wrong_row_of_a_later_frame_is_named():
    with pytest.raises(CorpusError, match=r"^row 3: column 'label' is 5, neither 0 nor 1"):
        check(frame([1, 2], label=[0, 1]), frame([3, 4, 5], label=[None, 5, 6]))


def test_a_value_is_shown_on_one_line_and_in_part():
    wild = pl.DataFrame({"text": ["a"], "{x} {}": ["wrong\n" * 1000]})
    columns = resolve(ColumnNames(label="{x} {}"), wild.schema, where="corpus")
    with pytest.raises(CorpusError) as error:
        check_rows(lambda names: iter([wild.select(names)]), columns, place_of=str, wrong=refuse)
    message = str(error.value)
    assert message.startswith("row 0: column '{x} {}' is 'wrong\\nwrong")
    assert message.endswith("', neither 0 nor 1; use 0, 1 or null")
    assert len(message) < 200
