"""The command that fine-tunes a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mia_batch.cli.options import recipe_options
from mia_batch.cli.output import console_of
from mia_batch.finetuning.recipe import RECIPES
from mia_batch.storage import place_of

__all__ = ["finetune"]


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
    from mia_batch.cli.console import ConsoleObserver
    from mia_batch.finetuning.finetune import finetune as make

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
