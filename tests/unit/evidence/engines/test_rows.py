from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.engines.batching import Row, Shape, take_batch
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


ROWS = st.lists(st.builds(row, st.integers(1, 20), st.integers(1, 20)), max_size=20)


def test_a_row_has_a_seed_of_its_own():
    assert row(1, 1, index=3).seed == 103


def test_a_batch_is_as_wide_as_its_widest_rows():
    shape = Shape().plus(row(3, 9)).plus(row(5, 2))
    assert shape == Shape(n_rows=2, n_prompt=5, n_output=9)


def test_the_oldest_row_brings_those_most_like_it():
    queue = [row(5, 5), row(20, 5), row(6, 5), row(5, 9), row(5, 5)]
    oldest, _, near, _, same = queue
    assert take_batch(queue, lambda shape: shape.n_rows <= 3) == [oldest, same, near]
    assert [len(left.prompt) for left in queue] == [20, 5]


def test_one_row_is_taken_even_if_it_does_not_fit():
    queue = [row(5, 5), row(5, 5)]
    assert len(take_batch(queue, lambda _: False)) == 1


def test_an_empty_queue_gives_an_empty_batch():
    assert take_batch([], lambda _: True) == []


@given(ROWS, st.integers(1, 8), st.integers(1, 40))
def test_every_row_is_decoded_once_in_batches_that_fit(
    rows: list[Row], most_rows: int, most_tokens: int
):
    def fits(shape: Shape) -> bool:
        return shape.n_rows <= most_rows and shape.n_prompt + shape.n_output <= most_tokens

    queue, decoded = list(rows), []
    while batch := take_batch(queue, fits):
        shape = Shape()
        for each in batch:
            shape = shape.plus(each)
        assert len(batch) == 1 or fits(shape)
        decoded += batch
    assert sorted(map(id, decoded)) == sorted(map(id, rows))
