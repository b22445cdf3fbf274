"""Files known by their SHA-256, and work on many of them in threads."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from mia_batch.tables.batches import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["digest", "side_by_side"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREADS = 8  # more than cores: a disk answers several at once
_ITEMS_IN_FLIGHT = 1024


def digest(path: Path) -> str:
    """Return the SHA-256 of a file: 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def side_by_side(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield the results of a function that waits for the disk, in the order of the items."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in in_batches(items, lambda _: 1, _ITEMS_IN_FLIGHT):
            yield from pool.map(function, batch)
