"""``run.json``: what made a run's tables."""

from __future__ import annotations

import json
import platform
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import sha256
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.tables import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Manifest", "signed_text"]

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
    _stored: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Path) -> Manifest | None:
        """Read a run's manifest; None where the run has not begun."""
        path = folder / "run.json"
        try:
            stored = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            msg = f"{path} cannot be read ({cause}); give another folder"
            raise RunFolderError(msg) from None
        if not isinstance(stored, dict) or "evidence" not in stored:
            msg = f"{path} is not a run's manifest; give another folder"
            raise RunFolderError(msg)
        if (made_by := stored.get("format", 1)) != _FORMAT:
            msg = (
                f"{folder} was made by another version of mia-batch (format {made_by} of its "
                f"tables, this version has {_FORMAT}); go on with that version, or choose another "
                "--out: a folder of its samples can be given as --samples-from"
            )
            raise RunFolderError(msg)
        manifest = cls(**{name: stored[name] for name in _names() if name in stored})
        manifest._stored = manifest._content()
        return manifest

    def write(self, folder: Path) -> None:
        """Store the manifest in the run's folder, and in it what others have stored since.

        Whoever calls it keeps others from the folder meanwhile.
        """
        self.take_in(folder)
        content = self._content()
        write_text(folder / "run.json", signed_text(content | {"versions": _versions()}))
        self._stored = content

    def take_in(self, folder: Path) -> None:
        """Take in what other shards have stored since this manifest was read or stored.

        What only one side has changed since then stays changed. Of what both have changed, numbers
        that count add up, the first beginning and the last end stay, and else this side's value.
        Raises `SettingsError` if their evidence, or a model of theirs, is another.
        """
        theirs = Manifest.of(folder) if self._stored else None
        if theirs is None:
            return
        found, own = theirs._content(), {name: getattr(self, name) for name in _names()}
        _agree(_changed(theirs.evidence, self._stored["evidence"]), self.evidence, folder)
        before = self._stored["models"]
        for name, model in self.models.items():
            changed = _changed(theirs.models.get(name, {}), before.get(name, {}))
            _agree(changed, model, folder, of=f" of model {name!r}")
        _join(own, self._stored, found)
        self._stored = theirs._stored
        for name, value in own.items():
            setattr(self, name, value)

    def _content(self) -> dict[str, Any]:
        return {name: deepcopy(getattr(self, name)) for name in _names()}

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
    digest = sha256(_text(unsigned).encode()).hexdigest()
    return _text(unsigned | {"sha256": digest})


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _agree(known: dict[str, Any], wanted: Mapping[str, Any], folder: Path, of: str = "") -> None:
    differing = [
        f"{name!r}{of} was {known[name]!r}, is now {value!r}"
        for name, value in wanted.items()
        if name in known and not _same(known[name], value)
    ]
    if differing:
        msg = (
            f"{folder} holds evidence made with other settings: {'; '.join(differing)}; "
            "give the old values, or choose another --out"
        )
        raise SettingsError(msg)
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
