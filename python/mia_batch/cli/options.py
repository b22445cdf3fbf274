"""The options of the root command: one for each setting, from the setting's own description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from mia_batch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

__all__ = ["settings_options"]

_REPEATABLE = ("engine_arg",)


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
    if name in _REPEATABLE:
        return "KEY=VALUE"
    choices = [choice for choice in _choices(field.annotation) if choice is not None]
    if choices:
        return "|".join(map(str, choices))
    if name.endswith("_column"):
        return "COLUMN"
    return {"attacks": "NAME,...", "input": "PATH", "model": "MODEL"}.get(name, _kind(field))


def _choices(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - annotations are of any type
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))


def _kind(field: FieldInfo) -> str:
    annotation = str(field.annotation)
    for kind, metavar in (("int", "N"), ("float", "X"), ("Path", "FOLDER")):
        if kind in annotation:
            return metavar
    return "NAME"


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required() or field.default is None or field.default_factory or "[" in text:
        return text
    return f"{text}  [default: {field.default}]"
