"""Recipes for public models whose training text is public, and the list of signed roots."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, table
from mia_batch.known import find_model

__all__ = [
    "RECIPES",
    "ROOTS",
    "build_commands",
    "claim",
    "overview",
    "roots",
    "sections",
]

_FOLDER = Path(__file__).parent
RECIPES: list[dict[str, Any]] = tomllib.loads(
    (_FOLDER / "recipes.toml").read_text("utf-8")
)["recipes"]
ROOTS: list[dict[str, Any]] = tomllib.loads(
    (_FOLDER / "roots.toml").read_text("utf-8")
)["roots"]
_WIDTH = 76
_NO_REVISION = "none known: take the commit that the run records"


def build_commands(recipe: dict[str, Any]) -> list[str]:
    """Return the commands of a recipe, with its address and revision in place of their names."""
    members, revision = recipe.get("members", ""), recipe.get("revision", "")
    return [
        command.replace("MEMBERS", members).replace("REVISION", revision)
        for command in recipe["commands"]
    ]


def overview() -> str:
    """One row for each recipe: how members and comparison texts are had."""
    rows = []
    for recipe in RECIPES:
        kind = recipe["how"].split(":")[0].split(",")[0]
        rows.append([recipe["title"], code(recipe["models"][0]), kind.lower()])
    return table(("models", "the smallest", "how membership is known"), rows)


def sections() -> str:
    """One section for each recipe: facts, commands, what to expect, traps."""
    return "\n".join(_build_section(recipe) for recipe in RECIPES)


def _build_section(recipe: dict[str, Any]) -> str:
    record = find_model(recipe["models"][0]) or {}
    until = f"; no text later than {record['until']}" if "until" in record else ""
    facts = [
        ("models", ", ".join(code(model) for model in recipe["models"])),
        ("revision", code(recipe.get("revision", "")) or _NO_REVISION),
        ("trained on", f"{record['corpus']}{until}"),
        ("licence", recipe.get("licence", "not looked up")),
        ("members", code(recipe.get("members", ""))),
        ("held out", code(recipe.get("held_out", ""))),
        ("membership", recipe["how"]),
        ("expect", recipe["expect"]),
        ("not checked", recipe["unchecked"]),
        ("sources", recipe["sources"]),
    ]
    shown = [fact for fact in facts if fact[1]]
    traps = "\n".join(f"* {trap}" for trap in recipe["traps"])
    commands = "\n".join(_wrap(command) for command in build_commands(recipe))
    return (
        f"## {recipe['title']}\n\n{table(('', ''), shown)}\n"
        f"```console\n{commands}\n```\n\nTraps:\n\n{traps}\n"
    )


def _wrap(command: str) -> str:
    """Write a command for a shell; an option stands in one line with its value."""
    parts: list[str] = []
    for word in shlex.split(command):
        if word.startswith("--") or not parts:
            parts.append(shlex.quote(word))
        else:
            parts[-1] += f" {shlex.quote(word)}"
    lines = [f"$ {parts[0]}"]
    for part in parts[1:]:
        if len(f"{lines[-1]} {part}") > _WIDTH:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n".join(lines)


def claim(root: dict[str, Any]) -> str:
    """Return the line that a signature of a root is about, which binds it to a model."""
    return f"{root['root']} {root['model']}@{root['revision']} {root['corpus']}"


def roots() -> str:
    """One row for each root: whose run it is, the claim, and who signed it."""
    rows = []
    for root in ROOTS:
        run = f"[{root['title']}]({root['run']})" if "run" in root else root["title"]
        signer = "nobody yet"
        if "signer" in root:
            signer = f"{root['signer']}, {code(root['key'])}: [signature]({root['signature']})"
        rows.append([run, code(claim(root)), signer, root["program"]])
    heads = ("run", "claim: root, model@revision, corpus", "signed by", "made with")
    return table(heads, rows)
