"""Calls that run while others are prepared."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

__all__ = ["in_background"]

_MOST_AT_ONCE = 9  # each may hold parts of some 25 MB


@contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls in threads, one more at once than there are cores, 3 to 9.

    It takes a function and its arguments and waits where all threads are busy, so that no more
    arguments wait in memory than are worked on. With one more, no core rests while a call waits
    for the disk.

    Yields
    ------
    Callable
        Raises what an earlier call raised, as does the end of the block. Where the block itself
        raises, calls that have not begun are dropped.
    """
    at_once = min(max(2, pl.thread_pool_size()) + 1, _MOST_AT_ONCE)
    running: deque[Future[object]] = deque()

    def run(function: Callable[..., object], *arguments: object) -> None:
        while len(running) >= at_once:
            running.popleft().result()
        running.append(pool.submit(function, *arguments))

    pool = ThreadPoolExecutor(at_once)
    try:
        yield run
        for call in running:
            call.result()
    finally:
        pool.shutdown(cancel_futures=True)
