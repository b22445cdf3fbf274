from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.corpus import read_documents
from mia_batch.corpus.books import find_cut, tidy
from tests.books import FOOTERS, HEADER, HEADERS, LICENCE, SMALL_PRINT

BOOK = "CHAPTER I.\nThe Raven\n\nOnce upon a midnight dreary.\n\nCHAPTER II\n\nTHE BELLS!\n\nHear."
CONTENTS = """The Raven Book

by Edgar A. Poe

Contents

                              PAGE
 CHAPTER I.   The Raven ...... 1
 CHAPTER II.  The Bells       12
 Hear

"""


def cut(text):
    found = find_cut(text)
    return text[found.start : found.end]


FORMS = [
    *((header, "the") for header in HEADERS),
    *(("the", footer) for footer in FOOTERS),
    *((HEADER, ""), (f"{HEADER}{CONTENTS}", "the"), (CONTENTS, "the"), ("the", LICENCE)),
    (f"{HEADER}[Transcriber's Note: spelling was kept.\n\nSo it is.]\n\n", "the"),
    ("", "\n\n[Transcriber's note: spelling was kept.]\n"),
    ("", "\n***END OF THE PROJECT GUTENBERG EBOOK THE RAVEN***\n\nLicence."),
]


@pytest.mark.parametrize(
    ("line_end", "forms"),
    [("\n", [*product(HEADERS, FOOTERS), *FORMS]), ("\r\n", FORMS), ("\r", FORMS)],
)
def test_the_book_is_found_in_every_form(line_end, forms):
    for header, footer in forms:
        text = HEADERS.get(header, header) + BOOK + FOOTERS.get(footer, footer)
        found = cut(text.replace("\n", line_end)).replace(line_end, "\n")
        assert (found, header, footer) == (BOOK, header, footer)


def test_real_books_are_found_in_every_form(shared_data):
    paths = sorted((shared_data / "books").glob("*.txt"))
    for place, path in enumerate(paths):
        whole = path.read_text("utf-8").strip("\n")
        book = whole[:20_000] + whole[-20_000:]
        expected = cut(book).rstrip()
        for header, footer in FORMS[place % 6 :: 6]:  # each form around two books
            found = cut(HEADERS.get(header, header) + book + FOOTERS.get(footer, footer))
            kept = found == expected or header.endswith(CONTENTS)
            assert (kept, path.name, header, footer) == (True, path.name, header, footer)


def test_the_header_says_what_the_book_is():
    found = find_cut(HEADER + BOOK)
    assert (found.title, found.author) == ("The Raven Book and Other Poems", "Edgar A. Poe")
    assert find_cut("Title: Mine\n" + BOOK)[2:] == (None, None)


ABOUT = "Project Gutenberg is a library. Its License, the Project Gutenberg License, is long.\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n" + BOOK + " \n",
        "He said: *** START OF THE PROJECT GUTENBERG EBOOK ***, and laughed.\n",
        "Contents\n\nCHAPTER I.\nCHAPTER II.\nCHAPTER III.\n\nOther words.\n",
        "Contents\n\nOne\nTwo\nprose that does not come again\n\nOne\n\na\n\nTwo\n\nb\n",
        "prose " * 200 + "\nContents\n\nOne\nTwo\nThree\n\nOne\n\nTwo\n\nThree\n",
        "the transcriber's note was lost\n" + "[Transcriber's note" + "x " * 9000 + "]",
        "\n*** END OF THE PROJECT GUTENBERG EBOOK\n" + "x " * 40_000,
        "Contents\n" + " " * 100_000 + "x\n" + "." * 100_000,
        # of the library, or with one word of it
        "Preface\n\nThe text is Project Gutenberg's, with thanks.\n\n" + BOOK,
        BOOK + "\n\nI found it in Project Gutenberg.\n",
        "PROJECT GUTENBERG (1971-2008)\n\nby Marie Lebert\n\n" + ABOUT * 40,
        ABOUT * 40 + "End of Project Gutenberg's first decade\n\n" + "It went on. " * 500,
        ABOUT + "The end of Project Gutenberg, he feared,\nwas near.\n\n" + "It went on. " * 500,
        "Project Gutenberg eBooks of old\n\nby X\n\nProject Gutenberg eBooks are free.\n",
        BOOK + "\n\nSettings\n\nThis file should be named config.ini or the like.\n" + BOOK * 9,
        "Produced by machines, the goods of our time are cheap.\n\n" + BOOK,
        "Title: How to write\n\nAuthor: me\n\n" + BOOK,
    ],
)
def test_what_is_not_sure_is_left_to_the_byte(text):
    assert cut(text) == text


def test_what_follows_a_header_is_cut_with_it_only_there():
    assert cut("Produced by Jane\n\n" + BOOK).startswith("Produced by")
    text = HEADERS["the"] + "Produced by Jane\n\n" * 3 + BOOK + "\n\nProduced by Jane\n"
    assert cut(text) == BOOK + "\n\nProduced by Jane\n"


def test_a_book_in_one_line_is_no_paragraph_of_its_header():
    for header in ("the", "no line", "credits"):
        text = " ".join(f"{HEADERS[header]}{BOOK * 20}".split())
        assert " ".join((BOOK * 20).split()) in cut(text)


def test_two_books_in_a_file_stay_two():
    text = HEADERS["the"] + BOOK + FOOTERS["the"] + HEADERS["the"] + "word " * 2000 + FOOTERS["the"]
    assert cut(text).startswith(BOOK)
    assert cut(text).endswith("word " * 1999 + "word")


@pytest.mark.parametrize(
    ("text", "tidied", "kind", "n"),
    [
        ("hy\u00adphen ze\u200bro wo\u2060r\ufeffd", "hyphen zero word", "soft_hyphens", 4),
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
        ("on\r\n\r\n{9}\r\n\r\nthe {10} {11}\n{12} {13}", "on\r\n\r\nthe\n", "page_numbers", 5),
        (r"\frac{1}{2} {3} {4}{7} {1}", None, "page_numbers", 0),
        (
            "so[1] on [2]\n\n[Footnote 1: a]\n[Footnote 2: b]",
            "so on\n\n[Footnote 1: a]\n[Footnote 2: b]",
            "note_marks",
            2,
        ),
        ("[A]nd so[A] on[B]\n[Footnote A: a]", "[A]nd so on[B]\n[Footnote A: a]", "note_marks", 1),
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
    *(HEADER, LICENCE, CONTENTS, BOOK, SMALL_PRINT, "Contents\n", "One\n", "\n", " ", "\r\n"),
    *("[Transcriber's note: x]", "Transcriber's Notes\n", "Title: x\n", "Produced by x\n"),
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=12).map("".join))
def test_a_cut_text_is_part_of_the_text(text):
    found = find_cut(text)
    assert 0 <= found.start <= found.end <= len(text)
    marks = ("gutenberg", "small print", "transcriber", "contents")
    if not any(mark in text.casefold() for mark in marks):
        assert cut(text) == text


def test_real_books_lose_their_contents_and_nothing_else(shared_data):
    documents = read_documents(shared_data / "books").documents
    found = {row["document_id"]: row for row in documents.collect().iter_rows(named=True)}
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
