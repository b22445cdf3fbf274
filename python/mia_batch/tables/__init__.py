"""Tables: checked where they enter and leave a stage, written whole or not at all; their rows."""

from __future__ import annotations

from mia_batch.tables.arrays import mapped_zeros
from mia_batch.tables.batches import in_batches
from mia_batch.tables.damage import READ_ERRORS, is_sound, is_whole
from mia_batch.tables.files import move, remove, remove_unfinished, write_text
from mia_batch.tables.hashing import digest, side_by_side
from mia_batch.tables.reading import check, generate, scan
from mia_batch.tables.rows import RowIndex
from mia_batch.tables.writing import sink, sink_all, sink_frames, sink_new

__all__ = [
    "READ_ERRORS",
    "RowIndex",
    "check",
    "digest",
    "generate",
    "in_batches",
    "is_sound",
    "is_whole",
    "mapped_zeros",
    "move",
    "remove",
    "remove_unfinished",
    "scan",
    "side_by_side",
    "sink",
    "sink_all",
    "sink_frames",
    "sink_new",
    "write_text",
]
