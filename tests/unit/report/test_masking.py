"""What leaves the house: masks of identifiers, few words, or lengths and hashes; never numbers."""

from dataclasses import replace
from hashlib import sha256

import polars as pl
import pytest
from lxml import html

from mia_batch.inference.findings import finding_rows
from mia_batch.report.html import as_markdown, render
from mia_batch.report.masking import MASKED, Masking, mask_names
from tests.reports import contents

ADDRESS = "jane.roe@example.com"
LONG = "one two three four five six seven eight nine"


@pytest.mark.parametrize(
    ("masking", "text", "masked"),
    [
        (MASKED, f"To {ADDRESS}.", "To ‹email, 20 characters›."),
        (Masking(unmask=True), f"To {ADDRESS}.", f"To {ADDRESS}."),
        (Masking("none"), "a secret", "‹2 words, 8 characters›"),
        (Masking("few-words"), "one two", "‹2 words, 7 characters›"),
        (MASKED, "", ""),
    ],
)
def test_a_text_is_written_as_far_as_it_may_be_shown(masking, text, masked):
    assert masking.write(text) == masked


def test_long_texts_have_a_hash_and_few_words_hold_no_identifier():
    digest = sha256(LONG.encode()).hexdigest()[:16]
    description = f"9 words, {len(LONG)} characters, SHA-256 {digest}"
    assert Masking("none").write(LONG) == f"‹{description}›"
    assert Masking("few-words").write(LONG) == f"one two three … ‹{description}›"
    assert ADDRESS not in Masking("few-words").write(f"{ADDRESS} {LONG}")


def test_an_identifier_across_two_pieces_is_masked_once():
    pieces = [("Write to jane.roe", False), ("@example.com or ", True), ("call", False)]
    assert MASKED.write_pieces(pieces) == [
        ("Write to ‹email, 20 characters›", False),
        (" or ", True),
        ("call", False),
    ]
    assert Masking(unmask=True).write_pieces(pieces) == pieces
    assert len(Masking("none").write_pieces(pieces)) == 1
    assert Masking("none").write_pieces([]) == []


def test_masked_names_that_would_be_alike_are_numbered_in_their_order():
    names = ["b.roe@example.com", "dune", "a.roe@example.com", "jane@example.com"]
    assert mask_names([*names, *names]) == {
        "a.roe@example.com": "‹email, 17 characters› (1)",
        "b.roe@example.com": "‹email, 17 characters› (2)",
        "jane@example.com": "‹email, 16 characters›",
    }


def test_passages_in_findings_are_written_and_other_reasons_stay():
    rows = [{"statistic": "longest", "subject": "a", "value": 9.0, "reason": LONG}]
    power = finding_rows("power", [{"statistic": "q", "reason": LONG}])
    findings = pl.concat([finding_rows("verbatim", rows), power])
    reasons = Masking("none").hide_passages(findings)["reason"].to_list()
    assert reasons == [Masking("none").write(LONG), LONG]


def foreign(text):
    """Contents in which targets and samples alone have a foreign text."""
    foreign_contents, plain = contents(text=text), contents()
    texts = {name: foreign_contents.tables[name] for name in ("targets", "samples")}
    return replace(plain, tables={**plain.tables, **texts})


@pytest.mark.parametrize("texts", ["none", "few-words"])
def test_a_page_without_texts_has_the_same_numbers_and_no_four_words_in_a_row(texts):
    added = "lorem ipsum dolor sit amet"
    foreign_contents = foreign(f" {added}")
    whole, page = (
        render(foreign_contents),
        render(replace(foreign_contents, masking=Masking(texts))),
    )
    cells = "//td[@class='n']/text()"
    assert html.fromstring(page).xpath(cells) == html.fromstring(whole).xpath(cells)
    words = f"It was the best of times {added}, it was the worst of times".split()
    runs = [
        " ".join(words[position : position + 4]) for position in range(len(words) - 3)
    ]
    page_text = " ".join(html.fromstring(page).text_content().split())
    assert any(run in whole for run in runs)
    assert not [run for run in runs if run in page_text]
    assert added not in as_markdown(replace(foreign_contents, masking=Masking(texts)))


def test_addresses_in_texts_are_masked_on_the_page_unless_that_is_switched_off():
    foreign_contents = foreign(f" by {ADDRESS} and")
    assert ADDRESS not in render(foreign_contents)
    assert "‹email, 20 characters›" in render(foreign_contents)
    assert ADDRESS in render(replace(foreign_contents, masking=Masking(unmask=True)))
