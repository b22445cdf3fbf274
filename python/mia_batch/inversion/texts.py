"""The table of texts under attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.schemas import InversionTexts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["texts_table"]


def texts_table(
    attacked: pl.DataFrame, recovered: Mapping[str, list[str]], counts: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Make the table `InversionTexts`; what is recovered is of the texts without a reason.

    ``counts`` are those of `overlaps`.
    """
    asked = attacked.filter(pl.col("reason").is_null())
    others = attacked.filter(pl.col("reason").is_not_null())
    shared, true, answered = (pl.col(f"{name}_tokens") for name in ("shared", "true", "recovered"))
    parts = []
    for method, texts in recovered.items():
        tokens = counts[method]["tokens"].struct
        found = asked.with_columns(
            pl.Series("recovered", texts, dtype=pl.String),
            *(tokens[name].alias(f"{name}_tokens") for name in ("true", "recovered", "shared")),
            exact=tokens["exact"],
        ).with_columns(
            precision=pl.when(answered > 0).then(shared / answered),
            recall=shared / true,
            f1=2 * shared / (true + answered),
        )
        parts += [each.with_columns(method=pl.lit(method)) for each in (found, others)]
    columns = InversionTexts.create_empty().schema
    table = pl.concat(parts, how="diagonal_relaxed").sort("row", maintain_order=True)
    return table.select(pl.col(name).cast(dtype) for name, dtype in columns.items())
