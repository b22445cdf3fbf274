"""Orders that can be foreseen without a model, and those that cannot."""

import numpy as np
import pytest

from mia_batch.extras.benchmark.orders import _cut_cells
from mia_batch.extras.benchmark.predictable import (
    LEVEL,
    Cell,
    describe_texts,
    draw_orders,
    find_patterns,
    list_categories,
)
from tests.unit.benchmark.conftest import WORDS


def draw_texts(n, rng):
    return [" ".join(rng.choice(WORDS[:12], rng.integers(3, 12))) for _ in range(n)]


def find(texts, blocks=None, **categories):
    cells = _cut_cells(blocks or [0] * len(texts), 10)
    return find_patterns(cells, describe_texts(texts, categories), seed=0)


def test_random_orders_are_refused_as_seldom_as_promised():
    rng = np.random.default_rng(0)
    n_refused = 0
    for _ in range(100):
        texts = draw_texts(40, rng)
        n_refused += bool(find(texts, kind=rng.integers(3, size=40).tolist()))
    assert n_refused <= 4  # of 100 at a level of 1 %: five or more come once in 290
    assert LEVEL == 0.01


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (lambda texts: sorted(texts, key=len), "length rises or falls with the place"),
        (sorted, "the alphabet rises or falls with the place"),
        (
            lambda texts: [
                text + " mill" * (12 * (i // 5 % 2)) for i, text in enumerate(texts)
            ],
            "length of neighbours goes together",
        ),
    ],
)
def test_sorted_rows_are_found(order, sentence):
    texts = order(draw_texts(60, np.random.default_rng(1)))
    assert any(pattern.startswith(sentence) for pattern in find(texts))


def test_rows_that_are_numbered_are_found():
    texts = draw_texts(60, np.random.default_rng(1))
    numbered = [f"{text} in task {number}" for number, text in enumerate(texts)]
    patterns = find(numbered)
    assert any(pattern.startswith("the first number rises") for pattern in patterns)


def test_neighbours_about_one_thing_are_found():
    rng = np.random.default_rng(2)
    texts = [
        f"{text} about topic{number // 2:03} and name{number // 2:03}"
        for number, text in enumerate(draw_texts(60, rng))
    ]
    patterns = find(texts)
    assert any(pattern.startswith("words of neighbours") for pattern in patterns)


def test_subjects_in_blocks_are_found_and_exchanged_within():
    rng = np.random.default_rng(3)
    texts = draw_texts(60, rng)
    subjects = [number // 4 for number in range(60)]
    patterns = find(texts, subject=subjects)
    assert any(pattern.startswith("column 'subject'") for pattern in patterns)
    assert find(texts, subjects) == []


def test_rows_of_other_blocks_keep_their_places():
    cell = Cell(np.arange(6), np.array([0, 1, 0, 2, 1, 0]))
    orders = draw_orders(cell, 600, np.random.default_rng(0))
    assert {*orders[:, 3].tolist()} == {3}
    assert {*map(tuple, orders[:, [1, 4]].tolist())} == {(1, 4), (4, 1)}
    drawn, counts = np.unique(orders[:, [0, 2, 5]], axis=0, return_counts=True)
    assert len(drawn) == 6
    assert counts.min() > 60  # 100 expected of each
    assert not Cell(np.arange(3), np.arange(3)).can_change


def test_features_that_are_the_same_everywhere_show_nothing():
    assert find(["same words here"] * 30, kind=[1] * 30) == []


def test_only_columns_of_few_values_are_categories():
    columns = {"id": range(9), "subject": [1, 1, 1, 2, 2, 2, 3, 3, 3], "kind": [0] * 9}
    assert [name for name, _ in list_categories(columns)] == ["subject"]
