"""What tests of fine-tuning share: texts, recipes, and the bytes of what comes out."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import TrainerState
from transformers.trainer_callback import CallbackHandler

from mia_batch.extras.tune.jobs import TrainedModel, TrainingConfig, train_or_load
from mia_batch.recipes import Recipe
from tests.checkpoints import TEXTS

LEARNT = [" ".join(text.split()[:20]) for text in TEXTS[:8]]
"""Texts that differ by their first tokens."""


def recipe(**changed: Any) -> Recipe:
    """Few steps that teach a tiny model something."""
    given = {
        "epochs": 3,
        "learning_rate": 1e-2,
        "batch_size": 4,
        "rank": 4,
        "max_tokens": 32,
    }
    return Recipe(**(given | changed))


def making(base: Path, texts: Sequence[str] = LEARNT, **changed: Any) -> TrainingConfig:
    return TrainingConfig(
        base=str(base), revision=None, texts=texts, recipe=recipe(**changed)
    )


def make(
    base: Path,
    out: Path,
    say: Callable[[str], object] = lambda _: None,
    **changed: Any,
) -> TrainedModel:
    return train_or_load(
        making(base, **changed), out, lambda sentence: (say(sentence), None)[1]
    )


def die_saving(
    n: int, at: Literal["its end", "its state", "its weights"] = "its end"
) -> None:
    """Let this process kill itself once it has saved n checkpoints, or within the n-th."""
    written: list[str] = []
    write, saved = TrainerState.save_to_json, CallbackHandler.on_save

    def die(where: str) -> None:
        if len(written) == n and at == where:
            os.kill(os.getpid(), signal.SIGKILL)

    def writing(state: TrainerState, path: str) -> None:
        write(state, path)
        written.append(path)
        if len(written) == n and at == "its state":
            os.truncate(path, Path(path).stat().st_size // 2)
        die("its state")

    def after(*given: Any) -> Any:
        die("its weights")  # which are added to those of P-tuning
        control = saved(*given)
        die("its end")
        return control

    patch = pytest.MonkeyPatch()
    patch.setattr(TrainerState, "save_to_json", writing)
    patch.setattr(CallbackHandler, "on_save", after)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
