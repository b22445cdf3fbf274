"""Blocks to workers of a cluster: who is free gets the next, and what is lost is asked again."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.executors.pieces import Refusals
from mia_batch.evidence.executors.ray.failures import is_lost, origin, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl
    from ray import ObjectRef

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task, Told
    from mia_batch.evidence.executors.ray.pool import Asked, Pool, Worker
    from mia_batch.evidence.executors.ray.worker import Answered
    from mia_batch.observer import WorkerState

__all__ = ["RayExecutor"]

Kept = TypeVar("Kept")

_IN_HAND = 2  # blocks of a worker: the one that it works on, and the next
_MOST_TRIES = 5  # of a block whose workers are lost
_WHY = f"{_MOST_TRIES} workers were lost that had this text's block in hand"
_SECONDS_BETWEEN_STATES = 1.0
_JOBS = count()


class RayExecutor:
    """Works on blocks with the engines of a pool.

    A worker stores what it has made where it sees the run's folder; else rows come here. Blocks of
    a lost worker go to others; one that has lost five workers is refused.
    """

    def __init__(
        self,
        pool: Pool,
        say: Callable[[str], None],
        show: Callable[[list[WorkerState]], None] = lambda _: None,
    ) -> None:
        self._pool = pool
        self._say = say
        self._show = show
        self._shown = 0.0

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete; see `Executor`."""
        import ray

        pool, job = self._pool, next(_JOBS)
        new, all_open, n_open = iter(blocks), False, 0
        waiting: deque[tuple[Block, int]] = deque()  # and how many workers each has lost
        orders: dict[bool, ObjectRef[Any]] = {}  # task and keeper, once for all blocks
        while True:
            for worker in self._with_room():
                if not waiting:
                    if (block := next(new, None)) is None:
                        all_open = True
                        break
                    waiting.append((block, 0))
                    n_open += 1
                if (shared := worker.shared) not in orders:
                    orders[shared] = ray.put((task, keep if shared else _rows))
                pool.hand(worker, job, orders[shared], *waiting.popleft())
            if all_open and not n_open:
                return
            if time.monotonic() - self._shown > _SECONDS_BETWEEN_STATES:
                self._show(pool.states())
                self._shown = time.monotonic()
            for asked, came in pool.events():
                if asked.job != job:  # of one that was not waited for to its end
                    continue
                if isinstance(came, Exception):
                    _raise_unless_lost(asked, came)
                    if (lost := asked.lost + 1) < _MOST_TRIES:
                        waiting.append((asked.block, lost))
                        continue
                    refused = Collector(Refusals(_WHY), task, told).collect([asked.block])
                    kept = next(keep(asked.block, rows) for _, rows in refused)
                else:
                    self._tell(asked, came, told)
                    kept = came.kept if asked.worker.shared else keep(asked.block, came.kept)
                n_open -= 1
                yield asked.block, kept

    def _tell(self, asked: Asked, came: Answered, told: Told) -> None:
        told(asked.block.label, asked.block.units.height, 0, 0)
        for label, tokens, passes in came.told:
            told(label, 0, tokens, passes)
        for sentence in came.said:
            self._say(f"{asked.worker.name}: {sentence}")

    def _with_room(self) -> Iterator[Worker]:
        """Yield workers that can take a block, those that have none in hand first."""
        for depth in range(_IN_HAND):
            yield from [each for each in self._pool.workers if each.in_hand == depth]


def _raise_unless_lost(asked: Asked, error: Exception) -> None:
    """Raise what is no fault of the worker's."""
    if is_lost(error):
        return
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        raise cause
    msg = f"{asked.worker.name} cannot go on: {reason_of(error)}"
    raise EngineError(msg) from error


def _rows(_: Block, rows: pl.DataFrame) -> pl.DataFrame:
    return rows
