"""What is read from a file that is a whole document, and how its bytes become text."""

from __future__ import annotations

import codecs
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LEFT_OUT", "MOST_CHARS", "Book", "BookError", "codec", "declared_encoding", "decode"]

MOST_CHARS = 32 << 20
"""Longer texts are refused, so that memory is bounded; the longest dictionaries have 28 million."""

LEFT_OUT = (
    *("soft_hyphens", "ruby_readings", "note_marks", "page_numbers", "licences", "missing_pages"),
)
"""Columns that count what stands within a book and is no text of it."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_OF_TEXT = re.compile(
    r"ascii|big5|cp\d|euc_|gb|hz|iso|johab|koi8|kz1048|mac|ptcp|shift_jis|tis-620|utf-(?:8|16|32)"
)
_ZEROS = ("utf-16", "utf-32")  # any text of them has some
_READ_AS = {"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932"}
_READ_AS |= {"iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874"}
"""As browsers do: texts that name these encodings are often in the larger ones."""


class Book(NamedTuple):
    """The text of a file, whole, and what the file says of it."""

    text: str
    title: str | None = None
    author: str | None = None
    isbn: str | None = None
    left_out: Mapping[str, int] = MappingProxyType({})  # how many of each kind; "characters" of all


class BookError(Exception):
    """Says what is wrong with a file, which the sentence does not name, and what to do."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


def declared_encoding(start: bytes) -> str | None:
    """Name the encoding that a byte-order mark declares."""
    return next((encoding for mark, encoding in _MARKS if start.startswith(mark)), None)


def codec(name: str) -> str | None:
    """Return Python's name for an encoding of text; None for others, such as ``hex``."""
    try:
        found = codecs.lookup(re.sub(r"^x-|(?<=^cp)-", "", name.strip().lower())).name
    except (LookupError, ValueError):
        return None
    return found if _OF_TEXT.match(found) else None


def decode(content: bytes, *, declared: str | None = None, given: str | None = None) -> str:
    """Decode by the byte-order mark, as UTF-8, as the content declares, or as the user says.

    UTF-8 comes before what is declared: hardly a text of another encoding is valid UTF-8, but many
    were saved as UTF-8 and declare what they were before.
    """
    marked = declared_encoding(content[:4])
    labels = [marked.removesuffix("-sig").upper()] if marked else [*filter(None, (declared, given))]
    content = content.removeprefix(codecs.BOM_UTF8)
    tried = list[tuple[str, str]]()
    for label in labels:
        name = codec(label)
        if name is None:
            msg = f"declares the encoding {label!r}, which is not one of text; save it as UTF-8"
            raise BookError(msg)
        if not (name.startswith(_ZEROS) and b"\0" not in content):
            tried += [(_READ_AS.get(name, name), label), (name, label)]
    if not any(name.startswith((*_ZEROS, "hz", "iso2022")) for name, _ in tried):
        tried.insert(0, ("utf-8", "UTF-8"))  # the others are valid UTF-8 as they stand
    failures = list[BookError]()
    for name, label in tried:
        try:
            return content.decode(name)
        except UnicodeDecodeError as error:
            line = content[: error.start].decode(name, "replace").count("\n") + 1
            what = f"byte 0x{content[error.start]:02x} is not valid {label}"
            failures.append(BookError(f"{what}; save the file as UTF-8", line))
    raise failures[min(1, len(failures) - 1)]
