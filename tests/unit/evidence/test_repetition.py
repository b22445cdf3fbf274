"""Answers that repeat themselves, by a rule that is read slowly here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.evidence.repetition import LoopDetector, text_loop_end

TIMES, TOKENS, LONGEST = 4, 32, 128


def slow_end(tokens: list[int]) -> int | None:
    """The first place before which some tokens stand four times or more, 32 tokens in all."""
    for end in range(TOKENS, len(tokens) + 1):
        for length in range(1, LONGEST + 1):
            whole = max(TIMES * length, TOKENS)
            last = tokens[end - whole : end] if whole <= end else []
            if last and all(last[i] == last[i % length] for i in range(whole)):
                return end
    return None


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ([7] * 40, 32),
        ([1, 2, 3] * 12, 32),
        (list(range(20)) * 4, 80),
        (list(range(20)) * 3 + [99], None),  # a refrain that is sung three times
        ([5, *[7] * 31], None),
        ([5, *[7] * 32], 33),
        (list(range(200)), None),
        (list(range(129)) * 5, None),
    ],
)
def test_where_a_sequence_is_in_a_loop(tokens, end):
    assert LoopDetector().end(tokens) == slow_end(tokens) == end


@settings(deadline=None, max_examples=40)
@given(
    first=st.lists(st.integers(0, 2), max_size=12),
    pattern=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    times=st.integers(1, 40),
    n_first=st.integers(0, 60),
)
def test_a_loop_ends_where_the_slow_rule_says_however_it_is_cut_in_two(
    first, pattern, times, n_first
):
    tokens = first + pattern * times
    assert LoopDetector().end(tokens) == slow_end(tokens)
    detector = LoopDetector()
    end_in_first = detector.end(tokens[:n_first])
    end_in_second = None if end_in_first else detector.end(tokens[n_first:])
    assert (
        end_in_first or (end_in_second and len(tokens[:n_first]) + end_in_second)
    ) == slow_end(tokens)


def test_a_text_loops_once_it_has_four_times_as_many_characters():
    assert text_loop_end("\n---\n" * 40) == 128
    assert text_loop_end("Go on. " + "and again " * 40) == 6 + 128
    assert (
        text_loop_end("A hallelujah, " * 3 + "and so it ends, as all such songs do.")
        is None
    )
