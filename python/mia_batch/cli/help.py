"""The help: the first screen, settings by topic, and what a shell completes."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

import click
from click import Command, Context, HelpFormatter, Parameter
from click.shell_completion import CompletionItem

from mia_batch.errors import SettingsError
from mia_batch.plugins import extra, plugins
from mia_batch.settings import PARTS, Part, engine_names

_MORE = "--help names all settings by topic; mia-batch help TOPIC describes them."
_BY_TOPIC = "All settings by topic (mia-batch help TOPIC describes them):"
_SHORT = "mia_batch.short_help"
_FILES = {"PATH": "file", "FOLDER": "dir", "MODEL": "dir"}
TOPICS: dict[str, type[Part]] = {part.table or "main": part for part in PARTS}
"""What a part of the settings is called in the help: as in TOML."""


class SettingOption(click.Option):
    """An option of a setting; ``topic`` is its part's name, ``usual`` puts it first."""

    def __init__(self, *names: Any, topic: str, usual: bool, **options: Any) -> None:
        super().__init__(*names, **options)
        self.topic, self.usual = topic, usual

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        if self.name in ("attacks", "primary"):
            return complete_attacks(ctx, self, incomplete)
        kinds = str(self.metavar).split("|")
        choices = (
            engine_names()
            if self.name == "engine"
            else [k for k in kinds if k == k.lower()]
        )
        types = [type_ for kind, type_ in _FILES.items() if kind in kinds]
        files = [CompletionItem(incomplete, type=type_) for type_ in types]
        return _beginning(choices, incomplete) or files


def _beginning(
    known: Iterable[str], incomplete: str, before: str = ""
) -> list[CompletionItem]:
    return [
        CompletionItem(before + name) for name in known if name.startswith(incomplete)
    ]


def complete_attacks(
    _: Context, _option: Parameter, incomplete: str
) -> list[CompletionItem]:
    from mia_batch.attacks import names
    from mia_batch.attacks.attack import FAMILIES

    before, comma, last = incomplete.rpartition(",")
    known = dict.fromkeys((*(family.name for family in FAMILIES), *names()))
    return _beginning(known, last, before + comma)


def complete_runs(
    _: Context, _argument: Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def complete_help(
    context: Context, _: Parameter, incomplete: str
) -> list[CompletionItem]:
    return _beginning((*_commands(context), *TOPICS, "completion"), incomplete)


class TopicCommand(click.Command):
    """A command of many settings: ``-h`` describes the usual ones, ``--help`` names all."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        usual = (each for each in self.get_params(ctx) if getattr(each, "usual", True))
        with formatter.section("Usual options"):
            formatter.write_dl(_records(usual, ctx))
        if ctx.meta.get(_SHORT):
            formatter.write(f"\n{_MORE}\n")
            return
        formatter.write(f"\n{_BY_TOPIC}\n")
        width = max(map(len, TOPICS)) + 4
        for topic in TOPICS:
            own = [
                each
                for each in _settings(self)
                if each.topic == topic and not each.hidden
            ]
            flags = ", ".join(each.opts[0] for each in own)
            lines = wrap(flags, formatter.width - width, break_on_hyphens=False)
            formatter.write(
                f"  {topic}".ljust(width) + f"\n{' ' * width}".join(lines) + "\n"
            )


class TopicGroup(TopicCommand, click.Group):
    """The program: settings and commands, those of extras and of other packages among them."""

    def list_commands(self, ctx: Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *plugins("commands")})

    def get_command(self, ctx: Context, name: str) -> Command | None:
        if (own := super().get_command(ctx, name)) is not None or name not in plugins(
            "commands"
        ):
            return own
        try:
            return cast("Command", extra("commands", name))
        except SettingsError:
            if ctx.resilient_parsing:  # a shell completes other names
                return None
            raise

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the commands, also where one of another package is broken."""
        records = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
                records.append(
                    (name, "" if command is None else command.get_short_help_str(100))
                )
            except SettingsError:
                records.append((name, "cannot be loaded"))
        with formatter.section("Commands"):
            formatter.write_dl(records)

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        name = args[0]
        if (
            name in self.list_commands(ctx)
            or name.startswith("-")
            or ctx.resilient_parsing
        ):
            return super().resolve_command(ctx, args)
        for (
            option,
            given,
        ) in ctx.params.items():  # such as that of a variable which is empty
            value = str(next(iter(given), "") if isinstance(given, tuple) else given)
            if value.startswith("--"):
                flag = f"--{option.replace('_', '-')}"
                raise click.UsageError(
                    f"{flag} has no value, for {value} follows; give it one"
                )
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        meant = f"mia-batch {near[0]}" if near else "mia-batch help"
        if Path(name).exists():
            meant = f"mia-batch audit {name}"
        raise click.UsageError(f"there is no command {name!r}; did you mean `{meant}`?")

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands (mia-batch help describes them)"):
            formatter.write_text(", ".join(self.list_commands(ctx)))

    def about(self, root: Context, name: str) -> str:
        """Describe a command, a topic, a setting, or all that is so called; or list them."""
        if name in ("", "completion"):
            return _text("completion") if name else self._contents(root)
        formatter = root.make_formatter()
        if (command := self.get_command(root, name)) is not None:
            with click.Context(command, info_name=name, parent=root) as own:
                formatter.write(command.get_help(own) + "\n\n")
        lower, settings = name.lower(), _settings(self)
        topics = (
            each for each, part in TOPICS.items() if lower in (each, part.topic.lower())
        )
        if (topic := next(topics, None)) is not None:
            part = TOPICS[topic]
            where = f" In TOML they stand below [{part.table}]." if part.table else ""
            formatter.write_text(f"{part.topic}: {part.__doc__}{where}")
            formatter.write_paragraph()
            formatter.write_dl(
                _records((each for each in settings if each.topic == topic), root)
            )
        key = lower.lstrip("-").replace("-", "_")
        asked = [each for each in settings if each.name == key]
        if asked and command is None and topic is None:
            formatter.write_dl(_records(asked, root))
        if text := formatter.getvalue():
            return text
        flags = (str(each.name).replace("_", "-") for each in settings)
        known = [*self.list_commands(root), *TOPICS, *flags]
        near = get_close_matches(lower.lstrip("-"), known, n=1, cutoff=0.65)
        hint = "`mia-batch help` lists them"
        if near:
            hint = f"did you mean `mia-batch help {near[0]}`?"
        from mia_batch.attacks import resolve

        with suppress(SettingsError):
            hint = f"`mia-batch attacks {resolve(name)[0]}` describes the attack"
        raise click.UsageError(
            f"there is no command, topic or setting {name!r}; {hint}"
        )

    def _contents(self, root: Context) -> str:
        formatter = root.make_formatter()
        with formatter.section("Topics of settings"):
            formatter.write_dl(
                [(name, str(part.__doc__)) for name, part in TOPICS.items()]
            )
        self.format_commands(root, formatter)
        formatter.write(
            "\nmia-batch help NAME describes a topic, a command or a setting;\n"
            "mia-batch help completion says how a shell completes what you type.\n"
        )
        return formatter.getvalue()


def short_help_option(command: Callable[..., Any]) -> Callable[..., Any]:
    how: dict[str, Any] = {"is_flag": True, "is_eager": True, "hidden": True}
    add = click.option(
        "-h", "short_help", expose_value=False, callback=_show_short_help, **how
    )
    return add(command)


def _show_short_help(context: Context, _option: Parameter, value: bool) -> None:  # noqa: FBT001 - of click
    if not value or context.resilient_parsing:
        return
    context.meta[_SHORT] = True
    is_root = context.parent is None
    click.echo(overview(context) if is_root else context.get_help(), nl=not is_root)
    context.exit()


def overview(context: Context) -> str:
    text = _text("overview")
    others = [name for name in _commands(context) if f"\n  {name} " not in text]
    lines = wrap(", ".join(others), 96, break_on_hyphens=False)
    return text.format(others="\n  ".join(lines))


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.txt").read_text("utf-8")


def _commands(context: Context) -> list[str]:
    root = context.find_root()
    return (
        root.command.list_commands(root)
        if isinstance(root.command, click.Group)
        else []
    )


def _settings(command: click.Command) -> list[SettingOption]:
    return [each for each in command.params if isinstance(each, SettingOption)]


def _records(options: Iterable[click.Parameter], ctx: Context) -> list[tuple[str, str]]:
    shown = (option for option in options if isinstance(option, click.Option))
    records = (option.get_help_record(ctx) for option in shown)
    return [record for record in records if record is not None]
