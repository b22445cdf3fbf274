"""What a report shows: a run's manifest, tables and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import polars as pl

from mia_batch.report.masking import MASKED, Masking
from mia_batch.report.next_step import NextStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a report shows; ``tables`` has those that the run has."""

    manifest: Mapping[str, Any]  # of run.json
    tables: Mapping[str, pl.LazyFrame]
    answer: str  # in one sentence
    doubt: str = ""  # a sentence, what makes the answer doubtful
    next_step: NextStep | None = None
    conclusions: Sequence[str]
    # How sure, by name
    checks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    primary: str  # the attack that the answer rests on
    command: str  # that repeats the run
    meanings: Mapping[str, str]  # what a row of each table is, by its name
    masking: Masking = MASKED  # what is shown of texts
    stamps: str = ""  # time stamps of the run's root

    @property
    def model(self) -> str:
        """What headings call the audited model: the last two parts of its name."""
        name = self.look_up("models.target.source.name") or "a model"
        if name == "recorded":
            return "the recorded model"
        return "/".join(PurePath(name).parts[-2:])

    @property
    def attacks(self) -> list[str]:
        return list(self.look_up("made.scores.attacks") or [])

    def look_up(self, path: str, default: object = None) -> Any:
        """Look a value of the manifest up by its names with dots between."""
        value: Any = self.manifest
        for name in path.split("."):
            if not isinstance(value, dict) or name not in value:
                return default
            value = value[name]
        return value

    def has_columns(self, table: str, *columns: str) -> bool:
        if table not in self.tables:
            return False
        names = self.tables[table].collect_schema().names()
        return set(columns) <= set(names)

    def read_rows(self, table: str, *filters: pl.Expr, **equal: str) -> pl.DataFrame:
        """Read the rows of a table that pass all filters; none without the table."""
        if table not in self.tables:
            return pl.DataFrame()
        rows = self.tables[table].filter(pl.lit(value=True), *filters, **equal)
        return rows.collect(engine="streaming")
