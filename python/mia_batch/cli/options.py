"""The options of the root command: one for each setting, from the setting's own description."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from mia_batch.cli.numbers import NumberRange
from mia_batch.finetuning.recipe import recipe_field
from mia_batch.settings import NO_YARDSTICK, PARTS, Mark, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic.fields import FieldInfo

__all__ = ["TopicGroup", "recipe_options", "settings_options"]

_FIRST = "What everybody needs"
_REPEATABLE = ("engine_arg", "base_url")
_KINDS = {int: "N", float: "X", Path: "FOLDER"}
_METAVARS = {
    **dict.fromkeys(Settings.marked(Mark.PATH), "PATH"),
    **dict.fromkeys(Settings.marked(Mark.MODEL), "MODEL"),
    "out": "FOLDER",
    "engine_arg": "KEY=VALUE",
    "shard": "I/N",
    "base_url": "URL",
    "workers": "N|auto",
    "ray": "ADDRESS",
    "non_members_known": "TEXT",
    "yardstick": "PATH|default|none",
    "chat_instruction": "TEXT",
}


class TopicOption(click.Option):
    """An option that stands under a topic in the help."""

    def __init__(self, *names: Any, topic: str = _FIRST, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*names, **options)
        self.topic = topic


class TopicGroup(click.Group):
    """A command whose help groups its options by topic; those that everybody needs come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each topic, then the commands."""
        topics: dict[str, list[tuple[str, str]]] = {_FIRST: []}
        for option in self.get_params(ctx):
            if (record := option.get_help_record(ctx)) is not None:
                topics.setdefault(getattr(option, "topic", _FIRST), []).append(record)
        for topic, records in topics.items():
            with formatter.section(topic):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each setting, or for those named.

    Values are validated with all others, not one by one.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for part in reversed(PARTS):
            for name, field in reversed(part.model_fields.items()):
                if not names or name in names:
                    topic = _FIRST if Mark.USUAL in field.metadata or names else part.topic
                    command = _option(name, field, topic)(command)
        return command

    return add


def recipe_options(
    recipe: str, *names: str, **defaults: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options for fields of `Recipe`, None where they are not given.

    The help says the default of a recipe, or where it is another the text in ``defaults``.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed((*names, *defaults)):
            field = recipe_field(name, recipe)
            kinds = [*_parts(field.annotation)]
            limits = {key: value for each in field.metadata for key, value in asdict(each).items()}
            given: dict[str, Any] = {
                "min": limits.get("ge", limits.get("gt")),
                "max": limits.get("le"),
            }
            kind: click.ParamType[Any] = click.Choice([str(each) for each in get_args(kinds[0])])
            if int in kinds:
                kind = click.IntRange(**given)
            elif float in kinds:
                kind = NumberRange(**given, min_open="gt" in limits)
            text = _help(field)
            if name in defaults:
                text = f"{field.description}  [default: {defaults[name]}]"
            command = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(command)
        return command

    return add


def _option(
    name: str, field: FieldInfo, topic: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    option = f"--{name.replace('_', '-')}"
    if field.annotation is bool:
        option = f"{option}/--no-{name.replace('_', '-')}"
        return click.option(
            option, name, cls=TopicOption, topic=topic, default=None, help=field.description
        )
    add = click.option(
        option,
        name,
        cls=TopicOption,
        topic=topic,
        metavar=_metavar(name, field),
        multiple=name in _REPEATABLE,
        help=_help(field),
    )
    if name != "yardstick":
        return add
    switch = click.option("--no-yardstick", name, flag_value=NO_YARDSTICK, hidden=True)
    return lambda command: switch(add(command))


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
