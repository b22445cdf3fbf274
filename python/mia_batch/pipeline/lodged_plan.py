"""The plan of an audit as one canonical text that can be lodged, and what differs from it."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from mia_batch.attacks import families, get
from mia_batch.corpus import digest_files, find_files
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.lot import LOT
from mia_batch.models.weights import digest_folder
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import compute_root
from mia_batch.pipeline.folder import RunFolder, versions
from mia_batch.places import is_url
from mia_batch.prompts import load_template
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
from mia_batch.views import REFERENCE, TARGET, find_template_source

PLAN = "plan.json"
"""The plan of a run in its folder: the one that was lodged, else that of its first scores."""
_FORM = 1
_MAX_LETTERS = 160  # of a value in a sentence
_NO_ORDER = "none: the answers are recorded"
_BY_WEIGHTS = "SHA-256 of names, sizes and the first and last mebibyte of its files"
_BY_COMMIT = "its name and commit at the hub"
_BY_NAME = "its name alone: an endpoint does not show its weights"
_BY_RECORDING = "what it said: the recording among the inputs"


NAME_ALONE = (
    "It binds the endpoint's model by its name and address alone: nobody outside sees"
    " the weights."
)


def build_plan(audit: Audit) -> dict[str, Any]:
    """Return all that the audit's answer follows from; no name of a place or machine is in it."""
    plan = {
        "form": _FORM,
        "program": f"mia-batch {versions()['mia-batch']}",
        "inputs": {name: _describe_files(files) for name, files in _list_inputs(audit)},
        "null_set": audit.rule.null_set,
        "models": dict(_list_models(audit)),
        "attacks": {
            attack.name: _describe_formula(attack.name) for attack in audit.attacks
        },
        "order_of_asking": LOT if audit.recording is None else _NO_ORDER,
        "settings": _list_settings(audit),
    }
    draw = audit.corpora.input.draw
    if draw is not None:
        plan["draw"] = draw.describe()
    templates = dict(_list_templates(audit))
    if templates:
        plan["chat_templates"] = templates
    return plan


def write_canonical(plan: Mapping[str, Any]) -> str:
    """Return the one text of a plan, whose SHA-256 is lodged."""
    return json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def compute_sha256(plan: Mapping[str, Any]) -> str:
    return sha256(write_canonical(plan).encode("utf-8", "surrogatepass")).hexdigest()


def _list_templates(audit: Audit) -> Iterator[tuple[str, str]]:
    """Iterate over models that read conversations here, with the SHA-256 of their templates."""
    settings = audit.settings
    is_template_read = settings.source != "recording" and not settings.chat
    if settings.conversations != "answers" or not is_template_read:
        return
    models = [TARGET] if settings.reference_model is None else [TARGET, REFERENCE]
    for model in models:
        source = find_template_source(settings, model)
        yield model, load_template(source).digest


def _list_settings(audit: Audit) -> dict[str, Any]:
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
    return values | {"attacks": names, "primary": audit.rule.primary}


def _list_inputs(audit: Audit) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over settings that name files, with the SHA-256 of each file by its name."""
    roles, settings = audit.corpora.digests, audit.settings
    yield from roles.items()
    for name in Settings.marked(Mark.PATH):
        value = getattr(settings, name)
        if value is None or name in roles or name == "attacks_from":
            continue
        if name in PLAN_OPEN:
            continue
        if name == "rarity_from":
            # Refused before sampling where it is missing
            table = Path(value) / "rarity.parquet"
            yield name, {table.name: digest(table)} if table.is_file() else {}
        elif value not in (CLASSICS, NO_YARDSTICK):
            yield name, digest_files(find_files(value).files)
    if settings.known_index is not None:
        place, _, name = settings.known_index.partition("#")
        content = digest_folder(place, None)  # None of an address
        yield "known_index", {name: content or _remove_secrets(place)}
    tokenizer = endpoint_tokenizer(settings) if settings.tokenizer is not None else None
    if tokenizer is not None:
        yield "tokenizer", {"tokenizer": tokenizer.digest}


def _describe_files(digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the number and hash of files: of one, of its content; of several, with names."""
    if len(digests) == 1:
        return {"files": 1, "sha256": next(iter(digests.values()))}
    return {"files": len(digests), "sha256": compute_root(digests)}


def _list_models(audit: Audit) -> Iterator[tuple[str, dict[str, Any]]]:
    settings = audit.settings
    for model, setting in (
        ("target", "model"),
        ("reference", "reference_model"),
        ("masked", "masked_model"),
    ):
        if getattr(settings, setting) is None:
            continue
        is_recorded = model == "target" and audit.recording is not None
        if is_recorded or model in audit.request.logprobs:
            yield model, {"known_by": _BY_RECORDING}
            continue
        source = audit.find_source(model)
        name, content = source["name"], source["digest"]
        if content and Path(str(name)).is_dir():
            yield model, {"known_by": _BY_WEIGHTS, "sha256": content}
        elif content:
            yield model, {"known_by": _BY_COMMIT, "name": name, "commit": content}
        else:
            address = _remove_secrets(settings.base_url or "")
            yield model, {"known_by": _BY_NAME, "name": name, "address": address}


def _remove_secrets(address: str) -> str:
    """Take the user's name, password and query out of an address."""
    parts = urlsplit(address)
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def _describe_formula(name: str) -> str:
    """Return where a formula is fixed: the version in its name, or its SHA-256 if another's."""
    for family in families().values():
        if any(attack.name == name for attack in family):
            return "of mia-batch, by its name"
    attack = get(name)
    fields = [
        attack.evidence,
        attack.reads,
        attack.logprobs,
        attack.least,
        attack.whole_candidates,
    ]
    content = attack.expr.meta.serialize() + json.dumps(fields).encode()
    return f"SHA-256 of its formula {sha256(content).hexdigest()}"


# What differs from a plan.

_SECTIONS = {
    "inputs": "{}",
    "models": "the {} model",
    "attacks": "attack {}",
    "settings": "{}",
}
"""How a part of a section is named in a sentence."""


def list_differences(planned: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each part that is other than planned; null counts as missing."""
    has_same_attacks = {*planned["attacks"]} == {*now["attacks"]}
    sentences = []
    for section in sorted({*planned, *now}):
        old, new = planned.get(section), now.get(section)
        is_whole = section not in _SECTIONS
        if is_whole or not isinstance(old, dict) or not isinstance(new, dict):
            if old != new:
                sentences.append(_write_difference(section.replace("_", " "), old, new))
            continue
        for name in sorted({*old, *new}):
            if (section, name) == ("settings", "attacks") and not has_same_attacks:
                continue  # which the section of attacks says
            if old.get(name) != new.get(name):
                part = _SECTIONS[section].format(_make_printable(name))
                sentences.append(_write_difference(part, old.get(name), new.get(name)))
    return sentences


def _write_difference(part: str, old: object, new: object) -> str:
    return f"{part}: planned {_write_value(old)}, now {_write_value(new)}"


def _write_value(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        facts = [f"{name} {fact}" for name, fact in value.items() if fact is not None]
        value = ", ".join(facts)
    return _make_printable(value if isinstance(value, str) else json.dumps(value))


def _make_printable(text: str) -> str:
    """Write out what cannot be printed, since a plan may be a stranger's."""
    plain = text if text.isprintable() else ascii(text)
    return plain if len(plain) <= _MAX_LETTERS else f"{plain[:_MAX_LETTERS]}..."


# The plan next to a run.


def check(audit: Audit) -> dict[str, Any] | None:
    """Read the plan that was given and refuse an audit that differs from it, unless ``anyway``."""
    if audit.settings.plan is None:
        return None
    planned = read_plan(audit.settings.plan)
    lodged_before = audit.manifest.lodged
    if lodged_before and lodged_before["sha256"] != compute_sha256(planned):
        raise SettingsError(
            f"plan= is another plan than the one that {audit.run.folder} was made by"
            f" (SHA-256 {lodged_before['sha256']}); give that one, or choose another"
            " --out"
        )
    differences = list_differences(planned, build_plan(audit))
    if differences and not audit.settings.anyway:
        refusal = (
            f"plan= is {audit.settings.plan!r}, from which this audit differs as above;"
            " nothing was asked. Change the command, or give --anyway: the answer then"
            " names each difference"
        )
        raise SettingsError("\n".join([*differences, refusal]))
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
        manifest.lodged = {"sha256": compute_sha256(lodged), "after_scores": is_scored}
        _keep(path, lodged)
    elif not manifest.lodged and not is_scored:
        _keep(path, build_plan(audit))
    if manifest.lodged:
        planned = read_plan(path)
        manifest.lodged["differences"] = list_differences(planned, build_plan(audit))


def record_rescored(audit: Audit) -> None:
    """Record how a run that is scored anew differs from its lodged plan; added scores do not."""
    manifest = audit.manifest
    if not manifest.lodged:
        return
    planned = read_plan(audit.run.folder / PLAN)
    scored = [attack.name for attack in audit.attacks]
    attacks = {
        name: _describe_formula(name) for name in scored if name in planned["attacks"]
    }
    settings = _list_settings(audit)
    now = planned | {
        "null_set": audit.rule.null_set,
        "attacks": attacks,
        "settings": settings | {"attacks": planned["settings"].get("attacks")},
    }
    differences_before = [
        sentence
        for sentence in manifest.lodged["differences"]
        if not sentence.startswith("attack ")
    ]
    differences = list_differences(planned, now) + differences_before
    manifest.lodged["differences"] = list(dict.fromkeys(differences))


def _keep(path: Path, plan: Mapping[str, Any]) -> None:
    text = write_canonical(plan)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def compare_lodged_plan(
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
    stored = read_plan(path)
    differences = list(manifest.lodged.get("differences", []))
    if manifest.lodged and manifest.lodged["sha256"] != compute_sha256(stored):
        differences.append(f"{PLAN} in the run is not the plan lodged")
    planned = stored if given is None else read_plan(given)
    now = stored | {"inputs": dict(stored["inputs"]), "models": dict(stored["models"])}
    for name, digests in manifest.inputs.items():
        if name in now["inputs"]:
            now["inputs"][name] = _describe_files(digests)
    for name, model in now["models"].items():
        weights = manifest.models.get(name, {}).get("source", {}).get("digest")
        if weights and "sha256" in model:
            now["models"][name] = model | {"sha256": weights}
    differences += list_differences(planned, now)
    return compute_sha256(planned), list(dict.fromkeys(differences))
