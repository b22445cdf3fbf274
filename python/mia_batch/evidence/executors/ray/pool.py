"""The engines of a cluster, as the driver sees them: asked for, ready, lost, replaced."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.executors.ray.cluster import resources, room
from mia_batch.evidence.executors.ray.failures import is_lost, origin, reason_of
from mia_batch.evidence.executors.ray.worker import EngineWorker
from mia_batch.observer import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ray import ObjectRef

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.executors.ray.worker import Answered, Joined, Start

__all__ = ["Asked", "Pool", "Worker"]

_SECONDS_TO_LOOK = 1.0
_SECONDS_BEFORE_SAYING = 30.0
_MOST_FAILED_STARTS = 10  # in a row, with no worker left
_THREADS = 8  # of an actor; blocks in hand and a start


@dataclass(eq=False, slots=True)
class Worker:
    """One engine; ``joined`` once it is ready."""

    name: str
    actor: Any  # a handle, whose methods Ray makes up
    joined: Joined | None = None
    in_hand: int = 0
    blocks: int = 0
    tokens: int = 0
    ready: float = 0.0  # since when

    @property
    def shared(self) -> bool:
        """Whether it stores what it has made."""
        return self.joined is not None and self.joined.shared


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """A block of a job at a worker; ``lost``: how many workers it has lost before."""

    worker: Worker
    job: int
    block: Block
    lost: int


class Pool:
    """Keeps as many engines on the cluster as are wanted, and hands blocks to them.

    ``wanted`` None takes all that the cluster has room for, now or later. Must be closed.
    """

    def __init__(
        self,
        start: Start,
        *,
        wanted: int | None,
        name: str,
        say: Callable[[str], None],
    ) -> None:
        import ray

        self._ray: Any = ray  # whose functions are partly untyped
        self._start = ray.put(start)
        self._spec = start.spec
        self._wanted = wanted
        self._name = name
        self._say = say
        self._starting: dict[ObjectRef[Any], Worker] = {}
        self._asked: dict[ObjectRef[Any], Asked] = {}
        self._numbers = 0
        self._refused = 0
        self._failed = 0
        self._info: Joined | None = None
        self.workers: list[Worker] = []

    def first(self) -> Joined:
        """Wait for the first engine that is ready.

        Raises `EngineError` if none can start.
        """
        waited = time.monotonic()
        while (info := self._info) is None:
            deque(self.events(), maxlen=0)
            if time.monotonic() - waited > _SECONDS_BEFORE_SAYING:
                self._say(f"waiting for the cluster to start {self._name}: {self._resources()}")
                waited = time.monotonic()
        return info

    def hand(self, worker: Worker, job: int, what: ObjectRef[Any], block: Block, lost: int) -> None:
        """Give a block to a worker."""
        ref: ObjectRef[Any] = worker.actor.work.remote(job, [what], block)
        self._asked[ref] = Asked(worker, job, block, lost)
        worker.in_hand += 1

    def events(self) -> Iterator[tuple[Asked, Answered | Exception]]:
        """Wait a while; yield what came of blocks. A block of a worker that is lost is an error."""
        self._fill()
        refs = [*self._starting, *self._asked]
        ready: list[Any] = self._ray.wait(refs, num_returns=1, timeout=_SECONDS_TO_LOOK)[0]
        if ready:
            ready = self._ray.wait(refs, num_returns=len(refs), timeout=0)[0]
        for ref in ready:
            if ref in self._starting:
                self._take_in(ref)
            elif ref in self._asked:
                yield self._came(ref)

    def states(self) -> list[WorkerState]:
        """Say what each worker does."""
        blocks = defaultdict(list)
        for asked in self._asked.values():
            blocks[asked.worker].append(str(asked.block.index))
        now = time.monotonic()
        states = [
            WorkerState(
                f"{each.name} on {each.joined.node}" if each.joined else each.name,
                f"blocks {', '.join(blocks[each])}" if blocks[each] else "idle",
                each.blocks,
                each.tokens / max(now - each.ready, 1e-9),
            )
            for each in self.workers
        ]
        starting = self._starting.values()
        return states + [WorkerState(each.name, "starting", 0, 0.0) for each in starting]

    def close(self) -> None:
        """End all engines."""
        for worker in [*self.workers, *self._starting.values()]:
            self._ray.kill(worker.actor)
        self.workers.clear()

    def _fill(self) -> None:
        while len(self.workers) + len(self._starting) < self._room():
            self._numbers += 1
            name = f"{self._name} {self._numbers}"
            actor = self._ray.remote(EngineWorker).options(
                name=name,
                max_restarts=0,
                max_concurrency=_THREADS,
                **resources(self._spec.tensor_parallel_size),
            )
            worker = Worker(name, actor.remote(name))
            self._starting[worker.actor.start.remote(self._start)] = worker

    def _room(self) -> int:
        if self._wanted is not None:
            return max(self._wanted - self._refused, 1)
        return max(room(self._spec.tensor_parallel_size) - self._refused, 1)

    def _resources(self) -> str:
        free, known = self._ray.available_resources(), self._ray.cluster_resources()
        each = [
            f"{free.get(kind, 0):g} of {known.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU")
        ]
        return f"{' and '.join(each)} are free"

    def _take_in(self, ref: ObjectRef[Any]) -> None:
        worker = self._starting.pop(ref)
        try:
            worker.joined = self._ray.get(ref)
            self._compare(worker.joined)
        except Exception as error:
            self._ray.kill(worker.actor)
            self._failed += 1
            cause = origin(error)
            if self._info is None and isinstance(cause, MiaBatchError):
                raise cause from None
            if self._failed >= _MOST_FAILED_STARTS and not self.workers:
                msg = f"no worker can start: {reason_of(error)}"
                raise EngineError(msg) from None
            if isinstance(cause, MiaBatchError):
                self._refused += 1
            self._say(f"{worker.name} is left out: {reason_of(error)}")
            return
        self._failed = 0
        self._info = self._info or worker.joined
        worker.ready = time.monotonic()
        self.workers.append(worker)
        self._say(f"{worker.name} is ready on {worker.joined.node}")

    def _compare(self, joined: Joined) -> None:
        """Refuse an engine that is not like the first."""
        if self._info is not None and joined.info != self._info.info:
            msg = f"its engine is {joined.info}, the others {self._info.info}"
            raise EngineError(msg)

    def _came(self, ref: ObjectRef[Any]) -> tuple[Asked, Answered | Exception]:
        asked = self._asked.pop(ref)
        worker = asked.worker
        worker.in_hand -= 1
        try:
            answered: Answered = self._ray.get(ref)
        except Exception as error:
            if is_lost(error) and worker in self.workers:
                self.workers.remove(worker)  # another is asked for in its place
                self._ray.kill(worker.actor)
                self._say(f"{worker.name} is lost, its blocks go to others: {reason_of(error)}")
            return asked, error
        worker.blocks += 1
        worker.tokens += sum(tokens for _, tokens, _ in answered.told)
        return asked, answered
