from __future__ import annotations

import io
import random
import re
from contextlib import suppress
from zipfile import ZIP_BZIP2, ZipFile

import pytest

from mia_batch.corpus import read_documents
from mia_batch.corpus.books import epub
from mia_batch.corpus.books.book import BookError
from mia_batch.corpus.books.isbn import find_isbn
from mia_batch.errors import CorpusError
from tests.books import CONTAINER, PACKAGE, page, write_epub


def read(path):
    (row,) = read_documents(path).documents.collect().to_dicts()
    return row


def refusal(path):
    with pytest.raises(CorpusError) as error:
        read(path)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{path} ")


def test_chapters_come_in_the_order_of_the_spine(tmp_path):
    pages = {
        "b.xhtml": page("<h1>Two</h1><p>It  was&nbsp;a<br/>dark &amp; stormy night.</p>"),
        "a%20a.xhtml": page("<h1>One</h1><p>Call me <i>Ishmael</i>.</p><!-- no --><?no no?>"),
    }
    further = {"OEBPS/a a.xhtml": pages["a%20a.xhtml"], "OEBPS/cover.jpg": "x"}
    path = write_epub(
        tmp_path / "b.epub", pages, spine=["a%20a.xhtml", "b.xhtml", "b.xhtml"], further=further
    )
    row = read(path)
    assert row["text"] == "One\n\nCall me Ishmael.\n\nTwo\n\nIt was a\ndark & stormy night."
    assert (row["title"], row["author"], row["isbn"]) == (
        "The Title",
        "One Author; Two",
        "9780306406157",
    )
    assert (row["document_id"], row["group"]) == ("b.epub", "b.epub")
    assert (row["n_characters"], row["cut_start"], row["cut_end"]) == (len(row["text"]), 0, 0)


def test_a_book_that_says_nothing_of_itself(tmp_path):
    row = read(write_epub(tmp_path / "b.epub", {"a": page("")}, metadata=""))
    assert (row["text"], row["title"], row["author"], row["isbn"]) == ("", None, None, None)


@pytest.mark.parametrize(
    ("identifier", "number"),
    [
        ("9780306406157", "9780306406157"),
        (" urn:isbn:0-306-40615-2 ", "0306406152"),
        ("ISBN 080442957X", "080442957X"),
        ("9780306406158", None),
        ("9770306406159", None),
        ("urn:uuid:12345678901234567890", None),
        ("978030640615X", None),
        ("", None),
    ],
)
def test_an_isbn_has_a_check_digit(identifier, number):
    assert find_isbn(identifier) == number


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "b.epub").write_bytes(b"text")
    message = "cannot be read as EPUB (File is not a zip file); restore the file"
    assert refusal(tmp_path / "b.epub") == message


def test_a_damaged_archive_is_refused(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("word " * 500)})
    content = bytearray(path.read_bytes())
    place = content.index(b"OEBPS/a") + 20
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)
    assert refusal(path).startswith("cannot be read as EPUB (")


def test_an_archive_without_a_container_is_refused(tmp_path):
    with ZipFile(tmp_path / "b.epub", "w") as archive:
        archive.writestr("book.html", "text")
    assert refusal(tmp_path / "b.epub") == (
        "cannot be read as EPUB: there is no 'META-INF/container.xml' in it; restore the file"
    )


def test_names_outside_the_archive_are_not_looked_up(tmp_path):
    (tmp_path / "secret").write_text("secret")
    further = {
        "OEBPS/book.opf": PACKAGE.format(
            metadata="",
            items='<item id="a" href="../../secret" media-type="application/xhtml+xml"/>',
            spine='<itemref idref="a"/>',
        )
    }
    assert refusal(write_epub(tmp_path / "b.epub", {}, further=further)) == (
        "cannot be read as EPUB: there is no '../secret' in it; restore the file"
    )


def test_a_spine_that_names_nothing_is_refused(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("")}, spine=["a", "z"])
    assert refusal(path) == (
        "cannot be read as EPUB: its spine names 'z', which is no item of its manifest; "
        "restore the file"
    )


@pytest.mark.parametrize("container", ["<container", "", CONTAINER.replace("full-path", "path")])
def test_a_broken_container_is_refused(tmp_path, container):
    further = {"META-INF/container.xml": container}
    path = write_epub(tmp_path / "b.epub", {"a": page("")}, further=further)
    assert re.match(r"cannot be read as EPUB: META-INF/container.xml (is|names) no", refusal(path))


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(epub, "_MOST_BYTES", 1 << 20)
    path = write_epub(tmp_path / "b.epub", {"a": page("0" * (1 << 20))})
    assert refusal(path) == "unpacks to more than 1 MiB of text; split the book"


def test_a_size_that_lies_is_found_out(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("0" * 999_000)})
    content = path.read_bytes()
    size = len(page("0" * 999_000)).to_bytes(4, "little")
    assert content.count(size) == 2
    path.write_bytes(content.replace(size, (200).to_bytes(4, "little")))
    assert refusal(path).startswith("cannot be read as EPUB (Bad CRC-32")


def test_other_packings_are_refused(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("")}, spine=["a"])
    with ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(path, "w", ZIP_BZIP2) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert refusal(path) == (
        "packs 'META-INF/container.xml' in a way that EPUB does not allow; pack it anew"
    )


def encryption(algorithm):
    return {
        "META-INF/encryption.xml": f"""<encryption xmlns="urn:c">
        <EncryptedData xmlns="http://www.w3.org/2001/04/xmlenc#">
        <EncryptionMethod Algorithm="{algorithm}"/></EncryptedData></encryption>"""
    }


def test_an_encrypted_book_is_refused(tmp_path):
    further = encryption("http://www.w3.org/2001/04/xmlenc#aes128-cbc")
    path = write_epub(tmp_path / "b.epub", {"a": page("text")}, further=further)
    assert refusal(path) == "is encrypted (its rights are managed); give a copy that is not"


def test_hidden_fonts_are_no_matter(tmp_path):
    further = encryption("http://www.idpf.org/2008/embedding")
    path = write_epub(tmp_path / "b.epub", {"a": page("text")}, further=further)
    assert read(path)["text"] == "text"


def test_entities_of_the_file_stay_unread(tmp_path):
    (tmp_path / "secret").write_text("secret")
    doctype = f'<!DOCTYPE x [<!ENTITY a "many"><!ENTITY b SYSTEM "{tmp_path}/secret">]>'
    text = page("x&a;y&b;z").replace("<!DOCTYPE html>", doctype)
    assert read(write_epub(tmp_path / "b.epub", {"a": text}))["text"] == "xyz"


def test_damage_of_any_kind_is_a_sentence(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("word " * 50), "b": page("text")})
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with suppress(BookError):
            epub.read_epub(io.BytesIO(content))
