"""Other runs of the same texts and model, next to this one or in the user's journal of runs.

Each was another try at the same answer, so the answer counts them. They also tell how
fast a model answers.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from heapq import nsmallest
from math import inf
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import polars as pl

from mia_batch.corpus import combine_digests, digest_files
from mia_batch.inference.findings import earlier_findings
from mia_batch.pipeline import journal
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import speed_key
from mia_batch.places import is_url
from mia_batch.report import earlier_sentences

RunFacts: TypeAlias = dict[str, Any]
"""What is recorded of an earlier run: when it began, its plan, and whether it finished."""

_MAX_FOLDERS = 5_000
_MAX_LETTERS = 100
_MAX_MANIFEST_BYTES = 8 << 20


def list_earlier_runs(audit: Audit, texts: str) -> dict[str, RunFacts]:
    """Return the earlier runs of these texts and model by name; ``texts`` is their hash.

    To one that compares them, those that compared them with nothing do not count: they
    made no test.
    """
    runs: dict[str, RunFacts] = {}
    counts_all = not _needs_sets(audit)
    counted = {_identify_attempt(audit.run.folder, asdict(audit.manifest))}
    for name, manifest in iterate_neighbours(audit):
        has_asked = any(
            _look_up(manifest, key) for key in ("requests", "plan", "custody")
        )
        if not has_asked or _look_up(manifest, "made", "targets", "input") != texts:
            continue
        attempt = _identify_attempt(audit.run.folder.with_name(name), manifest)
        counted.add(attempt)
        if not (counts_all or _compares(attempt)):
            continue
        attacks = _look_up(manifest, "settings", "attacks")
        root = _look_up(manifest, "custody", "root")
        runs[name] = {
            "begin": _make_printable(_look_up(manifest, "times", "begin")),
            "plan": _make_printable(_look_up(manifest, "plan", "sha256")),
            "primary": _make_printable(_look_up(manifest, "plan", "primary")),
            "level": _make_printable(_look_up(manifest, "plan", "level")),
            "n_attacks": len(attacks) if isinstance(attacks, list) else None,
            "finished": bool(root),
            "root": root,
        }
    if is_url(audit.settings.place):
        return runs
    of_journal = _list_runs_of_journal(_hash_question(audit, texts), counted)
    return runs | {
        name: facts
        for (name, facts), attempt in of_journal
        if counts_all or _compares(attempt)
    }


def record_earlier_runs(
    audit: Audit, texts: str, own_attempt: dict[str, RunFacts] | None = None
) -> None:
    """Record the earlier runs, unless this one is finished by the same rule, and report them."""
    manifest = audit.manifest
    is_same = manifest.custody and manifest.plan.get("sha256") == audit.rule.digest()
    if own_attempt or not is_same:
        manifest.earlier |= list_earlier_runs(audit, texts) | (own_attempt or {})
    for sentence in describe_earlier_runs(audit, manifest.earlier):
        audit.observer.stage(sentence)


def describe_earlier_runs(audit: Audit, runs: Mapping[str, RunFacts]) -> Iterator[str]:
    """Iterate over sentences about earlier runs; of p-values where there will be any."""
    corpora = audit.corpora
    compares = bool(corpora.reference_sets.keys() - {"yardstick"})
    if not (compares or corpora.input.are_books):
        has_label = pl.col("member").is_not_null().any()
        labels = corpora.input.documents.select(has_label)
        compares = bool(labels.collect(engine="streaming").item())
    yield from earlier_sentences(earlier_findings(runs), compares=compares)


def describe_own_attempt(audit: Audit) -> dict[str, RunFacts]:
    """Return the answer that this folder has by now, if other comparison texts are given."""
    manifest = audit.manifest
    if "verdicts" not in manifest.made:
        return {}
    sets = audit.corpora.fingerprint(audit.settings)["reference_sets"]
    sets_before = manifest.made["targets"]["reference_sets"]
    roles = {*sets, *sets_before} - {"yardstick"}
    # What was compared with nothing had no p-value
    if not {*sets_before} - {"yardstick"} and _needs_sets(audit):
        return {}
    if all(sets.get(role) == sets_before.get(role) for role in roles):
        return {}
    name, facts = _describe_entry(_build_entry(audit))
    return {name: facts}


# The user's journal of runs.

_Attempt: TypeAlias = tuple[str, str, str]
"""Hash of the folder, when the run began, hash of what texts were compared with."""


def note_attempt(audit: Audit) -> None:
    """Enter a run that has answered in the journal of its user's runs."""
    if is_url(audit.settings.place):
        return
    fault = journal.add_entry(_build_entry(audit))
    if fault is not None:
        audit.observer.stage(
            f"the journal of your runs cannot be written ({fault}): runs in other"
            " folders will not count this one"
        )


def _list_runs_of_journal(
    question: str, counted: Collection[_Attempt]
) -> Iterator[tuple[tuple[str, RunFacts], _Attempt]]:
    """Iterate over what the journal has of a question beyond the attempts counted, by name."""
    for entry in journal.read_entries():
        folder, begin, compared = (
            _make_printable(entry.get(key)) for key in ("folder", "begin", "compared")
        )
        attempt = (folder, begin, compared)
        if entry.get("question") == question and attempt not in counted:
            yield _describe_entry(entry), attempt


def _compares(attempt: _Attempt) -> bool:
    return attempt[-1] != journal.hashed({})


def _needs_sets(audit: Audit) -> bool:
    """Return whether texts are compared with sets of their own, as they have no labels."""
    if not {*audit.corpora.reference_sets} - {"yardstick"}:
        return False
    documents = audit.corpora.input.documents
    if "member" not in documents.collect_schema():
        return True
    any_label = documents.select(pl.col("member").is_not_null().any())
    return not any_label.collect(engine="streaming").item()


def _identify_attempt(folder: Path, manifest: object) -> _Attempt:
    sets = _look_up(manifest, "made", "targets", "reference_sets")
    compared = dict(sets) if isinstance(sets, dict) else {}
    compared.pop("yardstick", None)
    return (
        journal.hashed(str(folder.absolute())),
        _make_printable(_look_up(manifest, "times", "begin")),
        journal.hashed(compared),
    )


def _build_entry(audit: Audit) -> dict[str, Any]:
    """Return the journal's entry of the answer that a run has by now, in hashes."""
    manifest, plan = audit.manifest, audit.manifest.plan
    folder, begin, compared = _identify_attempt(audit.run.folder, asdict(manifest))
    return {
        "question": _hash_question(audit, manifest.made["targets"]["input"]),
        "compared": compared,
        "folder": folder,
        "name": audit.run.folder.absolute().name,
        "begin": begin,
        "plan": plan.get("sha256"),
        "primary": plan.get("primary"),
        "level": plan.get("level"),
        "root": manifest.custody.get("root"),
    }


def _describe_entry(entry: Mapping[str, Any]) -> tuple[str, RunFacts]:
    """Return the name of a journal's entry, and what its run planned."""
    name, folder, begin, compared = (
        _make_printable(entry.get(key))
        for key in ("name", "folder", "begin", "compared")
    )
    facts: RunFacts = {
        key: _make_printable(entry.get(key))
        for key in ("begin", "plan", "primary", "level", "root")
    }
    facts |= {"n_attacks": None, "finished": True}
    return f"{name} ({folder[:6]}) of {begin}, compared with {compared[:6]}", facts


def _hash_question(audit: Audit, texts: str) -> str:
    """Return the hash of which texts are asked about of which model."""
    source = audit.manifest.models["target"]["source"]
    model = source["digest"]
    if not model:
        model = [source["name"], source["revision"], _find_recording_digest(audit)]
    return journal.hashed([texts, model])


def _find_recording_digest(audit: Audit) -> object:
    if audit.recording is not None:
        return combine_digests(digest_files(audit.recording.source.files))
    return audit.manifest.evidence.get("recording")


# Folders next to the run's.


def iterate_neighbours(audit: Audit) -> Iterator[tuple[str, object]]:
    """Iterate over the name and manifest of each run of this model next to this one."""
    # Links are not followed, and a ``run.json`` that is large or broken is passed over.
    if is_url(audit.settings.place):
        return
    folder = audit.run.folder.absolute()
    try:
        with os.scandir(folder.parent) as entries:
            names = (
                entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
            )
            others = (name for name in names if name != folder.name)
            first_names = nsmallest(_MAX_FOLDERS, others)
    except OSError:
        return
    for name in first_names:
        manifest = _read_manifest(folder.parent / name / "run.json")
        if _is_of_same_model(manifest, audit):
            yield _make_printable(name), manifest


def _is_of_same_model(manifest: object, audit: Audit) -> bool:
    """Return whether a run's model is this one: by digest, else by name and recording."""
    source = audit.manifest.models["target"]["source"]
    other_source = _look_up(manifest, "models", "target", "source")
    other_digest = _look_up(other_source, "digest")
    if source["digest"] and other_digest:
        return bool(source["digest"] == other_digest)
    other_recording = _look_up(manifest, "evidence", "recording")
    return source == other_source and _find_recording_digest(audit) == other_recording


def _look_up(content: object, *keys: str) -> object:
    """Return what lies under some keys of a stranger's JSON; None where it is not there."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _make_printable(text: object) -> str:
    """Write out what cannot be printed, so that another's text does nothing where it is shown."""
    plain = text if isinstance(text, str) else "unknown"
    return (plain if plain.isprintable() else ascii(plain))[:_MAX_LETTERS]


def _read_manifest(path: Path) -> object:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            return json.loads(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, TypeError, ValueError, RecursionError):
        return None


# How fast a model answered.

_SETTINGS_OF_PACE = (
    "samples",
    "probes",
    "token_points",
    "choice_orders",
    "neighbours",
    "paraphrases",
    "workers",
    "base_url",
    "max_concurrency",
)
"""Settings that change how fast answers come, next to those of evidence."""
_SETTINGS_OF_LENGTH = ("window_words", "window_characters", "text_length")


class _Asking(Protocol):
    """A stage that asks a model of the run, of which a dry run has foreseen the tokens."""

    name: str

    @property
    def kind(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def foreseen_views(self) -> Collection[str]: ...


def find_speeds(
    audit: Audit, stages: Iterable[_Asking]
) -> dict[str, tuple[float, str]]:
    """Return tokens a second by stage, and which run measured them: this one, else a neighbour.

    That run asked the same model the same questions, with the same engine and settings.
    """
    own_manifest = asdict(audit.manifest)
    runs: list[tuple[str, object]] = [(str(audit.run.folder), own_manifest)]
    runs += iterate_neighbours(audit)
    speeds = {}
    for stage in stages:
        session = f"{stage.kind} of {stage.model}"
        key = speed_key(session, stage.foreseen_views)
        pace = _list_what_sets_pace(own_manifest, stage)
        for name, manifest in runs:
            speed = _look_up(manifest, "times", "tokens_per_second", key)
            if not isinstance(speed, float) or not 0 < speed < inf:
                continue
            if _list_what_sets_pace(manifest, stage) != pace:
                continue
            info = _look_up(manifest, "engines", session)
            # What continues texts may be the engine that has read them
            info = info or _look_up(manifest, "engines", f"logprobs of {stage.model}")
            engine = _make_printable(_look_up(info, "engine"))
            place = _look_up(info, "device") or _look_up(info, "base_url")
            where = f"as {name} measured with {engine} on {_make_printable(place)}"
            speeds[stage.name] = speed, where
            break
    return speeds


def _list_what_sets_pace(manifest: object, stage: _Asking) -> list[object]:
    """Return what two runs must have in common for a stage to take as long a token."""
    evidence = _look_up(manifest, "evidence")
    settings: dict[str, object] = {}
    if isinstance(evidence, dict):
        settings = {**evidence, "seed": 0, "preset": ""}
    model = ("models", stage.model)
    source = _look_up(manifest, *model, "source")
    pace = [
        settings,
        _look_up(source, "digest") or source,
        _look_up(manifest, *model, f"{stage.kind} engine"),
    ]
    has_length = any(map(settings.get, _SETTINGS_OF_LENGTH))
    if {"probe", "token"} & {*stage.foreseen_views} and not has_length:
        # A token is asked, all of the text before it is read
        pace.append(_look_up(manifest, "made", "targets", "input"))
    return pace + [_look_up(manifest, "settings", name) for name in _SETTINGS_OF_PACE]
