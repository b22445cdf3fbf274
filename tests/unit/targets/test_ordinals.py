from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mia_batch.targets import Ordinals


def test_equal_keys_are_numbered_across_calls():
    ordinals = Ordinals()
    assert ordinals.number(np.array([7, 7, 3], np.uint64)).tolist() == [0, 1, 0]
    assert ordinals.number(np.array([], np.uint64)).tolist() == []
    assert ordinals.number(np.array([3, 9, 7, 3], np.uint64)).tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("seed", range(5))
def test_many_calls_number_as_a_counter_does(seed):
    generator = np.random.default_rng(seed)
    ordinals, counter = Ordinals(), Counter[int]()
    for _ in range(60):
        keys = generator.integers(0, 500, generator.integers(0, 80)).astype(np.uint64)
        keys += np.uint64(2**64 - 300)  # wraps around: small and large keys
        expected = []
        for key in keys.tolist():
            expected.append(counter[key])
            counter[key] += 1
        assert ordinals.number(keys).tolist() == expected


def test_memory_is_a_few_bytes_a_key():
    ordinals = Ordinals()
    for start in range(0, 100_000, 1000):
        ordinals.number(np.arange(start, start + 1000, dtype=np.uint64))
    held = sum(keys.nbytes + counts.nbytes for keys, counts in ordinals._runs)
    assert held == 12 * 100_000
