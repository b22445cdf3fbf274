"""An audit of privacy: tunes a model in several ways, attacks each, and sets them side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.extras.privacy.data import (
    CanaryFormat,
    Inserted,
    draw,
    paper_formats,
    read_texts,
    words_of,
)
from mia_batch.extras.privacy.plan import GENERATING, Plan, form_of
from mia_batch.extras.privacy.variant import VariantAudit, write_table
from mia_batch.extras.tune.making import locked, made_of, why_no_finetuning
from mia_batch.models.weights import identify_model
from mia_batch.observer import Observer
from mia_batch.report.html.page import environment
from mia_batch.report.html.plots import line, quantity, series, svg
from mia_batch.report.html.tables import NO_VALUE, interval
from mia_batch.tables import system_errors, write_text

__all__ = ["Privacy", "audit_privacy"]

_GUESSING = 0.5  # its area under the curve
_TABLES = ("summary", "metrics", "exposures", "inversion")


def page_of(base: str, data: str, plan: Plan, tables: Mapping[str, pl.DataFrame]) -> str:
    exposures = tables.get("exposures")
    template = environment().get_template("privacy.html.jinja")
    return template.render(
        base=base,
        data=data,
        plan=plan.described(),
        rows=tables["summary"].to_dicts(),
        conclusions=[*conclusions(tables["summary"])],
        interval=interval,
        plot=None if exposures is None else _plot(exposures),
    )


def conclusions(summary: pl.DataFrame) -> Iterator[str]:
    """Yield what may be concluded; a privacy that was not kept comes first."""
    rows = summary.to_dicts()
    for row in rows:
        if row["is_contradicted"]:
            shown = max(row["epsilon_bound"] or 0, row["epsilon_bound_by_rates"] or 0)
            yield (
                f"{row['variant']}: the training says epsilon {row['epsilon']:.2f}, and an attack "
                f"shows at least {shown:.2f}: it does not keep the privacy that it says."
            )
    for row in rows:
        yield f"{row['variant']}: {'; '.join(_parts(row))}."


def _parts(row: dict[str, Any]) -> Iterator[str]:
    if row["auc"] is None:
        yield "how well members are told cannot be said from so few texts"
    else:
        are = "are" if (row["auc_low"] or 0) > _GUESSING else "are not shown to be"
        limits = [row["auc_low"], row["auc_high"]]
        low, high = (NO_VALUE if each is None else f"{each:.3f}" for each in limits)
        yield f"members {are} told from others (AUC {row['auc']:.3f}, {low} to {high})"
    if row["mean_exposure"] is not None:
        yield (
            f"canaries have a mean exposure of {row['mean_exposure']:.2f} bits, "
            f"{row['unlearnt_exposure']:.2f} without any memory"
        )
    if row["epsilon_reason"] is not None:
        yield f"no epsilon is given: {row['epsilon_reason']}"
    elif row["epsilon"] is not None and row["epsilon_bound"] is not None:
        yield (
            f"its accountant says epsilon {row['epsilon']:.2f}, attacks show at least "
            f"{row['epsilon_bound']:.2f} and could have shown {row['epsilon_ceiling']:.2f} at most"
        )


def _plot(exposures: pl.DataFrame) -> Markup:
    """Mean exposure over repetitions, with the spread over formats, of each variant."""
    mean, half = pl.col("mean"), pl.col("half")
    points = (
        exposures.drop_nulls("exposure")
        .group_by("variant", "repetitions", maintain_order=True)
        .agg(
            mean=pl.col("exposure").mean(),
            half=1.96 * pl.col("exposure").std().fill_null(0) / pl.len().sqrt(),
        )
        .with_columns(low=mean - half, high=mean + half)
        .sort("variant", "repetitions")
    )
    x = {"x": quantity("repetitions", "Times that a canary was learnt")}
    y = {"y": quantity("mean", "Exposure, bits")}
    band = {"y": quantity("low", "Exposure, bits"), "y2": {"field": "high"}}
    unlearnt = exposures.select("repetitions", mean="unlearnt_exposure").unique()
    return svg(
        line(points, x | band | series("variant"), type="area", opacity=0.15),
        line(points, x | y | series("variant"), strokeWidth=2),
        line(unlearnt.sort("repetitions"), x | y, strokeDash=[1, 4], stroke="currentColor"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What an audit of privacy found.

    Attributes
    ----------
    summary
        A row for each way in which the model was tuned; `mia_batch.extras.privacy.measures` names
        the columns.
    metrics
        How well members are told from others: rows of the metrics table, with ``variant``.
    exposures
        A row for each canary that a model learnt; None where no canaries are asked for, or the
        model generates nothing.
    inversion
        Figures of the inversion of embeddings, with ``variant``; None where it is not asked for.
    page
        The report.
    """

    summary: pl.DataFrame
    metrics: pl.DataFrame
    exposures: pl.DataFrame | None
    inversion: pl.DataFrame | None
    page: Path


def audit_privacy(
    *,
    base: str,
    data: Path | str,
    out: Path | str,
    plan: Plan,
    revision: str | None = None,
    text_column: str = "text",
    target_column: str | None = None,
    group_column: str | None = None,
    formats: Sequence[CanaryFormat] | None = None,
    observer: Observer | None = None,
) -> Privacy:
    """Tune a model with and without differential privacy, and attack each (PrivLM-Bench, table 3).

    Of each variant a target learns a random half of the audited texts, shadow models learn other
    halves, and one more model learns canaries beside the target's texts. Everything made is kept in
    ``out``; the same request again goes on where it stopped.

    Parameters
    ----------
    base
        Model to tune, a folder or a hub name: an encoder, a decoder or an encoder-decoder.
    data
        Texts, in any format of an audit's input, or a task of GLUE, such as ``glue:sst2``; one
        text is one record whose privacy is asked about.
    out
        Folder of models and tables.
    plan
        What is made.
    revision
        Hub revision of the base.
    text_column
        Column of the texts.
    target_column
        Column of what is said of a text: its label, which classification needs, or what an
        encoder-decoder answers.
    group_column
        Column of texts that belong together, such as one person's: all are learnt, or none.
    formats
        Formats of canaries; by default the paper's seven.
    observer
        Is told what is being done.

    Returns
    -------
    Privacy
        The tables, and where the report is.

    Raises
    ------
    RequestError
        If data, base or plan do not fit.
    RunFolderError
        If ``out`` is of another request, in use, or cannot be written.
    EngineError
        If a training fails; given again, the same request goes on.
    """
    if reason := why_no_finetuning(with_privacy=any(each is not None for each in plan.epsilons)):
        raise SettingsError(reason)
    say = (observer or Observer()).stage
    texts = read_texts(
        data,
        text=text_column,
        target=target_column,
        group=group_column,
        share=plan.audited,
        seed=plan.seed,
    )
    labels = _labels(texts, plan, target_column)
    forms = {each: form_of(base, revision, plan.task, each.tuning) for each in plan.variants()}
    if "seq2seq" in forms.values() and target_column is None:
        raise SettingsError(
            f"{base!r} is an encoder-decoder; name the column of its answers with --target-column"
        )
    inserted: list[Inserted] = []
    if plan.canaries and any(form in GENERATING for form in forms.values()):
        inserted = draw(formats or paper_formats(words_of(base, revision), plan.seed), plan)
    folder = Path(out).absolute()
    request: dict[str, object] = {
        "base": identify_model(base, revision, "any").digest,
        "texts": _digest(value for row in texts.iter_rows() for value in row),
        "plan": plan.described(),
        "canaries": _digest(each.format.text(n) for each in inserted for n in each.numbers),
    }
    audits = [
        VariantAudit(
            base=base,
            revision=revision,
            folder=folder,
            texts=texts,
            plan=plan,
            variant=variant,
            form=form,
            labels=labels,
            inserted=inserted if form in GENERATING else [],
            say=say,
        )
        for variant, form in forms.items()
    ]
    with _of_request(folder, request):
        tables = _tables(audits, say)
        for name, table in tables.items():
            write_table(table, folder / f"{name}.parquet")
        page = folder / "privacy.html"
        write_text(page, page_of(base, str(data), plan, tables))
    return Privacy(
        summary=tables["summary"],
        metrics=tables["metrics"],
        exposures=tables.get("exposures"),
        inversion=tables.get("inversion"),
        page=page,
    )


def _tables(audits: Sequence[VariantAudit], say: Callable[[str], None]) -> dict[str, pl.DataFrame]:
    """Make all models, attack them, and put the tables of the variants together."""
    models = {
        name: made_of(making, path, partial(_say_of, say, name))
        for audit in audits
        for name, making, path in audit.wanted()
    }
    found = [audit.tables(models) for audit in audits]
    return {
        name: pl.concat(some, how="diagonal_relaxed")
        for name in _TABLES
        if (some := [each[name] for each in found if name in each])
    }


def _say_of(say: Callable[[str], None], name: str, sentence: str) -> None:
    say(f"{name}: {sentence}")


def _digest(values: Iterable[object]) -> str:
    found = sha256()
    for value in values:
        found.update(json.dumps(value).encode() + b"\n")
    return found.hexdigest()


def _labels(texts: pl.DataFrame, plan: Plan, column: str | None) -> tuple[str, ...]:
    if plan.task == "generation":
        return ()
    if column is None:
        raise SettingsError(
            "classification needs the labels: name their column with --target-column"
        )
    labels = tuple(sorted(texts["target"].unique()))
    if not 2 <= len(labels) <= 100:
        raise SettingsError(
            f"column {column!r} has {len(labels):,} different labels; give 2 to 100"
        )
    return labels


@contextmanager
def _of_request(folder: Path, request: dict[str, object]) -> Iterator[None]:
    """Hold a folder that is new, or of the same request."""
    path = folder / "request.json"
    wanted = json.dumps(request, indent=2, sort_keys=True)
    with system_errors(folder):
        if folder.is_dir() and any(folder.iterdir()) and not (folder / ".lock").exists():
            raise RunFolderError(f"{folder} holds something else; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
    busy = f"{folder} is in use by another process; wait for it, or name another folder"
    with locked(folder / ".lock", 0, busy):
        there = json.loads(path.read_text("utf-8") if path.exists() else wanted)
        asked = json.loads(wanted)
        if differing := [name for name, value in asked.items() if there.get(name) != value]:
            raise RunFolderError(
                f"{folder} is of another request: {' and '.join(differing)} differ; name another "
                "folder, or delete it"
            )
        if not path.exists():
            write_text(path, wanted)
        yield
