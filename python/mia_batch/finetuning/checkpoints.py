"""Checkpoints of a training: with hashes of their files, so that a damaged one is not taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from mia_batch.errors import EngineError
from mia_batch.tables import digest, write_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hashes", "checkpoint_of", "copy_model", "last_whole", "stopped_after", "trained_sums"]

_HASHES = "sha256.json"
_CONFIG = "adapter_config.json"
_STATE = "trainer_state.json"
_TRAINED = "trained.pt"
_OF_TRAINER = {
    _HASHES, _STATE, _TRAINED, "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin",
}  # fmt: skip


class Hashes(TrainerCallback):  # type: ignore[misc]
    """Stores the hashes of a checkpoint's files beside them, and weights that peft does not keep.

    Of P-tuning it keeps what its encoder says, from which no training can go on.
    """

    def __init__(self, last: Path | None, *, keeps_weights: bool) -> None:
        self._last = last
        self._keeps_weights = keeps_weights

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:  # noqa: ANN401
        """Take up the weights of the last checkpoint."""
        del args, state, control
        if self._last is not None and self._keeps_weights:
            model.load_state_dict(torch.load(self._last / _TRAINED), strict=False)

    def on_save(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:  # noqa: ANN401
        """Complete a checkpoint."""
        del control
        folder = checkpoint_of(Path(args.output_dir), state.global_step)
        if self._keeps_weights:
            torch.save({name: each.data for name, each in _trained(model)}, folder / _TRAINED)
        found = {path.name: digest(path) for path in sorted(folder.iterdir()) if path.is_file()}
        write_text(folder / _HASHES, json.dumps(found))


def checkpoint_of(folder: Path, step: int) -> Path:
    """Name the checkpoint after a step."""
    return folder / f"checkpoint-{step}"


def last_whole(folder: Path, tell: Callable[..., None]) -> Path | None:
    """Find the last checkpoint that is as it was written, and its best one; later ones go."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    whole = [path for path in found if _is_whole(path)]
    good = [path for path in whole if _best_of(path) in (*whole, None)]
    last = good[-1] if good else None
    for path in found:
        if path not in whole:
            tell(damaged=path.name, then=last.name if last else None)
            shutil.rmtree(path)
    for path in whole[0 if last is None else whole.index(last) + 1 :]:
        shutil.rmtree(path)
    return last


def _is_whole(checkpoint: Path) -> bool:
    try:
        hashes = json.loads((checkpoint / _HASHES).read_text("utf-8"))
        return all(digest(checkpoint / name) == found for name, found in hashes.items())
    except (AttributeError, OSError, ValueError):
        return False


def _best_of(checkpoint: Path) -> Path | None:
    step = json.loads((checkpoint / _STATE).read_text("utf-8"))["best_global_step"]
    return checkpoint_of(checkpoint.parent, step) if step else None


def stopped_after(checkpoint: Path) -> int | None:
    """Return the epoch after which training had stopped; None if it had not.

    A trainer that goes on from such a checkpoint would train one more epoch.
    """
    state = json.loads((checkpoint / _STATE).read_text("utf-8"))
    stopped = state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]
    return round(state["epoch"]) if stopped else None


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

    Raises `EngineError` if one is no number.
    """
    sums = [each.detach().sum(dtype=torch.float64) for _, each in _trained(model)]
    if not all(map(torch.isfinite, sums)):
        msg = "the weights are no numbers any more; take a lower learning rate"
        raise EngineError(msg)
    return [float(each) for each in sums]


def _trained(model: Any) -> list[tuple[str, torch.nn.Parameter]]:  # noqa: ANN401
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]
