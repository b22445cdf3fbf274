"""Whether the scores of several runs can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia_batch.attacks import get, names
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.rarity import RARITY_FIELDS
from mia_batch.tables import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.run import Run

__all__ = ["attack_of"]

_OF_THE_MODEL = (
    "engine",
    "dtype",
    "tensor_parallel_size",
    "engine_arg",
    "recording",
    "decode",
)
"""Evidence settings that say what the model is and how it runs: these may differ."""


def attack_of(runs: Sequence[Run], attack: str | None) -> str:
    """Name the attack to compare, by default the primary attack of all runs.

    Raises `SettingsError` if the runs' primary attacks differ, a run has not computed the attack,
    or its scores rest on evidence of other kinds; `RunFolderError` if a run is not finished.
    """
    manifests = [run.manifest for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        if not manifest.custody:
            msg = f"{run.folder} is not finished; give the audit's command again, which goes on"
            raise RunFolderError(msg)
    chosen = attack or manifests[0].plan["primary"]
    for run, manifest in zip(runs, manifests, strict=True):
        if attack is None and manifest.plan["primary"] != chosen:
            msg = (
                f"the primary attack of {runs[0].folder} is {chosen!r}, that of {run.folder} is "
                f"{manifest.plan['primary']!r}; name one that all have with --attack"
            )
            raise SettingsError(msg)
        if chosen not in manifest.made["scores"]["attacks"]:
            msg = (
                f"{run.folder} has no scores of the attack {chosen!r}; compute them with "
                f"`mia-batch score {run.folder} --attacks {chosen}`, or name another with --attack"
            )
            raise SettingsError(msg)
    others = any("from" in manifest.made.get("rarity", {}) for manifest in manifests)
    first, *rest = (_rests_on(run, chosen, borrowed_rarity=others) for run in runs)
    for run, second in zip(runs[1:], rest, strict=True):
        _refuse_difference(runs[0], first, run, second, chosen)
    return chosen


def _refuse_difference(
    one: Run, first: dict[str, Any], other: Run, second: dict[str, Any], attack: str
) -> None:
    differing = [
        f"{name} is {first[name]!r} in the first and {second[name]!r} in the second"
        for name in first
        if name in second and first[name] != second[name]
    ]
    if differing:
        msg = (
            f"scores of {attack!r} in {one.folder} and {other.folder} are not comparable: "
            f"{'; '.join(differing)}; audit both alike"
        )
        raise SettingsError(msg)


def _rests_on(run: Run, attack: str, *, borrowed_rarity: bool) -> dict[str, Any]:
    """Say by name what scores of an attack rest on, beside the model."""
    manifest = run.manifest
    evidence = {f"setting {name!r}": value for name, value in manifest.evidence.items()}
    for name in _OF_THE_MODEL:
        evidence.pop(f"setting {name!r}", None)
    evidence |= {**dict(_counts(manifest, attack)), **dict(_others(manifest))}
    if borrowed_rarity and "rarity" in manifest.made and _is_weighed(attack):
        table = manifest.made["rarity"].get("from") or digest(run.path("rarity"))
        evidence["the SHA-256 of the rarity table (setting 'rarity_from')"] = table
    return evidence


def _counts(manifest: Manifest, attack: str) -> Iterator[tuple[str, Any]]:
    """Count prompts and samples of each view that the attack reads, of one's own attacks all."""
    scores = manifest.made["scores"]
    reads = {view for _, view in _reads(attack)}
    for view, (prompts, samples) in scores["samples"].items():
        if not reads or view in reads:
            yield f"the number of prompts (view {view!r})", prompts
            yield f"the number of samples (view {view!r})", samples
    for view, prompts in scores["logprobs"].items():
        if not reads or view in reads:
            yield f"the number of texts with log-probabilities (view {view!r})", prompts


def _others(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Name models beside the audited one, and the files of the user's own attacks."""
    for model, known in manifest.models.items():
        if model != "target" and "source" in known:
            source = known["source"]
            yield f"model {model!r}", source["digest"] or source["name"]
    yield "the file of attacks", [*manifest.inputs.get("attacks_from", {}).values()] or "none"


def _is_weighed(attack: str) -> bool:
    """Whether n-grams are weighed by rarity; of the user's own attacks it is not known."""
    columns = {field.name for field in RARITY_FIELDS}
    return attack not in names() or bool(columns.intersection(get(attack).columns))


def _reads(attack: str) -> tuple[tuple[str, str], ...]:
    if attack not in names():
        return ()
    return tuple(pair for kind in ("samples", "logprobs") for pair in get(attack).reads_of(kind))
