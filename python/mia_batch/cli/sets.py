"""The commands ``build-set`` and ``paraphrase``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.options import (
    column_options,
    console_of,
    given,
    observing,
    path_option,
    seed_option,
    settings_options,
    whole_numbers,
)
from mia_batch.settings import ClusterSettings, ColumnSettings, EndpointSettings, nested

if TYPE_CHECKING:
    from datetime import datetime


def _comma_separated(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


@click.command("build-set")
@path_option("documents", "Documents with dates, or with labels.")
@path_option("out", "The sets.", is_place=True)
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
    help="Days around the cutoff that are left out.",
)
@click.option(
    "--lengths",
    callback=whole_numbers,
    default="32,64,128,256",
    metavar="N,N",
    help="Words of the texts.",
)
@click.option(
    "--settings",
    callback=_comma_separated,
    default="original",
    metavar="NAME,NAME",
    help="Some of original, paraphrased, concatenated.",
)
@click.option(
    "--repair/--no-repair",
    default=True,
    help="Match members with non-members where they can be told apart, or only test.",
)
@column_options(
    *("text", "date"),
    document_id=None,
    member="Column of true/false, without a cutoff.",
    label="Column of 1/0, without a cutoff.",
    group=None,
    source="Pairs are of one source.",
    paraphrase="Paraphrases of whole documents.",
)
@seed_option
def build_set(*, cutoff: datetime | None, **options: Any) -> None:  # noqa: ANN401 - of `build`
    """Build evaluation sets, members before a date and non-members after, and test them at once.

    Says whether members can be told from non-members without any model, and matches them until they
    cannot be. The same command again builds nothing.
    """
    from mia_batch.building import build_set as build
    from mia_batch.corpus import ColumnNames

    names = ("text", "document_id", "member", "label", "group")
    columns = ColumnNames(**{name: options.pop(f"{name}_column") for name in names})
    date = None if cutoff is None else cutoff.date()
    with observing() as observer:
        built = build(cutoff=date, columns=columns, observer=observer, **options)
    for sentence in built.summary["sentences"]:
        console_of(stderr=False).print(sentence, markup=False, highlight=False)


@click.command("paraphrase")
@settings_options(
    *("input", "window_words", "max_windows_per_document", "model", "revision", "engine"),
    *("engine_arg", "dtype", "tensor_parallel_size", "temperature", "top_k", "top_p", "seed"),
    *(ColumnSettings, ClusterSettings, EndpointSettings, "retry_failed"),
    without=("prefix_column", "reference_column", "shard", "chat_instruction", "tokenizer"),
)
@path_option("out", "The paraphrases.", is_place=True)
@click.option(
    "--samples",
    type=click.IntRange(3, 1000),
    default=3,
    help="Answers drawn of each text; three must differ from it and from each other.",
)
@click.option("--dry-run", is_flag=True, help="Show texts, tokens and cost; stop.")
def paraphrase(*, dry_run: bool, **options: object) -> None:
    """Have a model write each text in other words, for an audit of another model with DE-COP.

    FOLDER/paraphrases.parquet is the corpus of that audit. The same command again goes on where it
    stopped.
    """
    from mia_batch.pipeline.paraphrasing import paraphrase as make
    from mia_batch.pipeline.paraphrasing import plan_paraphrasing

    settings = nested(given(options))
    if dry_run:
        for name, text in plan_paraphrasing(**settings):
            console_of(stderr=False).print(f"{name}: {text}", markup=False, highlight=False)
        return
    with observing() as observer:
        make(observer=observer, **settings)
