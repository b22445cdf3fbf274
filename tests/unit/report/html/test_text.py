"""Foreign text and numbers as a page, Markdown and CSV show them."""

import io
import unicodedata
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.report.html import as_csv, as_markdown
from mia_batch.report.html.columns import (
    NO_VALUE,
    interval,
    number,
    plain,
    share,
    visible,
)
from tests.reports import HOSTILE, contents

CONTROLS = {"Cc", "Zl", "Zp"}


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_tag_and_no_hidden_character_survives(text):
    escaped = (
        str(visible(text)).replace('<span class="code">', "").replace("</span>", "")
    )
    assert "<" not in escaped
    assert '"' not in escaped
    hidden = {unicodedata.category(letter) for letter in escaped} & CONTROLS
    assert hidden == set() or set(escaped) & {"\n", "\t"}
    assert not set(escaped) & set(
        "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2069"
    )


@pytest.mark.parametrize(
    ("text", "text_seen"),
    [
        ("a<b>", "a&lt;b&gt;"),
        ("end\r\nnext", "end\nnext"),
        ("\u202e", '<span class="code">U+202E</span>'),
        ("x\u200cy", "x\u200cy"),  # Persian is written with this sign without width
        ("x" * 12, 'xxxxxxxxxx <span class="cut">2 more characters</span>'),
    ],
)
def test_text_is_escaped_shown_and_cut(text, text_seen):
    assert str(visible(text, 10)) == text_seen


def test_plain_text_has_brackets_around_codes():
    assert plain("a\x00b" + "c" * 9, 4) == "a[U+0000]bc [8 more characters]"


@pytest.mark.parametrize(
    ("write", "value", "number_shown"),
    [
        (share, None, NO_VALUE),  # 0 or 100 % only where it is
        (share, 0.0, "0 %"),
        (share, 1e-6, "< 0.1 %"),
        (share, 0.99999, "> 99.9 %"),
        (number, None, NO_VALUE),
        (number, 1234, "1,234"),
        (number, 0.25, "0.250"),
        (number, 0.00012, "0.00012"),
    ],
)
def test_numbers_have_few_digits(write, value, number_shown):
    assert write(value) == number_shown


def test_an_interval_never_looks_without_width():
    assert interval(0.5, 0.4, 0.6) == "0.500 (0.400 to 0.600)"
    assert interval(0.5, 0.50001, 0.50002) == "0.50000 (0.50001 to 0.50002)"
    assert interval(0.5, None, None) == "0.500 (no interval)"
    assert interval(None, None, None) == NO_VALUE


def test_markdown_has_a_row_for_each_document_and_obeys_no_text():
    lines = as_markdown(contents()).splitlines()
    assert lines[0] == "**Of 3 groups, 1 stands out.**"
    assert lines[2] == "* 1 of 3 groups are reported at q = 0.05."
    assert lines[4] == "## All numbers of each document"
    assert lines[8].startswith("| A title dune | comes out word for word | 31 |")
    assert len(lines) == 11
    markdown = as_markdown(
        contents(keys=("![](http://a)", "a|b", "c\nd"), text=HOSTILE)
    )
    assert "<script" not in markdown.replace(r"\<", "")
    assert r"\!\[\](http\://a)" in markdown
    assert r"a\|b" in markdown
    assert "c d" in markdown


def pasted(page_contents):
    return pl.read_csv(io.StringIO(as_csv(page_contents)))


def test_csv_is_the_rollup_as_it_is_or_the_scores_and_a_spreadsheet_calculates_nothing():
    csv_table = pasted(contents())
    assert csv_table["key"].to_list() == ["dune", "emma", "ulysses"]
    assert csv_table["longest_words"].to_list() == [31, 4, None]
    assert csv_table["mean_low"].to_list() == [0.4] * 3
    csv_table = pasted(contents(keys=("=1+1", "-x", "plain")))
    assert csv_table["key"].to_list() == ["'=1+1", "'-x", "plain"]
    page_contents = contents()
    tables = {
        name: table for name, table in page_contents.tables.items() if name != "rollup"
    }
    assert (
        pasted(replace(page_contents, tables=tables))["loss_v1"].to_list() == [-1.0] * 6
    )
