"""The command that says how private a tuned model is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.numbers import NumberRange
from mia_batch.cli.options import recipe_options
from mia_batch.cli.output import console_of
from mia_batch.finetuning.recipe import RECIPES
from mia_batch.privacy.plan import OF_RECIPE, TUNINGS, Plan

if TYPE_CHECKING:
    from click import Context, Parameter

__all__ = ["privacy"]


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
    from mia_batch.cli.console import ConsoleObserver
    from mia_batch.privacy.audit import audit_privacy
    from mia_batch.privacy.formats import read_formats
    from mia_batch.privacy.page import conclusions

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
