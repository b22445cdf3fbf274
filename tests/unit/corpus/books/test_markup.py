from __future__ import annotations

import pytest

from mia_batch.corpus.books.book import Book, BookError
from mia_batch.corpus.books.markup import read_html
from tests.books import page

PAGE = """<html><head><title> A
 Page </title><meta name="Author" content="Ann  Author"><style>p {}</style></head>
<body><h1>One</h1><p>café<p>two<script>no()</script></body></html>"""


def test_a_page_is_read_as_browsers_show_it():
    assert read_html(PAGE.encode()) == Book("One\n\ncafé\n\ntwo", "A Page", "Ann Author")


def test_a_page_that_says_nothing_of_itself():
    assert read_html(b"one<title> </title>") == Book("one")
    assert read_html(b" \n") == read_html(b"<!-- only -->") == Book("")


@pytest.mark.parametrize("void", ["<title/>", '<script src="x"/>', "<style/>"])
def test_an_empty_element_of_xhtml_swallows_nothing(void):
    assert read_html(page("<p>t\u00eate</p><div/>text", head=void).encode()).text == "tête\n\ntext"


def test_text_behind_what_is_hidden_is_kept():
    body = "a<?page 3?>b<!-- c -->d&unknown;e"
    assert read_html(page(body).encode()).text == "abd&unknown;e"
    assert read_html(page(body.replace("&unknown;", "")).encode()).text == "abde"


@pytest.mark.parametrize(
    "content",
    [
        b'<meta charset="iso-8859-1"><p>caf\xe9 \x80',
        b'<?xml version="1.0" encoding="windows-1252"?><p>caf\xe9 \x80</p>',
        "<p>café €".encode("utf-16"),
        b"\xef\xbb\xbf" + "<p>café €".encode(),
        b"<p>caf&eacute; &euro;",
    ],
)
def test_encodings(content):
    assert read_html(content).text == "café €"


@pytest.mark.parametrize("content", [b"<p>\xe9", b'<meta charset="none"><p>a'])
def test_another_encoding_is_refused(content):
    with pytest.raises(BookError, match=r"is not in the encoding that it declares, .*; save it"):
        read_html(content)


def test_text_that_would_be_lost_in_the_depth_is_refused():
    with pytest.raises(BookError, match="has elements nested more than 255 deep; simplify"):
        read_html(b"<div>" * 300 + b"deep")
    with pytest.raises(BookError, match="has elements nested more than 255 deep; simplify"):
        read_html(page("<div>" * 300 + "deep" + "</div>" * 300).encode())
