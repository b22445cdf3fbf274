"""Texts of one length: the windows of each document that has so many words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.building.documents import thrown
from mia_batch.targets.choice import choose_windows
from mia_batch.targets.cut import windows
from mia_batch.targets.identity import from_document_id
from mia_batch.targets.words import find_words

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MOST_DOCUMENTS", "cut", "words_of"]

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
        stop = start + length - 1
        yield start, text[int(words.starts[start]) : int(words.ends[stop])]


def words_of(text: str | None, start: int, length: int) -> str | None:
    """Return words ``start`` and following; None where there are too few."""
    if text is None:
        return None
    (words,) = find_words([text], "whitespace")
    if len(words.starts) < start + length:
        return None
    return text[int(words.starts[start]) : int(words.ends[start + length - 1])]
