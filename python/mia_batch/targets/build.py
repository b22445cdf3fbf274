"""Documents to targets: windows, parts and names, a few megabytes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.schemas import Documents, Targets
from mia_batch.tables import check, generate, in_batches
from mia_batch.targets.choice import choose_windows
from mia_batch.targets.copies import Passages
from mia_batch.targets.cut import cut_documents
from mia_batch.targets.identity import from_document_id, from_text, target_id, text_digest
from mia_batch.targets.ordinals import Ordinals
from mia_batch.targets.reasons import COPY
from mia_batch.targets.split import Split, as_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.targets.plan import TargetPlan

__all__ = ["build_targets"]

_PIECE_BYTES = 2 << 20  # of text at a time, in and out
_Row = tuple[int, int, str, Split]  # document, window_index, target_id


def build_targets(
    documents: pl.LazyFrame, plan: TargetPlan, *, role: str = "target"
) -> pl.LazyFrame:
    """Cut documents into targets.

    Parameters
    ----------
    documents
        A table of the schema `Documents`; further columns pass through.
    plan
        How to cut.
    role
        Why these texts are there, one of `Role`.

    Returns
    -------
    LazyFrame
        The columns of `Targets`, then the further ones; rows in the order of the documents, then
        of their windows. Every document has at least one row; what cannot be split has null for
        prefix and reference, and a reason. Windows of role ``target`` that repeat earlier ones
        (are equal to one, white space aside, or have at least 70 % of their runs of 8 words in
        them) have the role ``copy``, a reason and no text. It is built anew, in batches, each
        time it is collected.

    Raises
    ------
    SchemaMismatchError
        If ``documents`` is no documents table.
    SettingsError
        When collected, if windows are asked for and a document has its own prefix and reference,
        or some windows of a document that has neither identifier nor group.
    """
    check(documents, Documents, what="documents")
    types = documents.collect_schema()
    further = {name: types[name] for name in types if name not in Documents.column_names()}
    schema = pl.Schema({**Targets.create_empty().schema, **further})

    def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
        ordinals, copies = Ordinals(), _Copies(plan)
        for batch in documents.collect_batches(maintain_order=True):
            if plan.window is not None:
                _refuse_given_parts(batch)
            if plan.max_windows_per_document is not None:
                _refuse_nameless(batch)
            for piece in _pieces(batch):
                names = _identities(piece, ordinals)
                for rows in _rows(piece, names, plan):
                    if role == "target":
                        copies.mark(rows)
                    if chosen := [row for row in rows if _is_chosen(row, names, plan)]:
                        yield _frame(chosen, piece, schema, role)

    return generate(schema, frames)


def _refuse_given_parts(batch: pl.DataFrame) -> None:
    if batch["prefix"].is_not_null().any():
        msg = (
            "a window is set but the corpus has its own prefix and reference; "
            "leave out one or the other"
        )
        raise SettingsError(msg)


def _refuse_nameless(batch: pl.DataFrame) -> None:
    """Refuse documents whose windows nothing would hold together once some are missing."""
    if batch.select(pl.all_horizontal(pl.col("document_id", "group").is_null()).any()).item():
        msg = (
            "max_windows_per_document is set but a document has neither document_id nor group; "
            "give documents one of them"
        )
        raise SettingsError(msg)


def _pieces(batch: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a batch into slices of a few megabytes, or of one document."""
    sizes = pl.sum_horizontal(pl.col("text", "prefix", "reference").str.len_bytes())
    ends = batch.select((sizes + 1).cast(pl.Int64).cum_sum() // _PIECE_BYTES).to_series()
    start = 0
    for length in ends.rle().struct.field("len"):
        yield batch.slice(start, length)
        start += length


def _identities(piece: pl.DataFrame, ordinals: Ordinals) -> list[bytes]:
    """Return the identity of each document; those without an identifier are counted."""
    identified = piece["document_id"].to_list()
    digests = [
        text_digest(text)
        for text, document_id in zip(piece["text"], identified, strict=True)
        if document_id is None
    ]
    keys = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
    anonymous = map(from_text, digests, ordinals.number(keys).tolist())
    return [
        next(anonymous) if document_id is None else from_document_id(document_id)
        for document_id in identified
    ]


def _rows(piece: pl.DataFrame, identities: list[bytes], plan: TargetPlan) -> Iterator[list[_Row]]:
    """Return all windows of a piece, a few megabytes of text at a time."""
    cut = cut_documents(piece["text"], piece["prefix"], piece["reference"], plan)
    rows = (
        (document, window_index, target_id(identities[document], window_index, split.target), split)
        for document, splits in enumerate(cut)
        for window_index, split in enumerate(splits)
    )
    return in_batches(rows, lambda row: len(row[3].target or ""), _PIECE_BYTES)


class _Copies:
    """Takes the text from windows that came before; a document that is one target is no window."""

    def __init__(self, plan: TargetPlan) -> None:
        self._equal = Ordinals()
        overlap = plan.stride is not None and plan.stride < (plan.window or 0)
        self._alike = None if overlap else Passages()  # overlapping ones are alike as it is

    def mark(self, rows: list[_Row]) -> None:
        """Put the reason in place of each text that is a copy."""
        windows = [place for place, row in enumerate(rows) if row[3].n_windows > 1]
        texts = [" ".join((rows[place][3].target or "").split()) for place in windows]
        keys = np.frombuffer(b"".join(text_digest(text)[:8] for text in texts), "<u8")
        is_copy = self._equal.number(keys) > 0
        if self._alike is not None:
            is_copy |= self._alike.are_copies(texts)
        for place in np.array(windows, np.int64)[is_copy].tolist():
            document, window_index, name, split = rows[place]
            rows[place] = (document, window_index, name, as_copy(split))


def _is_chosen(row: _Row, identities: list[bytes], plan: TargetPlan) -> bool:
    document, window_index, _, split = row
    most = plan.max_windows_per_document
    if most is None:
        return True
    return window_index in choose_windows(split.n_windows, most, plan.seed, identities[document])


def _frame(rows: list[_Row], piece: pl.DataFrame, schema: pl.Schema, role: str) -> pl.DataFrame:
    documents, window_indices, names, splits = zip(*rows, strict=True)
    ours = {
        "target_id": names,
        "window_index": window_indices,
        **dict(zip(Split._fields, zip(*splits, strict=True), strict=True)),
    }
    built = pl.DataFrame(ours, schema_overrides=schema)
    kept = piece.drop("text", "prefix", "reference")[list(documents)]
    is_copy = pl.col("reason").eq_missing(pl.lit(COPY))
    roles = pl.when(is_copy).then(pl.lit("copy")).otherwise(pl.lit(role)).cast(schema["role"])
    return (
        pl.concat([built, kept], how="horizontal").with_columns(role=roles).select(schema.names())
    )
