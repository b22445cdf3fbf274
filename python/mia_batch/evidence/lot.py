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


def lot_numbers(target_ids: pl.Series, seed: int) -> NDArray[np.uint64]:
    """Draw a number for each text; texts are asked in ascending order of these numbers."""
    # A number depends on the seed and the text alone, so that shards, resumed runs and
    # grown corpora keep the order of the texts that they share, wherever these stand in
    # the input.
    digests = (sha256(f"order:{seed}:{name}".encode()).digest() for name in target_ids)
    numbers = (int.from_bytes(digest[:8]) for digest in digests)
    return np.fromiter(numbers, np.uint64, target_ids.len())


def in_order_of_asking(targets: pl.LazyFrame, seed: int) -> pl.LazyFrame:
    """Sort a targets table by lot; some of its rows are held in memory at a time."""
    names = targets.select("target_id").collect(engine="streaming").to_series()
    rows_in_order = lot_numbers(names, seed).argsort(kind="stable").astype(np.uint32)

    def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
        for start in range(0, rows_in_order.size, _TARGETS_AT_ONCE):
            rows = pl.Series("row", rows_in_order[start : start + _TARGETS_AT_ONCE])
            numbered = targets.with_row_index("row").filter(
                pl.col("row").is_in(rows.implode())
            )
            found = numbered.collect(engine="streaming")
            in_order = rows.to_frame().join(found, on="row", maintain_order="left")
            yield in_order.drop("row")

    return generate(targets.collect_schema(), frames)
