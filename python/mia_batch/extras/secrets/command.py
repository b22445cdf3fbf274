"""The command ``mia-batch secrets``."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.cli.help import TopicCommand
from mia_batch.errors import RunFolderError
from mia_batch.extras.secrets.asking import ask, forecast
from mia_batch.extras.secrets.questions import (
    Design,
    Questions,
    Secret,
    build_questions,
    detect_secrets,
    read_secrets,
)
from mia_batch.extras.secrets.results import (
    LEVEL,
    build_rows,
    build_table,
    conclusions,
    count_needed,
)
from mia_batch.extras.study import frame
from mia_batch.identifiers import KINDS, Kind, write_mask
from mia_batch.models.chat import ChatTemplate
from mia_batch.prompts import find_template
from mia_batch.settings import EndpointSettings
from mia_batch.tables import write_table, write_text

_SETTINGS = ("revision", "engine", "engine_arg", "dtype", "tensor_parallel_size")
_DESIGN = ("controls", "draws", "most_contexts", "seed")
_MOST_SHOWN = 60  # lines of the table in the terminal
TABLE = "secrets.parquet"
RECORD = "secrets.json"


def _parse_kinds(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[Kind, ...]:
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is no kind; give some of {','.join(KINDS)}"
        )
    return tuple(kind for kind in KINDS if kind in names)


@click.command("secrets", cls=TopicCommand)
@click.argument("file", metavar="FILE")
@cli.models_option
@cli.default_folder_option("secrets", "Folder of the table.")
@cli.option(
    *("detect", str, "KIND,KIND"),
    f"Find the secrets in the texts of FILE: some of {','.join(KINDS)}.",
    callback=_parse_kinds,
)
@cli.option("secret-column", str, "COLUMN", "Column of the secrets.", default="secret")
@cli.option(
    *("context-column", str, "COLUMN"),
    "Column of the text before each, as in the training data.",
    default="context",
)
@cli.option("text-column", str, "COLUMN", "Column of texts to look in.", default="text")
@cli.option(
    *("controls", click.IntRange(9, 9999), "N", "Strings of the same form as each."),
    default=199,
)
@cli.option(
    *("draws", click.IntRange(0, 1000), "N"),
    "Answers that are drawn after each context, besides the likeliest one.",
    default=0,
)
@cli.option(
    *("most-contexts", click.IntRange(1, 100), "N", "Contexts of each secret."),
    default=3,
)
@cli.option(
    *("drawn", str, "TEXT"),
    "How chance made the secrets: without it p-values of words are exploratory.",
)
@click.option(
    "--answers-only", is_flag=True, help="Ask for no probabilities; --chat implies it."
)
@click.option("--unmask", is_flag=True, help="Print the secrets themselves.")
@click.option(
    "--keep-answers", is_flag=True, help="Keep the runs, which hold the secrets."
)
@cli.seed_option
@click.option("--dry-run", is_flag=True, help="Show tokens and cost; ask nothing.")
@cli.settings_options(
    *_SETTINGS,
    EndpointSettings,
    "retry_failed",
    without=("chat_instruction",),
)
def secrets(*, file: str, models: Sequence[str], **options: Any) -> None:
    """Test whether a model has learnt secrets, and whether it gives them back.

    FILE has a column of secrets, or texts in which --detect finds them. Each is compared
    with strings of its form, which are as likely where nothing was learnt. Secrets are
    masked in what is printed, and no table holds them.
    """
    out = cli.choose_folder(options.pop("out"), file, "secrets")
    dry_run = options.pop("dry_run")
    keeps_answers, shows_secrets = options.pop("keep_answers"), options.pop("unmask")
    design = Design(**{key: options.pop(key) for key in _DESIGN})
    why_drawn = options.pop("drawn")
    asked_secrets = _read(file, options)
    has_scores = not (options.pop("answers_only") or options.get("chat"))
    kinds: dict[str, Any] = {"draws": design.draws, "has_scores": has_scores}
    settings = cli.select_given(options) | {"seed": design.seed}
    names = [*dict.fromkeys(models)]
    all_questions = _build_all(asked_secrets, design, names, settings)
    if why_drawn:
        none = [None] * len(asked_secrets)
        all_questions = [
            replace(questions, exploratory=none) for questions in all_questions
        ]
    for model, questions in zip(names, all_questions, strict=True):
        cli.say(*_describe_contexts(model, questions))
    cli.say(*_describe(all_questions[0], design, why_drawn, has_scores=has_scores))
    switches = {"dry_run": dry_run, "tokens_per_second": None}
    with frame.open_study(out, "secrets", switches) as study:
        if not dry_run:
            _agree(out, file, {**asdict(design), "drawn": why_drawn, **kinds})
        tables: list[pl.DataFrame] = []
        for model, questions in zip(names, all_questions, strict=True):
            folder = study.folder / frame.folder_name({"model": model})
            run_settings = settings | {"model": model}
            if dry_run:
                lines = forecast(
                    questions, run_settings, folder, study.observer, **kinds
                )
                frame.show(rows=[("run", folder.name), *lines])
                continue
            table = _read_finished(out, model)
            if table is None:
                study.observer.stage(f"{model}: {len(asked_secrets):,} secrets")
                answers = ask(questions, run_settings, folder, study.observer, **kinds)
                table = build_table([*build_rows(model, questions, answers)])
                _store(out, table)
            if not keeps_answers:
                _forget(folder)
            tables.append(table)
    if not dry_run:
        _show(pl.concat(tables), all_questions[0] if shows_secrets else None)
        cli.say(f"the table is in {out / TABLE}, without the secrets")


def _read(file: str, options: dict[str, Any]) -> list[Secret]:
    secret, context = options.pop("secret_column"), options.pop("context_column")
    text, kinds = options.pop("text_column"), options.pop("detect")
    if kinds:
        return detect_secrets(file, kinds, text)
    return read_secrets(file, secret, context)


def _build_all(
    secrets: Sequence[Secret],
    design: Design,
    models: Sequence[str],
    settings: Mapping[str, Any],
) -> list[Questions]:
    """Build the questions of each model, those of conversations by its chat template."""
    is_here = settings.get("base_url") is None
    revision = settings.get("revision")
    templates: list[ChatTemplate | None] = [None] * len(models)
    if is_here and any(secret.places for secret in secrets):
        templates = [find_template((model, revision, "model")) for model in models]
    return [build_questions(secrets, design, template) for template in templates]


def _describe_contexts(model: str, questions: Questions) -> Iterator[str]:
    """Describe how secrets of conversations are asked for."""
    if not any(secret.places for secret in questions.secrets):
        return
    way = "as plain texts: no chat template is at hand"
    if questions.by_template:
        way = "by its chat template, after what was said before"
    yield f"{model} is asked for secrets of conversations {way}"
    for reason, count in questions.refused.items():
        yield f"{count:,} contexts are left out: {reason}"


def _describe(
    questions: Questions,
    design: Design,
    why_drawn: str | None,
    *,
    has_scores: bool,
) -> list[str]:
    """Describe what is asked, and what it cannot show."""
    n_secrets = len(questions.secrets)
    n_own = questions.places["secret"].n_unique()
    counts = Counter(secret.kind for secret in questions.secrets)
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    sentences = [
        f"{n_secrets:,} different secrets ({by_kind}); {n_own:,} have a context of their"
        f" own; {questions.contexts.height:,} contexts are continued",
    ]
    n_inside = sum(
        len(secret.contexts) - len(secret.usable_contexts)
        for secret in questions.secrets
    )
    if n_inside:
        sentences.append(
            f"{n_inside:,} contexts hold their secret already, and are left out"
        )
    if why_drawn:
        sentences.append(f"that chance made the secrets is your word: {why_drawn}")
    if not has_scores:
        sentences.append(
            "without probabilities a secret is compared by the answers that have it"
        )
    is_level = [reason is None for reason in questions.exploratory]
    n_needed = count_needed(sum(is_level), design.controls)
    if n_needed > 1:
        sentences.append(
            f"with {design.controls:,} controls q <= {LEVEL:g} takes {n_needed:,} secrets"
            " that are likelier than all of theirs; more --controls find fewer ones"
        )
    return [
        *sentences,
        "while it asks, the folder holds the secrets; then they are removed",
    ]


def _agree(out: Path, file: str, design: dict[str, Any]) -> None:
    """Record which file is asked about and how; refuse a folder about another one."""
    # No hash of the content: of few or short secrets it would give them away
    stamps = []
    for path in sorted([Path(file), *Path(file).glob("**/*")]):
        if path.is_file():
            stat = path.stat()
            stamps.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    record = {"version": 1, "file": file, "files": stamps, **design}
    path = out / RECORD
    if path.exists():
        try:
            present = json.loads(path.read_text("utf-8"))
        except ValueError:
            present = None
        if not isinstance(present, dict):
            present = {}
        differing = [key for key in record if present.get(key) != record[key]]
        if differing:
            raise RunFolderError(
                f"{out} holds answers about another {differing[0]}; give another --out"
            )
    out.chmod(0o700)
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _read_finished(out: Path, model: str) -> pl.DataFrame | None:
    """Return the rows of a model that was asked before."""
    path = out / TABLE
    if not path.exists():
        return None
    rows = pl.read_parquet(path).filter(model=model)
    return rows if rows.height else None


def _store(out: Path, table: pl.DataFrame) -> None:
    path = out / TABLE
    if path.exists():
        table = pl.concat([pl.read_parquet(path), table])
    write_table(table, path)


def _forget(folder: Path) -> None:
    """Remove a run, whose prompts and answers hold the secrets."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.with_name(f"{folder.name}.keys.parquet").unlink(missing_ok=True)


def _show(table: pl.DataFrame, unmasked: Questions | None) -> None:
    """Print a line for each secret of interest first, and what may be said."""
    texts: dict[int, str] = {}
    if unmasked is not None:
        texts = {secret.row: secret.text for secret in unmasked.secrets}
    order = pl.col("verdict").replace_strict(
        ["memorised", "given back", "exploratory", "not shown", "none"],
        [*range(5)],
        return_dtype=pl.Int8,
    )
    ordered = table.sort(order, "p_value", maintain_order=True, nulls_last=True)
    has_several = table["model"].n_unique() > 1
    lines = []
    for row in ordered.head(_MOST_SHOWN).iter_rows(named=True):
        masked = write_mask(row["kind"], row["n_characters"])
        line = [row["model"]] if has_several else []
        line += [f"{row['row']:,}", texts.get(row["row"], masked), row["verdict"]]
        lines.append([*line, *_format_numbers(row)])
    numbers = ("bits", "controls", "exposure", "p", "q")
    headings = ["row", "secret", "verdict", "own", "other", "none", *numbers]
    if has_several:
        headings.insert(0, "model")
    frame.show(*headings, right=("row", *numbers), rows=lines)
    if ordered.height > _MOST_SHOWN:
        cli.say(f"and {ordered.height - _MOST_SHOWN:,} more in {TABLE}")
    cli.say(*conclusions(table))


def _format_numbers(row: dict[str, Any]) -> list[str]:
    answers = []
    for place in ("own", "other", "none"):
        came_back = row[f"{place}_likeliest"]
        text = "-" if came_back is None else ("yes" if came_back else "no")
        n_drawn = row[f"{place}_drawn"]
        answers.append(f"{text}, {n_drawn:,} drawn" if n_drawn else text)
    bits = row[f"{row['compared']}_bits"] if row["compared"] else None
    values = [
        "-" if value is None else f"{value:.1f}"
        for value in (bits, row["control_bits"], row["exposure"])
    ]
    p_values = [
        "-" if value is None else f"{value:.2g}"
        for value in (row["p_value"], row["q_value"])
    ]
    return [*answers, *values, *p_values]
