"""The book study: the share of each book's windows above a threshold that known books chose.

Shi et al. 2024 (arXiv:2310.16789), section 5, where the share has no error rate. Here known books
have shares, too, each by a threshold that the others chose, and next to all of them stands what
the audit reports at its own q.
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

_KINDS = {"target": "asked", "calibration": "learnt", "non_member": "not learnt"}
"""What is known of the books of a role."""
_PAPER: dict[str, Any] = {"window_words": 512, "max_windows_per_document": 100}
_SHOWN = ("key", "n_windows", "share", "mean", "p_value", "q_value", "verdict")
_TOP = 20


@click.command("books", cls=TopicCommand)
@cli.option("known", cli.PATH, "PATH", "Whole books with a column that says which are members.")
@cli.option("known-members", cli.PATH, "PATH", "Or books known to be in the training data,")
@cli.option("known-others", cli.PATH, "PATH", "and books known not to be.")
@frame.study_options
@cli.settings_options(without=("out", "shard", "non_members", "calibration", "level"))
def books(*, out: Path, **options: Any) -> None:  # noqa: ANN401 - settings
    """Give the share of each book's windows above a threshold that known books chose.

    Of a book at most 100 windows of 512 words are asked about. Say how it is known that the others
    are not in the training data with --non-members-known.
    """
    known = [options.pop(name) for name in ("known", "known_members", "known_others")]
    if [each is None for each in known] not in ([False, True, True], [True, False, False]):
        raise click.UsageError("give --known, or both --known-members and --known-others")
    with frame.opened(out, "books", options) as study:
        settings = _PAPER | cli.given(options) | {"level": "group"} | _written(study, *known)
        if (run := study.audited("run", settings)) is None:
            return
        table, said = _shares(run)
        names = [name.replace("_", " ") for name in _SHOWN]
        top = table.filter(kind="asked").head(_TOP).select(_SHOWN).rows()
        rows = (["-" if cell is None else frame.written(cell) for cell in row] for row in top)
        frame.show(*names, right=names[1:-1], rows=rows)
        frame.say(*said)
        lanes = [
            Lane(f"{kind}: {rows.height:,} books", rows["share"].to_list(), hollow=kind != "asked")
            for (kind,), rows in table.drop_nulls("share").group_by("kind", maintain_order=True)
        ]
        axis = round_axis("share of windows above the threshold", [0, 1])
        frame.write_study(out, table, draw_lanes(axis, lanes) if lanes else None)


def _written(study: frame.Study, known: Path | None, *each: Path | None) -> dict[str, Any]:
    """Write known books as the audit takes them: members calibrate, others are compared."""
    paths = dict[str, Any]()
    for setting, path in zip(("calibration", "non_members"), each, strict=True):
        corpus, member = read_documents(str(path or known), ColumnNames()), not paths
        wanted = corpus.documents if path else corpus.documents.filter(member=member)
        books = wanted.with_columns(member=pl.lit(member)).collect(engine="streaming")
        if books.is_empty():
            raise SettingsError(f"no known book has member = {member}; some of both are needed")
        for place, reason in (corpus.ignored | corpus.set_aside).items():
            study.observer.stage(f"left out of {path or known}: {place}: {reason}")
        paths[setting] = study.folder / f"known-{setting}.parquet"
        there = [column.name for column in books if column.null_count() < books.height]
        write_table(books[there], paths[setting])
    return paths


def _shares(run: Run) -> tuple[pl.DataFrame, list[str]]:
    """Lay out the share of each book, null where a threshold is worth nothing, and what it says."""
    primary, role = run.manifest.plan["primary"], pl.col("role").cast(pl.String)
    scored = run["scores"].filter(role.is_in([*_KINDS]), pl.col(primary).is_finite())
    windows = scored.select(
        *("target_id", "group", "document_id"),
        key=pl.coalesce("document_id", "target_id"),
        kind=role.replace_strict(_KINDS),
        member=role == "calibration",
        score=primary,
    )
    known = windows.filter(pl.col("kind") != "asked")
    said, reason = _worth(run, known)
    made = [] if reason else [*_thresholded(windows, known)]
    names = {"kind": pl.String, "key": pl.String, "threshold": pl.Float64, "share": pl.Float64}
    ours = run["rollup"].select("key", "p_value", "q_value", pl.col("verdict").cast(pl.String))
    table = (
        windows.group_by("kind", "key")
        .agg(n_windows=pl.len(), mean=pl.col("score").mean())
        .join(pl.DataFrame(made, names, orient="row"), on=["kind", "key"], how="left")
        .join(ours, on="key", how="left")
        .with_columns(reason=pl.lit(reason, pl.String))
        .sort("kind", -pl.col("share"), -pl.col("mean"), "key", nulls_last=True)
    )
    if reason:
        return table, [*said, f"No share is given: {reason}."]
    of = {kind: rows["share"].sort() for (kind,), rows in table.group_by("kind")}
    for kind in ("learnt", "not learnt"):
        low, median, high = (of[kind].quantile(q) for q in (0, 0.5, 1))
        said.append(
            f"{len(of[kind]):,} books known as {kind}: {low:.0%} to {high:.0%} of a book's windows "
            f"are above, median {median:.0%}, by the threshold that the other known books choose."
        )
    beyond = (of["asked"] > of["not learnt"].max()).sum()
    said.append(
        f"{beyond:,} of {len(of['asked']):,} books have a larger share than every book known as "
        "not learnt. Shares have no error rate, and are not shares of what was learnt; p and q "
        "have one."
    )
    return table, said


def _worth(run: Run, known: pl.DataFrame) -> tuple[list[str], str | None]:
    """Say how well scores separate known windows, and why a threshold would mean nothing."""
    n_in, n_out = (known.filter(kind=kind)["key"].n_unique() for kind in ("learnt", "not learnt"))
    if min(n_in, n_out) < FEWEST_GROUPS:
        few = f"{n_in:,} books known as learnt and {n_out:,} known as not learnt are too few"
        return [], f"{few} to choose a threshold, {FEWEST_GROUPS} of each are needed"
    rows = evaluate(known.lazy(), ["score"], preset="default").filter(slice="all", metric="roc_auc")
    area, settings = rows.row(0, named=True), run.manifest.settings
    said = [f"The scores separate known windows with AUC {area['value']:.3f} ({cli.limits(area)})."]
    if area["low"] is None or area["low"] <= 0.5:
        return said, f"that is no better than chance ({area['reason'] or 'by its interval'})"
    labels = known.lazy().select("target_id", "member")
    texts = run.scan("targets").drop("member").join(labels, on="target_id")
    blind = blind_baseline(texts, seed=settings["seed"])
    if blind.verdict == "separable" and not settings["exploratory"]:
        without = f"a classifier that never sees the model has AUC {blind.auc:.3f}"
        return said, f"{without}, so the threshold may be one of kinds of books (--exploratory)"
    return said, None


def _thresholded(windows: pl.DataFrame, known: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield kind, book, threshold and share; a known book has no say in its own threshold."""
    for (kind, key), own in windows.group_by("kind", "key"):
        others = known if kind == "asked" else known.filter(pl.col("key") != key)
        curve = roc_curve(others["member"].to_numpy(), others["score"].to_numpy())
        threshold = curve.widest_gap().threshold  # of the highest accuracy, both kinds alike
        yield kind, key, threshold, (own["score"] >= threshold).mean()
