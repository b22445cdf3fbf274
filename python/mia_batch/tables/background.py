"""Calls that run while others are prepared."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
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
    """Lend a function that runs calls in threads, 4 to 9 at once: half as many again as cores.

    It takes a function and its arguments and waits where all threads are busy, so that no more
    arguments wait in memory than are worked on. With some more, no core rests while calls wait
    for the disk.

    Yields
    ------
    Callable
        Raises what an earlier call raised, as does the end of the block. Where the block itself
        raises, calls that have not begun are dropped.
    """
    at_once = min(max(2, pl.thread_pool_size()) * 3 // 2 + 1, _MOST_AT_ONCE)
    running: set[Future[object]] = set()

    def run(function: Callable[..., object], *arguments: object) -> None:
        if len(running) >= at_once:
            for call in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(call)
                call.result()
        running.add(pool.submit(function, *arguments))

    pool = ThreadPoolExecutor(at_once)
    try:
        yield run
        for call in running:
            call.result()
    finally:
        pool.shutdown(cancel_futures=True)
