"""The command that has a model paraphrase texts."""

from __future__ import annotations

import click

from mia_batch.cli.options import settings_options
from mia_batch.cli.output import console_of
from mia_batch.storage import place_of

__all__ = ["paraphrase"]

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
    from mia_batch.cli.console import ConsoleObserver
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
