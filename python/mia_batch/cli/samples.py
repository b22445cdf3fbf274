"""The commands that look at what a model answered, and draw it again: show and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mia_batch.cli.options import settings_options
from mia_batch.cli.output import console_of
from mia_batch.storage import place_of

if TYPE_CHECKING:
    from polars import DataFrame

    from mia_batch.pipeline import Run

__all__ = ["show", "verify"]


_HOW_TO_ASK = ("base_url", "api_key_env", "engine_arg")


@click.command("verify")
@click.argument("place", type=place_of, metavar="RUN")
@click.option(
    "--input",
    "inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Where inputs lie by now; repeatable.",
)
@click.option(
    "--again",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw N of the run's samples again with its model, and compare.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the choice of samples.")
@settings_options(*_HOW_TO_ASK)
def verify(
    place: Path | str, inputs: tuple[Path, ...], again: int | None, seed: int, **options: object
) -> int:
    """Compare every byte of a finished run and its inputs with what was recorded.

    Exit 0 if nothing has changed and all samples that are drawn again agree, else 1.
    """
    from mia_batch.cli.evidence import show_checked
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody.again import choose_samples
    from mia_batch.pipeline.custody.root import verify

    checked = verify(place, inputs)
    show_checked(checked, console_of(stderr=False))
    if checked.faults or again is None:
        return int(bool(checked.faults))
    run = Run(place)
    return _draw_again(run, choose_samples(run, again, seed), options)


@click.command("show")
@click.argument("place", type=place_of, metavar="RUN")
@click.argument("target_id")
@click.option("--again", is_flag=True, help="Draw its samples again with the model, and compare.")
@settings_options(*_HOW_TO_ASK)
def show(place: Path | str, target_id: str, *, again: bool, **options: object) -> int:
    """Show what the model answered about one target, beside the true text.

    The beginning of TARGET_ID suffices where no other target begins so.
    """
    from mia_batch.cli.evidence import find_target, show_answers, show_target
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.answers import answers_of

    run, console = Run(place), console_of(stderr=False)
    target = find_target(run, target_id)
    answers = answers_of(run, target)
    show_target(run, target, console)
    show_answers(answers, target, run, console)
    return _draw_again(run, answers, options) if again else 0


def _draw_again(run: Run, samples: DataFrame, options: dict[str, object]) -> int:
    """Draw samples again and say how many agree; 0 if all do, else 1."""
    from mia_batch.cli.console import ConsoleObserver
    from mia_batch.cli.evidence import show_agreement
    from mia_batch.pipeline.custody.again import draw_again

    observer = ConsoleObserver(console_of(stderr=True))
    asked = {name: value for name, value in options.items() if value not in (None, ())}
    drawn = draw_again(run, samples, observer, **asked)
    observer.ended()
    return int(not show_agreement(drawn, console_of(stderr=False)))
