"""Which texts a shadow model learns: a random half, so that each text is in half of the models."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_SHADOWS", "in_half"]

_BYTES = 64
MOST_SHADOWS = 2 * 8 * _BYTES
"""Shadow models that have halves of their own."""


def in_half(names: Sequence[str], shadow: int, seed: int) -> list[bool]:
    """Say of each text whether a shadow model learns it.

    Models 2j and 2j + 1 share the texts out between them by a fair coin: bit j of a hash of seed
    and name. So each text is in exactly half of an even number of models, as in online LiRA
    (Carlini et al. 2022, arXiv:2112.03570, algorithm 1), and further models change none of the
    earlier. Texts of one name go together.
    """
    pair, second = divmod(shadow, 2)
    place, bit = divmod(pair, 8)
    key = str(seed).encode()
    hashes = (blake2b(name.encode(), key=key[:_BYTES], digest_size=_BYTES) for name in names)
    return [bool(found.digest()[place] >> bit & 1) != bool(second) for found in hashes]
