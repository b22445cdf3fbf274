"""What stands around a book and is not the book: found by marks that are sure, else left."""

from __future__ import annotations

import re
from typing import NamedTuple

from mia_batch.corpus.books.contents import contents_end

__all__ = ["Cut", "find_cut"]

_HEADER_CHARS = 50_000  # with the licence of the 1990s, which stood before the text
_LICENCE_CHARS = 60_000
_NOTE_CHARS = 6_000
_FLAGS = re.IGNORECASE | re.MULTILINE

_STARTS = re.compile(
    r"^[ \t]*\*{3}[ \t]*START OF (?:(?:THE|THIS) )?PROJECT GUTENBERG[^*]{0,400}\*{3}[ \t\r]*$"
    r"|^[ \t]*\*END[ *]*THE SMALL PRINT![^\n]*$",
    _FLAGS,
)
_ENDS = re.compile(r"^[ \t]*(?:\*{3}[ \t]*)?END OF (?:(?:THE|THIS) )?PROJECT GUTENBERG\b", _FLAGS)
_CREDITS = re.compile(
    r"(?:produced by|e-?text (?:prepared|produced) by|this e-?text was (?:prepared|produced) by)"
    r"\s(?:[^\r\n]+\r?\n?)+",
    re.IGNORECASE,
)
_NOTE = r"transcriber(?:['\u2019]s|s['\u2019]?)? notes?"
_FIRST_NOTE = re.compile(rf"\[\s*{_NOTE}\b[^\[\]]{{0,{_NOTE_CHARS}}}\]", re.IGNORECASE)
_LAST_NOTE = re.compile(rf"^[ \t]*(?:{_NOTE}[:.]?[ \t\r]*$|\[\s*{_NOTE}\b[^\[\]]*\]\s*\Z)", _FLAGS)
_FIELD = r"^{}:[ \t]*(\S.*(?:\n[ \t]+\S.*)*)"


class Cut(NamedTuple):
    """The part of a text that is the book, and what the header says of it."""

    start: int
    end: int
    title: str | None
    author: str | None


def find_cut(text: str) -> Cut:
    """Find the book in a text.

    Cut are Project Gutenberg's header, small print and licence, the names of those who produced the
    file behind a header, a transcriber's note at either end, and a table of contents whose lines
    come again as headings. A text without such marks is the book from its first character to its
    last.
    """
    header = max((match.end() for match in _STARTS.finditer(text, 0, _HEADER_CHARS)), default=0)
    start, end = header, _end(text, header)
    if header:
        start = _past(_CREDITS, text, start, end)
    start = _past(_FIRST_NOTE, text, start, end)
    start = contents_end(text, start, end) or start
    if start:
        start = _next_word(text, start, end)
    if end < len(text):
        end = start + len(text[start:end].rstrip())
    title, author = (_field(name, text[:header]) for name in ("title", "author"))
    return Cut(start, end, title, author)


def _end(text: str, start: int) -> int:
    """Return where the licence begins, or the note before it."""
    least = max(start, len(text) - _LICENCE_CHARS)
    ends = [match.start() for match in _ENDS.finditer(text, least)]
    end = ends[0] if ends else len(text)
    least = max(start, end - _NOTE_CHARS)
    note = _LAST_NOTE.search(text[:end], least)
    return end if note is None else note.start()


def _past(mark: re.Pattern[str], text: str, start: int, end: int) -> int:
    """Return where a mark ends that is the next to come; else ``start``."""
    found = mark.match(text, _next_word(text, start, end), end)
    return start if found is None else found.end()


def _next_word(text: str, start: int, end: int) -> int:
    """Skip white space, not the indent of the line that follows it."""
    blank = text[start:end]
    skipped = len(blank) - len(blank.lstrip())
    line = blank.rfind("\n", 0, skipped) + 1
    return start + (line or skipped)


def _field(name: str, header: str) -> str | None:
    found = re.search(_FIELD.format(name), header, _FLAGS)
    return " ".join(found[1].split()) if found else None
