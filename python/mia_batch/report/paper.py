"""The table of a paper: attacks by data sets and models, in the formats that papers take."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from mia_batch.errors import SettingsError
from mia_batch.report.names import FORMS, as_csv

NO_FIGURE = "--"
_RATES = ("tpr_1", "tpr_01")
_FIGURES = ("AUC (95 % CI)", "TPR@1 % (95 % CI)", "TPR@0.1 % (95 % CI)")
_LIMITS = {"auc": ("low", "high")} | {
    name: (f"{name}_low", f"{name}_high") for name in _RATES
}


class PaperColumn(NamedTuple):
    """A run in the table of a paper: what it was about, and the rows of `attack_rows`."""

    data: str
    model: str
    seed: int
    rows: pl.DataFrame
    notes: tuple[str, ...] = ()  # how many texts, and why its figures mean little


KINDS = {"md": "**{}**", "latex": r"\textbf{{{}}}", "html": "<strong>{}</strong>"}
"""How the best is marked in each form."""
Cell = tuple[str, bool]  # a figure as text, and whether it is the best of its column


def paper_table(columns: Sequence[PaperColumn], kind: str = "md") -> str:
    """Write a table whose rows are attacks; see `mia_batch.pipeline.results.table_of`."""
    from mia_batch.report.html.page import environment

    if kind not in (*KINDS, "csv"):
        raise SettingsError(
            f"no format {kind!r}; choose one of {', '.join([*KINDS, 'csv'])}"
        )
    of: dict[tuple[str, str], list[PaperColumn]] = {}
    for column in columns:
        of.setdefault((column.data, column.model), []).append(column)
    seeds = {
        key: sorted({column.seed for column in group}) for key, group in of.items()
    }
    for key, group in of.items():
        if len(seeds[key]) < len(group):
            raise SettingsError(
                f"two runs are about {key[0]} and {key[1]} with the same seed; give one"
                " of them"
            )
    averaged = {key: _averaged(group) for key, group in of.items()}
    if kind == "csv":
        return _csv(averaged)
    cells = {key: _cells(rows) for key, rows in averaged.items()}
    rows: dict[str, list[Cell]] = {
        name: [] for figures in cells.values() for name in figures
    }
    for name, figures in product(rows, cells.values()):
        rows[name] += figures.get(name, [(NO_FIGURE, False)] * len(_FIGURES))
    notes = []
    for (data, model), own in seeds.items():
        what = "means, within the outermost limits, of seeds" if own[1:] else "seed"
        notes.append(f"{data}, {model}: {what} {', '.join(map(str, own))}")
        notes += dict.fromkeys(note for each in of[data, model] for note in each.notes)
    bold, safe = KINDS[kind], FORMS[kind]
    return (
        environment()
        .get_template(f"paper.{kind}.jinja")
        .render(
            keys=[(safe(data), safe(model)) for data, model in of],
            figures=[
                each.replace("%", r"\%") if kind == "latex" else each
                for each in _FIGURES
            ],
            rows={
                safe(name): [bold.format(text) if best else text for text, best in own]
                for name, own in rows.items()
            },
            note=safe("; ".join(notes)),
        )
    )


def _averaged(group: Sequence[PaperColumn]) -> pl.DataFrame:
    """Average runs of several seeds; limits are the outermost of their intervals."""
    rows = pl.concat([column.rows for column in group])
    if len(group) == 1:
        return rows
    means = [pl.col(name).mean() for name in _LIMITS]
    ends = [cs.ends_with("low").min(), cs.ends_with("high").max()]
    return (
        rows.group_by("attack", maintain_order=True)
        .agg(*means, *ends, pl.col("is_blind").first(), n=pl.len())
        .filter(n=len(group))
        .sort("is_blind", "auc", descending=[False, True], nulls_last=True)
    )


def _cells(rows: pl.DataFrame) -> dict[str, list[Cell]]:
    """Write the figures of a column; the best is the one whose interval lies above all others."""
    found = {}
    for row in rows.iter_rows(named=True):
        others = rows.filter(pl.col("attack") != row["attack"])["high"]
        known = row["low"] is not None and others.len() > 0 and others.null_count() == 0
        best = bool(known and row["low"] > others.max() and not row.get("is_later"))
        figures = [
            _figure(*(row[of] for of in (name, *ends)))
            for name, ends in _LIMITS.items()
        ]
        found[str(row["attack"])] = [
            (text, best and not at) for at, text in enumerate(figures)
        ]
    return found


def _figure(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return NO_FIGURE
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f}, {high:.3f})"


def _csv(averaged: Mapping[tuple[str, str], pl.DataFrame]) -> str:
    parts = []
    for (data, model), rows in averaged.items():
        names = (
            pl.lit(data).alias("data"),
            pl.lit(model).alias("model"),
            pl.col("attack"),
        )
        parts.append(rows.select(*names, "auc", "low", "high", cs.starts_with("tpr_")))
    return as_csv(pl.concat(parts))
