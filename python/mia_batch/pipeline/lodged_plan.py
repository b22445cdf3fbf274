"""The plan of an audit as one canonical text that can be lodged, and what differs from it."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from mia_batch.attacks import families, get
from mia_batch.corpus import digest_each, find_files
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.lot import LOT
from mia_batch.models.weights import digest_folder
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import root_of
from mia_batch.pipeline.folder import RunFolder, versions
from mia_batch.places import is_url
from mia_batch.settings import (
    CLASSICS,
    NO_YARDSTICK,
    PLAN_OPEN,
    PLAN_PLACES,
    Mark,
    Settings,
    endpoint_tokenizer,
    read_plan,
)
from mia_batch.tables import digest, write_text

PLAN = "plan.json"
"""The plan of a run in its folder: the one that was lodged, else that of its first scores."""
_FORM = 1
_MOST_SHOWN = 160  # characters of a value in a sentence
_NO_ORDER = "none: the answers are recorded"
_BY_WEIGHTS = "SHA-256 of names, sizes and the first and last mebibyte of its files"
_BY_COMMIT = "its name and commit at the hub"
_BY_NAME = "its name alone: an endpoint does not show its weights"
_BY_RECORDING = "what it said: the recording among the inputs"


NAME_ALONE = (
    "It binds the endpoint's model by its name and address alone: nobody outside sees"
    " the weights."
)


def plan_of(audit: Audit) -> dict[str, Any]:
    """Return all that the audit's answer follows from; no name of a place or machine is in it."""
    return {
        "form": _FORM,
        "program": f"mia-batch {versions()['mia-batch']}",
        "inputs": {name: _content(each) for name, each in _inputs(audit)},
        "null_set": audit.plan.null_set,
        "models": dict(_models(audit)),
        "attacks": {attack.name: _formula(attack.name) for attack in audit.attacks},
        "order_of_asking": LOT if audit.recording is None else _NO_ORDER,
        "settings": _settings(audit),
    }


def text_of(plan: Mapping[str, Any]) -> str:
    """Return the one text of a plan, whose SHA-256 is lodged."""
    return json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def sha256_of(plan: Mapping[str, Any]) -> str:
    return sha256(text_of(plan).encode("utf-8", "surrogatepass")).hexdigest()


def _settings(audit: Audit) -> dict[str, Any]:
    """Return every setting that can change an answer; one that is new is among them."""
    # The order of attacks is that of columns.
    settings = audit.settings
    values = settings.model_dump(mode="json")
    values["engine_arg"] = settings.evidence_values["engine_arg"]
    for name in PLAN_OPEN | PLAN_PLACES:
        values.pop(name, None)
    if settings.yardstick in (CLASSICS, NO_YARDSTICK):
        values["yardstick"] = settings.yardstick
    names = [attack.name for attack in audit.attacks]
    return values | {"attacks": names, "primary": audit.plan.primary}


def _inputs(audit: Audit) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the SHA-256 of all files by their names, by the setting that names them."""
    roles, settings = audit.corpora.digests, audit.settings
    yield from roles.items()
    for name in Settings.marked(Mark.PATH):
        value = getattr(settings, name)
        if (
            value is None
            or name in roles
            or name in PLAN_OPEN
            or name == "attacks_from"
        ):
            continue
        if name == "rarity_from":
            # Refused before sampling where it is missing
            table = Path(value) / "rarity.parquet"
            yield name, {table.name: digest(table)} if table.is_file() else {}
        elif value not in (CLASSICS, NO_YARDSTICK):
            yield name, digest_each(find_files(value).files)
    if (index := settings.known_index) is not None:
        place, _, name = index.partition("#")
        content = digest_folder(place, None)  # None of an address
        yield "known_index", {name: content or _without_secrets(place)}
    if (
        settings.tokenizer is not None
        and (tokenizer := endpoint_tokenizer(settings)) is not None
    ):
        yield "tokenizer", {"tokenizer": tokenizer.digest}


def _content(digests: Mapping[str, str]) -> dict[str, Any]:
    """Describe files by their content; one file by that alone, several with their names below."""
    n_files, first = len(digests), next(iter(digests.values()), "")
    return {"files": n_files, "sha256": first if n_files == 1 else root_of(digests)}


def _models(audit: Audit) -> Iterator[tuple[str, dict[str, Any]]]:
    settings = audit.settings
    for model, setting in (
        ("target", "model"),
        ("reference", "reference_model"),
        ("masked", "masked_model"),
    ):
        if getattr(settings, setting) is None:
            continue
        if model == "target" and audit.recording is not None:
            yield model, {"known_by": _BY_RECORDING}
            continue
        source = audit.source(model)
        name, content = source["name"], source["digest"]
        if content and Path(str(name)).is_dir():
            yield model, {"known_by": _BY_WEIGHTS, "sha256": content}
        elif content:
            yield model, {"known_by": _BY_COMMIT, "name": name, "commit": content}
        else:
            address = _without_secrets(settings.base_url or "")
            yield model, {"known_by": _BY_NAME, "name": name, "address": address}


def _without_secrets(address: str) -> str:
    """Take the user's name, password and query out of an address."""
    parts = urlsplit(address)
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def _formula(name: str) -> str:
    """Say where a formula is fixed: the version in its name, or its SHA-256 if it is another's."""
    if any(attack.name == name for family in families().values() for attack in family):
        return "of mia-batch, by its name"
    attack = get(name)
    how = [
        attack.evidence,
        attack.reads,
        attack.logprobs,
        attack.least,
        attack.whole_candidates,
    ]
    content = attack.expr.meta.serialize() + json.dumps(how).encode()
    return f"SHA-256 of its formula {sha256(content).hexdigest()}"


# What differs from a plan.

_SECTIONS = {
    "inputs": "{}",
    "models": "the {} model",
    "attacks": "attack {}",
    "settings": "{}",
}
"""How a part of a section is named in a sentence."""


def differences(planned: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say of each part what was planned and what is now; what is null counts as missing."""
    found, same_attacks = [], {*planned["attacks"]} == {*now["attacks"]}
    for section in sorted({*planned, *now}):
        old, new = planned.get(section), now.get(section)
        if section not in _SECTIONS or not (
            isinstance(old, dict) and isinstance(new, dict)
        ):
            if old != new:
                found.append(_difference(section.replace("_", " "), old, new))
            continue
        for name in sorted({*old, *new}):
            is_order = (section, name) != ("settings", "attacks") or same_attacks
            if is_order and old.get(name) != new.get(name):
                part = _SECTIONS[section].format(_plain(name))
                found.append(_difference(part, old.get(name), new.get(name)))
    return found


def _difference(part: str, old: object, new: object) -> str:
    return f"{part}: planned {_shown(old)}, now {_shown(new)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        value = ", ".join(
            f"{name} {each}" for name, each in value.items() if each is not None
        )
    return _plain(value if isinstance(value, str) else json.dumps(value))


def _plain(text: str) -> str:
    """Write out what cannot be printed, since a plan may be a stranger's."""
    plain = text if text.isprintable() else ascii(text)
    return plain if len(plain) <= _MOST_SHOWN else f"{plain[:_MOST_SHOWN]}..."


# The plan next to a run.


def check(audit: Audit) -> dict[str, Any] | None:
    """Read the plan that was given and refuse an audit that differs from it, unless ``anyway``."""
    if audit.settings.plan is None:
        return None
    planned = read_plan(audit.settings.plan)
    begun = audit.manifest.lodged
    if begun and begun["sha256"] != sha256_of(planned):
        raise SettingsError(
            f"plan= is another plan than the one that {audit.run.folder} was made by"
            f" (SHA-256 {begun['sha256']}); give that one, or choose another --out"
        )
    found = differences(planned, plan_of(audit))
    if found and not audit.settings.anyway:
        raise SettingsError(
            "\n".join(
                [
                    *found,
                    (
                        f"plan= is {audit.settings.plan!r}, from which this audit"
                        " differs as above; nothing was asked. Change the command, or"
                        " give --anyway: the answer then names each difference"
                    ),
                ]
            )
        )
    return planned


def write_plan(audit: Audit, plan: Mapping[str, Any]) -> str:
    """Write a plan into the folder of a run that has not begun; return where it is, or why not."""
    if is_url(audit.settings.place):
        path = Path(PLAN)
    else:
        path = audit.run.folder / PLAN
        if (audit.run.folder / "run.json").exists():
            return f"not written, because {audit.run.folder} holds a run already"
        path.parent.mkdir(parents=True, exist_ok=True)
    _keep(path, plan)
    return f"{path}; its SHA-256 is that of the plan"


def record(audit: Audit, lodged: dict[str, Any] | None) -> None:
    """Keep the plan in the run's folder before its first score, and record what differs."""
    manifest, path = audit.manifest, audit.run.folder / PLAN
    is_scored = "scores" in manifest.made
    if lodged is not None and not manifest.lodged:
        manifest.lodged = {"sha256": sha256_of(lodged), "after_scores": is_scored}
        _keep(path, lodged)
    elif not manifest.lodged and not is_scored:
        _keep(path, plan_of(audit))
    if manifest.lodged:
        manifest.lodged["differences"] = differences(read_plan(path), plan_of(audit))


def record_rescored(audit: Audit) -> None:
    """Record how a run that is scored anew differs from its lodged plan; added scores do not."""
    manifest = audit.manifest
    if not manifest.lodged:
        return
    planned = read_plan(audit.run.folder / PLAN)
    scored = {attack.name: _formula(attack.name) for attack in audit.attacks}
    attacks = {
        name: each for name, each in scored.items() if name in planned["attacks"]
    }
    now = planned | {
        "null_set": audit.plan.null_set,
        "attacks": attacks,
        "settings": _settings(audit) | {"attacks": planned["settings"].get("attacks")},
    }
    kept = [
        each
        for each in manifest.lodged["differences"]
        if not each.startswith("attack ")
    ]
    found = differences(planned, now)
    manifest.lodged["differences"] = list(dict.fromkeys([*found, *kept]))


def _keep(path: Path, plan: Mapping[str, Any]) -> None:
    text = text_of(plan)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def lodged_differences(
    run: RunFolder, given: Path | None
) -> tuple[str, list[str]] | None:
    """Return the SHA-256 of the plan lodged and how a run differs; None where none was lodged."""
    manifest = run.manifest
    if given is None and not manifest.lodged:
        return None
    path = run.folder / PLAN
    if not path.is_file():
        raise RunFolderError(
            f"{run.folder} has no {PLAN}, so it cannot be compared with a plan"
        )
    kept = read_plan(path)
    found = list(manifest.lodged.get("differences", []))
    if manifest.lodged and manifest.lodged["sha256"] != sha256_of(kept):
        found.append(f"{PLAN} in the run is not the plan lodged")
    planned = kept if given is None else read_plan(given)
    now = kept | {"inputs": dict(kept["inputs"]), "models": dict(kept["models"])}
    for name, files in manifest.inputs.items():
        if name in now["inputs"]:
            now["inputs"][name] = _content(files)
    for name, known in now["models"].items():
        weights = manifest.models.get(name, {}).get("source", {}).get("digest")
        if weights and "sha256" in known:
            now["models"][name] = known | {"sha256": weights}
    found += differences(planned, now)
    return sha256_of(planned), list(dict.fromkeys(found))
