"""The rooms of the package and which may import which, from the contract that is checked."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from docs.generate.markdown import code, table

__all__ = ["layers"]


def layers() -> str:
    """One row per layer, the outermost first, with the first line of each room's docstring."""
    pyproject = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    contract = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [layer.split(" | ") for layer in contract]
    return table(("room", "what it is"), ((_names(row), _said(row)) for row in rooms))


def _names(rooms: list[str]) -> str:
    return ", ".join(code(room.removeprefix("mia_batch.")) for room in rooms)


def _said(rooms: list[str]) -> str:
    return " ".join(
        (import_module(room).__doc__ or "").partition("\n")[0] for room in rooms
    )
