"""Where models are tuned: beside each other on this machine, or on those of a cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError
from mia_batch.evidence.executors.ray.cluster import connected
from mia_batch.finetuning.beside import made_beside, shares
from mia_batch.finetuning.making import made_of
from mia_batch.tables.files import is_followed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from mia_batch.evidence.executors.ray.tasks import Call
    from mia_batch.finetuning.beside import Wanted
    from mia_batch.finetuning.making import Made, Making
    from mia_batch.settings import Settings

__all__ = ["trained"]


def trained(
    settings: Settings, folder: Path, wanted: Iterator[Wanted], say: Callable[[str], None]
) -> Generator[tuple[str, Made]]:
    """Make models, as many at once as the settings want workers; yield each as it is there."""
    if settings.ray is not None:
        if not is_followed(folder / "run.json"):
            yield from _on_cluster(settings, folder, wanted, say)
            return
        say("models are tuned on this machine: no other sees the folder of a run in a store")
    n = settings.workers if isinstance(settings.workers, int) else None
    shared = shares(n, settings.tensor_parallel_size) if settings.workers else [{}]
    yield from made_beside(wanted, shared, say)


def _on_cluster(
    settings: Settings, folder: Path, wanted: Iterator[Wanted], say: Callable[[str], None]
) -> Generator[tuple[str, Made]]:
    """Let machines that see the run's folder make the models there, then take each up here."""
    from mia_batch.evidence.executors.ray.tasks import on_machines

    begun: dict[str, tuple[Making, Path]] = {}

    def calls() -> Iterator[Call]:
        for name, making, path in wanted:
            begun[name] = making, path
            yield name, (making.digest, replace(making), path.resolve())

    with connected(settings.ray):
        most = settings.workers if isinstance(settings.workers, int) else None
        each = settings.tensor_parallel_size
        for name, reason in on_machines(_make, calls(), folder, say, each=each, most=most):
            if reason is not None:
                say(f"{name} is tuned on this machine: {reason}")
            yield name, made_of(*begun.pop(name), partial(_named, say, name))


def _make(digest: str, making: Making, path: Path, say: Callable[[str], None]) -> None:
    """Make a model on another machine, if its base is the same there."""
    if making.digest != digest:
        msg = f"{making.base} is another model than the run's: its digest differs"
        raise SettingsError(msg)
    made_of(making, path, say)


def _named(say: Callable[[str], None], name: str, sentence: str) -> None:
    say(f"{name}: {sentence}")
