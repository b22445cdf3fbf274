"""Text from corpora and models, safe for a terminal."""

from __future__ import annotations

from rich.text import Text

__all__ = ["plain"]


def plain(value: object) -> Text:
    """Show a value as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\ufffd" for letter in str(value)))
