from __future__ import annotations

import pytest

from mia_batch.corpus import books
from mia_batch.corpus.books import BookError, read_html
from tests.books import page

PAGE = """<html><head><title> A
 Page </title><meta name="Author" content="Ann  Author"><style>p {}</style></head>
<body><h1>One</h1><p>café<p>two<script>no()</script></body></html>"""


def test_a_page_is_read_as_browsers_show_it():
    assert read_html(PAGE.encode())[:3] == ("One\n\ncafé\n\ntwo", "A Page", "Ann Author")


def test_a_page_that_says_nothing_of_itself():
    assert read_html(b"one<title> </title>")[:4] == ("one", None, None, None)
    assert read_html(b" \n").text == read_html(b"<!-- only -->").text == read_html(b"").text == ""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "<p> It  was<br/>a&nbsp;\t &#x3000;dark </p>\n<p>night.<br/></p>",
            "It was\na dark\n\nnight.",
        ),
        ("<div>a</div><div>b<p>c</p></div>d<br/><br/>e", "a\nb\n\nc\n\nd\n\ne"),
        ("<i>It</i> <b>was</b><span> a</span> <span class='cap'>D</span>ark", "It was a Dark"),
        ("<ul><li>a<ol><li>b</li><li>c</li></ol></li><li>d</li></ul>e", "a\n\nb\nc\n\nd\n\ne"),
        ("<dl><dt>a</dt><dd>b</dd></dl>", "a\nb"),
        ("<table><tr><th>a</th><td>b</td></tr><tr><td>c</td></tr></table>d", "a\tb\nc\n\nd"),
        ("a<pre>  b\n    c</pre>d", "a\n\n  b\n    c\n\nd"),
        ("<p>a <q>b</q></p><hr/><P>c</P>", 'a "b"\n\nc'),
        ("a<p hidden=''>b</p>c<b style='color: red; Display :none'>d</b>e", "ace"),
        ("a<script>b</script><style>c</style><template>d</template><noscript>e</noscript>f", "af"),
        ("a<img alt='b'/><svg><title>c</title><text>d</text></svg>", "ad"),
        ("a<?page 3?>b<!-- c -->d", "abd"),
        ("<nav><h1>Contents</h1><ol><li>One</li></ol></nav><p hidden='until-found'>a</p>", "a"),
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
        ("so<a epub:type='noteref' href='n#1'><sup>1</sup></a> on", "so on", "note_marks 1"),
        ("so<sup><a href='#1' role='doc-noteref'>12</a></sup> on", "so on", "note_marks 1"),
        ("so<sup>[<a href='n.xhtml#1'>a</a>]</sup>, on", "so, on", "note_marks 1"),
        ("so <a href='#n'><sup>*</sup></a> on", "so on", "note_marks 1"),
        ("so<a class='fnanchor' href='#F1'>[1]</a> on<a href='#x'>†</a>", "so on", "note_marks 2"),
        (
            "so<a href='n.xhtml#_ftn3'>3</a> on<a href='#footnote-12'>12</a>",
            "so on",
            "note_marks 2",
        ),
        ("so<span class='_idFootnoteLink'><a href='#x'>1</a></span> on", "so on", "note_marks 1"),
        ("so[<a href='#note1'>1</a>], on [<a href='#fn2'>2</a>]", "so, on", "note_marks 2"),
        ("<p>note 1 <a role='doc-backlink' href='#r'>↩</a></p>", "note 1", "note_marks 1"),
        ("<span class='pagebreak' title='12'>12</span>It", "It", "page_numbers 1"),
        ("con<span epub:type='pagebreak'>12</span>tinued", "continued", "page_numbers 1"),
        ("of <span class='pagenum'><a id='p'>[Pg 12]</a></span>the", "of the", "page_numbers 1"),
        ("of<span class='pageno'> xii </span>the", "of the", "page_numbers 1"),
        ("<p>of</p><div role='doc-pagebreak'>p. 12</div><p>the</p>", "of\n\nthe", "page_numbers 1"),
        ("<section id='pg-header'><p>Legal</p></section>a", "a", "licences 1"),
        ("a<div class='x pg-boilerplate'>Legal<a href='#1'>[1]</a></div>", "a", "licences 1"),
        ("a<section epub:type='backmatter colophon'>Set in type</section>", "a", "licences 1"),
        # the same elements, but not those marks
        ("x<sup>2</sup> c<sup>*</sup> <a href='#e'>mc<sup>2</sup></a>", "x2 c* mc2", ""),
        ("<a href='#c1'>1</a> <a href='2.xhtml'>[2]</a>", "1 [2]", ""),
        ("<a epub:type='noteref' href='#n'>Ishmael</a>", "Ishmael", ""),
        ("<div class='pagebreak'><h2 class='pagebreak'>XII</h2>a</div>", "XII\n\na", ""),
        ("<div class='pagebreak'>12</div>a", "12\na", ""),
        ("<a epub:type='noteref' href='#n'>civil</a> <a href='#n1'>he</a>", "civil he", ""),
        ("<p class='pagebreak'>Chapter 12</p><p class='colophon'>b</p>", "Chapter 12\n\nb", ""),
        ("<aside epub:type='footnote'>A note.</aside>", "A note.", ""),
    ],
)
def test_marks_that_readers_do_not_read_are_left_out_and_counted(body, text, left_out):
    for content in (page(body), page(body).replace("epub:type", "type"), body):
        book = read_html(content.encode())
        found = {name: n for name, n in book.left_out.items() if name != "characters"}
        assert (book.text, " ".join(f"{name} {n}" for name, n in found.items())) == (text, left_out)


def test_a_licence_and_what_stands_in_it_are_counted_in_characters():
    left_out = read_html(
        b"<p>a<div id=pg-footer>Legal <p>words</div>b<sup><a href=#1>12</a>"
    ).left_out
    assert left_out == {"licences": 1, "note_marks": 1, "characters": len("Legal\n\nwords") + 2}


@pytest.mark.parametrize("void", ["<title/>", '<script src="x"/>', "<style/>"])
def test_an_empty_element_of_xhtml_swallows_nothing(void):
    assert read_html(page("<p>t\u00eate</p><div/>text", head=void).encode()).text == "tête\n\ntext"


def test_a_page_that_is_not_xml_is_read_once_and_as_html():
    book = read_html(page("<p>a<sup><a href='#1'>1</a></sup>d&unknown;e<br>").encode())
    assert (book.text, book.left_out["note_marks"]) == ("ad&unknown;e", 1)


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
def test_encodings(content):
    assert read_html(content).text == "café €"


def test_an_encoding_may_be_given_for_pages_that_declare_none():
    assert read_html("<p>да".encode("cp1251"), "cp1251").text == "да"


@pytest.mark.parametrize(
    "name", ["none", "unicode_escape", "idna", "utf-7", "rot13", "hex", "zlib"]
)
def test_what_is_no_encoding_of_text_is_refused(name):
    for declared in (
        f'<meta charset="{name}"><p>a',
        f'<?xml version="1.0" encoding="{name}"?><p/>',
    ):
        with pytest.raises(BookError, match=f"declares the encoding '{name}', which is not one of"):
            read_html(declared.encode())


def test_a_page_that_is_not_in_its_encoding_is_refused_with_the_line():
    with pytest.raises(
        BookError, match=r"^byte 0x9d is not valid shift_jis; save the file"
    ) as error:
        read_html(b'<meta charset="shift_jis">\n\n<p>a\x9d')
    assert error.value.line == 3


@pytest.mark.parametrize("nested", ["<div>", "<ul><li>", "<b>"])
def test_elements_are_read_to_a_depth(nested):
    for made in (str, page):
        assert read_html(made(nested * 200 + "deep").encode()).text == "deep"
        with pytest.raises(BookError, match="has elements nested more than 512 deep; simplify it"):
            read_html(made(nested * 600 + "deep").encode())


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("_MOST_ELEMENTS", "has more than 9 elements, with earlier pages; split the book"),
        ("MOST_CHARS", "holds more than 9 characters; split the book"),
    ],
)
def test_limits_are_of_all_pages_together(monkeypatch, limit, sentence):
    monkeypatch.setattr(books, limit, 9)
    pages = books.Pages()
    pages.add(b"<p>text<p><p>")
    with pytest.raises(BookError, match=f"^{sentence}$"):
        pages.add(b"<p>text<p><p>")
