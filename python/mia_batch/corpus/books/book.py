"""What is read from a file that is a whole document."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Book", "BookError"]


class Book(NamedTuple):
    """The text of a file, whole, and what the file says of it."""

    text: str
    title: str | None = None
    author: str | None = None
    isbn: str | None = None


class BookError(Exception):
    """Says what is wrong with a file, which the sentence does not name, and what to do."""
