"""Whether an order can be foreseen by somebody who never saw it, from what the rows say.

A test of order says nothing where rows are sorted: a model that never saw them finds
the sorted order likelier, too. So the order is tested without any model, against the
same shuffles: whether lengths, first letters, categories or words of neighbours are
what shuffled rows would have. An order that passes need not be random; one that fails
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Floats, Ints

__all__ = [
    "LEVEL",
    "Cell",
    "Feature",
    "describe_texts",
    "draw_orders",
    "find_patterns",
    "list_categories",
]

LEVEL = 0.01
"""Share of random orders that are taken for predictable, of all features together."""
_N_ORDERS = 1999
_MOST_CELLS = 2000  # of more, so many spread evenly are tested
_NUMBER = re.compile(r"\d{1,15}")
_WORD = re.compile(r"[^\W\d_]{4,}|\d+")


@dataclass(frozen=True, slots=True)
class Cell:
    """Rows whose places may be exchanged with each other: those of one block."""

    rows: Ints  # in their published order
    blocks: Ints  # of each row, a number; rows of other blocks keep their places

    @property
    def can_change(self) -> bool:
        return np.unique(self.blocks).size < self.rows.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that rows have, and what of it an order is tested for."""

    name: str
    values: Floats | Sequence[frozenset[str]]
    tests: tuple[str, ...]  # of `_STATISTICS`


def draw_orders(cell: Cell, n: int, rng: np.random.Generator) -> Ints:
    """Draw orders of a cell's rows, each as likely as any other; shape (n, rows)."""
    n_rows = cell.rows.size
    places = np.argsort(cell.blocks, kind="stable")
    codes = np.unique(cell.blocks, return_inverse=True)[1]
    keys = codes + rng.random((n, n_rows))
    orders = np.empty((n, n_rows), np.int64)
    orders[:, places] = np.argsort(keys, axis=1)
    return orders


def find_patterns(
    cells: Sequence[Cell], features: Sequence[Feature], seed: int
) -> list[str]:
    """Return sentences on the features by which the published order is no random one.

    Each test compares a sum over cells with that of 1,999 drawn orders, both ways; the
    p-values are multiplied by the number of tests, so that of random orders a share of
    `LEVEL` is refused at most.
    """
    rng = np.random.default_rng(seed)
    cells = [cell for cell in cells if cell.can_change]
    if not cells:
        return []
    cells = cells[:: 1 + (len(cells) - 1) // _MOST_CELLS]
    tests = [(feature, test) for feature in features for test in feature.tests]
    sums = np.zeros((len(tests), 1 + _N_ORDERS))
    for cell in cells:
        published = np.arange(cell.rows.size)[None]
        orders = np.concatenate([published, draw_orders(cell, _N_ORDERS, rng)])
        for number, (feature, test) in enumerate(tests):
            sums[number] += _STATISTICS[test](_select(feature, cell), orders)
    sentences = []
    for (feature, test), values in zip(tests, sums, strict=True):
        distances = np.abs(values - values.mean())
        # The published one is among them, and is as far as itself
        limit = distances[0] - 1e-9 * np.abs(values).max()
        p_value = float((distances >= limit).mean())
        adjusted = min(1.0, p_value * len(tests))
        if adjusted <= LEVEL:
            sentence = _SENTENCES[test].format(feature.name)
            sentences.append(f"{sentence} (p = {adjusted:.2g})")
    return sentences


def _select(feature: Feature, cell: Cell) -> NDArray[np.float64]:
    """Select a feature's values of a cell: numbers, or how alike each two rows are."""
    if isinstance(feature.values, np.ndarray):
        numbers = feature.values[cell.rows]
        centred: Floats = numbers - numbers.mean()
        return centred
    words = [feature.values[row] for row in cell.rows.tolist()]
    alike = np.zeros((len(words), len(words)))
    for i, first in enumerate(words):
        for j, second in enumerate(words[:i]):
            n_shared = len(first & second)
            alike[i, j] = n_shared / max(1, len(first) + len(second) - n_shared)
    likeness: Floats = alike + alike.T
    return likeness


def _compute_trend(values: Floats, orders: Ints) -> Floats:
    places = np.arange(values.size) - (values.size - 1) / 2
    trends: Floats = values[orders] @ places
    return trends


def _compute_neighbours(values: Floats, orders: Ints) -> Floats:
    ordered = values[orders]
    products: Floats = (ordered[:, :-1] * ordered[:, 1:]).sum(axis=1)
    return products


def _count_equal(values: Floats, orders: Ints) -> Floats:
    ordered = values[orders]
    is_equal = np.isclose(ordered[:, :-1], ordered[:, 1:])
    counts: Floats = is_equal.sum(axis=1).astype(np.float64)
    return counts


def _sum_likeness(alike: Floats, orders: Ints) -> Floats:
    likeness: Floats = alike[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    return likeness


def _compute_ends(values: Floats, orders: Ints) -> Floats:
    """Sum values by how far from the middle they stand."""
    places = np.abs(np.arange(values.size) - (values.size - 1) / 2)
    sums: Floats = values[orders] @ (places - places.mean())
    return sums


_STATISTICS = {
    "trend": _compute_trend,
    "ends": _compute_ends,
    "neighbours": _compute_neighbours,
    "equal": _count_equal,
    "alike": _sum_likeness,
}
_SENTENCES = {
    "trend": "{} rises or falls with the place",
    "ends": "{} stands at the ends or in the middle more often",
    "neighbours": "{} of neighbours goes together",
    "equal": "{} of neighbours is equal more or less often than after shuffling",
    "alike": "{} of neighbours are more or less alike than after shuffling",
}


def describe_texts(
    texts: Sequence[str], categories: Mapping[str, Sequence[object]]
) -> list[Feature]:
    """Build the features of texts: length, letters, numbers, words, and given categories."""
    lengths = np.array([len(text) for text in texts], np.float64)
    first_letters = [text.strip().casefold() for text in texts]
    features = [
        Feature(name="length", values=_rank(lengths), tests=("trend", "neighbours")),
        Feature(
            name="the alphabet", values=_rank(np.array(first_letters)), tests=("trend",)
        ),
        Feature(name="the first number", values=_read_numbers(texts), tests=("trend",)),
        Feature(
            name="words",
            values=[frozenset(_WORD.findall(text.casefold())) for text in texts],
            tests=("alike",),
        ),
    ]
    for name, values in categories.items():
        codes = np.unique([str(value) for value in values], return_inverse=True)[1]
        features.append(
            Feature(
                name=f"column {name!r}",
                values=codes.astype(np.float64),
                tests=("equal", "trend"),
            )
        )
    return features


def list_categories(
    columns: Mapping[str, Sequence[object]],
) -> Iterator[tuple[str, Sequence[object]]]:
    """Iterate over columns with few different values, such as a subject or an answer."""
    for name, values in columns.items():
        n_different = len({str(value) for value in values})
        if 1 < n_different <= len(values) // 3:
            yield name, values


def _read_numbers(texts: Sequence[str]) -> Floats:
    """Read the first number of each text, as a rank; texts without one are in the middle."""
    matches = [_NUMBER.search(text) for text in texts]
    numbers = np.array([float(match[0]) if match else np.nan for match in matches])
    has_number = np.isfinite(numbers)
    ranks = np.zeros(len(texts))
    if has_number.any():
        of_numbers = _rank(numbers[has_number])
        ranks[:] = np.median(of_numbers)
        ranks[has_number] = of_numbers
    return ranks


def _rank(values: NDArray[np.generic]) -> Floats:
    ranks: Floats = np.unique(values, return_inverse=True)[1].astype(np.float64)
    return ranks
