"""Actors that sleep as long as a block would take: what scheduling costs with many of them.

They are started in groups, as many as the memory of this machine holds. Measured once
all are there: the time that handing out adds to that of the blocks, the time at the end
in which not all are busy, the blocks that the driver can hand out in a second, and its
memory.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import polars as pl

from mia_batch.evidence.engines.registry import available_memory
from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import EngineSpec
from mia_batch.extras import ray as pool_module
from mia_batch.extras.ray import (
    BlockAnswer,
    Pool,
    RayExecutor,
    Start,
    WorkerReport,
    connected,
)
from mia_batch.extras.speed.ways import read_peak_mb
from tests.cluster import JOINED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECONDS_OF_A_BLOCK = 10.0  # so that those who wake up are not the load
BLOCKS_OF_EACH = 12
GROUP = 20
GB_LEFT = 3.0  # to others on this machine
GPU_TOKENS_PER_SECOND = (
    10_000  # assumed of one GPU and a model of 7 B, continuous batching
)
# Decoded by the default preset for a block of the demo's texts
TOKENS_OF_A_BLOCK = 64 * 118


class Sleeper:
    """A worker that sleeps for as long as a block would take, and tells who it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, start: Start) -> WorkerReport:
        del start
        return JOINED

    def work(self, job: int, what: list[Any], block: Block) -> BlockAnswer:
        del job, what
        time.sleep(block.first / 1000)
        return BlockAnswer(None, [(self._name, 7552, 0)], [])


def blocks(seconds: Iterable[float]) -> Iterator[Block]:
    """Blocks as large as real ones, whose time stands where the first sample would."""
    text = " ".join(["word"] * 128)
    units = pl.DataFrame({"target_id": ["0" * 64] * 64, "context": [text] * 64})
    for index, each in enumerate(seconds):
        yield Block(
            index=index,
            first=round(1000 * each),
            last=1,
            attempt=0,
            label="target-probe",
            units=units.with_columns(view_index=pl.lit(index)),
        )


class OnAnswer:
    """When each worker was last heard of."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def __call__(self, label: str, units: int, tokens: int, passes: int) -> None:
        del units, passes
        if tokens:
            self.last[label] = time.perf_counter()


def sleepers(n_actors: int) -> dict[str, Any]:
    """Measure with so many actors, or as many as fit."""
    spec = EngineSpec(engine="none", kind="samples", model="none")
    start = Start(
        spec=spec,
        tokenizer=None,
        strides=False,
        digest=None,
        version="",
        mark=Path("none"),
    )
    with (
        patch.object(pool_module, "EngineWorker", Sleeper),
        patch.object(pool_module, "_THREADS", 1),  # one block at a time, as an engine
        patch.dict(os.environ, {"RAY_prestart_worker_first_driver": "0"}),
        connected(None, n_actors),
    ):
        pool = Pool(start, n_workers=0, name="sleeper", say=lambda _: None)
        try:
            n = grow(pool, n_actors)
            return {"actors": n} | measured(RayExecutor(pool, lambda _: None), n)
        finally:
            pool.close()


def grow(pool: Pool, most: int) -> int:
    """Start actors in groups while there is memory; return how many there are."""
    n, each = 0, 0.0
    while n < most:
        free = available_memory() / 1e9
        if free - GROUP * each < GB_LEFT:
            break
        n = min(n + GROUP, most)
        pool._n_workers = n
        while len(pool.workers) < n:
            deque(pool.events(), maxlen=0)
        each = max((free - available_memory() / 1e9) / GROUP, 0.05)
        print(f"{n} actors, {1000 * each:.0f} MB each", flush=True)
    return n


def measured(executor: RayExecutor, n_actors: int) -> dict[str, Any]:
    task: Any = None  # nobody looks at it

    def took(seconds: Iterable[float], told: OnAnswer) -> float:
        began = time.perf_counter()
        deque(executor.collect(task, blocks(seconds), told, _keep), maxlen=0)
        return time.perf_counter() - began

    took([0.0] * 4 * n_actors, OnAnswer())
    memory = [round(read_peak_mb())]
    even = took([SECONDS_OF_A_BLOCK] * BLOCKS_OF_EACH * n_actors, OnAnswer())
    memory.append(round(read_peak_mb()))
    dice, told = random.Random(0), OnAnswer()
    costs = [SECONDS_OF_A_BLOCK * dice.uniform(0.2, 1.0) for _ in range(8 * n_actors)]
    uneven = took(costs, told)
    tail = max(told.last.values()) - min(told.last.values())
    n, spent = 4000, time.process_time()
    per_second = n / took([0.0] * n, OnAnswer())
    spent = time.process_time() - spent  # all actors share the cores with the driver
    memory.append(round(read_peak_mb()))
    took([0.0] * 2 * n, OnAnswer())
    memory.append(round(read_peak_mb()))
    return {
        "blocks_of_each": BLOCKS_OF_EACH,
        "seconds_of_a_block": SECONDS_OF_A_BLOCK,
        "overhead": round(even / (BLOCKS_OF_EACH * SECONDS_OF_A_BLOCK) - 1, 4),
        "uneven": {
            "blocks": len(costs),
            "tail_in_largest_blocks": round(tail / max(costs), 3),
            "seconds_to_least": round(uneven / (sum(costs) / n_actors), 4),
        },
        "blocks_per_second": round(per_second, 1),
        "blocks_per_second_of_driver": round(n / spent, 1),
        "driver_peak_mb": memory,
    }


def _keep(block: Block, rows: pl.DataFrame) -> None:
    del block, rows


def projection(found: dict[str, Any]) -> str:
    """Say what 1,000 GPUs would do, and what breaks first."""
    seconds = TOKENS_OF_A_BLOCK / GPU_TOKENS_PER_SECOND
    most = found["blocks_per_second_of_driver"] * seconds
    needed = 1000 / seconds
    return (
        f"Assumed: {GPU_TOKENS_PER_SECOND:,} tokens/s a GPU, {TOKENS_OF_A_BLOCK:,}"
        f" tokens a block: {seconds:.2f} s a block and {needed:,.0f} blocks/s on 1,000"
        f" GPUs. The driver hands out {found['blocks_per_second_of_driver']:,.0f} in a"
        f" second of a core here, enough for {most:,.0f} such GPUs. What breaks first"
        " is the driver's one core, then the names that a shared disk makes in a"
        " second: one of samples and one of features a block. Larger models and longer"
        " texts need fewer blocks a second."
    )
