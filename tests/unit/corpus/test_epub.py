"""EPUB files, and files that unpack, expand or are laid out to gigabytes, in little memory."""

import io
import json
import random
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile

import pytest

from mia_batch.corpus import books, read_documents
from mia_batch.corpus.books import LEFT_OUT, BookError, find_isbn
from mia_batch.targets import Windowing, build_targets
from tests.books import CONTAINER, HEADER, LICENCE, PACKAGE, page, write_epub
from tests.unit.corpus.test_documents import refusal


def read(path):
    (row,) = read_documents(path).documents.collect().to_dicts()
    return row


def test_chapters_come_in_the_order_of_the_spine(tmp_path):
    pages = {
        "b.xhtml": page(
            "<h1>Two</h1><p>It  was&nbsp;a<br/>dark &amp; stormy night.</p>"
        ),
        "a%20a.xhtml": page(
            "<h1>One</h1><p>Call me <i>Ishmael</i>.</p><!-- no --><?no no?>"
        ),
    }
    further = {"OEBPS/a a.xhtml": pages["a%20a.xhtml"], "OEBPS/cover.jpg": "x"}
    spine = ["a%20a.xhtml", "b.xhtml", "b.xhtml"]
    row = read(write_epub(tmp_path / "b.epub", pages, spine=spine, further=further))
    assert (
        row["text"]
        == "One\n\nCall me Ishmael.\n\nTwo\n\nIt was a\ndark & stormy night."
    )
    named = ("The Title", "One Author; Two", "9780306406157")
    assert (row["title"], row["author"], row["isbn"]) == named
    assert (row["document_id"], row["group"]) == ("b.epub", "b.epub")
    assert (row["n_characters"], row["cut_start"], row["cut_end"]) == (
        len(row["text"]),
        0,
        0,
    )


def contents(form, entries):
    """A table of contents, with the item of the package that names it."""
    if form == "nav":
        links = "".join(
            f'<li><a href="{href}">{name}</a></li>' for href, name in entries
        )
        body = (
            '<nav xmlns:epub="http://www.idpf.org/2007/ops" epub:type="toc">'
            f"<ol>{links}</ol></nav><nav epub:type='landmarks' "
            'xmlns:epub="http://www.idpf.org/2007/ops"><a'
            ' href="b.xhtml">Start</a></nav>'
        )
        return page(body), "application/xhtml+xml", 'properties="nav"'
    points = "".join(
        f"<navPoint><navLabel><text>{name}</text></navLabel><content"
        f" src='{href}'/></navPoint>"
        for href, name in entries
    )
    ncx = (
        "<ncx"
        f" xmlns='http://www.daisy.org/z3986/2005/ncx/'><navMap>{points}</navMap></ncx>"
    )
    return ncx, "application/x-dtbncx+xml", ""


def listed_epub(path, table, media, more):
    """A book of two files of chapters, the second of which begins within the first file."""
    names = {"a": "a.xhtml", "b": "b.xhtml", "c": "toc"}
    typed = {"a": "application/xhtml+xml", "b": "application/xhtml+xml", "c": media}
    items = "".join(
        f'<item id="{key}" href="{name}" media-type="{typed[key]}"'
        f" {more if key == 'c' else ''}/>"
        for key, name in names.items()
    )
    spine = '<itemref idref="a"/><itemref idref="b"/>'
    pages = {
        "a.xhtml": page(
            f"<h1>I</h1><p>{'alpha ' * 60}</p><h2 id='x'>II</h2>{'beta ' * 60}"
        ),
        "b.xhtml": page(f"<p>{'gamma ' * 60}</p>"),
        "toc": table,
    }
    return write_epub(path, pages, further=package_of(items, spine))


ENTRIES = [
    ("a.xhtml", " Down  the hole"),
    ("a.xhtml#x", "Pool"),
    ("b.xhtml", "Race"),
    ("n", "?"),
]


@pytest.mark.parametrize("form", ["nav", "ncx"])
def test_chapters_are_those_of_the_table_of_contents(tmp_path, form):
    path = listed_epub(tmp_path / "b.epub", *contents(form, ENTRIES))
    row = read(path)
    found = [
        (row["text"][each["start"] :].split()[0], each["heading"])
        for each in row["chapters"]
    ]
    assert found == [("I", "Down the hole"), ("II", "Pool"), ("gamma", "Race")]
    windows = build_targets(
        read_documents(path).documents, Windowing(window_words=30)
    ).collect()
    assert "chapters" not in windows.columns
    listed = [name for name in ("Down the hole", "Pool", "Race") for _ in range(2)]
    assert windows["window_chapter"].to_list() == listed


def test_a_table_of_contents_that_is_no_xml_is_left_aside(tmp_path):
    _, media, more = contents("nav", ENTRIES)
    row = read(listed_epub(tmp_path / "b.epub", "<nav>&nbsp;", media, more))
    assert (row["chapters"], row["n_characters"]) == ([], len(row["text"]))


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


def package(items, spine=("a",)):
    """A package of items, each an identifier, a name and further attributes."""
    listed = "".join(
        f'<item id="{name}" href="{href}" {more}/>' for name, href, more in items
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in spine)
    return {"OEBPS/book.opf": PACKAGE.format(metadata="", items=listed, spine=order)}


def epub(further, pages=None):
    stream: Any = io.BytesIO()
    write_epub(stream, pages or {"a": page("")}, further=further)
    return stream.getvalue()


def archive(name, content, packing):
    stream = io.BytesIO()
    with ZipFile(stream, "w", packing) as made:
        made.writestr(name, content)
    return stream.getvalue()


def damaged():
    content = bytearray(epub({}, {"a": page("word " * 500)}))
    place = content.index(b"OEBPS/a") + 20
    content[place : place + 8] = b"\xff" * 8
    return bytes(content)


def lying():
    whole, size = epub({}, {"a": page("0" * 999_000)}), len(page("0" * 999_000))
    assert whole.count(size.to_bytes(4, "little")) == 2
    return whole.replace(size.to_bytes(4, "little"), (200).to_bytes(4, "little"))


def encrypted(algorithm):
    return {
        "META-INF/encryption.xml": (
            f"""<encryption xmlns="urn:c">
        <EncryptedData xmlns="http://www.w3.org/2001/04/xmlenc#">
        <EncryptionMethod Algorithm="{algorithm}"/></EncryptedData></encryption>"""
        )
    }


UNREADABLE = "cannot be read as EPUB"
C = "META-INF/container.xml"
AES = "http://www.w3.org/2001/04/xmlenc#aes128-cbc"
LATIN = "<p>\n\xe9".encode("latin-1")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (damaged(), f"{UNREADABLE} ("),
        (lying(), f"{UNREADABLE} (Bad CRC-32"),
        (b"text", f"{UNREADABLE} (File is not a zip file); restore the file"),
        (epub({C: "<container"}), f"{UNREADABLE}: {C} is not XML"),
        (epub({C: ""}), f"{UNREADABLE}: {C} is not XML"),
        (
            epub({C: CONTAINER.replace("full-path", "p")}),
            f"{UNREADABLE}: {C} names no package",
        ),
        (
            archive("book.html", "text", ZIP_DEFLATED),
            f"{UNREADABLE}: there is no {C!r} in it; restore the file",
        ),
        (
            archive(C, CONTAINER, ZIP_BZIP2),
            f"packs {C!r} in a way that EPUB does not allow; pack it anew",
        ),
        (
            epub(encrypted(AES)),
            "is encrypted (its rights are managed); give a copy that is not",
        ),
        (
            epub(package([("b", "z.xhtml", "")], ["b"])),
            "has no page that can be read; give a copy with all its files",
        ),
        (
            epub({}, {"a": page("text"), "b": page("<b>" * 600)}),
            (
                "has a page 'OEBPS/b' that has elements nested more than 512 deep;"
                " simplify it"
            ),
        ),
        (
            epub({"OEBPS/b": LATIN}, {"a": page("text"), "b": ""}),
            (
                ", line 2: byte 0xe9 is not valid UTF-8 in 'OEBPS/b'; save the file as"
                " UTF-8"
            ),
        ),
    ],
)
def test_a_book_that_cannot_be_read_is_refused(tmp_path, content, sentence):
    path = tmp_path / "b.epub"
    path.write_bytes(content)
    assert refusal(path).removeprefix(str(path)).lstrip(" ").startswith(sentence)


def test_fonts_may_be_hidden(tmp_path):
    further = encrypted("http://www.idpf.org/2008/embedding")
    row = read(
        write_epub(
            tmp_path / "c.epub", {"a": page("text")}, further=further, metadata=""
        )
    )
    assert (row["text"], row["title"], row["author"], row["isbn"]) == (
        "text",
        None,
        None,
        None,
    )


def read_book(path, items, pages, spine=None):
    names = [name for name, *_ in items] if spine is None else spine
    files = {f"OEBPS/{name}": content for name, content in pages.items()}
    return read(write_epub(path, {}, further={**package(items, names), **files}))


@pytest.mark.parametrize(
    "href",
    [
        *(
            "../../secret",
            "../../../../../../etc/passwd",
            "/etc/passwd",
            "file:///etc/passwd",
        ),
        *("http://127.0.0.1/a.xhtml", "//127.0.0.1/a.xhtml", "", "z.xhtml"),
    ],
)
def test_what_is_not_in_the_archive_is_counted_and_looked_up_nowhere(tmp_path, href):
    (tmp_path / "secret").write_text("<p>secret</p>")
    items = [("a", "a.xhtml", ""), ("b", href, 'media-type="text/html"')]
    spine = ["b", "a", "nothing"]
    row = read_book(tmp_path / "b.epub", items, {"a.xhtml": page("text")}, spine)
    assert (row["text"], row["missing_pages"]) == ("text", 2)


@pytest.mark.parametrize(
    ("name", "media_type", "text"),
    [
        ("a.xhtml", "Application/XHTML+XML", "text"),
        ("a.xml", "text/x-html", "text"),
        ("a.xhtml", "", "text"),
        ("a", "application/octet-stream", "text"),
        ("a.HTM", "text/html; charset=utf-8", "text"),
        ("ncx/fonts.css.xhtml", "", "text"),
        ("a.xhtml", "image/svg+xml", ""),
        ("a.ncx", "application/x-dtbncx+xml", ""),
        ("a.css", "text/css", ""),
        ("a.JPG", "", ""),
    ],
)
def test_a_page_is_one_by_what_it_is(tmp_path, name, media_type, text):
    items = [("a", name, f'media-type="{media_type}"'), ("z", "z.html", "")]
    pages = {name: page("text"), "z.html": page("")}
    assert read_book(tmp_path / "b.epub", items, pages)["text"] == text


CONTENTS = page("<h1>Contents</h1><nav><ol><li>One</li></ol></nav>")
LONG = "the whole book " * 20
NAV = ("nav", "nav.xhtml", 'properties="nav"')


@pytest.mark.parametrize(
    ("items", "pages", "text"),
    [
        (
            [
                ("a", "Text/A.xhtml#top", ""),
                ("b", "./B%20b.xhtml", ""),
                ("c", "b%20b.xhtml", ""),
            ],
            {"text/a.XHTML": page("a"), "B b.xhtml": page("b")},
            "a\n\nb",  # found as readers find them, and each once
        ),
        (
            [NAV, ("a", "a", ""), ("n", "n", 'linear="no"')],
            {"a": page("One"), "nav.xhtml": CONTENTS, "n": page("A note.")},
            "One\n\nA note.",
        ),
        ([NAV], {"nav.xhtml": page(f"<nav>One</nav>{LONG}")}, LONG.rstrip()),
    ],
)
def test_pages_are_found_and_a_table_of_contents_is_left_out(
    tmp_path, items, pages, text
):
    row = read_book(tmp_path / "b.epub", items, pages)
    assert (row["text"], row["missing_pages"]) == (text, 0)


def test_what_is_left_out_is_counted_and_a_licence_cut_over_all_pages(tmp_path):
    note = (
        "<p>hy&#173;phen<a role='doc-noteref' href='#1'>1</a>"
        " <ruby>\u6f22<rt>kan</rt></ruby></p>"
    )
    colophon = page("<section role='doc-colophon'>Set in type</section>")
    path = write_epub(
        tmp_path / "b.epub", {"a": page(note), "b": page(note), "c": colophon}
    )
    row = read(path)
    assert row["text"] == "hyphen \u6f22\n\nhyphen \u6f22"
    assert [row[name] for name in LEFT_OUT] == [2, 2, 2, 0, 1, 0]
    assert row["cut_inside"] == 2 + 2 * 3 + 2 + len("Set in type")
    assert row["n_characters"] == len(row["text"]) + row["cut_inside"]
    header = "".join(f"<p>{text}</p>" for text in HEADER.split("\n\n"))
    bodies = {"a": header, "b": "<h1>I</h1><p>text</p>", "c": f"<pre>{LICENCE}</pre>"}
    pages = {name: page(body) for name, body in bodies.items()}
    row = read(write_epub(tmp_path / "b.epub", pages, metadata=""))
    assert (row["text"], row["author"]) == ("I\n\ntext", "Edgar A. Poe")


def test_nothing_outside_the_file_is_opened_or_asked_for(tmp_path):
    (tmp_path / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        doctype = (
            f'<!DOCTYPE html SYSTEM "{here}/dtd" [<!ENTITY a "many"><!ENTITY b SYSTEM'
            f' "{tmp_path}/secret"><!ENTITY c SYSTEM'
            f' "file://{tmp_path}/secret"><!ENTITY d SYSTEM "{here}/d"><!ENTITY % e'
            f' SYSTEM "{here}/e"> %e; ]>'
        )
        links = (
            f'<img src="{here}/i"/><link href="{here}/l"/><script'
            f' src="{here}/s"></script>'
        )
        text = page(f"x&a;y&b;&c;&d;z{links}").replace("<!DOCTYPE html>", doctype)
        further = package([("a", "a", "")])
        opf = further["OEBPS/book.opf"].replace("?>", f"?>{doctype}", 1)
        further["OEBPS/book.opf"] = opf.replace(
            "<metadata", "<x>&b;&c;&d;</x><metadata"
        )
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


MIB = 1 << 20
MOST_MIB = 500  # above what the process has before it reads them

READ = """
import json, re, sys
from pathlib import Path
from mia_batch.corpus import read_documents
from mia_batch.errors import CorpusError

def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) / 1024

names = sys.argv[1:]
read_documents(names[0]).documents.collect()
before, found = peak(), {}
for name in names:
    try:
        said = len(read_documents(name).documents.collect()["text"][0])
    except CorpusError as error:
        said = str(error).removeprefix(f"{name} ")
    found[Path(name).name] = (said, peak() - before)
print(json.dumps(found))
"""


def entities(kind, of):
    """A document type whose entities stand for ten of each other, nine deep."""
    each = (f'<!ENTITY {kind} l{n} "{f"{of}l{n - 1};" * 10}">' for n in range(1, 10))
    first = f'<!ENTITY {kind} l0 "{"<!--lol-->" if kind else "lol"}">'
    return f"<!DOCTYPE x [{first}{''.join(each)}{'%l9;' if kind else ''}]>"


def with_doctype(doctype, body, attribute=""):
    return (
        page(body)
        .replace("<!DOCTYPE html>", doctype)
        .replace("<body>", f"<body {attribute}>")
    )


def package_of(items, spine="", doctype=""):
    opf = PACKAGE.format(metadata="", items=items, spine=spine)
    return {"OEBPS/book.opf": opf.replace("?>", f"?>{doctype}", 1)}


def overlapping(n_entries):
    """An archive whose list names one piece of the file many times."""
    items = "".join(
        f'<item id="{n}" href="{n}" media-type="text/html"/>' for n in range(1000)
    )
    spine = "".join(f'<itemref idref="{n}"/>' for n in range(1000))
    files = {"META-INF/container.xml": CONTAINER, **package_of(items, spine)}
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
        for name, content in {**files, "OEBPS/0": page("word " * 10_000)}.items():
            archive.writestr(name, content)
    whole = stream.getvalue()
    start = int.from_bytes(whole[-6:-2], "little")
    listed = [whole[start:-22]]
    last = listed[0][listed[0].rindex(b"PK\1\2") :]
    for n in range(1, n_entries):
        name = f"OEBPS/{n}".encode()
        listed.append(last[:28] + struct.pack("<H", len(name)) + last[30:46] + name)
    content = whole[:start] + b"".join(listed)
    numbers = (
        44,
        45,
        45,
        0,
        0,
        n_entries + 2,
        n_entries + 2,
        len(content) - start,
        start,
    )
    far = struct.pack("<4sQ2H2L4Q", b"PK\6\6", *numbers)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content), 1)
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0
    )
    return content + far + locator + end


DEEP = "has elements nested more than 512 deep; simplify it"
N_WORDS, SPAN = 2 * MIB - 100, "<tr><td colspan=1000000 rowspan=65534>x</td></tr>"
FILES = {
    "a.txt": (lambda: "text", 4),
    # what a browser would lay out
    "rows.html": (lambda: "<table>" + ("<tr>" + "<td>x" * 20) * 2000, 2 * 40_000 - 1),
    "wide.html": (
        lambda: f"<table><tr><td>{'x' * 10_000}<td>y{'<tr><td>a<td>b' * 9999}",
        10_002 + 4 * 9999,
    ),
    "spans.html": (lambda: "<table>" + SPAN * 2000, 3999),
    "lists.html": (lambda: "<ul><li>" * 100_000 + "x", DEEP),
    "divs.xhtml": (lambda: page("<div>" * 100_000 + "x" + "</div>" * 100_000), DEEP),
    "ends.html": (lambda: "<div>" * 500 + "</p></i>" * (MIB // 8), 0),
    "bold.html": (lambda: "<b>" * (22 * MIB), "is longer than 10 MiB; split it"),
    "attribute.html": (lambda: f"<p title='{'x' * (10 * MIB - 100)}'>x", 1),
    "text.html": (lambda: "<pre>" + "word\n" * N_WORDS + "\U0001f600", 5 * N_WORDS + 1),
    "lol.xhtml": (lambda: with_doctype(entities("", "&"), "&l9;"), len("&l9;")),
    "lol-attribute.xhtml": (
        lambda: with_doctype(entities("", "&"), "x", "title='&l9;'"),
        1,
    ),
    "lol-parameter.xhtml": (lambda: with_doctype(entities("%", "&#37;"), "x"), 1),
    # ends that are searched for from each of many beginnings
    "literals.xhtml": (lambda: page("<![CDATA[" * (MIB // 2)), 0),
    "doctypes.xhtml": (lambda: page("<!DOCTYPE x [" * (MIB // 2)), 0),
    "name.xhtml": (lambda: page(f"<{'a' * (5 * MIB)}"), 0),
    "dots.txt": (
        lambda: "Contents\n" + f"a{' .' * 140} 5x\n" * 50_000,
        9 + 285 * 50_000,
    ),
    "contents.txt": (lambda: "Contents\n" + "ab\n" * MIB, 9 + 3 * MIB),
    "braces.txt": (lambda: "{1} " * MIB, 4 * MIB),
    "spaces.txt": (
        lambda: " " * (4 * MIB) + "x" + "\n" * (4 * MIB) + "\U0001f600",
        8 * MIB + 2,
    ),
    "large.txt": (lambda: "x" * (33 * MIB), "is longer than 32 MiB; split the book"),
    # archives
    "bomb.epub": (
        lambda: {"a": page("0" * (100 * MIB))},
        "has a page 'OEBPS/a' that unpacks to more than 64 MiB of text; split the book",
    ),
    "page.epub": (
        lambda: {"a": page("0" * (11 * MIB))},
        "has a page 'OEBPS/a' that is longer than 10 MiB; split it",
    ),
    "spine.epub": (
        lambda: package_of(
            "<item id='a' href='a'/>" * 10**6, "<itemref idref='a'/>" * 10**6
        ),
        "lists more than 200,000 parts; split the book",
    ),
    "same.epub": (
        lambda: (
            {"a": page("text")}
            | package_of(
                "".join(f"<item id='{n}' href='a'/>" for n in range(90_000)),
                "".join(f"<itemref idref='{n}'/>" for n in range(90_000)),
            )
        ),
        4,
    ),
    "lol.epub": (
        lambda: package_of("<item id='a' href='&l9;'/>", "", entities("", "&")),
        (
            "cannot be read as EPUB: OEBPS/book.opf is not XML (Maximum entity"
            " amplification factor"
        ),
    ),
    "overlapping.epub": (
        lambda: overlapping(1000),
        f"{UNREADABLE} (File name in directory",
    ),
    "listed.epub": (
        lambda: overlapping(250_000),
        "cannot be read as EPUB (its list of contents is too long); restore the file",
    ),
    # last, because it takes the most memory and later peaks would hide behind it
    "attributes.html": (
        lambda: f"<p {' '.join(map('a{}'.format, range(1_250_000)))}>x",
        "has an element of more than 50,000 attributes; simplify",
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What reading each file comes to, and the most memory until then, in a process of its own."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, (make, _) in FILES.items():
        content = make()
        if isinstance(content, dict):
            pages = {key: value for key, value in content.items() if "/" not in key}
            further = {key: value for key, value in content.items() if "/" in key}
            write_epub(folder / name, pages, further=further)
        else:
            (folder / name).write_bytes(
                content.encode() if isinstance(content, str) else content
            )
    command = [sys.executable, "-c", READ, *(str(folder / name) for name in FILES)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_read_or_refused_in_little_memory(outcomes, name):
    said, n_mib = outcomes[name]
    expected = FILES[name][1]
    assert said == expected or str(said).startswith(f"{expected} ")
    assert n_mib < MOST_MIB
