"""A real Ray cluster of several nodes on this machine, whose processes can be killed."""

from pathlib import Path
from typing import Any, Self

from mia_batch.evidence.request import EngineInfo
from mia_batch.extras.ray import WorkerReport
from tests.processes import children

JOINED = WorkerReport(
    info=EngineInfo(
        engine="none",
        version="0",
        device="none",
        dtype="float32",
        max_model_len=1024,
        max_sequences=64,
    ),
    node="here",
    shared=True,
)
"""What a worker without an engine says of itself."""
_LEAN = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
"""Of a head: programs of Ray's that no test looks at are not started."""


class Cluster:
    """A head without cores for engines, and nodes that have some; what it starts inherits this."""

    def __init__(self, *cores: int, **head: Any) -> None:
        # Takes a second in each worker
        from ray.cluster_utils import (
            Cluster as RayCluster,
        )

        args = {"num_cpus": 0, **_LEAN, **head}
        self._cluster: Any = RayCluster(initialize_head=True, head_node_args=args)
        self.nodes: list[Any] = []
        for n in cores:
            self.add(n)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cores: int) -> Any:
        self.nodes.append(self._cluster.add_node(wait=False, num_cpus=cores))
        return self.nodes[-1]

    def kill_raylet(self, node: Any) -> None:
        """Kill it as the system does: it can say nothing, and its node is lost."""
        node.kill_raylet(check_alive=False)
        self.nodes.remove(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()


def actors(node: Any) -> list[int]:
    """Processes of engines' actors on a node."""
    return _workers(node, "ray::EngineWorker")


def tasks(node: Any) -> list[int]:
    """Processes on a node that are in long calls."""
    return _workers(node, "ray::_called")


def _workers(node: Any, title: str) -> list[int]:
    (raylet,) = node.all_processes["raylet"]
    own = children(raylet.process.pid)
    return [pid for pid in own if _title(pid).startswith(title)]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
