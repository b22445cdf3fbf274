"""The command that inverts embeddings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.options import recipe_options, settings_options
from mia_batch.cli.output import console_of
from mia_batch.finetuning.recipe import RECIPES

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from mia_batch.evidence.endpoint import EndpointSettings

__all__ = ["invert"]

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
    from mia_batch.cli.console import ConsoleObserver
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
        msg = "give --embedder MODEL, or --base-url URL and --model NAME"
        raise click.UsageError(msg)
    if embedder is not None:
        return embedder
    from mia_batch.settings import load_settings
    from mia_batch.settings.client import endpoint_settings

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
