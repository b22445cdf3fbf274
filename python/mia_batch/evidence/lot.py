"""The order of asking: the texts of a run, whatever their role, in one order drawn by lot."""

from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.tables import generate

LOT = "lot_v1"
"""Name of the rule by which the order is drawn; a run records it with its evidence."""
_TARGETS_AT_ONCE = 1 << 15


def lot_numbers(
    target_ids: pl.Series,
    seed: int,
) -> NDArray[np.uint64]:
    """Draw a number for each text; texts are asked in ascending order of these numbers."""
    # A number depends on the seed and the text alone, so that shards, resumed runs and
    # grown corpora keep the order of the texts that they share, wherever these stand in
    # the input.
    numbers = np.empty(target_ids.len(), np.uint64)
    for row, target_id in enumerate(target_ids):
        digest = sha256(f"order:{seed}:{target_id}".encode()).digest()
        numbers[row] = int.from_bytes(digest[:8])
    return numbers


def in_order_of_asking(
    targets: pl.LazyFrame,
    seed: int,
) -> pl.LazyFrame:
    """Sort a targets table by lot; some of its rows are held in memory at a time."""
    target_ids = targets.select("target_id").collect(engine="streaming")
    numbers = lot_numbers(target_ids.to_series(), seed)
    rows_in_order = numbers.argsort(kind="stable").astype(np.uint32)
    numbered = targets.with_row_index("row")

    def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
        for start in range(0, rows_in_order.size, _TARGETS_AT_ONCE):
            batch = rows_in_order[start : start + _TARGETS_AT_ONCE]
            rows = pl.Series("row", batch)
            is_next = pl.col("row").is_in(rows.implode())
            unordered = numbered.filter(is_next).collect(engine="streaming")
            ordered = rows.to_frame().join(
                unordered,
                on="row",
                maintain_order="left",
            )
            yield ordered.drop("row")

    return generate(targets.collect_schema(), frames)
