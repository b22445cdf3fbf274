"""What a terminal shows of several workers."""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from mia_batch.cli.options import ConsoleObserver
from mia_batch.evidence.executors.ray import InHand, Joined, Pool, Worker
from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import EngineInfo
from mia_batch.observer import WorkerState

BOTH = [
    WorkerState("worker 1 on a", "blocks 7, 12", 1234, 56_789.0),
    WorkerState("worker 2", "starting", 0, 0.0),
]


def shown(workers, *, terminal):
    file = io.StringIO()
    observer = ConsoleObserver(Console(file=file, force_terminal=terminal, width=100))
    with observer.progress("sampling", done=0, left=10):
        observer.at_work(workers)
    observer.at_work(workers)  # nothing works any more
    return file.getvalue()


def test_each_worker_has_a_line():
    lines = [" ".join(line.split()) for line in shown(BOTH, terminal=True).splitlines()]
    assert "worker 1 on a blocks 7, 12 1,234 56,789" in lines
    assert "worker 2 starting 0 0" in lines


@pytest.mark.parametrize(("workers", "terminal"), [(BOTH[:1], True), (BOTH, False)])
def test_one_worker_or_no_terminal_has_no_table(workers, terminal):
    said = shown(workers, terminal=terminal)
    assert "sampling" in said
    assert "worker" not in said


def test_a_pool_says_what_its_workers_do():
    info = EngineInfo(
        engine="e", version="1", device="cpu", dtype="float32", max_model_len=1, max_sequences=1
    )
    joined = Joined(info=info, node="a", shared=True)
    busy, idle = (Worker(f"worker {n}", None, joined, blocks=n, tokens=0) for n in (1, 2))
    blocks = [
        Block(index=index, first=0, last=1, attempt=0, label="l", units=pl.DataFrame())
        for index in (7, 12)
    ]
    pool: Any = Pool.__new__(Pool)  # which asks nothing of a cluster
    pool.workers = [busy, idle]
    pool._asked = {n: InHand(busy, 1, block, 0) for n, block in enumerate(blocks)}
    pool._starting = {0: Worker("worker 3", None)}
    assert pool.states() == [
        WorkerState("worker 1 on a", "blocks 7, 12", 1, 0.0),
        WorkerState("worker 2 on a", "idle", 2, 0.0),
        WorkerState("worker 3", "starting", 0, 0.0),
    ]
