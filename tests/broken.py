"""Trainings that say that they keep to a privacy loss, and do not."""

from typing import Any, Literal

import pytest

from mia_batch.extras.tune import training

Fault = Literal["no clipping", "noise of another scale"]


def break_trainings(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Let trainings have an error that others have made, too."""
    clipped, noise = training.clipped_sums, training.noise_like

    def unclipped(model: Any, form: Any, batch: Any, clip: float, *rest: Any) -> Any:
        del clip
        return clipped(model, form, batch, 1e9, *rest)

    if fault == "no clipping":
        patch.setattr(training, "clipped_sums", unclipped)
    else:  # for the sum of a batch, noise of the size for its mean, divided once more
        patch.setattr(
            training, "noise_like", lambda sums, spread: noise(sums, spread / 1000)
        )
