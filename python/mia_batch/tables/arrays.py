"""Large arrays that leave no trace once they are gone."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["mapped_zeros"]

_Number = TypeVar("_Number", bound=np.generic)


def mapped_zeros(size: int, dtype: type[_Number]) -> NDArray[_Number]:
    """Return a row of zeros whose memory the system has back as soon as it is freed.

    Allocators keep what is freed, the more the larger it was (glibc raises its threshold for
    mapping with every large block that is freed), so that a long run's memory grows.
    """
    length = max(1, size * np.dtype(dtype).itemsize)  # nothing cannot be mapped
    return np.frombuffer(mmap(-1, length), dtype, size)
