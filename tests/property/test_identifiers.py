"""Identifiers: which are found, that ordinary text has none, and that masks leave none."""

from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import identifiers
from mia_batch.identifiers import KINDS, Identifier, find_identifiers, mask
from tests.conftest import REPOSITORY
from tests.texts import king_james_lines

# Assembled, so that no scanner of repositories takes them for keys that leaked
EXAMPLES = [
    ("email", "jane.roe@example.com"),
    ("email", "j_r+list@mail-2.example.co.uk"),
    ("email", "jürgen@müller.example"),
    ("key", "sk-" + "proj-aB3dE6gH9jK2mN5p"),
    ("key", "gh" + "p_" + "aB3d" * 9),
    ("key", "AKI" + "AIOSFODNN7EXAMPLE"),
    ("key", "xox" + "b-123456789012-abcDEF"),
    ("key", "eyJ" + "hbGciOiJIUzI1.eyJ" + "zdWIiOiIxMjM0.dozjgNryP4J3"),
    (
        "key",
        "-----BEGIN RSA PRIVATE KEY-----\n"
        + "MIIB0123456789+/" * 4
        + "\nabc=\n-----END RSA PRIVATE KEY-----",
    ),
    ("iban", "DE89370400440532013000"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB29 NWBK 6016 1331 9268 19"),
    ("card", "4111 1111 1111 1111"),
    ("card", "5500-0000-0000-0004"),
    ("card", "3782 822463 10005"),
    ("phone", "+49 30 1234567"),
    ("phone", "+1 (555) 234-5678"),
    ("phone", "0171/1234567"),
    ("phone", "(555) 234-5678"),
    ("phone", "555-234-5678"),
]
FRAMES = ["{}", "Reach me: {}.", "({}), said he", '{{"x": "{}"}}', "‹{}›", "<{}>\n"]
NONE = [
    "On 2026-11-30 at 10:45 she paid 1,234,567.89 for 12 of them.",
    "ISBN 978-0-306-40615-7, pages (1999) 112-134, version 10.0.19045.3803",
    "192.168.100.200 and 1990 1991 1992 1993 and +1.23456789 and 3.14159265358979",
    "4111 1111 1111 1112 and DE88 3704 0044 0532 0130 00",  # wrong check digits
    "password: correcthorsebattery; the key: understanding; token=aaaaaaaaaaaa1",
    "@mention user@host sk-learn task-oriented-programming",
]


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("kind", "identifier"), EXAMPLES)
def test_finds_each_kind(kind, identifier, frame):
    text = frame.format(identifier)
    start = text.index(identifier)
    expected = [Identifier(kind, start, start + len(identifier))]
    assert find_identifiers(text) == expected
    masked = f"‹{kind}, {len(identifier)} characters›"
    assert mask(text) == frame.format(masked)


def test_finds_the_kinds_that_are_asked_for():
    text = " ".join(identifier for _, identifier in EXAMPLES)
    assert {identifier.kind for identifier in find_identifiers(text)} == {*KINDS}
    emails = find_identifiers(text, ["email"])
    assert [text[email.start : email.end] for email in emails] == [
        identifier for kind, identifier in EXAMPLES if kind == "email"
    ]


def test_finds_the_value_of_an_assignment():
    assert mask("API_KEY='aB3dE6gH9jK2mN5p'") == "API_KEY='‹key, 16 characters›'"
    assert mask('{"password": "x7Q9-wz31-Lk08"}') == (
        '{"password": "‹key, 14 characters›"}'
    )


@pytest.mark.parametrize("text", NONE)
def test_ordinary_numbers_and_words_are_none(text):
    assert find_identifiers(text) == []
    assert mask(text) == text


def test_public_texts_have_none():
    bible = "".join(king_james_lines())
    assert len(bible) > 4_000_000
    assert find_identifiers(bible) == []
    code = "\n".join(
        path.read_text("utf-8")
        for path in sorted((REPOSITORY / "python").rglob("*.py"))
        if path.name != "identifiers.py"
    )
    assert len(find_identifiers(code)) <= 2


PIECES = st.lists(
    st.one_of(
        st.sampled_from([identifier for _, identifier in EXAMPLES]),
        st.text("@.-+ 0149aAzZ=:/(){}‹›\uf8ff\n", max_size=8),
        st.sampled_from(
            ["key=", "token: ", "‹email, 20 characters›", "eyJ", "sk-", "4111 ", "00"]
        ),
        st.text(max_size=4),
    ),
    max_size=8,
)


@given(PIECES)
def test_masks_leave_no_identifier_and_change_nothing_else(pieces):
    text = "".join(pieces)
    masked = mask(text)
    assert find_identifiers(masked) == []
    position = 0
    for identifier in find_identifiers(text):
        assert position <= identifier.start < identifier.end
        kept = text[position : identifier.start]
        length = identifier.end - identifier.start
        replacement = f"{kept}‹{identifier.kind}, {length} characters›"
        assert masked.startswith(replacement)
        masked = masked.removeprefix(replacement)
        position = identifier.end
    assert masked == text[position:]


def _bound_steps(nodes):
    """At most how many steps the items of a parsed pattern take from one place."""
    total = 1
    for opcode, argument in nodes:
        if opcode in (opcodes.MAX_REPEAT, opcodes.POSSESSIVE_REPEAT):
            _, highest, inner = argument
            assert highest < opcodes.MAXREPEAT, "a repetition has no end"
            steps = highest * _bound_steps(inner)
            if opcode is opcodes.MAX_REPEAT:  # which is given back step by step
                assert steps <= 600
            total += steps
        elif opcode is opcodes.SUBPATTERN:
            total += _bound_steps(argument[3])
        elif opcode is opcodes.BRANCH:
            total += sum(_bound_steps(branch) for branch in argument[1])
        elif opcode in (opcodes.ASSERT, opcodes.ASSERT_NOT):
            total += _bound_steps(argument[1])
    return total


@pytest.mark.parametrize("pattern", identifiers._PATTERNS)
def test_patterns_end_after_a_bounded_number_of_steps(pattern):
    tree = parser.parse(pattern.expression.pattern, pattern.expression.flags)
    assert _bound_steps(tree) < 2_000_000


@pytest.mark.parametrize(
    "piece",
    ["@", "1", "4 ", "a.", "a@a.", "eyJ", "token=", "+1 ", "DE89 ", "-----BEGIN ", "("],
)
def test_long_rows_of_beginnings_have_none(piece):
    text = piece * (300_000 // len(piece))
    assert find_identifiers(text) == []
    assert mask(f"{text} jane@example.com") == f"{text} ‹email, 16 characters›"
