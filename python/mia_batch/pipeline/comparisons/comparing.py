"""Several runs of one corpus in one table: several models, or before and after unlearning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.paired import compare_scores
from mia_batch.pipeline.comparisons.comparable import attack_of
from mia_batch.pipeline.run import Run
from mia_batch.schemas import Comparisons
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["compare"]

_MEMBER = pl.when(pl.col("role") == "non_member").then(statement=False).otherwise(pl.col("member"))


def compare(
    folders: Sequence[Path | str], attack: str | None = None, retrained: Path | str | None = None
) -> pl.DataFrame:
    """Compare finished runs of one corpus with the first of them, on the targets that all have.

    Parameters
    ----------
    folders
        Folders, or addresses, of at least two runs. For unlearning: the run before, then those
        after.
    attack
        Whose scores are compared; by default the runs' primary attack.
    retrained
        Folder of the run of a model that never saw the texts, trained alike otherwise: says how
        much of the difference between the first run and this one each run after has removed.

    Returns
    -------
    DataFrame
        A row for each fact, with the columns of `mia_batch.schemas.Comparisons`. Differences are
        the run less the first; intervals take groups, else documents, else targets as independent.
        What the texts cannot support is null and has its reason. Memory: some 150 bytes a target.

    Raises
    ------
    SettingsError
        If there is one run alone, the runs' scores are not comparable, no target has a score in
        every run, or the runs disagree on what is a member.
    RunFolderError
        If a folder holds no finished run.

    Examples
    --------
    >>> import mia_batch
    >>> mia_batch.compare(["runs/corpus-llama"])
    Traceback (most recent call last):
    ...
    mia_batch.errors.SettingsError: a comparison needs at least two runs, each of a folder of its...
    """
    given = [*folders, *([] if retrained is None else [retrained])]
    runs = [Run(folder) for folder in given]
    if len(folders) < 2 or len({run.folder.resolve() for run in runs}) < len(runs):
        msg = (
            "a comparison needs at least two runs, each of a folder of its own; for unlearning "
            "name the run before, the run after, and then that of the retrained model"
        )
        raise SettingsError(msg)
    chosen = attack_of(runs, attack)
    made = compare_scores(
        _scores(runs, chosen),
        _names(runs),
        retrained=retrained is not None,
        overlapping=_overlap(runs[0]),
    )
    return _with_keys(made, runs[0]).with_columns(attack=pl.lit(chosen))


def _names(runs: Sequence[Run]) -> list[str]:
    """Name each run by its folder, without its path."""
    names = [run.folder.resolve().name for run in runs]
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    return [
        name if count == 1 else f"{name} ({count})"
        for name, count in zip(names, counts, strict=True)
    ]


def _overlap(run: Run) -> bool:
    """Whether windows of one document share words."""
    stride, *windows = (
        run.manifest.evidence.get(name) for name in ("stride", "window_words", "window_characters")
    )
    return stride is not None and any(window and stride < window for window in windows)


def _scores(runs: Sequence[Run], attack: str) -> pl.DataFrame:
    """Join the scores of all runs by target; names are hashed, which take much less memory."""
    joined = _units(runs[0])
    for number, run in enumerate(runs):
        own = run.scan("scores").select(
            pl.col("target_id").hash(),
            pl.col(attack).cast(pl.Float64).alias(f"score_{number}"),
            other=_MEMBER,
        )
        joined = joined.join(own.collect(engine="streaming"), on="target_id", maintain_order="left")
        if joined["member"].ne_missing(joined["other"]).any():
            msg = (
                f"{runs[0].folder} and {run.folder} disagree on which targets are members; "
                "audit both with the same labels"
            )
            raise SettingsError(msg)
        joined = joined.drop("other")
    return joined


def _units(run: Run) -> pl.DataFrame:
    """Name, by hashes, what each target whose membership is asked belongs to."""
    scores = run.scan("scores")
    found = scores.with_columns(cluster=cluster_names(scores), document=_document(scores))
    return (
        found.filter(pl.col("role").is_in(["target", "non_member"]))
        .select(
            pl.col("target_id", "cluster", "document", "group").hash(),
            grouped=pl.col("group").is_not_null(),
            member=_MEMBER,
        )
        .collect(engine="streaming")
    )


def _document(scores: pl.LazyFrame) -> pl.Expr:
    return cluster_names(scores.drop("group"))


def _with_keys(made: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Name the documents and groups of which rows know the number."""
    scores = run.scan("scores")
    names = {"document": pl.col("document").str.splitn(" ", 2).struct[1], "group": pl.col("group")}
    numbers = made["unit"].drop_nulls().unique().implode()
    keys = pl.concat(
        scores.with_columns(document=_document(scores))
        .select(
            unit=pl.col(level).hash(),
            level=pl.lit(level, made.schema["level"]),
            key=pl.when(pl.col(level).hash().is_in(numbers)).then(name),
        )
        .filter(pl.col("key").is_not_null())
        .unique()
        for level, name in names.items()
    ).collect(engine="streaming")
    joined = made.drop("key").join(keys, on=["level", "unit"], how="left", maintain_order="left")
    ordered = joined.sort("level", "key", maintain_order=True)
    return ordered.select(Comparisons.column_names())
