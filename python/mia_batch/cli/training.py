"""The commands ``finetune``, ``privacy`` and ``invert``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.options import NumberRange, console_of, recipe_options, settings_options
from mia_batch.finetuning.recipe import RECIPES
from mia_batch.privacy.plan import OF_RECIPE, TUNINGS, Plan
from mia_batch.storage import place_of

if TYPE_CHECKING:
    import polars as pl
    from click import Context, Parameter
    from rich.console import Console

    from mia_batch.evidence.endpoint import EndpointSettings


# The command that fine-tunes a model.


@click.command("finetune")
@click.option("--base", required=True, metavar="MODEL", help="Model to start from.")
@click.option("--revision", metavar="NAME", help="Hub revision of the base.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Texts; where they say who is a member, members alone are learnt.",
)
@click.option("--text-column", metavar="COLUMN", help="Column of the text.")
@click.option("--member-column", metavar="COLUMN", help="Column of the membership.")
@click.option("--out", required=True, type=place_of, metavar="FOLDER", help="The model.")
@recipe_options(
    "finetune",
    *("method", "epochs", "learning_rate", "batch_size", "max_tokens", "patience", "rank"),
    *("epsilon", "delta", "clip"),
    held_out="0.1, with --epsilon 0",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
def finetune(  # an option each
    *,
    base: str,
    revision: str | None,
    data: Path,
    text_column: str | None,
    member_column: str | None,
    out: Path | str,
    **settings: Any,  # noqa: ANN401 - of the recipe
) -> None:
    """Fine-tune a model on texts: a target whose truth is known, or a reference.

    The same command again goes on where training stopped, and makes nothing twice.
    """
    from mia_batch.cli.options import ConsoleObserver
    from mia_batch.finetuning.making import finetune as make

    given = {name: value for name, value in settings.items() if value is not None}
    if "epsilon" in given:
        given.setdefault("held_out", 0.0)
    observer = ConsoleObserver(console_of(stderr=True))
    made = make(
        base=base,
        revision=revision,
        data=data,
        text_column=text_column,
        member_column=member_column,
        out=out,
        recipe=replace(RECIPES["finetune"], **given),
        observer=observer,
    )
    if made.privacy is not None:
        observer.stage(
            f"epsilon {made.privacy['epsilon']:.3f} at delta {made.privacy['delta']:g}, of one text"
        )
    observer.ended()


# The command that says how private a tuned model is.


class _Epsilon(click.ParamType[float | None]):
    """A privacy loss, or ``none``."""

    name = "epsilon"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: Parameter | None,
        ctx: Context | None,
    ) -> float | None:
        if value in (None, "none"):
            return None
        return NumberRange(0.01, 1000).convert(value, param, ctx)


@click.command("privacy")
@click.option("--base", required=True, metavar="MODEL", help="Model to tune.")
@click.option("--revision", metavar="NAME", help="Hub revision of the base.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Texts: files, or a task of GLUE, such as glue:sst2.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("--task", required=True, type=click.Choice(["classification", "generation"]))
@click.option("--text-column", default="text", show_default=True, metavar="COLUMN")
@click.option("--target-column", metavar="COLUMN", help="Label of a text, or what answers it.")
@click.option("--group-column", metavar="COLUMN", help="Texts that belong together.")
@click.option(
    "--tuning",
    "tunings",
    multiple=True,
    type=click.Choice([*TUNINGS]),
    default=["full"],
    show_default=True,
    help="How it is tuned; repeat it to compare.",
)
@click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    type=_Epsilon(),
    default=["none", "8"],
    show_default=True,
    metavar="NUMBER|none",
    help="Privacy loss that training is to keep to; repeat it to compare.",
)
@recipe_options(
    "privacy",
    *OF_RECIPE,
    learning_rate="1e-2 for prefix and prompt tuning, 1e-4 otherwise",
)
@click.option("--shadows", type=click.IntRange(0, 512), default=16, show_default=True)
@click.option(
    "--canaries", type=click.IntRange(0), default=40, show_default=True, help="Of each format."
)
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="The i-th canary is learnt i times as often.",
)
@click.option(
    "--candidates",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Canaries of each format that are compared.",
)
@click.option(
    "--canary-formats",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="JSON list of formats; by default the seven of PrivLM-Bench.",
)
@click.option(
    "--inversion",
    "inverts",
    is_flag=True,
    help="Also give texts back from embeddings, by a decoder that is trained for it.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option("--dry-run", is_flag=True, help="Say what would be trained, and start nothing.")
def privacy(  # an option each
    *,
    base: str,
    revision: str | None,
    data: Path,
    out: Path,
    text_column: str,
    target_column: str | None,
    group_column: str | None,
    canary_formats: Path | None,
    dry_run: bool,
    **settings: Any,  # noqa: ANN401 - of the plan
) -> None:
    """Tune a model with and without differential privacy, and attack it (PrivLM-Bench).

    The same command again goes on where it stopped, and trains nothing twice.
    """
    from mia_batch.cli.options import ConsoleObserver
    from mia_batch.privacy.audit import audit_privacy, conclusions
    from mia_batch.privacy.data import read_formats

    given = {name: settings.pop(name) for name in OF_RECIPE}
    changed = {name: value for name, value in given.items() if value is not None}
    plan = Plan(recipe=replace(RECIPES["privacy"], **changed), **settings)
    formats = None if canary_formats is None else read_formats(canary_formats)
    models = ["a target", f"{plan.shadows:,} shadow models", "one with canaries"]
    wanted = [name for name, n in zip(models, (1, plan.shadows, plan.canaries), strict=True) if n]
    ways = [variant.name for variant in plan.variants()]
    observer = ConsoleObserver(console_of(stderr=True))
    what = f"{', '.join(ways)}: {', '.join(wanted)} each"
    observer.stage(f"to tune {what}; epochs: {plan.recipe.epochs:,}")
    if dry_run:
        observer.ended()
        return
    found = audit_privacy(
        base=base,
        revision=revision,
        data=data,
        out=out,
        plan=plan,
        text_column=text_column,
        target_column=target_column,
        group_column=group_column,
        formats=formats,
        observer=observer,
    )
    observer.ended()
    console = console_of(stderr=False)
    for sentence in conclusions(found.summary):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {found.page}", markup=False, highlight=False, soft_wrap=True)


# The command that inverts embeddings.


_OF_RECIPE = ("epochs", "learning_rate", "batch_size", "held_out", "max_tokens")
_DEFAULTS = {
    name: " or with --decoder ".join(
        str(getattr(RECIPES[recipe], name)) for recipe in ("inverter", "decoder")
    )
    for name in _OF_RECIPE
} | {"max_tokens": f"{RECIPES['inverter'].max_tokens}; longer texts are left out"}
_OF_ENDPOINT = (
    *("base_url", "model", "api_key_env", "requests_per_minute", "tokens_per_minute"),
    *("max_concurrency", "timeout", "max_retries", "price_in", "max_cost"),
)


@click.command("invert")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Texts, such as sentences.",
)
@click.option("--text-column", metavar="COLUMN", help="Column of the text.")
@click.option("--group-column", metavar="COLUMN", help="Column of the group.")
@click.option(
    "--embedder",
    metavar="MODEL",
    help="A checkpoint, or what sentence-transformers saved; an endpoint has --base-url.",
)
@click.option("--revision", metavar="NAME", help="Hub revision of the embedder.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="The results."
)
@click.option(
    "--decoder", metavar="MODEL", help="Language model to start from.  [default: a small new one]"
)
@recipe_options("inverter", **_DEFAULTS)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.4,
    show_default=True,
    help="Of the texts that are auxiliary.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@settings_options(*_OF_ENDPOINT)
def invert(  # an option each
    *,
    data: Path,
    embedder: str | None,
    decoder: str | None,
    **options: Any,  # noqa: ANN401 - of the recipe, of the endpoint, and of `invert`
) -> None:
    """Say how much of a text its embedding gives back to a decoder that is trained for it.

    The same command again goes on where it stopped, and makes nothing twice.
    """
    from mia_batch.cli.options import ConsoleObserver
    from mia_batch.inversion.inverting import invert as run

    changed: dict[str, Any] = {
        name: value for name in _OF_RECIPE if (value := options.pop(name)) is not None
    }
    asked = {name: options.pop(name) for name in _OF_ENDPOINT}
    observer = ConsoleObserver(console_of(stderr=True))
    inverted = run(
        data=data,
        embedder=_embedder(embedder, {n: v for n, v in asked.items() if v not in (None, ())}),
        decoder=decoder,
        recipe=replace(RECIPES["decoder" if decoder else "inverter"], **changed),
        observer=observer,
        **options,
    )
    observer.ended()
    _show(inverted.figures, console_of(stderr=False))


def _embedder(embedder: str | None, asked: dict[str, Any]) -> str | EndpointSettings:
    if ("base_url" in asked) == (embedder is not None):
        raise click.UsageError("give --embedder MODEL, or --base-url URL and --model NAME")
    if embedder is not None:
        return embedder
    from mia_batch.settings import load_settings
    from mia_batch.settings.load import endpoint_settings

    if "price_in" in asked:
        asked["price_out"] = 0.0  # an embedding has no output
    given = {"input": "-", "engine": "openai", **asked}
    return endpoint_settings(load_settings(given, use_config=False))


def _show(figures: pl.DataFrame, console: Console) -> None:
    """Print the figures, a line for each unit and method."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    columns = ("precision", "recall", "f1", "exact")
    for heading in ("unit", "method", *columns, "95 % interval of F1"):
        made.add_column(heading, justify="left" if heading in ("unit", "method") else "right")
    for (unit, method, versus), rows in figures.group_by(
        "unit", "method", "versus", maintain_order=True
    ):
        each = {row["metric"]: row for row in rows.iter_rows(named=True)}
        values = (_number(each[name]["value"]) for name in columns)
        f1 = each["f1"]
        limits = "-" if f1["low"] is None else f"{f1['low']:.3f} to {f1['high']:.3f}"
        name = method if versus is None else f"{method} less {versus}"
        made.add_row(str(unit).replace("_", " "), str(name), *values, limits)
    console.print(made)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
