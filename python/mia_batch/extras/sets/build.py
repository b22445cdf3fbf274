"""Builds evaluation sets, and says whether they can carry any conclusion."""

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
    MadeSets,
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


def _sentence_of(made: MadeSets, length: int) -> str:
    if length not in made.refused:
        return " ".join(_sentence(row) for row in made.sets if row["length"] == length)
    before = made.before.get(length)
    figure = f"; before, the blind AUC is {_figure(before)}" if before else ""
    return made.refused[length] + figure


def _sentence(row: dict[str, Any]) -> str:
    what = f"{row['length']} words, {row['setting']}:"
    if not row["members"]:
        return f"{what} no set, because too few texts have it."
    kept = f"{what} {row['members']:,} members, {row['nonmembers']:,} non-members;"
    figures = f"blind AUC {_figure(row['before'])} before"
    if row["after"] is not None:
        figures += f" and {_figure(row['after'])} after"
    if row["outside"] is not None:
        figures += (
            f", {_figure(row['outside'])} to classifiers trained on held-out documents"
        )
    how = "can be" if row["verdict"] == "separable" else "may be"
    end = (
        f"It can carry no conclusion: its classes {how} distinguished without a model."
    )
    if row["verdict"] == "not separable":
        end = (
            f"An attack's AUC above {EXCLUDED_ABOVE:.2f} on it is not explained by what"
            " these classifiers see; smaller ones may be."
        )
    return f"{kept} {figures}. {end}"


def _figure(row: dict[str, Any]) -> str:
    return f"{row['roc_auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def _look(
    place: Path, request: dict[str, Any], documents: pl.DataFrame
) -> tuple[str, dict[str, Any] | None]:
    """Name a request by its SHA-256; return the summary as well where its sets are there."""
    content = sha256(json.dumps(request, sort_keys=True).encode())
    for row in documents.iter_rows():
        content.update(json.dumps(row, default=str).encode())
    key = content.hexdigest()
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return key, None
    try:
        summary = json.loads((place / _SUMMARY).read_text("utf-8"))
        known = summary["request"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{place} is there already and holds no set that was built here; choose"
            " another name"
        ) from None
    if known != key:
        raise RunFolderError(
            f"{place} holds sets of other documents or settings; delete it or choose"
            " another name"
        )
    return key, summary


def _write(
    place: Path,
    tables: Mapping[str, tuple[pl.DataFrame, type[dy.Schema]]],
    summary: dict[str, Any],
) -> None:
    work = temporary_path(place)
    with system_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(place.parent, os.O_RDONLY)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)  # no other process writes here
            for left in place.parent.glob(f".{place.name}.*.tmp"):  # by a killed one
                shutil.rmtree(left, ignore_errors=True)
            work.mkdir()
            for name, (table, schema) in tables.items():
                sink(table, work / f"{name}.parquet", schema)
            template = environment().get_template("sets.md.jinja")
            write_text(
                work / "summary.md", template.render(summary=summary, figure=_figure)
            )
            write_text(work / _SUMMARY, json.dumps(summary, indent=2) + "\n")
            work.replace(place)  # a folder that holds something is not replaced
            sync_folder(place.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)
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
    lengths, settings = tuple(dict.fromkeys(lengths)), tuple(dict.fromkeys(settings))
    _check(out, lengths, settings, paraphrase_column, gap_days)
    observer = observer or Observer()
    place = Path(out).absolute()
    further = {"date": date_column if cutoff is not None else None}
    further |= {"source": source_column, "paraphrase": paraphrase_column}
    columns = columns or ColumnNames()
    found, away = read_labelled(
        documents, columns, further, cutoff=cutoff, gap_days=gap_days
    )
    request: dict[str, Any] = {
        "cutoff": cutoff and cutoff.isoformat(),
        "gap_days": gap_days,
    }
    request |= {"lengths": list(lengths), "settings": list(settings)}
    request |= {"repair": repair, "seed": seed}
    key, there = _look(place, request, found)
    if there is not None:
        observer.stage(f"{out} holds the sets, which were built before")
        return BuiltSet(path=place, summary=there, is_new=False)
    members = int(found["member"].sum())
    observer.stage(
        f"{members:,} members and {found.height - members:,} non-members;"
        f" {away.height:,} documents left out"
    )
    made = MadeSets(away=[away])
    for length in lengths:
        observer.stage(f"texts of {length:,} words: testing and matching")
        build_length(made, found, length, settings=settings, repair=repair, seed=seed)
    sentences = [_sentence_of(made, length) for length in lengths]
    if not made.texts:
        raise CorpusError(
            f"no set can be built: {'; '.join(sentences)}. Give more documents, "
            "documents nearer to each other in time and kind, or shorter lengths"
        )
    away = pl.concat(made.away)
    tests = pl.DataFrame(made.tests, schema=BuiltTests.create_empty().schema)
    counts = (
        away.group_by("length", "reason")
        .len()
        .sort("length", "reason", nulls_last=False)
    )
    summary = {"request": key, **request, "sets": made.sets}
    summary["refused"] = {
        str(length): reason for length, reason in made.refused.items()
    }
    summary |= {"sentences": sentences, "thrown_away": counts.to_dicts()}
    tables: dict[str, tuple[pl.DataFrame, type[dy.Schema]]] = {
        name: (table, BuiltTexts) for name, table in made.texts.items()
    }
    tables |= {"tests": (tests, BuiltTests), "thrown-away": (away, ThrownAway)}
    _write(place, tables, summary)
    return BuiltSet(path=place, summary=summary, is_new=True)


def _check(
    out: Path | str,
    lengths: Sequence[int],
    settings: Sequence[str],
    paraphrase_column: str | None,
    gap_days: int,
) -> None:
    if is_url(out):
        raise SettingsError(
            f"out= is {str(out)!r}: a set can be built on a disk only; copy it from"
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
