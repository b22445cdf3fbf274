"""Every setting, by topic, as the command's help describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docs.generate.markdown import code, table
from mia_batch.cli.main import command
from mia_batch.settings import GROUPS, find_user_only

if TYPE_CHECKING:
    import click

    from mia_batch.settings import SettingsGroup

__all__ = ["sections"]

_HEADINGS = ("option", "meaning", "in a file of settings")


def sections() -> str:
    """One section per part of the settings, in the order of the help."""
    options = {str(option.name): option for option in command.params}
    return "\n".join(_section(group, options) for group in GROUPS)


def _section(part: type[SettingsGroup], options: dict[str, click.Parameter]) -> str:
    rows = ((*_row(options[name]), _in_a_file(name)) for name in part.model_fields)
    where = "" if part.table is None else f" Table {code(f'[{part.table}]')}."
    return f"## {part.topic}\n\n{part.__doc__}{where}\n\n{table(_HEADINGS, rows)}"


def _row(option: click.Parameter) -> tuple[str, str]:
    said = option.to_info_dict()
    names = " / ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    metavar = f" {code(option.metavar)}" if isinstance(option.metavar, str) else ""
    meaning, _, default = str(said["help"]).partition("[default: ")
    default = f" Default: {default.removesuffix(']')}." if default else ""
    return names + metavar, meaning.strip() + default


def _in_a_file(name: str) -> str:
    """Say whether a file that may be a stranger's can set it, and why not."""
    rule = find_user_only(name)
    if rule is None:
        return "only what loads no code" if name == "engine_arg" else "yes"
    return (
        f"no address: it {rule.reason}" if rule.addresses else f"no: it {rule.reason}"
    )
