"""The help: the first screen, settings by topic, and what a shell completes."""

import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any, NoReturn, cast

import click
from click import Command, Context, HelpFormatter, Parameter
from click.shell_completion import CompletionItem

from mia_batch.errors import SettingsError
from mia_batch.plugins import extra, plugins
from mia_batch.settings import GROUPS, SettingsGroup, engine_names

_MORE = "--help names all settings by topic; mia-batch help TOPIC describes them."
_BY_TOPIC = "All settings by topic (mia-batch help TOPIC describes them):"
_SHORT = "mia_batch.short_help"
_FILES = {"PATH": "file", "FOLDER": "dir", "MODEL": "dir"}
TOPICS: dict[str, type[SettingsGroup]] = {
    group.table or "main": group for group in GROUPS
}
"""What a group of settings is called in the help: as in TOML."""


class SettingOption(click.Option):
    """An option of a setting; ``topic`` is its group's name, ``usual`` puts it first."""

    def __init__(self, *names: Any, topic: str, usual: bool, **options: Any) -> None:
        super().__init__(*names, **options)
        self.topic = topic
        self.usual = usual

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        if self.name in ("attacks", "primary"):
            return complete_attacks(ctx, self, incomplete)
        kinds = str(self.metavar).split("|")
        choices = [kind for kind in kinds if kind == kind.lower()]
        if self.name == "engine":
            choices = engine_names()
        types = [type_ for kind, type_ in _FILES.items() if kind in kinds]
        files = [CompletionItem(incomplete, type=type_) for type_ in types]
        return _complete(choices, incomplete) or files


def _complete(
    names: Iterable[str], incomplete: str, prefix: str = ""
) -> list[CompletionItem]:
    return [
        CompletionItem(prefix + name) for name in names if name.startswith(incomplete)
    ]


def complete_attacks(
    _: Context, _option: Parameter, incomplete: str
) -> list[CompletionItem]:
    from mia_batch.attacks import names
    from mia_batch.attacks.attack import FAMILIES

    earlier, comma, last = incomplete.rpartition(",")
    families = (family.name for family in FAMILIES)
    return _complete(dict.fromkeys((*families, *names())), last, earlier + comma)


def complete_runs(
    _: Context, _argument: Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def complete_help(
    context: Context, _: Parameter, incomplete: str
) -> list[CompletionItem]:
    return _complete((*_commands(context), *TOPICS, "completion"), incomplete)


class TopicCommand(click.Command):
    """A command of many settings: ``-h`` describes the usual ones, ``--help`` names all."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        usual = [option for option in parameters if getattr(option, "usual", True)]
        with formatter.section("Usual options"):
            formatter.write_dl(_records(usual, ctx))
        if ctx.meta.get(_SHORT):
            formatter.write(f"\n{_MORE}\n")
            return
        formatter.write(f"\n{_BY_TOPIC}\n")
        width = max(map(len, TOPICS)) + 4
        visible = [option for option in _settings(self) if not option.hidden]
        for topic in TOPICS:
            flags = [option.opts[0] for option in visible if option.topic == topic]
            text_width = formatter.width - width
            lines = wrap(", ".join(flags), text_width, break_on_hyphens=False)
            text = f"\n{' ' * width}".join(lines)
            formatter.write(f"  {topic}".ljust(width) + text + "\n")


class TopicGroup(TopicCommand, click.Group):
    """The program: settings and commands, those of extras and of other packages among them."""

    def list_commands(self, ctx: Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *plugins("commands")})

    def get_command(self, ctx: Context, name: str) -> Command | None:
        command = super().get_command(ctx, name)
        if command is not None or name not in plugins("commands"):
            return command
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
                text = "" if command is None else command.get_short_help_str(100)
            except SettingsError:
                text = "cannot be loaded"
            records.append((name, text))
        with formatter.section("Commands"):
            formatter.write_dl(records)

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        name = args[0]
        is_command = name in self.list_commands(ctx)
        if is_command or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # Such as that of a variable which is empty
        for option, values in ctx.params.items():
            first = next(iter(values), "") if isinstance(values, tuple) else values
            value = str(first)
            if value.startswith("--"):
                flag = f"--{option.replace('_', '-')}"
                raise click.UsageError(
                    f"{flag} has no value, for {value} follows; give it one"
                )
        if name == "version":
            raise click.UsageError("there is no command 'version'; give --version")
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        suggestion = f"mia-batch {near[0]}" if near else "mia-batch help"
        if Path(name).exists():
            suggestion = f"mia-batch audit {name}"
        raise click.UsageError(
            f"there is no command {name!r}; did you mean `{suggestion}`?"
        )

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands (mia-batch help describes them)"):
            formatter.write_text(", ".join(self.list_commands(ctx)))

    def about(self, root: Context, name: str) -> str:
        """Describe a command, a topic, a setting, or all that is so called; or list them."""
        if name == "completion":
            return _read_text("completion")
        if not name:
            return self._contents(root)
        formatter = root.make_formatter()
        command = self.get_command(root, name)
        if command is not None:
            with click.Context(command, info_name=name, parent=root) as context:
                formatter.write(command.get_help(context) + "\n\n")
        topic = _find_topic(name)
        settings = _settings(self)
        if topic is not None:
            group = TOPICS[topic]
            place = f" In TOML they stand below [{group.table}]." if group.table else ""
            formatter.write_text(f"{group.topic}: {group.__doc__}{place}")
            formatter.write_paragraph()
            of_topic = [option for option in settings if option.topic == topic]
            formatter.write_dl(_records(of_topic, root))
        key = name.lower().lstrip("-").replace("-", "_")
        matches = [option for option in settings if option.name == key]
        if matches and command is None and topic is None:
            formatter.write_dl(_records(matches, root))
        text = formatter.getvalue()
        if not text:
            self._refuse_unknown(root, name)
        return text

    def _refuse_unknown(self, root: Context, name: str) -> NoReturn:
        flags = [str(option.name).replace("_", "-") for option in _settings(self)]
        names = [*self.list_commands(root), *TOPICS, *flags]
        near = get_close_matches(name.lower().lstrip("-"), names, n=1, cutoff=0.65)
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
        topics = [(name, str(group.__doc__)) for name, group in TOPICS.items()]
        with formatter.section("Topics of settings"):
            formatter.write_dl(topics)
        self.format_commands(root, formatter)
        formatter.write(
            "\nmia-batch help NAME describes a topic, a command or a setting;\n"
            "mia-batch help completion says how a shell completes what you type.\n"
        )
        return formatter.getvalue()


def _find_topic(name: str) -> str | None:
    """Find a topic by its key or its heading."""
    lower = name.lower()
    for topic, group in TOPICS.items():
        if lower in (topic, group.topic.lower()):
            return topic
    return None


def short_help_option(command: Callable[..., Any]) -> Callable[..., Any]:
    add = click.option(
        "-h",
        "short_help",
        is_flag=True,
        is_eager=True,
        hidden=True,
        expose_value=False,
        callback=_show_short_help,
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
    text = _read_text("overview")
    unlisted = [name for name in _commands(context) if f"\n  {name} " not in text]
    lines = wrap(", ".join(unlisted), 96, break_on_hyphens=False)
    return text.format(others="\n  ".join(lines))


def find_other_tool(option: str) -> str | None:
    """Return what does here what an option of another tool does; None of an unknown one."""
    table = Path(__file__).with_name("other_tools.toml").read_text("utf-8")
    name = option.lstrip("-").replace("_", "-").lower()
    answer: str | None = tomllib.loads(table).get(name)
    return answer


def _read_text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.txt").read_text("utf-8")


def _commands(context: Context) -> list[str]:
    root = context.find_root()
    if not isinstance(root.command, click.Group):
        return []
    return root.command.list_commands(root)


def _settings(command: click.Command) -> list[SettingOption]:
    return [option for option in command.params if isinstance(option, SettingOption)]


def _records(options: Iterable[click.Parameter], ctx: Context) -> list[tuple[str, str]]:
    records = [
        option.get_help_record(ctx)
        for option in options
        if isinstance(option, click.Option)
    ]
    return [record for record in records if record is not None]
