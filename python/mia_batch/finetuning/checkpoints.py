"""Checkpoints of a training: the last that was completely written, and the model in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from mia_batch.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TrainedWeights", "checkpoint_of", "copy_model", "last_whole", "trained_sums"]

_CONFIG = "adapter_config.json"
_STATE = "trainer_state.json"  # the trainer writes it last
_TRAINED = "trained.pt"
_OF_TRAINER = {
    _STATE, _TRAINED, "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin",
}  # fmt: skip


class TrainedWeights(TrainerCallback):  # type: ignore[misc]
    """Adds the trained weights to checkpoints of P-tuning, of which peft keeps too little.

    It keeps what the prompt encoder says, from which no training can go on.
    """

    def __init__(self, last: Path | None) -> None:
        self._last = last

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:  # noqa: ANN401
        """Take up the weights of the last checkpoint."""
        del args, state, control
        if self._last is not None:
            model.load_state_dict(torch.load(self._last / _TRAINED), strict=False)

    def on_save(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:  # noqa: ANN401
        """Complete a checkpoint."""
        del control
        path = checkpoint_of(Path(args.output_dir), state.global_step) / _TRAINED
        weights = {name: each.data for name, each in _trained(model)}
        torch.save(weights, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def checkpoint_of(folder: Path, step: int) -> Path:
    """Name the checkpoint after a step."""
    return folder / f"checkpoint-{step}"


def last_whole(folder: Path, *, adds_weights: bool) -> tuple[Path | None, int | None]:
    """Return the last checkpoint, and the epoch after which its training had stopped early.

    One that was cut short is deleted: its ``trainer_state.json``, which is written last, cannot be
    read, or the weights that are added lack. A trainer that goes on from a checkpoint after an
    early stop would train one more epoch.
    """
    while folder.is_dir() and (found := get_last_checkpoint(str(folder))) is not None:
        last = Path(found)
        try:
            state = json.loads((last / _STATE).read_text("utf-8"))
        except (OSError, ValueError):
            state = None
        if state is not None and (not adds_weights or (last / _TRAINED).exists()):
            control = state["stateful_callbacks"]["TrainerControl"]["args"]
            return last, round(state["epoch"]) if control["should_training_stop"] else None
        shutil.rmtree(last)
    return None, None


def copy_model(checkpoint: Path, made: Path) -> None:
    """Copy a model out of a checkpoint."""
    made.mkdir()
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in _OF_TRAINER:
            shutil.copyfile(path, made / path.name)
    if (config := made / _CONFIG).exists():
        config.write_text(json.dumps(_ordered(json.loads(config.read_text("utf-8"))), indent=2))


def _ordered(config: dict[str, Any]) -> dict[str, Any]:
    """Sort the names of modules, which peft writes in another order each time."""
    return {
        name: sorted(value) if isinstance(value, list) and name.endswith("_modules") else value
        for name, value in config.items()
    }


def trained_sums(model: Any) -> list[float]:  # noqa: ANN401 - models are of many types
    """Sum up each tensor that is trained: another sum, other weights.

    Raises `EngineError` if one is not a number.
    """
    sums = [each.detach().sum(dtype=torch.float64) for _, each in _trained(model)]
    if not all(map(torch.isfinite, sums)):
        msg = "the weights are no numbers any more; take a lower learning rate"
        raise EngineError(msg)
    return [float(each) for each in sums]


def _trained(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:  # noqa: ANN401
    return ((name, each) for name, each in model.named_parameters() if each.requires_grad)
