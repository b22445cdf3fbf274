"""Where the command line prints to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console_of"]


def console_of(*, stderr: bool) -> Console:
    """Open standard output or error; 120 characters wide where it is no terminal."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)
