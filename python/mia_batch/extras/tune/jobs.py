"""Models that are tuned here: whether a base can be, its size, and the training of each, once."""

import gc
import json
import logging
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from errno import ENOSPC
from functools import cached_property
from hashlib import blake2b, sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
from filelock import FileLock, Timeout
from numpy.random import default_rng

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.corpus.conversations import CONVERSATION
from mia_batch.corpus.documents import Conversations
from mia_batch.errors import (
    EngineError,
    MiaBatchError,
    RunFolderError,
    SettingsError,
    describe_error,
)
from mia_batch.extras.tune.base import (
    TrainingTexts,
    add_adapter,
    check_base,
    count_trained_weights,
    n_checkpoints,
)
from mia_batch.models.weights import identify_model, quiet, weights_source
from mia_batch.observer import Observer
from mia_batch.places import is_url
from mia_batch.prompts import build_lessons
from mia_batch.recipes import Recipe, in_half
from mia_batch.tables import digest, put_copy, sync_folder, system_errors, write_table

# The entry point ``tuned`` of ``mia_batch.models`` is this module: the core asks it for
# these.
__all__ = [
    "TrainedModel",
    "TrainingConfig",
    "check_base",
    "describe_size",
    "finetune",
    "train_or_load",
    "why_no_finetuning",
]


# Of a trained weight in float32: itself, gradient, two moments
_TRAINED_BYTES = 16
_FROZEN_BYTES = {True: 2, False: 4}  # on an accelerator, on a CPU


def describe_size(base: str, revision: str | None, recipe: Recipe) -> str:
    """Return how many weights are trained, and what memory and disk that takes."""
    # Activations come on top; nobody knows them before.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_base(base, revision, recipe)
    model_config = AutoConfig.from_pretrained(base, revision=revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
        n_weights = model.num_parameters()
        adapted = add_adapter(model, recipe)
    n_trained = count_trained_weights(adapted)
    n_saved = n_trained
    n_in_checkpoint = n_trained
    # P-tuning saves what its encoder says, from which no training goes on; checkpoints
    # hold both
    if recipe.method == "p-tuning":
        n_saved = adapted.prompt_encoder["default"].embedding.weight.numel()
        n_in_checkpoint += n_saved
    n_frozen = 0 if recipe.method == "full" else n_weights
    frozen_memory = n_frozen * _FROZEN_BYTES[torch.cuda.is_available()]
    memory = frozen_memory + n_trained * _TRAINED_BYTES
    checkpoint = 4 * (2 * n_trained + n_in_checkpoint)  # with two moments
    return (
        f"{n_trained:,} of {n_weights:,} weights, {_gib(memory)} of memory without"
        f" activations, {_gib(4 * n_saved)} of disk and"
        f" {_gib(n_checkpoints(recipe) * checkpoint)} while it is trained"
    )


def _gib(n_bytes: int) -> str:
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.1f} GiB"
    return f"{n_bytes / 2**20:.0f} MiB"


# A model is trained once: its configuration names it, and a killed training goes on.

TrainingJob: TypeAlias = "tuple[str, TrainingConfig, Path]"
"""A model's name in the run, how it is trained, and its folder."""
_RECORD = "training.json"
_ROOM = 1 << 16  # bytes that a disk has left which is not full
_SECONDS_FOR_OTHERS = 5.0


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class TrainingConfig(TrainingTexts):
    """What a model is trained from, and how."""

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """Digest of the base, SHA-256 of the texts, and the recipe; equal: the same model."""
        targets = self.targets if any(self.targets) else ()
        texts_hash = sha256()
        for text in chain(self.texts, targets):
            content = b"" if text is None else text.encode()
            texts_hash.update(len(content).to_bytes(8, "little") + content)
        recipe = asdict(self.recipe)
        if self.recipe.schedule == "linear":
            del recipe["schedule"]  # models from before there was another are the same
        return {
            "base": identify_model(self.base, self.revision, "any").digest,
            "texts": texts_hash.hexdigest(),
            "recipe": recipe,
        }

    @cached_property
    def digest(self) -> str:
        return _hash_json(self.made_from)

    def train(
        self, work: Path, say: Callable[[str], None], observer: Observer | None = None
    ) -> dict[str, Any]:
        """Write the model to the folder's ``made``; return its ``losses`` and ``privacy``."""
        from mia_batch.extras.tune.training import train

        return train(self, work, say, observer)


def _hash_json(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model that was trained; ``is_new``: just now.

    ``losses`` has a row an epoch: ``epoch``, ``loss`` (nats a token), and
    ``held_out_loss`` where texts were held out. ``privacy`` is what a training with
    differential privacy comes to: ``epsilon``, ``delta``, ``noise_multiplier``,
    ``clip``, ``sampling_rate``, ``steps``; else None.
    """

    path: Path
    losses: list[dict[str, float]]
    privacy: dict[str, Any] | None
    is_new: bool


def train_or_load(
    config: TrainingConfig,
    path: Path,
    say: Callable[[str], None],
    observer: Observer | None = None,
) -> TrainedModel:
    """Return the model at ``path``, trained first where it is not there, or trained further.

    An ``observer`` is shown each step.
    """
    if path.exists() or path.is_symlink():
        model = _load(config, path)
        # Of a command that was killed once the model was there
        if _work_path(path).is_dir():
            with suppress(RunFolderError), _work_folder(path):
                pass
        return model
    n_texts = len(config.texts)
    if n_texts < 2:
        raise SettingsError(
            f"there are {n_texts} texts to tune a model on; give at least 2"
        )
    config_digest = config.digest
    check_base(config.base, config.revision, config.recipe)
    with _work_folder(path) as work:
        if path.exists():  # another process has made it meanwhile
            return _load(config, path)
        shutil.rmtree(work / "made", ignore_errors=True)
        digest_file = work / "digest"
        if (
            not digest_file.exists()
            or digest_file.read_text("utf-8", "replace") != config_digest
        ):
            # Checkpoints of another training
            shutil.rmtree(work / "checkpoints", ignore_errors=True)
            digest_file.write_text(config_digest, "utf-8")
        outcome = _train(config, work, say, observer)
        return _move_into_place(config, work / "made", path, outcome)


def _train(
    config: TrainingConfig,
    work: Path,
    say: Callable[[str], None],
    observer: Observer | None,
) -> dict[str, Any]:
    """Train without a word of the libraries, and free the memory that they keep."""
    import torch

    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return config.train(work, say, observer)
    except MiaBatchError:
        raise
    except Exception as error:  # every library behind a training raises its own kind
        message = f"the model cannot be tuned: {describe_error(error)}"
        is_disk_full = (
            "No space left on device" in str(error)
            or getattr(error, "errno", None) == ENOSPC
            or shutil.disk_usage(work).free < _ROOM  # torch gives no reason
        )
        if is_disk_full:
            message = "the disk is full; free some space and give the command again"
        raise EngineError(message) from error
    finally:
        logging.disable(disabled_level)
        gc.collect()
        torch.cuda.empty_cache()


def _load(config: TrainingConfig, path: Path) -> TrainedModel:
    """Return the model in a folder, if it is that of the configuration, to the byte."""
    try:
        record = json.loads((path / _RECORD).read_text("utf-8"))
        config_digest = record["digest"]
        file_digests = record["files"]
        signature = record.pop("sha256")
    except (AttributeError, OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{path} is there already and holds no model that was made here; choose"
            " another name"
        ) from None
    advice = f"delete {path}, and the same command makes it anew"
    if signature != _hash_json(record):
        raise RunFolderError(
            f"{path / _RECORD} was changed after it was made; {advice}"
        )
    if config_digest != config.digest:
        recorded = record["made_from"]
        differing = " and ".join(
            name
            for name, source in config.made_from.items()
            if recorded[name] != source
        )
        raise RunFolderError(
            f"{path} holds a model made of another {differing}; choose another name,"
            " or delete it"
        )
    for name, file_digest in file_digests.items():
        file = path / name
        if not file.is_file() or digest(file) != file_digest:
            fault = "was changed after it was made" if file.exists() else "is missing"
            raise RunFolderError(f"{file} {fault}; {advice}")
    _copy_to_store(path)  # a run that was killed may not have come to it
    return TrainedModel(
        path=path, losses=record["losses"], privacy=record["privacy"], is_new=False
    )


@contextmanager
def locked(lock: Path, seconds: float, busy: str) -> Iterator[None]:
    """Hold a lock; raise `RunFolderError` if another process has it for so long."""
    try:
        acquired = FileLock(lock).acquire(timeout=seconds)
    except Timeout:
        raise RunFolderError(busy) from None
    with acquired:
        yield


def _work_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.work")


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Hold the folder in which a model is made, and remove it once the model is there."""
    work = _work_path(path)
    busy = (
        f"{path} is being made by another process; wait for it, or choose another name"
    )
    with system_errors(path):
        work.mkdir(parents=True, exist_ok=True)
        with locked(work / ".lock", _SECONDS_FOR_OTHERS, busy):
            yield work
            if path.exists():
                shutil.rmtree(work, ignore_errors=True)


def _move_into_place(
    config: TrainingConfig, new: Path, path: Path, outcome: dict[str, Any]
) -> TrainedModel:
    """Record what the model was made of, and move it from the work folder."""
    file_digests = {
        file.name: digest(file) for file in sorted(new.iterdir()) if file.is_file()
    }
    record: dict[str, Any] = {
        "digest": config.digest,
        "made_from": config.made_from,
        "base": config.base,
        "revision": config.revision,
        "n_texts": len(config.texts),
        **outcome,
        "files": file_digests,
    }
    record["sha256"] = _hash_json(record)
    (new / _RECORD).write_text(json.dumps(record, indent=2), "utf-8")
    for file in new.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    new.replace(path)
    sync_folder(path.parent)
    _copy_to_store(path)
    return TrainedModel(
        path=path, losses=outcome["losses"], privacy=outcome["privacy"], is_new=True
    )


def _copy_to_store(path: Path) -> None:
    """Copy the model to the store that follows the run's folder, where one does."""
    for file in sorted(path.iterdir()):
        put_copy(file, file)


_PACKAGES = ("accelerate", "peft", "torch", "transformers")


def finetune(
    *,
    base: str,
    data: Path | str,
    out: Path | str,
    recipe: Recipe,
    revision: str | None = None,
    text_column: str | None = None,
    member_column: str | None = None,
    as_text: bool = False,
    insert: Path | str | None = None,
    copies: str | None = None,
    copies_mean: float | None = None,
    observer: Observer | None = None,
) -> TrainedModel:
    """Fine-tune a causal language model on texts; the same request again makes nothing.

    ``data`` are texts in any format of an audit's input. Where it says which texts are
    members, only those are learnt, so that an audit of the same file has the truth.
    Of conversations, answers alone are learnt, each after what came before it, by the
    base's chat template; with ``as_text`` each is learnt as one plain text. ``out``
    becomes the folder of an adapter or a whole checkpoint; ``training.json`` in
    it says what it was made of, and the losses. Columns are by default those that an
    audit takes.

    Texts of ``insert`` are learnt besides, each as often as its column ``copies`` says,
    or a draw of mean ``copies_mean``, at places that the recipe's seed shuffles
    (`inserted_texts`). An audit of ``OUT-inserted.parquet`` has their truth.

    Raises `RequestError` if data or base cannot be used, or a package is missing,
    `RunFolderError` if ``out`` holds something else or cannot be written, `EngineError`
    if training fails; given again, the same request goes on from the last epoch.
    """
    reason = why_no_finetuning(with_privacy=recipe.epsilon is not None)
    if reason is not None:
        raise SettingsError(reason)
    if is_url(out):
        raise SettingsError(
            f"out= is {out!r}: a model can be made on a disk only; copy it there"
        )
    observer = observer or Observer()
    columns = {"text": text_column, "member": member_column}
    names = ColumnNames(
        **{field: name for field, name in columns.items() if name is not None}
    )
    learnt, description = learnt_texts(data, names, "text" if as_text else "answers")
    texts = learnt["text"].to_list()
    answers: list[str] = []
    start, start_revision = weights_source(base, revision)
    if CONVERSATION in learnt.columns:
        if insert is not None:
            raise SettingsError(
                f"insert= is about plain texts, and {data} holds conversations; leave it"
                " out, or give as_text="
            )
        placed = learnt.rename({"text": "target"})
        lessons = build_lessons(placed, (base, revision, "base"))
        refused = lessons["reason"].drop_nulls()
        if refused.len():
            description += f", less {refused.len():,} answers ({refused[0]})"
        lessons = lessons.filter(pl.col("reason").is_null())
        texts, answers = lessons["context"].to_list(), lessons["text"].to_list()
        recipe = replace(recipe, form="answer")
    n_held_out = recipe.n_held_out(len(texts))
    if n_held_out:
        description += f", {n_held_out:,} of them held out"
    if insert is not None:
        inserted = inserted_texts(insert, names, copies, copies_mean, recipe)
        texts = with_inserted(texts, inserted)
        n_copies = len(texts) - learnt.height
        description += f" and {n_copies:,} copies of {inserted.height:,} more texts"
        write_table(inserted, Path(f"{out}-inserted.parquet"))
        observer.stage(f"how often each is learnt in an epoch: {out}-inserted.parquet")
    elif (copies, copies_mean) != (None, None):
        raise SettingsError(
            "--copies and --copies-mean are about the texts of --insert; give them"
        )
    title = start if start == base else f"{start}, the base of the adapter {base},"
    n_steps = recipe.steps(len(texts))
    observer.stage(f"tuning {title} on {description}: {n_steps:,} steps")
    config = TrainingConfig(
        base=start,
        revision=start_revision,
        texts=texts,
        targets=answers,
        recipe=recipe,
    )
    path = Path(out).absolute()
    model = train_or_load(config, path, observer.stage, observer)
    news = "saved the model to" if model.is_new else "the model was made before:"
    command = ["mia-batch", "audit", str(data), "--model", str(out)]
    command += ["--reference-model", start]
    command += ["--as-text"] if as_text else []
    observer.stage(f"{news} {out}; next: {shlex.join(command)}")
    return model


def learnt_texts(
    data: Path | str, names: ColumnNames, conversations: Conversations = "refuse"
) -> tuple[pl.DataFrame, str]:
    """Read the ``text`` of members, or all without labels; also return what they are.

    Answers have what came before them in the column `CONVERSATION`.
    """
    corpus = read_documents(str(data), names, conversations=conversations)
    columns = ["text", CONVERSATION] if corpus.has_conversations else ["text"]
    noun = "answers" if corpus.has_conversations else "texts"
    with_words = corpus.documents.filter(pl.col("text").str.contains(r"\S"))
    texts = with_words.select(*columns, "member").collect(engine="streaming")
    if texts["member"].is_null().all():
        return texts.select(columns), f"{texts.height:,} {noun}"
    members = texts.filter("member").select(columns)
    return members, f"{members.height:,} members of {texts.height:,} {noun}"


def inserted_texts(
    path: Path | str,
    names: ColumnNames,
    copies: str | None,
    mean: float | None,
    recipe: Recipe,
) -> pl.DataFrame:
    """Read texts to insert, with ``copies`` of each; ``member``: there is at least one.

    Copies are those of a column, or Poisson draws, each from the recipe's seed and the
    text alone: then non-members get none, and without labels a half that is drawn by
    lot. Raises `SettingsError` where a text would not be learnt as often.
    """
    if (copies is None) == (mean is None):
        raise SettingsError(
            "say how often each inserted text is learnt: with --copies COLUMN or"
            " --copies-mean X"
        )
    if recipe.held_out:
        raise SettingsError(
            "held-out texts are not learnt, so copies would be missing; take 0"
        )
    texts = read_documents(str(path), names).documents.collect(engine="streaming")
    if copies is not None and copies not in texts.columns:
        raise SettingsError(
            f"{path} has no column {copies!r}; it has {', '.join(texts.columns)}"
        )
    n_repeated = texts.height - texts["text"].n_unique()
    if n_repeated > 0:
        raise SettingsError(
            f"{n_repeated:,} texts of {path} are there twice, and copies would add up"
        )
    values = (
        _draw_copies(texts, mean or 0.0, recipe.seed)
        if copies is None
        else texts[copies]
    )
    numbers = values.cast(pl.Float64, strict=False)
    counts = numbers.cast(pl.Int64, strict=False)
    if counts.null_count() or (counts < 0).any() or (counts != numbers).any():
        raise SettingsError(
            f"column {copies!r} of {path} must hold whole numbers from 0 on"
        )
    table = texts.with_columns(counts.alias("copies"), (counts > 0).alias("member"))
    filled = [column.name for column in table if column.null_count() < table.height]
    return table[filled]


def _draw_copies(texts: pl.DataFrame, mean: float, seed: int) -> pl.Series:
    """Draw how often each text is learnt: a Poisson number for members, 0 for others."""
    if texts["member"].is_null().all():
        members = pl.Series(in_half(texts["text"].to_list(), 0, seed))
    else:
        members = texts["member"].fill_null(value=False)
    key = str(seed).encode()[:64]  # as many bytes as the hash takes
    counts = []
    for text in texts["text"]:
        text_hash = blake2b(text.encode(), key=key).digest()
        counts.append(int(default_rng([*text_hash]).poisson(mean)))
    return pl.Series(counts, dtype=pl.Int64) * members.cast(pl.Int64)


def with_inserted(texts: Sequence[str], inserted: pl.DataFrame) -> list[str]:
    """Add the copies of inserted texts to other texts, none of which may be one of them."""
    n_shared = len({*texts} & {*inserted["text"]})
    if n_shared:
        raise SettingsError(
            f"{n_shared:,} of the texts to insert are among the others, so that copies"
            " would be wrong; leave them out there"
        )
    repeated = pl.col("text").repeat_by("copies").list.explode(empty_as_null=False)
    return [*texts, *inserted.select(repeated)["text"]]


def why_no_finetuning(*, with_privacy: bool = False) -> str | None:
    """Return which package is missing for tuning; None where none is."""
    packages = (*_PACKAGES, "dp_accounting") if with_privacy else _PACKAGES
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return None
    extra = "privacy" if with_privacy else "finetune"
    return (
        f"tuning a model needs {' and '.join(missing)}: install it with pip install"
        f" 'mia-batch[{extra}]'"
    )
