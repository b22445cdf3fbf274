from __future__ import annotations

import pytest

from mia_batch.targets import character_windows, find_words, windows


@pytest.mark.parametrize(
    ("n_words", "window_words", "stride", "expected"),
    [
        (10, None, None, [(0, 10)]),
        (0, None, None, [(0, 0)]),
        (0, 4, None, [(0, 0)]),
        (3, 4, 1, [(0, 3)]),
        (4, 4, 1, [(0, 4)]),
        (5, 4, None, [(0, 4)]),
        (10, 4, None, [(0, 4), (4, 8)]),
        (10, 4, 3, [(0, 4), (3, 7), (6, 10)]),
        (10, 4, 6, [(0, 4), (6, 10)]),
        (10, 1, 5, [(0, 1), (5, 6)]),
    ],
)
def test_windows_by_hand(n_words, window_words, stride, expected):
    found = windows(n_words, window_words, stride)
    assert [(window.start, window.stop) for window in found] == expected


@pytest.mark.parametrize(
    ("text", "size", "stride", "expected"),
    [
        (" ", 4, None, [""]),
        (" a b ", 3, None, ["a b"]),
        ("aa bb cc dd", 5, None, ["aa bb", "cc dd"]),
        ("aa bb cc dd", 6, None, ["aa bb"]),  # after it five characters are left
        ("aa bb cc dd", 5, 3, ["aa bb", "bb cc", "cc dd"]),
        ("aa bb cc dd", 5, 1, ["aa bb", "bb", "bb cc", "cc", "cc dd"]),
        ("aaaaaa bb cc d", 3, None, ["aaaaaa", "bb", "cc"]),
        ("aaaaaa bb cc", 2, 5, ["aaaaaa", "bb", "cc"]),
        ("aa bb", 1, None, ["aa", "bb"]),
    ],
)
def test_windows_of_characters_by_hand(text, size, stride, expected):
    words = next(find_words([text], "whitespace"))
    found = list(character_windows(words, size, stride))
    cut = [text[words.starts[w.start] : words.ends[w.stop - 1]] if w else "" for w in found]
    assert cut == expected
