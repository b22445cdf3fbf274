"""The executor of a Ray cluster: engines are actors, and blocks go to whichever is free.

Ray places and watches the engines; what is worked on, and what is tried again, is
decided here.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib import metadata
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import polars as pl

import mia_batch
from mia_batch.errors import EngineError, MiaBatchError, RequestError, SettingsError
from mia_batch.evidence.collect import Executor, LocalExecutor, OnAnswer, Task, refuse
from mia_batch.evidence.engines.registry import missing
from mia_batch.evidence.parts import Block
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import EngineInfo, EngineSpec
from mia_batch.evidence.starts import StartFigures, compare_starts
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import digest_folder, identify_model
from mia_batch.observer import WorkerState
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import named, settle_start, start_texts
from mia_batch.plugins import extra
from mia_batch.settings import Settings
from mia_batch.tables import is_followed, temporary_path

if TYPE_CHECKING:
    from ray import ObjectRef

    from mia_batch.extras.tune.jobs import Made, Making, Wanted


def origin(error: Exception) -> Exception:
    """Return what was raised on the other side, where Ray has wrapped it."""
    return getattr(error, "cause", None) or error


def is_lost(error: Exception) -> bool:
    """Whether an error says that a worker is gone, or that its engine cannot go on."""
    from ray import exceptions as of_ray

    gone = of_ray.RayActorError, of_ray.WorkerCrashedError, of_ray.ObjectLostError
    return isinstance(error, (*gone, of_ray.NodeDiedError)) or isinstance(
        origin(error), EngineError
    )


def reason_of(error: Exception) -> str:
    """Say in one line why; Ray's own reports are pages."""
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        return str(cause)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [
        repr(cause)
    ]
    said = next(
        (line for line in lines if line.startswith("The actor is dead")), lines[0]
    )
    return said.partition(". ")[0]


# A connection to a Ray cluster, or a Ray of this machine alone.

_SECONDS_TO_ANSWER = 10.0
_OWN: dict[
    str, str
] = {}  # what every Ray that this process starts has in its environment


def obstacle() -> str | None:
    """Say why Ray cannot be used here; None where it can. Nothing is imported."""
    return missing("ray")


@contextmanager
def connected(address: str | None, n_cpus: int | None = None) -> Iterator[None]:
    """Join the cluster at an address (``auto``: the one that runs here); None starts one here."""
    with _joined(address, n_cpus):
        from ray import exceptions

        try:
            yield
        except Exception as error:
            full = exceptions.ObjectStoreFullError, exceptions.OutOfDiskError
            if not isinstance(origin(error), full):
                raise
            raise EngineError(
                f"Ray's object store is full and cannot spill: {reason_of(error)}; free"
                " space on its disk, or start Ray with more --object-store-memory: the"
                " same command goes on"
            ) from error


@contextmanager
def _joined(address: str | None, n_cpus: int | None) -> Iterator[None]:
    # Which reads this as it is imported, and keeps it
    if not address and "ray" not in sys.modules:
        # In no file
        _OWN.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        # Loopback only, as on those systems
        _OWN.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    handlers = [
        (number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)
    ]
    with _environment({} if address else _OWN):
        import ray

        if ray.is_initialized():
            yield
            return
        try:
            _reach(address)
            ray.init(
                address or "local",
                num_cpus=None if address else n_cpus,
                include_dashboard=None if address else False,
                namespace=f"mia-batch-{secrets.token_hex(4)}",
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
        except Exception as error:  # of a dozen kinds
            where = (
                f"the Ray cluster at {address!r}" if address else "Ray on this machine"
            )
            raise EngineError(
                f"ray: {where} cannot be used: {reason_of(error)}"
            ) from error
        from ray._private import worker

        # Pages about lost workers; it has no option
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = lambda *_, **__: None
        try:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers:  # Ray puts its own there
                    signal.signal(number, handler)
            yield
        finally:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    before = os.environ.get("RAY_AUTH_MODE")
    try:
        yield
    finally:
        # Ray sets it itself
        for name in (
            *new,
            *(["RAY_AUTH_MODE"] if before is None else []),
        ):
            os.environ.pop(name, None)


def _reach(address: str | None) -> None:
    """Knock at an address; Ray itself would wait for minutes where nobody answers."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection(
            (host.strip("[]"), int(port)), _SECONDS_TO_ANSWER
        ).close()


def _cluster() -> Any:
    import ray

    return ray


def resources(each: int) -> dict[str, int]:
    """Say what one worker takes: ``each`` so many GPUs where the cluster has some, else cores."""
    has_gpus = _cluster().cluster_resources().get("GPU")
    return {"num_cpus": 1, "num_gpus": each} if has_gpus else {"num_cpus": each}


def room(each: int) -> int:
    """Count the workers that the cluster has room for, free or not; at least one."""
    known = _cluster().cluster_resources()
    return max(int(known.get("GPU") or known.get("CPU", 0)) // each, 1)


@contextmanager
def marked(folder: Path) -> Iterator[Path]:
    """Lend a file in a folder, which is there for whoever sees the folder."""
    # Not where the folder is mirrored to a store: files of other machines would not
    # reach that.
    mark = temporary_path(folder.resolve() / "cluster")
    if not is_followed(mark):
        mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def package_version() -> str:
    """Name the version of this package, and its own files, which an unfinished one shares."""
    digest = sha256()
    for path in sorted(Path(str(mia_batch.__file__)).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{metadata.version('mia-batch')} ({digest.hexdigest()[:12]})"


# Engines of the cluster, each an actor with a process of its own for the engine.


class Start(NamedTuple):
    """What every worker starts with: the model's ``digest``, a ``mark`` in the run's folder.

    Where there are ``texts``, it reads them with and without a start token.
    """

    spec: EngineSpec
    tokenizer: Tokenizer | None
    strides: bool
    digest: str | None
    version: str
    mark: Path
    texts: tuple[str, ...] = ()


class Joined(NamedTuple):
    """What a started worker says of itself; ``shared``: it sees the run's folder."""

    info: EngineInfo
    node: str
    shared: bool
    figures: StartFigures | None = None


@dataclass(slots=True)
class Answered:
    """What came of a block; since the block before: tokens and passes by label, and sentences."""

    kept: Any
    counts: list[tuple[str, int, int]]
    said: list[str]


@dataclass(slots=True)
class _Order:
    """A block in hand, and to whom its answer goes."""

    job: int
    what: ObjectRef[Any]
    block: Block
    answer: Future[Answered] = field(default_factory=Future)


class EngineWorker:
    """One engine of the cluster: an actor, called from several threads."""

    # One thread asks the engine. It takes in the next block of a job before the last is
    # complete, so that an engine that batches has no gap between blocks.

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._next: _Order | None = None  # taken from the queue, not yet begun
        self._in_hand: dict[int, _Order] = {}
        # By label, since the last answer; so are these
        self._tokens: Counter[str] = Counter()
        self._passes: Counter[str] = Counter()
        self._said: list[str] = []

    def __repr__(self) -> str:
        return self._name

    def start(self, start: Start) -> Joined:
        node, spec = platform.node(), start.spec
        if (own := package_version()) != start.version:
            raise EngineError(
                f"{node} has mia-batch {own}, the run {start.version}; install the same"
                " there"
            )
        if start.digest not in (None, digest_folder(spec.model)):
            # An adapter, or a model at a hub; this loads a large library.
            found = identify_model(spec.model, spec.revision, spec.kind).digest
            if found != start.digest:
                raise EngineError(
                    f"{spec.model} on {node} is another model than the run's: its"
                    " digest differs"
                )
        log = Path(
            tempfile.gettempdir(), f"{self._name.replace(' ', '-')}-{os.getpid()}.log"
        )
        engine = EngineProcess(spec, log=log)
        tokenizer, figures = start.tokenizer, None
        if tokenizer is not None and start.texts:
            figures = compare_starts(engine, tokenizer, start.texts)
        source = LocalSource(engine, tokenizer, strides=start.strides)
        Thread(target=self._work, args=(source, tokenizer), daemon=True).start()
        shared = start.mark.exists()
        return Joined(info=engine.info, node=node, shared=shared, figures=figures)

    def work(self, job: int, what: list[Any], block: Block) -> Answered:
        """Work on a block; ``what`` refers to task and keeper, the same for all blocks of a job."""
        order = _Order(job, what[0], block)
        self._orders.put(order)
        return order.answer.result()

    def _work(self, source: LocalSource, tokenizer: Tokenizer | None) -> None:
        executor = LocalExecutor(
            source, source.restart, self._said.append, source.listen
        )
        while True:
            order = self._next = self._next or self._orders.get()
            task, keep, is_turned = _cluster().get(order.what)
            if tokenizer is not None and is_turned:
                tokenizer.toggle_start()
            try:
                for block, kept in executor.collect(
                    task, self._blocks(order.job), self._count, keep
                ):
                    counts = [
                        (each, n, self._passes[each])
                        for each, n in self._tokens.items()
                    ]
                    answered = Answered(kept, counts, self._said[:])
                    self._in_hand.pop(id(block)).answer.set_result(answered)
                    self._forget()
            except BaseException as error:  # goes to whoever asked
                for each in self._in_hand.values():
                    each.answer.set_exception(error)
                self._in_hand.clear()
                self._forget()

    def _blocks(self, job: int) -> Iterator[Block | None]:
        """Yield blocks of a job until one of another comes; None while others are in hand."""
        while True:
            if self._next is None:
                try:
                    self._next = self._orders.get(block=not self._in_hand)
                except Empty:
                    yield None
                    continue
            if (order := self._next).job != job:
                return
            self._next = None
            self._in_hand[id(order.block)] = order
            yield order.block

    def _count(self, label: str, _: int, tokens: int, passes: int) -> None:
        self._tokens[label] += tokens
        self._passes[label] += passes

    def _forget(self) -> None:
        for each in (self._tokens, self._passes, self._said):
            each.clear()


# Trainings: long calls, each where a whole worker's share of the cluster is free.

Call: TypeAlias = "tuple[str, tuple[object, ...]]"
"""What is made, by name, and the arguments of what makes it."""

_MOST_TRIES = (
    5  # of a call or a block whose machines are lost: then it may be what loses them
)


def on_machines(
    function: Callable[..., object],
    calls: Iterable[Call],
    folder: Path,
    say: Callable[[str], None],
    *,
    each: int,
    most: int | None,
) -> Iterator[tuple[str, str | None]]:
    """Call a function wherever ``each`` GPUs, or else cores, of the connected cluster are free.

    It gets its arguments and a function that takes sentences, and leaves what it makes
    in ``folder``. Yields names as they are done: None, or why that machine could not.
    """
    cluster = _cluster()
    remote = cluster.remote(_called)
    remote = remote.options(num_returns="streaming", max_retries=0, **resources(each))
    left, version = iter(calls), package_version()
    running: dict[Any, Call] = {}
    tries: Counter[str] = Counter()
    with marked(folder) as mark:

        def begin(call: Call) -> None:
            tries[call[0]] += 1
            running[remote.remote(mark, version, function, call[1])] = call

        try:
            while True:
                while len(running) < (most or room(each)) and (
                    call := next(left, None)
                ):
                    begin(call)
                if not running:
                    return
                (task,), _ = cluster.wait([*running], num_returns=1)
                name = running[task][0]
                try:
                    sentence, done, reason = cluster.get(next(task))
                except Exception as error:
                    call = running.pop(task)
                    if not is_lost(origin(error)) or tries[name] == _MOST_TRIES:
                        raise origin(error) from None
                    say(f"{name} begins again elsewhere: {reason_of(error)}")
                    begin(call)
                    continue
                if done:
                    del running[task]
                    yield name, reason
                else:
                    say(f"{name}: {sentence}")
        finally:
            for task in running:
                cluster.cancel(task, force=True)


def _called(
    mark: Path,
    version: str,
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> Iterator[tuple[str, bool, str | None]]:
    node, reason = platform.node(), None
    if not mark.exists():
        reason = f"{node} does not see the run's folder"
    elif (own := package_version()) != version:
        reason = f"{node} has mia-batch {own}, the run {version}"
    else:
        said: SimpleQueue[str | None] = SimpleQueue()
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(function, *arguments, said.put)
            call.add_done_callback(lambda _: said.put(None))
            for sentence in iter(said.get, None):
                yield sentence, False, None
        try:
            call.result()
        except RequestError as error:
            reason = f"on {node}, {error}"
    yield "", True, reason


# Calls on the cores of a cluster, as `in_background` makes them in threads of this
# machine.

_WAITING = 2  # calls for each core: one that runs, and the next
_ONE_CORE = {"POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1"}
_functions: dict[Any, Callable[..., object]] = {}


@contextmanager
def spread(address: str, folder: Path) -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls wherever a core of the cluster is free.

    Calls write in ``folder``, so those on a machine that does not see it are done here.
    """
    running: dict[ObjectRef[Any], tuple[Callable[..., object], tuple[object, ...]]] = {}
    sent: dict[int, Any] = {}

    def finish(most: int) -> None:
        while len(running) > most:
            (ref,), _ = cluster.wait([*running], num_returns=1)
            function, arguments = running.pop(ref)
            try:
                done = cluster.get(ref)
            except Exception as error:
                raise origin(error) from None
            if not done:
                function(*arguments)

    def run(function: Callable[..., object], *arguments: object) -> None:
        finish(most - 1)
        if id(function) not in sent:
            sent[id(function)] = cluster.put(function)
        ref = remote.remote(mark, [sent[id(function)]], arguments)
        running[ref] = function, arguments

    with connected(address), marked(folder) as mark:
        cluster = _cluster()
        remote = cluster.remote(_call).options(
            num_cpus=1, runtime_env={"env_vars": _ONE_CORE}
        )
        most = max(1, _WAITING * int(cluster.cluster_resources().get("CPU", 1)))
        try:
            yield run
            finish(0)
        finally:
            for ref in running:
                cluster.cancel(ref, force=True)


def _call(mark: Path, sent: list[Any], arguments: tuple[object, ...]) -> bool:
    """Do a call, where the folder is seen; each process of the cluster keeps what it was sent."""
    if not mark.exists():
        return False
    (ref,) = sent
    if ref not in _functions:
        _functions[ref] = _cluster().get(ref)
    _functions[ref](*arguments)
    return True


# The engines of a run, and the blocks that they have in hand.

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
        return self.joined is not None and self.joined.shared


@dataclass(frozen=True, eq=False, slots=True)
class InHand:
    """A block of a job at a worker; ``lost``: how many workers it has lost before."""

    worker: Worker
    job: int
    block: Block
    lost: int


class Pool:
    """Keeps so many engines on the cluster, None: all that it has room for; must be closed."""

    def __init__(
        self, start: Start, *, wanted: int | None, name: str, say: Callable[[str], None]
    ) -> None:
        self._ray = _cluster()
        self._start = self._ray.put(start)
        self._each = start.spec.tensor_parallel_size
        self._wanted = wanted
        self._name = name
        self._say = say
        self._starting: dict[ObjectRef[Any], Worker] = {}
        self._asked: dict[ObjectRef[Any], InHand] = {}
        self._numbers = self._refused = self._failed = 0
        self._info: Joined | None = None
        self.workers: list[Worker] = []

    def first(self) -> Joined:
        waited = time.monotonic()
        while (info := self._info) is None:
            deque(self.events(), maxlen=0)
            if time.monotonic() - waited > _SECONDS_BEFORE_SAYING:
                free, known = (
                    self._ray.available_resources(),
                    self._ray.cluster_resources(),
                )
                each = (
                    f"{free.get(k, 0):g} of {known.get(k, 0):g} {k}s"
                    for k in ("CPU", "GPU")
                )
                what = f"{self._name}: {' and '.join(each)} are free"
                self._say(f"waiting for the cluster to start {what}")
                waited = time.monotonic()
        return info

    def hand(
        self, worker: Worker, job: int, what: ObjectRef[Any], block: Block, lost: int
    ) -> None:
        ref: ObjectRef[Any] = worker.actor.work.remote(job, [what], block)
        self._asked[ref] = InHand(worker, job, block, lost)
        worker.in_hand += 1

    def events(self) -> Iterator[tuple[InHand, Answered | Exception]]:
        """Wait a while; yield what came of blocks. A block of a worker that is lost is an error."""
        self._fill()
        refs = [*self._starting, *self._asked]
        ready: list[Any] = self._ray.wait(
            refs, num_returns=1, timeout=_SECONDS_TO_LOOK
        )[0]
        if ready:
            ready = self._ray.wait(refs, num_returns=len(refs), timeout=0)[0]
        for ref in ready:
            if ref in self._starting:
                self._take_in(ref)
            elif ref in self._asked:
                yield self._came(ref)

    def states(self) -> list[WorkerState]:
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
        return states + [
            WorkerState(each.name, "starting", 0, 0.0) for each in starting
        ]

    def close(self) -> None:
        for worker in [*self.workers, *self._starting.values()]:
            self._ray.kill(worker.actor)
        self.workers.clear()

    def _fill(self) -> None:
        wanted = room(self._each) if self._wanted is None else self._wanted
        while len(self.workers) + len(self._starting) < max(wanted - self._refused, 1):
            self._numbers += 1
            name = f"{self._name} {self._numbers}"
            how = {"name": name, "max_restarts": 0, "max_concurrency": _THREADS}
            actor = self._ray.remote(EngineWorker).options(
                **how, **resources(self._each)
            )
            worker = Worker(name, actor.remote(name))
            self._starting[worker.actor.start.remote(self._start)] = worker

    def _take_in(self, ref: ObjectRef[Any]) -> None:
        worker = self._starting.pop(ref)
        try:
            joined = worker.joined = self._ray.get(ref)
            if self._info is not None and joined.info != self._info.info:
                raise EngineError(  # noqa: TRY301 - left out like one that cannot start
                    f"its engine is {joined.info}, the others {self._info.info}"
                )
        except Exception as error:
            self._ray.kill(worker.actor)
            self._failed += 1
            cause = origin(error)
            if self._info is None and isinstance(cause, MiaBatchError):
                raise cause from None
            if self._failed >= _MOST_FAILED_STARTS and not self.workers:
                raise EngineError(f"no worker can start: {reason_of(error)}") from None
            if isinstance(cause, MiaBatchError):
                self._refused += 1
            self._say(f"{worker.name} is left out: {reason_of(error)}")
            return
        self._failed = 0
        self._info = self._info or joined
        worker.ready = time.monotonic()
        self.workers.append(worker)
        self._say(f"{worker.name} is ready on {joined.node}")

    def _came(self, ref: ObjectRef[Any]) -> tuple[InHand, Answered | Exception]:
        asked = self._asked.pop(ref)
        worker = asked.worker
        worker.in_hand -= 1
        try:
            answered: Answered = self._ray.get(ref)
        except Exception as error:
            if is_lost(error) and worker in self.workers:
                self.workers.remove(worker)  # another is asked for in its place
                self._ray.kill(worker.actor)
                self._say(
                    f"{worker.name} is lost, its blocks go to others:"
                    f" {reason_of(error)}"
                )
            return asked, error
        worker.blocks += 1
        worker.tokens += sum(tokens for _, tokens, _ in answered.counts)
        return asked, answered


Kept = TypeVar("Kept")

_IN_HAND = 2  # blocks of a worker: the one that it works on, and the next
_WHY = f"{_MOST_TRIES} workers were lost that had this text's block in hand"
_SECONDS_BETWEEN_STATES = 1.0
_JOBS = count()


class RayExecutor:
    """Works on blocks with the engines of a pool; those of a lost one go to others."""

    def __init__(
        self,
        pool: Pool,
        say: Callable[[str], None],
        show: Callable[[list[WorkerState]], None] = lambda _: None,
        *,
        is_turned: bool = False,
    ) -> None:
        self._pool, self._say, self._show = pool, say, show
        self._is_turned = (
            is_turned  # the tokenizer of every worker, see `Tokenizer.toggle_start`
        )
        self._shown = 0.0

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        seen: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        pool, job = self._pool, next(_JOBS)
        new, all_open, n_open = iter(blocks), False, 0
        # And how many workers each has lost
        waiting: deque[tuple[Block, int]] = deque()
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
                    what = task, keep if shared else _rows, self._is_turned
                    orders[shared] = _cluster().put(what)
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
                    seen(asked.block.label, asked.block.units.height, 0, 0)
                    kept = keep(asked.block, refuse(task, asked.block, _WHY))
                else:
                    self._tell(asked, came, seen)
                    kept = (
                        came.kept
                        if asked.worker.shared
                        else keep(asked.block, came.kept)
                    )
                n_open -= 1
                yield asked.block, kept

    def _tell(self, asked: InHand, came: Answered, seen: OnAnswer) -> None:
        seen(asked.block.label, asked.block.units.height, 0, 0)
        for label, tokens, passes in came.counts:
            seen(label, 0, tokens, passes)
        for sentence in came.said:
            self._say(f"{asked.worker.name}: {sentence}")

    def _with_room(self) -> Iterator[Worker]:
        """Yield workers that can take a block, those that have none in hand first."""
        for depth in range(_IN_HAND):
            yield from [each for each in self._pool.workers if each.in_hand == depth]


def _raise_unless_lost(asked: InHand, error: Exception) -> None:
    if is_lost(error):
        return
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        raise cause
    raise EngineError(
        f"{asked.worker.name} cannot go on: {reason_of(error)}"
    ) from error


def _rows(_: Block, rows: pl.DataFrame) -> pl.DataFrame:
    return rows


# What the core asks of this executor, with `spread` and `obstacle`.


@contextmanager
def engines(
    audit: Audit, model: str, spec: EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, EngineInfo]]:
    settings, say = audit.settings, audit.observer.stage
    wanted = None if settings.workers in (None, "auto") else int(str(settings.workers))
    cores = _cores(wanted, spec.tensor_parallel_size)
    with connected(settings.ray, cores), marked(audit.run.folder) as mark:
        start = Start(
            spec=spec,
            tokenizer=tokenizer,
            strides=settings.long_texts == "stride",
            digest=audit.source(model)["digest"],
            version=package_version(),
            mark=mark,
            texts=tuple(start_texts(audit, model)) if tokenizer else (),
        )
        pool = Pool(
            start, wanted=wanted, name=f"mia-batch {spec.kind} of {model}", say=say
        )
        try:
            joined = pool.first()
            if tokenizer is not None:
                settle_start(audit, model, tokenizer, joined.figures)
            turned = tokenizer is not None and tokenizer.is_start_toggled
            executor = RayExecutor(pool, say, audit.observer.at_work, is_turned=turned)
            yield executor, joined.info
            for worker in pool.workers:
                say(
                    f"{worker.name}: {worker.blocks:,} blocks, {worker.tokens:,} tokens"
                )
        finally:
            pool.close()


def _cores(workers: int | None, each: int) -> int:
    """Count the cores of a Ray of this machine alone, which has room for all workers."""
    return max(os.cpu_count() or 1, (workers or 1) * each)


def trained(
    settings: Settings,
    folder: Path,
    wanted: Iterator[Wanted],
    say: Callable[[str], None],
) -> Generator[tuple[str, Made]]:
    """Let machines that see the run's folder make the models there, then resume each here."""
    begun: dict[str, tuple[Making, Path]] = {}

    def calls() -> Iterator[Call]:
        for name, making, path in wanted:
            begun[name] = making, path
            yield name, (making.digest, replace(making), path.resolve())

    most = settings.workers if isinstance(settings.workers, int) else None
    each, made_of = settings.tensor_parallel_size, extra("models", "tuned").made_of
    with connected(settings.ray, _cores(most, each)):
        for name, reason in on_machines(
            _make, calls(), folder, say, each=each, most=most
        ):
            if reason is not None:
                say(f"{name} is tuned on this machine: {reason}")
            yield name, made_of(*begun.pop(name), partial(named, say, name))


def _make(digest: str, making: Making, path: Path, say: Callable[[str], None]) -> None:
    """Make a model on another machine, if its base is the same there."""
    if making.digest != digest:
        raise SettingsError(
            f"{making.base} is another model than the run's: its digest differs"
        )
    extra("models", "tuned").made_of(making, path, say)
