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
from mia_batch.evidence.engines.registry import find_missing_package
from mia_batch.evidence.parts import Block
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import EngineInfo, EngineSpec
from mia_batch.evidence.starts import StartFigures, compare_starts
from mia_batch.models.formats import find_format
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import digest_folder
from mia_batch.observer import WorkerState
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import choose_start_texts, settle_start
from mia_batch.pipeline.stages.training import report_on_model
from mia_batch.plugins import extra
from mia_batch.settings import Settings
from mia_batch.tables import is_followed, temporary_path
from mia_batch.views import RunModel

if TYPE_CHECKING:
    from ray import ObjectRef

    from mia_batch.extras.tune.jobs import TrainedModel, TrainingConfig, TrainingJob


def origin(error: Exception) -> Exception:
    """Return what was raised on the other side, where Ray has wrapped it."""
    return getattr(error, "cause", None) or error


def is_lost(error: Exception) -> bool:
    """Check whether an error means that a worker is gone, or that its engine cannot go on."""
    from ray import exceptions

    lost = (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.ObjectLostError,
        exceptions.NodeDiedError,
    )
    return isinstance(error, lost) or isinstance(origin(error), EngineError)


def explain(error: Exception) -> str:
    """Return the reason in one line; Ray's own reports are pages."""
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        return str(cause)
    stripped = [line.strip() for line in str(cause).splitlines()]
    lines = [line for line in stripped if line] or [repr(cause)]
    about_actors = [line for line in lines if line.startswith("The actor is dead")]
    sentence = (about_actors or lines)[0]
    return sentence.partition(". ")[0]


# A connection to a Ray cluster, or a Ray of this machine alone.

_SECONDS_TO_ANSWER = 10.0
# What every Ray that this process starts has in its environment
_STARTED_VARIABLES: dict[str, str] = {}


def obstacle() -> str | None:
    """Return why Ray cannot be used here; None where it can. Nothing is imported."""
    return find_missing_package("ray")


@contextmanager
def connected(address: str | None, n_cpus: int | None = None) -> Iterator[None]:
    """Join the cluster at an address (``auto``: the one that runs here); None starts one here."""
    with _session(address, n_cpus):
        from ray import exceptions

        try:
            yield
        except Exception as error:
            is_full = exceptions.ObjectStoreFullError, exceptions.OutOfDiskError
            if not isinstance(origin(error), is_full):
                raise
            raise EngineError(
                f"Ray's object store is full and cannot spill: {explain(error)}; free"
                " space on its disk, or start Ray with more --object-store-memory: the"
                " same command goes on"
            ) from error


@contextmanager
def _session(address: str | None, n_cpus: int | None) -> Iterator[None]:
    # Ray reads these as it is imported, and keeps them.
    if not address and "ray" not in sys.modules:
        # In no file
        token = secrets.token_hex(32)
        _STARTED_VARIABLES.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        # Loopback only, as on those systems
        _STARTED_VARIABLES.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    with _environment({} if address else _STARTED_VARIABLES):
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
            name = "Ray on this machine"
            if address:
                name = f"the Ray cluster at {address!r}"
            raise EngineError(
                f"ray: {name} cannot be used: {explain(error)}"
            ) from error
        from ray._private import worker

        # Pages about lost workers; it has no option
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = lambda *_, **__: None
        try:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():  # Ray puts its own there
                    signal.signal(number, handler)
            yield
        finally:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set, for a while."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    removed = [*new]
    if "RAY_AUTH_MODE" not in os.environ:
        removed.append("RAY_AUTH_MODE")  # Ray sets it itself
    try:
        yield
    finally:
        for name in removed:
            os.environ.pop(name, None)


def _reach(address: str | None) -> None:
    """Knock at an address; Ray itself would wait for minutes where nobody answers."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        target = host.strip("[]"), int(port)
        socket.create_connection(target, _SECONDS_TO_ANSWER).close()


def _cluster() -> Any:
    import ray

    return ray


def resources(n_devices: int) -> dict[str, int]:
    """Return what one worker takes: so many GPUs where the cluster has some, else cores."""
    has_gpus = _cluster().cluster_resources().get("GPU")
    if has_gpus:
        return {"num_cpus": 1, "num_gpus": n_devices}
    return {"num_cpus": n_devices}


def room(n_devices: int) -> int:
    """Count the workers that the cluster has room for, free or not; at least one."""
    total = _cluster().cluster_resources()
    devices = total.get("GPU") or total.get("CPU", 0)
    return max(int(devices) // n_devices, 1)


@contextmanager
def mark_folder(folder: Path) -> Iterator[Path]:
    """Make a file in a folder for a while, by which others learn that they see the folder."""
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
    """Return the version of this package, with a digest of its files, which may be unreleased."""
    digest = sha256()
    for path in sorted(Path(str(mia_batch.__file__)).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{metadata.version('mia-batch')} ({digest.hexdigest()[:12]})"


# Engines of the cluster, each an actor with a process of its own for the engine.


class Start(NamedTuple):
    """What every worker starts with."""

    spec: EngineSpec
    tokenizer: Tokenizer | None
    strides: bool
    digest: str | None  # of the model
    version: str  # of this package
    mark: Path  # a file in the run's folder
    texts: tuple[str, ...] = ()  # read with and without a start token


class WorkerReport(NamedTuple):
    """What a started worker says of itself."""

    info: EngineInfo
    node: str
    shared: bool  # it sees the run's folder
    figures: StartFigures | None = None


@dataclass(slots=True)
class BlockAnswer:
    """What came of a block, and of all since the block before."""

    output: Any  # of the keeper
    counts: list[tuple[str, int, int]]  # tokens and passes by label
    sentences: list[str]


@dataclass(slots=True)
class _Order:
    """A block in hand, and to whom its answer goes."""

    job: int
    task_ref: ObjectRef[Any]  # task, keeper, and how the tokenizer is turned
    block: Block
    answer: Future[BlockAnswer] = field(default_factory=Future)


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
        self._sentences: list[str] = []

    def __repr__(self) -> str:
        return self._name

    def start(self, start: Start) -> WorkerReport:
        node, spec = platform.node(), start.spec
        version = package_version()
        if version != start.version:
            raise EngineError(
                f"{node} has mia-batch {version}, the run {start.version}; install the"
                " same there"
            )
        if start.digest not in (None, digest_folder(spec.model)):
            # An adapter, or a model at a hub; this loads a large library.
            model_format = find_format(spec.model)
            identity = model_format.identify(spec.model, spec.revision, spec.kind)
            if identity.digest != start.digest:
                raise EngineError(
                    f"{spec.model} on {node} is another model than the run's: its"
                    " digest differs"
                )
        log_name = f"{self._name.replace(' ', '-')}-{os.getpid()}.log"
        engine = EngineProcess(spec, log=Path(tempfile.gettempdir(), log_name))
        tokenizer = start.tokenizer
        figures = None
        if tokenizer is not None and start.texts:
            figures = compare_starts(engine, tokenizer, start.texts)
        source = LocalSource(engine, tokenizer, strides=start.strides)
        Thread(target=self._work, args=(source, tokenizer), daemon=True).start()
        return WorkerReport(
            info=engine.info, node=node, shared=start.mark.exists(), figures=figures
        )

    def work(self, job: int, task_refs: list[Any], block: Block) -> BlockAnswer:
        """Work on a block; one reference to task and keeper serves all blocks of a job."""
        order = _Order(job, task_refs[0], block)
        self._orders.put(order)
        return order.answer.result()

    def _work(self, source: LocalSource, tokenizer: Tokenizer | None) -> None:
        executor = LocalExecutor(
            source, source.restart, self._sentences.append, source.listen
        )
        while True:
            order = self._next = self._next or self._orders.get()
            task, keep, is_turned = _cluster().get(order.task_ref)
            if tokenizer is not None and is_turned:
                tokenizer.toggle_start()
            blocks = self._blocks(order.job)
            try:
                for block, output in executor.collect(task, blocks, self._count, keep):
                    self._answer(block, output)
            except BaseException as error:  # goes to whoever asked
                for failed in self._in_hand.values():
                    failed.answer.set_exception(error)
                self._in_hand.clear()
                self._clear_counts()

    def _blocks(self, job: int) -> Iterator[Block | None]:
        """Iterate over blocks until one of another job comes; None while others are in hand."""
        while True:
            if self._next is None:
                try:
                    self._next = self._orders.get(block=not self._in_hand)
                except Empty:
                    yield None
                    continue
            order = self._next
            if order.job != job:
                return
            self._next = None
            self._in_hand[id(order.block)] = order
            yield order.block

    def _count(self, label: str, _: int, tokens: int, passes: int) -> None:
        self._tokens[label] += tokens
        self._passes[label] += passes

    def _answer(self, block: Block, output: Any) -> None:
        counts = [
            (label, tokens, self._passes[label])
            for label, tokens in self._tokens.items()
        ]
        answer = BlockAnswer(output, counts, self._sentences[:])
        self._in_hand.pop(id(block)).answer.set_result(answer)
        self._clear_counts()

    def _clear_counts(self) -> None:
        self._tokens.clear()
        self._passes.clear()
        self._sentences.clear()


# Trainings: long calls, each where a whole worker's share of the cluster is free.

Call: TypeAlias = "tuple[str, tuple[object, ...]]"
"""The name of what is made, and the arguments of what makes it."""

# Of a call or a block whose machines are lost: then it may be what loses them
_MOST_TRIES = 5


def call_on_machines(
    function: Callable[..., object],
    calls: Iterable[Call],
    folder: Path,
    say: Callable[[str], None],
    *,
    n_devices: int,
    most_calls: int | None,
) -> Iterator[tuple[str, str | None]]:
    """Call a function wherever so many GPUs, or else cores, of the connected cluster are free.

    It gets its arguments and a function that takes sentences, and leaves what it makes
    in ``folder``. Iterates over names as they are done, with None, or why that machine
    could not.
    """
    cluster = _cluster()
    remote = cluster.remote(_run_call).options(
        num_returns="streaming", max_retries=0, **resources(n_devices)
    )
    waiting = iter(calls)
    version = package_version()
    running: dict[Any, Call] = {}
    tries: Counter[str] = Counter()
    with mark_folder(folder) as mark:

        def begin(call: Call) -> None:
            name, arguments = call
            tries[name] += 1
            running[remote.remote(mark, version, function, arguments)] = call

        try:
            while True:
                while len(running) < (most_calls or room(n_devices)):
                    call = next(waiting, None)
                    if call is None:
                        break
                    begin(call)
                if not running:
                    return
                (task,), _ = cluster.wait([*running], num_returns=1)
                name, _arguments = running[task]
                try:
                    sentence, is_done, reason = cluster.get(next(task))
                except Exception as error:
                    lost_call = running.pop(task)
                    if not is_lost(origin(error)) or tries[name] == _MOST_TRIES:
                        raise origin(error) from None
                    say(f"{name} begins again elsewhere: {explain(error)}")
                    begin(lost_call)
                    continue
                if is_done:
                    del running[task]
                    yield name, reason
                else:
                    say(f"{name}: {sentence}")
        finally:
            for task in running:
                cluster.cancel(task, force=True)


def _run_call(
    mark: Path,
    version: str,
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> Iterator[tuple[str, bool, str | None]]:
    """Iterate over sentences, whether the call is done, and why this machine could not."""
    node = platform.node()
    node_version = package_version() if mark.exists() else None
    reason = None
    if node_version is None:
        reason = f"{node} does not see the run's folder"
    elif node_version != version:
        reason = f"{node} has mia-batch {node_version}, the run {version}"
    else:
        sentences: SimpleQueue[str | None] = SimpleQueue()
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(function, *arguments, sentences.put)
            call.add_done_callback(lambda _: sentences.put(None))
            for sentence in iter(sentences.get, None):
                yield sentence, False, None
        try:
            call.result()
        except RequestError as error:
            reason = f"on {node}, {error}"
    yield "", True, reason


# Calls on the cores of a cluster, as `in_background` makes them in threads of this
# machine.

_CALLS_A_CORE = 2  # one that runs, and the next
_ONE_CORE = {"POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1"}
_functions: dict[Any, Callable[..., object]] = {}


@contextmanager
def spread(address: str, folder: Path) -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls wherever a core of the cluster is free.

    Calls write in ``folder``, so those on a machine that does not see it are done here.
    """
    running: dict[ObjectRef[Any], tuple[Callable[..., object], tuple[object, ...]]] = {}
    function_refs: dict[int, Any] = {}

    def wait_until(n_running: int) -> None:
        while len(running) > n_running:
            (ref,), _ = cluster.wait([*running], num_returns=1)
            function, arguments = running.pop(ref)
            try:
                is_done = cluster.get(ref)
            except Exception as error:
                raise origin(error) from None
            if not is_done:
                function(*arguments)

    def run(function: Callable[..., object], *arguments: object) -> None:
        wait_until(most_running - 1)
        if id(function) not in function_refs:
            function_refs[id(function)] = cluster.put(function)
        ref = remote.remote(mark, [function_refs[id(function)]], arguments)
        running[ref] = function, arguments

    with connected(address), mark_folder(folder) as mark:
        cluster = _cluster()
        remote = cluster.remote(_call).options(
            num_cpus=1, runtime_env={"env_vars": _ONE_CORE}
        )
        n_cores = int(cluster.cluster_resources().get("CPU", 1))
        most_running = max(1, _CALLS_A_CORE * n_cores)
        try:
            yield run
            wait_until(0)
        finally:
            for ref in running:
                cluster.cancel(ref, force=True)


def _call(mark: Path, function_refs: list[Any], arguments: tuple[object, ...]) -> bool:
    """Do a call, where the folder is seen; each process of the cluster keeps its functions."""
    if not mark.exists():
        return False
    (ref,) = function_refs
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
    """One engine of a run."""

    name: str
    actor: Any  # a handle, whose methods Ray makes up
    report: WorkerReport | None = None  # once it is ready
    in_hand: int = 0  # blocks
    blocks: int = 0  # done, and so are
    tokens: int = 0
    ready: float = 0.0  # since when

    @property
    def shared(self) -> bool:
        return self.report is not None and self.report.shared


@dataclass(frozen=True, eq=False, slots=True)
class AssignedBlock:
    """A block of a job at a worker."""

    worker: Worker
    job: int
    block: Block
    n_lost: int  # workers that had it before


class Pool:
    """Keeps so many engines on the cluster, None: all that it has room for; must be closed."""

    def __init__(
        self,
        start: Start,
        *,
        n_workers: int | None,
        name: str,
        say: Callable[[str], None],
    ) -> None:
        self._ray = _cluster()
        self._start = self._ray.put(start)
        self._n_devices = start.spec.tensor_parallel_size
        self._n_workers = n_workers
        self._name = name
        self._say = say
        self._starting: dict[ObjectRef[Any], Worker] = {}
        self._assigned: dict[ObjectRef[Any], AssignedBlock] = {}
        self._n_started = 0
        self._n_refused = 0
        self._n_failed = 0  # in a row
        self._first_report: WorkerReport | None = None
        self.workers: list[Worker] = []

    def wait_for_first(self) -> WorkerReport:
        """Return the report of the first worker that is ready."""
        last_sentence = time.monotonic()
        while (report := self._first_report) is None:
            for _ in self.events():
                pass
            if time.monotonic() - last_sentence > _SECONDS_BEFORE_SAYING:
                free = self._ray.available_resources()
                total = self._ray.cluster_resources()
                counts = [
                    f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s"
                    for kind in ("CPU", "GPU")
                ]
                self._say(
                    f"waiting for the cluster to start {self._name}:"
                    f" {' and '.join(counts)} are free"
                )
                last_sentence = time.monotonic()
        return report

    def hand(
        self,
        worker: Worker,
        job: int,
        task_ref: ObjectRef[Any],
        block: Block,
        n_lost: int,
    ) -> None:
        ref: ObjectRef[Any] = worker.actor.work.remote(job, [task_ref], block)
        self._assigned[ref] = AssignedBlock(worker, job, block, n_lost)
        worker.in_hand += 1

    def events(self) -> Iterator[tuple[AssignedBlock, BlockAnswer | Exception]]:
        """Wait a while; iterate over answers. A block of a worker that is lost has an error."""
        self._fill()
        refs = [*self._starting, *self._assigned]
        ready: list[Any] = self._ray.wait(
            refs, num_returns=1, timeout=_SECONDS_TO_LOOK
        )[0]
        if ready:
            ready = self._ray.wait(refs, num_returns=len(refs), timeout=0)[0]
        for ref in ready:
            if ref in self._starting:
                self._handle_result(ref)
            elif ref in self._assigned:
                yield self._fetch_result(ref)

    def states(self) -> list[WorkerState]:
        """Return what each worker does; those that start come last."""
        blocks = defaultdict(list)
        for assigned in self._assigned.values():
            blocks[assigned.worker].append(str(assigned.block.index))
        now = time.monotonic()
        starting = self._starting.values()
        states = []
        for worker in self.workers:
            name = worker.name
            if worker.report:
                name = f"{name} on {worker.report.node}"
            activity = "idle"
            if blocks[worker]:
                activity = f"blocks {', '.join(blocks[worker])}"
            tokens_per_second = worker.tokens / max(now - worker.ready, 1e-9)
            states.append(WorkerState(name, activity, worker.blocks, tokens_per_second))
        return states + [
            WorkerState(worker.name, "starting", 0, 0.0) for worker in starting
        ]

    def close(self) -> None:
        for worker in [*self.workers, *self._starting.values()]:
            self._ray.kill(worker.actor)
        self.workers.clear()

    def _fill(self) -> None:
        """Start workers in place of those that are missing."""
        n_wanted = room(self._n_devices) if self._n_workers is None else self._n_workers
        n_wanted = max(n_wanted - self._n_refused, 1)
        while len(self.workers) + len(self._starting) < n_wanted:
            self._n_started += 1
            name = f"{self._name} {self._n_started}"
            actor_class = self._ray.remote(EngineWorker).options(
                name=name,
                max_restarts=0,
                max_concurrency=_THREADS,
                **resources(self._n_devices),
            )
            worker = Worker(name, actor_class.remote(name))
            self._starting[worker.actor.start.remote(self._start)] = worker

    def _handle_result(self, ref: ObjectRef[Any]) -> None:
        """Add a worker that has started, or leave it out."""
        worker = self._starting.pop(ref)
        first = self._first_report
        try:
            report = worker.report = self._ray.get(ref)
            if first is not None and report.info != first.info:
                raise EngineError(  # noqa: TRY301 - left out like one that cannot start
                    f"its engine is {report.info}, the others {first.info}"
                )
        except Exception as error:
            self._ray.kill(worker.actor)
            self._n_failed += 1
            cause = origin(error)
            if first is None and isinstance(cause, MiaBatchError):
                raise cause from None
            if self._n_failed >= _MOST_FAILED_STARTS and not self.workers:
                raise EngineError(f"no worker can start: {explain(error)}") from None
            if isinstance(cause, MiaBatchError):
                self._n_refused += 1
            self._say(f"{worker.name} is left out: {explain(error)}")
            return
        self._n_failed = 0
        self._first_report = first or report
        worker.ready = time.monotonic()
        self.workers.append(worker)
        self._say(f"{worker.name} is ready on {report.node}")

    def _fetch_result(
        self, ref: ObjectRef[Any]
    ) -> tuple[AssignedBlock, BlockAnswer | Exception]:
        """Return a block with its answer, or with the error of its worker."""
        assigned = self._assigned.pop(ref)
        worker = assigned.worker
        worker.in_hand -= 1
        try:
            answer: BlockAnswer = self._ray.get(ref)
        except Exception as error:
            if is_lost(error) and worker in self.workers:
                self.workers.remove(worker)  # another is started in its place
                self._ray.kill(worker.actor)
                self._say(
                    f"{worker.name} is lost, its blocks go to others: {explain(error)}"
                )
            return assigned, error
        worker.blocks += 1
        worker.tokens += sum(tokens for _, tokens, _ in answer.counts)
        return assigned, answer


Output = TypeVar("Output")

_IN_HAND = 2  # blocks of a worker: the one that it works on, and the next
_LOST_REASON = f"{_MOST_TRIES} workers were lost that had this text's block in hand"
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
        self._pool = pool
        self._say = say
        self._show = show
        # The tokenizer of every worker, see `Tokenizer.toggle_start`
        self._is_turned = is_turned
        self._last_shown = 0.0

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        on_answer: OnAnswer,
        keep: Callable[[Block, pl.DataFrame], Output],
    ) -> Iterator[tuple[Block, Output]]:
        pool, job = self._pool, next(_JOBS)
        new_blocks = iter(blocks)
        all_open, n_open = False, 0
        # And how many workers each has lost
        waiting: deque[tuple[Block, int]] = deque()
        task_refs: dict[bool, ObjectRef[Any]] = {}  # the same for all blocks
        while True:
            for worker in self._with_room():
                if not waiting:
                    block = next(new_blocks, None)
                    if block is None:
                        all_open = True
                        break
                    waiting.append((block, 0))
                    n_open += 1
                shared = worker.shared
                if shared not in task_refs:
                    content = task, keep if shared else _keep_rows, self._is_turned
                    task_refs[shared] = _cluster().put(content)
                pool.hand(worker, job, task_refs[shared], *waiting.popleft())
            if all_open and not n_open:
                return
            self._show_states()
            for assigned, answer in pool.events():
                if assigned.job != job:  # of one that was not waited for to its end
                    continue
                if isinstance(answer, Exception):
                    _raise_unless_lost(assigned, answer)
                    n_lost = assigned.n_lost + 1
                    if n_lost < _MOST_TRIES:
                        waiting.append((assigned.block, n_lost))
                        continue
                    on_answer(assigned.block.label, assigned.block.units.height, 0, 0)
                    rows = refuse(task, assigned.block, _LOST_REASON)
                    output = keep(assigned.block, rows)
                else:
                    self._report(assigned, answer, on_answer)
                    output = answer.output
                    if not assigned.worker.shared:
                        output = keep(assigned.block, output)
                n_open -= 1
                yield assigned.block, output

    def _show_states(self) -> None:
        if time.monotonic() - self._last_shown > _SECONDS_BETWEEN_STATES:
            self._show(self._pool.states())
            self._last_shown = time.monotonic()

    def _report(
        self, assigned: AssignedBlock, answer: BlockAnswer, on_answer: OnAnswer
    ) -> None:
        on_answer(assigned.block.label, assigned.block.units.height, 0, 0)
        for label, tokens, passes in answer.counts:
            on_answer(label, 0, tokens, passes)
        for sentence in answer.sentences:
            self._say(f"{assigned.worker.name}: {sentence}")

    def _with_room(self) -> Iterator[Worker]:
        """Iterate over workers that can take a block, those that have none in hand first."""
        for depth in range(_IN_HAND):
            workers = self._pool.workers
            yield from [worker for worker in workers if worker.in_hand == depth]


def _raise_unless_lost(assigned: AssignedBlock, error: Exception) -> None:
    if is_lost(error):
        return
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        raise cause
    raise EngineError(
        f"{assigned.worker.name} cannot go on: {explain(error)}"
    ) from error


def _keep_rows(_: Block, rows: pl.DataFrame) -> pl.DataFrame:
    return rows


# What the core asks of this executor, with `spread` and `obstacle`.


@contextmanager
def engines(
    audit: Audit, model: RunModel, spec: EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, EngineInfo]]:
    settings, say = audit.settings, audit.observer.stage
    n_workers = None
    if settings.workers not in (None, "auto"):
        n_workers = int(str(settings.workers))
    n_cores = _count_cores(n_workers, spec.tensor_parallel_size)
    with connected(settings.ray, n_cores), mark_folder(audit.run.folder) as mark:
        start = Start(
            spec=spec,
            tokenizer=tokenizer,
            strides=settings.long_texts == "stride",
            digest=audit.find_source(model)["digest"],
            version=package_version(),
            mark=mark,
            texts=tuple(choose_start_texts(audit, model)) if tokenizer else (),
        )
        name = f"mia-batch {spec.kind} of {model}"
        pool = Pool(start, n_workers=n_workers, name=name, say=say)
        try:
            report = pool.wait_for_first()
            if tokenizer is not None:
                settle_start(audit, model, tokenizer, report.figures)
            is_turned = tokenizer is not None and tokenizer.is_start_toggled
            executor = RayExecutor(
                pool, say, audit.observer.at_work, is_turned=is_turned
            )
            yield executor, report.info
            for worker in pool.workers:
                say(
                    f"{worker.name}: {worker.blocks:,} blocks, {worker.tokens:,} tokens"
                )
        finally:
            pool.close()


def _count_cores(n_workers: int | None, n_devices: int) -> int:
    """Count the cores of a Ray of this machine alone, which has room for all workers."""
    return max(os.cpu_count() or 1, (n_workers or 1) * n_devices)


def trained(
    settings: Settings,
    folder: Path,
    jobs: Iterator[TrainingJob],
    say: Callable[[str], None],
) -> Generator[tuple[str, TrainedModel]]:
    """Let machines that see the run's folder make the models there, then resume each here."""
    under_way: dict[str, tuple[TrainingConfig, Path]] = {}

    def calls() -> Iterator[Call]:
        for name, config, path in jobs:
            under_way[name] = config, path
            yield name, (config.digest, replace(config), path.resolve())

    most_calls = settings.workers if isinstance(settings.workers, int) else None
    n_devices = settings.tensor_parallel_size
    train_or_load = extra("models", "tuned").train_or_load
    with connected(settings.ray, _count_cores(most_calls, n_devices)):
        for name, reason in call_on_machines(
            _train, calls(), folder, say, n_devices=n_devices, most_calls=most_calls
        ):
            if reason is not None:
                say(f"{name} is tuned on this machine: {reason}")
            yield (
                name,
                train_or_load(
                    *under_way.pop(name), partial(report_on_model, say, name)
                ),
            )


def _train(
    digest: str, config: TrainingConfig, path: Path, say: Callable[[str], None]
) -> None:
    """Make a model on another machine, if its base is the same there."""
    if config.digest != digest:
        raise SettingsError(
            f"{config.base} is another model than the run's: its digest differs"
        )
    extra("models", "tuned").train_or_load(config, path, say)
