"""At the end of a run all workers are busy until less than two blocks' time is left."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.parts import Block
from mia_batch.extras import ray as executor
from mia_batch.extras.ray import AssignedBlock, BlockAnswer, Worker
from tests.cluster import JOINED

TASK: Any = None  # nobody looks at it
NO_UNITS = pl.DataFrame({"target_id": []})
SECONDS_TO_LOOK = 1.0


def dead():
    from ray.exceptions import RayActorError  # takes a second in each worker of pytest

    return RayActorError()


@dataclass
class SimulatedPool:
    """A pool whose workers take as long as its blocks cost, by a clock of its own.

    A worker works on its blocks one after the other or, with ``batches``, on all at
    once, each of which then takes longer.
    """

    costs: list[float]
    n_workers: int
    batches: bool
    now: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    left: dict[AssignedBlock, float] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)
    busy_until: dict[str, float] = field(default_factory=dict)
    deadly: int | None = None  # number of a block that ends whoever works on it

    def __post_init__(self):
        for number in range(self.n_workers):
            self.workers.append(Worker(f"worker {number}", None, report=JOINED))
            self.busy_until[f"worker {number}"] = 0.0

    def states(self):
        return []

    def hand(self, worker, job, _what, block, lost):
        self.asked[block.index] += 1
        worker.in_hand += 1
        self.left[AssignedBlock(worker, job, block, lost)] = self.costs[block.index]

    def events(self):
        """Let time pass until a block is done, or for as long as the real one waits."""
        speeds = self.speeds()
        passed = min(
            SECONDS_TO_LOOK, *(self.left[each] / speeds[each] for each in speeds)
        )
        self.now += passed
        for each, speed in speeds.items():
            self.left[each] -= passed * speed
        for asked in [each for each, left in self.left.items() if left <= 1e-9]:
            del self.left[asked]
            asked.worker.in_hand -= 1
            self.busy_until[asked.worker.name] = self.now
            yield (
                asked,
                dead()
                if asked.block.index == self.deadly
                else BlockAnswer(None, [], []),
            )

    def speeds(self):
        found: dict[AssignedBlock, float] = {}
        for worker in self.workers:
            own = [asked for asked in self.left if asked.worker is worker]
            at_work = own if self.batches else own[:1]
            found |= {asked: 1 / len(at_work) for asked in at_work}
        return found

    def tail(self):
        """Time at the end in which some worker had no block."""
        return self.now - min(self.busy_until.values())


def run(pool):
    """Work on all blocks; give their numbers as they come."""
    blocks = (
        Block(index=index, first=0, last=1, attempt=0, label="", units=NO_UNITS)
        for index in range(len(pool.costs))
    )
    with patch("ray.put", lambda _: None):
        ray = executor.RayExecutor(pool, lambda _: None)
        kept = ray.collect(TASK, blocks, lambda *_: None, lambda *_: None)
        return [block.index for block, _ in kept]


@given(
    costs=st.lists(st.floats(0.01, 100.0), max_size=60),
    n_workers=st.integers(1, 8),
    batches=st.booleans(),
)
def test_the_tail_is_shorter_than_two_blocks(costs, n_workers, batches):
    pool = SimulatedPool(costs, n_workers, batches)
    assert sorted(run(pool)) == [*range(len(costs))]
    assert pool.tail() <= 2 * max(costs, default=0.0) + 1e-6
    assert pool.now >= sum(costs) / n_workers - 1e-6


def test_by_hand():
    """Each has two in hand: the one who is free first ends when the other has a block left."""
    pool = SimulatedPool([3.0, 1.0, 3.0, 1.0, 1.0], 2, batches=False)
    assert run(pool) == [1, 3, 0, 4, 2]
    assert pool.now == 6.0
    assert pool.tail() == 3.0
    assert pool.busy_until == {"worker 0": 6.0, "worker 1": 3.0}


def test_a_block_that_has_lost_five_workers_is_refused():
    pool = SimulatedPool([1.0] * 10, 2, batches=False, deadly=3)
    with patch.object(executor, "refuse", lambda *_: NO_UNITS):
        assert sorted(run(pool)) == [*range(10)]
    assert pool.asked[3] == 5
    assert pool.asked.total() == 9 + 5
