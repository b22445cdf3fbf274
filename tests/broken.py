"""Trainings that say that they keep to a privacy loss, and do not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests import forked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

Fault = Literal["no clipping", "noise of another scale"]


def broken_training(
    work: Path, log: Path, share: Mapping[str, str] | None = None, *, fault: Fault
) -> forked.ForkedTraining:
    """Start the training that `making` would start, with an error that others have made, too."""
    return forked.ForkedTraining(_train, str(work), str(log), os.getpid(), dict(share or {}), fault)


def _train(
    work: str, log: str, parent: int, share: dict[str, str], fault: Fault, told: Connection
) -> None:
    from mia_batch.finetuning import clipping, private

    patch = pytest.MonkeyPatch()
    clipped, noise = clipping.clipped_sums, private.noise_like

    def unclipped(model: Any, form: Any, batch: Any, clip: float, *rest: Any) -> Any:
        del clip
        return clipped(model, form, batch, 1e9, *rest)

    if fault == "no clipping":
        patch.setattr(private, "clipped_sums", unclipped)
    else:  # for the sum of a batch, noise of the size for its mean, divided once more
        patch.setattr(private, "noise_like", lambda sums, spread: noise(sums, spread / 1000))
    forked._train(work, log, parent, share, 0, told)
