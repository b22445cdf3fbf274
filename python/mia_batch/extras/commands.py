"""The commands of the extras, which load what they need when they run."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.help import complete_runs
from mia_batch.cli.options import (
    PATH,
    Decorator,
    NumberRange,
    build_table,
    column_options,
    figure,
    limits,
    observing,
    open_console,
    option,
    path_option,
    recipe_options,
    say,
    seed_option,
    select_given,
    settings_options,
    take,
    whole_numbers,
)
from mia_batch.errors import SettingsError
from mia_batch.extras.privacy.plan import RECIPE_FIELDS, TUNINGS, PrivacySettings
from mia_batch.places import mirrored, parse_place
from mia_batch.recipes import RECIPES, Recipe
from mia_batch.settings import ClusterSettings, ColumnSettings, EndpointSettings, nested

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import polars as pl
    from click import Context, Parameter
    from rich.console import Console

    from mia_batch.evidence.endpoint import ClientSettings


@click.command("finetune")
@click.option("--base", required=True, metavar="MODEL", help="Model to start from.")
@click.option("--revision", metavar="NAME", help="Hub revision of the base.")
@path_option(
    "data",
    "Texts; where they say who is a member, members alone are learnt.",
    is_place=True,
)
@column_options(text="Column of the text.", member="Column of the membership.")
@click.option("--as-text", is_flag=True, help="Learn a conversation as one plain text.")
@option("insert", PATH, "PATH", "Texts that are learnt besides, at shuffled places.")
@option("copies", str, "COLUMN", "Their column that says how often, in each epoch.")
@option(
    "copies-mean",
    NumberRange(0, 1e6),
    "X",
    "Or the mean of Poisson draws of how often.",
)
@path_option("out", "Where the model is saved.", is_place=True)
@recipe_options(
    "finetune",
    *(
        "method",
        "epochs",
        "learning_rate",
        "batch_size",
        "max_tokens",
        "patience",
        "rank",
    ),
    *("epsilon", "delta", "clip"),
    held_out="0.1, with --epsilon or --insert 0",
)
@seed_option
def finetune(**options: Any) -> None:
    """Fine-tune a model on texts: a target whose truth is known, or a reference.

    Of chat data, answers alone are learnt. With --insert it is contaminated by texts of
    known copies, and OUT-inserted.parquet says which. The same command again goes on
    where training stopped, and makes nothing twice.
    """
    from mia_batch.extras.tune.jobs import finetune as train

    changed = take(options, (field.name for field in fields(Recipe)))
    if "epsilon" in changed or options["insert"] is not None:
        changed.setdefault("held_out", 0.0)
    with observing() as observer:
        recipe = replace(RECIPES["finetune"], **changed)
        try:
            model = train(recipe=recipe, observer=observer, **options)
        except SettingsError as error:
            raise SettingsError(re.sub("^model: ", "--base: ", str(error))) from error
        loss = model.privacy
        if loss is not None:
            epsilon, delta = loss["epsilon"], loss["delta"]
            observer.stage(f"epsilon {epsilon:.3f} at delta {delta:g}, of one text")


def _count(
    name: str, lowest: int, default: int | None, text: str, highest: int | None = None
) -> Decorator:
    kind = click.IntRange(lowest, highest)
    return option(name, kind, None, text, default=default)


def _epsilons(
    context: Context, option: Parameter, values: Sequence[Any]
) -> Sequence[float | None]:
    convert = NumberRange(0.01, 1000).convert
    return tuple(
        None if value == "none" else convert(value, option, context) for value in values
    )


@click.command("privacy")
@option(
    "base",
    str,
    "MODEL",
    "Model to tune; repeat it to compare.",
    required=True,
    multiple=True,
)
@click.option("--revision", metavar="NAME", help="Hub revision of the base.")
@path_option(
    "data", "Texts: files, or a task of GLUE, such as glue:sst2.", is_place=True
)
@path_option("out", "Where models and results are written.")
@option(
    *("task", click.Choice(["classification", "generation"]), None),
    "What the model learns: the label of a text, or to write it.",
    required=True,
)
@column_options(
    "text",
    target="Column with the label of a text, or its answer.",
    group="Column of the group.",
    attribute="Column of an attribute, which --inversion tells from embeddings, too.",
)
@option(
    *(
        "tuning",
        click.Choice([*TUNINGS]),
        None,
        "How it is tuned; repeat it to compare.",
    ),
    dest="tunings",
    multiple=True,
    default=["full"],
)
@option(
    *("epsilon", None, "NUMBER|none"),
    "Privacy loss that training is to keep to; repeat it to compare.",
    dest="epsilons",
    multiple=True,
    callback=_epsilons,
    default=["none", "8"],
)
@recipe_options(
    "privacy",
    *RECIPE_FIELDS,
    learning_rate="1e-2 for prefix, prompt and P-tuning and (IA)3, 1e-4 otherwise",
)
@_count("shadows", 0, 16, "Shadow models of each tuning, for LiRA.", 512)
@_count("canaries", 0, 40, "Canaries of each format that are learnt.")
@_count("repetitions", 1, 10, "The i-th canary is learnt i times as often.")
@_count("candidates", 2, 100, "Canaries of each format that are compared.")
@option(
    *(
        "canary-formats",
        click.Path(path_type=Path, exists=True, dir_okay=False),
        "FILE",
    ),
    "JSON list of formats; by default the seven of PrivLM-Bench.",
)
@click.option(
    *("--inversion", "inverts"),
    is_flag=True,
    help="Also give texts back from embeddings, by a decoder that is trained for it.",
)
@click.option("--spv", is_flag=True, help="Also attack decoders by SPV-MIA.")
@seed_option
@click.option(
    "--dry-run", is_flag=True, help="Say what would be trained, and train nothing."
)
def privacy(*, canary_formats: Path | None, dry_run: bool, **options: Any) -> None:
    """Tune a model with and without differential privacy, and attack it (PrivLM-Bench).

    The same command again goes on where it stopped, and trains nothing twice.
    """
    from mia_batch.extras.privacy.audit import audit_privacy, conclusions
    from mia_batch.extras.privacy.data import read_formats

    recipe = replace(RECIPES["privacy"], **take(options, RECIPE_FIELDS))
    plan_settings = {
        field.name: options.pop(field.name)
        for field in fields(PrivacySettings)
        if field.name in options
    }
    plan = PrivacySettings(recipe=recipe, **plan_settings)
    formats = None if canary_formats is None else read_formats(canary_formats)
    models = ["a target"]
    if plan.shadows:
        models.append(f"{plan.shadows:,} shadow models")
    if plan.canaries:
        models.append("one with canaries")
    variants = ", ".join(variant.name for variant in plan.variants())
    with observing() as observer:
        observer.stage(
            f"to tune {variants}: {', '.join(models)} each; epochs:"
            f" {plan.recipe.epochs:,}"
        )
        if dry_run:
            return
        audit = audit_privacy(
            settings=plan, formats=formats, observer=observer, **options
        )
    say(*conclusions(audit.summary), f"report: {audit.page}")


_INVERTER, _DECODER = RECIPES["inverter"], RECIPES["decoder"]
_DEFAULTS = {
    name: f"{getattr(_INVERTER, name)} or with --decoder {getattr(_DECODER, name)}"
    for name in ("epochs", "learning_rate", "batch_size", "held_out")
}
_DEFAULTS["max_tokens"] = f"{_INVERTER.max_tokens}; longer texts are left out"


@click.command("invert")
@path_option("data", "Texts, such as sentences.", is_place=True)
@column_options(
    text="Column of the text.",
    group="Column of the group.",
    attribute="Column of an attribute, which is told from the embeddings, too.",
)
@option(
    *("embedder", str, "MODEL"),
    "A checkpoint, or what sentence-transformers saved; an endpoint has --base-url.",
)
@click.option("--revision", metavar="NAME", help="Hub revision of the embedder.")
@path_option("out", "Where the results are written.")
@option(
    "decoder", str, "MODEL", "Language model to start from.  [default: a small new one]"
)
@recipe_options("inverter", **_DEFAULTS)
@option(
    *("share", click.FloatRange(0, 1, min_open=True, max_open=True), None),
    "Share of the texts that the decoder is trained on.",
    default=0.4,
)
@seed_option
@settings_options(
    "model",
    EndpointSettings,
    without=("chat", "chat_instruction", "tokenizer", "price_out"),
)
def invert(*, embedder: str | None, **options: Any) -> None:
    """Say how much of a text its embedding gives back to a decoder that is trained for it.

    The same command again goes on where it stopped, and makes nothing twice.
    """
    from mia_batch.extras.privacy.inversion.training import invert as run

    recipe = _DECODER if options["decoder"] else _INVERTER
    recipe = replace(recipe, **take(options, _DEFAULTS))
    endpoint = take(options, ("model", *EndpointSettings.model_fields))
    source = _choose_embedder(embedder, endpoint)
    with observing() as observer:
        inverted = run(embedder=source, recipe=recipe, observer=observer, **options)
    _show(inverted.figures, open_console(stderr=False))


def _choose_embedder(
    embedder: str | None, endpoint: dict[str, Any]
) -> str | ClientSettings:
    if ("base_url" in endpoint) == (embedder is not None):
        raise click.UsageError(
            "give --embedder MODEL, or --base-url URL and --model NAME"
        )
    if embedder is not None:
        return embedder
    from mia_batch.settings import endpoint_settings, load_settings

    settings = {"input": "-", "engine": "openai", **endpoint}
    if "price_in" in settings:
        settings["price_out"] = 0.0  # an embedding has no output
    return endpoint_settings(load_settings(settings, use_config=False))


def _show(figures: pl.DataFrame, console: Console) -> None:
    columns = ("precision", "recall", "f1", "exact")
    lines: list[list[str]] = []
    methods = figures.group_by("unit", "method", "versus", maintain_order=True)
    for (unit, method, versus), rows in methods:
        by_metric = {row["metric"]: row for row in rows.iter_rows(named=True)}
        values = [figure(by_metric[name]["value"]) for name in columns]
        name = f"{method}" if versus is None else f"{method} less {versus}"
        unit_name = str(unit).replace("_", " ")
        lines.append([unit_name, name, *values, limits(by_metric["f1"])])
    numbers = (*columns, "95 % interval of F1")
    console.print(build_table("unit", "method", *numbers, right=numbers, rows=lines))


@click.command("build-set")
@path_option("documents", "Documents with dates, or with labels.")
@path_option("out", "Where the sets are written.", is_place=True)
@option(
    *("cutoff", click.DateTime(["%Y-%m-%d"]), "DATE"),
    "Members are dated before it, non-members from it on.  [default: labels say it]",
)
@_count("gap-days", 0, 0, "Days around the cutoff that are left out.")
@option(
    *("lengths", str, "N,N", "Words of the texts."),
    callback=whole_numbers,
    default="32,64,128,256",
)
@option(
    *("settings", str, "NAME,NAME"),
    "Kinds of texts to make: some of original, paraphrased, concatenated.",
    callback=lambda _context, _option, value: [
        part.strip() for part in value.split(",")
    ],
    default="original",
)
@click.option(
    "--repair/--no-repair",
    default=True,
    help=(
        "Match members with non-members where they can be distinguished, or only test."
    ),
)
@column_options(
    *("text", "date"),
    document_id=None,
    member="Column of true/false, without a cutoff.",
    label="Column of 1/0, without a cutoff.",
    group=None,
    source="Column of the source; pairs are of one source.",
    paraphrase="Column with paraphrases of whole documents.",
)
@seed_option
def build_set(*, cutoff: datetime | None, **options: Any) -> None:
    """Build evaluation sets, members before a date and non-members after, and test them at once.

    Says whether members can be told from non-members without any model, and matches
    them until they cannot be. The same command again builds nothing.
    """
    from mia_batch.corpus import ColumnNames
    from mia_batch.extras.sets import build_set as build

    names = ("text", "document_id", "member", "label", "group")
    columns = ColumnNames(**{name: options.pop(f"{name}_column") for name in names})
    date = None if cutoff is None else cutoff.date()
    with observing() as observer:
        built = build(cutoff=date, columns=columns, observer=observer, **options)
    say(*built.summary["sentences"])


@click.command("mark")
@click.argument("book", type=PATH)
@option(
    "key",
    PATH,
    "FILE",
    "The key, which stays secret; it is written first.",
    required=True,
)
@option(
    "language", str, "NAME", "Language of the pairs of forms: en or de.", default="en"
)
@_count(
    "seed", 0, None, "Number that nobody could choose, drawn after the hash was lodged."
)
@option(
    "out",
    PATH,
    "PATH",
    "Marked book, or folder of the run.  [default: next to the book]",
)
@settings_options("model", "revision", "engine", "dtype", "engine_arg")
def mark(
    *,
    book: Path,
    key: Path,
    language: str,
    seed: int | None,
    out: Path | None,
    **options: object,
) -> None:
    """Mark a book before publication, so that an audit can show that a model learnt it.

    Three steps: alone a key is written, and the hash to lodge is shown; with --seed the
    marked book is written; with --model that model is tested by the published book and
    its key.
    """
    from mia_batch.cli.main import audit_and_show
    from mia_batch.extras.sets import marks

    settings = select_given(options)
    if "model" in settings:
        model_name = Path(str(settings["model"])).name
        settings["out"] = str(out or book.parent / f"{book.stem}-{model_name}")
        with observing() as observer:
            audit = marks.build_audit(book, key, observer, **settings)
        audit_and_show(audit)
        return
    if seed is not None:
        marked = out or book.with_stem(f"{book.stem}-marked")
        n_windows = marks.publish(book, key, seed, marked)
        say(f"{marked}: the book to publish; {n_windows:,} windows were drawn")
        return
    n_windows = marks.prepare(book, key, language)
    say(
        f"{n_windows:,} windows have places; {marks.forecast_sentence(n_windows)}",
        "lodge this where it cannot be changed, then draw a number and give it as"
        " --seed:",
        marks.compute_lodged_hash(key),
    )


@click.command("paraphrase")
@settings_options(
    *(
        "input",
        "window_words",
        "max_windows_per_document",
        "model",
        "revision",
        "engine",
    ),
    *(
        "engine_arg",
        "dtype",
        "tensor_parallel_size",
        "temperature",
        "top_k",
        "top_p",
        "seed",
    ),
    *(ColumnSettings, ClusterSettings, EndpointSettings, "retry_failed"),
    without=(
        "prefix_column",
        "reference_column",
        "shard",
        "chat_instruction",
        "tokenizer",
    ),
)
@path_option("out", "Where the paraphrases are written.", is_place=True)
@_count(
    "samples",
    3,
    3,
    "Answers of each text; three must differ from it and each other.",
    1000,
)
@click.option("--dry-run", is_flag=True, help="Show texts, tokens and cost; stop.")
def paraphrase(*, dry_run: bool, **options: object) -> None:
    """Have a model write each text in other words, for an audit of another model with DE-COP.

    FOLDER/paraphrases.parquet is the corpus of that audit. The same command again goes
    on where it stopped.
    """
    from mia_batch.extras.sets.paraphrases import paraphrase as write_paraphrases
    from mia_batch.extras.sets.paraphrases import plan_paraphrasing

    settings = nested(select_given(options))
    if dry_run:
        say(*map(": ".join, plan_paraphrasing(**settings)))
        return
    with observing() as observer:
        write_paraphrases(observer=observer, **settings)


@click.command("demo")
@option(
    "folder",
    PATH,
    None,
    "Where corpus, model and run are kept and used again.",
    default="demo",
)
@click.option("--fresh", is_flag=True, help="Start over.")
@click.pass_obj
def demo(goes_on: list[str], /, *, folder: Path, fresh: bool) -> None:
    """Train a small model on half of a corpus, and audit it: the truth is known."""
    from mia_batch.cli.main import audit_and_show
    from mia_batch.extras.sets.demo import prepare
    from mia_batch.settings import load_settings

    console = open_console(stderr=True)
    prepared = prepare(
        folder, fresh=fresh, notify=lambda line: console.print(line, markup=False)
    )
    if fresh:
        goes_on.remove("--fresh")
    console.print(f"mia-batch --config {prepared.config}", style="bold")
    audit_and_show(load_settings({"config": prepared.config}))


@click.command("bench")
@option(
    "model",
    str,
    "MODEL",
    "What is measured; repeat it for a curve.  [default: a tiny model with random"
    " weights]",
    multiple=True,
    dest="models",
)
@option(
    "input",
    str,
    "PATH",
    "Texts, or a copy of --dataset; of labelled ones attacks are compared.  [default:"
    " its own]",
)
@option("dataset", str, "NAME", "Data set by its name, such as wikimia:64.")
@option(
    "texts",
    click.IntRange(1),
    "N",
    "Texts that the forecast is for.  [default: those of the input, or 1000000]",
)
@option("engine", str, "NAME", "What samples, and scores for a curve.", default="auto")
@option(
    "batch-sizes",
    str,
    "N,N",
    "Texts that an engine has at once, for a curve.  [default: the engine's]",
    callback=whole_numbers,
)
@option(
    "gpus",
    str,
    "N,N",
    "GPUs of an engine (tensor_parallel_size), for a curve.  [default: 1]",
    callback=whole_numbers,
)
@option(
    "gpu-hour-price",
    NumberRange(0),
    "X",
    "Price of this machine's hour, for the forecast.",
)
@option("minutes", NumberRange(0.5, 600), "X", "Time for all of it.", default=5.0)
@option(
    "json",
    click.Path(allow_dash=True),
    "FILE",
    "Add a line for each figure and repeat; - is standard output.",
)
@option("against", PATH, "FILE", "Lines of an earlier --json, for ratios to it.")
@option("picture", PATH, "FILE", "Draw the curve to this file (SVG).")
def bench(
    *, json: str | None, against: Path | None, picture: Path | None, **options: Any
) -> None:
    """Measure this machine: speed next to bare engines, a small audit, a forecast.

    What cannot be measured here is shown with the reason. Figures are repeated as long
    as there is time. Several models, batch sizes or numbers of GPUs give a curve.
    """
    from json import dumps

    from mia_batch.extras.speed import comparing, measuring, showing
    from mia_batch.report.html.plots import embed_colours
    from mia_batch.tables import write_text

    axes = ("models", "batch_sizes", "gpus")
    if picture is not None and all(len(options[name] or ()) < 2 for name in axes):
        raise SettingsError(
            "picture= draws a curve; give several --model, --batch-sizes or --gpus"
        )
    runs = None if against is None else comparing.read_runs(against)
    rows = []
    with observing() as observer, ExitStack() as closing:
        lines = None
        if json is not None:
            lines = closing.enter_context(click.open_file(json, "a", "utf-8"))
        for row in measuring.bench(**select_given(options), observer=observer):
            rows.append(row)
            if lines is not None:
                lines.write(f"{dumps(row)}\n")
                lines.flush()
    console = open_console(stderr=json == "-")
    showing.show_figures(rows, console)
    if against is not None and runs is not None:
        showing.show_comparison(rows, runs, against, console)
    if picture is None:
        return
    drawn = showing.draw_rates(rows)
    if drawn is None:
        say("no picture: two points with a figure and a size that is known are needed")
    else:
        write_text(picture, embed_colours(drawn))


@click.command("bounds")
@click.argument("place", metavar="RUN", type=parse_place, shell_complete=complete_runs)
@_count("passages", 1, 20, "Strongest passages of the run that are bounded.", 10_000)
@option(
    *("distance", click.Choice(["levenshtein", "hamming"]), None),
    "How a sample is compared with the true text: by edits, or place by place.",
    default="levenshtein",
)
@_count("within", 0, 5, "Most edits, or tokens that differ, of a sample that is near.")
@_count(
    "width",
    1,
    10,
    "Texts of each length that are searched, and draws of the others.",
    10_000,
)
@settings_options(
    *(
        "extraction_prefix_tokens",
        "extraction_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
    )
)
def bounds(place: Path | str, **options: Any) -> None:
    """Bound how probable it is that one sample comes near to a run's strongest passages.

    Lengths and decoding are the run's unless given. The table bounds.parquet of RUN
    keeps the bounds.
    """
    from mia_batch.extras.bounds import bound_run, samples_needed
    from mia_batch.pipeline import Run

    search = take(options, ("passages", "distance", "within", "width"))
    with observing() as observer, mirrored(place):
        table = bound_run(Run(place), observer, select_given(options), **search)
    names = ("lower", "estimate", "likely_upper", "upper")
    headings = [name.replace("_", " ") for name in names]
    numbers = ("passage", *headings, "samples for 1 in 2")
    lines = []
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        values = ["-" if row[name] is None else f"{row[name]:.3g}" for name in names]
        n_samples = ""
        if not row["reason"]:
            fewest = samples_needed(row["upper"], 0.5)
            most_needed = samples_needed(row["lower"], 0.5)
            n_samples = f"{fewest:,.3g} to {most_needed:,.3g}"
        lines.append([number, *values, n_samples, row["reason"] or ""])
    printed = build_table(*numbers, "no bounds", right=numbers, rows=lines)
    open_console(stderr=False).print(printed, soft_wrap=True)
