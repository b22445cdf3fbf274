"""Books for tests: EPUB files made anew, and Project Gutenberg's texts around a text."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>"""

PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{metadata}</metadata>
<manifest>{items}</manifest><spine>{spine}</spine></package>"""

METADATA = """<dc:identifier id="id">urn:uuid:1234</dc:identifier>
<dc:identifier>urn:isbn:978-0-306-40615-7</dc:identifier>
<dc:title>The  Title</dc:title><dc:creator>One Author</dc:creator><dc:creator>Two</dc:creator>"""

HEADER = """The Project Gutenberg eBook of The Raven Book, by Edgar A. Poe

This eBook is for the use of anyone anywhere at no cost.

Title: The Raven Book
       and Other Poems

Author: Edgar A. Poe

Release Date: March 1, 2001 [eBook #42]

*** START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK,
AND OTHER POEMS ***

Produced by Jane Doe and the
Distributed Proofreaders

"""

LICENCE = """

End of Project Gutenberg's The Raven Book, by Edgar A. Poe

*** END OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK ***

Updated editions will replace the previous one.
"""


def page(body: str, head: str = "") -> str:
    """An XHTML page as an EPUB holds it."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        "<html"
        f' xmlns="http://www.w3.org/1999/xhtml"><head>{head}</head><body>{body}</body></html>'
    )


def write_epub(
    path: Path,
    pages: Mapping[str, str],
    *,
    spine: Sequence[str] | None = None,
    metadata: str = METADATA,
    further: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write an EPUB whose pages have their names as identifiers; ``further`` files win."""
    items = "".join(
        f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>'
        for name in pages
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in spine or pages)
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE.format(metadata=metadata, items=items, spine=order),
        **{f"OEBPS/{name}": content for name, content in pages.items()},
        **(further or {}),
    }
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


_DATA = tomllib.loads(
    (Path(__file__).parent / "data" / "books.toml").read_text("utf-8")
)


def _filled(text: str) -> str:
    """Put parts in the place of their names."""

    def part(named: re.Match[str]) -> str:
        whole = _filled(_DATA["parts"][named[1]])
        return " ".join(whole.split()) if named[2] else whole

    return re.sub(r"\{([a-z ]+?)( in one line)?\}", part, text)


HEADERS = {name: _filled(text) for name, text in _DATA["headers"].items()}
"""What stands before books in the libraries of the net, as their files have it."""
FOOTERS = {name: _filled(text) for name, text in _DATA["footers"].items()}
"""What stands behind them."""
SMALL_PRINT: str = _DATA["parts"]["small print"]
