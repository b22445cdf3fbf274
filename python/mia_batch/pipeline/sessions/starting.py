"""Starts what works on blocks: an engine of this machine, or many on a cluster."""

from __future__ import annotations

from contextlib import contextmanager
from os import cpu_count
from typing import TYPE_CHECKING

from mia_batch.evidence.executors.local import LocalExecutor
from mia_batch.evidence.executors.ray.cluster import connected, marked
from mia_batch.evidence.local import LocalSource
from mia_batch.pipeline.choice import is_made
from mia_batch.tables.background import in_background
from mia_batch.tables.files import is_followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from mia_batch.evidence.executors.executor import Executor
    from mia_batch.evidence.request import EngineInfo, EngineSpec
    from mia_batch.models.tokens import Tokenizer
    from mia_batch.pipeline.context import Audit

__all__ = ["spread", "started"]


@contextmanager
def spread(audit: Audit) -> Iterator[Callable[..., None]]:
    """Lend a function that runs calls in threads, or on the cores of a cluster of machines."""
    settings, folder = audit.settings, audit.run.folder
    if settings.ray is None or is_followed(folder / "run.json"):
        with in_background() as later:
            yield later
        return
    from mia_batch.evidence.executors.ray.calls import on_cluster

    with connected(settings.ray), on_cluster(folder) as later:
        yield later


def started(
    audit: Audit, model: str, spec: EngineSpec, tokenizer: Tokenizer | None
) -> AbstractContextManager[tuple[Executor, EngineInfo]]:
    """Start engines with one of the run's models, where the settings want them."""
    if audit.settings.on_cluster:
        return _on_cluster(audit, model, spec, tokenizer)
    return _here(audit, model, spec, tokenizer)


@contextmanager
def _here(
    audit: Audit, model: str, spec: EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, EngineInfo]]:
    with audit.kept.lent(spec, audit.run.engine_log, keep=is_made(model)) as engine:
        source = LocalSource(engine, tokenizer, strides=audit.settings.long_texts == "stride")
        yield LocalExecutor(source, source.restart, audit.observer.stage), engine.info


@contextmanager
def _on_cluster(
    audit: Audit, model: str, spec: EngineSpec, tokenizer: Tokenizer | None
) -> Iterator[tuple[Executor, EngineInfo]]:
    from mia_batch.evidence.executors.ray.executor import RayExecutor
    from mia_batch.evidence.executors.ray.pool import Pool
    from mia_batch.evidence.executors.ray.worker import Start, package_version

    settings, say = audit.settings, audit.observer.stage
    wanted = None if settings.workers in (None, "auto") else int(str(settings.workers))
    cores = max(cpu_count() or 1, (wanted or 1) * spec.tensor_parallel_size)
    with connected(settings.ray, cores), marked(audit.run.folder) as mark:
        start = Start(
            spec=spec,
            tokenizer=tokenizer,
            strides=settings.long_texts == "stride",
            digest=audit.source(model)["digest"],
            version=package_version(),
            mark=mark,
        )
        pool = Pool(start, wanted=wanted, name=f"mia-batch {spec.kind} of {model}", say=say)
        try:
            first = pool.first()
            yield RayExecutor(pool, say, audit.observer.at_work), first.info
            for worker in pool.workers:
                say(f"{worker.name}: {worker.blocks:,} blocks, {worker.tokens:,} tokens")
        finally:
            pool.close()
