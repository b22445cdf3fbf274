"""Two short texts, whose log-probabilities show whether a started model can be asked at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.errors import SettingsError
from mia_batch.models.adapter import weights_source
from mia_batch.models.weights import tensors_in, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["check_probes", "probes", "why_not_finite"]

_TOKENS = 12
_DRIFT = {"float32": 1e-3}  # that rounding explains, of log-probabilities on average, nats
_DRIFT_OF_HALVES = 0.25  # one rounding can choose another expert


def probes(vocab_size: int, room: int) -> list[list[int]]:
    """Make two texts that differ in their last token alone."""
    *first, last = (i % vocab_size for i in range(5, 5 + 37 * min(_TOKENS, room), 37))
    return [[*first, last], [*first, (last + 1) % vocab_size]]


def check_probes(
    model: str, revision: str | None, dtype: str, said: Sequence[NDArray[np.float32]]
) -> None:
    """Check the log-probabilities of both texts' tokens but the first.

    Raises `SettingsError` if one is not finite, or if another last token moves those before it.
    """
    one, other = said
    if not np.isfinite(said).all():
        raise SettingsError(why_not_finite(model, revision, dtype))
    if np.abs(one - other)[:-1].mean() > _DRIFT.get(dtype, _DRIFT_OF_HALVES):
        msg = (
            f"{model!r} looks at later tokens, so it has no log-probabilities of a text; give "
            "a causal language model"
        )
        raise SettingsError(msg)


def why_not_finite(model: str, revision: str | None, dtype: str) -> str:
    """Name the first tensor of a model's files that is not finite, or the dtype to take."""
    sources = dict.fromkeys([(model, revision), weights_source(model, revision)])
    files = [file for source in sources for file in weight_files(*source)]
    for name, tensor in tensors_in(files, "cpu"):
        if tensor.itemsize > 1 and not tensor.isfinite().all():  # others are codes
            return (
                f"the weights of {model!r} have values that are not finite numbers (NaN, infinity) "
                f"in {name}; give another checkpoint of the model"
            )
    if dtype == "float32":
        return (
            f"{model!r} gives log-probabilities that are not finite numbers, though its weights "
            "are; give another checkpoint of the model"
        )
    return (
        f"setting 'dtype': {model!r} has or computes values too large for {dtype}; take "
        f"{'float32' if dtype == 'bfloat16' else 'bfloat16 or float32'}"
    )
