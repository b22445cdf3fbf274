"""HTML and XHTML to text, without network and without entities of the file's own."""

from __future__ import annotations

import codecs
import re
from html import entities
from typing import TYPE_CHECKING

from mia_batch.corpus.books.book import Book, BookError

if TYPE_CHECKING:
    from lxml.etree import _Element

__all__ = ["parse_xml", "read_html"]

_DECLARED = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""")
_DECLARED_WITHIN = 4096
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_AS_BROWSERS_DO = {"ascii": "cp1252", "iso8859-1": "cp1252", "utf-16": "utf-8"}
_NAMED = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)\w+;")
_AUTHORS = ("author", "dc.creator", "dcterms.creator")
_TOO_DEEP = "Excessive depth"


def read_html(content: bytes) -> Book:
    """Read a page; `BookError` says what is wrong and what to do."""
    from inscriptis.html_engine import Inscriptis

    source = _decode(content)
    tree = _parse(source) if source.strip() else None
    if tree is None:
        return Book("")
    authors = (
        meta.get("content", "")
        for meta in tree.iter("meta")
        if meta.get("name", "").lower() in _AUTHORS
    )
    return Book(
        text=Inscriptis(tree).get_text().strip("\n"),
        title=_line(tree.findtext(".//title") or ""),
        author=next(filter(None, map(_line, authors)), None),
    )


def parse_xml(content: bytes, encoding: str | None = None) -> _Element:
    """Parse strictly; `lxml.etree.XMLSyntaxError` where the content is not XML."""
    from lxml import etree

    parser = etree.XMLParser(
        encoding=encoding, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    return etree.fromstring(content, parser)


def _decode(content: bytes) -> str:
    marked = (encoding for mark, encoding in _MARKS if content.startswith(mark))
    declared = _DECLARED.search(content[:_DECLARED_WITHIN])
    encoding = next(marked, None)
    try:
        if encoding is None:
            name = codecs.lookup(declared[1].decode() if declared else "utf-8").name
            encoding = _AS_BROWSERS_DO.get(name, name)
        return content.decode(encoding)
    except (LookupError, UnicodeError) as error:
        msg = f"is not in the encoding that it declares, {encoding or error}; save it as UTF-8"
        raise BookError(msg) from error


def _parse(source: str) -> _Element | None:
    """Parse as XML where the page is XHTML, else as browsers do; None where nothing is there."""
    from lxml import etree, html

    tree = None
    if "<?xml" in source[:_DECLARED_WITHIN] or "xmlns=" in source[:_DECLARED_WITHIN]:
        try:
            tree = parse_xml(_NAMED.sub(_character, source).lstrip().encode(), encoding="utf-8")
            html.xhtml_to_html(tree)
        except etree.XMLSyntaxError:
            tree = None
    if tree is None:
        parser = html.HTMLParser(encoding="utf-8", no_network=True)
        try:
            tree = html.document_fromstring(source.encode(), parser=parser)
        except etree.ParserError:
            return None
        if any(_TOO_DEEP in entry.message for entry in parser.error_log):
            msg = "has elements nested more than 255 deep; simplify the page"
            raise BookError(msg)
    hidden = (etree.Comment, etree.ProcessingInstruction, etree.Entity)
    etree.strip_elements(tree, *hidden, with_tail=False)
    return tree


def _character(entity: re.Match[str]) -> str:
    """Write a named character as itself; XML does not know its name."""
    return entities.html5.get(entity[0][1:], entity[0])


def _line(text: str) -> str | None:
    return " ".join(text.split()) or None
