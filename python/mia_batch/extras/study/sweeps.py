"""Sweeps: one audit over values of its settings, or over trainings that contaminate a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
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
    each for each in Settings.model_fields if each.startswith(("generation", "tuning"))
}
"""Settings of other models alone: the target's log-probabilities are the same with each value."""


def _over_option(text: str, **how: Any) -> cli.Decorator:
    how |= {"dest": "points", "multiple": True, "callback": _points}
    return cli.option("over", str, "NAME=V,V", f"{text}; at most two.", **how)


def _points(
    _: click.Context, _option: click.Parameter, given: Sequence[str]
) -> list[Values]:
    """Read ``--over`` as the values of each place, by name."""
    found: dict[str, list[str]] = {}
    for each in given:
        flag, _equals, listed = each.partition("=")
        name = flag.strip().lstrip("-").replace("-", "_")
        values = [*dict.fromkeys(value.strip() for value in listed.split(","))]
        if not name or not all(values) or name in found:
            raise click.BadParameter(
                f"{each!r} does not read NAME=VALUE,VALUE, each name once"
            )
        if name in ("fpr", "out", "shard"):
            raise click.BadParameter(
                f"{name} changes no figure of a study; leave it out"
            )
        found[name] = values
    if len(found) > 2:
        raise click.BadParameter(f"{len(found)} are too many for one table; vary two")
    return [dict(zip(found, each, strict=True)) for each in product(*found.values())]


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
    if both := [
        name.replace("_", "-") for name in names if name in cli.select_given(options)
    ]:
        raise click.UsageError(f"--{both[0]} is in --over, too; give it once")
    with frame.opened(out, "sweep", options) as study:
        base = cli.select_given(options)
        if (table := _swept(study, base, points)) is not None:
            numbers = [
                name for name in names if table[name].dtype.is_numeric()
            ] or names
            x = max(numbers, key=lambda name: table[name].n_unique())
            by = [name for name in names if name != x]
            frame.publish(out, table, names, x=x, by=by, every="attacks" in base)


def _swept(
    study: frame.Study, base: Mapping[str, Any], points: Sequence[Values]
) -> pl.DataFrame | None:
    """Audit at each point, and lay out the figures; raise if every one is refused."""
    found, refused = dict[int, pl.DataFrame](), dict[int, pl.DataFrame]()
    runs = dict[str, list[Values]]()
    for values in points:
        own = {name: value for name, value in values.items() if name not in _EXTENDED}
        runs.setdefault(frame.folder_name(own), []).append(values)
    for folder, of in runs.items():
        if not study.dry_run:
            _copy_evidence(study.folder / folder, [of[0], *chain(*runs.values())])
        for number, values in enumerate(
            _in_order(of)[: len(of) if study.dry_run else None]
        ):
            if (at := points.index(values)) in refused:
                continue
            name = frame.folder_name(values)
            shares = f"{name} scores the first of those" if number else ""
            try:
                run = study.audited(folder, {**base, **values}, shares)
                found[at] = pl.DataFrame() if run is None else frame.figures_of(run)
            except RequestError as error:
                why = " ".join(str(error).split())
                refused[at] = pl.DataFrame({"metric": "roc_auc", "reason": why})
                study.observer.stage(f"{name} is refused: {error}")
    if not found:
        raise SettingsError(f"no value can be audited: {refused[0]['reason'][0]}")
    if study.dry_run:
        return None
    parts = (_named(part, points[at]) for at, part in sorted((refused | found).items()))
    table = pl.concat(parts, how="diagonal_relaxed")
    numbers = table.select(pl.col(*points[0]).cast(pl.Float64, strict=False))
    return table.with_columns(each for each in numbers if not each.null_count())


def _copy_evidence(to: Path, points: Iterable[Values]) -> None:
    """Begin a run, the first of these, with the target's log-probabilities from another one."""
    first, *others = (
        {k: v for k, v in of.items() if k not in _EXTENDED} for of in points
    )
    asked = {name: value for name, value in first.items() if name not in _REFERENCES}
    alike = (
        to.with_name(frame.folder_name(of))
        for of in others
        if asked.items() <= of.items()
    )
    found = next(
        filter(None, ([*run.glob("logprobs/*.target-*.parquet")] for run in alike)),
        None,
    )
    if found and not to.exists():
        rmtree(made := to.with_name(f".{to.name}"), ignore_errors=True)
        (made / "logprobs").mkdir(parents=True)
        for part in found:
            copyfile(part, made / "logprobs" / part.name)
        made.rename(to)


def _in_order(points: Sequence[Values]) -> list[Values]:
    """Order the points of one run: the largest first, which asks for everything, and again last.

    So the run is left as their audit leaves it.
    """
    # By the digits of whole numbers; an audit refuses other values.
    *smaller, largest = sorted(
        points, key=lambda of: [of.get(name, "").zfill(20) for name in _EXTENDED]
    )
    return [largest, *smaller, largest] if smaller else [largest]


def _named(rows: pl.DataFrame, values: Values) -> pl.DataFrame:
    return rows.select(
        *(pl.lit(value).alias(name) for name, value in values.items()), pl.all()
    )


# Contamination (Shi et al. 2024, arXiv:2310.16789, section 6): texts are inserted into
# others, k copies of each, a model learns all of them, and the AUC is measured by k, by
# the number of the others and by the learning rate.

_PRIVATE = ("epsilon", "delta", "clip")
_TRAINING = (
    "method",
    "epochs",
    "learning_rate",
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
@click.option("--base", required=True, metavar="MODEL", help="Model to go on with.")
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
    recipe = replace(
        RECIPES["contamination"], **cli.take(options, (*_TRAINING, "seed"))
    )
    audit = {**cli.take(options, _AUDIT), "seed": recipe.seed}
    points = [_typed(context, values) for values in options.pop("points")]
    with frame.opened(out, "contamination", options) as study:
        if not (parts := [*_contaminated(study, recipe, points, audit, **options)]):
            return
        table = pl.concat(parts, how="diagonal_relaxed")
        x, by = (
            ("copies", ["model"]) if table["copies"].n_unique() > 2 else ("model", [])
        )
        frame.publish(
            out, table, ["model", "copies"], x=x, by=by, every="attacks" in audit
        )
    of_base = {"model": _BASE, "is_primary": True, "metric": "roc_auc"}
    area = table.filter(pl.col("copies").is_null(), **of_base).row(0, named=True)
    if area["low"] is not None and not area["low"] <= 0.5 <= area["high"]:
        cli.say(
            "The base, which learnt none of them here, has an AUC of"
            f" {cli.limits(area)}: inserted texts and controls differ without this"
            " training, which moves all figures above."
        )


def _typed(context: click.Context, values: Values) -> Values:
    """Read values of ``--over`` as the flags of these names do."""
    known = {each.name: each for each in context.command.params}
    flags: dict[str, click.Parameter] = {
        "size": click.Option(["--size"], type=click.IntRange(1))
    }
    flags |= {name: known[name] for name in _TRAINING}
    if unknown := [name for name in values if name not in flags]:
        names = ", ".join(flags).replace("_", "-")
        raise click.UsageError(
            f"--over {unknown[0].replace('_', '-')}: choose from {names}"
        )
    return {
        name: (
            None
            if value == "none"
            else flags[name].type.convert(value, flags[name], context)
        )
        for name, value in values.items()
    }


def _contaminated(
    study: frame.Study,
    recipe: Recipe,
    points: Sequence[Values],
    audit: Mapping[str, Any],
    **options: Any,
) -> Iterator[pl.DataFrame]:
    """Yield the figures of the base, then those of each model that is trained."""
    recipes = [
        replace(recipe, **{k: v for k, v in of.items() if k != "size"}) for of in points
    ]
    private = any(each.epsilon is not None for each in recipes)
    if (reason := jobs.why_no_finetuning(with_privacy=private)) is not None:
        raise SettingsError(reason)
    often = options["copies"], options["copies_mean"]
    names = ColumnNames(text=options["text_column"])
    chosen = jobs.inserted_texts(options["input"], names, *often, recipe)
    others, what = jobs.learnt_texts(options["into"], names)
    order = others.sample(fraction=1, shuffle=True, seed=recipe.seed)
    sizes = [values.get("size") or order.len() for values in points]
    if max(sizes) > order.len():
        raise SettingsError(f"size {max(sizes):,} is above what --into has: {what}")
    base, revision = options["base"], options["revision"]
    of_audit = {
        **audit,
        "input": study.folder / "chosen.parquet",
        "text_column": "text",
    }
    write_table(chosen, of_audit["input"])
    of_base = of_audit | {"model": base, "revision": revision}
    if (run := study.audited(_BASE, of_base)) is not None:
        yield _by_copies(run, {"model": _BASE})
    start, start_revision = weights_source(base, revision)
    for values, own, size in zip(points, recipes, sizes, strict=True):
        name = frame.folder_name(values)
        content = jobs.with_inserted(order.head(size).to_list(), chosen)
        said = f"{name}: {len(content):,} texts, {own.steps(len(content)):,} steps"
        wanted = jobs.Making(
            base=start, revision=start_revision, texts=content, recipe=own
        )
        path, model = (study.folder / name / "model").absolute(), of_base
        # What it is asked is forecast with the base
        if study.dry_run and not path.exists():
            said += f", {jobs.sizes(start, start_revision, own)}"
        study.observer.stage(said)
        if path.exists() or not study.dry_run:
            made = jobs.made_of(wanted, path, study.observer.stage)
            model = of_audit | {"model": str(made.path)}
        if (run := study.audited(f"{name}/run", model)) is not None:
            yield _by_copies(run, {"model": name, **values})


def _by_copies(run: Run, values: Values) -> pl.DataFrame:
    """Measure all inserted texts against the controls, then those of each number of copies."""
    counts = run["targets"].select("target_id", "copies")
    scores = run["scores"].join(
        counts, on="target_id", how="left", maintain_order="left"
    )
    attacks = run.manifest.made["scores"]["attacks"]
    parts = [_named(frame.figures_of(run), {**values, "copies": None})]
    for k in sorted({*counts["copies"]} - {0}):
        some = scores.filter(pl.col("copies").is_in([0, k]))
        found = evaluate(some.lazy(), attacks, preset="default")
        parts.append(_named(frame.figures_of(run, found), {**values, "copies": k}))
    return pl.concat(parts, how="diagonal_relaxed")
