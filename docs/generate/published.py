"""What papers report of attacks, and what was measured here on the same data."""

from __future__ import annotations

import tomllib
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.generate.markdown import code, table
from mia_batch.known import named_sets

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FIGURES", "differences", "known_models", "known_sets", "sections"]

FIGURES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def sections() -> str:
    """One table a paper: figures as printed, ours where they were run, and what needs no model."""
    return "\n".join(_section(each) for each in FIGURES["tables"])


def _section(printed: dict[str, Any]) -> str:
    parts = [f"### {printed['paper']}\n"]
    for model, rows in groupby(printed["rows"], itemgetter("model")):
        command = printed["command"].replace("MODEL", model, 1)
        sets = (name.rpartition(":")[2] for name in printed["sets"])
        heads = ("in the paper", "attack", *sets, "ours")
        shown = table(heads, [*map(_row, rows), *_blind(printed["sets"])])
        parts.append(f"**{code(model)}**\n\n{shown}\n```console\n$ {command}\n```\n")
    return "\n".join(parts)


def _row(each: dict[str, Any]) -> list[str]:
    ours = (
        " ".join(f"{figure:.2f}" for figure in each.get("ours", ())) or "not run here"
    )
    figures = (f"{figure:.2f}" for figure in each["figures"])
    return [each["name"], code(each["attack"]), *figures, ours]


def _blind(names: list[str]) -> Iterator[list[str]]:
    """Say what a classifier reaches that never sees a model, where it was measured."""
    sets = named_sets()
    found = [sets[name].blind if name in sets else None for name in names]
    if any(found):
        aucs = (f"{each['auc']:.3f}" if each else "" for each in found)
        yield ["*no model at all*", "blind baseline", *aucs, "measured here"]


def differences() -> str:
    """Say of each attack why our figure need not be the printed one."""
    rows = ((code(name), why) for name, why in FIGURES["differences"].items())
    return table(("attack", "what differs"), rows)


def known_sets() -> str:
    """One row for each family of data sets that have names."""
    families: dict[str, list[Any]] = {}
    for each in named_sets().values():
        families.setdefault(each.name.partition(":")[0], []).append(each)
    heads = ("names", "what it is", "known of its content")
    return table(heads, (_family(name, sets) for name, sets in families.items()))


def _family(name: str, sets: list[Any]) -> tuple[str, ...]:
    first = sets[0]
    names = (
        code(name) if first.name == name else f"{code(f'{name}:*')}, {len(sets)} sets"
    )
    licence = first.licence or f"licence: {first.unknown['licence']}"
    known = (
        f"{code(each.name)}: hash, AUC {each.blind['auc']:.3f}"
        for each in sets
        if each.blind
    )
    said = "; ".join(known) or f"nothing: {first.unknown['sha256']}"
    return names, f"{first.title} ({first.paper}; {licence})", said


def known_models() -> str:
    """One row for each pattern of models whose training data are known."""
    path = Path("python/mia_batch/records/models.toml")
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    return table(("models", "trained on", "reference model"), map(_model, rows))


def _model(each: dict[str, Any]) -> tuple[str, ...]:
    until = (
        f"; no text later than {each['until']} ({each['because']})"
        if "until" in each
        else ""
    )
    twin = f"{code(each['twin'])}: {each['how']}" if "twin" in each else ""
    return code(each["pattern"]), each["corpus"] + until, twin
