"""What all parts of the settings have in common."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Column", "Part", "arguments", "names"]

Column = Annotated[str | None, Field(min_length=1)]
"""Name of a column; null = that of the part it plays."""


class Part(BaseModel):
    """Some of the settings: frozen, and nothing unknown among them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )


def names(value: object) -> object:
    """Accept ``"a,b"`` as well as a list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def arguments(value: object) -> object:
    """Accept ``["key=value", ...]`` as well as a table; a value is JSON where it parses as such."""
    if not isinstance(value, list | tuple):
        return value
    pairs = [str(item).partition("=") for item in value]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        msg = f"each must read KEY=VALUE, but {wrong[0]!r} does not"
        raise ValueError(msg)
    return {key.replace("-", "_"): _literal(text) for key, _, text in pairs}


def _literal(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
