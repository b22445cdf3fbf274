"""Foreign text and numbers as a page shows them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.report.html.tables import NO_VALUE, interval, number, plain, share, visible

CONTROLS = {"Cc", "Zl", "Zp"}


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_tag_and_no_hidden_character_survives(text):
    written = str(visible(text)).replace('<span class="code">', "").replace("</span>", "")
    assert "<" not in written
    assert '"' not in written
    hidden = {unicodedata.category(letter) for letter in written} & CONTROLS
    assert hidden == set() or set(written) & {"\n", "\t"}
    assert not set(written) & set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2069")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a<b>", "a&lt;b&gt;"),
        ("end\r\nnext", "end\nnext"),
        ("\u202e", '<span class="code">U+202E</span>'),
        ("x\u200cy", "x\u200cy"),  # Persian is written with this sign without width
        ("x" * 12, 'xxxxxxxxxx <span class="cut">2 more characters</span>'),
    ],
)
def test_text_is_escaped_shown_and_cut(text, seen):
    assert str(visible(text, 10)) == seen


def test_plain_text_has_brackets_around_codes():
    assert plain("a\x00b" + "c" * 9, 4) == "a[U+0000]bc [8 more characters]"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, NO_VALUE), (0.0, "0 %"), (1e-6, "< 0.1 %"), (0.99999, "> 99.9 %")]
)
def test_a_share_is_0_or_100_percent_only_where_it_is(value, shown):
    assert share(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, NO_VALUE), (1234, "1,234"), (0.25, "0.250"), (0.00012, "0.00012")]
)
def test_numbers_have_few_digits(value, shown):
    assert number(value) == shown


def test_an_interval_never_looks_without_width():
    assert interval(0.5, 0.4, 0.6) == "0.500 (0.400 to 0.600)"
    assert interval(0.5, 0.50001, 0.50002) == "0.50000 (0.50001 to 0.50002)"
    assert interval(0.5, None, None) == "0.500 (no interval)"
    assert interval(None, None, None) == NO_VALUE
