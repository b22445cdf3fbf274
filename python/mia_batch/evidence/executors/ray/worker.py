"""What runs on a cluster: an engine with the executor of one process before it."""

from __future__ import annotations

import os
import platform
import tempfile
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from mia_batch.errors import EngineError
from mia_batch.evidence.executors.local import LocalExecutor
from mia_batch.evidence.local import LocalSource
from mia_batch.evidence.process import EngineProcess
from mia_batch.models.identity import digest_folder, identify_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task
    from mia_batch.evidence.request import EngineInfo, EngineSpec
    from mia_batch.models.tokens import Tokenizer

__all__ = ["Answered", "EngineWorker", "Joined", "Start", "package_version"]

_PACKAGE = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What every worker starts with: the model's ``digest``, a ``mark`` in the run's folder."""

    spec: EngineSpec
    tokenizer: Tokenizer | None
    strides: bool
    digest: str | None
    version: str
    mark: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a started worker says of itself; ``shared``: it sees the run's folder."""

    info: EngineInfo
    node: str
    shared: bool


@dataclass(slots=True)
class Answered:
    """What came of a block; tokens and passes by label, and sentences, since the block before."""

    kept: Any
    told: list[tuple[str, int, int]]
    said: list[str]


@dataclass(slots=True)
class _Order:
    """A block in hand, and to whom its answer goes."""

    job: int
    what: Callable[[], tuple[Task, Callable[[Block, pl.DataFrame], Any]]]
    block: Block
    answer: Future[Answered] = field(default_factory=Future)


_Orders: TypeAlias = "SimpleQueue[_Order]"


class EngineWorker:
    """One engine of the cluster: an actor, called from several threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: _Orders = SimpleQueue()

    def __repr__(self) -> str:
        return self._name

    def start(self, start: Start) -> Joined:
        """Start the engine, if package and model are those of the run."""
        node = platform.node()
        if (own := package_version()) != start.version:
            msg = f"{node} has mia-batch {own}, the run {start.version}; install the same there"
            raise EngineError(msg)
        spec = start.spec
        if start.digest is not None:
            found = digest_folder(spec.model)
            if found != start.digest:  # an adapter, or at a hub; this loads a large library
                found = identify_model(spec.model, spec.revision, spec.kind).digest
            if found != start.digest:
                msg = f"{spec.model} on {node} is another model than the run's: its digest differs"
                raise EngineError(msg)
        log = Path(tempfile.gettempdir(), f"{self._name.replace(' ', '-')}-{os.getpid()}.log")
        engine = EngineProcess.start(spec, log=log)
        source = LocalSource(engine, start.tokenizer, strides=start.strides)
        Thread(target=self._work, args=(source,), daemon=True).start()
        return Joined(info=engine.info, node=node, shared=start.mark.exists())

    def work(self, job: int, what: list[Any], block: Block) -> Answered:
        """Work on a block; ``what`` refers to task and keeper, the same for all blocks of a job."""
        import ray

        order = _Order(job, lambda: ray.get(what[0]), block)
        self._orders.put(order)
        return order.answer.result()

    def _work(self, source: LocalSource) -> None:
        """Work on orders, those of one job at a time."""
        feed = _Feed(self._orders)
        while True:
            task, keep = feed.first().what()
            news = _News()
            executor = LocalExecutor(source, source.restart, news.said.append)
            try:
                for block, kept in executor.collect(task, feed.blocks(), news.told, keep):
                    feed.finish(block, news.with_kept(kept))
            except BaseException as error:  # goes to whoever asked
                feed.fail(error)


class _Feed:
    """Orders as blocks: those of one job, until one of another comes."""

    def __init__(self, orders: _Orders) -> None:
        self._orders = orders
        self._next: deque[_Order] = deque()
        self._in_hand: dict[int, _Order] = {}

    def first(self) -> _Order:
        """Wait for the first order of a job."""
        if not self._next:
            self._next.append(self._orders.get())
        return self._next[0]

    def blocks(self) -> Iterator[Block | None]:
        """Yield blocks as they come; None while some are in hand and no other is there."""
        job = self.first().job
        while True:
            if not self._next:
                try:
                    self._next.append(self._orders.get(block=not self._in_hand))
                except Empty:
                    yield None
                    continue
            if self._next[0].job != job:
                return
            order = self._next.popleft()
            self._in_hand[id(order.block)] = order
            yield order.block

    def finish(self, block: Block, answered: Answered) -> None:
        """Answer an order."""
        self._in_hand.pop(id(block)).answer.set_result(answered)

    def fail(self, error: BaseException) -> None:
        """Give all orders in hand back."""
        for order in self._in_hand.values():
            order.answer.set_exception(error)
        self._in_hand.clear()


class _News:
    """What is to be told with the next answer."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._told: Counter[tuple[str, str]] = Counter()

    def told(self, label: str, _units: int, tokens: int, passes: int) -> None:
        """Add up; units count with their block."""
        self._told[label, "tokens"] += tokens
        self._told[label, "passes"] += passes

    def with_kept(self, kept: object) -> Answered:
        """Send all with the answer to one block."""
        labels = dict.fromkeys(label for label, _ in self._told)
        told = [(each, self._told[each, "tokens"], self._told[each, "passes"]) for each in labels]
        answered = Answered(kept, told, self.said[:])
        self._told.clear()
        self.said.clear()
        return answered


def package_version() -> str:
    """Name the version of this package, and its own files, which an unfinished one shares."""
    digest = sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{metadata.version('mia-batch')} ({digest.hexdigest()[:12]})"
