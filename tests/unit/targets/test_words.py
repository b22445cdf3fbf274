from __future__ import annotations

import sys

import pytest

from mia_batch.targets import find_words


def words(texts, rule="whitespace"):
    spans = zip(texts, find_words(texts, rule), strict=True)
    return [[text[start:end] for start, end in zip(*found, strict=True)] for text, found in spans]


def test_words_by_hand():
    texts = ["", " ", "one", " two  words\n", "", "\u3000a\tb c\u2003"]
    assert words(texts) == [[], [], ["one"], ["two", "words"], [], ["a", "b", "c"]]
    assert words(texts, "space") == [
        [],
        [],
        ["one"],
        ["two", "words\n"],
        [],
        ["\u3000a\tb", "c\u2003"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我们去了。然后 ok", ["我", "们", "去", "了", "然", "后", "ok"]),
        ("東京タワーへ", ["東", "京", "タワー", "へ"]),
        ("ภาษาไทย", ["ภ", "า", "ษ", "า", "ไ", "ท", "ย"]),
        ("“can't” e\u0301te\0🙂3.14", ["can't", "e\u0301te", "3.14"]),
    ],
)
def test_words_of_text_without_spaces(text, expected):
    assert words(["🙂", text, ""], "unicode") == [[], expected, []]


def test_rouge_words_stand_as_they_are_written():
    assert words(["The Émile-5\u212a a\u0130b"], "rouge") == [
        ["The", "mile", "5\u212a", "a\u0130", "b"]
    ]


def test_no_texts():
    assert words([]) == []


def test_every_character_is_whitespace_where_python_says_so():
    codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]  # all but surrogates
    text = "a".join(map(chr, codes))
    assert words([text]) == [text.split()]


def test_part_begins_with_its_first_word():
    (found,) = find_words(["  a bc d"], "whitespace")
    part = found.part(range(1, 3))
    assert (part.starts.tolist(), part.ends.tolist()) == ([0, 3], [2, 4])
