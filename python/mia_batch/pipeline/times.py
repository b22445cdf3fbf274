"""When a run was made: wall times of its stages, and of what was asked of models."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mia_batch.errors import RunFolderError
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.pipeline.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mia_batch.pipeline.context import Audit
    from mia_batch.pipeline.stages.stage import Stage

__all__ = ["asking", "record_requests", "run_timed"]

_HERE = {
    "system_fingerprint": None,
    "tools": "none: the model ran on this machine and was given none",
    "web_search": "none: the model ran on this machine, without tools",
}
_REMOTE = {
    "tools": "none sent",
    "web_search": "No tool was offered. A search that the provider makes by itself cannot be seen.",
}


def run_timed(audit: Audit, steps: Iterable[tuple[Stage, Callable[[], None]]]) -> None:
    """Take steps of stages and record how long each stage took, if anything changed.

    Of a call that stops on its way, what is stored is completed by the times alone.
    """
    if not audit.manifest.made:  # else an older version began it
        audit.manifest.times.setdefault("begin", _now())
    seconds: defaultdict[str, float] = defaultdict(float)
    try:
        for stage, step in steps:
            start = time.monotonic()
            try:
                step()
            finally:
                seconds[stage.name] += time.monotonic() - start
    except BaseException:
        with suppress(RunFolderError, OSError), audit.turn:
            stored = Manifest.of(audit.run.folder)
            if stored and not stored.custody:
                _add(stored, seconds)
                stored.write(audit.run.folder)
        raise
    if not audit.manifest.custody:
        _add(audit.manifest, seconds)


@contextmanager
def asking(audit: Audit) -> Iterator[None]:
    """Record when models of this machine were asked, from the first time to the last."""
    times = audit.manifest.requests.setdefault("times", {})
    times.setdefault("first", _now())
    audit.save()
    try:
        yield
    finally:
        times["last"] = _now()


def record_requests(audit: Audit) -> None:
    """Say how models were asked, if anything changed; a recording does not tell."""
    manifest, journal = audit.manifest, audit.run.folder / "journal.sqlite"
    if manifest.custody or not manifest.requests:
        return
    if manifest.evidence["engine"] != "openai":
        manifest.requests = {"endpoint": None, **manifest.requests, **_HERE}
        return
    with Journal(journal) as answers:
        found = answers.answered()
    found["times"]["each"] = "journal.sqlite: sent of each row of answers"
    manifest.requests = {"endpoint": audit.settings.base_url, **found, **_REMOTE}


def _add(manifest: Manifest, seconds: Mapping[str, float]) -> None:
    known = manifest.times.get("seconds", {})
    both = {name: round(known.get(name, 0.0) + took, 3) for name, took in seconds.items()}
    manifest.times |= {"end": _now(), "seconds": known | both}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
