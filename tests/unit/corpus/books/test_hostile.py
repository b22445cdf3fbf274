"""Files that unpack, expand or are laid out to gigabytes cost little memory, and one sentence."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from tests.books import CONTAINER, PACKAGE, page, write_epub

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
    return page(body).replace("<!DOCTYPE html>", doctype).replace("<body>", f"<body {attribute}>")


def package(items, spine="", doctype=""):
    opf = PACKAGE.format(metadata="", items=items, spine=spine)
    return {"OEBPS/book.opf": opf.replace("?>", f"?>{doctype}", 1)}


def overlapping(n_entries):
    """An archive whose list names one piece of the file many times."""
    items = "".join(f'<item id="{n}" href="{n}" media-type="text/html"/>' for n in range(1000))
    spine = "".join(f'<itemref idref="{n}"/>' for n in range(1000))
    files = {"META-INF/container.xml": CONTAINER, **package(items, spine)}
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
    numbers = (44, 45, 45, 0, 0, n_entries + 2, n_entries + 2, len(content) - start, start)
    far = struct.pack("<4sQ2H2L4Q", b"PK\6\6", *numbers)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return content + far + locator + end


DEEP = "has elements nested more than 512 deep; simplify it"
FILES = {
    "a.txt": (lambda: "text", 4),
    # what a browser would lay out
    "rows.html": (lambda: "<table>" + ("<tr>" + "<td>x" * 20) * 2000, 2 * 40_000 - 1),
    "wide.html": (
        lambda: f"<table><tr><td>{'x' * 10_000}<td>y{'<tr><td>a<td>b' * 9999}",
        10_002 + 4 * 9999,
    ),
    "spans.html": (
        lambda: "<table>" + "<tr><td colspan=1000000 rowspan=65534>x</td></tr>" * 2000,
        3999,
    ),
    "lists.html": (lambda: "<ul><li>" * 100_000 + "x", DEEP),
    "divs.xhtml": (lambda: page("<div>" * 100_000 + "x" + "</div>" * 100_000), DEEP),
    "ends.html": (lambda: "<div>" * 500 + "</p></i>" * (MIB // 8), 0),
    "bold.html": (lambda: "<b>" * (22 * MIB), "is longer than 10 MiB; split it"),
    "attribute.html": (lambda: f"<p title='{'x' * (10 * MIB - 100)}'>x", 1),
    "text.html": (
        lambda: "<pre>" + "word\n" * (2 * MIB - 100) + "\U0001f600",
        5 * (2 * MIB - 100) + 1,
    ),
    "lol.xhtml": (lambda: with_doctype(entities("", "&"), "&l9;"), len("&l9;")),
    "lol-attribute.xhtml": (lambda: with_doctype(entities("", "&"), "x", "title='&l9;'"), 1),
    "lol-parameter.xhtml": (lambda: with_doctype(entities("%", "&#37;"), "x"), 1),
    # ends that are searched for from each of many beginnings
    "literals.xhtml": (lambda: page("<![CDATA[" * (MIB // 2)), 0),
    "doctypes.xhtml": (lambda: page("<!DOCTYPE x [" * (MIB // 2)), 0),
    "name.xhtml": (lambda: page(f"<{'a' * (5 * MIB)}"), 0),
    "dots.txt": (lambda: "Contents\n" + f"a{' .' * 140} 5x\n" * 50_000, 9 + 285 * 50_000),
    "contents.txt": (lambda: "Contents\n" + "ab\n" * MIB, 9 + 3 * MIB),
    "braces.txt": (lambda: "{1} " * MIB, 4 * MIB),
    "spaces.txt": (lambda: " " * (4 * MIB) + "x" + "\n" * (4 * MIB) + "\U0001f600", 8 * MIB + 2),
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
        lambda: package("<item id='a' href='a'/>" * 10**6, "<itemref idref='a'/>" * 10**6),
        "lists more than 200,000 parts; split the book",
    ),
    "same.epub": (
        lambda: (
            {"a": page("text")}
            | package(
                "".join(f"<item id='{n}' href='a'/>" for n in range(90_000)),
                "".join(f"<itemref idref='{n}'/>" for n in range(90_000)),
            )
        ),
        4,
    ),
    "lol.epub": (
        lambda: package("<item id='a' href='&l9;'/>", "", entities("", "&")),
        "cannot be read as EPUB: OEBPS/book.opf is not XML (Maximum entity amplification factor",
    ),
    "overlapping.epub": (
        lambda: overlapping(1000),
        "cannot be read as EPUB (File name in directory",
    ),
    "listed.epub": (
        lambda: overlapping(250_000),
        "cannot be read as EPUB (its list of contents is too long); restore the file",
    ),
    # last, because it takes the most memory and later peaks would hide behind it
    "attributes.html": (lambda: f"<p {' '.join(map('a{}'.format, range(1_250_000)))}>x", 1),
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
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    command = [sys.executable, "-c", READ, *(str(folder / name) for name in FILES)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_read_or_refused_in_little_memory(outcomes, name):
    said, n_mib = outcomes[name]
    expected = FILES[name][1]
    assert said == expected or str(said).startswith(f"{expected} ")
    assert n_mib < MOST_MIB
