"""The book study: the share of each book's windows above a threshold that known books chose.

Shi et al. 2024 (arXiv:2310.16789), section 5, where the share has no error rate. Here the known
books have shares, too, each by a threshold that the others chose, and next to all of them stands
what the audit reports at its own q.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.cli.help import TopicCommand
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.diagnostics.blind import blind_baseline
from mia_batch.errors import SettingsError
from mia_batch.extras.study import frame
from mia_batch.inference.estimates import FEWEST_GROUPS
from mia_batch.metrics import evaluate
from mia_batch.pipeline import Run
from mia_batch.report.html.plots import Lane, draw_lanes, round_axis
from mia_batch.stats.intervals import roc_curve
from mia_batch.tables import write_table

_TOP = 20
_KINDS = {"calibration": "known to be learnt", "non_member": "known not to be", "target": "asked"}
"""What the books of a role are."""
_PAPER = {"window_words": 512, "max_windows_per_document": 100}


@click.command("books", cls=TopicCommand)
@cli.option("known", cli.PATH, "PATH", "Whole books with a column that says which are members.")
@cli.option("known-members", cli.PATH, "PATH", "Or books known to be in the training data,")
@cli.option("known-others", cli.PATH, "PATH", "and books known not to be.")
@frame.study_out
@cli.settings_options(without=("out", "shard", "non_members", "calibration", "level"))
def books(*, out: Path, **options: Any) -> None:  # noqa: ANN401 - settings
    """Give the share of each book's windows above a threshold that known books chose.

    Of a book at most 100 windows of 512 words are asked about. Say how it is known that the others
    are not in the training data with --non-members-known.
    """
    known = [options.pop(name) for name in ("known", "known_members", "known_others")]
    if [each is None for each in known] not in ([False, True, True], [True, False, False]):
        raise click.UsageError("give --known, or both --known-members and --known-others")
    frame.check_folder(out)
    settings = _PAPER | cli.given(options) | {"level": "group"} | _written(out, *known)
    with cli.observing() as observer:
        run = frame.audited(out / "run", settings, observer)
    table, said = _shares(run)
    asked = table.filter(kind="asked").head(_TOP)
    columns = ("key", "n_windows", "share", "mean", "p_value", "q_value", "verdict")
    form = {name: name.replace("_", " ") for name in columns}
    cells = {
        form[name]: [
            f"{each:.3g}" if isinstance(each, float) else str(each or "-") for each in asked[name]
        ]
        for name in columns
    }
    console = cli.console_of(stderr=False)
    right = [name for name in cells if name not in ("key", "verdict")]
    console.print(cli.fitted_table(cells, "key", console.width, right=right))
    for sentence in said:
        console.print(cli.plain(sentence))
    frame.write_study(out, table, _picture(table))


def _written(
    out: Path, known: Path | None, members: Path | None, others: Path | None
) -> dict[str, Path]:
    """Write the known books as the audit takes them: members calibrate, others are compared."""

    def read(path: Path | None, side: bool) -> pl.DataFrame:  # noqa: FBT001 - a class
        found = read_documents(str(path or known), ColumnNames()).documents
        wanted = found.filter(member=side) if path is None else found
        return wanted.with_columns(member=pl.lit(side)).collect(engine="streaming")

    paths = {}
    for setting, path, side in (("calibration", members, True), ("non_members", others, False)):
        if (found := read(path, side)).is_empty():
            raise SettingsError(f"no known book has member = {side}; there must be some of both")
        paths[setting] = out / f"known-{setting.replace('_', '-')}.parquet"
        write_table(found, paths[setting])
    return paths


def _shares(run: Run) -> tuple[pl.DataFrame, list[str]]:
    """Lay out the share of each book, null where the threshold is worth nothing, and say why."""
    primary, role = run.manifest.plan["primary"], pl.col("role").cast(pl.String)
    scores = run["scores"].filter(role.is_in([*_KINDS]), pl.col(primary).is_finite())
    windows = scores.select(
        *("target_id", "group", "document_id", primary),
        key=pl.coalesce("document_id", "target_id"),
        kind=role.replace_strict(_KINDS),
        member=role == "calibration",
    )
    known = windows.filter(pl.col("kind") != "asked")
    said, unusable = _worth(run, known, primary)
    table = windows.group_by("kind", "key", maintain_order=True).agg(
        n_windows=pl.len(), mean=pl.col(primary).mean()
    )
    shares = [] if unusable else [*_thresholded(windows, known, primary)]
    names = {"kind": pl.String, "key": pl.String, "share": pl.Float64, "threshold": pl.Float64}
    of_books = pl.DataFrame(shares, names, orient="row")
    ours = run["rollup"].select("key", "p_value", "q_value", pl.col("verdict").cast(pl.String))
    table = table.join(of_books, on=["kind", "key"], how="left", maintain_order="left")
    table = table.join(ours, on="key", how="left", maintain_order="left")
    table = table.with_columns(reason=pl.lit(unusable, pl.String))
    table = table.sort("kind", "share", "mean", descending=[False, True, True], nulls_last=True)
    if unusable:
        return table, [*said, f"No share is given: {unusable}."]
    of = {kind: table.filter(kind=kind)["share"] for kind in _KINDS.values()}
    for kind, name in (("known not to be", "not learnt"), ("known to be learnt", "learnt")):
        low, middle, high = (of[kind].quantile(q) or 0.0 for q in (0, 0.5, 1))
        said.append(
            f"Of {len(of[kind]):,} books known to be {name}, {of[kind].mean():.0%} of a book's "
            f"windows are above, from {low:.0%} over {middle:.0%} (median) to {high:.0%}: each by "
            "the threshold that the other known books choose."
        )
    highest = of["known not to be"].max() or 0.0
    said.append(
        f"{(of['asked'] > highest).sum():,} of {len(of['asked']):,} books have a larger share than "  # type: ignore[operator]
        "every book known not to be learnt. A share is no share of what was learnt, and has no "
        "error rate; p and q have one."
    )
    return table, said


def _worth(run: Run, known: pl.DataFrame, attack: str) -> tuple[list[str], str | None]:
    """Say how well scores tell known windows apart, and why a threshold would mean nothing."""
    n = {side: known.filter(member=side)["key"].n_unique() for side in (True, False)}
    if min(n.values()) < FEWEST_GROUPS:
        counts = f"{n[True]:,} books known to be learnt and {n[False]:,} known not to be"
        return [], f"{counts} are too few for a threshold, which needs {FEWEST_GROUPS} of each"
    labels = known.select("target_id", "member").lazy()
    texts = run.scan("targets").drop("member").join(labels, on="target_id", how="inner")
    blind = blind_baseline(texts, seed=run.manifest.settings["seed"])
    (area,) = (
        evaluate(known.lazy(), [attack], preset="default")
        .filter(slice="all", metric="roc_auc")
        .rows(named=True)
    )
    said = [f"{attack} tells windows of known books apart with AUC {area['value']:.3f}."]
    if blind.verdict == "separable" and not run.manifest.settings["exploratory"]:
        return said, (
            f"a classifier that never sees the model tells them apart, too (AUC {blind.auc:.2f}), "
            "so that any threshold may be about their kind; --exploratory gives it all the same"
        )
    if area["low"] is None or area["low"] <= 0.5:
        return said, f"that is no better than chance ({area['reason'] or area['low']})"
    return said, None


def _thresholded(
    windows: pl.DataFrame, known: pl.DataFrame, attack: str
) -> Iterator[tuple[str, str, float, float]]:
    """Yield kind, book, share and threshold; a known book has no say in its own threshold."""

    def threshold(rows: pl.DataFrame) -> float:
        member, score = rows["member"].to_numpy(), rows[attack].to_numpy()
        return roc_curve(member, score).widest_gap().threshold

    of_all = threshold(known)
    for (kind, key), own in windows.group_by("kind", "key", maintain_order=True):
        others = known.filter(pl.col("key") != key)
        at = of_all if kind == "asked" else threshold(others)
        yield str(kind), str(key), float((own[attack] >= at).mean() or 0.0), at


def _picture(table: pl.DataFrame) -> Any:  # noqa: ANN401 - mark-up, or None

    if not table["share"].count():
        return None
    lanes = [
        Lane(f"{kind} ({rows.height:,} books)", rows["share"].to_list(), hollow=kind != "asked")
        for (kind,), rows in table.drop_nulls("share").group_by("kind", maintain_order=True)
    ]
    return draw_lanes(round_axis("share of windows above the threshold", [0, 1]), lanes)
