"""Models that are made beside each other, each with its share of the machine."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from mia_batch.errors import EngineError
from mia_batch.finetuning import process as training
from mia_batch.finetuning.making import Made, made_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from mia_batch.finetuning.making import Making

__all__ = ["Share", "Wanted", "made_beside", "shares"]

Share: TypeAlias = "Mapping[str, str]"
"""Environment of a training, which says what it has of the machine."""
Wanted: TypeAlias = "tuple[str, Making, Path]"
"""A model's name in the run, what it is made of, and where."""


def shares(n: int | None, each: int = 1) -> list[Share]:
    """Share the machine out among ``n`` trainings: ``each`` so many GPUs, else as many cores.

    None: as many as fit. Trainings are fewer than ``n`` where there are fewer GPUs; on cores that
    is left to who asks, and so is OMP_NUM_THREADS where it is set.
    """
    gpus = _gpus()
    if gpus:
        places = [gpus[at : at + each] for at in range(0, len(gpus) - each + 1, each)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(place)} for place in places[:n]] or [{}]
    cores = len(os.sched_getaffinity(0))
    n = max(1, cores // each) if n is None else n
    own = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // n))}
    return [own] * n


def _gpus() -> list[str]:
    import torch

    n = torch.cuda.device_count()
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [name for name in known.split(",") if name][:n] or [str(each) for each in range(n)]


def made_beside(
    wanted: Iterable[Wanted], shared: Sequence[Share], say: Callable[[str], None]
) -> Generator[tuple[str, Made]]:
    """Make models as `made_of` does, one on each share; yield each as soon as it is there.

    What is wanted is looked at when there is room for it. ``say`` is called by the thread that
    asks for the next model. If one fails, or this is closed, all that are being made end; what
    they have learnt by then is kept.
    """
    news: SimpleQueue[str | tuple[str, Share, Made | BaseException]] = SimpleQueue()
    trainings = _Trainings()

    def make(share: Share, name: str, what: Making, path: Path) -> None:
        try:
            found: Made | BaseException = made_of(
                what,
                path,
                lambda sentence: news.put(f"{name}: {sentence}"),
                partial(trainings.start, share),
            )
        except BaseException as error:  # raised where the model is waited for
            found = error
        news.put((name, share, found))

    left, free = iter(wanted), [*reversed(shared)]
    threads = ThreadPoolExecutor(len(shared))
    try:
        while True:
            while free and (following := next(left, None)) is not None:
                threads.submit(make, free.pop(), *following)
            if len(free) == len(shared):
                return
            told = news.get()
            if isinstance(told, str):
                say(told)
                continue
            name, share, found = told
            if isinstance(found, BaseException):
                raise found
            free.append(share)
            yield name, found
    finally:
        trainings.end()
        threads.shutdown()


class _Trainings:
    """Processes that train, and end together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: list[subprocess.Popen[str]] = []
        self._ended = False

    def start(self, share: Share, work: Path, log: Path) -> subprocess.Popen[str]:
        with self._lock:
            if self._ended:
                msg = "another training has failed"
                raise EngineError(msg)
            process = training.spawn(work, log, share)
            self._running.append(process)
            return process

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._running:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.kill()  # if it has no group of its own yet
