"""The input, and the texts that help to answer, each with its role."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.attacks import names
from mia_batch.corpus import (
    ColumnNames,
    Corpus,
    canary_documents,
    find_files,
    read_canaries,
    read_documents,
)
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.metrics.slices import find_slices
from mia_batch.schemas import Documents
from mia_batch.targets import build_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mia_batch.settings import Settings
    from mia_batch.targets import TargetPlan

__all__ = ["Corpora", "check_paths", "open_corpora"]

_ROLES = {"non_members": "non_member", "calibration": "calibration", "canaries": "canary"}
"""Settings that name texts which help to answer, and the role of these texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """Every text of a run.

    Attributes
    ----------
    input
        The texts that are asked about.
    helping
        The texts that help to answer, by role.
    """

    input: Corpus
    helping: Mapping[str, Corpus]

    def digests(self) -> dict[str, str]:
        """Hash the content of the texts that help.

        Returns
        -------
        dict
            SHA-256 by role.

        Raises
        ------
        CorpusError
            If a file can no longer be read.
        """
        return {role: corpus.digest() for role, corpus in self.helping.items()}

    def targets(self, plan: TargetPlan) -> pl.LazyFrame:
        """Cut all texts into targets: those of the input first, then role by role.

        Parameters
        ----------
        plan
            How to cut. Canaries are not cut into windows.

        Returns
        -------
        LazyFrame
            The targets table with the input's further columns, which are null where other texts
            lack them. It is built anew, in batches, each time it is collected.
        """
        asked = build_targets(self.input.documents, plan)
        if not self.helping:
            return asked
        schema = self.input.documents.collect_schema()
        whole = replace(plan, window_words=None, stride=None)
        built = [asked]
        for role, corpus in self.helping.items():
            documents = _with_columns(_labelled(corpus.documents, role), schema)
            built.append(build_targets(documents, whole if role == "canary" else plan, role=role))

        def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
            for targets in built:
                yield from targets.collect_batches(maintain_order=True)

        return tables.generate(asked.collect_schema(), frames)


def check_paths(settings: Settings) -> None:
    """Check that the input and the texts that help are where the settings say; none is read.

    Canaries, which are few, are checked as they are read.

    Parameters
    ----------
    settings
        Their files.

    Raises
    ------
    CorpusError
        If there is no such file, or none of a known kind.
    """
    for path in (settings.input, settings.non_members, settings.calibration):
        if path is not None:
            find_files(path)


def open_corpora(settings: Settings) -> Corpora:
    """Read and check the input and the texts that help to answer.

    Parameters
    ----------
    settings
        Their files, and the names of the input's columns. The others have the same, but need no
        membership where their role says it.

    Returns
    -------
    Corpora
        All documents, found right.

    Raises
    ------
    CorpusError
        If a file cannot be read as a corpus (the message names file, row and column), or a text
        that helps is null or has another membership than its role needs.
    SettingsError
        If there is no column that metrics are to be sliced by, or its type makes no slices.
    RequestError
        If it has too many values.
    """
    columns = ColumnNames(
        text=settings.text_column,
        document_id=settings.document_id_column,
        member=settings.member_column,
        label=settings.label_column,
        group=settings.group_column,
        prefix=settings.prefix_column,
        reference=settings.reference_column,
    )
    taken = frozenset(names())
    helping = {}
    for setting, role in _ROLES.items():
        path = getattr(settings, setting)
        if path is None:
            continue
        if role == "canary":
            helping[role] = _open_canaries(path)
            continue
        wanted = columns if role == "calibration" else replace(columns, member=None, label=None)
        helping[role] = read_documents(path, wanted, reserved=taken)
        _check_rows(helping[role], role, f"setting {setting!r}", path)
    asked = read_documents(settings.input, columns, reserved=taken)
    corpora = Corpora(input=asked, helping=helping)
    _check_slices(settings.slice_by, corpora)
    return corpora


def _check_slices(columns: tuple[str, ...], corpora: Corpora) -> None:
    """Refuse what no slices can be made of, before there are scores to slice."""
    asked = corpora.input.documents.drop("text", "prefix", "reference")
    schema = asked.collect_schema()
    for column in columns:
        if column not in schema:
            msg = (
                f"setting 'slice_by': the input has no column {column!r}, only {', '.join(schema)}"
            )
            raise SettingsError(msg)
        if schema[column].is_nested() or schema[column] == pl.Binary:
            msg = (
                f"setting 'slice_by': column {column!r} holds {schema[column]}, which makes no "
                "slices; name a column of strings, numbers, dates or truth values"
            )
            raise SettingsError(msg)
    if columns:
        labelled = [asked.filter(pl.col("member").is_not_null())]
        if "non_member" in corpora.helping:
            others = corpora.helping["non_member"].documents
            labelled.append(_with_columns(_labelled(others, "non_member"), schema))
        find_slices(pl.concat(labelled), columns)


def _check_rows(corpus: Corpus, role: str, setting: str, path: str) -> None:
    faults = [(pl.col("text").is_null(), "rows", "have no text; leave them out")]
    if role == "non_member":
        faults.append((pl.col("member"), "texts", "are labelled as members; leave them out"))
    if role == "calibration":
        faults.append(
            (pl.col("member").is_null(), "texts", "have no membership; label or remove them")
        )
    for wrong, rows, what in faults:
        n_wrong = corpus.documents.select(wrong.sum()).collect(engine="streaming").item()
        if n_wrong:
            msg = f"{setting}: {n_wrong:,} {rows} of {path} {what}"
            raise CorpusError(msg)


def _open_canaries(path: str) -> Corpus:
    sets = read_canaries(Path(path))
    documents = canary_documents(sets)
    files = find_files(path).files
    return Corpus(documents=documents.lazy(), files=files, ignored=(), n_documents=documents.height)


def _labelled(documents: pl.LazyFrame, role: str) -> pl.LazyFrame:
    """Put in what the role says of the membership."""
    known = pl.lit(value=False) if role == "non_member" else pl.col("member")
    return documents.with_columns(member=known)


def _with_columns(documents: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
    """Keep the columns of a schema; further ones that are missing or of another type are null."""
    found = documents.collect_schema()
    own = Documents.column_names()
    return documents.select(
        pl.col(name) if name in own or found.get(name) == dtype else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )
