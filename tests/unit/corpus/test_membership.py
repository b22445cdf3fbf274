from __future__ import annotations

import polars as pl
import pytest

from mia_batch.corpus.documents import membership


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False, None], [True, False, None]),
        ([1, 0, 2, -1, None], [True, False, None, None, None]),
        ([1.0, -0.0, 0.5, float("nan"), float("inf")], [True, False, None, None, None]),
        (["1", "0", "TRUE", "False", "1.0", "0.0"], [True, False, True, False, True, False]),
        (["", "yes", "01", None], [None] * 4),
        ([" 1", "0 ", " True"], [True, False, True]),
        ([None, None], [None, None]),
    ],
)
def test_membership(values, expected):
    column = pl.Series("x", values)
    found = column.to_frame().select(membership("x", column.dtype)).to_series()
    assert found.dtype == pl.Boolean
    assert found.to_list() == expected
