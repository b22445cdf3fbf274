"""Long calls on machines of a cluster, each of which says how far it is."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from mia_batch.errors import RequestError
from mia_batch.evidence.executors.ray.cluster import marked, resources, room
from mia_batch.evidence.executors.ray.failures import is_lost, origin, reason_of
from mia_batch.evidence.executors.ray.worker import package_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["Call", "on_machines"]

Call: TypeAlias = "tuple[str, tuple[object, ...]]"
"""What is made, by name, and the arguments of what makes it."""

_MOST_TRIES = 5  # of a call whose machines are lost


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

    It gets its arguments and a function that takes sentences, and leaves what it makes in
    ``folder``. Yields names as they are done: None, or why that machine could not. A call whose
    machine is lost begins again elsewhere. At most ``most`` at once; None: all that there is room
    for. Raises what a call raises.
    """
    import ray

    cluster: Any = ray
    remote = ray.remote(_called).options(num_returns="streaming", max_retries=0, **resources(each))
    left, version = iter(calls), package_version()
    running: dict[Any, Call] = {}
    tries: dict[str, int] = {}
    with marked(folder) as mark:

        def begin(call: Call) -> None:
            name, arguments = call
            tries[name] = tries.get(name, 0) + 1
            running[remote.remote(mark, version, function, arguments)] = call

        try:
            while True:
                while len(running) < (most or room(each)) and (call := next(left, None)):
                    begin(call)
                if not running:
                    return
                for task in cluster.wait([*running], num_returns=1)[0]:
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
                    if not done:
                        say(f"{name}: {sentence}")
                        continue
                    del running[task]
                    yield name, reason
        finally:
            for task in running:
                cluster.cancel(task, force=True)


def _called(
    mark: Path, version: str, function: Callable[..., object], arguments: tuple[object, ...]
) -> Iterator[tuple[str, bool, str | None]]:
    """Yield what a call says, whether it is done, and why it could not be."""
    node = platform.node()
    if not mark.exists():
        yield "", True, f"{node} does not see the run's folder"
        return
    if (own := package_version()) != version:
        yield "", True, f"{node} has mia-batch {own}, the run {version}"
        return
    said: SimpleQueue[str | None] = SimpleQueue()
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(function, *arguments, said.put)
        call.add_done_callback(lambda _: said.put(None))
        for sentence in iter(said.get, None):
            yield sentence, False, None
    try:
        call.result()
    except RequestError as error:
        yield "", True, f"on {node}, {error}"
        return
    yield "", True, None
