"""The table of a paper: attacks by data sets and models, in the formats that papers take."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple, Self

import polars as pl
import polars.selectors as cs

from mia_batch.attacks import write_paper_name
from mia_batch.errors import SettingsError
from mia_batch.report.names import FORMS, as_csv

NO_FIGURE = "--"
FIGURES = {
    "auc": "AUC",
    "tpr_5": "TPR@5 %",
    "tpr_1": "TPR@1 %",
    "tpr_01": "TPR@0.1 %",
    "fpr_95": "FPR@95 % TPR",
}
"""Headings of the figures that a table may have, by the columns of `attack_rows`."""
USUAL_FIGURES = ("auc", "tpr_1", "tpr_01")
_LIMITS = {
    name: ("low", "high") if name == "auc" else (f"{name}_low", f"{name}_high")
    for name in FIGURES
}


class PaperColumn(NamedTuple):
    """A run in the table of a paper: what it was about, and the rows of `attack_rows`."""

    data: str
    model: str
    seed: int
    rows: pl.DataFrame
    notes: tuple[str, ...] = ()  # how many texts, and why its figures mean little
    # Where the run is to be a paper's table: names of its attacks there, and why some
    # were not computed
    names: Mapping[str, str] = {}
    missing: Mapping[str, str] = {}


class PaperTable(str):
    """A table as text, which a notebook shows as a table where its format is one that it knows."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> Self:
        table = super().__new__(cls, text)
        table.kind = kind
        return table

    def _repr_markdown_(self) -> str | None:
        return str(self) if self.kind == "md" else None

    def _repr_html_(self) -> str | None:
        return str(self) if self.kind == "html" else None


KINDS = {
    "md": "**{}**",
    "latex": r"\textbf{{{}}}",
    "html": "<strong>{}</strong>",
}
"""How the best is marked in each form."""
Cell = tuple[str, bool]  # a figure as text, and whether it is the best of its column
Runs = Sequence[PaperColumn]


Names = Literal["paper", "registry"]
Blind = Literal["best", "all", "none"]


def paper_table(
    runs: Runs,
    kind: str = "md",
    names: Names = "paper",
    blind: Blind = "best",
    figures: Sequence[str] = USUAL_FIGURES,
) -> str:
    """Write a table whose rows are attacks; see `mia_batch.pipeline.results.build_table`."""
    from mia_batch.report.html.page import environment

    _check_choices(kind, figures)
    groups = _group_runs(runs)
    averages = [_average_seeds(group) for group in groups.values()]
    paper_names = _find_paper_names(runs) if names == "paper" and kind != "csv" else {}
    averages = [select_paper_rows(table, paper_names) for table in averages]
    tables = [_select_blind(table, blind) for table in averages]
    if kind == "csv":
        return _write_csv(groups, tables)
    bold = KINDS[kind]
    escape = FORMS[kind]
    columns = [_write_column(table, figures) for table in tables]
    missing = [(NO_FIGURE, False)] * len(figures)
    rows: dict[str, list[str]] = {}
    attacks = [*dict.fromkeys(chain(paper_names, *columns))]
    titles = attacks
    if names == "paper":
        titles = [paper_names.get(attack) or _write_name(attack) for attack in attacks]
    for attack, title in zip(attacks, titles, strict=True):
        texts = []
        for column in columns:
            for text, is_best in column.get(attack, missing):
                texts.append(bold.format(text) if is_best else text)
        rows[escape(title)] = texts
    headings = [f"{FIGURES[name]} (95 % CI)" for name in figures]
    if kind == "latex":
        headings = [heading.replace("%", r"\%") for heading in headings]
    notes: list[str] = []
    for key, group in groups.items():
        notes += _list_notes(*key, group, figures)
    if paper_names:
        notes.append(_PAPER_ROWS.format(max(run.rows.height for run in runs)))
    if titles != attacks:
        notes.append(f"--attacks calls these rows {', '.join(attacks)}")
    if blind == "best":
        n_blind = max(table["is_blind"].sum() for table in averages)
        notes += [_BEST.format(n_blind)] if n_blind > 1 else []
    template = environment().get_template(f"paper.{kind}.jinja")
    return template.render(
        keys=[(escape(data), escape(model)) for data, model in groups],
        figures=headings,
        rows=rows,
        note=escape("; ".join(notes)),
    )


def _check_choices(kind: str, figures: Sequence[str]) -> None:
    kinds = [*KINDS, "csv"]
    if kind not in kinds:
        raise SettingsError(f"no format {kind!r}; choose one of {', '.join(kinds)}")
    for name in figures:
        if name not in FIGURES:
            raise SettingsError(
                f"no figure {name!r}; choose of {', '.join(FIGURES)}, separated by commas"
            )


def _group_runs(runs: Runs) -> dict[tuple[str, str], Runs]:
    """Group runs about the same data and model, which differ in their seed."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.data, run.model].append(run)
    for (data, model), group in groups.items():
        seeds = {run.seed for run in group}
        if len(seeds) < len(group):
            raise SettingsError(
                f"two runs are about {data} and {model} with the same seed; give one"
                " of them"
            )
    return {**groups}


def _list_notes(data: str, model: str, runs: Runs, figures: Sequence[str]) -> list[str]:
    label = "seed"
    if len(runs) > 1:
        label = "means, within the outermost limits, of seeds"
    seeds = sorted(run.seed for run in runs)
    notes = [note for run in runs for note in run.notes]
    for run in runs:
        notes += describe_missing_rows(run.names, run.missing)
    for run in runs:
        notes += _list_rate_notes(run.rows, figures)
    seed_note = f"{data}, {model}: {label} {', '.join(map(str, seeds))}"
    return [seed_note, *dict.fromkeys(notes)]


_BLIND = "blind_"
_PAPER_ROWS = "these rows are the paper's; --names registry has all {} rows"
_BEST = "of {} classifiers that see the texts alone the best is shown"


def _write_name(attack: str) -> str:
    if not attack.startswith(_BLIND):
        return write_paper_name(attack)
    classifier = attack.removeprefix(_BLIND).rpartition("_v")[0]
    return f"Text alone ({classifier.replace('_', ' ')})"


def _find_paper_names(runs: Runs) -> Mapping[str, str]:
    """Return the names of the paper's table that all runs are to be shown as, else none."""
    first, *others = [run.names for run in runs]
    return first if all(names == first for names in others) else {}


def select_paper_rows(rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return the rows of a paper's table in its order, then classifiers that see texts alone.

    Where there are no ``names`` of such a table, rows stay as they are.
    """
    if not names:
        return rows
    place = pl.col("attack").replace_strict(
        [*names], range(len(names)), default=None, return_dtype=pl.Int64
    )
    kept = rows.filter(pl.col("attack").is_in([*names]) | pl.col("is_blind"))
    return kept.sort(place, nulls_last=True, maintain_order=True)


def describe_missing_rows(
    names: Mapping[str, str], reasons: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence about the rows of a paper's table that lack figures for one reason."""
    for reason in dict.fromkeys(reasons.values()):
        titles = [names[attack] for attack in reasons if reasons[attack] == reason]
        link = ", which" if len(titles) == 1 else ", of which each"
        yield f"no figure of {', '.join(titles)}{link} {reason}"


def _select_blind(rows: pl.DataFrame, blind: Blind) -> pl.DataFrame:
    """Keep the asked rows of classifiers that never see the model, which come last."""
    if blind == "all":
        return rows
    blind_rows = rows.filter("is_blind").head(1 if blind == "best" else 0)
    return pl.concat([rows.filter(~pl.col("is_blind")), blind_rows])


def _list_rate_notes(rows: pl.DataFrame, figures: Sequence[str]) -> Iterator[str]:
    """Yield once why a rate is missing, or unstable."""
    for name in figures:
        if name == "auc":
            continue
        title = FIGURES[name]
        reasons = rows.filter(~pl.col("is_blind"))[f"{name}_reason"].drop_nulls()
        for reason in reasons.unique(maintain_order=True):
            verb = " is" if reason.startswith("unstable") else ":"
            yield f"{title}{verb} {reason}"


def _average_seeds(runs: Runs) -> pl.DataFrame:
    """Average runs of several seeds; limits are the outermost of their intervals."""
    rows = pl.concat([run.rows for run in runs])
    if len(runs) == 1:
        return rows
    return (
        rows.group_by("attack", maintain_order=True)
        .agg(
            pl.col(*_LIMITS).mean(),
            cs.ends_with("low").min(),
            cs.ends_with("high").max(),
            pl.col("is_blind").first(),
            n=pl.len(),
        )
        .filter(n=len(runs))
        .sort("is_blind", "auc", descending=[False, True], nulls_last=True)
    )


def _write_csv(
    groups: Iterable[tuple[str, str]],
    tables: Iterable[pl.DataFrame],
) -> str:
    labelled = []
    for (data, model), rows in zip(groups, tables, strict=True):
        table = rows.select(
            pl.lit(data).alias("data"),
            pl.lit(model).alias("model"),
            pl.col("attack", "auc", "low", "high"),
            cs.starts_with("tpr_", "fpr_"),
        )
        labelled.append(table)
    return as_csv(pl.concat(labelled))


def _write_column(rows: pl.DataFrame, figures: Sequence[str]) -> dict[str, list[Cell]]:
    """Write figures by attack; the best AUC is one whose interval lies above all others."""
    cells = {}
    for row in rows.iter_rows(named=True):
        name, low = row["attack"], row["low"]
        rivals = rows.filter(pl.col("attack") != name)["high"]
        comparable = rivals.len() > 0 and rivals.null_count() == 0
        is_above = comparable and low is not None and low > rivals.max()
        is_best = bool(is_above and not row.get("is_later"))
        cells[str(name)] = [
            (_write_figure(row, figure), is_best and figure == "auc")
            for figure in figures
        ]
    return cells


def _write_figure(row: Mapping[str, float | None], figure: str) -> str:
    value, low, high = (row[name] for name in (figure, *_LIMITS[figure]))
    if value is None:
        return NO_FIGURE
    if low is None:
        return f"{value:.3f}"
    return f"{value:.3f} ({low:.3f}, {high:.3f})"
