"""The command that fine-tunes a model."""

from __future__ import annotations

from pathlib import Path

import click

from mia_batch.cli.numbers import NumberRange
from mia_batch.cli.output import console_of
from mia_batch.finetuning.recipe import METHODS, Recipe
from mia_batch.storage import place_of

__all__ = ["finetune"]

_HELD_OUT = 0.1
_OF_A_TARGET = 10
"""Epochs by default: those of targets in the SPV-MIA paper."""


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
@click.option("--method", type=click.Choice(METHODS), default="lora", show_default=True)
@click.option("--epochs", type=click.IntRange(1, 1000), default=_OF_A_TARGET, show_default=True)
@click.option(
    "--learning-rate",
    type=NumberRange(0, 1, min_open=True),
    default=1e-4,
    show_default=True,
    help="Of AdamW.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 65_536),
    default=16,
    show_default=True,
    help="Texts of a step.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2),
    default=512,
    show_default=True,
    help="Tokens of a text that are learnt.",
)
@click.option(
    "--held-out",
    type=NumberRange(0, 0.9),
    help="Share of the texts for early stopping; 0: none. By default 0.1, with --epsilon 0.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Epochs without a lower held-out loss.",
)
@click.option(
    "--rank",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Of LoRA; virtual tokens of prefix tuning and P-tuning.",
)
@click.option(
    "--epsilon",
    type=NumberRange(0.01, 1000),
    metavar="NUMBER",
    help="Train with differential privacy (DP-SGD), to this privacy loss.",
)
@click.option(
    "--delta",
    type=NumberRange(0, 0.1, min_open=True),
    default=1e-5,
    show_default=True,
    help="Of it.",
)
@click.option(
    "--clip",
    type=NumberRange(0, 1e6, min_open=True),
    default=0.1,
    show_default=True,
    help="Norm to which the gradient of a text is cut.",
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
    epsilon: float | None,
    held_out: float | None,
    **settings: object,
) -> None:
    """Fine-tune a model on texts: a target whose truth is known, or a reference.

    The same command again goes on where training stopped, and makes nothing twice.
    """
    from mia_batch.cli.console import ConsoleObserver
    from mia_batch.finetuning.finetune import finetune as make

    if held_out is None:
        held_out = _HELD_OUT if epsilon is None else 0.0
    observer = ConsoleObserver(console_of(stderr=True))
    made = make(
        base=base,
        revision=revision,
        data=data,
        text_column=text_column,
        member_column=member_column,
        out=out,
        recipe=Recipe(epsilon=epsilon, held_out=held_out, **settings),  # type: ignore[arg-type]
        observer=observer,
    )
    if made.privacy is not None:
        observer.stage(
            f"epsilon {made.privacy['epsilon']:.3f} at delta {made.privacy['delta']:g}, of one text"
        )
    observer.ended()
