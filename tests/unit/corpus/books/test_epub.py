from __future__ import annotations

import io
import random
import re
import socket
from contextlib import suppress
from zipfile import ZIP_BZIP2, ZipFile

import pytest

from mia_batch.corpus import books, read_documents
from mia_batch.corpus.books import LEFT_OUT, BookError, find_isbn
from mia_batch.errors import CorpusError
from tests.books import CONTAINER, HEADER, LICENCE, PACKAGE, page, write_epub


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


def package(items, spine=("a",)):
    """A package of items, each an identifier, a name and further attributes."""
    listed = "".join(f'<item id="{name}" href="{href}" {more}/>' for name, href, more in items)
    order = "".join(f'<itemref idref="{name}"/>' for name in spine)
    return {"OEBPS/book.opf": PACKAGE.format(metadata="", items=listed, spine=order)}


@pytest.mark.parametrize(
    "href",
    [
        *("../../secret", "../../../../../../etc/passwd", "/etc/passwd", "file:///etc/passwd"),
        *("http://127.0.0.1/a.xhtml", "//127.0.0.1/a.xhtml", "", "z.xhtml"),
    ],
)
def test_what_is_not_in_the_archive_is_counted_and_looked_up_nowhere(tmp_path, href):
    (tmp_path / "secret").write_text("<p>secret</p>")
    items = [("a", "a.xhtml", ""), ("b", href, 'media-type="text/html"')]
    further = {**package(items, ["b", "a", "nothing"]), "OEBPS/a.xhtml": page("text")}
    row = read(write_epub(tmp_path / "b.epub", {}, further=further))
    assert (row["text"], row["missing_pages"]) == ("text", 2)
    further = package(items, ["b"])
    assert refusal(write_epub(tmp_path / "c.epub", {}, further=further)) == (
        "has no page that can be read; give a copy with all its files"
    )


@pytest.mark.parametrize(
    ("name", "media_type", "text"),
    [
        ("a.xhtml", "Application/XHTML+XML", "text"),
        ("a.xml", "text/x-html", "text"),
        ("a.xhtml", "", "text"),
        ("a", "application/octet-stream", "text"),
        ("a.HTM", "text/html; charset=utf-8", "text"),
        ("ncx/fonts.css.xhtml", "", "text"),
        ("a.xhtml", "image/svg+xml", None),
        ("a.ncx", "application/x-dtbncx+xml", None),
        ("a.css", "text/css", None),
        ("a.JPG", "", None),
    ],
)
def test_a_page_is_one_by_what_it_is(tmp_path, name, media_type, text):
    items = [("a", name, f'media-type="{media_type}"'), ("z", "z.html", "")]
    further = {
        **package(items, ["a", "z"]),
        f"OEBPS/{name}": page("text"),
        "OEBPS/z.html": page(""),
    }
    assert read(write_epub(tmp_path / "b.epub", {}, further=further))["text"] == (text or "")


def test_names_of_pages_are_found_as_readers_find_them(tmp_path):
    items = [("a", "Text/A.xhtml#top", ""), ("b", "./B%20b.xhtml", ""), ("c", "b%20b.xhtml", "")]
    files = {"OEBPS/text/a.XHTML": page("a"), "OEBPS/B b.xhtml": page("b")}
    further = {**package(items, ["a", "b", "c", "a"]), **files}
    row = read(write_epub(tmp_path / "b.epub", {}, further=further))
    assert (row["text"], row["missing_pages"]) == ("a\n\nb", 0)  # each page once


def test_a_page_of_contents_is_left_out_and_pages_out_of_line_are_not(tmp_path):
    contents = page("<h1>Contents</h1><nav><ol><li>One</li></ol></nav>")
    items = [("a", "a", ""), ("nav", "nav.xhtml", 'properties="nav"'), ("n", "n", 'linear="no"')]
    files = {"OEBPS/a": page("One"), "OEBPS/nav.xhtml": contents, "OEBPS/n": page("A note.")}
    path = write_epub(
        tmp_path / "b.epub", {}, further={**package(items, ["nav", "a", "n"]), **files}
    )
    assert read(path)["text"] == "One\n\nA note."
    files["OEBPS/nav.xhtml"] = page("<nav>One</nav>" + "the whole book " * 20)
    path = write_epub(tmp_path / "c.epub", {}, further={**package(items, ["nav"]), **files})
    assert read(path)["text"] == ("the whole book " * 20).rstrip()


def test_what_is_left_out_is_counted_over_all_pages(tmp_path):
    note = (
        "<p>hy&#173;phen<a role='doc-noteref' href='#1'>1</a> <ruby>\u6f22<rt>kan</rt></ruby></p>"
    )
    colophon = page("<section role='doc-colophon'>Set in type</section>")
    path = write_epub(tmp_path / "b.epub", {"a": page(note), "b": page(note), "c": colophon})
    row = read(path)
    assert row["text"] == "hyphen \u6f22\n\nhyphen \u6f22"
    assert [row[name] for name in LEFT_OUT] == [2, 2, 2, 0, 1, 0]
    assert row["cut_inside"] == 2 + 2 * 3 + 2 + len("Set in type")
    assert row["n_characters"] == len(row["text"]) + row["cut_inside"]


def test_the_licence_of_another_page_is_cut(tmp_path):
    header = "".join(f"<p>{text}</p>" for text in HEADER.split("\n\n"))
    pages = {
        "a": page(header),
        "b": page("<h1>I</h1><p>text</p>"),
        "c": page(f"<pre>{LICENCE}</pre>"),
    }
    row = read(write_epub(tmp_path / "b.epub", pages, metadata=""))
    assert (row["text"], row["author"]) == ("I\n\ntext", "Edgar A. Poe")


def test_a_page_that_cannot_be_read_is_named(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("text"), "b": page("<b>" * 600)})
    assert refusal(path) == (
        "has a page 'OEBPS/b' that has elements nested more than 512 deep; simplify it"
    )
    further = {"OEBPS/b": "<p>\n\xe9".encode("latin-1")}
    path = write_epub(tmp_path / "c.epub", {"a": page("text"), "b": ""}, further=further)
    with pytest.raises(CorpusError) as error:
        read(path)
    assert str(error.value) == (
        f"{path}, line 2: byte 0xe9 is not valid UTF-8 in 'OEBPS/b'; save the file as UTF-8"
    )


@pytest.mark.parametrize("container", ["<container", "", CONTAINER.replace("full-path", "path")])
def test_a_broken_container_is_refused(tmp_path, container):
    further = {"META-INF/container.xml": container}
    path = write_epub(tmp_path / "b.epub", {"a": page("")}, further=further)
    assert re.match(r"cannot be read as EPUB: META-INF/container.xml (is|names) no", refusal(path))


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(books, "_MOST_BYTES", 1 << 20)
    path = write_epub(tmp_path / "b.epub", {"a": page("0" * (1 << 20))})
    assert refusal(path) == (
        "has a page 'OEBPS/a' that unpacks to more than 1 MiB of text; split the book"
    )


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


def test_nothing_outside_the_file_is_opened_or_asked_for(tmp_path):
    (tmp_path / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        doctype = (
            f'<!DOCTYPE html SYSTEM "{here}/dtd" [<!ENTITY a "many">'
            f'<!ENTITY b SYSTEM "{tmp_path}/secret"><!ENTITY c SYSTEM "file://{tmp_path}/secret">'
            f'<!ENTITY d SYSTEM "{here}/d"><!ENTITY % e SYSTEM "{here}/e"> %e; ]>'
        )
        links = f'<img src="{here}/i"/><link href="{here}/l"/><script src="{here}/s"></script>'
        text = page(f"x&a;y&b;&c;&d;z{links}").replace("<!DOCTYPE html>", doctype)
        further = package([("a", "a", "")])
        opf = further["OEBPS/book.opf"].replace("?>", f"?>{doctype}", 1)
        further["OEBPS/book.opf"] = opf.replace("<metadata", "<x>&b;&c;&d;</x><metadata")
        path = write_epub(tmp_path / "b.epub", {"a": text}, further=further)
        assert read(path)["text"] == "x&a;y&b;&c;&d;z"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_damage_of_any_kind_is_a_sentence(tmp_path):
    path = write_epub(tmp_path / "b.epub", {"a": page("word " * 50), "b": page("text")})
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with suppress(BookError):
            books.read_epub(io.BytesIO(content))
