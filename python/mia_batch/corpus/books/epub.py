"""EPUB: a zip archive whose package file lists the chapters, which are XHTML, in order."""

from __future__ import annotations

import posixpath
import re
import struct
import zlib
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from mia_batch.corpus.books.book import Book, BookError
from mia_batch.corpus.books.markup import MOST_PAGE_BYTES, Pages, parse_xml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml.etree import _Element

__all__ = ["find_isbn", "read_epub"]

_MOST_BYTES = 64 << 20
_HEADING_CHARS = 200  # are left of a table of contents
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_HIDDEN_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_BROKEN = (BadZipFile, EOFError, RuntimeError, ValueError, struct.error, zlib.error)
_PAGE = re.compile(r"html|x-oeb1-document|x-dtbook")
_NO_PAGE = re.compile(r"(?:audio|font|image|video)/|css|font|javascript|ncx|pdf|smil")
_OTHER_FILE = re.compile(r"\.(?:css|gif|jpe?g|js|mp[34]|ncx|otf|pdf|png|svg|ttf|webp|woff2?)$")
_ISBN = re.compile(r"(?:urn:)?(?:isbn(?:-1[03])?[:\s]*)?([\d][\d\s-]{8,15}[\dx])", re.IGNORECASE)


def read_epub(file: IO[bytes], encoding: str | None = None) -> Book:
    """Read a book; `BookError` says what is wrong and what to do.

    Nothing is looked up but in the archive, and at most 64 MiB are unpacked.
    """
    try:
        with ZipFile(_sparing(file)) as archive:
            return _Epub(archive).read(encoding)
    except _BROKEN as error:
        msg = f"cannot be read as EPUB ({str(error) or type(error).__name__}); restore the file"
        raise BookError(msg) from error


def _sparing(file: IO[bytes]) -> Any:  # noqa: ANN401 - what ZipFile needs of a file
    """Refuse an archive whose list of contents is too long, before it is parsed."""

    def read(size: int = -1) -> bytes:
        if size > MOST_PAGE_BYTES + 1:
            msg = "its list of contents is too long"
            raise BadZipFile(msg)
        return file.read(size)

    return SimpleNamespace(read=read, seek=file.seek, tell=file.tell, seekable=file.seekable)


class _Epub:
    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        names = archive.namelist()
        self._names = {name.casefold(): name for name in names} | {name: name for name in names}
        self._left = _MOST_BYTES

    def read(self, encoding: str | None) -> Book:
        if _ENCRYPTION in self._archive.namelist():
            self._refuse_encrypted()
        roots = (each.get("full-path") for each in self._xml(_CONTAINER).iter("{*}rootfile"))
        path = next(filter(None, roots), None)
        if path is None:
            msg = f"cannot be read as EPUB: {_CONTAINER} names no package; restore the file"
            raise BookError(msg)
        package = self._xml(path)
        numbers = filter(None, map(find_isbn, _values(package, "identifier")))
        pages = self._pages(package, path, encoding)
        return Book(
            text=pages.text,
            title=next(_values(package, "title"), None),
            author="; ".join(_values(package, "creator")) or None,
            isbn=next(numbers, None),
            left_out=pages.left_out,
        )

    def _pages(self, package: _Element, path: str, encoding: str | None) -> Pages:
        """Read the pages in the order of the spine, each once; count those that are not there."""
        items = {item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")}
        spine = (each.get("idref") for each in package.iterfind("./{*}spine/{*}itemref"))
        pages, done = Pages(), set[str]()
        for identifier in dict.fromkeys(spine):
            item = items.get(identifier, {})
            href = unquote(item.get("href", "").partition("#")[0])
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), href)).lstrip("/")
            name = self._names.get(place, self._names.get(place.casefold())) if href else None
            if name is None:
                pages.left_out["missing_pages"] += 1
            elif name not in done and _is_page(name.lower(), item.get("media-type", "").lower()):
                done.add(name)
                start = pages.length
                self._add(pages, name, encoding)
                is_contents = "nav" in item.get("properties", "").split()
                if is_contents and pages.length < start + _HEADING_CHARS:
                    pages.cut(start)
        if not done:
            msg = "has no page that can be read; give a copy with all its files"
            raise BookError(msg)
        return pages

    def _add(self, pages: Pages, name: str, encoding: str | None) -> None:
        try:
            pages.add(self._content(name), encoding)
        except BookError as error:
            what, _, way_out = str(error).rpartition("; ")
            said = f"{what} in {name!r}" if error.line else f"has a page {name!r} that {what}"
            raise BookError(f"{said}; {way_out}", error.line) from error

    def _refuse_encrypted(self) -> None:
        for method in self._xml(_ENCRYPTION).iterfind(".//{*}EncryptedData/{*}EncryptionMethod"):
            if method.get("Algorithm") not in _HIDDEN_FONTS:
                msg = "is encrypted (its rights are managed); give a copy that is not"
                raise BookError(msg)

    def _xml(self, name: str) -> _Element:
        from lxml import etree

        try:
            return parse_xml(self._content(name))
        except etree.XMLSyntaxError as error:
            what = f"{name} is not XML ({' '.join(error.msg.split())})"
            msg = f"cannot be read as EPUB: {what}; restore the file"
            raise BookError(msg) from error

    def _content(self, name: str) -> bytes:
        """Unpack a file of the archive; what it holds beyond its stated size is not unpacked."""
        try:
            info = self._archive.getinfo(name)
        except KeyError:
            msg = f"cannot be read as EPUB: there is no {name!r} in it; restore the file"
            raise BookError(msg) from None
        self._left -= info.file_size
        if self._left < 0:
            msg = f"unpacks to more than {_MOST_BYTES >> 20} MiB of text; split the book"
            raise BookError(msg)
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            msg = f"packs {name!r} in a way that EPUB does not allow; pack it anew"
            raise BookError(msg)
        with self._archive.open(info) as stream:
            return stream.read(min(info.file_size, MOST_PAGE_BYTES) + 1)


def _is_page(name: str, media_type: str) -> bool:
    """Take what is to be read in order for a page, unless its type or name says it is another."""
    is_other = _NO_PAGE.search(media_type) or _OTHER_FILE.search(name)
    return _PAGE.search(media_type) is not None or is_other is None


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
        valid = sum(weight * digit for weight, digit in zip(range(10, 0, -1), digits, strict=True))
        return number if valid % 11 == 0 else None
    if len(digits) == 13 and number.isdecimal() and number.startswith(("978", "979")):
        return number if (sum(digits[::2]) + 3 * sum(digits[1::2])) % 10 == 0 else None
    return None
