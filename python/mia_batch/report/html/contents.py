"""What a report is made from: a run's manifest, its tables and its sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Contents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a report shows; tables that the run does not have are left out of ``tables``.

    Attributes
    ----------
    manifest
        The contents of ``run.json``.
    tables
        The run's tables by name, such as ``scores`` or ``rollup``.
    conclusions
        What may be concluded, as sentences.
    primary
        The attack that the answer rests on.
    command
        The command that repeats the run.
    meanings
        What a row of each table is, in a sentence, by the table's name.
    stamps
        The time stamps that lie beside the run's root; empty without any.
    """

    manifest: Mapping[str, Any]
    tables: Mapping[str, pl.LazyFrame]
    conclusions: Sequence[str]
    primary: str
    command: str
    meanings: Mapping[str, str]
    stamps: str = ""

    @property
    def attacks(self) -> list[str]:
        """Attacks that the run computed."""
        return list(self.recorded("made.scores.attacks") or [])

    def recorded(self, path: str, without: object = None) -> Any:  # noqa: ANN401 - of run.json
        """Look a value of the manifest up by its names with dots between."""
        found: Any = self.manifest
        for name in path.split("."):
            if not isinstance(found, dict) or name not in found:
                return without
            found = found[name]
        return found

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table has these columns."""
        there = self.tables.get(table)
        return there is not None and set(columns) <= set(there.collect_schema().names())

    def frame(self, table: str, *filters: pl.Expr, **equal: str) -> pl.DataFrame:
        """Read the rows of a table that pass all filters; empty where there is no such table."""
        if table not in self.tables:
            return pl.DataFrame()
        rows = self.tables[table].filter(pl.lit(value=True), *filters, **equal)
        return rows.collect(engine="streaming")
