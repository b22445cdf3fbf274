"""Where models are tuned: one after another in this process, or on the machines of a cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from os import cpu_count
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError
from mia_batch.evidence.executors.ray.cluster import connected
from mia_batch.finetuning.making import made_of
from mia_batch.tables.files import is_followed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from mia_batch.evidence.executors.ray.tasks import Call
    from mia_batch.finetuning.making import Made, Making, Wanted
    from mia_batch.settings import Settings

__all__ = ["trained"]


def trained(
    settings: Settings, folder: Path, wanted: Iterator[Wanted], say: Callable[[str], None]
) -> Generator[tuple[str, Made]]:
    """Make models, several at once on Ray where the settings want it; yield each as it is there."""
    if settings.on_cluster:
        if not is_followed(folder / "run.json"):
            yield from _on_cluster(settings, folder, wanted, say)
            return
        say("models are tuned one after another: no worker sees the folder of a run in a store")
    for name, making, path in wanted:
        yield name, made_of(making, path, partial(_named, say, name))


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

    most = settings.workers if isinstance(settings.workers, int) else None
    each = settings.tensor_parallel_size
    with connected(settings.ray, max(cpu_count() or 1, (most or 1) * each)):
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
