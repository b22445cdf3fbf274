"""Sweeps: one audit over values of its settings, or over trainings that contaminate a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.cli.help import TopicCommand
from mia_batch.corpus import ColumnNames
from mia_batch.errors import RequestError, SettingsError
from mia_batch.extras.study import frame
from mia_batch.extras.tune import jobs
from mia_batch.metrics import evaluate
from mia_batch.models.weights import weights_source
from mia_batch.pipeline import Run
from mia_batch.recipes import RECIPES, Recipe
from mia_batch.settings import Settings
from mia_batch.tables import write_table

Values = dict[str, Any]
"""What differs at one place of a study, by name."""
_EXTENDED = (
    *("samples", "probes", "token_points", "max_windows_per_document"),
    *("paraphrases", "neighbours"),
)
"""Settings whose largest value is asked for in one run; with fewer the first ones count."""
_REFERENCES = {
    "reference_model",
    "prompts_from",
    "prompt_tokens",
    "generations",
    "candidate_from",
}
_REFERENCES |= {
    name for name in Settings.model_fields if name.startswith(("generation", "tuning"))
}
"""Settings of other models alone: the target's log-probabilities are the same with each value."""


def _over_option(text: str, *, required: bool = False) -> cli.Decorator:
    return cli.option(
        "over",
        str,
        "NAME=V,V",
        f"{text}; at most two.",
        dest="points",
        multiple=True,
        callback=_parse_points,
        required=required,
    )


def _parse_points(
    _: click.Context, _option: click.Parameter, texts: Sequence[str]
) -> list[Values]:
    """Parse each ``--over``; return the values of each place, by name."""
    values_by_name: dict[str, list[str]] = {}
    for text in texts:
        flag, _equals, listed = text.partition("=")
        name = flag.strip().lstrip("-").replace("-", "_")
        values = [*dict.fromkeys(value.strip() for value in listed.split(","))]
        if not name or not all(values) or name in values_by_name:
            raise click.BadParameter(
                f"{text!r} does not read NAME=VALUE,VALUE, each name once"
            )
        if name in ("fpr", "out", "shard"):
            raise click.BadParameter(
                f"{name} changes no figure of a study; leave it out"
            )
        values_by_name[name] = values
    n_names = len(values_by_name)
    if n_names > 2:
        raise click.BadParameter(f"{n_names} are too many for one table; vary two")
    combinations = product(*values_by_name.values())
    return [dict(zip(values_by_name, values, strict=True)) for values in combinations]


@click.command("sweep", cls=TopicCommand)
@_over_option(
    "A setting and its values, such as prefix-ratio=0.25,0.5,0.75", required=True
)
@frame.study_options
@cli.settings_options(without=("out", "shard"))
def sweep(*, points: list[Values], out: Path, **options: Any) -> None:
    """Audit a labelled corpus with each value of a setting, or of two, and compare the AUC.

    Of --over samples=1,2,5,10 the largest number is asked for once, and the first ones
    of it are scored. A value that an audit refuses is a row with the reason.
    """
    names = [*points[0]]
    flags = cli.select_given(options)
    doubled = [name.replace("_", "-") for name in names if name in flags]
    if doubled:
        raise click.UsageError(f"--{doubled[0]} is in --over, too; give it once")
    with frame.open_study(out, "sweep", options) as study:
        settings = cli.select_given(options)
        table = _audit_points(study, settings, points)
        if table is None:
            return
        numeric = [name for name in names if table[name].dtype.is_numeric()]
        x = max(numeric or names, key=lambda name: table[name].n_unique())
        frame.publish(
            out,
            table,
            names,
            x=x,
            curve_columns=[name for name in names if name != x],
            all_attacks="attacks" in settings,
        )


def _audit_points(
    study: frame.Study, settings: Mapping[str, Any], points: Sequence[Values]
) -> pl.DataFrame | None:
    """Audit at each point, and return the figures; raise if every one is refused."""
    runs: dict[str, list[Values]] = {}
    for point in points:
        own_run = {
            name: value for name, value in point.items() if name not in _EXTENDED
        }
        runs.setdefault(frame.folder_name(own_run), []).append(point)
    figures: dict[int, pl.DataFrame] = {}
    refusals: dict[int, pl.DataFrame] = {}
    for folder, run_points in runs.items():
        ordered_points = _order_points(run_points)
        if study.dry_run:
            ordered_points = ordered_points[: len(run_points)]
        else:
            _copy_evidence(study.folder, folder, runs)
        for number, point in enumerate(ordered_points):
            index = points.index(point)
            if index in refusals:
                continue
            name = frame.folder_name(point)
            shares = f"{name} scores the first of those" if number else ""
            try:
                run = study.audit(folder, {**settings, **point}, shares)
                figures[index] = (
                    pl.DataFrame() if run is None else frame.build_figures(run)
                )
            except RequestError as error:
                reason = " ".join(str(error).split())
                refusals[index] = pl.DataFrame({"metric": "roc_auc", "reason": reason})
                study.observer.stage(f"{name} is refused: {error}")
    if not figures:
        raise SettingsError(f"no value can be audited: {refusals[0]['reason'][0]}")
    if study.dry_run:
        return None
    results = refusals | figures
    labelled = (_add_values(results[index], points[index]) for index in sorted(results))
    table = pl.concat(labelled, how="diagonal_relaxed")
    numbers = table.select(pl.col(*points[0]).cast(pl.Float64, strict=False))
    return table.with_columns(column for column in numbers if not column.null_count())


def _copy_evidence(
    parent: Path, folder: str, runs: Mapping[str, Sequence[Values]]
) -> None:
    """Begin a run with the target's log-probabilities of another one that has the same."""
    run_folder = parent / folder
    if run_folder.exists():
        return
    needed = {
        name: value
        for name, value in runs[folder][0].items()
        if name not in _EXTENDED and name not in _REFERENCES
    }
    for other_folder, other_points in runs.items():
        if not needed.items() <= other_points[0].items():
            continue
        parts = [*(parent / other_folder).glob("logprobs/*.target-*.parquet")]
        if parts:
            staging = parent / f".{folder}"
            rmtree(staging, ignore_errors=True)
            (staging / "logprobs").mkdir(parents=True)
            for part in parts:
                copyfile(part, staging / "logprobs" / part.name)
            staging.rename(run_folder)
            return


def _order_points(points: Sequence[Values]) -> list[Values]:
    """Order the points of one run: the largest first, which asks for everything, and again last.

    So the run is left as their audit leaves it.
    """

    def size(point: Values) -> list[str]:
        # By the digits of whole numbers; an audit refuses other values.
        return [point.get(name, "").zfill(20) for name in _EXTENDED]

    *smaller, largest = sorted(points, key=size)
    return [largest, *smaller, largest] if smaller else [largest]


def _add_values(figures: pl.DataFrame, values: Values) -> pl.DataFrame:
    """Put columns of the values before those of the figures."""
    columns = [pl.lit(value).alias(name) for name, value in values.items()]
    return figures.select(*columns, pl.all())


# Contamination (Shi et al. 2024, arXiv:2310.16789, section 6): texts are inserted into
# others, k copies of each, a model learns all of them, and the AUC is measured by k, by
# the number of the others and by the learning rate.

_PRIVATE = ("epsilon", "delta", "clip")
_TRAINING = (
    "method",
    "epochs",
    "learning_rate",
    "schedule",
    "batch_size",
    "max_tokens",
    "rank",
    *_PRIVATE,
)
_AUDIT = ("attacks", "engine", "engine_arg", "dtype")
_BASE = "base"


@click.command("contamination")
@cli.path_option(
    "input", "Texts to insert; labels, or else a lot, say which are controls."
)
@cli.option(
    "copies", str, "COLUMN", "Column that says how often each is learnt; 0: a control."
)
@cli.option(
    "copies-mean", cli.NumberRange(0, 1e6), "X", "Or the mean of Poisson draws."
)
@cli.path_option("into", "Texts among which they are learnt.")
@cli.column_options("text")
@click.option(
    "--base",
    required=True,
    metavar="MODEL",
    help="Model to go on with.",
)
@click.option("--revision", metavar="NAME", help="Hub revision of the base.")
@_over_option("size (of --into), or a flag such as learning-rate=1e-5,1e-4")
@frame.study_options
@cli.recipe_options("contamination", *_TRAINING)
@cli.seed_option
@cli.settings_options(*_AUDIT)
@click.pass_context
def contamination(context: click.Context, /, *, out: Path, **options: Any) -> None:
    """Train a model on texts of known copies, audit it, and give the AUC by copies.

    A model is trained for each value of --over. The base is audited, too: it learnt
    none of the texts here, so that its AUC should be one half.
    """
    changed = cli.take(options, (*_TRAINING, "seed"))
    recipe = replace(RECIPES["contamination"], **changed)
    audit_settings = {**cli.take(options, _AUDIT), "seed": recipe.seed}
    points = [_convert_values(context, point) for point in options.pop("points")]
    with frame.open_study(out, "contamination", options) as study:
        figures = [*_train_and_audit(study, recipe, points, audit_settings, **options)]
        if not figures:
            return
        table = pl.concat(figures, how="diagonal_relaxed")
        has_counts = table["copies"].n_unique() > 2
        frame.publish(
            out,
            table,
            ["model", "copies"],
            x="copies" if has_counts else "model",
            curve_columns=["model"] if has_counts else [],
            all_attacks="attacks" in audit_settings,
        )
    base_areas = table.filter(
        pl.col("copies").is_null(),
        model=_BASE,
        is_primary=True,
        metric="roc_auc",
    )
    area = base_areas.row(0, named=True)
    if area["low"] is not None and not area["low"] <= 0.5 <= area["high"]:
        cli.say(
            "The base, which learnt none of them here, has an AUC of"
            f" {cli.limits(area)}: inserted texts and controls differ without this"
            " training, which moves all figures above."
        )


def _convert_values(context: click.Context, values: Values) -> Values:
    """Convert values of ``--over`` as the flags of these names do."""
    parameters = {parameter.name: parameter for parameter in context.command.params}
    flags: dict[str, click.Parameter] = {
        "size": click.Option(["--size"], type=click.IntRange(1))
    }
    flags |= {name: parameters[name] for name in _TRAINING}
    unknown = [name.replace("_", "-") for name in values if name not in flags]
    if unknown:
        names = ", ".join(flags).replace("_", "-")
        raise click.UsageError(f"--over {unknown[0]}: choose from {names}")
    converted: Values = dict.fromkeys(values)
    for name, value in values.items():
        if value != "none":
            converted[name] = flags[name].type.convert(value, flags[name], context)
    return converted


def _train_and_audit(
    study: frame.Study,
    recipe: Recipe,
    points: Sequence[Values],
    audit: Mapping[str, Any],
    **options: Any,
) -> Iterator[pl.DataFrame]:
    """Iterate over the figures of the base, then those of each model that is trained."""
    recipes = []
    for values in points:
        changed = {name: value for name, value in values.items() if name != "size"}
        recipes.append(replace(recipe, **changed))
    is_private = any(recipe.epsilon is not None for recipe in recipes)
    if (reason := jobs.why_no_finetuning(with_privacy=is_private)) is not None:
        raise SettingsError(reason)
    names = ColumnNames(text=options["text_column"])
    inserted = jobs.inserted_texts(
        options["input"], names, options["copies"], options["copies_mean"], recipe
    )
    learnt, count = jobs.learnt_texts(options["into"], names)
    texts_into = learnt["text"]
    shuffled = texts_into.sample(fraction=1, shuffle=True, seed=recipe.seed)
    sizes = [values.get("size") or shuffled.len() for values in points]
    if max(sizes) > shuffled.len():
        raise SettingsError(f"size {max(sizes):,} is above what --into has: {count}")
    base, revision = options["base"], options["revision"]
    input_path = study.folder / "chosen.parquet"
    write_table(inserted, input_path)
    settings = {**audit, "input": input_path, "text_column": "text"}
    base_settings = settings | {"model": base, "revision": revision}
    if (run := study.audit(_BASE, base_settings)) is not None:
        yield _build_figures(run, {"model": _BASE})
    source, source_revision = weights_source(base, revision)
    for values, point_recipe, size in zip(points, recipes, sizes, strict=True):
        name = frame.folder_name(values)
        texts = jobs.with_inserted(shuffled.head(size).to_list(), inserted)
        n_steps = point_recipe.steps(len(texts))
        sentence = f"{name}: {len(texts):,} texts, {n_steps:,} steps"
        training = jobs.TrainingConfig(
            base=source, revision=source_revision, texts=texts, recipe=point_recipe
        )
        path = (study.folder / name / "model").absolute()
        is_trained = path.exists() or not study.dry_run
        if not is_trained:
            sentence += f", {jobs.describe_size(source, source_revision, point_recipe)}"
        study.observer.stage(sentence)
        # What a model that is not trained is asked is forecast with the base.
        model_settings = base_settings
        if is_trained:
            model = jobs.train_or_load(training, path, study.observer.stage)
            model_settings = settings | {"model": str(model.path)}
        if (run := study.audit(f"{name}/run", model_settings)) is not None:
            yield _build_figures(run, {"model": name, **values})


def _build_figures(run: Run, values: Values) -> pl.DataFrame:
    """Build figures of all inserted texts against the controls, then of each number of copies."""
    counts = run["targets"].select("target_id", "copies")
    scores = run["scores"].join(
        counts, on="target_id", how="left", maintain_order="left"
    )
    attacks = run.manifest.made["scores"]["attacks"]
    of_all = frame.build_figures(run)
    figures = [_add_values(of_all, {**values, "copies": None})]
    for n_copies in sorted({*counts["copies"]} - {0}):
        compared = scores.filter(pl.col("copies").is_in([0, n_copies]))
        metrics = evaluate(compared.lazy(), attacks, preset="default")
        of_copies = frame.build_figures(run, metrics)
        figures.append(_add_values(of_copies, {**values, "copies": n_copies}))
    return pl.concat(figures, how="diagonal_relaxed")
