"""What of a file is the book: licences, encodings, pages, marks."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.corpus import books, read_documents
from mia_batch.corpus.books import (
    BookError,
    decode,
    find_book,
    find_codec,
    read_html,
    tidy,
)
from tests.books import FOOTERS, HEADER, HEADERS, LICENCE, SMALL_PRINT, page
from tests.texts import king_james_books

BOOK = (
    "CHAPTER I.\nThe Raven\n\nOnce upon a midnight dreary.\n\nCHAPTER II\n\nTHE"
    " BELLS!\n\nHear."
)
CONTENTS = """The Raven Book

by Edgar A. Poe

Contents

                              PAGE
 CHAPTER I.   The Raven ...... 1
 CHAPTER II.  The Bells       12
 Hear

"""


def cut(text):
    found = find_book(text)
    return text[found.start : found.end]


FORMS = [
    *((header, "the") for header in HEADERS),
    *(("the", footer) for footer in FOOTERS),
    *(
        (HEADER, ""),
        (f"{HEADER}{CONTENTS}", "the"),
        (CONTENTS, "the"),
        ("the", LICENCE),
    ),
    (f"{HEADER}[Transcriber's Note: spelling was kept.\n\nSo it is.]\n\n", "the"),
    ("", "\n\n[Transcriber's note: spelling was kept.]\n"),
    ("", "\n***END OF THE PROJECT GUTENBERG EBOOK THE RAVEN***\n\nLicence."),
]


@pytest.mark.parametrize(
    ("line_end", "forms"),
    [("\n", [*product(HEADERS, FOOTERS)][::4] + FORMS), ("\r\n", FORMS), ("\r", FORMS)],
)
def test_the_book_is_found_in_every_form(line_end, forms):
    for header, footer in forms:
        text = HEADERS.get(header, header) + BOOK + FOOTERS.get(footer, footer)
        found = cut(text.replace("\n", line_end)).replace(line_end, "\n")
        assert (found, header, footer) == (BOOK, header, footer)


def test_real_books_are_found_in_every_form():
    for place, (name, whole) in enumerate(king_james_books().items()):
        book = (whole[:20_000] + whole[-20_000:]).strip("\n")
        expected = cut(book).rstrip()
        for header, footer in FORMS[place % 6 :: 6]:  # each form around two books
            found = cut(
                HEADERS.get(header, header) + book + FOOTERS.get(footer, footer)
            )
            kept = found == expected or header.endswith(CONTENTS)
            assert (kept, name, header, footer) == (True, name, header, footer)


ABOUT = (
    "Project Gutenberg is a library. Its License, the Project Gutenberg License, is"
    " long.\n\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n" + BOOK + " \n",
        "He said: *** START OF THE PROJECT GUTENBERG EBOOK ***, and laughed.\n",
        "Contents\n\nCHAPTER I.\nCHAPTER II.\nCHAPTER III.\n\nOther words.\n",
        (
            "Contents\n\nOne\nTwo\nprose that does not come"
            " again\n\nOne\n\na\n\nTwo\n\nb\n"
        ),
        "prose " * 200 + "\nContents\n\nOne\nTwo\nThree\n\nOne\n\nTwo\n\nThree\n",
        "the transcriber's note was lost\n" + "[Transcriber's note" + "x " * 9000 + "]",
        "\n*** END OF THE PROJECT GUTENBERG EBOOK\n" + "x " * 40_000,
        "Contents\n" + " " * 100_000 + "x\n" + "." * 100_000,
        # of the library, or with one word of it
        "Preface\n\nThe text is Project Gutenberg's, with thanks.\n\n" + BOOK,
        BOOK + "\n\nI found it in Project Gutenberg.\n",
        "PROJECT GUTENBERG (1971-2008)\n\nby Marie Lebert\n\n" + ABOUT * 40,
        ABOUT * 40
        + "End of Project Gutenberg's first decade\n\n"
        + "It went on. " * 500,
        ABOUT
        + "The end of Project Gutenberg, he feared,\nwas near.\n\n"
        + "It went on. " * 500,
        (
            "Project Gutenberg eBooks of old\n\nby X\n\nProject Gutenberg eBooks are"
            " free.\n"
        ),
        BOOK
        + "\n\nSettings\n\nThis file should be named config.ini or the like.\n"
        + BOOK * 9,
        "Produced by machines, the goods of our time are cheap.\n\n" + BOOK,
        "Title: How to write\n\nAuthor: me\n\n" + BOOK,
    ],
)
def test_what_is_not_sure_is_left_to_the_byte(text):
    assert cut(text) == text
    assert find_book(text)[2:] == (None, None)


def test_what_follows_a_header_is_cut_with_it_only_there():
    assert cut("Produced by Jane\n\n" + BOOK).startswith("Produced by")
    text = HEADERS["the"] + "Produced by Jane\n\n" * 3 + BOOK + "\n\nProduced by Jane\n"
    assert cut(text) == BOOK + "\n\nProduced by Jane\n"
    # A book in one line is no paragraph of it
    for header in (
        "the",
        "no line",
        "credits",
    ):
        text = " ".join(f"{HEADERS[header]}{BOOK * 20}".split())
        assert " ".join((BOOK * 20).split()) in cut(text)
    two = (
        HEADERS["the"]
        + BOOK
        + FOOTERS["the"]
        + HEADERS["the"]
        + "word " * 2000
        + FOOTERS["the"]
    )
    assert cut(two).startswith(BOOK)
    assert cut(two).endswith("word " * 1999 + "word")


@pytest.mark.parametrize(
    ("text", "tidied", "kind", "n"),
    [
        (
            "hy\u00adphen ze\u200bro wo\u2060r\ufeffd",
            "hyphen zero word",
            "soft_hyphens",
            4,
        ),
        ("a hy\u00ad\n  phen\u00ad\n\nb", "a hyphen\n\nb", "soft_hyphens", 2),
        (
            "Auf\u200clage \u0633\u0644\u200c\u0645",
            "Auflage \u0633\u0644\u200c\u0645",
            "soft_hyphens",
            1,
        ),
        ("\u0e01\u200b\u0e02 \U0001f468\u200d\U0001f469", None, "soft_hyphens", 0),
        ("on [Pg 12] the con[Pg 13]tinued", "on the continued", "page_numbers", 2),
        ("on\n\n[Page xii]\n\nthe", "on\n\nthe", "page_numbers", 1),
        (
            "on\r\n\r\n{9}\r\n\r\nthe {10} {11}\n{12} {13}",
            "on\r\n\r\nthe\n",
            "page_numbers",
            5,
        ),
        (r"\frac{1}{2} {3} {4}{7} {1}", None, "page_numbers", 0),
        (
            "so[1] on [2]\n\n[Footnote 1: a]\n[Footnote 2: b]",
            "so on\n\n[Footnote 1: a]\n[Footnote 2: b]",
            "note_marks",
            2,
        ),
        (
            "[A]nd so[A] on[B]\n[Footnote A: a]",
            "[A]nd so on[B]\n[Footnote A: a]",
            "note_marks",
            1,
        ),
        ("a list[0] of [1]", None, "note_marks", 0),
        (
            "THE END\n\n<<THIS ELECTRONIC VERSION OF\nTHE COMPLETE WORKS>>\n",
            "THE END\n\n\n",
            "licences",
            1,
        ),
    ],
)
def test_what_is_no_text_goes_where_it_is_sure(text, tidied, kind, n):
    found, left_out = tidy(text)
    assert found == (text if tidied is None else tidied)
    assert (left_out[kind], left_out["characters"]) == (n, len(text) - len(found))


PIECES = [
    *(
        HEADER,
        LICENCE,
        CONTENTS,
        BOOK,
        SMALL_PRINT,
        "Contents\n",
        "One\n",
        "\n",
        " ",
        "\r\n",
    ),
    *(
        "[Transcriber's note: x]",
        "Transcriber's Notes\n",
        "Title: x\n",
        "Produced by x\n",
    ),
]


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=12).map(
        "".join
    )
)
def test_a_cut_text_is_part_of_the_text(text):
    found = find_book(text)
    assert 0 <= found.start <= found.end <= len(text)
    marks = ("gutenberg", "small print", "transcriber", "contents")
    if not any(mark in text.casefold() for mark in marks):
        assert cut(text) == text


def test_real_books_lose_their_contents_and_nothing_else(shared_data):
    documents = read_documents(shared_data / "books").documents
    found = {
        row["document_id"]: row for row in documents.collect().iter_rows(named=True)
    }
    begins = {name: " ".join(row["text"].split()[:4]) for name, row in found.items()}
    assert begins["alice_in_wonderland.txt"] == "CHAPTER I. Down the"
    assert begins["frankenstein.txt"] == "Letter 1 _To Mrs."
    assert begins["walden.txt"] == "WALDEN Economy When I"
    assert begins["don_quijote.txt"] == "El ingenioso hidalgo don"
    assert sum(row["cut_start"] > 0 for row in found.values()) == 8
    for row in found.values():
        whole = (shared_data / "books" / row["document_id"]).read_bytes().decode()
        assert whole[row["cut_start"] :] == row["text"]
        assert (row["n_characters"], row["cut_end"]) == (len(whole), 0)


TEXT = "café naïve\n"


@pytest.mark.parametrize(
    ("content", "declared", "given", "text"),
    [
        (TEXT.encode("utf-8-sig"), "cp1252", "cp1252", TEXT),
        (TEXT.encode("utf-16"), None, None, TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), None, None, TEXT),
        (TEXT.encode("utf-32"), None, None, TEXT),
        (b"\0\0\xfe\xff" + TEXT.encode("utf-32-be"), None, None, TEXT),
        (TEXT.encode("latin-1"), "ISO-8859-1", None, TEXT),
        ("\u201ccafé\u201d".encode("cp1252"), "ISO-8859-1", None, "\u201ccafé\u201d"),
        (b"caf\xe9 \x81", "ISO-8859-1", None, "café \x81"),
        ("镕".encode("gbk"), "gb2312", None, "镕"),
        ("да".encode("koi8-r"), "KOI8-R", "cp1251", "да"),
        ("да".encode("cp1251"), None, "windows-1251", "да"),
        ("да".encode("cp1251"), "UTF-8", "cp1251", "да"),
        # Converted, with its declaration
        (
            TEXT.encode(),
            "ISO-8859-1",
            "cp1252",
            TEXT,
        ),
        (TEXT.encode("utf-16-le"), None, "utf-16-le", TEXT),
        ("日本".encode("iso2022_jp"), "iso-2022-jp", None, "日本"),
        (TEXT.encode(), "utf-16", None, TEXT),
        (b"plain", None, "cp1252", "plain"),
    ],
)
def test_texts_are_decoded(content, declared, given, text):
    assert decode(content, declared=declared, fallback=given) == text


@pytest.mark.parametrize(
    ("content", "declared", "given", "line", "what"),
    [
        (b"one\ntwo \xe9\n", None, None, 2, "byte 0xe9 is not valid UTF-8"),
        (b"caf\xe9", "us-ascii", None, 1, "byte 0xe9 is not valid us-ascii"),
        (b"a\n\n\x81\xff", "shift_jis", None, 3, "byte 0x81 is not valid shift_jis"),
        (b"a\x98", None, "cp1251", 1, "byte 0x98 is not valid cp1251"),
        (b"\xef\xbb\xbfa\n\xe9", None, "cp1252", 2, "byte 0xe9 is not valid UTF-8"),
    ],
)
def test_a_text_in_another_encoding_is_refused_with_its_place(
    content, declared, given, line, what
):
    with pytest.raises(BookError) as error:
        decode(content, declared=declared, fallback=given)
    assert (str(error.value), error.value.line) == (
        f"{what}; save the file as UTF-8",
        line,
    )


NO_CODECS = (
    "none",
    "rot13",
    "hex",
    "zlib",
    "idna",
    "punycode",
    "unicode_escape",
    "utf-7",
)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *[
            (" Latin-1 ", "iso8859-1"),
            ("x-sjis", "shift_jis"),
            ("UTF8", "utf-8"),
            ("437", "cp437"),
        ],
        *dict.fromkeys(NO_CODECS).items(),
        *dict.fromkeys(("", "undefined", "a.b", "../utf-8", "\0", "utf-8\n\0")).items(),
    ],
)
def test_only_encodings_of_text_are_known(name, known):
    assert find_codec(name) == known
    if name in NO_CODECS:
        said = f"declares the encoding '{name}', which is not one of"
        for head in (
            f'<meta charset="{name}"><p>a',
            f'<?xml version="1.0" encoding="{name}"?><p/>',
        ):
            with pytest.raises(BookError, match=said):
                read_html(head.encode())


PAGE = """<html><head><title> A
 Page </title><meta name="Author" content="Ann  Author"><style>p {}</style></head>
<body><h1>One</h1><p>café<p>two<script>no()</script></body></html>"""


def test_a_page_is_read_as_browsers_show_it():
    assert read_html(PAGE.encode())[:3] == (
        "One\n\ncafé\n\ntwo",
        "A Page",
        "Ann Author",
    )
    assert read_html(b"one<title> </title>")[:4] == ("one", None, None, None)
    for nothing in (b" \n", b"<!-- only -->", b""):
        assert read_html(nothing).text == ""
    for void in ("<title/>", '<script src="x"/>', "<style/>"):  # swallows nothing
        book = read_html(page("<p>tête</p><div/>text", head=void).encode())
        assert book.text == "tête\n\ntext"
    # What is not XML is read once, and as HTML.
    book = read_html(page("<p>a<sup><a href='#1'>1</a></sup>d&unknown;e<br>").encode())
    assert (book.text, book.left_out["note_marks"]) == ("ad&unknown;e", 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "<p> It  was<br/>a&nbsp;\t &#x3000;dark </p>\n<p>night.<br/></p>",
            "It was\na dark\n\nnight.",
        ),
        ("<div>a</div><div>b<p>c</p></div>d<br/><br/>e", "a\nb\n\nc\n\nd\n\ne"),
        (
            "<i>It</i> <b>was</b><span> a</span> <span class='cap'>D</span>ark",
            "It was a Dark",
        ),
        (
            "<ul><li>a<ol><li>b</li><li>c</li></ol></li><li>d</li></ul>e",
            "a\n\nb\nc\n\nd\n\ne",
        ),
        ("<dl><dt>a</dt><dd>b</dd></dl>", "a\nb"),
        (
            "<table><tr><th>a</th><td>b</td></tr><tr><td>c</td></tr></table>d",
            "a\tb\nc\n\nd",
        ),
        ("a<pre>  b\n    c</pre>d", "a\n\n  b\n    c\n\nd"),
        ("<p>a <q>b</q></p><hr/><P>c</P>", 'a "b"\n\nc'),
        ("a<p hidden=''>b</p>c<b style='color: red; Display :none'>d</b>e", "ace"),
        (
            "a<script>b</script><style>c</style><template>d</template><noscript>e</noscript>f",
            "af",
        ),
        ("a<img alt='b'/><svg><title>c</title><text>d</text></svg>", "ad"),
        ("a<?page 3?>b<!-- c -->d", "abd"),
        (
            (
                "<nav><h1>Contents</h1><ol><li>One</li></ol></nav><p"
                " hidden='until-found'>a</p>"
            ),
            "a",
        ),
    ],
)
def test_layout_is_lines_and_no_more(body, text):
    assert read_html(page(body).encode()).text == read_html(body.encode()).text == text


@pytest.mark.parametrize(
    ("body", "text", "left_out"),
    [
        (
            "<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>",
            "漢字",
            "ruby_readings 2",
        ),
        (
            "so<a epub:type='noteref' href='n#1'><sup>1</sup></a> on",
            "so on",
            "note_marks 1",
        ),
        (
            "so<sup><a href='#1' role='doc-noteref'>12</a></sup> on",
            "so on",
            "note_marks 1",
        ),
        ("so<sup>[<a href='n.xhtml#1'>a</a>]</sup>, on", "so, on", "note_marks 1"),
        ("so <a href='#n'><sup>*</sup></a> on", "so on", "note_marks 1"),
        (
            "so<a class='fnanchor' href='#F1'>[1]</a> on<a href='#x'>†</a>",
            "so on",
            "note_marks 2",
        ),
        (
            "so<a href='n.xhtml#_ftn3'>3</a> on<a href='#footnote-12'>12</a>",
            "so on",
            "note_marks 2",
        ),
        (
            "so<span class='_idFootnoteLink'><a href='#x'>1</a></span> on",
            "so on",
            "note_marks 1",
        ),
        (
            "so[<a href='#note1'>1</a>], on [<a href='#fn2'>2</a>]",
            "so, on",
            "note_marks 2",
        ),
        (
            "<p>note 1 <a role='doc-backlink' href='#r'>↩</a></p>",
            "note 1",
            "note_marks 1",
        ),
        ("<span class='pagebreak' title='12'>12</span>It", "It", "page_numbers 1"),
        (
            "con<span epub:type='pagebreak'>12</span>tinued",
            "continued",
            "page_numbers 1",
        ),
        (
            "of <span class='pagenum'><a id='p'>[Pg 12]</a></span>the",
            "of the",
            "page_numbers 1",
        ),
        ("of<span class='pageno'> xii </span>the", "of the", "page_numbers 1"),
        (
            "<p>of</p><div role='doc-pagebreak'>p. 12</div><p>the</p>",
            "of\n\nthe",
            "page_numbers 1",
        ),
        ("<section id='pg-header'><p>Legal</p></section>a", "a", "licences 1"),
        (
            "a<div class='x pg-boilerplate'>Legal<a href='#1'>[1]</a></div>",
            "a",
            "licences 1",
        ),
        (
            "a<section epub:type='backmatter colophon'>Set in type</section>",
            "a",
            "licences 1",
        ),
        # the same elements, but not those marks
        (
            "x<sup>2</sup> c<sup>*</sup> <a href='#e'>mc<sup>2</sup></a>",
            "x2 c* mc2",
            "",
        ),
        ("<a href='#c1'>1</a> <a href='2.xhtml'>[2]</a>", "1 [2]", ""),
        ("<a epub:type='noteref' href='#n'>Ishmael</a>", "Ishmael", ""),
        (
            "<div class='pagebreak'><h2 class='pagebreak'>XII</h2>a</div>",
            "XII\n\na",
            "",
        ),
        ("<div class='pagebreak'>12</div>a", "12\na", ""),
        (
            "<a epub:type='noteref' href='#n'>civil</a> <a href='#n1'>he</a>",
            "civil he",
            "",
        ),
        (
            "<p class='pagebreak'>Chapter 12</p><p class='colophon'>b</p>",
            "Chapter 12\n\nb",
            "",
        ),
        ("<aside epub:type='footnote'>A note.</aside>", "A note.", ""),
    ],
)
def test_marks_that_readers_do_not_read_are_left_out_and_counted(body, text, left_out):
    for content in (page(body), page(body).replace("epub:type", "type"), body):
        book = read_html(content.encode())
        found = {name: n for name, n in book.left_out.items() if name != "characters"}
        assert (book.text, " ".join(f"{name} {n}" for name, n in found.items())) == (
            text,
            left_out,
        )


def test_a_licence_and_what_stands_in_it_are_counted_in_characters():
    left_out = read_html(
        b"<p>a<div id=pg-footer>Legal <p>words</div>b<sup><a href=#1>12</a>"
    ).left_out
    assert left_out == {
        "licences": 1,
        "note_marks": 1,
        "characters": len("Legal\n\nwords") + 2,
    }


@pytest.mark.parametrize(
    "content",
    [
        b'<meta charset="iso-8859-1"><p>caf\xe9 \x80',
        b'<meta charset="us-ascii"><p>caf\xe9 \x80',
        b'<?xml version="1.0" encoding="windows-1252"?><p>caf\xe9 \x80</p>',
        '<?xml version="1.0" encoding="utf-16"?><p>café €</p>'.encode("utf-16"),
        "<p>café €".encode("utf-16"),
        b"\xef\xbb\xbf" + "<p>café €".encode(),
        b"<p>caf&eacute; &euro;",
    ],
)
def test_encodings_of_pages(content):
    assert read_html(content).text == "café €"
    assert read_html("<p>да".encode("cp1251"), "cp1251").text == "да"


@pytest.mark.parametrize("nested", ["<div>", "<ul><li>", "<b>"])
def test_elements_are_read_to_a_depth(nested):
    for made in (str, page):
        assert read_html(made(nested * 200 + "deep").encode()).text == "deep"
        with pytest.raises(
            BookError, match="has elements nested more than 512 deep; simplify it"
        ):
            read_html(made(nested * 600 + "deep").encode())


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (
            "_MOST_ELEMENTS",
            "has more than 9 elements, with earlier pages; split the book",
        ),
        ("MOST_CHARS", "holds more than 9 characters; split the book"),
    ],
)
def test_limits_are_of_all_pages_together(monkeypatch, limit, sentence):
    monkeypatch.setattr(books, limit, 9)
    pages = books.Pages()
    pages.add(b"<p>text<p><p>")
    with pytest.raises(BookError, match=f"^{sentence}$"):
        pages.add(b"<p>text<p><p>")
