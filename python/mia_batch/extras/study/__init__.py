"""Studies of papers as commands: runs set side by side, with one table and one picture.

A study makes ordinary runs below ``--out``, so that one that was killed goes on where
its runs do, and lays their figures out as one long table: columns of its own that say
what differs, then those of a run. What all studies share is in `frame`; `sweeps` has
the plainest.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

_MODULES = {
    "books": "min_k",
    "contamination": "sweeps",
    "sweep": "sweeps",
    "unlearning": "min_k",
}


class _Studies(click.Group):
    """Loads the module of a study when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - of click
        return [*_MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - of click
        if cmd_name not in _MODULES:
            return None
        module = import_module(f"{__name__}.{_MODULES[cmd_name]}")
        return cast("click.Command", getattr(module, cmd_name))


@click.group("study", cls=_Studies)
def study() -> None:
    """Do the study of a paper: audits set side by side, with one table and one picture.

    The same command again goes on where it stopped, and asks nothing twice.
    """
