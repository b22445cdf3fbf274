"""What all parts of the settings have in common."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Column",
    "Mark",
    "Part",
    "arguments",
    "known_encoding",
    "names",
    "one_address",
    "shard_name",
]

Column = Annotated[str | None, Field(min_length=1)]
"""Name of a column; None = that of the part it plays."""


class Mark(Enum):
    """What is to be known of a setting beside its type; stands in its annotation."""

    EVIDENCE = "changes a sample: a run holds evidence of one value"
    PATH = "names a file or folder"
    MODEL = "names a model, at a hub or by its folder"
    USUAL = "is among the first of the help"


class Part(BaseModel):
    """Some of the settings: frozen, and nothing unknown among them.

    ``topic`` heads them in the help. Where they belong to one ``engine``, ``key`` is the one that
    this engine cannot do without.
    """

    topic: ClassVar[str]
    engine_of: ClassVar[str | None] = None
    key: ClassVar[str | None] = None

    @classmethod
    def marked(cls, mark: Mark) -> tuple[str, ...]:
        """Names of the settings that have a mark."""
        return tuple(name for name, field in cls.model_fields.items() if mark in field.metadata)

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )


def names(value: Any) -> Any:  # noqa: ANN401 - it is validated later
    """Accept ``"a,b"`` as well as a list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def one_address(value: object) -> object:
    """Refuse several addresses: a load balancer spreads requests over servers."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) != 1 or "," in str(given[0]):
        raise ValueError(
            "give one address; to ask several servers, put a load balancer in front of them"
        )
    return given[0]


def known_encoding(value: str) -> str:
    """Refuse what is no encoding of text."""
    from mia_batch.corpus.books.book import codec

    found = codec(value)
    if found is None:
        raise ValueError("name an encoding of text, such as cp1252, latin-1 or gb18030")
    return found


def shard_name(value: str) -> str:
    """Refuse what names no shard."""
    from mia_batch.evidence.shard import Shard

    return str(Shard.parse(value))


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
