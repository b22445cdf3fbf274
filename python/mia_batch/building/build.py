"""Builds evaluation sets, and says whether they can carry any conclusion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from mia_batch.building.documents import Further, read_labelled
from mia_batch.building.folder import look, write
from mia_batch.building.one_length import build_length
from mia_batch.building.summary import sentence_of, summarise
from mia_batch.corpus import ColumnNames
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.observer import Observer
from mia_batch.schemas import BuiltTests
from mia_batch.storage import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

__all__ = ["SETTINGS", "BuiltSet", "build_set"]

SETTINGS: Final = ("original", "paraphrased", "concatenated")
"""What can be done to the texts of a set."""

_LEAST_WORDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSet:
    """Evaluation sets in a folder.

    Attributes
    ----------
    path
        The folder. ``SETTING-LENGTH.parquet`` is one set, an audit's input; ``thrown-away.parquet``
        has a row for each document that is in no set, or not in one, with the reason;
        ``tests.parquet`` has every test; ``summary.json`` and ``summary.md`` the summary.
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

    Documents before a cutoff are members, later ones non-members; or labels say who is what. Copies
    go. At each length the classes are first told apart by the classifiers of the blind baseline,
    which never see a model. Where they can be, members and non-members are paired so that they
    cannot, within a source, and one text a document; what has no partner is thrown away. The pairs
    are tested anew: within the set, in other folds that keep pairs together, and from outside, by
    classifiers trained on a third of the documents, drawn at random beforehand, that has no part in
    the matching. The verdict is the worse of both: the test within the set alone is too favourable.

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
        Some of ``original``; ``paraphrased``: the same words of the document's paraphrase;
        ``concatenated``: after a text of a held-out non-member, the same for both of a pair.
    repair
        Whether classes that can be told apart are matched. Without it, sets are only tested.
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
        Is told what is found; by default nobody is.

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
    date_of = date_column if cutoff is not None else None
    further = Further(date_of, source_column, paraphrase_column)
    found, away = read_labelled(
        documents, columns or ColumnNames(), further, cutoff=cutoff, gap_days=gap_days
    )
    request = {
        "cutoff": None if cutoff is None else cutoff.isoformat(),
        "gap_days": gap_days,
        "lengths": list(lengths),
        "settings": list(settings),
        "repair": repair,
        "seed": seed,
    }
    key, there = look(place, request, found)
    if there is not None:
        observer.stage(f"{out} holds the sets, which were built before")
        return BuiltSet(path=place, summary=there, is_new=False)
    members = int(found["member"].sum())
    observer.stage(
        f"{members:,} members and {found.height - members:,} non-members; {away.height:,} "
        "documents left out"
    )
    made = []
    for length in lengths:
        observer.stage(f"texts of {length:,} words: testing and matching")
        made.append(build_length(found, length, settings=settings, repair=repair, seed=seed))
    if not any(built.texts.height for each in made for built in each.built):
        raise CorpusError(_nothing(map(sentence_of, made)))
    away = pl.concat([away, *(rows for each in made for rows in each.away)])
    tests = pl.DataFrame(
        [row for each in made for row in each.tests], schema=BuiltTests.create_empty().schema
    )
    summary = {"request": key} | request | summarise(made, away)
    write(place, made, tests, away, summary)
    return BuiltSet(path=place, summary=summary, is_new=True)


def _nothing(reasons: Iterable[str]) -> str:
    return (
        f"no set can be built: {'; '.join(reasons)}. Give more documents, documents nearer to each "
        "other in time and kind, or shorter lengths"
    )


def _check(
    out: Path | str,
    lengths: Sequence[int],
    settings: Sequence[str],
    paraphrase_column: str | None,
    gap_days: int,
) -> None:
    if is_url(out):
        msg = f"'out' is {str(out)!r}: a set can be built on a disk only; copy it from there"
        raise SettingsError(msg)
    if min(lengths, default=0) < _LEAST_WORDS:
        msg = f"lengths are {[*lengths]}; give one or more, of at least {_LEAST_WORDS} words each"
        raise SettingsError(msg)
    if not settings or not {*settings} <= {*SETTINGS}:
        msg = f"settings are {[*settings]}; give some of {', '.join(SETTINGS)}"
        raise SettingsError(msg)
    if "paraphrased" in settings and paraphrase_column is None:
        msg = "paraphrased texts need a column of paraphrases; name it with --paraphrase-column"
        raise SettingsError(msg)
    if gap_days < 0:
        msg = f"gap_days is {gap_days}; it must not be negative"
        raise SettingsError(msg)
