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


# What stands around and within a book and is not the book: it is cut only at sure marks.

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
_FRONT = re.compile(  # the last alternative is a field, such as "Release Date: "
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
    "|\u200b(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]\u200b)"  # between words of Thai or Khmer
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
# readings of its characters and notes for typesetters, and the source of the text.
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


class BookSpan(NamedTuple):
    """Where the book stands in a text, and what the header says of it."""

    start: int
    end: int
    title: str | None
    author: str | None


def find_book(text: str) -> BookSpan:
    """Find the book in a text."""
    # What is cut: header, small print and licence of Project Gutenberg and its sisters,
    # the names of those who produced the file, a transcriber's note at either end, and
    # a table of contents whose lines come again as headings. A text without such marks
    # is the book from its first character to its last. The view is as long as the text.
    view = text.replace("\r\n", " \n").replace("\r", "\n").replace("\f", "\n")
    aozora_header = _AOZORA_HEADER.match(view)
    if aozora_header is not None:
        return _find_aozora_book(view, aozora_header)
    start = header_end = _find_header_end(view)
    end = _find_end(view, header_end)
    if header_end:
        start = _skip_paragraphs(view, start, end, _CREDITS)
    note = _FIRST_NOTE.match(view, _skip_blank(view, start, end), end)
    if note is not None:
        start = note.end()
    start = _find_contents_end(view, start, end) or start
    if start:
        start = _skip_blank(view, start, end)
    if end < len(text):
        end = start + len(text[start:end].rstrip())
    header = view[:header_end]
    title = _find_field(header, "Title|Titel|Titre")
    author = _find_field(header, "Author|Auteur|Autor")
    return BookSpan(start, end, title, author)


def _find_field(header: str, names: str) -> str | None:
    field = re.search(_FIELD.format(names), header, _FLAGS)
    return None if field is None else " ".join(field[1].split())


def _find_aozora_book(view: str, header: re.Match[str]) -> BookSpan:
    start = _skip_blank(view, header.end(), len(view))
    source = _AOZORA_END.search(view, max(start, len(view) - _AOZORA_END_CHARS))
    end = len(view) if source is None else source.start()
    end = start + len(view[start:end].rstrip())
    return BookSpan(
        start, end, header["title"].strip(), header["author"].strip() or None
    )


def tidy(text: str) -> tuple[str, Counter[str]]:
    """Remove what stands within a text and is not of it; count it by kind."""
    braced = islice(_BRACED.finditer(text), _MOST_MARKS)
    numbers = [int(mark[1]) for mark in braced]
    n_consecutive = sum(b == a + 1 for a, b in pairwise(numbers))
    page = _PAGE
    if n_consecutive > max(3, 0.9 * len(numbers) - 1):
        page = rf"{_PAGE}|{_BRACED.pattern}"
    footnotes = islice(_FOOTNOTE.finditer(text), _MOST_MARKS)
    labels = "|".join({footnote[1] for footnote in footnotes})
    marks = [("licences", _WORLD_LIBRARY)]
    if _AOZORA_HEADER.match(text.replace("\r\n", " \n")):
        marks += _AOZORA_MARKS
    if any(character in text for character in _INVISIBLE):
        marks.append(("soft_hyphens", _SOFT_HYPHEN))
    if re.search(page, text):
        marks.append(("page_numbers", _ALONE_OR_WITHIN.format(page)))
    if labels:
        note_mark = rf"[ \t]?\[(?:{labels})\](?=\s)|\[(?:{labels})\](?!\w)"
        marks.append(("note_marks", note_mark))
    left_out = Counter[str]()
    for kind, mark in marks:
        tidied, n_marks = re.subn(mark, "", text, flags=re.MULTILINE)
        left_out += Counter({kind: n_marks, "characters": len(text) - len(tidied)})
        text = tidied
    return text, left_out


def _find_header_end(view: str) -> int:
    """Return where the header ends; 0 without one."""
    last_line = _LAST_LINE.search(view, 0, _HEADER_CHARS)
    limit = _HEADER_CHARS if last_line is None else last_line.start()
    ends = (
        mark.end()
        for mark in _STARTS.finditer(view, 0, limit)
        if mark["sure"] or _OPENING.search(view, 0, min(mark.start(), _OPENING_CHARS))
    )
    header_end = max(ends, default=0)
    if header_end:
        return header_end
    if _OPENING.search(view, 0, _LAST_CHARS):
        header_end = _skip_paragraphs(view, 0, limit, _FRONT, _CREDITS)
    return header_end if _SURE_FRONT.search(view, 0, header_end) else 0


def _find_end(view: str, start: int) -> int:
    """Return where the licence or a transcriber's note begins behind the book."""
    end = len(view)
    marks = [*_ENDS.finditer(view, max(start, end - _LICENCE_CHARS))]
    marks_start = marks[0].start() if marks else end
    mentions = _find_starts(_MENTION, view, marks_start)
    licence_words = _find_starts(_LICENCE, view, marks_start)
    for mark in reversed(marks):
        words = mentions if mark["sure"] else licence_words
        first_word = bisect_left(words, mark.start())
        places = [mark.end(), *words[first_word : bisect_left(words, end)], end]
        is_dense = all(b - a < _GAP_CHARS for a, b in pairwise(places))
        is_licence = len(places) > 2 and is_dense
        is_whole = end == len(view)
        is_near_end = not view[mark.end() + _LAST_CHARS : end].strip()
        is_last_line = is_near_end and not (mark["phrase"] and is_whole)
        if is_last_line or is_licence or (mark["sure"] and is_whole):
            end = mark.start()
    note = _LAST_NOTE.search(view, max(start, end - _NOTE_CHARS), end)
    return end if note is None else note.start()


def _find_starts(words: re.Pattern[str], view: str, start: int) -> list[int]:
    return [word.start() for word in words.finditer(view, start)]


def _find_contents_end(text: str, start: int, end: int) -> int | None:
    """Return where a table of contents behind a title page ends; None without."""
    # It is one if its first entry comes again as a line or two, and of the lines
    # between at least three, and nine in ten, come again after that. Letters and digits
    # count.
    heading = _CONTENTS.search(text, start, min(end, start + _CHARS_BEFORE))
    if heading is None or len(text[start : heading.start()].split()) > _WORDS_BEFORE:
        return None
    lines = [*islice(_iterate_lines(text, heading.end(), end), _LINES_OF_BOOK)]
    while lines and lines[0][0] in _COLUMN_HEADINGS:
        del lines[0]
    words = [line_words for line_words, _ in lines]
    for body_start in range(1, min(len(words) - 1, _MOST_LINES)):
        line, next_line = words[body_start : body_start + 2]
        if words[0] in (line, f"{line} {next_line}"):
            break
    else:
        return None
    body = words[body_start:]
    headings = {*body, *map(" ".join, pairwise(body))}
    repeated = [n for n, line in enumerate(words[:body_start], 1) if line in headings]
    n_lines = repeated[-1] if repeated else 0
    if len(repeated) < max(_LEAST_ENTRIES, _LEAST_SHARE * n_lines):
        return None
    return lines[n_lines - 1][1]


def _iterate_lines(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Iterate over lines with words: these in small letters, and where the line ends."""
    for line in _LINE.finditer(text, start, end):
        content = line[0][:_LINE_CHARS].rstrip()
        unnumbered = content.rstrip("0123456789")
        stem = unnumbered.rstrip(_LEADERS)
        if unnumbered != content and len(unnumbered) > len(stem) + 1:
            content = stem  # without the number of a page
        words = _WORDS.findall(content.casefold())
        if words:
            yield " ".join(words), line.end()


def _skip_paragraphs(view: str, start: int, end: int, *marks: re.Pattern[str]) -> int:
    """Return where the paragraphs that follow and have one of the marks end."""
    while paragraph := _PARAGRAPH.match(view, _skip_blank(view, start, end), end):
        if not any(mark.search(paragraph[0]) for mark in marks):
            break
        start = paragraph.end()
    return start


def _skip_blank(view: str, start: int, end: int) -> int:
    """Return where white space ends, before the indent of the line that follows it."""
    blank = _BLANK.match(view, start, end)
    blank_end = start if blank is None else blank.end()
    line_end = view.rfind("\n", start, blank_end)
    return blank_end if line_end < 0 else line_end + 1


MOST_CHARS = 32 << 20
"""Longer texts are refused, so that memory is bounded; the longest dictionaries have 28 million."""

LEFT_OUT = (
    "soft_hyphens",
    "ruby_readings",
    "note_marks",
    "page_numbers",
    "licences",
    "missing_pages",
)
"""Columns that count what stands within a book and is no text of it."""

_BYTE_ORDER_MARKS = (
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
    # Where each begins, and its heading, as listed
    chapters: Sequence[tuple[int, str]] = ()


class BookError(Exception):
    """Says what is wrong with a file, which the sentence does not name, and what to do."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line


def read_byte_order_mark(start: bytes) -> str | None:
    """Return the encoding that the first bytes of a file mark."""
    encodings = (
        encoding for mark, encoding in _BYTE_ORDER_MARKS if start.startswith(mark)
    )
    return next(encodings, None)


def find_codec(name: str) -> str | None:
    """Return Python's name for an encoding of text; None for others, such as ``hex``."""
    try:
        codec = codecs.lookup(re.sub(r"^x-|(?<=^cp)-", "", name.strip().lower())).name
    except (LookupError, ValueError):
        return None
    return codec if _TEXT_CODECS.match(codec) else None


def decode(
    content: bytes, *, declared: str | None = None, fallback: str | None = None
) -> str:
    """Decode by byte-order mark, as UTF-8, as declared, or as the user says."""
    # UTF-8 comes before what is declared: hardly a text of another encoding is valid
    # UTF-8, but many were saved as UTF-8 and declare what they were before.
    marked = read_byte_order_mark(content[:4])
    labels = [label for label in (declared, fallback) if label]
    if marked:
        labels = [marked.removesuffix("-sig").upper()]
    content = content.removeprefix(codecs.BOM_UTF8)
    candidates = list[tuple[str, str]]()
    for label in labels:
        name = find_codec(label)
        if name is None:
            problem = f"declares the encoding {label!r}, which is not one of text"
            raise BookError(f"{problem}; save it as UTF-8")
        if not (name.startswith(_ZEROS) and b"\0" not in content):
            candidates += [(_READ_AS.get(name, name), label), (name, label)]
    # Texts of the other encodings are valid UTF-8 as they stand
    not_utf8_first = (*_ZEROS, "hz", "iso2022")
    if not any(name.startswith(not_utf8_first) for name, _ in candidates):
        candidates.insert(0, ("utf-8", "UTF-8"))
    failures = list[BookError]()
    for name, label in candidates:
        try:
            return content.decode(name)
        except UnicodeDecodeError as error:
            line = content[: error.start].decode(name, "replace").count("\n") + 1
            problem = f"byte 0x{content[error.start]:02x} is not valid {label}"
            failures.append(BookError(f"{problem}; save the file as UTF-8", line))
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

_ANYTHING = re.compile(r".*", re.DOTALL)
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
_MARK_NAME = re.compile(  # by type, role, class or id
    r"(?<!\S)(?:((?:doc-)?pagebreak|page[-_]?num(?:ber)?|pgnum|(?:x-ebookmaker-)?pageno)"
    r"|((?:doc-)?(?:noteref|backlink)|fn(?:anchor|ref)|(?:foot|end)note-?ref|_idfootnotelink)"
    r"|(pg-boilerplate|pg-?(?:header|footer)|pg-\w+-(?:header|separator)))(?!\S)"
)
_MARKUP_MARKS = (
    ("page_numbers", _PAGE_NUMBER),
    ("note_marks", _NOTE_MARK),
    ("licences", _ANYTHING),
)


class _OpenMark(NamedTuple):
    """An open element that may be a mark, and the state in which it began."""

    kind: str  # the column that counts it; "" if it is not displayed
    rule: re.Pattern[str]  # what its whole text must be like
    length: int
    separator: int
    n_links: int
    n_sups: int


class Pages:
    """The text of pages as readers see it: a target of lxml's parsers, page after page."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.title = self.author = ""
        self.headings: dict[str, list[str]] = {}  # of the page, by the id of a place
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
        declaration = _DECLARED.search(content[:_DECLARED_WITHIN])
        declared = declaration[1].decode().lower() if declaration else None
        if declared in ("ascii", "us-ascii"):  # as browsers do
            declared = "cp1252"
        text = decode(content, declared=declared, fallback=encoding)
        source = text.lstrip().encode()
        head = source[:_DECLARED_WITHIN]
        if b"<?xml" in head or b"xmlns=" in head:
            source = _convert_xhtml(source)
        _check_tags(source)
        options = {"encoding": "utf-8", "no_network": True, "huge_tree": True}
        parser = etree.HTMLParser(target=self, **options)
        # An error shows at the end of a piece
        for start in range(0, len(source) + 1, _PIECE):
            parser.feed(source[start : start + _PIECE])
        parser.close()

    def close(self) -> None:
        self._flush()
        self._open: list[_OpenMark | None] = []
        self._separator = _MARKUP_PARAGRAPH
        self._closing = ""  # bracket of a mark that was left out
        self._is_title = self._is_left_out = False
        self._n_preformatted = self._n_links = self._n_sups = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._flush()
        tag, layout = _parse_tag(name)
        self._n_elements += 1
        if len(self._open) == _MOST_DEEP:
            excess = f"elements nested more than {_MOST_DEEP} deep"
            raise BookError(f"has {excess}; simplify it")
        if self._n_elements > _MOST_ELEMENTS:
            excess = f"more than {_MOST_ELEMENTS:,} elements, with earlier pages"
            raise BookError(f"has {excess}; split the book")
        headings = self.headings.get(attributes.get("id", ""), [])
        self.chapters += [(self.length, heading) for heading in headings]
        self._is_title = tag == "title" and not self.title
        if tag == "meta" and not self.author:
            name = attributes.get("name", "").lower()
            if name in _AUTHORS:
                self.author = " ".join(attributes.get("content", "").split())
        mark = None if self._is_left_out else _find_mark(tag, layout, attributes)
        if mark is None:
            self._open.append(None)
        else:
            counts = (self._n_links, self._n_sups)
            self._open.append(_OpenMark(*mark, self.length, self._separator, *counts))
            self._is_left_out |= mark[1] is _ANYTHING
        self._n_preformatted += tag in _PREFORMATTED
        self._n_links += tag == "a" and "#" in attributes.get("href", "")
        self._n_sups += tag == "sup"
        self._separate(tag, layout)

    def data(self, text: str) -> None:
        """Add a piece of text; a parser may give one for each ``<``."""
        self._pieces.append(text)

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text:
            return
        if self._is_title and len(self.title) < _DECLARED_WITHIN:
            self.title += text
        text = text.removeprefix(self._closing)
        self._closing = ""
        if self._n_preformatted:
            self._write(text)
            return
        words = _SPACES.sub(" ", text)
        if words.startswith(" "):
            self._separator = max(self._separator, _SPACE)
        stripped = words.strip(" ")
        if stripped:
            self._write(stripped)
            self._separator = _SPACE if words.endswith(" ") else 0

    def end(self, name: str) -> None:
        """End an element, and leave it out if it is a mark."""
        self._flush()
        tag, layout = _parse_tag(name)
        if tag != "br":
            self._separate(tag, layout)
        self._n_preformatted -= tag in _PREFORMATTED
        self._is_title = False
        mark = self._open.pop()
        if mark is None:
            return
        rule, length = mark.rule, mark.length
        self._is_left_out &= rule is not _ANYTHING
        is_raised = rule is _SURE_MARK and self._n_sups > mark.n_sups
        if is_raised or (rule is _NOTHING and self._n_links > mark.n_links):
            rule = _NOTE_MARK
        if self.length > length + _LONGEST_MARK and rule is not _ANYTHING:
            return
        self._text.seek(max(length - 2, 0))
        last_chars = self._text.read(min(length, 2))
        text = self._text.read()
        content = text.strip()
        if not mark.kind:
            self._separator = mark.separator
        elif content and rule.fullmatch(content):
            if (
                last_chars.endswith("[") and rule is _NOTE_MARK
            ):  # its brackets go with it
                text = last_chars[:-1] or text
                self._closing = "]"
                length -= 1 + text[0].isspace()
            space = _SPACE if text[0].isspace() else 0
            self._separator = max(self._separator, mark.separator, space)
            self.left_out += Counter({mark.kind: 1, "characters": len(content)})
        else:
            return
        self.cut(length)

    def _separate(self, tag: str, layout: int) -> None:
        """Set what separates the texts before and after a tag."""
        if tag == "br" and self._separator == _MARKUP_LINE:
            self._separator = _MARKUP_PARAGRAPH
        elif tag == "q":
            self._write('"')
        elif self._separator < layout < _NOWHERE:
            self._separator = layout

    def _write(self, text: str) -> None:
        if self.length:
            text = _SEPARATORS[self._separator] + text
        self._separator = 0
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
    title = " ".join(pages.title.split()) or None
    author = pages.author or None
    return Book(pages.text, title, author, left_out=pages.left_out)


def _convert_xhtml(source: bytes) -> bytes:
    """Rewrite what HTML has not: declared entities, CDATA, empty elements."""
    start = max(0, source[:_DECLARED_WITHIN].lower().find(b"<!doctype"))
    doctype = _DOCTYPE.match(source, start)
    if doctype:
        source = source[: doctype.start()] + source[doctype.end() :]
    # Behind the last end, a search for an end would not end
    last = source.rfind(b"]]>") + 3
    plain = _LITERAL.sub(
        lambda literal: literal[1].replace(b"&", b"&amp;").replace(b"<", b"&lt;"),
        source[:last],
    )
    return _EMPTY.sub(rb"<\1\2></\1>", plain + source[last:])


def _check_tags(source: bytes) -> None:
    """Refuse an element of too many attributes, which are all held at once."""
    for tag in _TAG.finditer(source):
        if len(tag[0]) <= _MOST_ATTRIBUTES:
            continue
        if max(tag[0].count(b"="), len(tag[0].split())) > _MOST_ATTRIBUTES:
            excess = f"has an element of more than {_MOST_ATTRIBUTES:,} attributes"
            raise BookError(f"{excess}; simplify it")


@lru_cache(1000)
def _parse_tag(name: str) -> tuple[str, int]:
    """Return the name of an element, without a prefix, and how it is laid out."""
    tag = name.rpartition(":")[2].lower()
    match = _LAID_OUT.fullmatch(tag)
    return tag, _SPACE + (match.lastindex or 0) if match else 0


def _find_mark(
    tag: str, layout: int, attributes: Mapping[str, str]
) -> tuple[str, re.Pattern[str]] | None:
    """Return the kind of mark an element may be, "" if hidden, and its text's rule."""
    if layout == _NOWHERE:
        return "", _ANYTHING
    if tag in ("rt", "rtc"):
        return "ruby_readings", _ANYTHING
    if attributes:
        is_hidden = attributes.get("hidden", "until-found") != "until-found"
        if is_hidden or _UNDISPLAYED.search(attributes.get("style", "")):
            return "", _ANYTHING
        types = " ".join(attributes.get(name, "") for name in _TYPES).lower()
        if _LICENCE_TYPE.search(types):
            return "licences", _ANYTHING
        style, identifier = attributes.get("class", ""), attributes.get("id", "")
        mark_name = _MARK_NAME.search(f"{types} {style} {identifier}".lower())
        if mark_name:
            # Headings have this class
            is_style = mark_name[0] == "pagebreak" and mark_name[0] not in types
            if not (is_style and layout):
                return _MARKUP_MARKS[(mark_name.lastindex or 0) - 1]
    if tag == "sup":
        return "note_marks", _NOTHING  # unless it holds a link
    link = attributes.get("href", "")
    if tag == "a" and "#" in link:
        return "note_marks", _NOTE_MARK if _TO_NOTE.search(link) else _SURE_MARK
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
        with ZipFile(_limit_reads(file)) as archive:
            return _Epub(archive).read(encoding)
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        raise BookError(f"{_UNREADABLE} ({reason}); restore the file") from error


def _limit_reads(file: IO[bytes]) -> Any:
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
        self._n_bytes_left = _MOST_BYTES

    def read(self, encoding: str | None) -> Book:
        if _ENCRYPTION in self._names:
            self._refuse_encrypted()
        roots = self._parse_xml(_CONTAINER).iter("{*}rootfile")
        paths = (root.get("full-path") for root in roots)
        path = next((path for path in paths if path), "").lstrip("/")
        if not path:
            raise BookError(
                f"{_UNREADABLE}: {_CONTAINER} names no package; restore the file"
            )
        package = self._parse_xml(path)
        pages = self._read_pages(package, path, encoding)
        isbns = map(find_isbn, _read_values(package, "identifier"))
        return Book(
            text=pages.text,
            title=next(_read_values(package, "title"), None),
            author="; ".join(_read_values(package, "creator")) or None,
            isbn=next((isbn for isbn in isbns if isbn), None),
            left_out=pages.left_out,
            chapters=sorted(pages.chapters),
        )

    def _refuse_encrypted(self) -> None:
        methods = self._parse_xml(_ENCRYPTION).iterfind(
            ".//{*}EncryptedData/{*}EncryptionMethod"
        )
        if any(method.get("Algorithm") not in _HIDDEN_FONTS for method in methods):
            raise BookError(
                "is encrypted (its rights are managed); give a copy that is not"
            )

    def _read_pages(self, package: _Element, path: str, encoding: str | None) -> Pages:
        """Read each page once, in the order of the spine; count missing ones."""
        items = {
            item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")
        }
        references = package.iterfind("./{*}spine/{*}itemref")
        spine = dict.fromkeys(reference.get("idref") for reference in references)
        contents = self._read_contents(items.values(), path)
        pages, names_read = Pages(), set[str]()
        for identifier in spine:
            item = items.get(identifier, {})
            name, _ = self._resolve_link(path, item.get("href", ""))
            if name is None:
                pages.left_out["missing_pages"] += 1
                continue
            # What is to be read in order is a page, unless its type or name says
            # another thing.
            media = item.get("media-type", "").lower()
            is_other = _NO_PAGE.search(media) or _OTHER_FILE.search(name.lower())
            if name in names_read or (is_other and not _EPUB_PAGE.search(media)):
                continue
            names_read.add(name)
            start = pages.length
            pages.headings = contents.get(name, {})
            chapters = [(start, heading) for heading in pages.headings.pop("", [])]
            pages.chapters += chapters
            self._add_page(pages, name, encoding)
            is_contents = "nav" in item.get("properties", "").split()
            if is_contents and pages.length < start + _HEADING_CHARS:
                pages.cut(start)
                pages.chapters = [
                    chapter for chapter in pages.chapters if chapter[0] < start
                ]
        if not names_read:
            raise BookError(
                "has no page that can be read; give a copy with all its files"
            )
        return pages

    def _add_page(self, pages: Pages, name: str, encoding: str | None) -> None:
        """Add a page, and name it where it cannot be read."""
        try:
            pages.add(self._unpack(name), encoding)
        except BookError as error:
            problem, _, way_out = str(error).rpartition("; ")
            sentence = f"has a page {name!r} that {problem}"
            if error.line:
                sentence = f"{problem} in {name!r}"
            raise BookError(f"{sentence}; {way_out}", error.line) from error

    def _resolve_link(self, base: str, href: str) -> tuple[str | None, str]:
        """Find the file that a link leads to, and the name of the place in it."""
        file, _, place = href.partition("#")
        if not file:
            return None, place
        folder = posixpath.dirname(base)
        path = posixpath.normpath(posixpath.join(folder, unquote(file))).lstrip("/")
        if path in self._names:
            return path, place
        return self._paths.get(path.casefold()), place

    def _read_contents(
        self, items: Iterable[_Element], base: str
    ) -> dict[str, dict[str, list[str]]]:
        """Read the table of contents, if it can be: headings by page and place."""
        contents: dict[str, dict[str, list[str]]] = {}
        files = [*items]
        navs = [item for item in files if "nav" in item.get("properties", "").split()]
        ncx = [item for item in files if item.get("media-type") == _NCX]
        for item in navs + ncx:
            name = self._resolve_link(base, item.get("href", ""))[0] or ""
            with suppress(BookError):
                entries = _iterate_entries(self._parse_xml(name))
                for href, heading in islice(entries, _MOST_CHAPTERS):
                    file, place = self._resolve_link(name, href)
                    if file and heading:
                        places = contents.setdefault(file, {})
                        places.setdefault(place, []).append(heading)
            if contents:
                break
        return contents

    def _parse_xml(self, name: str) -> _Element:
        """Parse strictly, and look nothing up."""
        from lxml import etree

        content = self._unpack(name).lstrip()
        n_attributes = content.count(b"=") // 4
        n_parts = max(content.count(b"<"), content.count(b"&"), n_attributes)
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
            problem = f"{name} is not XML ({' '.join(error.msg.split())})"
            raise BookError(f"{_UNREADABLE}: {problem}; restore the file") from error

    def _unpack(self, name: str) -> bytes:
        """Unpack a file of the archive, up to its stated size."""
        if name not in self._names:
            raise BookError(
                f"{_UNREADABLE}: there is no {name!r} in it; restore the file"
            )
        info = self._archive.getinfo(self._names[name])
        self._n_bytes_left -= info.file_size
        if self._n_bytes_left < 0:
            raise BookError(
                f"unpacks to more than {_MOST_BYTES >> 20} MiB of text; split the book"
            )
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BookError(
                f"packs {name!r} in a way that EPUB does not allow; pack it anew"
            )
        with self._archive.open(info) as stream:
            return stream.read(min(info.file_size, MOST_PAGE_BYTES) + 1)


def _iterate_entries(table: _Element) -> Iterator[tuple[str, str]]:
    """Iterate over the links and headings of EPUB 3 and of EPUB 2."""
    for nav in table.iter("{*}nav"):
        if nav.get("{http://www.idpf.org/2007/ops}type", "toc") == "toc":
            for link in nav.iter("{*}a"):
                yield link.get("href", ""), _shorten_heading("".join(link.itertext()))
    for point in table.iter("{*}navPoint"):
        content = point.find("{*}content")
        heading = point.findtext("{*}navLabel/{*}text") or ""
        if content is not None:
            yield content.get("src", ""), _shorten_heading(heading)


def _shorten_heading(heading: str) -> str:
    return " ".join(heading.split())[:_HEADING]


def _read_values(package: _Element, name: str) -> Iterator[str]:
    """Iterate over the values of an element of the Dublin Core that are not blank."""
    for element in package.iter(f"{{http://purl.org/dc/elements/1.1/}}{name}"):
        value = " ".join("".join(element.itertext()).split())
        if value:
            yield value


def find_isbn(identifier: str) -> str | None:
    """Return the digits of a valid ISBN, without hyphens; None for others."""
    match = _ISBN.fullmatch(identifier.strip())
    if match is None:
        return None
    number = re.sub(r"[\s-]", "", match[1]).upper()
    digits = [10 if digit == "X" else int(digit) for digit in number]
    if len(digits) == 10:
        base = 11
        total = sum(weight * digit for weight, digit in enumerate(reversed(digits), 1))
    elif len(digits) == 13 and number.isdecimal() and number.startswith(("978", "979")):
        base = 10
        total = sum(digits[::2]) + 3 * sum(digits[1::2])
    else:
        return None
    return number if total % base == 0 else None
