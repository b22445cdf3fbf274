"""Other runs of the same texts and model beside this one: each was another try at its answer."""

from __future__ import annotations

import json
import os
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from mia_batch.corpus import digest_each, digest_of
from mia_batch.inference.findings import earlier_findings
from mia_batch.report import earlier_sentences
from mia_batch.storage import is_url

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.pipeline.context import Audit

__all__ = ["earlier_runs", "note_earlier"]

_MOST_FOLDERS, _MOST_LETTERS = 5_000, 100
_MOST_OF_A_FILE = 8 << 20
_FACTS = {
    "begin": ("times", "begin"),
    "plan": ("plan", "sha256"),
    "primary": ("plan", "primary"),
    "level": ("plan", "level"),
}


def earlier_runs(audit: Audit, texts: str) -> dict[str, dict[str, Any]]:
    """Find the runs of these ``texts`` (SHA-256 of the input) and this model beside this one.

    By folder name, what `Manifest.earlier` says of each. Of more than 5,000 folders the first by
    name are looked at; links are not followed, and a ``run.json`` that is large or broken is passed
    over. Nothing beside a run in an object store is looked at.
    """
    if is_url(audit.settings.place):
        return {}
    own = audit.run.folder.absolute()
    try:
        with os.scandir(own.parent) as entries:
            folders = (each.name for each in entries if each.is_dir(follow_symlinks=False))
            names = nsmallest(_MOST_FOLDERS, (name for name in folders if name != own.name))
    except OSError:
        return {}
    runs = ((name, _stored(own.parent / name / "run.json")) for name in names)
    return {
        _shown(name): {key: _shown(_of(stored, *keys)) for key, keys in _FACTS.items()}
        | {
            "n_attacks": len(attacks) if isinstance(attacks, list) else None,
            "finished": bool(_of(stored, "custody", "root")),
        }
        for name, stored in runs
        if _of(stored, "made", "targets", "input") == texts and _is_of_model(stored, audit)
        for attacks in [_of(stored, "settings", "attacks")]
    }


def note_earlier(audit: Audit, texts: str) -> None:
    """Record the earlier runs while this one is not finished, and say which they are.

    What a finished run says of them stays until its plan changes.
    """
    manifest = audit.manifest
    if not manifest.custody or manifest.plan.get("sha256") != audit.plan.digest():
        manifest.earlier |= earlier_runs(audit, texts)
    for sentence in earlier_sentences(earlier_findings(manifest.earlier)):
        audit.observer.stage(sentence)


def _is_of_model(stored: object, audit: Audit) -> bool:
    """Whether a run's model is this one, by its digest, else by its name and the recording."""
    own = audit.manifest.models["target"]["source"]
    other = _of(stored, "models", "target", "source")
    if own["digest"] and (digest := _of(other, "digest")):
        return bool(own["digest"] == digest)
    recording = audit.manifest.evidence.get("recording")
    if audit.recording is not None:
        recording = digest_of(digest_each(audit.recording.source.files))
    return own == other and recording == _of(stored, "evidence", "recording")


def _of(stored: object, *keys: str) -> object:
    for key in keys:
        stored = stored.get(key) if isinstance(stored, dict) else None
    return stored


def _shown(text: object) -> str:
    """Write out what cannot be printed, so that another's text does nothing where it is said."""
    plain = text if isinstance(text, str) else "unknown"
    return (plain if plain.isprintable() else ascii(plain))[:_MOST_LETTERS]


def _stored(path: Path) -> object:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, encoding="utf-8") as file:
            return json.loads(file.read(_MOST_OF_A_FILE))
    except (OSError, TypeError, ValueError, RecursionError):
        return None
