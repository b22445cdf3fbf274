from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.corpus import read_documents
from mia_batch.corpus.books.boilerplate import find_cut
from tests.books import HEADER, LICENCE

BOOK = "CHAPTER I.\nThe Raven\n\nOnce upon a midnight dreary.\n\nCHAPTER II\n\nTHE BELLS!\n\nHear."
CONTENTS = """The Raven Book

by Edgar A. Poe

Contents

                              PAGE
 CHAPTER I.   The Raven ...... 1
 CHAPTER II.  The Bells       12
 Hear

"""
SMALL_PRINT = """**Welcome To The World of Free Plain Vanilla Electronic Texts**

*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*

"""


def cut(text):
    found = find_cut(text)
    return text[found.start : found.end]


@pytest.mark.parametrize(
    "before",
    [
        "",
        HEADER,
        HEADER.replace("\n", "\r\n"),
        SMALL_PRINT,
        HEADER + "[Transcriber's Note: spelling was kept.\n\nSo it is.]\n\n",
        HEADER + CONTENTS,
        CONTENTS,
        "***START OF THE PROJECT GUTENBERG EBOOK THE RAVEN***\n",
        "*** START OF THIS PROJECT GUTENBERG EBOOK THE RAVEN ***\n\n",
    ],
)
@pytest.mark.parametrize(
    "after",
    [
        "",
        LICENCE,
        LICENCE.replace("\n", "\r\n"),
        "\n\nTRANSCRIBER\u2019S NOTES\n\nSpelling was kept.\n\n" + LICENCE,
        "\n\n[Transcriber's note: spelling was kept.]\n",
        "\n\nEnd of the Project Gutenberg Etext of The Raven Book\n",
        "\n***END OF THE PROJECT GUTENBERG EBOOK THE RAVEN***\n\nLicence.",
    ],
)
def test_the_book_is_found(before, after):
    assert cut(before + BOOK + after) == BOOK


def test_the_header_says_what_the_book_is():
    found = find_cut(HEADER + BOOK)
    assert (found.title, found.author) == ("The Raven Book and Other Poems", "Edgar A. Poe")
    assert find_cut("Title: Mine\n" + BOOK)[2:] == (None, None)


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
    ],
)
def test_what_is_not_sure_is_left_to_the_byte(text):
    assert cut(text) == text


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
