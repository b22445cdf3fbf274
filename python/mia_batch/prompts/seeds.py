"""Seeds of samples, from what is sampled and never from its index in a batch."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["SAMPLES_PER_TARGET", "sample_seed"]

_SEED_BITS = 62  # vLLM keeps seeds as signed 64-bit integers on a GPU
_STRIDE_BITS = 16

SAMPLES_PER_TARGET = 1 << _STRIDE_BITS
"""Most samples of one prompt that have seeds of their own."""


def sample_seed(
    run_seed: int, target_id: str, view: str = "continuation", view_index: int = 0
) -> int:
    """Seed of the first sample of a prompt; sample ``i`` is drawn with this plus ``i``.

    At least 0 and below 2**62, a multiple of 65536, so that the seeds of two prompts never overlap
    in part.
    """
    first = view == "continuation" and view_index == 0
    key = f"{run_seed}:{target_id}" if first else f"{run_seed}:{target_id}:{view}:{view_index}"
    number = int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"mia-batch").digest())
    return number >> (64 - _SEED_BITS) >> _STRIDE_BITS << _STRIDE_BITS
