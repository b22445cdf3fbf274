"""The user's texts, and who learns which: members by coin, and the rest for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.files import find_files
from mia_batch.corpus.formats import FORMATS
from mia_batch.corpus.formats.lines import Reading
from mia_batch.errors import CorpusError
from mia_batch.finetuning.halves import in_half
from mia_batch.inversion.parting import part
from mia_batch.privacy.glue import GLUE, glue_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

__all__ = ["learnt_by", "read_texts"]

_FEWEST = 20


def read_texts(
    data: Path | str, *, text: str, target: str | None, group: str | None, share: float, seed: int
) -> pl.DataFrame:
    """Read texts: ``id``, ``text``, ``target``, ``group``, ``part`` and ``member``.

    ``part`` is ``audited`` for a share of the texts, else ``auxiliary``: of which no model learns
    anything, and on which it is tested (see `mia_batch.inversion.parting.part`). Of audited ones
    ``member`` says whether the target learns them. Equal texts are in one group, with all of their
    groups.

    Raises `CorpusError` if a column is missing, a row lacks its text or target, or there are too
    few.
    """
    rows = _rows(data, [name for name in (text, target, group) if name is not None])
    none = pl.lit(None, pl.String)
    texts = rows.select(
        text=pl.col(text).cast(pl.String),
        target=none if target is None else pl.col(target).cast(pl.String),
        group=pl.col(text if group is None else group).cast(pl.String).fill_null(pl.col(text)),
    ).with_row_index("id")
    needed = ["text", *(["target"] if target else [])]
    for name in needed:
        empty = texts.filter(pl.col(name).fill_null("").str.strip_chars() == "")
        if empty.height:
            column = {"text": text, "target": target}[name]
            others = f" and {empty.height - 1:,} others" if empty.height > 1 else ""
            msg = (
                f"{data}: row {empty['id'][0] + 1:,}{others}: nothing in column {column!r}; leave "
                "such rows out"
            )
            raise CorpusError(msg)
    if texts["group"].n_unique() < _FEWEST:
        n = texts["group"].n_unique()
        msg = f"{data} has {n} different texts or groups; give at least {_FEWEST}"
        raise CorpusError(msg)
    dealt = part(texts, 1 - share, seed).with_columns(pl.col("group").min().over("cluster"))
    names = dealt["group"].to_list()
    return dealt.select(
        pl.all().exclude("cluster", "auxiliary"),
        part=pl.when("auxiliary").then(pl.lit("auxiliary")).otherwise(pl.lit("audited")),
        member=pl.when(~pl.col("auxiliary")).then(pl.Series(in_half(names, 0, seed))),
    )


def _rows(data: Path | str, wanted: Sequence[str]) -> pl.DataFrame:
    """Read some columns of files, or of a task of GLUE."""
    if str(data).startswith(GLUE):
        rows = glue_rows(str(data))
        _check(data, rows.columns, wanted)
        return rows
    source = find_files(data)
    reader = FORMATS[source.kind]
    reading = Reading()
    columns = reader.read_schema(source.files, reading)
    _check(data, columns, wanted)
    found = [*reader.read_rows(source.files, columns, [*dict.fromkeys(wanted)], reading)]
    if not any(rows.height for rows in found):
        msg = f"{data} has no rows; give at least {_FEWEST} texts"
        raise CorpusError(msg)
    return pl.concat(found)


def _check(data: Path | str, columns: Collection[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in columns:
            there = ", ".join(map(repr, columns))
            msg = f"{data} has no column {name!r}, only {there}; name the one that is meant"
            raise CorpusError(msg)


def learnt_by(texts: pl.DataFrame, shadow: int | None, seed: int) -> pl.DataFrame:
    """Return what a model learns of the audited texts: the target, or a shadow model.

    Shadow models come in pairs that share the texts out between them; the target's own half is the
    first of another pair.
    """
    audited = texts.filter(part="audited")
    if shadow is None:
        return audited.filter("member")
    return audited.filter(pl.Series(in_half(audited["group"].to_list(), shadow + 2, seed)))
