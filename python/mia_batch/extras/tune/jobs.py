"""Models that are tuned here: whether a base can be, its size, and the making of each, once."""

import gc
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
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
from mia_batch.errors import (
    EngineError,
    MiaBatchError,
    RunFolderError,
    SettingsError,
    describe_error,
)
from mia_batch.extras.tune.base import TrainingTexts, adapted, check_base, n_checkpoints
from mia_batch.models.weights import identify_model, quiet, weights_source
from mia_batch.observer import Observer
from mia_batch.places import is_url
from mia_batch.recipes import Recipe, in_half
from mia_batch.tables import digest, put_copy, sync_folder, system_errors, write_table

# The entry point ``tuned`` of ``mia_batch.models`` is this module: the core asks it for
# these.
__all__ = [
    "Made",
    "Making",
    "check_base",
    "finetune",
    "made_of",
    "sizes",
    "why_no_finetuning",
]


_TRAINED_BYTES = (
    16  # of a weight that is trained: itself, gradient, two moments, in float32
)
_FROZEN_BYTES = {True: 2, False: 4}  # on an accelerator, on a CPU


def sizes(base: str, revision: str | None, recipe: Recipe) -> str:
    # Activations come on top; nobody knows them before.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_base(base, revision, recipe)
    config = AutoConfig.from_pretrained(base, revision=revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        n_weights = model.num_parameters()
        tuned = adapted(model, recipe)
    trained = sum(each.numel() for each in tuned.parameters() if each.requires_grad)
    kept = again = trained
    # Of its encoder what it says is kept, from which none goes on
    if recipe.method == "p-tuning":
        kept = tuned.prompt_encoder["default"].embedding.weight.numel()
        again += kept
    frozen = 0 if recipe.method == "full" else n_weights
    memory = (
        frozen * _FROZEN_BYTES[torch.cuda.is_available()] + trained * _TRAINED_BYTES
    )
    checkpoints = n_checkpoints(recipe) * 4 * (2 * trained + again)
    return (
        f"{trained:,} of {n_weights:,} weights, {_gib(memory)} of memory without"
        f" activations, {_gib(4 * kept)} of disk and {_gib(checkpoints)} while it is"
        " trained"
    )


def _gib(n_bytes: int) -> str:
    return (
        f"{n_bytes / 2**30:.1f} GiB"
        if n_bytes >= 2**30
        else f"{n_bytes / 2**20:.0f} MiB"
    )


# A model is made once: what it is made of names it, and a killed making goes on.

Wanted: TypeAlias = "tuple[str, Making, Path]"
"""A model's name in the run, what it is made of, and where."""
_RECORD = "training.json"
_ROOM = 1 << 16  # bytes that a disk has left which is not full
_SECONDS_FOR_OTHERS = 5.0


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class Making(TrainingTexts):
    """What a model is made of, and how it is trained."""

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """Digest of the base, SHA-256 of the texts, and the recipe; equal: the same model."""
        texts = sha256()
        for text in chain(self.texts, self.targets if any(self.targets) else ()):
            content = b"" if text is None else text.encode()
            texts.update(len(content).to_bytes(8, "little") + content)
        return {
            "base": identify_model(self.base, self.revision, "any").digest,
            "texts": texts.hexdigest(),
            "recipe": asdict(self.recipe),
        }

    @cached_property
    def digest(self) -> str:
        return sha256(json.dumps(self.made_from, sort_keys=True).encode()).hexdigest()

    def train(self, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
        """Leave the model in the folder's ``made``; return ``losses`` and ``privacy`` of `Made`."""
        from mia_batch.extras.tune.training import train

        return train(self, work, say)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A model that was made; ``is_new``: just now.

    ``losses`` has a row an epoch: ``epoch``, ``loss`` (nats a token), and
    ``held_out_loss`` where texts were held out. ``privacy`` is what a training with
    differential privacy comes to: ``epsilon``, ``delta``, ``noise_multiplier``,
    ``clip``, ``sampling_rate``, ``steps``; else None.
    """

    path: Path
    losses: list[dict[str, float]]
    privacy: dict[str, Any] | None
    is_new: bool


def made_of(making: Making, path: Path, say: Callable[[str], None]) -> Made:
    """Return the model at ``path``, trained first where it is not there, or trained further."""
    if path.exists() or path.is_symlink():
        made = _recorded(making, path)
        if path.with_name(
            f".{path.name}.work"
        ).is_dir():  # of a command that was killed then
            with suppress(RunFolderError), _work_folder(path):
                pass
        return made
    if (n := len(making.texts)) < 2:
        raise SettingsError(f"there are {n} texts to tune a model on; give at least 2")
    started = making.digest
    check_base(making.base, making.revision, making.recipe)
    with _work_folder(path) as work:
        if path.exists():  # made meanwhile
            return _recorded(making, path)
        shutil.rmtree(work / "made", ignore_errors=True)
        begun = work / "digest"
        if not begun.exists() or begun.read_text("utf-8", "replace") != started:
            shutil.rmtree(work / "checkpoints", ignore_errors=True)  # of another making
            begun.write_text(started, "utf-8")
        return _place(making, work / "made", path, _trained(making, work, say))


def _trained(making: Making, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Train without a word of the libraries, and free the memory that they keep."""
    import torch

    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return making.train(work, say)
    except MiaBatchError:
        raise
    except Exception as error:  # every library behind a training raises its own kind
        msg = f"the model cannot be tuned: {describe_error(error)}"
        said = (
            "No space left on device" in str(error)
            or getattr(error, "errno", None) == ENOSPC
        )
        if said or shutil.disk_usage(work).free < _ROOM:  # torch says no reason
            msg = "the disk is full; free some space and give the command again"
        raise EngineError(msg) from error
    finally:
        logging.disable(disabled)
        gc.collect()
        torch.cuda.empty_cache()


def _recorded(making: Making, path: Path) -> Made:
    """Return a model that is there, if it is the one that is wanted, to the byte."""
    try:
        record = json.loads((path / _RECORD).read_text("utf-8"))
        known, files, signature = (
            record["digest"],
            record["files"],
            record.pop("sha256"),
        )
    except (AttributeError, OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{path} is there already and holds no model that was made here; choose"
            " another name"
        ) from None
    anew = f"delete {path}, and the same command makes it anew"
    if signature != _signature(record):
        raise RunFolderError(f"{path / _RECORD} was changed after it was made; {anew}")
    if known != making.digest:
        before, wanted = record["made_from"], making.made_from
        other = " and ".join(name for name in wanted if before[name] != wanted[name])
        raise RunFolderError(
            f"{path} holds a model made of another {other}; choose another name, or"
            " delete it"
        )
    for file, expected in ((path / name, each) for name, each in files.items()):
        if not file.is_file() or digest(file) != expected:
            what = "was changed after it was made" if file.exists() else "is missing"
            raise RunFolderError(f"{file} {what}; {anew}")
    _follow(path)  # a run that was killed may not have come to it
    return Made(
        path=path, losses=record["losses"], privacy=record["privacy"], is_new=False
    )


def _signature(record: dict[str, Any]) -> str:
    return sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def locked(lock: Path, seconds: float, busy: str) -> Iterator[None]:
    """Hold a lock; raise `RunFolderError` if another process has it for so long."""
    try:
        held = FileLock(lock).acquire(timeout=seconds)
    except Timeout:
        raise RunFolderError(busy) from None
    with held:
        yield


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Hold the folder in which a model is made, and remove it once the model is there."""
    work = path.with_name(f".{path.name}.work")
    busy = (
        f"{path} is being made by another process; wait for it, or choose another name"
    )
    with system_errors(path):
        work.mkdir(parents=True, exist_ok=True)
        with locked(work / ".lock", _SECONDS_FOR_OTHERS, busy):
            yield work
            if path.exists():
                shutil.rmtree(work, ignore_errors=True)


def _place(making: Making, made: Path, path: Path, done: dict[str, Any]) -> Made:
    files = {
        file.name: digest(file) for file in sorted(made.iterdir()) if file.is_file()
    }
    record: dict[str, Any] = {"digest": making.digest, "made_from": making.made_from}
    record |= {
        "base": making.base,
        "revision": making.revision,
        "n_texts": len(making.texts),
    }
    record |= {**done, "files": files}
    record["sha256"] = _signature(record)
    (made / _RECORD).write_text(json.dumps(record, indent=2), "utf-8")
    for file in made.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    made.replace(path)
    sync_folder(path.parent)
    _follow(path)
    return Made(path=path, losses=done["losses"], privacy=done["privacy"], is_new=True)


def _follow(path: Path) -> None:
    """Let a store that follows the run's folder have the model."""
    for file in sorted(path.iterdir()):
        put_copy(file, file)


_NEEDED = ("accelerate", "peft", "torch", "transformers")


def finetune(
    *,
    base: str,
    data: Path | str,
    out: Path | str,
    recipe: Recipe,
    revision: str | None = None,
    text_column: str | None = None,
    member_column: str | None = None,
    insert: Path | str | None = None,
    copies: str | None = None,
    copies_mean: float | None = None,
    observer: Observer | None = None,
) -> Made:
    """Fine-tune a causal language model on texts; the same request again makes nothing.

    ``data`` are texts in any format of an audit's input. Where it says which texts are
    members, only those are learnt, so that an audit of the same file has the truth.
    ``out`` becomes the folder of an adapter or a whole checkpoint; ``training.json`` in
    it says what it was made of, and the losses. Columns are by default those that an
    audit takes.

    Texts of ``insert`` are learnt besides, each as often as its column ``copies`` says,
    or a draw of mean ``copies_mean``, at places that the recipe's seed shuffles
    (`inserted_texts`). An audit of ``OUT-inserted.parquet`` has their truth.

    Raises `RequestError` if data or base cannot be used, or a package is missing,
    `RunFolderError` if ``out`` holds something else or cannot be written, `EngineError`
    if training fails; given again, the same request goes on from the last epoch.
    """
    if (
        reason := why_no_finetuning(with_privacy=recipe.epsilon is not None)
    ) is not None:
        raise SettingsError(reason)
    if is_url(out):
        raise SettingsError(
            f"out= is {out!r}: a model can be made on a disk only; copy it there"
        )
    observer = observer or Observer()
    given = {"text": text_column, "member": member_column}
    names = ColumnNames(
        **{part: name for part, name in given.items() if name is not None}
    )
    texts, what = learnt_texts(data, names)
    content = texts.to_list()
    if n := recipe.n_held_out(len(content)):
        what += f", {n:,} of them held out"
    if insert is None and (copies, copies_mean) != (None, None):
        raise SettingsError(
            "--copies and --copies-mean are about the texts of --insert; give them"
        )
    if insert is not None:
        chosen = inserted_texts(insert, names, copies, copies_mean, recipe)
        content = with_inserted(content, chosen)
        what += (
            f" and {len(content) - texts.len():,} copies of {chosen.height:,} more"
            " texts"
        )
        write_table(chosen, Path(f"{out}-inserted.parquet"))
        observer.stage(f"how often each is learnt in an epoch: {out}-inserted.parquet")
    start, start_revision = weights_source(base, revision)
    named = start if start == base else f"{start}, the base of the adapter {base},"
    observer.stage(f"tuning {named} on {what}: {recipe.steps(len(content)):,} steps")
    making = Making(base=start, revision=start_revision, texts=content, recipe=recipe)
    made = made_of(making, Path(out).absolute(), observer.stage)
    done = "saved the model to" if made.is_new else "the model was made before:"
    observer.stage(f"{done} {out}; next: mia-batch audit INPUT --model {out}")
    return made


def learnt_texts(data: Path | str, names: ColumnNames) -> tuple[pl.Series, str]:
    documents = read_documents(str(data), names).documents
    there = documents.filter(pl.col("text").str.contains(r"\S"))
    texts = there.select("text", "member").collect(engine="streaming")
    if texts["member"].is_null().all():
        return texts["text"], f"{texts.height:,} texts"
    members = texts.filter("member")["text"]
    return members, f"{members.len():,} members of {texts.height:,} texts"


def inserted_texts(
    path: Path | str,
    names: ColumnNames,
    copies: str | None,
    mean: float | None,
    recipe: Recipe,
) -> pl.DataFrame:
    """Read texts to insert, with ``copies`` of each; ``member`` says whether there are any.

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
    if (n := texts.height - texts["text"].n_unique()) > 0:
        raise SettingsError(
            f"{n:,} texts of {path} are there twice, and copies would add up"
        )
    given = _drawn(texts, mean or 0.0, recipe.seed) if copies is None else texts[copies]
    number = given.cast(pl.Float64, strict=False)
    whole = number.cast(pl.Int64, strict=False)
    if whole.null_count() or (whole < 0).any() or (whole != number).any():
        raise SettingsError(
            f"column {copies!r} of {path} must hold whole numbers from 0 on"
        )
    chosen = texts.with_columns(whole.alias("copies"), (whole > 0).alias("member"))
    return chosen[[each.name for each in chosen if each.null_count() < chosen.height]]


def _drawn(texts: pl.DataFrame, mean: float, seed: int) -> pl.Series:
    key, inserted = str(seed).encode()[:64], texts["member"].fill_null(value=False)
    if texts["member"].is_null().all():
        inserted = pl.Series(in_half(texts["text"].to_list(), 0, seed))
    hashes = (blake2b(text.encode(), key=key).digest() for text in texts["text"])
    counts = [int(default_rng([*each]).poisson(mean)) for each in hashes]
    return pl.Series(counts, dtype=pl.Int64) * inserted.cast(pl.Int64)


def with_inserted(texts: Sequence[str], chosen: pl.DataFrame) -> list[str]:
    """Add copies of chosen texts to others, none of which may be one of them."""
    if n := len({*texts} & {*chosen["text"]}):
        raise SettingsError(
            f"{n:,} of the texts to insert are among the others, so that copies would"
            " be wrong; leave them out there"
        )
    repeated = chosen.select(
        pl.col("text").repeat_by("copies").list.explode(empty_as_null=False)
    )
    return [*texts, *repeated["text"]]


def why_no_finetuning(*, with_privacy: bool = False) -> str | None:
    """Say which package is missing; None where models can be tuned, and with privacy if asked."""
    needed = (*_NEEDED, "dp_accounting") if with_privacy else _NEEDED
    missing = [name for name in needed if find_spec(name) is None]
    how = f"pip install 'mia-batch[{'privacy' if with_privacy else 'finetune'}]'"
    said = f"tuning a model needs {' and '.join(missing)}: install it with {how}"
    return said if missing else None
