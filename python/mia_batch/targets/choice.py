"""Which windows of a long document are asked about, where not all are."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

__all__ = ["choose_windows"]

_BITS = 64


@lru_cache(maxsize=16)
def choose_windows(n_windows: int, most: int, seed: int, identity: bytes) -> frozenset[int]:
    """Choose ``most`` of the windows 0, ..., ``n_windows`` - 1 of the document of this identity.

    The points of van der Corput (1935) in [0, 1), turned by an amount that seed and identity
    decide, are taken in order, each for the window that it falls into. So every choice is spread
    evenly and within each larger one, and every window is as likely as any other.
    """
    if most >= n_windows:
        return frozenset(range(n_windows))
    key = f"{seed}:".encode() + identity
    turn = int.from_bytes(
        blake2b(key, digest_size=_BITS // 8, person=b"windows").digest(), "little"
    )
    chosen: set[int] = set()
    index = 0
    while len(chosen) < most:
        point = (_reversed_bits(index) + turn) % (1 << _BITS)
        chosen.add(point * n_windows >> _BITS)
        index += 1
    return frozenset(chosen)


def _reversed_bits(index: int) -> int:
    return int(f"{index:0{_BITS}b}"[::-1], 2)
