"""What stands around and within a book and is not the book: found by sure marks, else left."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cut", "find_cut", "tidy"]

_HEADER_CHARS = 50_000  # with the licence of the 1990s, which stood before the text
_LICENCE_CHARS = 60_000
_NOTE_CHARS = 6_000
_OPENING_CHARS = 1_500
_LAST_CHARS = 300  # behind the line that ends a book, such as the names of authors
_GAP_CHARS = 4_000  # of a licence without a word that tells it is one
_FLAGS = re.IGNORECASE | re.MULTILINE

_NAME = r"(?:Pro(?:[jy]e[ck]?to?|getto)[\s-]{1,4}Gutenberg|[古谷][騰腾登]堡[計计][劃划])"
_EBOOK = r"e-?(?:text|book|boek|buch)"
_LICENCE = re.compile(
    rf"{_NAME}(?:-tm\b|\s?\(tm\)|™|\s+Literary\s+Archive|\s+Licen[cst])"
    rf"|Updated editions will replace the previous|Terms of Use and Redistributing\s+{_NAME}"
    rf"|Plain Vanilla Electronic Texts|THE SMALL PRINT|full of FREE ebooks|e-book comes from the"
    rf"|{_NAME}[^\n]{{0,30}}Etext, Details Above|book is at the top of this file|FIN DU FICHIER",
    re.IGNORECASE,
)
_MENTION = re.compile(rf"{_NAME}|{_LICENCE.pattern}", re.IGNORECASE)
_TITLE = r"(?:(?:(?!\n[ \t]*\n).){0,400}?\*{3}[ \t]*$|[^\n]{0,400}?\*{3}|[^\n]*$)"
_START = (
    r"START OF (?:(?:THE|THIS) )?(?:COPYRIGHTED )?|Beginning of this |INIZIO DI |INICIO DE "
    r"|D[EÉ]BUT D[EU] |ANFANG (?:DES|DIESES) "
)
_STARTS = re.compile(
    rf"(?P<sure>^[ \t]*\*{{3}}[ \t]*(?:{_START}){_NAME}{_TITLE}"
    r"|^[^\w\n]{0,9}END[ *]*(?:OF[ *]*)?THE SMALL PRINT\b[^\n]*$"
    r"|^[^\n]*Strictly for personal use, do not use this file for commercial purposes[^\n]*$)"
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
    rf"|for the use of anyone|voor kosteloos gebruik|{_NAME} Australia|{_EBOOK} (?:#|No\.)"
    r"|copyright laws|made available at no cost|information in this header|on your own disk"
    r"|public domain|Readable By Both Humans|Hundreds of Volunteers|DO NOT DOWNLOAD"
    r"|\A[\W_]*[^\W\d_][\w ]{2,40}[\W_]{0,3}:",
    re.IGNORECASE,
)
_END_WORDS = "End|Ende|Fin|Fine|Fim|Final|Einde|Slut|Slutt|Loppu|Koniec|Konec|Vége|Конец|Τέλος"
_PART_OF_LINES = rf"(?:(?!\b(?:{_END_WORDS})\b|\*{{3}}|\n[ \t]*\n)[\s\S]){{0,120}}?"
_LAST_LINE = re.compile(
    rf"^(?P<sure>[ \t]*\*{{3}})?[^\w\n]{{0,20}}(?-i:(?![a-zà-ÿ]))(?:The )?(?:{_END_WORDS})\b"
    rf"{_PART_OF_LINES}{_NAME}[^\n]*",
    _FLAGS,
)
_ENDS = re.compile(
    rf"{_LAST_LINE.pattern}"
    rf"|^[^\w\n]{{0,20}}{_NAME}[^\n]{{0,150}}(?:loppu|結束|结束|終|完)\W{{0,20}}$"
    rf"|(?:\bEnd of (?:th(?:e|is) )?{_NAME}[^\n]{{0,300}}?)?"
    rf"\*{{3}}\s{{0,2}}END OF[^\n]{{1,30}}?{_NAME}"
    r"|(?P<phrase>^[^\w\n]{0,20}(?:Updated editions will replace the previous|START:? FULL LICENSE"
    r"|START[ *]*THE SMALL PRINT|More information about this book is at the top of this file"
    r"|(?:This|Dit) (?:file|bestand) (?:should be named|moet) |This site is full of FREE ebooks"
    rf"|THE FULL {_NAME}|Section 1\. {{1,3}}General Terms of Use|End(?: of this|e dieses) {_EBOOK}"
    rf"|This is a COPYRIGHTED {_NAME}|About this digital edition\s{{1,9}}This e-book"
    r"|FIN DU FICHIER))"
    r"|^[^\w\n]{0,9}(?:\d{4}[^\n.]{0,40})?(?:https?://)?(?:www\.)?(?:Projekt Gutenberg-DE"
    r"|gutenberg\.spiegel\.de|projekt-gutenberg\.org|Project Gutenberg (?:of )?Australia"
    r"|gutenberg\.net\.au|feedbooks\.com\s{1,9}Food for the mind)\W{0,40}\Z"
    r"|^\[(?:The )?End of [^\[\]]{1,300}\bby [^\[\]]{1,100}\]\s{0,99}\Z",
    _FLAGS,
)
_BY = r"(?:by|from|par|von|door|por|da)\b"
_CREDITS = re.compile(
    r"\A[\[(*\s]{0,9}(?:(?:html version|edition|e-?text|e-?book|th(?:is|e) (?:project gutenberg )?"
    rf"(?:{_EBOOK}|file|edition) was (?:first )?)?\s?"
    r"(?:produced|prepared|transcribed|scanned|digiti[sz]ed|typed|proofed|proofread|posted|created"
    r"|updated|produit|créé|erstellt|produziert|geproduceerd|produzido|producido|prodotto)"
    rf"(?: (?:and|&|on|in) [^\n]{{1,40}}?)? {_BY}"
    r"|credits?:|note: project gutenberg (?:also )?has|images of the original pages are available"
    rf"|this (?:{_EBOOK}|file) was (?:first )?(?:produced|posted|made))",
    re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"(?:(?![ \t]*\n)[^\n]{1,600}(?:\n|\Z)){1,60}")  # no book in one line
_NOTE = r"transcriber(?:['\u2019]s|s['\u2019]?)? notes?"
_FIRST_NOTE = re.compile(rf"\[\s*{_NOTE}\b[^\[\]]{{0,{_NOTE_CHARS}}}\]", re.IGNORECASE)
_LAST_NOTE = re.compile(rf"^[ \t]*(?:{_NOTE}[:.]?[ \t]*$|\[\s*{_NOTE}\b[^\[\]]*\]\s*\Z)", _FLAGS)
_FIELD = r"^(?:{}):[ \t]*(\S.*(?:\n[ \t]+\S.*)*)"
_BLANK = re.compile(r"\s*")
_SURE_FRONT = re.compile(
    r"for the use of anyone|release date|copyright laws|at no cost|voor kosteloos gebruik", _FLAGS
)

_LETTER = "A-Za-z\u00c0-\u052f"  # Latin, Greek and Cyrillic join no letters
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_SOFT_HYPHEN = (
    "\u00ad(?:[ \t]{0,9}\r?\n[ \t]{0,9}(?=\\w))?|[\u2060\ufeff]"
    "|\u200b(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]\u200b)"  # it parts words of Thai or Khmer
    f"|[\u200c\u200d](?<=[{_LETTER}][\u200c\u200d])(?=[{_LETTER}])"
)
_WORLD_LIBRARY = r"<<THIS ELECTRONIC VERSION OF[^<>]{0,2000}>>"  # within Shakespeare's works
_PAGE = r"\[(?:Pg|Page)[ \xa0]?(?:\d{1,4}|[ivxlc]{1,8})\]"
_BRACED = re.compile(r"\{(\d{1,4})\}")
_ALONE_OR_WITHIN = (
    r"^[ \t]{{0,80}}(?:{0})[ \t]{{0,80}}\r?\n(?:[ \t]{{0,80}}\r?\n)?|[ \t]?(?:{0})(?=\s|\Z)|(?:{0})"
)
_FOOTNOTE = re.compile(r"\[Footnote (\w{1,4}):")
_MOST_MARKS = 5_000

_CONTENTS = re.compile(
    r"^[ \t_]*(?:(?:the |table of )?contents|table des mati[èe]res|inhalt(?:sverzeichnis)?"
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
    """Find the book in a text.

    Cut are Project Gutenberg's header, small print and licence, and those of its sisters, the names
    of those who produced the file behind a header, a transcriber's note at either end, and a table
    of contents whose lines come again as headings. A text without such marks is the book from its
    first character to its last.
    """
    view = text.replace("\r\n", " \n").replace("\r", "\n").replace("\f", "\n")  # as long as before
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
    title, author = (_field(names, head) for names in ("Title|Titel|Titre", "Author|Auteur|Autor"))
    return Cut(start, end, title, author)


def tidy(text: str) -> tuple[str, Counter[str]]:
    """Leave out what stands within a text and is none of it; return how much of each kind."""
    numbers = [int(found[1]) for found in islice(_BRACED.finditer(text), _MOST_MARKS)]
    n_next = sum(after == before + 1 for before, after in pairwise(numbers))
    page = rf"{_PAGE}|{_BRACED.pattern}" if n_next > max(3, 0.9 * len(numbers) - 1) else _PAGE
    labels = "|".join({found[1] for found in islice(_FOOTNOTE.finditer(text), _MOST_MARKS)})
    marks = [("licences", _WORLD_LIBRARY)]
    if any(map(text.__contains__, _INVISIBLE)):
        marks.append(("soft_hyphens", _SOFT_HYPHEN))
    if re.search(page, text):
        marks.append(("page_numbers", _ALONE_OR_WITHIN.format(page)))
    if labels:
        marks.append(("note_marks", rf"[ \t]?\[(?:{labels})\](?=\s)|\[(?:{labels})\](?!\w)"))
    left_out = Counter[str]()
    for kind, mark in marks:
        tidied, n_marks = re.subn(mark, "", text, flags=re.MULTILINE)
        left_out += Counter({kind: n_marks, "characters": len(text) - len(tidied)})
        text = tidied
    return text, left_out


def _header(view: str) -> int:
    """Return where the header ends; 0 where there is none."""
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
    """Return where the licence begins, or the note before it."""
    end = len(view)
    for mark in reversed([*_ENDS.finditer(view, max(start, end - _LICENCE_CHARS))]):
        is_near = not view[mark.end() + _LAST_CHARS : end].strip()
        words = (_MENTION if mark["sure"] else _LICENCE).finditer(view, mark.start(), end)
        places = [mark.end(), *(word.start() for word in words), end]
        is_licence = len(places) > 2 and all(b - a < _GAP_CHARS for a, b in pairwise(places))
        is_last = is_near and not (mark["phrase"] and end == len(view))
        if is_last or is_licence or (mark["sure"] and end == len(view)):
            end = mark.start()
    note = _LAST_NOTE.search(view, max(start, end - _NOTE_CHARS), end)
    return end if note is None else note.start()


def _contents_end(text: str, start: int, end: int) -> int | None:
    """Return where the table of contents ends that stands behind a title page; None without.

    It is one if its first entry comes again as a line or two, and of the lines between at least
    three, and nine in ten, come again after that. Letters and digits count.
    """
    heading = _CONTENTS.search(text, start, min(end, start + _CHARS_BEFORE))
    if heading is None or len(text[start : heading.start()].split()) > _WORDS_BEFORE:
        return None
    lines = [*islice(_lines(text, heading.end(), end), _LINES_OF_BOOK)]
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
    for found in _LINE.finditer(text, start, end):
        line = found[0] if len(found[0]) < _LINE_CHARS else found[0][:_LINE_CHARS]
        content = line.rstrip()
        unnumbered = content.rstrip("0123456789")
        stem = unnumbered.rstrip(_LEADERS)
        if unnumbered != content and len(unnumbered) > len(stem) + 1:
            content = stem  # without the number of a page
        if words := _WORDS.findall(content.casefold()):
            yield " ".join(words), found.end()


def _second_place(lines: list[tuple[str, int]]) -> int | None:
    """Return the line where the first one comes again, alone or with the one that follows."""
    for place in range(1, min(len(lines) - 1, _MOST_LINES)):
        line, following = lines[place][0], lines[place + 1][0]
        if lines[0][0] in (line, f"{line} {following}"):
            return place
    return None


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


def _field(names: str, header: str) -> str | None:
    found = re.search(_FIELD.format(names), header, _FLAGS)
    return " ".join(found[1].split()) if found else None
