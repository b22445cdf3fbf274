"""Seeds of samples, from what is sampled and never from its place in a batch."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["SAMPLES_PER_TARGET", "sample_seed"]

_SEED_BITS = 62  # vLLM keeps seeds as signed 64-bit integers on a GPU
_STRIDE_BITS = 16

SAMPLES_PER_TARGET = 1 << _STRIDE_BITS
"""Most samples of one target that have seeds of their own."""


def sample_seed(run_seed: int, target_id: str) -> int:
    """Seed of the first sample of a target; sample ``i`` is drawn with this plus ``i``.

    Parameters
    ----------
    run_seed
        The run's seed, any integer.
    target_id
        The target's identifier.

    Returns
    -------
    int
        At least 0 and below 2**62, a multiple of 65536, so that the seeds of two targets never
        overlap in part.
    """
    key = f"{run_seed}:{target_id}".encode()
    number = int.from_bytes(blake2b(key, digest_size=8, person=b"mia-batch").digest(), "big")
    return number >> (64 - _SEED_BITS) >> _STRIDE_BITS << _STRIDE_BITS
