"""Makes an inverter once: by the same machinery as a model that is fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.finetuning.making import Making

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["InverterMaking"]


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class InverterMaking(Making):
    """A decoder to start from, auxiliary texts and their embeddings, a row each."""

    embeddings: NDArray[np.float32]

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """As of any model, and SHA-256 of the embeddings."""
        content = np.ascontiguousarray(self.embeddings)
        return {**super().made_from, "embeddings": sha256(content.tobytes()).hexdigest()}

    def train(self, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
        """Leave decoder and projection in the folder's ``made``."""
        from mia_batch.inversion.training import train

        return train(self, work, say)
