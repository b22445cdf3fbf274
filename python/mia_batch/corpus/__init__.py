"""The user's corpus, read and checked: the documents table."""

from __future__ import annotations

from mia_batch.corpus.columns import ColumnNames
from mia_batch.corpus.documents import Corpus, read_documents
from mia_batch.corpus.files import SourceFile

__all__ = ["ColumnNames", "Corpus", "SourceFile", "read_documents"]
