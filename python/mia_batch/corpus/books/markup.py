"""HTML and XHTML to text, without layout, network, or a tree, so that memory is bounded."""

from __future__ import annotations

import io
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from mia_batch.corpus.books.book import MOST_CHARS, Book, BookError, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lxml.etree import _Element

__all__ = ["MOST_PAGE_BYTES", "Pages", "parse_xml", "read_html"]

MOST_PAGE_BYTES = 10 << 20
"""A page may cost forty times its size in memory: attributes do."""

_MOST_DEEP = 512  # as in browsers
_MOST_ELEMENTS = 2_000_000  # of a book; each takes some microseconds
_MOST_LISTED = 200_000  # elements of a package; each takes about a kilobyte
_PIECE = 1 << 16
_TYPES = ("epub:type", "type", "role")

_DECLARED = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""")
_DECLARED_WITHIN = 4096
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>\[]*\[.*?\]\s*>", re.DOTALL | re.IGNORECASE)  # with entities
_LITERAL = re.compile(rb"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_EMPTY = re.compile(rb"<((?!(?:br|hr|img|meta|link|wbr|input|col)\b)[\w:-]++)([^<>]*)/>")
_AUTHORS = ("author", "dc.creator", "dcterms.creator")
_SPACES = re.compile(r"\s+")

_SEPARATORS = ("", " ", "\t", "\n", "\n\n")
_SPACE, _CELL, _LINE, _PARAGRAPH, _NOWHERE = range(1, 6)
_LAID_OUT = re.compile(  # its groups are cells, lines, paragraphs and what is not displayed
    r"(td|th)|(address|article|aside|body|br|caption|center|dd|details|dialog|dir|div|dt|fieldset"
    r"|figcaption|footer|form|header|hgroup|html|legend|li|main|menu|optgroup|option|section"
    r"|summary|tbody|tfoot|thead|tr)"
    r"|(blockquote|dl|figure|h[1-6r]|listing|ol|p|plaintext|pre|table|ul|xmp)"
    r"|(annotation(?:-xml)?|audio|canvas|datalist|head|iframe|nav|noscript|object|rp|script|select"
    r"|style|template|textarea|title|video)"
)
_PREFORMATTED = ("listing", "plaintext", "pre", "xmp")
_UNDISPLAYED = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

_ANY = re.compile(r".*", re.DOTALL)
_NOTHING = re.compile(r"(?!)")
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:pg?|pp|page|pagina|página|seite|s|f|fol)\b\W*)?"
    r"(?:\d{1,5}|[ivxlcdm]{1,9})[a-d]?(?:\W{1,3}\d{1,5})?\W*",
    re.IGNORECASE,
)
_SYMBOL = r"[*†‡§¶‖^↑↩⏎]{1,4}\ufe0e?"
_NOTE_MARK = re.compile(
    r"[\[({]?\s*(?:(?:n|fn|note)?\.?\s*\d{1,4}|[a-z]|x{0,3}(?:i[vx]|v?i{0,3})"
    rf"|{_SYMBOL})\s*[\])}}.:]?",
    re.IGNORECASE,
)
_SURE_MARK = re.compile(rf"\[\s*(?:\w{{1,4}}|{_SYMBOL})\s*\]|{_SYMBOL}")
_TO_NOTE = re.compile(r"#[\W_]*(?:\w*note|fn|ftn|en)s?(?:ref)?[\W_]*\d", re.IGNORECASE)
_LONGEST_MARK = 40
_LICENCE_TYPE = re.compile(r"(?<!\S)(?:(?:doc-)?colophon|imprint|copyright-page)(?!\S)")
_CALLED = re.compile(  # by type, role, class or id
    r"(?<!\S)(?:((?:doc-)?pagebreak|page[-_]?num(?:ber)?|pgnum|(?:x-ebookmaker-)?pageno)"
    r"|((?:doc-)?(?:noteref|backlink)|fn(?:anchor|ref)|(?:foot|end)note-?ref|_idfootnotelink)"
    r"|(pg-boilerplate|pg-?(?:header|footer)|pg-\w+-(?:header|separator)))(?!\S)"
)
_MARKS = (("page_numbers", _PAGE_NUMBER), ("note_marks", _NOTE_MARK), ("licences", _ANY))


class Pages:
    """The text of pages as readers see it: a target of lxml's parsers, page after page."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.title = self.author = ""
        self._text = io.StringIO()
        self.length = self._n_elements = 0
        self.close()

    @property
    def text(self) -> str:
        """The text of all pages so far; blank lines separate them."""
        return self._text.getvalue().strip("\n")

    def add(self, content: bytes, encoding: str | None = None) -> None:
        """Add a page; `BookError` says what is wrong and what to do."""
        from lxml import etree

        if len(content) > MOST_PAGE_BYTES:
            msg = f"is longer than {MOST_PAGE_BYTES >> 20} MiB; split it"
            raise BookError(msg)
        found = _DECLARED.search(content[:_DECLARED_WITHIN])
        declared = found[1].decode().lower() if found else None
        declared = "cp1252" if declared in ("ascii", "us-ascii") else declared  # as browsers do
        source = decode(content, declared=declared, given=encoding).lstrip().encode()
        head = source[:_DECLARED_WITHIN]
        if b"<?xml" in head or b"xmlns=" in head:
            if doctype := _DOCTYPE.match(source, max(0, head.lower().find(b"<!doctype"))):
                source = source[: doctype.start()] + source[doctype.end() :]
            last = source.rfind(b"]]>") + 3  # behind it, a search for an end would not end
            source = _LITERAL.sub(_escape, source[:last]) + source[last:]
            source = _EMPTY.sub(rb"<\1\2></\1>", source)
        options = {"encoding": "utf-8", "no_network": True, "huge_tree": True}
        parser = etree.HTMLParser(target=self, **options)
        for start in range(0, len(source) + 1, _PIECE):  # an error shows at the end of a piece
            parser.feed(source[start : start + _PIECE])
        parser.close()

    def close(self) -> None:
        """End a page."""
        self._open: list[tuple[str, re.Pattern[str], int, int, int, int] | None] = []
        self._apart, self._closing = _PARAGRAPH, ""
        self._is_title = self._is_left_out = False
        self._n_preformatted = self._n_links = self._n_sups = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Begin an element."""
        tag, layout = _tag(name)
        self._n_elements += 1
        if len(self._open) == _MOST_DEEP or self._n_elements > _MOST_ELEMENTS:
            what = f"more than {_MOST_ELEMENTS:,} elements, with earlier pages; split the book"
            if len(self._open) == _MOST_DEEP:
                what = f"elements nested more than {_MOST_DEEP} deep; simplify it"
            msg = f"has {what}"
            raise BookError(msg)
        self._is_title = tag == "title" and not self.title
        if tag == "meta" and not self.author and attributes.get("name", "").lower() in _AUTHORS:
            self.author = " ".join(attributes.get("content", "").split())
        mark = None if self._is_left_out else _mark(tag, layout, attributes)
        if mark is None:
            self._open.append(None)
        else:
            place = (self.length, self._apart, self._n_links, self._n_sups)
            self._open.append((*mark, *place))
            self._is_left_out = mark[1] is _ANY
        self._n_preformatted += tag in _PREFORMATTED
        self._n_links += tag == "a" and "#" in attributes.get("href", "")
        self._n_sups += tag == "sup"
        self._separate(tag, layout)

    def data(self, text: str) -> None:
        """Add characters of an element."""
        if self._is_title and len(self.title) < _DECLARED_WITHIN:
            self.title += text
        text, self._closing = text.removeprefix(self._closing), ""
        if self._n_preformatted:
            self._write(text)
            return
        words = _SPACES.sub(" ", text)
        if words.startswith(" "):
            self._apart = max(self._apart, _SPACE)
        if inner := words.strip(" "):
            self._write(inner)
            self._apart = _SPACE if words.endswith(" ") else 0

    def end(self, name: str) -> None:
        """End an element, and leave it out if it is a mark."""
        tag, layout = _tag(name)
        if tag != "br":
            self._separate(tag, layout)
        self._n_preformatted -= tag in _PREFORMATTED
        self._is_title = False
        mark = self._open.pop()
        if mark is None:
            return
        kind, rule, length, apart, n_links, n_sups = mark
        self._is_left_out &= rule is not _ANY
        raised = rule is _SURE_MARK and self._n_sups > n_sups
        if raised or (rule is _NOTHING and self._n_links > n_links):
            rule = _NOTE_MARK
        if self.length > length + _LONGEST_MARK and rule is not _ANY:
            return
        self._text.seek(max(length - 2, 0))
        before, text = self._text.read(min(length, 2)), self._text.read()
        found = text.strip()
        if not kind:
            self._apart = apart
        elif found and rule.fullmatch(found):
            if before.endswith("[") and rule is _NOTE_MARK:  # its brackets go with it
                text, self._closing = before[:-1] or text, "]"
                length -= 1 + text[0].isspace()
            self._apart = max(self._apart, apart, _SPACE if text[0].isspace() else 0)
            self.left_out += Counter({kind: 1, "characters": len(found)})
        else:
            return
        self.cut(length)

    def _separate(self, tag: str, layout: int) -> None:
        """Set what comes between the text before and after the beginning or end of an element."""
        if tag == "br" and self._apart == _LINE:
            self._apart = _PARAGRAPH
        elif tag == "q":
            self._write('"')
        elif self._apart < layout < _NOWHERE:
            self._apart = layout

    def _write(self, text: str) -> None:
        if self.length:
            text = _SEPARATORS[self._apart] + text
        self._apart = 0
        self.length += len(text)
        if self.length > MOST_CHARS:
            msg = f"holds more than {MOST_CHARS:,} characters; split the book"
            raise BookError(msg)
        self._text.write(text)

    def cut(self, length: int) -> None:
        """Go back to the first characters of the text."""
        self.length = self._text.seek(length)
        self._text.truncate()


def read_html(content: bytes, encoding: str | None = None) -> Book:
    """Read a page; `BookError` says what is wrong and what to do."""
    pages = Pages()
    pages.add(content, encoding)
    title = " ".join(pages.title.split())
    return Book(pages.text, title or None, pages.author or None, left_out=pages.left_out)


def parse_xml(content: bytes) -> _Element:
    """Parse strictly; `lxml.etree.XMLSyntaxError` where the content is not XML."""
    from lxml import etree

    if len(content) > MOST_PAGE_BYTES or content.count(b"<") > _MOST_LISTED:
        msg = f"lists more than {_MOST_LISTED:,} parts; split the book"
        raise BookError(msg)
    options = {"resolve_entities": False, "no_network": True, "load_dtd": False}
    return etree.fromstring(content, etree.XMLParser(**options))


@lru_cache(1000)
def _tag(name: str) -> tuple[str, int]:
    """Return the name of an element, without a prefix, and how it is laid out."""
    tag = name.rpartition(":")[2].lower()
    found = _LAID_OUT.fullmatch(tag)
    return tag, _SPACE + (found.lastindex or 0) if found else 0


def _mark(
    tag: str, layout: int, attributes: Mapping[str, str]
) -> tuple[str, re.Pattern[str]] | None:
    """Return which kind of mark an element may be, "" if hidden, and what its text then is like."""
    if layout == _NOWHERE:
        return "", _ANY
    if tag in ("rt", "rtc"):
        return "ruby_readings", _ANY
    if attributes:
        hidden = attributes.get("hidden", "until-found") != "until-found"
        if hidden or _UNDISPLAYED.search(attributes.get("style", "")):
            return "", _ANY
        types = " ".join(attributes.get(name, "") for name in _TYPES).lower()
        if _LICENCE_TYPE.search(types):
            return "licences", _ANY
        names = f"{types} {attributes.get('class', '')} {attributes.get('id', '')}".lower()
        if called := _CALLED.search(names):
            is_style = called[0] == "pagebreak" and called[0] not in types  # headings have it
            if not (is_style and layout):
                return _MARKS[(called.lastindex or 0) - 1]
    if tag == "sup":
        return "note_marks", _NOTHING  # unless it holds a link
    if tag == "a" and "#" in attributes.get("href", ""):
        return "note_marks", _NOTE_MARK if _TO_NOTE.search(attributes["href"]) else _SURE_MARK
    return None


def _escape(literal: re.Match[bytes]) -> bytes:
    return literal[1].replace(b"&", b"&amp;").replace(b"<", b"&lt;")
