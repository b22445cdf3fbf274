"""Parts of a table, and the table that they make up.

A part that exists is complete; what no part holds is missing. That is the whole resume logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.schemas import Features, LogProbs, Prompts, Samples
from mia_batch.tables import scan, sink_new

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import dataframely as dy

    from mia_batch.evidence.blocks import Block


__all__ = ["TARGET_KEY", "Parts", "scan_parts"]

TARGET_KEY = pl.col("target_id").str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)
"""Half of a target's hash: 8 bytes a target instead of a string."""

_PROMPT_KEY = TARGET_KEY + pl.col("view_index")
_NUMBERS: dict[type[dy.Schema], tuple[pl.Expr, pl.Expr]] = {
    Prompts: (TARGET_KEY, pl.col("view_index")),
    Samples: (_PROMPT_KEY, pl.col("sample_index")),
    LogProbs: (_PROMPT_KEY, pl.lit(0, pl.UInt32)),
}
"""Of each table the key of what a row belongs to, and what numbers the rows of one key from 0."""
_NAMES = ("target_id", "model", "view", "view_index", "sample_index")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of one table that hold one view of one model."""

    folder: Path
    schema: type[dy.Schema]
    model: str
    view: str
    block_targets: int  # targets in a block

    @property
    def label(self) -> str:
        """What the parts' names say of model and view."""
        return f"{self.model.replace('/', '~')}-{self.view}"

    def paths(self) -> list[Path]:
        """List the parts that exist, in the order of their names."""
        return sorted(self.folder.glob(f"block-*.{self.label}-[0-9]*.parquet"))

    def targets_of(self, part: Path) -> range:
        """Tell which rows of the targets table its targets were when the part was made.

        A corpus that has grown since may have moved them.
        """
        index = int(part.name.partition(".")[0].removeprefix("block-"))
        return range(index * self.block_targets, (index + 1) * self.block_targets)

    def store(self, block: Block, rows: pl.DataFrame) -> bool:
        """Write the part of a block, unless another worker did; tell whether this one wrote it."""
        return sink_new(rows, self.folder / block.part_name, self.schema)

    def scan(self, paths: Sequence[Path]) -> pl.LazyFrame:
        """Open rows as ``target`` and ``key`` (UInt64), ``index`` (UInt32) and ``reason``.

        The reason is null where asking again would bring the same answer.
        """
        key, number = _NUMBERS[self.schema]
        rows = scan(paths, self.schema)
        reason = pl.col("reason")
        if self.schema is Samples:
            answer = pl.col("answer").cast(pl.String)
            reason = pl.when(answer.is_null() | (answer == "not_asked")).then(reason)
        return rows.select(target=TARGET_KEY, key=key, index=number, reason=reason)


def scan_parts(
    folder: Path, schema: type[dy.Schema], reads: tuple[str, str] | None = None
) -> pl.LazyFrame:
    """Open the table of a folder of parts, less what a later attempt replaced.

    ``reads`` names one model and view; by default all. Of a row that failed and was tried again
    those with a ``reason`` are left out where there is one without; among several with a
    ``reason`` the last stays. Rows come in the order of the parts' names.
    """
    source: Path | list[Path] = folder
    if reads is not None:
        model, view = reads
        parts = Parts(folder=folder, schema=schema, model=model, view=view, block_targets=1)
        source = parts.paths()
    table = scan(source, schema)
    column = "words_candidate" if schema is Features else "reason"
    failed = pl.col(column).is_null() if schema is Features else pl.col(column).is_not_null()
    names = [name for name in _NAMES if name in schema.column_names()]
    return _without_replaced(table, failed, names)


def _without_replaced(table: pl.LazyFrame, failed: pl.Expr, names: list[str]) -> pl.LazyFrame:
    """Leave replaced rows out; where none failed, this reads one column and nothing else."""
    key = pl.col(names)
    if not table.select(failed.any()).collect(engine="streaming").item():
        return table
    rows = table.with_row_index("row").select("row", key, failed=failed)
    lost = rows.filter("failed").select(key).unique()
    replaced = (
        rows.join(lost, on=names, how="semi")
        .sort(key, ~pl.col("failed"), "row")
        .filter("failed", pl.all_horizontal(key.shift(-1) == key))
        .select("row")
        .collect(engine="streaming")
    )
    if replaced.is_empty():
        return table
    kept = table.with_row_index("row").join(
        replaced.lazy(), on="row", how="anti", maintain_order="left"
    )
    return kept.drop("row")
