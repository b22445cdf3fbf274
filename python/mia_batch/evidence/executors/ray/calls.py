"""Calls on the cores of a cluster, as `in_background` makes them in threads of this machine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mia_batch.evidence.executors.ray.cluster import marked
from mia_batch.evidence.executors.ray.failures import origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ray import ObjectRef

__all__ = ["on_cluster"]

_WAITING = 2  # calls for each core: one that runs, and the next
_ONE_CORE = {"POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1"}
_functions: dict[Any, Callable[..., object]] = {}


@contextmanager
def on_cluster(folder: Path) -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls wherever a core of the connected cluster is free.

    Function and arguments can be pickled. Calls write in ``folder``, so those on a machine that
    does not see it are done here. What a call raises is raised by a later one, or at the end.
    """
    import ray

    remote = ray.remote(_call).options(num_cpus=1, runtime_env={"env_vars": _ONE_CORE})
    cluster: Any = ray
    most = max(1, _WAITING * int(cluster.cluster_resources().get("CPU", 1)))
    running: dict[ObjectRef[Any], tuple[Callable[..., object], tuple[object, ...]]] = {}
    sent: dict[int, Any] = {}

    def finish(most: int) -> None:
        while len(running) > most:
            for ref in cluster.wait([*running], num_returns=1)[0]:
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

    with marked(folder) as mark:
        try:
            yield run
            finish(0)
        finally:
            for ref in running:
                cluster.cancel(ref, force=True)


def _call(mark: Path, sent: list[Any], arguments: tuple[object, ...]) -> bool:
    """Do a call, where the folder is seen; each process of the cluster keeps what it was sent."""
    import ray

    if not mark.exists():
        return False
    (ref,) = sent
    if ref not in _functions:
        _functions[ref] = ray.get(ref)
    _functions[ref](*arguments)
    return True
