"""The training itself, with or without differential privacy; only here torch is loaded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    add_adapter,
    count_trained_weights,
    max_text_tokens,
    n_checkpoints,
)
from mia_batch.observer import Observer
from mia_batch.recipes import Form, Recipe

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from transformers import PreTrainedTokenizerBase

Row: TypeAlias = dict[str, list[int]]
"""``input_ids`` and ``labels`` of one text."""
Encoder: TypeAlias = Callable[[str, str | None], Row]
"""Makes the row of a text and its target."""

_IGNORED = -100  # label of what is not learnt
LABEL_PREFIX = " The label is"  # between a text and its target


def model_class(form: Form) -> Any:
    return getattr(transformers, f"AutoModelFor{FORMS[form].auto_class}")


@dataclass(frozen=True, slots=True)
class _RowEncoder:
    """Encodes texts with their targets, by a method for each form of model."""

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    labels: Sequence[str]

    def causal(self, text: str, target: str | None) -> Row:
        ids = list(self.tokenizer(text, truncation=False)["input_ids"])
        end = self.tokenizer.eos_token_id
        if end is not None and ids[-1:] == [end]:
            ids.pop()
        tail = [] if end is None else [end]
        if target is None:
            ids = (ids + tail)[: self.max_tokens]
        else:
            tail = self._encode_plain(f"{LABEL_PREFIX} {target}") + tail
            ids = ids[: max(1, self.max_tokens - len(tail))] + tail
        # Not the first: with virtual tokens before it, peft would predict it from them.
        return {"input_ids": ids, "labels": [_IGNORED, *ids[1:]]}

    def answer(self, context: str, text: str | None) -> Row:
        """Encode a text after a context, which is read and not learnt."""
        encoded = self.tokenizer(
            context + (text or ""),
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        starts = [start for start, _ in encoded["offset_mapping"]]
        ids = list(encoded["input_ids"])
        n_context = sum(start < len(context) for start in starts)
        # What does not fit is what is furthest from the answer, then the answer's end
        n_cut = max(0, min(len(ids) - self.max_tokens, n_context - 1))
        labels = [_IGNORED] * n_context + ids[n_context:]
        end = n_cut + self.max_tokens
        return {"input_ids": ids[n_cut:end], "labels": labels[n_cut:end]}

    def classifier(self, text: str, target: str | None) -> Row:
        label = self.labels.index(str(target))
        return {"input_ids": self._encode_start(text), "labels": [label]}

    def infilling(self, text: str, target: str | None) -> Row:
        mask = self.tokenizer.mask_token
        if mask is None:
            raise SettingsError("infilling needs a tokenizer that has a mask token")
        spellings = (f" {target}", str(target))
        encoded = [self._encode_plain(spelling) for spelling in spellings]
        single_tokens = [ids[0] for ids in encoded if len(ids) == 1]
        if not single_tokens:
            raise SettingsError(
                f"the label {target!r} is several tokens; infilling needs labels of one"
                " token"
            )
        ids = self.tokenizer(
            text,
            f"{LABEL_PREFIX} {mask}",
            truncation="only_first",
            max_length=self.max_tokens,
        )["input_ids"]
        # The last mask, since the text may have some, too
        from_end = ids[::-1].index(self.tokenizer.mask_token_id)
        labels = [_IGNORED] * len(ids)
        labels[len(ids) - 1 - from_end] = single_tokens[0]
        return {"input_ids": ids, "labels": labels}

    def seq2seq(self, text: str, target: str | None) -> Row:
        return {
            "input_ids": self._encode_start(text),
            "labels": self._encode_start(target),
        }

    def _encode_plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _encode_start(self, text: str | None) -> Any:
        encoded = self.tokenizer(text, truncation=True, max_length=self.max_tokens)
        return encoded["input_ids"]


def build_encoder(
    form: Form,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    labels: Sequence[str],
) -> Encoder:
    """Build what makes the row of a text and its target, of at most so many tokens."""
    encoder = _RowEncoder(tokenizer, max_tokens, labels)
    methods = {
        "causal": encoder.causal,
        "answer": encoder.answer,
        "classifier": encoder.classifier,
        "infilling": encoder.infilling,
        "seq2seq": encoder.seq2seq,
    }
    return methods[form]


def pad_rows(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Stack rows of one width; what stands after a row's end is neither seen nor learnt."""
    ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": _pad(ids, 0),
        "attention_mask": _pad([[1] * len(row) for row in ids], 0),
        "labels": _pad([row["labels"] for row in rows], _IGNORED),
    }


def _pad(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows), default=1)
    padded = [row + [value] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)


def mean_losses(form: Form, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of what each row learns, in nats a token; shape (rows,)."""
    values = label_logprobs(form, logits, labels)
    is_learnt = ~values.isnan()
    return -values.where(is_learnt, 0).sum(1) / is_learnt.sum(1)


def label_logprobs(
    form: Form, logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Log-probability of each label; NaN where nothing is learnt. Shape (rows, labels)."""
    # Not those of virtual tokens, which come first.
    logits = logits[:, None] if form == "classifier" else logits[:, -labels.shape[1] :]
    if form in ("causal", "answer"):
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    values = -cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none"
    )
    return values.masked_fill(labels == _IGNORED, torch.nan)


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
    weights = {name: weight.detach() for name, weight in _trained_weights(model)}
    sums = {
        name: torch.zeros_like(weight, dtype=torch.float32)
        for name, weight in weights.items()
    }
    total_loss = torch.zeros((), device=next(iter(sums.values())).device)
    n_rows = batch["labels"].shape[0]

    def row_loss(weights: Gradients, row: Batch) -> torch.Tensor:
        inputs = {name: value[None] for name, value in row.items()}
        labels = inputs.pop("labels")
        if form == "seq2seq":
            inputs["labels"] = labels.clamp(min=0)
        outputs = functional_call(model, weights, kwargs=inputs, tie_weights=True)
        return mean_losses(form, outputs.logits, labels)[0]

    differentiate = vmap(
        grad_and_value(row_loss), in_dims=(None, 0), randomness="different"
    )
    for start in range(0, n_rows, at_once):
        rows = {name: value[start : start + at_once] for name, value in batch.items()}
        with _value_free_masks():
            gradients, losses = differentiate(weights, rows)
        squares = (
            gradient.float().flatten(1).square().sum(1)
            for gradient in gradients.values()
        )
        norms = sum(squares).sqrt()
        if not norms.isfinite().all():
            raise EngineError(
                "the gradient of a text is no number; take a lower learning rate"
            )
        shares = (clip / norms).clamp(max=1)
        for name, gradient in gradients.items():
            sums[name] += torch.einsum("i,i...->...", shares, gradient.float())
        total_loss += losses.sum()
    return sums, total_loss / max(1, n_rows)


@contextmanager
def _value_free_masks() -> Iterator[None]:
    """Let transformers build masks as when it is traced, whatever stands in them."""
    is_tracing = transformers.masking_utils.is_tracing
    transformers.masking_utils.is_tracing = lambda _=None: True
    try:
        yield
    finally:
        transformers.masking_utils.is_tracing = is_tracing


# Training with differential privacy: DP-SGD (Abadi et al. 2016, arXiv:1607.00133, algorithm 1).
#
# One text is one record. Each step takes each text by a coin of its own (Poisson sampling, which
# the accountant assumes), cuts the gradient of each to a norm, adds noise to their sum, and
# divides by the number of texts that is expected.


_TOLERANCE = 1e-3


@cache
def find_noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int
) -> float:
    """Find the least noise multiplier with which so many steps keep to (epsilon, delta).

    By privacy loss distributions (Koskela et al. 2020, arXiv:1906.03049; library
    dp-accounting), of Gaussian noise on Poisson-sampled batches, where data sets differ
    by one record more or less.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    event = partial(_training_event, rate=rate, steps=steps)
    # Renyi divergences are fast, and ask for too much noise, never too little.
    upper = calibrate_dp_mechanism(RdpAccountant, event, epsilon, delta, tol=_TOLERANCE)
    bracket = ExplicitBracketInterval(upper / 2, upper)
    noise = calibrate_dp_mechanism(
        PLDAccountant, event, epsilon, delta, bracket, tol=_TOLERANCE
    )
    return float(noise)


def compute_epsilon(noise: float, delta: float, rate: float, steps: int) -> float:
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(_training_event(noise, rate, steps))
    return float(accountant.get_epsilon(delta))


def _training_event(noise: float, rate: float, steps: int) -> DpEvent:
    """Describe a training to the accountant."""
    from dp_accounting import (
        GaussianDpEvent,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )

    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    return SelfComposedDpEvent(step, steps)


class PoissonBatches(Sampler[list[int]]):
    """Batches of an epoch, each of which takes each row by a coin; one may be empty."""

    def __init__(self, n_rows: int, rate: float, n_batches: int, seed: int) -> None:
        self._n_rows = n_rows
        self._rate = rate
        self._n_batches = n_batches
        self._seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Seed and epoch decide, so that a training that goes on draws the same.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
        for _ in range(self._n_batches):
            is_drawn = torch.rand(self._n_rows, generator=generator) < self._rate
            yield is_drawn.nonzero()[:, 0].tolist()

    def __len__(self) -> int:
        return self._n_batches


class _Loader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.epoch = epoch  # type: ignore[union-attr]


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """A trainer whose steps are those of DP-SGD; those of an epoch would take each row once."""

    def __init__(self, *, recipe: Recipe, at_once: int, **options: Any) -> None:
        super().__init__(**options)
        self._recipe = recipe
        self._at_once = at_once
        n_rows = len(self.train_dataset)
        self._rate = min(1.0, recipe.batch_size / n_rows)
        self._steps_per_epoch = ceil(n_rows / recipe.batch_size)
        n_steps = self._steps_per_epoch * recipe.epochs
        self._noise = find_noise_multiplier(
            recipe.epsilon, recipe.delta, self._rate, n_steps
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        batches = PoissonBatches(
            len(self.train_dataset),
            self._rate,
            self._steps_per_epoch,
            self._recipe.seed,
        )
        return _Loader(
            self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator
        )

    def training_step(self, model: Any, inputs: Batch, *_: Any, **__: Any) -> Any:
        model.train()
        sums, loss = self._clipped_sums(model, inputs)
        spread = self._noise * self._recipe.clip
        n_expected = self._rate * len(self.train_dataset)
        for name, weight in _trained_weights(model):
            noisy = sums[name] + noise_like(sums[name], spread)
            weight.grad = (noisy / n_expected).to(weight.dtype)
        return loss.detach()

    def _clipped_sums(
        self, model: Any, inputs: Batch
    ) -> tuple[Gradients, torch.Tensor]:
        recipe = self._recipe
        batch = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            return clipped_sums(model, recipe.form, batch, recipe.clip, self._at_once)

    def compute_privacy(self) -> dict[str, Any]:
        """Return the privacy that the training has kept to, and by what."""
        # Noise alone moves weights, too: a model that learns nothing says nothing of
        # privacy.
        first_rows = self.data_collator(self.train_dataset[: self._at_once])
        sums, _ = self._clipped_sums(self.model, first_rows)
        if not any(bool(gradient.any()) for gradient in sums.values()):
            raise EngineError("the texts move no weight; take another method")
        delta = self._recipe.delta
        n_steps = self.state.global_step
        return {
            "epsilon": compute_epsilon(self._noise, delta, self._rate, n_steps),
            "delta": delta,
            "noise_multiplier": self._noise,
            "clip": self._recipe.clip,
            "sampling_rate": self._rate,
            "steps": n_steps,
        }


def noise_like(sums: torch.Tensor, spread: float) -> torch.Tensor:
    return torch.normal(0, spread, sums.shape, device=sums.device)


# Checkpoints of a training: the last that was completely written, and the model in one.

_CONFIG = "adapter_config.json"
_STATE = "trainer_state.json"  # the trainer writes it last
_TRAINED = "trained.pt"
_TRAINERS_OWN = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}


class TrainedWeights(transformers.TrainerCallback):  # type: ignore[misc]
    """Adds the trained weights to checkpoints of P-tuning, of which peft keeps the output alone."""

    def __init__(self, checkpoint: Path | None) -> None:
        self._checkpoint = checkpoint

    def on_train_begin(self, *_: object, model: Any, **__: object) -> None:
        if self._checkpoint is not None:
            weights = torch.load(self._checkpoint / _TRAINED)
            model.load_state_dict(weights, strict=False)

    def on_save(self, args: Any, state: Any, *_: Any, model: Any, **__: Any) -> None:
        folder = checkpoint_path(Path(args.output_dir), state.global_step)
        path = folder / _TRAINED
        weights = {name: weight.data for name, weight in _trained_weights(model)}
        torch.save(weights, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def find_last_checkpoint(
    folder: Path, *, adds_weights: bool
) -> tuple[Path | None, int | None]:
    """Return the last whole checkpoint, and the epoch after which its training stopped early."""
    # A trainer that goes on after an early stop would train one more epoch.
    while folder.is_dir():
        path = get_last_checkpoint(str(folder))
        if path is None:
            break
        checkpoint = Path(path)
        try:
            state = json.loads((checkpoint / _STATE).read_text("utf-8"))
        except (OSError, ValueError):
            state = None
        has_weights = not adds_weights or (checkpoint / _TRAINED).exists()
        if state is not None and has_weights:
            control = state["stateful_callbacks"]["TrainerControl"]["args"]
            has_stopped = control["should_training_stop"]
            return checkpoint, round(state["epoch"]) if has_stopped else None
        shutil.rmtree(checkpoint)
    return None, None


def copy_model(checkpoint: Path, folder: Path) -> None:
    """Copy the model's files of a checkpoint, without those of the training."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in {_STATE, _TRAINED, *_TRAINERS_OWN}:
            shutil.copyfile(path, folder / path.name)
    config_path = folder / _CONFIG
    if config_path.exists():
        config = json.loads(config_path.read_text("utf-8"))
        for name, value in config.items():
            if isinstance(value, list) and name.endswith("_modules"):
                # Peft writes them in another order each time
                config[name] = sorted(value)
        config_path.write_text(json.dumps(config, indent=2))


def sum_trained_weights(model: Any) -> list[float]:
    """Sum up each tensor that is trained: another sum, other weights."""
    sums = [
        weight.detach().sum(dtype=torch.float64)
        for _, weight in _trained_weights(model)
    ]
    if not all(map(torch.isfinite, sums)):
        raise EngineError(
            "the weights are no numbers any more; take a lower learning rate"
        )
    return [float(total) for total in sums]


def _trained_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return (
        (name, weight)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    )


# A checkpoint is written after each epoch, and a killed training goes on from the last
# that is whole. On a CPU it ends with the same weights as one that was not killed.

_TOKENS_AT_ONCE = 8192  # of one forward and backward pass
# Numbers, 2 GiB in float32, of the gradients of single texts
_GRADIENTS_AT_ONCE = 1 << 29
_LARGE = 1_000_000_000  # weights, from which activations are computed again, not kept


def train(
    config: TrainingTexts,
    work: Path,
    say: Callable[[str], None],
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Write the model to ``made`` in the work folder; return its losses and privacy."""
    recipe = config.recipe
    transformers.set_seed(recipe.seed)
    on_gpu = torch.cuda.is_available()
    in_half_precision = on_gpu and recipe.method != "full"
    options: dict[str, Any] = {
        "dtype": torch.bfloat16 if in_half_precision else torch.float32
    }
    if on_gpu and torch.cuda.device_count() > 1:
        options["device_map"] = "auto"
    if recipe.form == "classifier":
        labels = dict(enumerate(recipe.labels))
        options["id2label"] = labels
        options["label2id"] = {label: number for number, label in labels.items()}
    if recipe.epsilon is not None:
        # Others cannot be differentiated for each text
        options["attn_implementation"] = "eager"
    model, tokenizer, encode = load_base(
        config.base, config.revision, recipe, **options
    )
    targets = config.targets or [None] * len(config.texts)
    rows = [
        encode(text, target) for text, target in zip(config.texts, targets, strict=True)
    ]
    tokens = _count_tokens(rows)
    if recipe.form == "answer":
        say(
            f"{tokens['learnt']:,} of {tokens['read']:,} tokens have a loss, those of"
            " answers"
        )
    adapted = add_adapter(model, recipe)
    outcome = fit(adapted, rows, pad_rows, recipe, work, say, observer=observer)
    outcome["tokens"] = tokens
    tokenizer.save_pretrained(work / "made")
    return outcome


def _count_tokens(rows: list[Row]) -> dict[str, int]:
    """Count the tokens that are read in an epoch, and those that have a loss."""
    return {
        "read": sum(len(row["input_ids"]) for row in rows),
        "learnt": sum(label != _IGNORED for row in rows for label in row["labels"]),
    }


def load_base(
    base: str, revision: str | None, recipe: Recipe, **options: Any
) -> tuple[Any, Any, Encoder]:
    """Load a model, its tokenizer, and what makes its rows."""
    source = {"revision": revision, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **source)
    if recipe.form == "classifier":
        options["num_labels"] = len(recipe.labels)
    model = model_class(recipe.form).from_pretrained(base, **source, **options)
    max_tokens = max_text_tokens(model.config, recipe)
    encoder = build_encoder(recipe.form, tokenizer, max_tokens, recipe.labels)
    return model, tokenizer, encoder


def fit(
    model: Any,
    rows: list[Row],
    collate: Callable[[list[Row]], dict[str, torch.Tensor]],
    recipe: Recipe,
    work: Path,
    say: Callable[[str], None],
    trainer_class: type[transformers.Trainer] = transformers.Trainer,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Train a model on rows, from the last checkpoint on; return ``losses`` and ``privacy``."""
    learnt, held_out = _split_rows(rows, recipe)
    folder = work / "checkpoints"
    checkpoint, last_epoch = find_last_checkpoint(
        folder, adds_weights=recipe.method == "p-tuning"
    )
    at_once = _count_rows_at_once(model, learnt + held_out, recipe)
    evaluates = bool(held_out)
    arguments = _training_arguments(
        model,
        recipe,
        at_once,
        evaluates=evaluates,
        output_dir=str(folder),
        num_train_epochs=last_epoch or recipe.epochs,
    )
    options: dict[str, Any] = {
        "model": model,
        "args": arguments,
        "data_collator": collate,
        "train_dataset": learnt,
        "eval_dataset": held_out or None,
        "callbacks": _callbacks(recipe, checkpoint, say, evaluates=evaluates),
    }
    is_private = recipe.epsilon is not None
    if is_private:
        trainer = PrivateTrainer(recipe=recipe, at_once=at_once, **options)
    else:
        trainer = trainer_class(**options)
    trainer.remove_callback(transformers.PrinterCallback)
    observer = observer or Observer()
    trainer.add_callback(_StepReporter(observer))
    sums_before = sum_trained_weights(trainer.model)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        observer.work_ended()
    if sum_trained_weights(trainer.model) == sums_before:
        raise EngineError(
            "training has moved no weight; take a higher learning rate, or another"
            " method"
        )
    best_step = trainer.state.best_global_step if held_out else None
    step = best_step or trainer.state.global_step
    copy_model(checkpoint_path(folder, step), work / "made")
    losses = _epoch_losses(trainer.state.log_history)
    if held_out:
        best = min(losses, key=lambda row: row.get("held_out_loss", inf))
        say(
            f"epoch {best['epoch']:.0f} is kept, whose loss on held-out texts is the"
            " lowest"
        )
    privacy = trainer.compute_privacy() if is_private else None
    return {"losses": losses, "privacy": privacy}


def _split_rows(rows: list[Row], recipe: Recipe) -> tuple[list[Row], list[Row]]:
    """Shuffle rows; return those that are learnt and those held out, of any labels."""
    random.Random(recipe.seed).shuffle(rows)
    n_held_out = recipe.n_held_out(len(rows))

    def has_labels(row: Row) -> bool:
        return any(label != _IGNORED for label in row["labels"])

    held_out = list(filter(has_labels, rows[:n_held_out]))
    learnt = list(filter(has_labels, rows[n_held_out:]))
    if not learnt:
        raise SettingsError(
            "each text is one token, of which nothing can be learnt; give longer texts"
        )
    return learnt, held_out


def _count_rows_at_once(model: Any, rows: list[Row], recipe: Recipe) -> int:
    """Count the rows of one pass that memory holds; they divide a batch."""
    longest = max(len(row["input_ids"]) for row in rows)
    limit = min(recipe.batch_size, _TOKENS_AT_ONCE // longest)
    if recipe.epsilon is not None:
        limit = min(limit, _GRADIENTS_AT_ONCE // count_trained_weights(model))
    return next(n for n in range(max(1, limit), 0, -1) if recipe.batch_size % n == 0)


def _training_arguments(
    model: Any, recipe: Recipe, at_once: int, *, evaluates: bool, **options: Any
) -> transformers.TrainingArguments:
    is_private = recipe.epsilon is not None
    on_gpu = torch.cuda.is_available()
    is_large = model.num_parameters() > _LARGE and recipe.method != "prefix"
    arguments = transformers.TrainingArguments(
        **options,
        save_strategy="epoch",
        logging_strategy="epoch",
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.schedule,
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


def _callbacks(
    recipe: Recipe,
    checkpoint: Path | None,
    say: Callable[[str], None],
    *,
    evaluates: bool,
) -> list[transformers.TrainerCallback]:
    last_loss = "eval_loss" if evaluates else "loss"
    callbacks: list[transformers.TrainerCallback] = [
        _EpochReporter(recipe.epochs, last_loss, say)
    ]
    if recipe.method == "p-tuning":
        callbacks.append(TrainedWeights(checkpoint))
    if evaluates:
        callbacks.append(transformers.EarlyStoppingCallback(recipe.patience))
    return callbacks


class _EpochReporter(transformers.TrainerCallback):  # type: ignore[misc]
    """Reports each epoch once its losses are known, of which ``last_loss`` comes last."""

    def __init__(self, epochs: int, last_loss: str, say: Callable[[str], None]) -> None:
        self._epochs = epochs
        self._last_loss = last_loss
        self._say = say
        self._losses: dict[str, float] = {}

    def on_log(
        self, _: Any, state: Any, *__: Any, logs: Any = None, **___: Any
    ) -> None:
        logs = logs or {}
        self._losses |= _read_losses(logs)
        if self._last_loss in logs:
            names = {"loss": "loss", "held_out_loss": "on held-out texts"}
            losses = ", ".join(
                f"{names[key]} {value:.3f}" for key, value in self._losses.items()
            )
            self._say(f"epoch {round(state.epoch)} of {self._epochs}: {losses}")


class _StepReporter(transformers.TrainerCallback):  # type: ignore[misc]
    """Reports how many steps are done, of all that there can be."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._n_done = 0

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self._n_done = state.global_step
        total = state.max_steps
        self._observer.working("tuning", done=self._n_done, total=total, unit="step")

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self._observer.worked(state.global_step - self._n_done, 0)
        self._n_done = state.global_step


def _read_losses(logs: dict[str, Any]) -> dict[str, float]:
    """Return the losses of an entry of the trainer's log, by our names."""
    names = {"loss": "loss", "eval_loss": "held_out_loss"}
    return {ours: float(logs[key]) for key, ours in names.items() if key in logs}


def _epoch_losses(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    rows: dict[float, dict[str, float]] = {}
    for entry in history:
        losses = _read_losses(entry)
        if losses:
            row = rows.setdefault(entry["epoch"], {"epoch": entry["epoch"]})
            row.update(losses)
    return [rows[epoch] for epoch in sorted(rows)]
