"""What a report shows: a run's manifest, tables and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a report shows; tables that the run does not have are left out of ``tables``."""

    manifest: Mapping[str, Any]  # of run.json
    tables: Mapping[str, pl.LazyFrame]
    answer: str  # in one sentence
    conclusions: Sequence[str]
    # How sure, by name
    checks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    primary: str  # the attack that the answer rests on
    command: str  # that repeats the run
    meanings: Mapping[str, str]  # what a row of each table is, by its name
    stamps: str = ""  # time stamps of the run's root

    @property
    def model(self) -> str:
        """What headings call the audited model: the last two parts of its name."""
        name = self.recorded("models.target.source.name") or "a model"
        return (
            "the recorded model"
            if name == "recorded"
            else "/".join(PurePath(name).parts[-2:])
        )

    @property
    def attacks(self) -> list[str]:
        return list(self.recorded("made.scores.attacks") or [])

    def recorded(self, path: str, without: object = None) -> Any:
        """Look a value of the manifest up by its names with dots between."""
        found: Any = self.manifest
        for name in path.split("."):
            if not isinstance(found, dict) or name not in found:
                return without
            found = found[name]
        return found

    def has(self, table: str, *columns: str) -> bool:
        there = self.tables.get(table)
        return there is not None and set(columns) <= set(there.collect_schema().names())

    def frame(self, table: str, *filters: pl.Expr, **equal: str) -> pl.DataFrame:
        """Read the rows of a table that pass all filters; empty where there is no such table."""
        if table not in self.tables:
            return pl.DataFrame()
        rows = self.tables[table].filter(pl.lit(value=True), *filters, **equal)
        return rows.collect(engine="streaming")
