from __future__ import annotations

import sys

from mia_batch.targets.words import word_spans


def words(texts, rule="whitespace"):
    spans = zip(texts, word_spans(texts, rule), strict=True)
    return [
        [
            text[start - found.begin : end - found.begin]
            for start, end in zip(*found[1:], strict=True)
        ]
        for text, found in spans
    ]


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


def test_no_texts():
    assert words([]) == []


def test_every_character_is_whitespace_where_python_says_so():
    codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]  # all but surrogates
    text = "a".join(map(chr, codes))
    assert words([text]) == [text.split()]


def test_part_begins_with_its_first_word():
    (found,) = word_spans(["  a bc d"], "whitespace")
    part = found.part(range(1, 3))
    assert (part.begin, part.starts.tolist(), part.ends.tolist()) == (4, [4, 7], [6, 8])
