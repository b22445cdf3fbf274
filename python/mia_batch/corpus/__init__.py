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
from mia_batch.corpus.drawing import Draw, DrawRequest
from mia_batch.corpus.files import (
    SourceFile,
    combine_digests,
    describe_addresses,
    digest_files,
    find_base,
    find_files,
)

__all__ = [
    "CanarySet",
    "ColumnNames",
    "Corpus",
    "Draw",
    "DrawRequest",
    "SourceFile",
    "canary_documents",
    "combine_digests",
    "commitment",
    "describe_addresses",
    "digest_files",
    "draw",
    "find_base",
    "find_files",
    "read_canaries",
    "read_documents",
]
