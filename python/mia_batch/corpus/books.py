"""Books: plain text, HTML and EPUB, less what is not the author's."""

from __future__ import annotations

import codecs
import io
import posixpath
import re
import struct
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, pairwise
from types import MappingProxyType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

if TYPE_CHECKING:
    from lxml.etree import _Element


# What stands around and within a book and is not the book: found by sure marks, else
# left.

_HEADER_CHARS = 50_000  # with the licence of the 1990s, which stood before the text
_LICENCE_CHARS = 60_000
_NOTE_CHARS = 6_000
_OPENING_CHARS = 1_500
_LAST_CHARS = 300  # behind the line that ends a book, such as the names of authors
_GAP_CHARS = 4_000  # of a licence without a word that tells it is one
_FLAGS = re.IGNORECASE | re.MULTILINE

_NAME = (
    r"(?:Pro(?:[jy]e[ck]?to?|getto)[\s-]{1,4}Gutenberg|[古谷][騰腾登]堡[計计][劃划])"
)
_EBOOK = r"e-?(?:text|book|boek|buch)"
_LICENCE = re.compile(
    rf"{_NAME}(?:-tm\b|\s?\(tm\)|™|\s+Literary\s+Archive|\s+Licen[cst])"
    r"|Updated editions will replace the previous|Terms of Use and"
    rf" Redistributing\s+{_NAME}"
    rf"|Plain Vanilla Electronic Texts|THE SMALL PRINT|full of FREE ebooks|e-book comes"
    rf" from the"
    rf"|{_NAME}[^\n]{{0,30}}Etext, Details Above|book is at the top of this file|FIN DU"
    r" FICHIER",
    re.IGNORECASE,
)
_MENTION = re.compile(rf"{_NAME}|{_LICENCE.pattern}", re.IGNORECASE)
_TITLE = r"(?:(?:(?!\n[ \t]*\n).){0,400}?\*{3}[ \t]*$|[^\n]{0,400}?\*{3}|[^\n]*$)"
_START = (
    r"START OF (?:(?:THE|THIS) )?(?:COPYRIGHTED )?|Beginning of this |INIZIO DI"
    r" |INICIO DE "
    r"|D[EÉ]BUT D[EU] |ANFANG (?:DES|DIESES) "
)
_STARTS = re.compile(
    rf"(?P<sure>^[ \t]*\*{{3}}[ \t]*(?:{_START}){_NAME}{_TITLE}"
    r"|^[^\w\n]{0,9}END[ *]*(?:OF[ *]*)?THE SMALL PRINT\b[^\n]*$"
    r"|^[^\n]*Strictly for personal use, do not use this file for commercial"
    r" purposes[^\n]*$)"
    rf"|\*{{3}}[ \t]*(?:{_START}){_NAME}{_TITLE}"
    rf"|^[ \t]*(?:{_START}){_NAME}{_TITLE}"
    r"|^[^\n]*utilisation\.?commerciale@bnf\.fr[^\n]*$"
    r"|^[^\n]*http\s?:\s?//\s?books\s?\.\s?google\s?\.\s?com[^\n]*$",
    _FLAGS | re.DOTALL,
)
_OPENING = re.compile(
    rf"{_NAME}(?:['\u2019]?s|n)?\s+(?:of Australia\s+|Canada\s+)?(?:{_EBOOK}|edition)\b"
    rf"|Distributed Proofreaders Canada {_EBOOK}|accessibles sur le site Gallica"
    r"|digital copy of a book that was preserved",
    re.IGNORECASE,
)
_FRONT = re.compile(  # the last part is a field, such as "Release Date: "
    rf"{_OPENING.pattern}|{_LICENCE.pattern}|gutenberg\.(?:org|net|ca)\b|pgdp|fadedpage"
    rf"|for the use of anyone|voor kosteloos gebruik|{_NAME} Australia|{_EBOOK}"
    r" (?:#|No\.)"
    r"|copyright laws|made available at no cost|information in this header|on your own"
    r" disk"
    r"|public domain|Readable By Both Humans|Hundreds of Volunteers|DO NOT DOWNLOAD"
    r"|\A[\W_]*[^\W\d_][\w ]{2,40}[\W_]{0,3}:",
    re.IGNORECASE,
)
_END_WORDS = (
    "End|Ende|Fin|Fine|Fim|Final|Einde|Slut|Slutt|Loppu|Koniec|Konec|Vége|Конец|Τέλος"
)
_PART_OF_LINES = rf"(?:(?!\b(?:{_END_WORDS})\b|\*{{3}}|\n[ \t]*\n)[\s\S]){{0,120}}?"
_LAST_LINE = re.compile(
    r"^(?P<sure>[ \t]*\*{3})?[^\w\n]{0,20}(?-i:(?![a-zà-ÿ]))(?:The"
    rf" )?(?:{_END_WORDS})\b"
    rf"{_PART_OF_LINES}{_NAME}[^\n]*",
    _FLAGS,
)
_ENDS = re.compile(
    rf"{_LAST_LINE.pattern}"
    rf"|^[^\w\n]{{0,20}}{_NAME}[^\n]{{0,150}}(?:loppu|結束|结束|終|完)\W{{0,20}}$"
    rf"|(?:\bEnd of (?:th(?:e|is) )?{_NAME}[^\n]{{0,300}}?)?"
    rf"\*{{3}}\s{{0,2}}END OF[^\n]{{1,30}}?{_NAME}"
    r"|(?P<phrase>^[^\w\n]{0,20}(?:Updated editions will replace the previous|START:?"
    r" FULL LICENSE"
    r"|START[ *]*THE SMALL PRINT|More information about this book is at the top of this"
    r" file"
    r"|(?:This|Dit) (?:file|bestand) (?:should be named|moet) |This site is full of"
    r" FREE ebooks"
    rf"|THE FULL {_NAME}|Section 1\. {{1,3}}General Terms of Use|End(?: of this|e"
    rf" dieses) {_EBOOK}"
    rf"|This is a COPYRIGHTED {_NAME}|About this digital edition\s{{1,9}}This e-book"
    r"|FIN DU FICHIER))"
    r"|^[^\w\n]{0,9}(?:\d{4}[^\n.]{0,40})?(?:https?://)?(?:www\.)?(?:Projekt"
    r" Gutenberg-DE"
    r"|gutenberg\.spiegel\.de|projekt-gutenberg\.org|Project Gutenberg (?:of"
    r" )?Australia"
    r"|gutenberg\.net\.au|feedbooks\.com\s{1,9}Food for the mind)\W{0,40}\Z"
    r"|^\[(?:The )?End of [^\[\]]{1,300}\bby [^\[\]]{1,100}\]\s{0,99}\Z",
    _FLAGS,
)
_BY = r"(?:by|from|par|von|door|por|da)\b"
_CREDITS = re.compile(
    r"\A[\[(*\s]{0,9}(?:(?:html version|edition|e-?text|e-?book|th(?:is|e) (?:project"
    r" gutenberg )?"
    rf"(?:{_EBOOK}|file|edition) was (?:first )?)?\s?"
    r"(?:produced|prepared|transcribed|scanned|digiti[sz]ed|typed|proofed|proofread|posted|created"
    r"|updated|produit|créé|erstellt|produziert|geproduceerd|produzido|producido|prodotto)"
    rf"(?: (?:and|&|on|in) [^\n]{{1,40}}?)? {_BY}"
    r"|credits?:|note: project gutenberg (?:also )?has|images of the original pages are"
    r" available"
    rf"|this (?:{_EBOOK}|file) was (?:first )?(?:produced|posted|made))",
    re.IGNORECASE,
)
# No book in one line
_PARAGRAPH = re.compile(r"(?:(?![ \t]*\n)[^\n]{1,600}(?:\n|\Z)){1,60}")
_NOTE = r"transcriber(?:['\u2019]s|s['\u2019]?)? notes?"
_FIRST_NOTE = re.compile(rf"\[\s*{_NOTE}\b[^\[\]]{{0,{_NOTE_CHARS}}}\]", re.IGNORECASE)
_LAST_NOTE = re.compile(
    rf"^[ \t]*(?:{_NOTE}[:.]?[ \t]*$|\[\s*{_NOTE}\b[^\[\]]*\]\s*\Z)", _FLAGS
)
_FIELD = r"^(?:{}):[ \t]*(\S.*(?:\n[ \t]+\S.*)*)"
_BLANK = re.compile(r"\s*")
_SURE_FRONT = re.compile(
    r"for the use of anyone|release date|copyright laws|at no cost|voor kosteloos"
    r" gebruik",
    _FLAGS,
)

_LETTER = "A-Za-z\u00c0-\u052f"  # Latin, Greek and Cyrillic join no letters
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_SOFT_HYPHEN = (
    "\u00ad(?:[ \t]{0,9}\r?\n[ \t]{0,9}(?=\\w))?|[\u2060\ufeff]"
    "|\u200b(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]\u200b)"  # it parts words of Thai or Khmer
    f"|[\u200c\u200d](?<=[{_LETTER}][\u200c\u200d])(?=[{_LETTER}])"
)
_WORLD_LIBRARY = (  # within Shakespeare's works
    r"<<THIS ELECTRONIC VERSION OF[^<>]{0,2000}>>"
)
_PAGE = r"\[(?:Pg|Page)[ \xa0]?(?:\d{1,4}|[ivxlc]{1,8})\]"
_BRACED = re.compile(r"\{(\d{1,4})\}")
_ALONE_OR_WITHIN = (
    r"^[ \t]{{0,80}}(?:{0})[ \t]{{0,80}}\r?\n(?:[ \t]{{0,80}}\r?\n)?|["
    r" \t]?(?:{0})(?=\s|\Z)|(?:{0})"
)
_FOOTNOTE = re.compile(r"\[Footnote (\w{1,4}):")

# Files of Aozora Bunko: a title page, a legend of signs between rules, the text with
# readings of its characters and notes for whoever sets it, and the printed book that it
# was taken from.
_AOZORA_RULE = r"-{20,200}[ \t\r]*\n"
_AOZORA_HEADER = re.compile(
    rf"\A\ufeff?(?P<title>[^\n]{{1,200}})\n(?P<author>[^\n]{{0,200}})\n(?:[^\n]{{0,200}}\n){{0,8}}?"
    rf"{_AOZORA_RULE}【テキスト中に現れる記号について】[^\n]*\n(?:(?!-{{20}})[^\n]*\n){{0,80}}{_AOZORA_RULE}"
)
_AOZORA_END = re.compile(r"^底本：", re.MULTILINE)
_AOZORA_END_CHARS = 3_000
_AOZORA_MARKS = (
    ("ruby_readings", r"《[^《》\n]{1,80}》|｜(?=[^《》\n]{1,80}《)"),
    ("note_marks", r"［＃[^［］\n]{0,300}］"),
)
_MOST_MARKS = 5_000

_CONTENTS = re.compile(
    r"^[ \t_]*(?:(?:the |table of )?contents|table des"
    r" mati[èe]res|inhalt(?:sverzeichnis)?"
    r"|[íi]ndice|sommaire)[.:]?[ \t\r_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_LEADERS = " \t.…·"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORDS = re.compile(r"[^\W_]+")
_COLUMN_HEADINGS = ("page", "chapter", "chap page", "chapter page")
_LINE_CHARS = 300  # a longer line is no entry, and no heading
_WORDS_BEFORE = 150  # a title page has fewer
_CHARS_BEFORE = 5_000
_LEAST_ENTRIES = 3
_MOST_LINES = 1_000
_LINES_OF_BOOK = 500_000  # its headings are looked for in them
_LEAST_SHARE = 0.9  # of lines that come again


class Cut(NamedTuple):
    """The part of a text that is the book, and what the header says of it."""

    start: int
    end: int
    title: str | None
    author: str | None


def find_cut(text: str) -> Cut:
    """Find the book in a text."""
    # Cut are Project Gutenberg's header, small print and licence, and those of its
    # sisters, the names of those who produced the file behind a header, a transcriber's
    # note at either end, and a table of contents whose lines come again as headings. A
    # text without such marks is the book from its first character to its last.
    # As long as before
    view = text.replace("\r\n", " \n").replace("\r", "\n").replace("\f", "\n")
    if aozora := _AOZORA_HEADER.match(view):
        return _aozora_cut(view, aozora)
    header = _header(view)
    start, end = header, _end(view, header)
    if header:
        start = _past_paragraphs(view, start, end, _CREDITS)
    note = _FIRST_NOTE.match(view, _next_word(view, start, end), end)
    start = start if note is None else note.end()
    start = _contents_end(view, start, end) or start
    if start:
        start = _next_word(view, start, end)
    if end < len(text):
        end = start + len(text[start:end].rstrip())
    head = view[:header]
    names = ("Title|Titel|Titre", "Author|Auteur|Autor")
    fields = (re.search(_FIELD.format(name), head, _FLAGS) for name in names)
    title, author = (" ".join(found[1].split()) if found else None for found in fields)
    return Cut(start, end, title, author)


def _aozora_cut(view: str, header: re.Match[str]) -> Cut:
    start = _next_word(view, header.end(), len(view))
    source = _AOZORA_END.search(view, max(start, len(view) - _AOZORA_END_CHARS))
    end = len(view) if source is None else source.start()
    end = start + len(view[start:end].rstrip())
    return Cut(start, end, header["title"].strip(), header["author"].strip() or None)


def tidy(text: str) -> tuple[str, Counter[str]]:
    """Leave out what stands within a text and is not of it; return how much of each kind."""
    numbers = [int(found[1]) for found in islice(_BRACED.finditer(text), _MOST_MARKS)]
    n_next = sum(after == before + 1 for before, after in pairwise(numbers))
    page = (
        rf"{_PAGE}|{_BRACED.pattern}"
        if n_next > max(3, 0.9 * len(numbers) - 1)
        else _PAGE
    )
    labels = "|".join(
        {found[1] for found in islice(_FOOTNOTE.finditer(text), _MOST_MARKS)}
    )
    marks = [("licences", _WORLD_LIBRARY)]
    if _AOZORA_HEADER.match(text.replace("\r\n", " \n")):
        marks += _AOZORA_MARKS
    if any(map(text.__contains__, _INVISIBLE)):
        marks.append(("soft_hyphens", _SOFT_HYPHEN))
    if re.search(page, text):
        marks.append(("page_numbers", _ALONE_OR_WITHIN.format(page)))
    if labels:
        marks.append(
            ("note_marks", rf"[ \t]?\[(?:{labels})\](?=\s)|\[(?:{labels})\](?!\w)")
        )
    left_out = Counter[str]()
    for kind, mark in marks:
        tidied, n_marks = re.subn(mark, "", text, flags=re.MULTILINE)
        left_out += Counter({kind: n_marks, "characters": len(text) - len(tidied)})
        text = tidied
    return text, left_out


def _header(view: str) -> int:
    last = _LAST_LINE.search(view, 0, _HEADER_CHARS)
    limit = _HEADER_CHARS if last is None else last.start()
    starts = (
        mark.end()
        for mark in _STARTS.finditer(view, 0, limit)
        if mark["sure"] or _OPENING.search(view, 0, min(mark.start(), _OPENING_CHARS))
    )
    if header := max(starts, default=0):
        return header
    if _OPENING.search(view, 0, _LAST_CHARS):
        header = _past_paragraphs(view, 0, limit, _FRONT, _CREDITS)
    return header if _SURE_FRONT.search(view, 0, header) else 0


def _end(view: str, start: int) -> int:
    end = len(view)
    marks = [*_ENDS.finditer(view, max(start, end - _LICENCE_CHARS))]
    begin = marks[0].start() if marks else end
    mentions, licences = (
        _starts(pattern, view, begin) for pattern in (_MENTION, _LICENCE)
    )
    for mark in reversed(marks):
        is_near = not view[mark.end() + _LAST_CHARS : end].strip()
        words = mentions if mark["sure"] else licences
        n_before = bisect_left(words, mark.start())
        places = [mark.end(), *words[n_before : bisect_left(words, end)], end]
        is_licence = len(places) > 2 and all(
            b - a < _GAP_CHARS for a, b in pairwise(places)
        )
        is_last = is_near and not (mark["phrase"] and end == len(view))
        if is_last or is_licence or (mark["sure"] and end == len(view)):
            end = mark.start()
    note = _LAST_NOTE.search(view, max(start, end - _NOTE_CHARS), end)
    return end if note is None else note.start()


def _starts(words: re.Pattern[str], view: str, begin: int) -> list[int]:
    return [found.start() for found in words.finditer(view, begin)]


def _contents_end(text: str, start: int, end: int) -> int | None:
    """Return where the table of contents ends that stands behind a title page; None without."""
    # It is one if its first entry comes again as a line or two, and of the lines
    # between at least three, and nine in ten, come again after that. Letters and digits
    # count.
    heading = _CONTENTS.search(text, start, min(end, start + _CHARS_BEFORE))
    if heading is None or len(text[start : heading.start()].split()) > _WORDS_BEFORE:
        return None
    lines = [*islice(_lines(text, heading.end(), end), _LINES_OF_BOOK)]
    while lines and lines[0][0] in _COLUMN_HEADINGS:
        del lines[0]
    # The line where the first one comes again, alone or with the one that follows.
    places = range(1, min(len(lines) - 1, _MOST_LINES))
    both = ((place, lines[place][0], lines[place + 1][0]) for place in places)
    first = next((at for at, a, b in both if lines[0][0] in (a, f"{a} {b}")), None)
    if first is None:
        return None
    body = lines[first:]
    headings = {line for line, _ in body} | {
        f"{a} {b}" for (a, _), (b, _) in pairwise(body)
    }
    entries = [
        place for place, (line, _) in enumerate(lines[:first]) if line in headings
    ]
    n_lines = entries[-1] + 1 if entries else 0
    if len(entries) < max(_LEAST_ENTRIES, _LEAST_SHARE * n_lines):
        return None
    return lines[n_lines - 1][1]


def _lines(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Yield the words of each line that has some, in small letters, and where the line ends."""
    for found in _LINE.finditer(text, start, end):
        line = found[0] if len(found[0]) < _LINE_CHARS else found[0][:_LINE_CHARS]
        content = line.rstrip()
        unnumbered = content.rstrip("0123456789")
        stem = unnumbered.rstrip(_LEADERS)
        if unnumbered != content and len(unnumbered) > len(stem) + 1:
            content = stem  # without the number of a page
        if words := _WORDS.findall(content.casefold()):
            yield " ".join(words), found.end()


def _past_paragraphs(view: str, start: int, end: int, *marks: re.Pattern[str]) -> int:
    """Return where the paragraphs end that follow and have one of the marks; else ``start``."""
    while paragraph := _PARAGRAPH.match(view, _next_word(view, start, end), end):
        if not any(mark.search(paragraph[0]) for mark in marks):
            break
        start = paragraph.end()
    return start


def _next_word(view: str, start: int, end: int) -> int:
    """Skip white space, not the indent of the line that follows it."""
    blank = _BLANK.match(view, start, end)
    skipped = start if blank is None else blank.end()
    line = view.rfind("\n", start, skipped)
    return skipped if line < 0 else line + 1


MOST_CHARS = 32 << 20
"""Longer texts are refused, so that memory is bounded; the longest dictionaries have 28 million."""

LEFT_OUT = (
    *(
        "soft_hyphens",
        "ruby_readings",
        "note_marks",
        "page_numbers",
        "licences",
        "missing_pages",
    ),
)
"""Columns that count what stands within a book and is no text of it."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TEXT_CODECS = re.compile(
    r"ascii|big5|cp\d|euc_|gb|hz|iso|johab|koi8|kz1048|mac|ptcp|shift_jis|tis-620|utf-(?:8|16|32)"
)
_ZEROS = ("utf-16", "utf-32")  # any text of them has some
_READ_AS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
_READ_AS |= {"iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874"}
"""As browsers do: texts that name these encodings are often in the larger ones."""


class Book(NamedTuple):
    """The text of a file, whole, and what the file says of it."""

    text: str
    title: str | None = None
    author: str | None = None
    isbn: str | None = None
    # How many of each kind; "characters" of all
    left_out: Mapping[str, int] = MappingProxyType({})
    chapters: Sequence[
        tuple[int, str]
    ] = ()  # where each begins, and its heading, as listed


class BookError(Exception):
    """Says what is wrong with a file, which the sentence does not name, and what to do."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


def declared_encoding(start: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS if start.startswith(mark)), None)


def codec(name: str) -> str | None:
    """Return Python's name for an encoding of text; None for others, such as ``hex``."""
    try:
        found = codecs.lookup(re.sub(r"^x-|(?<=^cp)-", "", name.strip().lower())).name
    except (LookupError, ValueError):
        return None
    return found if _TEXT_CODECS.match(found) else None


def decode(
    content: bytes, *, declared: str | None = None, given: str | None = None
) -> str:
    """Decode by the byte-order mark, as UTF-8, as the content declares, or as the user says."""
    # UTF-8 comes before what is declared: hardly a text of another encoding is valid
    # UTF-8, but many were saved as UTF-8 and declare what they were before.
    marked = declared_encoding(content[:4])
    labels = (
        [marked.removesuffix("-sig").upper()]
        if marked
        else [*filter(None, (declared, given))]
    )
    content = content.removeprefix(codecs.BOM_UTF8)
    tried = list[tuple[str, str]]()
    for label in labels:
        name = codec(label)
        if name is None:
            what = f"declares the encoding {label!r}, which is not one of text"
            raise BookError(f"{what}; save it as UTF-8")
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


# HTML and XHTML to text, without layout, network, or a tree, so that memory is bounded.

# A page may cost forty times its size in memory: attributes do
MOST_PAGE_BYTES = 10 << 20

_MOST_DEEP = 512  # as in browsers
_MOST_ELEMENTS = 1_000_000  # of a book; each takes some microseconds
_MOST_ATTRIBUTES = 50_000  # of an element; each takes about a kilobyte
_MOST_LISTED = 200_000  # elements of a package; each takes about a kilobyte
_PIECE = 1 << 16
_TYPES = ("epub:type", "type", "role")

_DECLARED = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""")
_DECLARED_WITHIN = 4096
# With entities
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>\[]*\[.*?\]\s*>", re.DOTALL | re.IGNORECASE)
_LITERAL = re.compile(rb"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_TAG = re.compile(rb"""<[a-z](?:[^"'<>]++|"[^"]*+"|'[^']*+')*+""", re.IGNORECASE)
_EMPTY = re.compile(
    rb"<((?!(?:br|hr|img|meta|link|wbr|input|col)\b)[\w:-]++)([^<>]*)/>"
)
_AUTHORS = ("author", "dc.creator", "dcterms.creator")
_SPACES = re.compile(r"\s+")

_SEPARATORS = ("", " ", "\t", "\n", "\n\n")
_SPACE, _CELL, _MARKUP_LINE, _MARKUP_PARAGRAPH, _NOWHERE = range(1, 6)
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
_MARKUP_MARKS = (
    ("page_numbers", _PAGE_NUMBER),
    ("note_marks", _NOTE_MARK),
    ("licences", _ANY),
)


class Pages:
    """The text of pages as readers see it: a target of lxml's parsers, page after page."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.title = self.author = ""
        self.named: dict[str, list[str]] = {}
        self.chapters: list[tuple[int, str]] = []
        self._text = io.StringIO()
        self.length = self._n_elements = 0
        self._pieces: list[str] = []
        self.close()

    @property
    def text(self) -> str:
        """The text of all pages so far; blank lines separate them."""
        return self._text.getvalue().strip("\n")

    def add(self, content: bytes, encoding: str | None = None) -> None:
        from lxml import etree

        if len(content) > MOST_PAGE_BYTES:
            raise BookError(f"is longer than {MOST_PAGE_BYTES >> 20} MiB; split it")
        found = _DECLARED.search(content[:_DECLARED_WITHIN])
        declared = found[1].decode().lower() if found else None
        # As browsers do
        declared = "cp1252" if declared in ("ascii", "us-ascii") else declared
        source = decode(content, declared=declared, given=encoding).lstrip().encode()
        head = source[:_DECLARED_WITHIN]
        if b"<?xml" in head or b"xmlns=" in head:
            if doctype := _DOCTYPE.match(
                source, max(0, head.lower().find(b"<!doctype"))
            ):
                source = source[: doctype.start()] + source[doctype.end() :]
            # Behind it, a search for an end would not end
            last = source.rfind(b"]]>") + 3
            plain = _LITERAL.sub(
                lambda literal: (
                    literal[1].replace(b"&", b"&amp;").replace(b"<", b"&lt;")
                ),
                source[:last],
            )
            source = _EMPTY.sub(rb"<\1\2></\1>", plain + source[last:])
        _check_tags(source)
        options = {"encoding": "utf-8", "no_network": True, "huge_tree": True}
        parser = etree.HTMLParser(target=self, **options)
        for start in range(
            0, len(source) + 1, _PIECE
        ):  # an error shows at the end of a piece
            parser.feed(source[start : start + _PIECE])
        parser.close()

    def close(self) -> None:
        self._flush()
        self._open: list[tuple[str, re.Pattern[str], int, int, int, int] | None] = []
        self._apart, self._closing = _MARKUP_PARAGRAPH, ""
        self._is_title = self._is_left_out = False
        self._n_preformatted = self._n_links = self._n_sups = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._flush()
        tag, layout = _tag(name)
        self._n_elements += 1
        if len(self._open) == _MOST_DEEP or self._n_elements > _MOST_ELEMENTS:
            what = (
                f"more than {_MOST_ELEMENTS:,} elements, with earlier pages; split the"
                " book"
            )
            if len(self._open) == _MOST_DEEP:
                what = f"elements nested more than {_MOST_DEEP} deep; simplify it"
            raise BookError(f"has {what}")
        if headings := self.named.get(attributes.get("id", "")):
            self.chapters += [(self.length, heading) for heading in headings]
        self._is_title = tag == "title" and not self.title
        if (
            tag == "meta"
            and not self.author
            and attributes.get("name", "").lower() in _AUTHORS
        ):
            self.author = " ".join(attributes.get("content", "").split())
        mark = None if self._is_left_out else _mark(tag, layout, attributes)
        place = (self.length, self._apart, self._n_links, self._n_sups)
        self._open.append(None if mark is None else (*mark, *place))
        self._is_left_out |= mark is not None and mark[1] is _ANY
        self._n_preformatted += tag in _PREFORMATTED
        self._n_links += tag == "a" and "#" in attributes.get("href", "")
        self._n_sups += tag == "sup"
        self._separate(tag, layout)

    def data(self, text: str) -> None:
        """Take a piece of text; a parser gives as many as it likes, such as one for each ``<``."""
        self._pieces.append(text)

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text:
            return
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
        self._flush()
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
        if tag == "br" and self._apart == _MARKUP_LINE:
            self._apart = _MARKUP_PARAGRAPH
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
            raise BookError(
                f"holds more than {MOST_CHARS:,} characters; split the book"
            )
        self._text.write(text)

    def cut(self, length: int) -> None:
        self.length = self._text.seek(length)
        self._text.truncate()


def read_html(content: bytes, encoding: str | None = None) -> Book:
    pages = Pages()
    pages.add(content, encoding)
    title = " ".join(pages.title.split())
    return Book(
        pages.text, title or None, pages.author or None, left_out=pages.left_out
    )


def _check_tags(source: bytes) -> None:
    """Refuse an element of too many attributes, which are all held at once."""
    for tag in _TAG.finditer(source):
        if len(tag[0]) <= _MOST_ATTRIBUTES:
            continue
        if max(tag[0].count(b"="), len(tag[0].split())) > _MOST_ATTRIBUTES:
            what = f"has an element of more than {_MOST_ATTRIBUTES:,} attributes"
            raise BookError(f"{what}; simplify it")


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
        names = (
            f"{types} {attributes.get('class', '')} {attributes.get('id', '')}".lower()
        )
        if called := _CALLED.search(names):
            # Headings have it
            is_style = called[0] == "pagebreak" and called[0] not in types
            if not (is_style and layout):
                return _MARKUP_MARKS[(called.lastindex or 0) - 1]
    if tag == "sup":
        return "note_marks", _NOTHING  # unless it holds a link
    if tag == "a" and "#" in attributes.get("href", ""):
        return "note_marks", (
            _NOTE_MARK if _TO_NOTE.search(attributes["href"]) else _SURE_MARK
        )
    return None


# EPUB: a zip archive whose package file lists the chapters, which are XHTML, in order.

_MOST_BYTES = 64 << 20
_HEADING_CHARS = 200  # are left of a table of contents
_HEADING, _MOST_CHAPTERS = 80, 1_000
_NCX = "application/x-dtbncx+xml"
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_HIDDEN_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_UNREADABLE = "cannot be read as EPUB"
_BROKEN = (BadZipFile, EOFError, RuntimeError, ValueError, struct.error, zlib.error)
_BARE_AMPERSAND = re.compile(
    rb"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});)"
)
_EPUB_PAGE = re.compile(r"html|x-oeb1-document|x-dtbook")
_NO_PAGE = re.compile(r"(?:audio|font|image|video)/|css|font|javascript|ncx|pdf|smil")
_OTHER_FILE = re.compile(
    r"\.(?:css|gif|jpe?g|js|mp[34]|ncx|otf|pdf|png|svg|ttf|webp|woff2?)$"
)
_ISBN = re.compile(
    r"(?:urn:)?(?:isbn(?:-1[03])?[:\s]*)?([\d][\d\s-]{8,15}[\dx])", re.IGNORECASE
)


def read_epub(file: IO[bytes], encoding: str | None = None) -> Book:
    """Read a book; `BookError` says what is wrong and what to do."""
    # Nothing is looked up but in the archive, and at most 64 MiB are unpacked.
    try:
        with ZipFile(_sparing(file)) as archive:
            return _Epub(archive).read(encoding)
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        raise BookError(f"{_UNREADABLE} ({reason}); restore the file") from error


def _sparing(file: IO[bytes]) -> Any:
    """Refuse an archive whose list of contents is too long, before it is parsed."""

    def read(size: int = -1) -> bytes:
        if size > MOST_PAGE_BYTES + 1:
            raise BadZipFile("its list of contents is too long")
        return file.read(size)

    return SimpleNamespace(
        read=read, seek=file.seek, tell=file.tell, seekable=file.seekable
    )


class _Epub:
    """An archive, of which at most so many bytes are unpacked."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        # By its path: some packers write \ in names, and links may differ in case.
        self._names = {name.replace("\\", "/"): name for name in archive.namelist()}
        self._paths = {path.casefold(): path for path in self._names}
        self._left = _MOST_BYTES

    def read(self, encoding: str | None) -> Book:
        if _ENCRYPTION in self._names:
            data = self._xml(_ENCRYPTION).iterfind(
                ".//{*}EncryptedData/{*}EncryptionMethod"
            )
            if any(each.get("Algorithm") not in _HIDDEN_FONTS for each in data):
                raise BookError(
                    "is encrypted (its rights are managed); give a copy that is not"
                )
        roots = (
            each.get("full-path") for each in self._xml(_CONTAINER).iter("{*}rootfile")
        )
        path = next(filter(None, roots), "").lstrip("/")
        if not path:
            raise BookError(
                f"{_UNREADABLE}: {_CONTAINER} names no package; restore the file"
            )
        package = self._xml(path)
        pages = self._pages(package, path, encoding)
        return Book(
            text=pages.text,
            title=next(_values(package, "title"), None),
            author="; ".join(_values(package, "creator")) or None,
            isbn=next(
                filter(None, map(find_isbn, _values(package, "identifier"))), None
            ),
            left_out=pages.left_out,
            chapters=sorted(pages.chapters),
        )

    def _pages(self, package: _Element, path: str, encoding: str | None) -> Pages:
        """Read the pages in the order of the spine, each once; count those that are not there."""
        items = {
            item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")
        }
        spine = (
            each.get("idref") for each in package.iterfind("./{*}spine/{*}itemref")
        )
        pages, done, listed = Pages(), set[str](), self._listed(items.values(), path)
        for identifier in dict.fromkeys(spine):
            item = items.get(identifier, {})
            name, _ = self._place(path, item.get("href", ""))
            if name is None:
                pages.left_out["missing_pages"] += 1
                continue
            # What is to be read in order is a page, unless its type or name says
            # another thing.
            media = item.get("media-type", "").lower()
            is_other = _NO_PAGE.search(media) or _OTHER_FILE.search(name.lower())
            if name in done or (is_other and not _EPUB_PAGE.search(media)):
                continue
            done.add(name)
            start, pages.named = pages.length, listed.get(name, {})
            pages.chapters += [(start, heading) for heading in pages.named.pop("", [])]
            try:
                pages.add(self._content(name), encoding)
            except BookError as error:
                what, _, way_out = str(error).rpartition("; ")
                said = (
                    f"{what} in {name!r}"
                    if error.line
                    else f"has a page {name!r} that {what}"
                )
                raise BookError(f"{said}; {way_out}", error.line) from error
            is_contents = "nav" in item.get("properties", "").split()
            if is_contents and pages.length < start + _HEADING_CHARS:
                pages.cut(start)
                pages.chapters = [each for each in pages.chapters if each[0] < start]
        if not done:
            raise BookError(
                "has no page that can be read; give a copy with all its files"
            )
        return pages

    def _place(self, base: str, href: str) -> tuple[str | None, str]:
        """Find the file that a link in another leads to, and the name of the place in it."""
        file, _, place = href.partition("#")
        path = posixpath.normpath(
            posixpath.join(posixpath.dirname(base), unquote(file))
        )
        path = path.lstrip("/")
        path_in_archive = (
            path if path in self._names else self._paths.get(path.casefold())
        )
        return path_in_archive if file else None, place

    def _listed(
        self, items: Iterable[_Element], base: str
    ) -> dict[str, dict[str, list[str]]]:
        """Read the table of contents, if it can be: of each page, headings by place in it."""
        found: dict[str, dict[str, list[str]]] = {}
        listed = [*items]
        navs = [item for item in listed if "nav" in item.get("properties", "").split()]
        tables = [*navs, *(item for item in listed if item.get("media-type") == _NCX)]
        for name, _ in (self._place(base, item.get("href", "")) for item in tables):
            with suppress(BookError):
                for href, heading in islice(
                    _entries(self._xml(name or "")), _MOST_CHAPTERS
                ):
                    file, place = self._place(name or "", href)
                    if file and heading:
                        found.setdefault(file, {}).setdefault(place, []).append(heading)
            if found:
                break
        return found

    def _xml(self, name: str) -> _Element:
        """Parse strictly, and look nothing up."""
        from lxml import etree

        content = self._content(name).lstrip()
        n_parts = max(
            content.count(b"<"), content.count(b"&"), content.count(b"=") // 4
        )
        if len(content) > MOST_PAGE_BYTES or n_parts > _MOST_LISTED:
            raise BookError(f"lists more than {_MOST_LISTED:,} parts; split the book")
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False
        )
        try:
            if b"<!ENTITY" not in content:
                content = _BARE_AMPERSAND.sub(b"&amp;", content)  # in titles, mostly
            return etree.fromstring(content, parser)
        except etree.XMLSyntaxError as error:
            what = f"{name} is not XML ({' '.join(error.msg.split())})"
            raise BookError(f"{_UNREADABLE}: {what}; restore the file") from error

    def _content(self, name: str) -> bytes:
        """Unpack a file of the archive; what it holds beyond its stated size is not unpacked."""
        if name not in self._names:
            raise BookError(
                f"{_UNREADABLE}: there is no {name!r} in it; restore the file"
            )
        info = self._archive.getinfo(self._names[name])
        self._left -= info.file_size
        if self._left < 0:
            raise BookError(
                f"unpacks to more than {_MOST_BYTES >> 20} MiB of text; split the book"
            )
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BookError(
                f"packs {name!r} in a way that EPUB does not allow; pack it anew"
            )
        with self._archive.open(info) as stream:
            return stream.read(min(info.file_size, MOST_PAGE_BYTES) + 1)


def _entries(table: _Element) -> Iterator[tuple[str, str]]:
    """Yield the link and the heading of each entry, of EPUB 3's form and of EPUB 2's."""
    for nav in table.iter("{*}nav"):
        if nav.get("{http://www.idpf.org/2007/ops}type", "toc") == "toc":
            for link in nav.iter("{*}a"):
                yield (
                    link.get("href", ""),
                    " ".join("".join(link.itertext()).split())[:_HEADING],
                )
    for point in table.iter("{*}navPoint"):
        content, heading = (
            point.find("{*}content"),
            point.findtext("{*}navLabel/{*}text") or "",
        )
        if content is not None:
            yield content.get("src", ""), " ".join(heading.split())[:_HEADING]


def _values(package: _Element, name: str) -> Iterator[str]:
    """Yield the values of an element of the Dublin Core that are not blank."""
    for element in package.iter(f"{{http://purl.org/dc/elements/1.1/}}{name}"):
        if value := " ".join("".join(element.itertext()).split()):
            yield value


def find_isbn(identifier: str) -> str | None:
    """Return the 10 or 13 digits of an identifier that is a valid ISBN, without hyphens."""
    written = _ISBN.fullmatch(identifier.strip())
    if written is None:
        return None
    number = re.sub(r"[\s-]", "", written[1]).upper()
    digits = [10 if digit == "X" else int(digit) for digit in number]
    if len(digits) == 10:
        total, base = (
            sum(weight * digit for weight, digit in enumerate(reversed(digits), 1)),
            11,
        )
    elif len(digits) == 13 and number.isdecimal() and number.startswith(("978", "979")):
        total, base = sum(digits[::2]) + 3 * sum(digits[1::2]), 10
    else:
        return None
    return number if total % base == 0 else None
