"""The options of the root command: one for each setting, from the setting's own description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from mia_batch.settings import NAMES_OR_PATHS, PATHS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic.fields import FieldInfo

__all__ = ["settings_options"]

_REPEATABLE = ("engine_arg",)
_KINDS = {int: "N", float: "X", Path: "FOLDER"}
_METAVARS = {
    **dict.fromkeys(PATHS, "PATH"),
    **dict.fromkeys(NAMES_OR_PATHS, "MODEL"),
    "out": "FOLDER",
    "engine_arg": "KEY=VALUE",
    "base_url": "URL",
    "non_members_known": "TEXT",
    "chat_instruction": "TEXT",
}


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting; values are validated with all others, not one by one."""
    for name, field in reversed(Settings.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if field.annotation is bool:
        option = name.replace("_", "-")
        return click.option(f"--{option}/--no-{option}", name, default=None, help=field.description)
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        metavar=_metavar(name, field),
        multiple=name in _REPEATABLE,
        help=_help(field),
    )


def _metavar(name: str, field: FieldInfo) -> str:
    if name in _METAVARS:
        return _METAVARS[name]
    if name.endswith("_column"):
        return "COLUMN"
    parts = list(_parts(field.annotation))
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if choices:
        return "|".join(map(str, choices))
    kinds = (metavar for kind, metavar in _KINDS.items() if any(part is kind for part in parts))
    metavar = next(kinds, "NAME")
    return f"{metavar},..." if any(get_origin(part) is tuple for part in parts) else metavar


def _parts(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - annotations are of any type
    """Yield an annotation, and all that it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required() or field.default in (None, ()) or field.default_factory or "[" in text:
        return text
    return f"{text}  [default: {field.default}]"
