from __future__ import annotations

import pytest

from mia_batch.targets.cut import windows


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
