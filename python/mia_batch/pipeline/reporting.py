"""A run's report: what it shows is handed on from the run's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mia_batch.errors import RunFolderError
from mia_batch.pipeline.choice import verdict_plan
from mia_batch.pipeline.custody import described, record_file
from mia_batch.pipeline.run import PARTS, TABLES, Run
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.report.html import Contents, as_csv, as_markdown, render
from mia_batch.settings import Settings, stored_settings
from mia_batch.tables import write_text

Format = Literal["html", "md", "csv"]


FORMATS = {"html": render, "md": as_markdown, "csv": as_csv}
REPORT = "report.html"


def report_of(run: Run, kind: Format = "html") -> str:
    """Render a finished run's report: a page, or its conclusions and table of documents as text.

    Raises `RunFolderError` if the folder holds no run, or one without scores.
    """
    return FORMATS[kind](_contents(run))


def write_report(run: Run) -> Path:
    """Write a finished run's page into its folder, and record its hash."""
    path = run.folder / REPORT
    write_text(path, report_of(run))
    record_file(run, REPORT)
    return path


def _contents(run: Run) -> Contents:
    manifest = run.manifest
    if "verdicts" not in manifest.made:
        raise RunFolderError(
            f"{run.folder} is not finished; give the audit's command again, then ask for a report"
        )
    settings = stored_settings(manifest.settings)
    stored = json.loads((run.folder / "run.json").read_text("utf-8"))
    tables = {name: run.scan(name) for name in (*TABLES, *PARTS) if run.path(name).exists()}
    attacks = manifest.made["scores"]["attacks"]
    return Contents(
        manifest=stored,
        tables=tables,
        conclusions=[*conclusions(run, settings, attacks)],
        primary=verdict_plan(settings, attacks).primary,
        command=shlex.join(_command(settings)),
        stamps=described(run.folder, root) if (root := manifest.custody.get("root")) else "",
        meanings={
            name: (schema.__doc__ or "").partition("\n")[0]
            for name, schema in (TABLES | PARTS).items()
        },
    )


def _command(settings: Settings) -> Iterator[str]:
    """Yield the words of the command with these settings, less those at their defaults."""
    yield "mia-batch"
    for name, value in settings.model_dump(mode="json").items():
        field, option = Settings.model_fields[name], f"--{name.replace('_', '-')}"
        if name == "config":  # what the file set follows
            continue
        if getattr(settings, name) == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, bool):
            yield option if value else option.replace("--", "--no-", 1)
        elif isinstance(value, dict):
            for key, each in value.items():
                yield from (option, f"{key}={json.dumps(each)}")
        elif isinstance(value, list):
            yield from (option, ",".join(map(str, value)))
        elif value is not None:
            yield from (option, str(value))
