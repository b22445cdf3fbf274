from __future__ import annotations

import numpy as np
import pytest

from mia_batch.tables import mapped_zeros


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_mapped_array_is_zero_and_can_be_written(size):
    array = mapped_zeros(size, np.uint32)
    assert array.dtype == np.uint32
    assert array.shape == (size,)
    assert not array.any()
    array[:] = 2**32 - 1
    assert int(array.sum(dtype=np.uint64)) == size * (2**32 - 1)
