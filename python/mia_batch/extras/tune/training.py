"""The training itself, with or without differential privacy; only here torch is loaded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import transformers
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_utils import get_last_checkpoint

from mia_batch.errors import EngineError, SettingsError
from mia_batch.extras.tune.base import (
    FORMS,
    TrainingTexts,
    adapted,
    longest_text,
    n_checkpoints,
)
from mia_batch.recipes import Form, Recipe

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from transformers import PreTrainedTokenizerBase

Row = dict[str, list[int]]  # `input_ids` and `labels` of one text

_IGNORED = -100  # label of what is not learnt
BETWEEN = " The label is"  # between a text and its target


def model_class(form: Form) -> Any:
    return getattr(transformers, f"AutoModelFor{FORMS[form][0]}")


def encoder(
    form: Form, tokenizer: PreTrainedTokenizerBase, most: int, labels: Sequence[str]
) -> Callable[[str, str | None], Row]:
    """Return what makes the row of a text and its target, of at most so many tokens."""

    def causal(text: str, target: str | None) -> Row:
        ids = list(tokenizer(text, truncation=False)["input_ids"])
        end = tokenizer.eos_token_id
        if end is not None and ids[-1:] == [end]:
            ids.pop()
        tail = [] if target is None else _plain(tokenizer, f"{BETWEEN} {target}")
        tail += [] if end is None else [end]
        ids = (
            (ids + tail)[:most]
            if target is None
            else ids[: max(1, most - len(tail))] + tail
        )
        # Not the first: with virtual tokens before it, peft would predict it from them.
        return {"input_ids": ids, "labels": [_IGNORED, *ids[1:]]}

    def classifier(text: str, target: str | None) -> Row:
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        return {"input_ids": ids, "labels": [labels.index(str(target))]}

    def infilling(text: str, target: str | None) -> Row:
        mask = tokenizer.mask_token
        written = (_plain(tokenizer, label) for label in (f" {target}", str(target)))
        token = next((ids for ids in written if len(ids) == 1), None)
        if mask is None or token is None:
            raise SettingsError(
                f"the label {target!r} is several tokens; infilling needs labels of one"
                " token"
                if mask
                else "infilling needs a tokenizer that has a mask token"
            )
        asked = f"{BETWEEN} {mask}"
        read = tokenizer(text, asked, truncation="only_first", max_length=most)
        ids = read["input_ids"]
        labels = [_IGNORED] * len(ids)
        labels[len(ids) - 1 - ids[::-1].index(tokenizer.mask_token_id)] = token[0]
        return {"input_ids": ids, "labels": labels}

    def seq2seq(text: str, target: str | None) -> Row:
        given, said = (
            tokenizer(each, truncation=True, max_length=most) for each in (text, target)
        )
        return {"input_ids": given["input_ids"], "labels": said["input_ids"]}

    made = {
        "causal": causal,
        "classifier": classifier,
        "infilling": infilling,
        "seq2seq": seq2seq,
    }
    return made[form]


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def padded(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Rows side by side; what stands after a row's end is neither seen nor learnt."""
    ids, labels = ([row[name] for row in rows] for name in ("input_ids", "labels"))
    return {
        "input_ids": _filled(ids, 0),
        "attention_mask": _filled([[1] * len(row) for row in ids], 0),
        "labels": _filled(labels, _IGNORED),
    }


def _filled(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows), default=1)
    filled = [row + [value] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long).reshape(len(rows), width)


def losses(form: Form, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of what each row learns, in nats a token; shape (rows,)."""
    values = logprobs(form, logits, labels)
    there = ~values.isnan()
    return -values.where(there, 0).sum(1) / there.sum(1)


def logprobs(form: Form, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probability of each label; NaN where nothing is learnt. Shape (rows, labels)."""
    # Not those of virtual tokens, which come first.
    logits = logits[:, None] if form == "classifier" else logits[:, -labels.shape[1] :]
    if form == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    found = -cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none"
    )
    return found.masked_fill(labels == _IGNORED, torch.nan)


# Sums of the gradients of texts, each cut to a norm (Abadi et al. 2016, algorithm 1).

Gradients: TypeAlias = dict[str, torch.Tensor]
Batch: TypeAlias = dict[str, torch.Tensor]


def clipped_sums(
    model: Any,
    form: Form,
    batch: Batch,
    clip: float,
    at_once: int,
) -> tuple[Gradients, torch.Tensor]:
    """Sum the gradients of texts, each cut to a norm; also return the mean loss."""
    # The whole model is differentiated for each text (torch.func), so it does not
    # matter how weights are used: tied, as virtual tokens, or within layers that nobody
    # knows. Libraries that attach to single layers fail or differ there.
    weights = {
        name: each.detach()
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    sums = {
        name: torch.zeros_like(each, dtype=torch.float32)
        for name, each in weights.items()
    }
    total = torch.zeros((), device=next(iter(sums.values())).device)
    n_rows = batch["labels"].shape[0]

    def loss_of(weights: Gradients, row: Batch) -> torch.Tensor:
        one = {name: value[None] for name, value in row.items()}
        given = one | {"labels": one["labels"].clamp(min=0)}
        if form != "seq2seq":
            del given["labels"]
        logits = functional_call(model, weights, kwargs=given, tie_weights=True).logits
        return losses(form, logits, one["labels"])[0]

    gradients = vmap(grad_and_value(loss_of), in_dims=(None, 0), randomness="different")
    for start in range(0, n_rows, at_once):
        some = {name: value[start : start + at_once] for name, value in batch.items()}
        with _no_look_at_values():
            found, loss = gradients(weights, some)
        norms = sum(
            each.float().flatten(1).square().sum(1) for each in found.values()
        ).sqrt()
        if not norms.isfinite().all():
            raise EngineError(
                "the gradient of a text is no number; take a lower learning rate"
            )
        share = (clip / norms).clamp(max=1)
        for name, each in found.items():
            sums[name] += torch.einsum("i,i...->...", share, each.float())
        total += loss.sum()
    return sums, total / max(1, n_rows)


@contextmanager
def _no_look_at_values() -> Iterator[None]:
    """Let transformers build masks as when it is traced, whatever stands in them."""
    usual = transformers.masking_utils.is_tracing
    transformers.masking_utils.is_tracing = lambda _=None: True
    try:
        yield
    finally:
        transformers.masking_utils.is_tracing = usual


# Training with differential privacy: DP-SGD (Abadi et al. 2016, arXiv:1607.00133, algorithm 1).
#
# One text is one record. Each step takes each text by a coin of its own (Poisson sampling, which
# the accountant assumes), cuts the gradient of each to a norm, adds noise to their sum, and
# divides by the number of texts that is expected.


_TOLERANCE = 1e-3


@cache
def noise_of(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Least noise multiplier with which so many steps keep to (epsilon, delta).

    By privacy loss distributions (Koskela et al. 2020, arXiv:1906.03049; library
    dp-accounting), of Gaussian noise on Poisson-sampled batches, where data sets differ
    by one record more or less.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    event = partial(_event, rate=rate, steps=steps)
    # Renyi divergences are fast, and say too much noise, never too little.
    most = calibrate_dp_mechanism(RdpAccountant, event, epsilon, delta, tol=_TOLERANCE)
    near = ExplicitBracketInterval(most / 2, most)
    return float(
        calibrate_dp_mechanism(
            PLDAccountant, event, epsilon, delta, near, tol=_TOLERANCE
        )
    )


def epsilon_of(noise: float, delta: float, rate: float, steps: int) -> float:
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(_event(noise, rate, steps))
    return float(accountant.get_epsilon(delta))


def _event(noise: float, rate: float, steps: int) -> DpEvent:
    from dp_accounting import (
        GaussianDpEvent,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )

    return SelfComposedDpEvent(
        PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps
    )


class PoissonBatches(Sampler[list[int]]):
    """Batches of an epoch, each of which takes each row by a coin; one may be empty."""

    def __init__(self, n_rows: int, rate: float, n_batches: int, seed: int) -> None:
        self._n_rows, self._rate, self._n_batches, self._seed = (
            n_rows,
            rate,
            n_batches,
            seed,
        )
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Seed and epoch decide, so that a training that goes on draws the same.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
        for _ in range(self._n_batches):
            taken = torch.rand(self._n_rows, generator=generator) < self._rate
            yield taken.nonzero()[:, 0].tolist()

    def __len__(self) -> int:
        return self._n_batches


class _Loader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.epoch = epoch  # type: ignore[union-attr]


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """A trainer whose steps are those of DP-SGD; those of an epoch would take each row once."""

    def __init__(self, *, recipe: Recipe, at_once: int, **how: Any) -> None:
        super().__init__(**how)
        self._recipe, self._at_once = recipe, at_once
        n_rows = len(self.train_dataset)
        self._rate = min(1.0, recipe.batch_size / n_rows)
        self._steps = ceil(n_rows / recipe.batch_size)  # of an epoch
        n_steps = self._steps * recipe.epochs
        self._noise = noise_of(recipe.epsilon, recipe.delta, self._rate, n_steps)

    def get_train_dataloader(self) -> DataLoader[Any]:
        n_rows = len(self.train_dataset)
        batches = PoissonBatches(n_rows, self._rate, self._steps, self._recipe.seed)
        return _Loader(
            self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator
        )

    def training_step(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> Any:
        model.train()
        sums, loss = self._sums(model, inputs)
        spread, expected = (
            self._noise * self._recipe.clip,
            self._rate * len(self.train_dataset),
        )
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                noisy = sums[name] + noise_like(sums[name], spread)
                weight.grad = (noisy / expected).to(weight.dtype)
        return loss.detach()

    def _sums(self, model: Any, inputs: Batch) -> tuple[Gradients, torch.Tensor]:
        recipe, batch = self._recipe, self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            return clipped_sums(model, recipe.form, batch, recipe.clip, self._at_once)

    def privacy(self) -> dict[str, Any]:
        # Noise alone moves weights, too: a model that learns nothing says nothing of
        # privacy.
        first = self.data_collator(self.train_dataset[: self._at_once])
        sums, _ = self._sums(self.model, first)
        if not any(bool(each.any()) for each in sums.values()):
            raise EngineError("the texts move no weight; take another method")
        recipe, taken = self._recipe, self.state.global_step
        epsilon = epsilon_of(self._noise, recipe.delta, self._rate, taken)
        made = {
            "epsilon": epsilon,
            "delta": recipe.delta,
            "noise_multiplier": self._noise,
        }
        return made | {"clip": recipe.clip, "sampling_rate": self._rate, "steps": taken}


def noise_like(sums: torch.Tensor, spread: float) -> torch.Tensor:
    return torch.normal(0, spread, sums.shape, device=sums.device)


# Checkpoints of a training: the last that was completely written, and the model in one.

_CONFIG = "adapter_config.json"
_STATE = "trainer_state.json"  # the trainer writes it last
_TRAINED = "trained.pt"
_TRAINERS_OWN = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}


class TrainedWeights(transformers.TrainerCallback):  # type: ignore[misc]
    """Adds the trained weights to checkpoints of P-tuning, of which peft keeps the output alone."""

    def __init__(self, last: Path | None) -> None:
        self._last = last

    def on_train_begin(self, *_: object, model: Any, **__: object) -> None:
        if self._last is not None:
            model.load_state_dict(torch.load(self._last / _TRAINED), strict=False)

    def on_save(self, args: Any, state: Any, *_: Any, model: Any, **__: Any) -> None:
        path = checkpoint_of(Path(args.output_dir), state.global_step) / _TRAINED
        weights = {name: each.data for name, each in _trained(model)}
        torch.save(weights, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def last_whole(folder: Path, *, adds_weights: bool) -> tuple[Path | None, int | None]:
    """Return the last checkpoint, and the epoch after which its training had stopped early."""
    # A trainer that goes on after an early stop would train one more epoch.
    while folder.is_dir() and (found := get_last_checkpoint(str(folder))) is not None:
        last = Path(found)
        try:
            state = json.loads((last / _STATE).read_text("utf-8"))
        except (OSError, ValueError):
            state = None
        if state is not None and (not adds_weights or (last / _TRAINED).exists()):
            control = state["stateful_callbacks"]["TrainerControl"]["args"]
            return last, (
                round(state["epoch"]) if control["should_training_stop"] else None
            )
        shutil.rmtree(last)
    return None, None


def copy_model(checkpoint: Path, made: Path) -> None:
    made.mkdir()
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in {_STATE, _TRAINED, *_TRAINERS_OWN}:
            shutil.copyfile(path, made / path.name)
    if (config := made / _CONFIG).exists():
        said = json.loads(config.read_text("utf-8"))
        for name, value in said.items():
            if isinstance(value, list) and name.endswith("_modules"):
                # Peft writes them in another order each time
                said[name] = sorted(value)
        config.write_text(json.dumps(said, indent=2))


def trained_sums(model: Any) -> list[float]:
    """Sum up each tensor that is trained: another sum, other weights."""
    sums = [each.detach().sum(dtype=torch.float64) for _, each in _trained(model)]
    if not all(map(torch.isfinite, sums)):
        raise EngineError(
            "the weights are no numbers any more; take a lower learning rate"
        )
    return [float(each) for each in sums]


def _trained(
    model: Any,
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return (
        (name, each) for name, each in model.named_parameters() if each.requires_grad
    )


# A checkpoint is written after each epoch, and a killed training goes on from the last
# that is whole. On a CPU it ends with the same weights as one that was not killed.

_TOKENS_AT_ONCE = 8192  # of one forward and backward pass
# Numbers, 2 GiB in float32, of the gradients of single texts
_GRADIENTS_AT_ONCE = 1 << 29
_LARGE = 1_000_000_000  # weights, from which activations are computed again, not kept


def train(
    making: TrainingTexts, work: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    recipe = making.recipe
    transformers.set_seed(recipe.seed)
    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_gpu and recipe.method != "full" else torch.float32
    how: dict[str, Any] = {"dtype": dtype}
    if on_gpu and torch.cuda.device_count() > 1:
        how["device_map"] = "auto"
    if recipe.form == "classifier":
        names = dict(enumerate(recipe.labels))
        how |= {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    if recipe.epsilon is not None:
        how["attn_implementation"] = (
            "eager"  # others cannot be differentiated for each text
        )
    model, tokenizer, row_of = opened(making.base, making.revision, recipe, **how)
    targets = making.targets or [None] * len(making.texts)
    rows = [
        row_of(text, target) for text, target in zip(making.texts, targets, strict=True)
    ]
    done = fit(adapted(model, recipe), rows, padded, recipe, work, say)
    tokenizer.save_pretrained(work / "made")
    return done


def opened(
    base: str, revision: str | None, recipe: Recipe, **how: Any
) -> tuple[Any, Any, Any]:
    where = {"revision": revision, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **where)
    if recipe.form == "classifier":
        how["num_labels"] = len(recipe.labels)
    model = model_class(recipe.form).from_pretrained(base, **where, **how)
    most = longest_text(model.config, recipe)
    return model, tokenizer, encoder(recipe.form, tokenizer, most, recipe.labels)


def fit(
    model: Any,
    rows: list[Row],
    collate: Callable[[list[Row]], dict[str, torch.Tensor]],
    recipe: Recipe,
    work: Path,
    say: Callable[[str], None],
    kind: type[transformers.Trainer] = transformers.Trainer,
) -> dict[str, Any]:
    """Train a model on rows, from the last checkpoint on; return ``losses`` and ``privacy``."""
    random.Random(recipe.seed).shuffle(rows)
    n = recipe.n_held_out(len(rows))
    held_out, learnt = (
        [row for row in some if any(label != _IGNORED for label in row["labels"])]
        for some in (rows[:n], rows[n:])
    )
    if not learnt:
        raise SettingsError(
            "each text is one token, of which nothing can be learnt; give longer texts"
        )
    at_once = _at_once(model, learnt + held_out, recipe)
    adds_weights = recipe.method == "p-tuning"
    last, stopped = last_whole(work / "checkpoints", adds_weights=adds_weights)
    more = {
        "output_dir": str(work / "checkpoints"),
        "num_train_epochs": stopped or recipe.epochs,
    }
    arguments = _arguments(model, recipe, at_once, evaluates=bool(held_out), **more)
    callbacks: list[transformers.TrainerCallback] = [
        _Teller(recipe.epochs, "eval_loss" if held_out else "loss", say)
    ]
    if adds_weights:
        callbacks.append(TrainedWeights(last))
    if held_out:
        callbacks.append(transformers.EarlyStoppingCallback(recipe.patience))
    how: dict[str, Any] = {"model": model, "args": arguments, "data_collator": collate}
    how |= {
        "train_dataset": learnt,
        "eval_dataset": held_out or None,
        "callbacks": callbacks,
    }
    is_private = recipe.epsilon is not None
    trainer = (
        PrivateTrainer(recipe=recipe, at_once=at_once, **how)
        if is_private
        else kind(**how)
    )
    trainer.remove_callback(transformers.PrinterCallback)
    before = trained_sums(trainer.model)
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    if trained_sums(trainer.model) == before:
        raise EngineError(
            "training has moved no weight; take a higher learning rate, or another"
            " method"
        )
    state = trainer.state
    best = state.best_global_step if held_out else None
    copy_model(
        checkpoint_of(work / "checkpoints", best or state.global_step), work / "made"
    )
    losses = _losses(state.log_history)
    if held_out:
        kept = min(losses, key=lambda each: each.get("held_out_loss", inf))["epoch"]
        say(f"epoch {kept:.0f} is kept, whose loss on held-out texts is the lowest")
    return {"losses": losses, "privacy": trainer.privacy() if is_private else None}


def _at_once(model: Any, rows: list[Row], recipe: Recipe) -> int:
    """Count the rows of one pass that memory holds; they divide a batch."""
    most = min(
        recipe.batch_size, _TOKENS_AT_ONCE // max(len(row["input_ids"]) for row in rows)
    )
    if recipe.epsilon is not None:
        n_trained = sum(
            each.numel() for each in model.parameters() if each.requires_grad
        )
        most = min(most, _GRADIENTS_AT_ONCE // n_trained)
    return next(n for n in range(max(1, most), 0, -1) if recipe.batch_size % n == 0)


def _arguments(
    model: Any,
    recipe: Recipe,
    at_once: int,
    *,
    evaluates: bool,
    **more: Any,
) -> transformers.TrainingArguments:
    is_private, on_gpu = recipe.epsilon is not None, torch.cuda.is_available()
    each_epoch = dict.fromkeys(("save_strategy", "logging_strategy"), "epoch")
    is_large = model.num_parameters() > _LARGE and recipe.method != "prefix"
    arguments = transformers.TrainingArguments(
        **more,
        **each_epoch,
        learning_rate=recipe.learning_rate,
        per_device_train_batch_size=at_once,
        per_device_eval_batch_size=at_once,
        gradient_accumulation_steps=1 if is_private else recipe.batch_size // at_once,
        gradient_checkpointing=is_large and not is_private,
        bf16=on_gpu,
        eval_strategy="epoch" if evaluates else "no",
        save_total_limit=n_checkpoints(recipe),
        metric_for_best_model="eval_loss" if evaluates else None,
        greater_is_better=False if evaluates else None,
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
    return arguments


class _Teller(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells of each epoch once its losses are known, of which ``last`` comes last."""

    def __init__(self, epochs: int, last: str, say: Callable[[str], None]) -> None:
        self._epochs, self._last, self._say = epochs, last, say
        self._losses: dict[str, float] = {}

    def on_log(
        self, _: Any, state: Any, *__: Any, logs: Any = None, **___: Any
    ) -> None:
        self._losses |= _numbers(logs or {})
        if self._last in (logs or {}):
            texts = {"loss": "loss", "held_out_loss": "on held-out texts"}
            found = (
                f"{texts[name]} {value:.3f}" for name, value in self._losses.items()
            )
            self._say(
                f"epoch {round(state.epoch)} of {self._epochs}: {', '.join(found)}"
            )


def _numbers(logs: dict[str, Any]) -> dict[str, float]:
    names = {"loss": "loss", "eval_loss": "held_out_loss"}
    return {new: float(logs[old]) for old, new in names.items() if old in logs}


def _losses(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    rows: dict[float, dict[str, float]] = {}
    for entry in history:
        if found := _numbers(entry):
            rows.setdefault(entry["epoch"], {"epoch": entry["epoch"]}).update(found)
    return [rows[epoch] for epoch in sorted(rows)]
