"""``run.json``: what made a run's tables, and whether another request may go on with them."""

from __future__ import annotations

import json
import platform
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mia_batch import kernels, tables
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.models.identity import digest_folder
from mia_batch.pipeline.resolve import runs_here

if TYPE_CHECKING:
    from mia_batch.kernels import Group
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["Manifest", "describe", "describe_model"]

_PACKAGES = ("mia-batch", "polars", "numpy", "torch", "transformers", "tokenizers", "httpx")


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The contents of ``run.json``.

    Attributes
    ----------
    evidence
        What changes a sample, by name: settings as they resolved, and digests.
    engine_choice
        Why the engine was taken.
    engine
        What the engine said of itself when it last started; empty until then.
    settings
        All settings of the latest request.
    input
        Digest, files and number of documents of the corpus.
    targets
        ``total``, and by reason how many targets cannot be sampled.
    features
        Groups of features that the parts have.
    scoring
        What the logprobs parts have beside log-probabilities, by model role and view.
    scorers
        What the scoring engine said of itself when it last started, by model role.
    passes
        Forward passes that gave log-probabilities, by model role and view.
    plan
        What the run was to decide and how, with its SHA-256, as it was before the first score.
    checked
        What the preflight's findings were made from; empty until there are some.
    scored
        What the scores were made from; empty until there are scores.
    failed
        ``targets`` that lack samples although they could be sampled, of how many (``of``), and
        their ``reasons`` with counts; empty until there are samples.
    """

    evidence: dict[str, Any]
    engine_choice: str
    engine: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    features: list[Group] = field(default_factory=list)
    scoring: dict[str, list[str]] = field(default_factory=dict)
    scorers: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    checked: dict[str, Any] = field(default_factory=dict)
    scored: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Manifest | None:
        """Read a run's manifest.

        Parameters
        ----------
        run
            The run.

        Returns
        -------
        Manifest or None
            Null where the run has not begun.

        Raises
        ------
        RunFolderError
            If ``run.json`` is there but is not a manifest.
        """
        stored = run.manifest
        if not stored:
            return None
        for item in fields(cls):
            if item.name not in stored and item.default_factory is MISSING:
                msg = f"{run.manifest_path} lacks {item.name!r}; choose another --out"
                raise RunFolderError(msg)
        return cls(**{item.name: stored[item.name] for item in fields(cls) if item.name in stored})

    def write(self, run: Run) -> None:
        """Store the manifest in the run's folder."""
        text = json.dumps(asdict(self) | {"versions": _versions()}, indent=2, ensure_ascii=False)
        tables.write_text(run.manifest_path, text + "\n")

    def request(self, settings: Settings, evidence: dict[str, Any], run: Run) -> None:
        """Take in the settings of a request, if the run's evidence was made with the same.

        Parameters
        ----------
        settings
            The settings.
        evidence
            What else changes the evidence, by name.
        run
            The run, for the message.

        Raises
        ------
        SettingsError
            If any setting that changes evidence differs; the message names each with its old and
            new value.
        """
        digest = digest_folder(settings.model) if runs_here(settings) else None
        model = describe_model(settings, digest)
        wanted = {"model": model} | settings.evidence_values | evidence
        if settings.engine == "auto" and self.evidence["engine"] not in ("openai", "replay"):
            del wanted["engine"]
        self.agree(wanted, run)
        self.settings = settings.model_dump(mode="json")

    def agree(self, wanted: dict[str, Any], run: Run) -> None:
        """Record values that change a sample, refusing those that differ from recorded ones.

        Parameters
        ----------
        wanted
            The values by name.
        run
            The run, for the message.

        Raises
        ------
        SettingsError
            If any differs; the message names each with its old and new value.
        """
        differing = [
            f"{name!r} was {self.evidence[name]!r}, is now {value!r}"
            for name, value in wanted.items()
            if name in self.evidence and not _same(self.evidence[name], value)
        ]
        if differing:
            msg = (
                f"{run.folder} holds evidence made with other settings: {'; '.join(differing)}; "
                "give the old values, or choose another --out"
            )
            raise SettingsError(msg)
        self.evidence |= wanted

    def started(self, engine: dict[str, Any], evidence: dict[str, Any], run: Run) -> None:
        """Record the engine that has started, and store the manifest.

        Parameters
        ----------
        engine
            What the engine says of itself.
        evidence
            What of it changes a sample.
        run
            The run, held.

        Raises
        ------
        SettingsError
            If the run's samples were made with other evidence.
        """
        self.agree(evidence, run)
        self.engine = engine
        self.write(run)


def describe_model(settings: Settings, digest: str | None) -> dict[str, str | None]:
    """Return what is recorded of the run's model."""
    return describe(settings.model, settings.revision, digest)


def describe(name: str, revision: str | None, digest: str | None) -> dict[str, str | None]:
    """Return what is recorded of a model: name, revision, and digest where it is known."""
    return {"name": name, "revision": revision, "digest": digest}


def _same(old: object, new: object) -> bool:
    """Tell whether two values mean the same; of models, the digest counts where both have one."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("digest") and new.get("digest"):
        return bool(old["digest"] == new["digest"])
    return old == new


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions | {"zlib": kernels.zlib_version()}
