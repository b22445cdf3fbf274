from __future__ import annotations

import pytest

from mia_batch import targets
from mia_batch.targets import Split, find_words, split_as_given, split_at_word, split_samia


def spans(text):
    (found,) = find_words([text], "whitespace")
    return found


@pytest.mark.parametrize(
    ("text", "ratio", "prefix", "reference"),
    [
        (" one two\n\tthree  four ", 0.5, " one two", "\n\tthree  four "),
        ("one two three", 0.5, "one", " two three"),
        ("a b c d e f g", 0.75, "a b c d e", " f g"),
        ("a b c d e f g", 0.25, "a", " b c d e f g"),
    ],
)
def test_the_whitespace_between_belongs_to_the_reference(text, ratio, prefix, reference):
    n_words = len(text.split())
    expected = Split(text, prefix, reference, n_words, None)
    assert split_at_word(text, spans(text), ratio) == expected


@pytest.mark.parametrize(
    ("text", "rule", "prefix", "reference"),
    [
        ("「我们、去了」。", "unicode", "「我们", "、去了」。"),
        ("東京タワーへ行く", "unicode", "東京タワー", "へ行く"),
        ("ภาษา ไทย", "unicode", "ภาษ", "า ไทย"),
        ("e\u0301te\u0301! va\0🙂", "unicode", "e\u0301te\u0301", "! va\0🙂"),
        ("Non-stop!", "rouge", "Non", "-stop!"),
    ],
)
def test_what_is_no_word_stays_where_it_stands(text, rule, prefix, reference):
    (words,) = find_words([text], rule)
    assert split_at_word(text, words, 0.5) == Split(
        text, prefix, reference, len(words.starts), None
    )


@pytest.mark.parametrize(
    ("text", "ratio", "n_words", "reason"),
    [
        ("", 0.5, 0, targets.EMPTY_TEXT),
        (" \n", 0.5, 0, targets.EMPTY_TEXT),
        ("one", 0.5, 1, targets.TOO_SHORT),
        ("one two", 0.4, 2, targets.TOO_SHORT),
    ],
)
def test_what_cannot_be_split_has_a_reason(text, ratio, n_words, reason):
    expected = Split(text, None, None, n_words, reason)
    assert split_at_word(text, spans(text), ratio) == expected
    assert split_samia(text, n_words, ratio, None) == expected


def test_samia_by_hand():
    text = "a  b\nc d\te f g "  # 7 words by split(), "a" "b\nc" "d\te" "f" "g" by spaces
    assert split_samia(text, 7, 0.5, None) == Split(text, "a b c", "g", 7, None)
    assert split_samia(text, 7, 0.25, 4) == Split(text, "a", "d\te f g", 7, None)
    assert split_samia(text, 7, 0.5, 10) == Split(text, None, None, 7, targets.NO_REFERENCE)


@pytest.mark.parametrize(("n_words", "n_cut"), [(5, 2), (7, 4), (9, 4)])
def test_samia_rounds_halves_to_even(n_words, n_cut):
    words = [str(number) for number in range(n_words)]
    found = split_samia(" ".join(words), n_words, 0.5, None)
    assert found.reference == " ".join(words[n_cut:])


def test_the_users_halves_are_taken_as_they_are():
    found = split_as_given(" a b", "c d ", spans(" a bc d "))
    assert found == Split(" a bc d ", " a b", "c d ", 3, None)


@pytest.mark.parametrize(
    ("prefix", "reference"), [("", "a"), (" ", "a b"), ("a", ""), ("a b", "\n")]
)
def test_a_half_without_words_has_a_reason(prefix, reference):
    text = prefix + reference
    expected = Split(text, None, None, len(text.split()), targets.WORDLESS_PART)
    assert split_as_given(prefix, reference, spans(text)) == expected


def test_two_halves_without_words_have_another():
    assert split_as_given("", " ", spans(" ")).reason == targets.EMPTY_TEXT
