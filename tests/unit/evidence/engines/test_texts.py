from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.engines.batching import n_tokens, take_texts
from mia_batch.evidence.request import Request


def text(n: int) -> Request:
    return Request(request_id=0, kind="logprobs", context_ids=[1], text_ids=[1] * (n - 1))


def test_the_oldest_text_brings_those_nearest_in_length():
    queue = [text(5), text(20), text(6), text(9), text(5)]
    batch = take_texts(queue, most_texts=3, most_tokens=100, may_pad=True)
    assert [n_tokens(each) for each in batch] == [5, 5, 6]
    assert [n_tokens(each) for each in queue] == [20, 9]


def test_padding_counts():
    queue = [text(5), text(6), text(7)]
    assert len(take_texts(queue, most_texts=9, most_tokens=20, may_pad=True)) == 2


def test_without_padding_texts_are_of_one_length():
    queue = [text(5), text(6), text(5)]
    assert len(take_texts(queue, most_texts=9, most_tokens=100, may_pad=False)) == 2


def test_one_text_is_taken_even_if_it_does_not_fit():
    queue = [text(5), text(5)]
    assert len(take_texts(queue, most_texts=9, most_tokens=1, may_pad=True)) == 1


def test_an_empty_queue_gives_an_empty_batch():
    assert take_texts([], most_texts=9, most_tokens=9, may_pad=True) == []


@given(
    st.lists(st.integers(2, 20).map(text), max_size=20),
    st.integers(1, 8),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_text_is_taken_once_in_batches_that_fit(
    texts: list[Request], most_texts: int, most_tokens: int, may_pad: bool
):
    queue, scored = list(texts), []
    while batch := take_texts(
        queue, most_texts=most_texts, most_tokens=most_tokens, may_pad=may_pad
    ):
        lengths = {n_tokens(each) for each in batch}
        assert len(batch) == 1 or len(batch) * max(lengths) <= most_tokens
        assert len(batch) <= most_texts
        assert may_pad or len(lengths) == 1
        scored += batch
    assert sorted(map(id, scored)) == sorted(map(id, texts))
