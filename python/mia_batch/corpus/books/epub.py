"""EPUB: a zip archive whose package file lists the chapters, which are XHTML, in order."""

from __future__ import annotations

import posixpath
import struct
import zlib
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from mia_batch.corpus.books.book import Book, BookError
from mia_batch.corpus.books.isbn import find_isbn
from mia_batch.corpus.books.markup import parse_xml, read_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml.etree import _Element

__all__ = ["read_epub"]

_MOST_BYTES = 64 << 20
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_HIDDEN_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_BROKEN = (BadZipFile, EOFError, RuntimeError, ValueError, struct.error, zlib.error)


def read_epub(file: IO[bytes]) -> Book:
    """Read a book; `BookError` says what is wrong and what to do.

    Nothing is looked up but in the archive, and at most 64 MiB are unpacked.
    """
    try:
        with ZipFile(file) as archive:
            return _Epub(archive).read()
    except _BROKEN as error:
        msg = f"cannot be read as EPUB ({str(error) or type(error).__name__}); restore the file"
        raise BookError(msg) from error


class _Epub:
    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._left = _MOST_BYTES

    def read(self) -> Book:
        if _ENCRYPTION in self._archive.namelist():
            self._refuse_encrypted()
        roots = (each.get("full-path") for each in self._xml(_CONTAINER).iter("{*}rootfile"))
        path = next(filter(None, roots), None)
        if path is None:
            msg = f"cannot be read as EPUB: {_CONTAINER} names no package; restore the file"
            raise BookError(msg)
        package = self._xml(path)
        numbers = filter(None, map(find_isbn, _values(package, "identifier")))
        return Book(
            text="\n\n".join(read_html(self._content(name)).text for name in _pages(package, path)),
            title=next(_values(package, "title"), None),
            author="; ".join(_values(package, "creator")) or None,
            isbn=next(numbers, None),
        )

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
            msg = f"cannot be read as EPUB: {name} is not XML ({error.msg}); restore the file"
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
            return stream.read(info.file_size + 1)


def _values(package: _Element, name: str) -> Iterator[str]:
    """Yield the values of an element of the Dublin Core that are not blank."""
    for element in package.iter(f"{{http://purl.org/dc/elements/1.1/}}{name}"):
        if value := " ".join("".join(element.itertext()).split()):
            yield value


def _pages(package: _Element, path: str) -> Iterator[str]:
    """Yield the names of the pages in reading order, each once."""
    items = {item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")}
    listed = (each.get("idref") for each in package.iterfind("./{*}spine/{*}itemref"))
    for identifier in dict.fromkeys(listed):
        item = items.get(identifier)
        if item is None:
            msg = f"cannot be read as EPUB: its spine names {identifier!r}, which is no item"
            msg = f"{msg} of its manifest; restore the file"
            raise BookError(msg)
        if item.get("media-type") in _PAGES:
            href = unquote(item.get("href", "").partition("#")[0])
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), href))
