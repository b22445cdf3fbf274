"""What Ray's errors say: who failed, and why."""

from __future__ import annotations

from mia_batch.errors import EngineError, MiaBatchError

__all__ = ["is_full", "is_lost", "origin", "reason_of"]


def origin(error: Exception) -> Exception:
    """Return what was raised on the other side, where Ray has wrapped it."""
    return getattr(error, "cause", None) or error


def is_full(error: Exception) -> bool:
    """Whether an error says that a machine holds no more objects, in memory or on its disk."""
    from ray import exceptions

    return isinstance(origin(error), (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError))


def is_lost(error: Exception) -> bool:
    """Whether an error says that a worker is gone, or that its engine cannot go on."""
    from ray import exceptions

    gone = (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.ObjectLostError,
        exceptions.NodeDiedError,
    )
    return isinstance(error, gone) or isinstance(origin(error), EngineError)


def reason_of(error: Exception) -> str:
    """Say in one line why; Ray's own reports are pages."""
    cause = origin(error)
    if isinstance(cause, MiaBatchError):
        return str(cause)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [repr(cause)]
    said = next((line for line in lines if line.startswith("The actor is dead")), lines[0])
    return said.partition(". ")[0]
