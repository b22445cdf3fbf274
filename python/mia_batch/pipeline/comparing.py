"""Runs of one corpus side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.attacks import get, names
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.inference.paired import compare_scores
from mia_batch.kernels import RARITY_FIELDS
from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.run import Run
from mia_batch.schemas import Comparisons
from mia_batch.tables import digest
from mia_batch.targets import cluster_names

# Whether the scores of several runs can be compared.


_OF_THE_MODEL = (
    "engine",
    "dtype",
    "tensor_parallel_size",
    "engine_arg",
    "recording",
    "decode",
)
"""Evidence settings that say what the model is and how it runs: these may differ."""


def attack_of(runs: Sequence[Run], attack: str | None) -> str:
    """Name the attack to compare, by default the primary attack of all runs.

    Raises `SettingsError` if the runs' primary attacks differ, a run has not computed the attack,
    or its scores rest on evidence of other kinds; `RunFolderError` if a run is not finished.
    """
    manifests = [run.manifest for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        if not manifest.custody:
            raise RunFolderError(
                f"{run.folder} is not finished; give the audit's command again, which goes on"
            )
    chosen = attack or manifests[0].plan["primary"]
    for run, manifest in zip(runs, manifests, strict=True):
        if attack is None and manifest.plan["primary"] != chosen:
            raise SettingsError(
                f"the primary attack of {runs[0].folder} is {chosen!r}, that of {run.folder} is "
                f"{manifest.plan['primary']!r}; name one that all have with --attack"
            )
        if chosen not in manifest.made["scores"]["attacks"]:
            raise SettingsError(
                f"{run.folder} has no scores of the attack {chosen!r}; compute them with "
                f"`mia-batch score {run.folder} --attacks {chosen}`, or name another with --attack"
            )
    others = any("from" in manifest.made.get("rarity", {}) for manifest in manifests)
    first, *rest = (_rests_on(run, chosen, borrowed_rarity=others) for run in runs)
    for run, second in zip(runs[1:], rest, strict=True):
        _refuse_difference(runs[0], first, run, second, chosen)
    return chosen


def _refuse_difference(
    one: Run, first: dict[str, Any], other: Run, second: dict[str, Any], attack: str
) -> None:
    differing = [
        f"{name} is {first[name]!r} in the first and {second[name]!r} in the second"
        for name in first
        if name in second and first[name] != second[name]
    ]
    if differing:
        raise SettingsError(
            f"scores of {attack!r} in {one.folder} and {other.folder} are not comparable: "
            f"{'; '.join(differing)}; audit both alike"
        )


def _rests_on(run: Run, attack: str, *, borrowed_rarity: bool) -> dict[str, Any]:
    """Say by name what scores of an attack rest on, beside the model."""
    manifest = run.manifest
    evidence = {f"setting {name!r}": value for name, value in manifest.evidence.items()}
    for name in _OF_THE_MODEL:
        evidence.pop(f"setting {name!r}", None)
    evidence |= {**dict(_counts(manifest, attack)), **dict(_others(manifest))}
    if borrowed_rarity and "rarity" in manifest.made and _is_weighed(attack):
        table = manifest.made["rarity"].get("from") or digest(run.path("rarity"))
        evidence["the SHA-256 of the rarity table (setting 'rarity_from')"] = table
    return evidence


def _counts(manifest: Manifest, attack: str) -> Iterator[tuple[str, Any]]:
    """Count prompts and samples of each view that the attack reads, of one's own attacks all."""
    scores = manifest.made["scores"]
    reads = {view for _, view in _reads(attack)}
    for view, (prompts, samples) in scores["samples"].items():
        if not reads or view in reads:
            yield f"the number of prompts (view {view!r})", prompts
            yield f"the number of samples (view {view!r})", samples
    for view, prompts in scores["logprobs"].items():
        if not reads or view in reads:
            yield f"the number of texts with log-probabilities (view {view!r})", prompts


def _others(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Name models beside the audited one, and the files of the user's own attacks."""
    for model, known in manifest.models.items():
        if model != "target" and "source" in known:
            source = known["source"]
            yield f"model {model!r}", source["digest"] or source["name"]
    yield "the file of attacks", [*manifest.inputs.get("attacks_from", {}).values()] or "none"


def _is_weighed(attack: str) -> bool:
    """Whether n-grams are weighed by rarity; of the user's own attacks it is not known."""
    columns = {field.name for field in RARITY_FIELDS}
    return attack not in names() or bool(columns.intersection(get(attack).columns))


def _reads(attack: str) -> tuple[tuple[str, str], ...]:
    if attack not in names():
        return ()
    return tuple(pair for kind in ("samples", "logprobs") for pair in get(attack).reads_of(kind))


# Several runs of one corpus in one table: several models, or before and after unlearning.


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
        raise SettingsError(
            "a comparison needs at least two runs, each of a folder of its own; for unlearning "
            "name the run before, the run after, and then that of the retrained model"
        )
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
            raise SettingsError(
                f"{runs[0].folder} and {run.folder} disagree on which targets are members; "
                "audit both with the same labels"
            )
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
