"""The table of contents: lines that come again as headings."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["contents_end"]

_HEADING = re.compile(
    r"^[ \t_]*(?:(?:the |table of )?contents|table des mati[èe]res|inhalt(?:sverzeichnis)?"
    r"|[íi]ndice|sommaire)[.:]?[ \t\r_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_PAGE_NUMBER = re.compile(r"(?:[ \t]*[.…·][.…· \t]+|[ \t]{2,})\d+[ \t]*$")
_WORDS = re.compile(r"[^\W_]+")
_COLUMN_HEADINGS = ("page", "chapter", "chap page", "chapter page")
_LINE_CHARS = 300  # a longer line is no entry, and no heading
_WORDS_BEFORE = 150  # a title page has fewer
_CHARS_BEFORE = 5_000
_LEAST_ENTRIES = 3
_MOST_LINES = 1_000
_LEAST_SHARE = 0.9  # of lines that come again


def contents_end(text: str, start: int, end: int) -> int | None:
    """Return where the table of contents ends that stands behind a title page; None without.

    It is one if its first entry comes again as a line or two, and of the lines between at least
    three, and nine in ten, come again after that. Letters and digits count.
    """
    heading = _HEADING.search(text, start, min(end, start + _CHARS_BEFORE))
    if heading is None or len(text[start : heading.start()].split()) > _WORDS_BEFORE:
        return None
    lines = list(_lines(text, heading.end(), end))
    while lines and lines[0][0] in _COLUMN_HEADINGS:
        del lines[0]
    first = _second_place(lines)
    if first is None:
        return None
    body = lines[first:]
    headings = {line for line, _ in body} | {f"{a} {b}" for (a, _), (b, _) in pairwise(body)}
    entries = [place for place, (line, _) in enumerate(lines[:first]) if line in headings]
    n_lines = entries[-1] + 1 if entries else 0
    if len(entries) < max(_LEAST_ENTRIES, _LEAST_SHARE * n_lines):
        return None
    return lines[n_lines - 1][1]


def _lines(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Yield the words of each line that has some, in small letters, and where the line ends."""
    for line in text[start:end].splitlines(keepends=True):
        start += len(line)
        content = _PAGE_NUMBER.sub("", line.rstrip("\r\n")) if len(line) < _LINE_CHARS else line
        if words := _WORDS.findall(content.casefold()):
            yield " ".join(words), start


def _second_place(lines: list[tuple[str, int]]) -> int | None:
    """Return the line where the first one comes again, alone or with the one that follows."""
    for place in range(1, min(len(lines) - 1, _MOST_LINES)):
        line, following = lines[place][0], lines[place + 1][0]
        if lines[0][0] in (line, f"{line} {following}"):
            return place
    return None
