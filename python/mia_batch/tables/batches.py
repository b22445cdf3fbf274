"""Many small things, put together until they are worth one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["in_batches"]

_Item = TypeVar("_Item")


def in_batches(
    items: Iterable[_Item], size: Callable[[_Item], int], limit: int
) -> Iterator[list[_Item]]:
    """Yield items in order, in lists that end with the item that brings their size to the limit."""
    batch: list[_Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
