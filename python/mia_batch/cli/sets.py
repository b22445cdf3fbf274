"""The commands ``build-set`` and ``paraphrase``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mia_batch.cli.options import console_of, settings_options, whole_numbers
from mia_batch.storage import place_of

if TYPE_CHECKING:
    from datetime import datetime


# The command that builds evaluation sets.


def _comma_separated(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


@click.command("build-set")
@click.option(
    "--documents",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Documents with dates, or with labels.",
)
@click.option("--out", required=True, type=place_of, metavar="FOLDER", help="The sets.")
@click.option(
    "--cutoff",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Members are dated before it, non-members from it on.  [default: labels say it]",
)
@click.option(
    "--gap-days",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Days around the cutoff that are left out.",
)
@click.option(
    "--lengths",
    callback=whole_numbers,
    default="32,64,128,256",
    show_default=True,
    metavar="N,N",
    help="Words of the texts.",
)
@click.option(
    "--settings",
    callback=_comma_separated,
    default="original",
    show_default=True,
    metavar="NAME,NAME",
    help="Some of original, paraphrased, concatenated.",
)
@click.option(
    "--repair/--no-repair",
    default=True,
    show_default=True,
    help="Match members with non-members where they can be told apart, or only test.",
)
@click.option("--text-column", default="text", show_default=True, metavar="COLUMN")
@click.option("--document-id-column", metavar="COLUMN")
@click.option("--member-column", metavar="COLUMN", help="Column of true/false, without a cutoff.")
@click.option("--label-column", metavar="COLUMN", help="Column of 1/0, without a cutoff.")
@click.option("--group-column", metavar="COLUMN")
@click.option("--date-column", default="date", show_default=True, metavar="COLUMN")
@click.option("--source-column", metavar="COLUMN", help="Pairs are of one source.")
@click.option("--paraphrase-column", metavar="COLUMN", help="Paraphrases of whole documents.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
def build_set(  # an option each
    *,
    documents: Path,
    out: Path | str,
    cutoff: datetime | None,
    text_column: str,
    document_id_column: str | None,
    member_column: str | None,
    label_column: str | None,
    group_column: str | None,
    **settings: object,
) -> None:
    """Build evaluation sets, members before a date and non-members after, and test them at once.

    Says whether members can be told from non-members without any model, and matches them until they
    cannot be. The same command again builds nothing.
    """
    from mia_batch.building import build_set as build
    from mia_batch.cli.options import ConsoleObserver
    from mia_batch.corpus import ColumnNames

    observer = ConsoleObserver(console_of(stderr=True))
    built = build(
        documents=documents,
        out=out,
        cutoff=None if cutoff is None else cutoff.date(),
        columns=ColumnNames(
            text=text_column,
            document_id=document_id_column,
            member=member_column,
            label=label_column,
            group=group_column,
        ),
        observer=observer,
        **settings,  # type: ignore[arg-type]
    )
    observer.ended()
    console = console_of(stderr=False)
    for sentence in built.summary["sentences"]:
        console.print(sentence, markup=False, highlight=False)


# The command that has a model paraphrase texts.


_OF_TEXTS = (
    "text_column",
    "document_id_column",
    "member_column",
    "label_column",
    "group_column",
    "window_words",
    "max_windows_per_document",
)
_OF_MODEL = (
    "model",
    "revision",
    "engine",
    "engine_arg",
    "dtype",
    "tensor_parallel_size",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "workers",
    "ray",
)
_OF_ENDPOINT = (
    "base_url",
    "api_key_env",
    "chat",
    "max_concurrency",
    "requests_per_minute",
    "tokens_per_minute",
    "timeout",
    "max_retries",
    "price_in",
    "price_out",
    "max_cost",
)


@click.command("paraphrase")
@settings_options("input", *_OF_TEXTS, *_OF_MODEL, *_OF_ENDPOINT, "retry_failed")
@click.option("--out", required=True, type=place_of, metavar="FOLDER", help="The paraphrases.")
@click.option(
    "--samples",
    type=click.IntRange(3, 1000),
    default=3,
    show_default=True,
    help="Answers drawn of each text; three must differ from it and from each other.",
)
@click.option("--dry-run", is_flag=True, help="Show texts, tokens and cost; stop.")
def paraphrase(*, dry_run: bool, **options: object) -> None:
    """Have a model write each text in other words, for an audit of another model with DE-COP.

    FOLDER/paraphrases.parquet is the corpus of that audit. The same command again goes on where it
    stopped.
    """
    from mia_batch.cli.options import ConsoleObserver
    from mia_batch.pipeline.paraphrasing import paraphrase as make
    from mia_batch.pipeline.paraphrasing import plan_paraphrasing

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if dry_run:
        console = console_of(stderr=False)
        for name, text in plan_paraphrasing(**given):
            console.print(f"{name}: {text}", markup=False, highlight=False)
        return
    observer = ConsoleObserver(console_of(stderr=True))
    make(observer=observer, **given)
    observer.ended()
