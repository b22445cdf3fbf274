"""Requests that wait in lanes, of each of which one is in flight, the shortest first."""

from collections import OrderedDict
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeAlias, TypeVar

Job = TypeVar("Job")
# The length of a prompt, a number that no other has, and the job, which is never compared
_Heap: TypeAlias = list[tuple[int, int, Job]]


class Lanes(Generic[Job]):
    """Jobs in lanes, which begin as they arrive and then go on to their end."""

    def __init__(self) -> None:
        self._ready: OrderedDict[str, _Heap[Job]] = OrderedDict()
        self._in_flight: dict[str, _Heap[Job]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        """Count the lanes that have a job, waiting or in flight."""
        return len(self._ready) + len(self._in_flight)

    def put(self, lane: str, length: int, job: Job) -> None:
        jobs = self._in_flight.get(lane)
        if jobs is None:
            jobs = self._ready.setdefault(lane, [])
        heappush(jobs, (length, next(self._numbers), job))

    def take(self) -> tuple[str, Job] | None:
        """Take the next job and its lane, for which `end` is to be called after it."""
        if not self._ready:
            return None
        lane, jobs = self._ready.popitem(last=False)
        self._in_flight[lane] = jobs
        _, _, job = heappop(jobs)
        return lane, job

    def end(self, lane: str) -> None:
        """Let the next job of a lane be taken, before those of lanes that have not begun."""
        jobs = self._in_flight.pop(lane)
        if jobs:
            self._ready[lane] = jobs
            self._ready.move_to_end(lane, last=False)

    def clear(self) -> None:
        """Forget all jobs that wait."""
        self._ready.clear()
        for jobs in self._in_flight.values():
            jobs.clear()
