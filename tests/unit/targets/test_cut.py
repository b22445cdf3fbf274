from __future__ import annotations

import pytest

from mia_batch import targets
from mia_batch.targets import TargetPlan, cut_documents


def cut(text, prefix=None, reference=None, **plan):
    """Cut a text among others."""
    columns = (["x y", text, None], [None, prefix, None], [None, reference, None])
    first, second, third = map(list, cut_documents(*columns, TargetPlan(**plan)))
    assert [split.target for split in first + third] == ["x y", None]
    return [split[:5] for split in second]


def test_a_whole_document_keeps_its_outer_whitespace():
    assert cut("\n a b  c ") == [("\n a b  c ", "\n a", " b  c ", 3, None)]


def test_windows_run_from_word_to_word():
    assert cut(" a b\tc  d e ", window_words=2) == [
        ("a b", "a", " b", 2, None),
        ("c  d", "c", "  d", 2, None),
    ]


def test_a_document_of_one_window_is_kept_whole():
    assert cut(" a b ", window_words=2) == [(" a b ", " a", " b ", 2, None)]
    assert cut(" a ", window_words=2) == [(" a ", None, None, 1, targets.TOO_SHORT)]
    assert cut(" ", window_words=2) == [(" ", None, None, 0, targets.EMPTY_TEXT)]
    assert cut(None, window_words=2) == [(None, None, None, None, targets.NULL_TEXT)]


def test_words_between_spaces():
    assert cut("a\nb c d\te", words="space") == [("a\nb c d\te", "a\nb", " c d\te", 3, None)]
    assert cut("a\nb c d\te", words="space", window_words=2) == [("a\nb c", "a\nb", " c", 2, None)]


def test_windows_without_spaces():
    assert cut("《书》我们、去。", words="unicode", window_words=2) == [
        ("书》我", "书", "》我", 2, None),
        ("们、去", "们", "、去", 2, None),
    ]


def test_samia_counts_by_any_whitespace():
    plan = {"preset": "samia", "words": "space"}
    assert cut("a\nb c  d", **plan) == [("a\nb c  d", "a b", "d", 4, None)]
    assert cut("a\nb c  d", window_words=2, text_length=2, **plan) == [
        ("a\nb", None, None, 2, targets.NO_REFERENCE),
        ("c  d", "c", "d", 2, None),
    ]


@pytest.mark.parametrize("text", [None, "another text"])
@pytest.mark.parametrize("preset", ["default", "samia"])
def test_the_users_halves_win(text, preset):
    assert cut(text, "a b", " c", preset=preset) == [("a b c", "a b", " c", 3, None)]
