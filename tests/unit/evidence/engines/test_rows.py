from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.engines.batching import Row, n_tokens, take_batch
from mia_batch.evidence.request import Request


def row(n_prompt: int, n_output: int, index: int = 0) -> Row:
    request = Request(
        request_id=0,
        kind="samples",
        context_ids=[1] * n_prompt,
        seed=100,
        n=5,
        max_tokens=n_output,
    )
    return Row(request=request, index=index, max_tokens=n_output)


def text(n: int) -> Request:
    return Request(request_id=0, kind="logprobs", context_ids=[1], text_ids=[1] * (n - 1))


def of_row(row: Row) -> tuple[int, int]:
    return len(row.prompt), row.max_tokens


def of_text(request: Request) -> tuple[int]:
    return (n_tokens(request),)


ROWS = st.lists(st.builds(row, st.integers(1, 20), st.integers(1, 20)), max_size=20)
TEXTS = st.lists(st.integers(2, 20).map(text), max_size=20)


def test_a_row_has_a_seed_of_its_own():
    assert row(1, 1, index=3).seed == 103


def test_the_oldest_row_brings_those_most_like_it():
    queue = [row(5, 5), row(20, 5), row(6, 5), row(5, 9), row(5, 5)]
    oldest, _, near, _, same = queue
    assert take_batch(queue, of_row, lambda n, *_: n <= 3) == [oldest, same, near]
    assert [len(left.prompt) for left in queue] == [20, 5]


def test_padding_counts():
    queue = [text(5), text(6), text(7)]
    assert len(take_batch(queue, of_text, lambda n, longest: n * longest <= 20)) == 2


def test_without_padding_texts_are_of_one_length():
    queue = [text(5), text(6), text(5), text(4)]
    assert len(take_batch(queue, of_text, lambda *_: True, may_pad=False)) == 2


def test_one_is_taken_even_if_it_does_not_fit():
    queue = [row(5, 5), row(5, 5)]
    assert len(take_batch(queue, of_row, lambda *_: False)) == 1


def test_an_empty_queue_gives_an_empty_batch():
    assert take_batch([], of_row, lambda *_: True) == []


@given(ROWS, st.integers(1, 8), st.integers(1, 40))
def test_every_row_is_decoded_once_in_batches_that_fit(
    rows: list[Row], most_rows: int, most_tokens: int
):
    def fits(n_rows: int, n_prompt: int, n_output: int) -> bool:
        return n_rows <= most_rows and n_prompt + n_output <= most_tokens

    queue, decoded = list(rows), []
    while batch := take_batch(queue, of_row, fits):
        widest = map(max, *map(of_row, batch)) if len(batch) > 1 else of_row(batch[0])
        assert len(batch) == 1 or fits(len(batch), *widest)
        decoded += batch
    assert sorted(map(id, decoded)) == sorted(map(id, rows))


@given(TEXTS, st.integers(1, 8), st.integers(1, 60), st.booleans())
def test_every_text_is_taken_once_in_batches_that_fit(
    texts: list[Request], most_texts: int, most_tokens: int, may_pad: bool
):
    def fits(n_texts: int, longest: int) -> bool:
        return n_texts <= most_texts and n_texts * longest <= most_tokens

    queue, scored = list(texts), []
    while batch := take_batch(queue, of_text, fits, may_pad=may_pad):
        lengths = {n_tokens(each) for each in batch}
        assert len(batch) == 1 or len(batch) * max(lengths) <= most_tokens
        assert len(batch) <= most_texts
        assert may_pad or len(lengths) == 1
        scored += batch
    assert sorted(map(id, scored)) == sorted(map(id, texts))
