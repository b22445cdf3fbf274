"""When models were asked, and how: what ``run.json`` says of time and requests."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import Manifest

_HERE = {
    "system_fingerprint": None,
    "tools": "none: the model ran on this machine and was given none",
    "web_search": "none: the model ran on this machine, without tools",
}
_REMOTE = {
    "tools": "none sent",
    "web_search": (
        "No tool was offered. A search that the provider makes by itself cannot be"
        " seen."
    ),
}


@contextmanager
def asking(audit: Audit) -> Iterator[None]:
    """Record when models of this machine were asked, from the first time to the last."""
    with audit.changing_manifest():
        audit.manifest.requests.setdefault("times", {}).setdefault("first", now())
        audit.save()
    try:
        yield
    finally:
        with audit.changing_manifest():
            audit.manifest.requests["times"]["last"] = now()


def record_requests(audit: Audit) -> None:
    """Say how models were asked, if anything changed; a recording does not tell."""
    manifest, journal = audit.manifest, audit.run.folder / "journal.sqlite"
    if manifest.custody or not manifest.requests:
        return
    if manifest.source != "endpoint":
        manifest.requests = {"endpoint": None, **manifest.requests, **_HERE}
        return
    with Journal(journal) as answers:
        found = answers.answered()
    found["times"]["each"] = "journal.sqlite: sent of each row of answers"
    manifest.requests = {"endpoint": audit.settings.base_url, **found, **_REMOTE}


def add_seconds(manifest: Manifest, seconds: Mapping[str, float]) -> None:
    known = manifest.times.get("seconds", {})
    both = {
        name: round(known.get(name, 0.0) + took, 3) for name, took in seconds.items()
    }
    manifest.times |= {"end": now(), "seconds": known | both}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
