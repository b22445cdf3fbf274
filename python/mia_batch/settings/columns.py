"""Settings: names of the columns of a corpus."""

from __future__ import annotations

from pydantic import Field

from mia_batch.settings.part import Column, Part

__all__ = ["ColumnSettings"]


class ColumnSettings(Part):
    """The user's names for the columns of a corpus."""

    topic = "Columns of the corpus"

    text_column: str = Field("text", min_length=1, description="Column with the text.")
    document_id_column: Column = Field(
        None, description="Column that identifies documents.  [default: document_id, if there]"
    )
    member_column: Column = Field(
        None, description="Column with true/false/null membership.  [default: member, if there]"
    )
    label_column: Column = Field(
        None, description="Column with membership as 1/0/null.  [default: label, if there]"
    )
    group_column: Column = Field(
        None, description="Column with the group, such as a book.  [default: group, if there]"
    )
    prefix_column: Column = Field(
        None, description="Column with a prefix of your own.  [default: prefix, if there]"
    )
    reference_column: Column = Field(
        None, description="Column with its true continuation.  [default: reference, if there]"
    )
