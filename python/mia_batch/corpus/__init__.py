"""The user's corpus, read and checked: the documents table."""

from mia_batch.corpus.documents import (
    CanarySet,
    ColumnNames,
    Corpus,
    canary_documents,
    commitment,
    draw,
    read_canaries,
    read_documents,
)
from mia_batch.corpus.files import (
    SourceFile,
    base_of,
    digest_each,
    digest_of,
    find_files,
)

__all__ = [
    "CanarySet",
    "ColumnNames",
    "Corpus",
    "SourceFile",
    "base_of",
    "canary_documents",
    "commitment",
    "digest_each",
    "digest_of",
    "draw",
    "find_files",
    "read_canaries",
    "read_documents",
]
