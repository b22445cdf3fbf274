from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.engines.batching import cut_at_end, end_token_ids
from mia_batch.evidence.request import Continuation


def test_ends_come_from_every_file_of_a_checkpoint():
    assert end_token_ids(2, [2, 7], None) == {2, 7}
    assert end_token_ids(None, None, None) == set()
    assert end_token_ids(0) == {0}


def test_the_end_is_kept_and_what_follows_is_not():
    found = cut_at_end([5, 6, 2, 7], frozenset({2}), 10)
    assert found == Continuation(token_ids=[5, 6, 2], finish_reason="stop")


def test_a_budget_ends_a_text_before_its_end():
    found = cut_at_end([5, 6, 2, 7], frozenset({2}), 2)
    assert found == Continuation(token_ids=[5, 6], finish_reason="length")


def test_an_end_at_the_last_token_of_the_budget_is_an_end():
    found = cut_at_end([5, 6, 2], frozenset({2}), 3)
    assert found == Continuation(token_ids=[5, 6, 2], finish_reason="stop")


@given(st.lists(st.integers(0, 9)), st.frozensets(st.integers(0, 9)), st.integers(1, 20))
def test_a_cut_text_is_a_start_that_holds_no_end_but_its_last_token(
    token_ids: list[int], ends: frozenset[int], max_tokens: int
):
    found = cut_at_end(token_ids, ends, max_tokens)
    assert found.token_ids is not None
    assert found.token_ids == token_ids[: len(found.token_ids)]
    assert ends.isdisjoint(found.token_ids[:-1])
    if found.finish_reason == "stop":
        assert found.token_ids[-1] in ends
    else:
        assert len(found.token_ids) == min(len(token_ids), max_tokens)
        assert ends.isdisjoint(found.token_ids)
