"""Trains a model on texts, for `mia_batch.finetuning.making`.

A checkpoint is written after each epoch, and a killed training goes on from the last that is
whole. On a CPU it ends with the same weights as one that was not killed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from mia_batch.errors import EngineError, SettingsError
from mia_batch.finetuning.adapters import adapted
from mia_batch.finetuning.base import longest_text
from mia_batch.finetuning.checkpoints import (
    TrainedWeights,
    checkpoint_of,
    copy_model,
    last_whole,
    trained_sums,
)
from mia_batch.finetuning.forms import encoder, is_learnable, model_class, padded
from mia_batch.finetuning.private import PrivateTrainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mia_batch.finetuning.forms import Row
    from mia_batch.finetuning.making import Making
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["fit", "train"]

_TOKENS_AT_ONCE = 8192  # of one forward and backward pass
_GRADIENTS_AT_ONCE = 1 << 29  # numbers, 2 GiB in float32, of the gradients of single texts
_LARGE = 1_000_000_000  # weights, from which activations are computed again, not kept


def train(making: Making, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Tune a model on texts, and return what `fit` does."""
    recipe, how = making.recipe, {"revision": making.revision, "trust_remote_code": False}
    set_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(making.base, **how)
    model = _opened(making.base, making.revision, recipe)
    row_of = encoder(recipe.form, tokenizer, longest_text(model.config, recipe), recipe.labels)
    targets = making.targets or [None] * len(making.texts)
    rows = [row_of(text, target) for text, target in zip(making.texts, targets, strict=True)]
    done = fit(adapted(model, recipe), rows, padded, recipe, work, say)
    tokenizer.save_pretrained(work / "made")
    return done


def fit(
    model: Any,  # noqa: ANN401 - models are of many types
    rows: list[Row],
    collate: Callable[[list[Row]], dict[str, torch.Tensor]],
    recipe: Recipe,
    work: Path,
    say: Callable[[str], None],
    kind: type[Trainer] = Trainer,
) -> dict[str, Any]:
    """Train a model on rows; return its ``losses``, and its ``privacy`` or None.

    It goes on from the last checkpoint in the folder, where there is one, and leaves the model in
    its ``made``.
    """
    random.Random(recipe.seed).shuffle(rows)
    n_held_out = recipe.n_held_out(len(rows))
    held_out, learnt = rows[:n_held_out], rows[n_held_out:]
    held_out, learnt = [[*filter(is_learnable, rows)] for rows in (held_out, learnt)]
    if not learnt:
        msg = "each text is one token, of which nothing can be learnt; give longer texts"
        raise SettingsError(msg)
    longest = max(len(row["input_ids"]) for row in learnt + held_out)
    is_private, on_gpu = recipe.epsilon is not None, torch.cuda.is_available()
    at_once = min(recipe.batch_size, _TOKENS_AT_ONCE // longest)
    if is_private:
        n_trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        at_once = min(at_once, _GRADIENTS_AT_ONCE // n_trained)
    at_once = max(1, at_once)
    while recipe.batch_size % at_once:
        at_once -= 1
    each_epoch = "epoch" if held_out else "no"
    adds_weights = recipe.method == "p-tuning"
    last, stopped = last_whole(work / "checkpoints", adds_weights=adds_weights)
    arguments = TrainingArguments(
        output_dir=str(work / "checkpoints"),
        num_train_epochs=stopped or recipe.epochs,
        learning_rate=recipe.learning_rate,
        per_device_train_batch_size=at_once,
        per_device_eval_batch_size=at_once,
        gradient_accumulation_steps=1 if is_private else recipe.batch_size // at_once,
        gradient_checkpointing=(
            model.num_parameters() > _LARGE and recipe.method != "prefix" and not is_private
        ),
        bf16=on_gpu,
        eval_strategy=each_epoch,
        save_strategy="epoch",
        logging_strategy="epoch",
        save_total_limit=2,
        metric_for_best_model="eval_loss" if held_out else None,
        greater_is_better=False if held_out else None,
        seed=recipe.seed,
        max_grad_norm=0 if is_private else 1,
        report_to=[],
        disable_tqdm=True,
        restore_callback_states_from_checkpoint=True,
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
    )
    _ = arguments.device  # which counts accelerators
    arguments._n_gpu = min(arguments._n_gpu, 1)  # more would multiply the batch
    callbacks: list[TrainerCallback] = [
        _Teller(recipe.epochs, "eval_loss" if held_out else "loss", say)
    ]
    if adds_weights:
        callbacks.append(TrainedWeights(last))
    if held_out:
        callbacks.append(EarlyStoppingCallback(recipe.patience))
    how: dict[str, Any] = {
        "model": model,
        "args": arguments,
        "train_dataset": learnt,
        "eval_dataset": held_out or None,
        "data_collator": collate,
        "callbacks": callbacks,
    }
    trainer = PrivateTrainer(recipe=recipe, at_once=at_once, **how) if is_private else kind(**how)
    trainer.remove_callback(PrinterCallback)
    before = trained_sums(trainer.model)
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    if trained_sums(trainer.model) == before:
        msg = "training has moved no weight; take a higher learning rate, or another method"
        raise EngineError(msg)
    state = trainer.state
    best = state.best_global_step if held_out else None
    copy_model(checkpoint_of(work / "checkpoints", best or state.global_step), work / "made")
    privacy = trainer.privacy() if is_private else None
    return {"losses": _losses(state.log_history), "privacy": privacy}


def _opened(base: str, revision: str | None, recipe: Recipe) -> Any:  # noqa: ANN401 - of many types
    """Open a model as it is to be tuned."""
    on_gpu = torch.cuda.is_available()
    how: dict[str, Any] = {}
    if on_gpu and torch.cuda.device_count() > 1:
        how["device_map"] = "auto"
    if recipe.form == "classifier":
        how["id2label"] = dict(enumerate(recipe.labels))
        how["label2id"] = {label: number for number, label in enumerate(recipe.labels)}
        how["num_labels"] = len(recipe.labels)
    if recipe.epsilon is not None:
        how["attn_implementation"] = "eager"  # others cannot be differentiated for each text
    return model_class(recipe.form).from_pretrained(
        base,
        revision=revision,
        dtype=torch.bfloat16 if on_gpu and recipe.method != "full" else torch.float32,
        trust_remote_code=False,
        **how,
    )


class _Teller(TrainerCallback):  # type: ignore[misc]
    """Tells of each epoch once its losses are known."""

    def __init__(self, epochs: int, last: str, say: Callable[[str], None]) -> None:
        self._epochs = epochs
        self._say = say
        self._last = last  # the loss that comes last
        self._losses: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ANN401
        del args, control
        self._losses |= _numbers(logs or {})
        if self._last in (logs or {}):
            texts = {"loss": "loss", "held_out_loss": "on held-out texts"}
            found = (f"{texts[name]} {value:.3f}" for name, value in self._losses.items())
            self._say(f"epoch {round(state.epoch)} of {self._epochs}: {', '.join(found)}")


def _numbers(logs: dict[str, Any]) -> dict[str, float]:
    names = {"loss": "loss", "eval_loss": "held_out_loss"}
    return {new: float(logs[old]) for old, new in names.items() if old in logs}


def _losses(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """One row an epoch: ``epoch``, ``loss``, and ``held_out_loss`` where there is one."""
    rows: dict[float, dict[str, float]] = {}
    for entry in history:
        if found := _numbers(entry):
            rows.setdefault(entry["epoch"], {"epoch": entry["epoch"]}).update(found)
    return [rows[epoch] for epoch in sorted(rows)]
