"""What papers report of attacks, and what was measured here on the same data."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, table
from mia_batch.known import named_sets

__all__ = ["FIGURES", "differences", "known_models", "known_sets", "sections"]

FIGURES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def sections() -> str:
    """One table a paper: figures as printed, ours where they were run, and what needs no model."""
    return "\n".join(_section(each) for each in FIGURES["tables"])


def _section(printed: dict[str, Any]) -> str:
    sets = named_sets()
    blind = [sets[name].blind if name in sets else None for name in printed["sets"]]
    rows = [_row(each) for each in printed["rows"]]
    if any(blind):
        aucs = (f"{each['auc']:.2f}" if each else "not measured" for each in blind)
        rows.append(["*no model at all*", "", "", *aucs, "measured here"])
    heads = ("attack", "in the paper", "model", *map(code, printed["sets"]), "ours")
    command = f"```console\n$ {printed['command']}\n```\n"
    return f"### {printed['paper']}\n\n{table(heads, rows)}\nTo run it:\n\n{command}"


def _row(each: dict[str, Any]) -> list[str]:
    ours = " ".join(f"{figure:.2f}" for figure in each.get("ours", ())) or "not run here"
    figures = (f"{figure:.2f}" for figure in each["figures"])
    return [code(each["attack"]), each["name"], code(each["model"]), *figures, ours]


def differences() -> str:
    """Say of each attack why our figure need not be the printed one."""
    rows = ((code(name), why) for name, why in FIGURES["differences"].items())
    return table(("attack", "what differs"), rows)


def known_sets() -> str:
    """One row for each family of data sets that have names."""
    families: dict[str, list[Any]] = {}
    for each in named_sets().values():
        families.setdefault(each.name.partition(":")[0], []).append(each)
    return table(
        ("names", "what it is", "paper", "licence", "content checked", "AUC without a model"),
        (_family(name, sets) for name, sets in families.items()),
    )


def _family(name: str, sets: list[Any]) -> tuple[str, ...]:
    first = sets[0]
    names = code(name) if first.name == name else f"{len(sets)}: {code(first.name)}, ..."
    checked = ", ".join(code(each.name) for each in sets if each.sha256) or "no copy was at hand"
    measured = (f"{each.blind['auc']:.2f} ({code(each.name)})" for each in sets if each.blind)
    licence = first.licence or "not known"
    return names, first.title, first.paper, licence, checked, ", ".join(measured) or "not measured"


def known_models() -> str:
    """One row for each pattern of models whose training data are known."""
    path = Path("python/mia_batch/records/models.toml")
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    return table(
        ("models", "trained on", "no text later than", "reference model"),
        (
            (
                code(each["pattern"]),
                each["corpus"],
                f"{each['until']}: {each['because']}" if "until" in each else "not known",
                f"{code(each['twin'])}, {each['how']}" if "twin" in each else "",
            )
            for each in rows
        ),
    )
