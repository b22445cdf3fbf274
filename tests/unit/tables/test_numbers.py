from __future__ import annotations

import numpy as np
import polars as pl

from mia_batch.tables import read_numbers

N = 100_000


def test_a_column_is_read_in_order_over_many_batches(tmp_path):
    path = tmp_path / "table.parquet"
    values = pl.Series("a", np.arange(N)).cast(pl.Float64)
    frame = pl.DataFrame([values]).with_columns(a=pl.when(values % 7 > 0).then("a"))
    frame.write_parquet(path, row_group_size=1000)
    found = read_numbers(pl.scan_parquet(path), pl.col("a"), N, np.float64)
    expected = np.where(np.arange(N) % 7 > 0, np.arange(N), np.nan)
    assert np.array_equal(found, expected, equal_nan=True)


def test_an_empty_table_gives_an_empty_array():
    empty = pl.LazyFrame(schema={"a": pl.Boolean})
    assert read_numbers(empty, pl.col("a"), 0, np.bool_).tolist() == []
