"""Blocks to workers of a cluster: who is free gets the next, and what is lost is asked again."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from statistics import median
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
_STRAGGLES = 2.0  # times the usual: so long a block may take before it is asked elsewhere, too
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
        job = _Job(task, keep, iter(blocks))
        while job.hand_out(self._pool):
            if time.monotonic() - self._shown > _SECONDS_BETWEEN_STATES:
                self._show(self._pool.states())
                self._shown = time.monotonic()
            for asked, came in self._pool.events():
                if not job.owns(asked):
                    continue
                if isinstance(came, Exception):
                    if (refused := job.failed(asked, came, self._pool)) is not None:
                        yield refused, self._refuse(task, refused, told, keep)
                    continue
                told(asked.block.label, asked.block.units.height, 0, 0)
                for label, tokens, passes in came.told:
                    told(label, 0, tokens, passes)
                for sentence in came.said:
                    self._say(f"{asked.worker.name}: {sentence}")
                yield asked.block, job.kept(asked, came)

    def _refuse(
        self,
        task: Task,
        block: Block,
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Kept:
        refused = Collector(Refusals(_WHY), task, told).collect([block])
        return next(keep(block, rows) for _, rows in refused)


@dataclass(slots=True)
class _Job:
    """One task and its blocks: which are open, and which of these are to be tried again."""

    task: Task
    keep: Callable[[Block, pl.DataFrame], Any]
    blocks: Iterator[Block]
    number: int = field(default_factory=lambda: next(_JOBS))
    again: deque[Block] = field(default_factory=deque)
    open: dict[int, Block] = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    orders: dict[bool, ObjectRef[Any]] = field(default_factory=dict)
    all_open: bool = False

    def hand_out(self, pool: Pool) -> bool:
        """Give blocks to workers that have room; tell whether there is anything to wait for."""
        for depth in range(_IN_HAND):
            for worker in [each for each in pool.workers if each.in_hand == depth]:
                if (block := self._next(worker, pool)) is not None:
                    pool.hand(worker, self.number, self._order(worker), block)
        return bool(self.open) or not self.all_open

    def owns(self, asked: Asked) -> bool:
        """Whether an answer is waited for: not of a job before, nor answered elsewhere."""
        return self.open.get(id(asked.block)) is asked.block

    def kept(self, asked: Asked, answered: Answered) -> Any:  # noqa: ANN401 - whatever is kept
        """Take in an answer, and keep its rows where the worker could not."""
        self.seconds.append(time.monotonic() - asked.since)
        self._close(asked.block)
        return answered.kept if asked.worker.shared else self.keep(asked.block, answered.kept)

    def failed(self, asked: Asked, error: Exception, pool: Pool) -> Block | None:
        """Decide whether a block is tried again; one that is refused is returned.

        Raises what is no fault of the worker's.
        """
        block = asked.block
        if not is_lost(error):
            cause = origin(error)
            if isinstance(cause, MiaBatchError):
                raise cause
            msg = f"{asked.worker.name} cannot go on: {reason_of(error)}"
            raise EngineError(msg) from error
        self.tries[id(block)] += 1
        if any(each.block is block for each in pool.in_hand):
            return None
        if self.tries[id(block)] < _MOST_TRIES:
            self.again.append(block)
            return None
        self._close(block)
        return block

    def _close(self, block: Block) -> None:
        del self.open[id(block)]
        self.tries.pop(id(block), None)

    def _next(self, worker: Worker, pool: Pool) -> Block | None:
        if self.again:
            return self.again.popleft()
        for block in self.blocks:
            self.open[id(block)] = block
            return block
        self.all_open = True
        return None if worker.in_hand else self._straggler(pool)

    def _straggler(self, pool: Pool) -> Block | None:
        """Find the block that takes longest, if much longer than others took."""
        in_hand = pool.in_hand
        copies = Counter(id(each.block) for each in in_hand)
        alone = [each for each in in_hand if self.owns(each) and copies[id(each.block)] == 1]
        if not alone or not self.seconds:
            return None
        first = min(alone, key=lambda each: each.since)
        late = time.monotonic() - first.since > _STRAGGLES * median(self.seconds)
        return first.block if late else None

    def _order(self, worker: Worker) -> ObjectRef[Any]:
        """Put task and keeper where workers find them, once for all blocks."""
        import ray

        shared = worker.shared
        if shared not in self.orders:
            self.orders[shared] = ray.put((self.task, self.keep if shared else _rows))
        return self.orders[shared]


def _rows(_: Block, rows: pl.DataFrame) -> pl.DataFrame:
    return rows
