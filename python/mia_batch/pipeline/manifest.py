"""``run.json``: what made a run's tables, when, and who may use the folder."""

from __future__ import annotations

import fcntl
import json
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.endpoint.client import Journal
from mia_batch.evidence.parts import Shard
from mia_batch.tables import write_text

if TYPE_CHECKING:
    from mia_batch.pipeline.context import Audit
    from mia_batch.pipeline.stages.stage import Stage


_FORMAT = 3
_COUNTS = ("passes", "seconds")
_OF_BOTH: dict[str, Any] = {"begin": min, "first": min, "end": max, "last": max}
_PACKAGES = ("mia-batch", "polars", "numpy", "torch", "transformers", "tokenizers", "httpx")


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The contents of ``run.json``: what made a run's tables.

    Attributes
    ----------
    evidence
        What changes a sample, by name: settings as they resolved, and digests.
    engine_choice
        Why the engine was taken.
    models
        By name in the run: source, revision and digest of each model, its tokenizer's digest, and
        what gave its evidence.
    engines
        By kind of evidence and model, what the engine said of itself when it last started.
    settings
        All settings of the latest request.
    input
        Files and number of documents of the corpus.
    targets
        ``total``, and by reason how many targets cannot be sampled.
    passes
        Forward passes that gave log-probabilities, by model and view.
    plan
        What the run was to decide and how, with its SHA-256, as it was before the first score.
    made
        By stage, what its tables were made from.
    inputs
        SHA-256 of each file that was read, by the setting that names it and its name below that.
    custody
        ``root``, and the SHA-256 of each file of the finished run: ``tables``, which the root
        covers beside ``inputs``, and ``files``; empty while the run is not finished.
    times
        ``begin`` of the first call and ``end`` of the last that changed something, in UTC, and
        ``seconds`` of each stage over all calls.
    requests
        ``endpoint``; ``times`` of what was asked of models; ``system_fingerprint``, requests by the
        version that the provider named; ``tools`` and ``web_search``; empty for a recording.
    controls
        Of ``any`` control the passages that came out and how many are common; of each how many were
        looked at and how many were repeated; empty without ``controls``.
    failed
        ``targets`` that lack evidence although they could be asked about, of how many (``of``), and
        their ``reasons`` with counts; empty until there is evidence.
    earlier
        Other runs of these texts and this model in folders beside this one, by folder name:
        ``begin``, SHA-256 of the ``plan``, ``primary`` attack, ``level``, ``n_attacks`` and whether
        it was ``finished`` when this run last changed; ``unknown`` where it does not say.
    """

    format: int = _FORMAT
    evidence: dict[str, Any] = field(default_factory=dict)
    engine_choice: str = ""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    custody: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    controls: dict[str, Any] = field(default_factory=dict)
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)
    _stored: str = field(default="", init=False, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Path) -> Manifest | None:
        """Read a run's manifest; None where the run has not begun."""
        path = folder / "run.json"
        try:
            text = path.read_text("utf-8")
            stored = json.loads(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            raise RunFolderError(f"{path} cannot be read ({cause}); give another folder") from None
        if not isinstance(stored, dict) or "evidence" not in stored:
            raise RunFolderError(f"{path} is not a run's manifest; give another folder")
        if (made_by := stored.get("format", 1)) != _FORMAT:
            raise RunFolderError(
                f"{folder} was made by another version of mia-batch (format {made_by} of its "
                f"tables, this version has {_FORMAT}); go on with that version, or choose another "
                "--out: a folder of its samples can be given as --samples-from"
            )
        manifest = cls(**{name: stored[name] for name in _names() if name in stored})
        manifest._stored = text
        return manifest

    def write(self, folder: Path) -> None:
        """Store the manifest in the run's folder, and in it what others have stored since.

        Whoever calls it keeps others from the folder meanwhile.
        """
        self.take_in(folder)
        content = {name: getattr(self, name) for name in _names()}
        self._stored = signed_text(content | {"versions": _versions()})
        write_text(folder / "run.json", self._stored)

    def take_in(self, folder: Path) -> None:
        """Take in what other shards have stored since this manifest was read or stored.

        What only one side has changed since then stays changed. Of what both have changed, numbers
        that count add up, the first beginning and the last end stay, and else this side's value.
        Raises `SettingsError` if their evidence, or a model of theirs, is another.
        """
        theirs = Manifest.of(folder) if self._stored else None
        if theirs is None or theirs._stored == self._stored:
            return
        before = json.loads(self._stored)
        found, own = ({name: getattr(each, name) for name in _names()} for each in (theirs, self))
        _agree(_changed(theirs.evidence, before["evidence"]), self.evidence, folder)
        for name, model in self.models.items():
            changed = _changed(theirs.models.get(name, {}), before["models"].get(name, {}))
            _agree(changed, model, folder, of=f" of model {name!r}")
        _join(own, before, found)
        self._stored = theirs._stored
        for name in _names():
            setattr(self, name, own[name])

    def agree(self, wanted: Mapping[str, Any], folder: Path) -> None:
        """Record values that change evidence; `SettingsError` names all that differ from before."""
        _agree(self.evidence, wanted, folder)

    def agree_model(self, name: str, wanted: Mapping[str, Any], folder: Path) -> None:
        """Record what identifies a model, likewise."""
        model = self.models.setdefault(name, {})
        _agree(model, wanted, folder, of=f" of model {name!r}")


def _names() -> list[str]:
    return [item.name for item in fields(Manifest) if item.init]


def _join(mine: dict[str, Any], base: Any, theirs: dict[str, Any], *, counts: bool = False) -> None:  # noqa: ANN401 - JSON
    """Bring into ``mine`` what has changed from ``base`` to ``theirs``; see `Manifest.take_in`."""
    base = base if isinstance(base, dict) else {}
    for name in dict.fromkeys((*theirs, *base)):
        own, old, other = (each.get(name) for each in (mine, base, theirs))
        unchanged = own == old and (name in mine) == (name in base)
        if isinstance(own, dict) and isinstance(other, dict):
            _join(own, old, other, counts=name in _COUNTS)
        elif unchanged and name in theirs:
            mine[name] = other
        elif unchanged:
            mine.pop(name, None)
        elif other == old or own is None or other is None:
            continue
        elif counts:
            mine[name] = round(own + other - (old or 0), 3)
        elif name in _OF_BOTH:
            mine[name] = _OF_BOTH[name](own, other)


def _changed(values: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != before.get(name)}


def signed_text(content: Mapping[str, Any]) -> str:
    """Return the one text that stands for these contents; it ends with the SHA-256 of the rest."""
    unsigned = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(unsigned, indent=2, ensure_ascii=False)
    digest = sha256(f"{text}\n".encode()).hexdigest()
    return f'{text[:-2]},\n  "sha256": "{digest}"\n}}\n'


def _agree(known: dict[str, Any], wanted: Mapping[str, Any], folder: Path, of: str = "") -> None:
    differing = [
        f"{name!r}{of} was {known[name]!r}, is now {value!r}"
        for name, value in wanted.items()
        if name in known and not _same(known[name], value)
    ]
    if differing:
        raise SettingsError(
            f"{folder} holds evidence made with other settings: {'; '.join(differing)}; "
            "give the old values, or choose another --out"
        )
    known |= wanted


def _same(old: object, new: object) -> bool:
    """Tell whether two values mean the same; of models, the digest counts where both have one."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("digest") and new.get("digest"):
        return bool(old["digest"] == new["digest"])
    return old == new


@cache  # they took most of the time of writing a small manifest
def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


# Who may use a run's folder: one run, readers, or the shards of a run.
#
# Locks are the system's own (flock), so they end with their process, however it ends. ``.lock`` is
# held by a run alone and shared by readers; shards hold it in turns, while they make or store what
# all of them share. ``.shard-I-of-N.lock`` is held by a shard as long as it lives, and taken only
# by who has ``.lock``: a run or a reader that has ``.lock`` and finds no live shard has the
# folder.


_LOCK = ".lock"
_OF_SHARDS = ".shard-*.lock"
_NAMES = re.compile(r"\.lock|\.shard-(\d+)-of-(\d+)\.lock")
_SECONDS_OF_A_LOOK = 1.0
"""For which a lock is held by who only stores a manifest, or looks who is at work."""


def is_lock(name: str) -> bool:
    """Whether a file in a run's folder is one of its locks."""
    return _NAMES.fullmatch(name) is not None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder against all others; raises `RunFolderError` if one of them holds it."""
    with _held(FileLock(folder / _LOCK, timeout=0), folder):
        if others_at_work(folder):
            raise RunFolderError(_refusal(folder))
        for path in folder.glob(_OF_SHARDS):  # of shards that have ended
            path.unlink()
        yield


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep a folder as it is; raises `RunFolderError` if a live run or shard holds it."""
    with ExitStack() as closing:
        with suppress(OSError):  # where there is no lock, nobody has held the folder
            stream = closing.enter_context((folder / _LOCK).open("rb"))
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                busy = bool(others_at_work(folder))
            except BlockingIOError:
                busy = True
            if busy:
                raise RunFolderError(
                    f"{folder} is held by a live run, so it has no root; wait for it"
                )
        yield


@contextmanager
def as_shard(folder: Path, shard: Shard, say: Callable[[str], None]) -> Iterator[FileLock]:
    """Hold a folder as one of its shards; yields the lock that they hold in turns, held.

    Waits for its turn, and says so. Raises `RunFolderError` if this shard, shards of another
    number or an ordinary run hold the folder.
    """
    turn = FileLock(folder / _LOCK)
    own = FileLock(folder / f".shard-{shard.number}-of-{shard.of}.lock", timeout=_SECONDS_OF_A_LOOK)
    _wait_for(turn, folder, say)
    try:
        with _held(own, folder):
            others = others_at_work(folder, shard)
            if any(other.of != shard.of for other in others):
                raise RunFolderError(
                    f"{folder} is held by {_named(others)}, and shard {shard} would ask what they "
                    "ask; wait for them, or go on with shards of their number"
                )
            yield turn
    finally:
        turn.release(force=True)


def others_at_work(folder: Path, shard: Shard | None = None) -> list[Shard]:
    """Return the live shards of a run, less this one."""
    found = []
    for path in folder.glob(_OF_SHARDS):
        named = _NAMES.fullmatch(path.name)
        if named is None or (one := Shard(*map(int, named.groups()))) == shard:
            continue
        with suppress(FileNotFoundError), path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(one)
    return sorted(found, key=lambda one: (one.of, one.number))


def _wait_for(turn: FileLock, folder: Path, say: Callable[[str], None]) -> None:
    said = False
    while True:
        try:
            turn.acquire(timeout=_SECONDS_OF_A_LOOK)
        except Timeout:
            if not (others := others_at_work(folder)):
                raise RunFolderError(_refusal(folder)) from None
            if not said:
                say(f"waiting for what all shards need, which {_named(others)} makes")
            said = True
        else:
            return


@contextmanager
def _held(lock: FileLock, folder: Path) -> Iterator[None]:
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(_refusal(folder)) from None
    try:
        yield
    finally:
        lock.release()


def _refusal(folder: Path) -> str:
    return f"{folder} is held by another live run; wait for it, or choose another --out"


def _named(shards: list[Shard]) -> str:
    several = len(shards) > 1
    return f"shard{'s' * several} {', '.join(map(str, shards))}"


# When a run was made: wall times of its stages, and of what was asked of models.


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
