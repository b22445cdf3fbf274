"""The building of evaluation sets, and whether they can carry any conclusion."""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import dataframely as dy
import polars as pl

from mia_batch.corpus import ColumnNames
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.extras.sets.matching import (
    EXCLUDED_ABOVE,
    SetResults,
    build_length,
    read_labelled,
)
from mia_batch.observer import Observer
from mia_batch.places import is_url
from mia_batch.report.html.page import environment
from mia_batch.schemas import BuiltTests, BuiltTexts, ThrownAway
from mia_batch.tables import (
    sink,
    sync_folder,
    system_errors,
    temporary_path,
    write_text,
)

__all__ = ["SETTINGS", "BuiltSet", "build_set"]

SETTINGS: Final = ("original", "paraphrased", "concatenated")
"""What can be done to the texts of a set."""

_LEAST_WORDS = 8
_SUMMARY = "summary.json"


def _describe_length(results: SetResults, length: int) -> str:
    if length not in results.refusals:
        rows = [row for row in results.sets if row["length"] == length]
        return " ".join(_describe_set(row) for row in rows)
    sentence = results.refusals[length]
    strongest = results.before_matching.get(length)
    if strongest:
        sentence += f"; before, the blind AUC is {_format_auc(strongest)}"
    return sentence


def _describe_set(row: dict[str, Any]) -> str:
    name = f"{row['length']} words, {row['setting']}:"
    if not row["members"]:
        return f"{name} no set, because too few texts have it."
    counts = f"{row['members']:,} members, {row['nonmembers']:,} non-members"
    figures = f"blind AUC {_format_auc(row['before'])} before"
    if row["after"] is not None:
        figures += f" and {_format_auc(row['after'])} after"
    if row["outside"] is not None:
        auc = _format_auc(row["outside"])
        figures += f", {auc} to classifiers trained on held-out documents"
    if row["verdict"] == "not separable":
        conclusion = (
            f"An attack's AUC above {EXCLUDED_ABOVE:.2f} on it is not explained by what"
            " these classifiers see; smaller ones may be."
        )
    else:
        modal = "can be" if row["verdict"] == "separable" else "may be"
        conclusion = (
            f"It can carry no conclusion: its classes {modal} distinguished without a"
            " model."
        )
    return f"{name} {counts}; {figures}. {conclusion}"


def _format_auc(row: dict[str, Any]) -> str:
    return f"{row['roc_auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def _compute_key(request: dict[str, Any], documents: pl.DataFrame) -> str:
    """Compute the SHA-256 of a request and its documents."""
    content = sha256(json.dumps(request, sort_keys=True).encode())
    for row in documents.iter_rows():
        content.update(json.dumps(row, default=str).encode())
    return content.hexdigest()


def _read_summary(folder: Path, key: str) -> dict[str, Any] | None:
    """Return the summary of the sets in a folder; None where they are still to be built."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        summary: dict[str, Any] = json.loads((folder / _SUMMARY).read_text("utf-8"))
        present_key = summary["request"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{folder} is there already and holds no set that was built here; choose"
            " another name"
        ) from None
    if present_key != key:
        raise RunFolderError(
            f"{folder} holds sets of other documents or settings; delete it or choose"
            " another name"
        )
    return summary


def _write_results(
    folder: Path, request: dict[str, Any], results: SetResults, sentences: list[str]
) -> dict[str, Any]:
    """Write sets, tests and what was thrown away; return the summary."""
    thrown_away = pl.concat(results.thrown_away)
    counts = thrown_away.group_by("length", "reason").len()
    counts = counts.sort("length", "reason", nulls_last=False)
    refusals = results.refusals.items()
    summary = {
        **request,
        "sets": results.sets,
        "refused": {str(length): sentence for length, sentence in refusals},
        "sentences": sentences,
        "thrown_away": counts.to_dicts(),
    }
    tables: dict[str, tuple[pl.DataFrame, type[dy.Schema]]] = {
        name: (table, BuiltTexts) for name, table in results.texts.items()
    }
    tests = pl.DataFrame(results.tests, schema=BuiltTests.create_empty().schema)
    tables["tests"] = tests, BuiltTests
    tables["thrown-away"] = thrown_away, ThrownAway
    _write_folder(folder, tables, summary)
    return summary


def _write_folder(
    folder: Path,
    tables: Mapping[str, tuple[pl.DataFrame, type[dy.Schema]]],
    summary: dict[str, Any],
) -> None:
    """Write the folder whole, or not at all."""
    staging = temporary_path(folder)
    with system_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)  # no other process writes here
            for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)  # of a killed process
            staging.mkdir()
            for name, (table, schema) in tables.items():
                sink(table, staging / f"{name}.parquet", schema)
            template = environment().get_template("sets.md.jinja")
            text = template.render(summary=summary, figure=_format_auc)
            write_text(staging / "summary.md", text)
            write_text(staging / _SUMMARY, json.dumps(summary, indent=2) + "\n")
            staging.replace(folder)  # a folder that holds something is not replaced
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            os.close(parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSet:
    """Evaluation sets in a folder.

    Attributes
    ----------
    path
        The folder. ``SETTING-LENGTH.parquet`` is one set, an audit's input;
        ``thrown-away.parquet`` has a row for each document that is in no set, or not in
        one, with the reason; ``tests.parquet`` has every test; ``summary.json`` and
        ``summary.md`` the summary.
    summary
        What ``summary.json`` holds.
    is_new
        Whether it was built just now.
    """

    path: Path
    summary: dict[str, Any]
    is_new: bool

    @property
    def tests(self) -> pl.DataFrame:
        """Every test, before and after matching: schema `BuiltTests`."""
        return pl.read_parquet(self.path / "tests.parquet")

    @property
    def thrown_away(self) -> pl.DataFrame:
        """What is in no set, or not in one, and why: schema `ThrownAway`."""
        return pl.read_parquet(self.path / "thrown-away.parquet")

    def texts(self, length: int, setting: str = "original") -> pl.DataFrame:
        """Return one set: schema `BuiltTexts`."""
        return pl.read_parquet(self.path / f"{setting}-{length}.parquet")


def build_set(
    *,
    documents: Path | str,
    out: Path | str,
    cutoff: date | None = None,
    gap_days: int = 0,
    lengths: Sequence[int] = (32, 64, 128, 256),
    settings: Sequence[str] = ("original",),
    repair: bool = True,
    columns: ColumnNames | None = None,
    date_column: str = "date",
    source_column: str | None = None,
    paraphrase_column: str | None = None,
    seed: int = 0,
    observer: Observer | None = None,
) -> BuiltSet:
    """Build evaluation sets in the way of WikiMIA, and test whether they can carry a conclusion.

    Documents before a cutoff are members, later ones non-members; or labels say who is
    what. Copies go. At each length the classes are first distinguished by the
    classifiers of the blind baseline, which never see a model. Where they can be,
    members and non-members are paired so that they cannot, within a source, and one
    text a document; what has no partner is thrown away. The pairs are tested anew:
    within the set, in other folds that keep pairs together, and from outside, by
    classifiers trained on a third of the documents, drawn at random beforehand, that
    has no part in the matching. The verdict is the worse of both: the test within the
    set alone is too favourable.

    The same request again builds nothing. Equal input and seed give equal sets.

    Parameters
    ----------
    documents
        Documents, in any format of an audit's input; they are held in memory.
    out
        Folder of the sets; it must not exist, be empty, or hold the same sets.
    cutoff
        Members are dated before it, non-members on it or later. None: labels say it.
    gap_days
        Documents fewer days before the cutoff, or after, are left out.
    lengths
        Words of the texts; each length makes sets of its own.
    settings
        Some of ``original``; ``paraphrased``: the same words of the document's
        paraphrase; ``concatenated``: after a text of a held-out non-member, the same
        for both of a pair.
    repair
        Whether classes that can be distinguished are matched. Without it, sets are only
        tested.
    columns
        The user's names for text, identifier, member or label, and group.
    date_column
        Column of dates, such as 2023-01-31; read where a cutoff is given.
    source_column
        Column of the source; members are matched with non-members of the same one.
    paraphrase_column
        Column of paraphrases of the whole documents, for ``paraphrased``.
    seed
        Of every random choice.
    observer
        Sees what is found; by default nobody does.

    Returns
    -------
    BuiltSet
        The folder and the summary.

    Raises
    ------
    SettingsError
        If a setting is wrong, or dates and labels are both there, or neither.
    CorpusError
        If the documents cannot be read, or too few are alike at every length.
    RunFolderError
        If ``out`` holds something else, or cannot be written.

    References
    ----------
    Members before, non-members after, lengths of 32 to 256 words, paraphrases: WikiMIA, Shi et al.
    (2024), "Detecting Pretraining Data from Large Language Models", section 2.2. Concatenated texts
    are not in that paper. Why the test: Das, Zhang and Tramèr (2024), arXiv:2406.16201.
    """
    lengths = tuple(dict.fromkeys(lengths))
    settings = tuple(dict.fromkeys(settings))
    _check(out, lengths, settings, paraphrase_column, gap_days)
    observer = observer or Observer()
    folder = Path(out).absolute()
    further_columns = {
        "date": date_column if cutoff is not None else None,
        "source": source_column,
        "paraphrase": paraphrase_column,
    }
    labelled, left_out = read_labelled(
        documents,
        columns or ColumnNames(),
        further_columns,
        cutoff=cutoff,
        gap_days=gap_days,
    )
    request: dict[str, Any] = {
        "cutoff": cutoff and cutoff.isoformat(),
        "gap_days": gap_days,
        "lengths": list(lengths),
        "settings": list(settings),
        "repair": repair,
        "seed": seed,
    }
    key = _compute_key(request, labelled)
    present_summary = _read_summary(folder, key)
    if present_summary is not None:
        observer.stage(f"{out} holds the sets, which were built before")
        return BuiltSet(path=folder, summary=present_summary, is_new=False)
    n_members = int(labelled["member"].sum())
    observer.stage(
        f"{n_members:,} members and {labelled.height - n_members:,} non-members;"
        f" {left_out.height:,} documents left out"
    )
    results = SetResults(thrown_away=[left_out])
    for length in lengths:
        observer.stage(f"texts of {length:,} words: testing and matching")
        build_length(
            results, labelled, length, settings=settings, repair=repair, seed=seed
        )
    sentences = [_describe_length(results, length) for length in lengths]
    if not results.texts:
        raise CorpusError(
            f"no set can be built: {'; '.join(sentences)}. Give more documents, "
            "documents nearer to each other in time and kind, or shorter lengths"
        )
    request = {"request": key, **request}
    summary = _write_results(folder, request, results, sentences)
    return BuiltSet(path=folder, summary=summary, is_new=True)


def _check(
    folder: Path | str,
    lengths: Sequence[int],
    settings: Sequence[str],
    paraphrase_column: str | None,
    gap_days: int,
) -> None:
    if is_url(folder):
        raise SettingsError(
            f"out= is {str(folder)!r}: a set can be built on a disk only; copy it from"
            " there"
        )
    if min(lengths, default=0) < _LEAST_WORDS:
        raise SettingsError(
            f"lengths are {[*lengths]}; give one or more, of at least {_LEAST_WORDS}"
            " words each"
        )
    if not settings or not {*settings} <= {*SETTINGS}:
        raise SettingsError(
            f"settings are {[*settings]}; give some of {', '.join(SETTINGS)}"
        )
    if "paraphrased" in settings and paraphrase_column is None:
        raise SettingsError(
            "paraphrased texts need a column of paraphrases; name it with"
            " --paraphrase-column"
        )
    if gap_days < 0:
        raise SettingsError(f"gap_days is {gap_days}; it must not be negative")
