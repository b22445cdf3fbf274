"""Documents with a membership, by a cutoff of dates or by labels, and their texts of one length."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from mia_batch.corpus import read_documents
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.kernels import count_words, shared_runs
from mia_batch.schemas import ThrownAway
from mia_batch.targets import Passages, choose_windows, find_words, from_document_id, windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from pathlib import Path

    from mia_batch.corpus import ColumnNames


_RUN_WORDS = 8
_THROWN = ThrownAway.create_empty()


class Further(NamedTuple):
    """The user's names of further columns; None: there is none."""

    date: str | None
    source: str | None
    paraphrase: str | None


def thrown(documents: pl.DataFrame, reason: str, **more: pl.Expr | int | str) -> pl.DataFrame:
    """Make rows of what is thrown away, for one reason."""
    values = {
        name: each if isinstance(each, pl.Expr) else pl.lit(each) for name, each in more.items()
    }
    rows = documents.select("document_id", "member", reason=pl.lit(reason), **values)
    return pl.concat(
        [_THROWN, rows.cast({n: _THROWN.schema[n] for n in rows.columns})], how="diagonal"
    )


def read_labelled(
    path: Path | str,
    names: ColumnNames,
    further: Further,
    *,
    cutoff: date | None,
    gap_days: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read documents with ``member``, and what is thrown away at once.

    Documents: ``document_id``, ``text``, ``member``, ``group``, ``date``, ``source``,
    ``paraphrase`` and ``n_words``, in the order of the input.
    """
    rows = _read(path, names, further).with_row_index("row", offset=1)
    has_labels = rows["member"].is_not_null().any()
    if cutoff is None and not has_labels:
        raise SettingsError(
            f"{path} does not say who is a member; give --cutoff and dates, or a column of labels"
        )
    if cutoff is not None and has_labels:
        raise SettingsError(f"{path} has labels, and a cutoff is given; give one or the other")
    rows = rows.with_columns(
        pl.coalesce("document_id", pl.format("row {}", "row")),
        date=_dates(rows, further.date, path),
        n_words=count_words("text").fill_null(0),
    )
    near, unknown = pl.lit(value=False), "membership unknown"
    if cutoff is not None:
        gap, unknown = timedelta(days=gap_days), "undated"
        rows = rows.with_columns(member=pl.col("date") < cutoff)
        near = pl.col("date").is_between(cutoff - gap, cutoff + gap, closed="left")
    faults = {
        "no text": pl.col("n_words") == 0,
        unknown: pl.col("member").is_null(),
        "near the cutoff": near,
    }
    away, rows = [], rows.drop("row")
    for reason, fault in faults.items():
        is_wrong = fault.fill_null(value=False)
        away.append(thrown(rows.filter(is_wrong), reason))
        rows = rows.filter(~is_wrong)
    rows, copies = _without_copies(rows)
    return rows, pl.concat([*away, copies])


def _read(path: Path | str, names: ColumnNames, further: Further) -> pl.DataFrame:
    documents = read_documents(path, names).documents
    present = documents.collect_schema().names()
    for part, name in further._asdict().items():
        if name is not None and name not in present:
            raise CorpusError(
                f"{path} has no column {name!r}; name the {part} with --{part}-column"
            )
    columns = {
        part: pl.lit(None, pl.String) if name is None else pl.col(name)
        for part, name in further._asdict().items()
    }
    wanted = documents.select("document_id", "text", "member", "group", **columns)
    strings = pl.col("source", "paraphrase").cast(pl.String)
    return wanted.with_columns(strings).collect(engine="streaming")


def _dates(rows: pl.DataFrame, name: str | None, path: Path | str) -> pl.Series:
    found = rows["date"]
    if found.dtype.is_temporal():
        return found.cast(pl.Date)
    text = found.cast(pl.String)
    dates = text.str.head(10).str.to_date("%Y-%m-%d", strict=False)
    wrong = text.is_not_null() & (text != "") & dates.is_null()
    if (row := wrong.arg_max()) is not None and wrong[row]:
        raise CorpusError(
            f"{path}, document {row + 1}: column {name!r} is {text[row]!r}, no date; write dates "
            "as 2023-01-31, or leave them empty"
        )
    return dates


def _without_copies(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take away copies: of members before non-members, of longer documents before shorter ones.

    So a non-member that stands in a member goes: its words were there before the cutoff.
    """
    ordered = rows.with_row_index("place").sort(
        ~pl.col("member"), -pl.col("n_words").cast(pl.Int64), maintain_order=True
    )
    is_copy = pl.Series(Passages().are_copies(ordered["text"].to_list()), dtype=pl.Boolean)
    is_copy |= ~ordered["text"].is_first_distinct()
    kept, copies = ordered.filter(~is_copy), ordered.filter(is_copy)
    shared = shared_runs(
        copies["text"].str.to_lowercase(),
        kept["text"].str.to_lowercase(),
        run_words=_RUN_WORDS,
        words="unicode",
    )
    other = kept["document_id"].gather(shared["other"])
    away = thrown(
        copies.with_columns(other=other), "copy of another document", other_document=pl.col("other")
    )
    return kept.sort("place").drop("place"), away


MOST_DOCUMENTS = 1000
"""Of a class, that are compared at one length: more cost time and show no smaller differences."""

_MOST_WINDOWS = 4
"""Of a document, that are compared."""


def cut(documents: pl.DataFrame, length: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cut documents into texts of ``length`` words; give what is thrown away as well.

    Texts: the documents' columns, ``target`` (the text), ``from_word`` and ``target_id``; at most
    ``_MOST_WINDOWS`` of a document, the first always among them.
    """
    is_short = pl.col("n_words") < length
    enough = documents.filter(~is_short)
    chosen = enough.filter(
        (pl.col("document_id").hash(seed).rank("ordinal") <= MOST_DOCUMENTS).over("member")
    )
    too_many = enough.join(chosen, on="document_id", how="anti")
    away = [
        thrown(documents.filter(is_short), "too short", length=length),
        thrown(too_many, "more documents than are compared", length=length),
    ]
    found = pl.DataFrame(
        [
            (document, start, text)
            for document, text in zip(chosen["document_id"], chosen["text"], strict=True)
            for start, text in _windows(document, text, length, seed)
        ],
        schema={"document_id": pl.String, "from_word": pl.UInt32, "target": pl.String},
        orient="row",
    )
    texts = found.join(chosen.drop("text"), on="document_id", how="left", maintain_order="left")
    named = pl.format("{}/{}", "document_id", "from_word")
    return texts.with_columns(target_id=named), pl.concat(away)


def _windows(document: str, text: str, length: int, seed: int) -> Iterator[tuple[int, str]]:
    (words,) = find_words([text], "whitespace")
    found = list(windows(len(words.starts), length, None)) or [range(length)]
    later = choose_windows(len(found) - 1, _MOST_WINDOWS - 1, seed, from_document_id(document))
    for place in (0, *(1 + index for index in sorted(later))):
        start = found[place].start
        yield start, text[int(words.starts[start]) : int(words.ends[start + length - 1])]


def words_of(text: str | None, start: int, length: int) -> str | None:
    """Return words ``start`` and following; None where there are too few."""
    if text is None:
        return None
    (words,) = find_words([text], "whitespace")
    if len(words.starts) < start + length:
        return None
    return text[int(words.starts[start]) : int(words.ends[start + length - 1])]
