"""Fine-tunes a model on texts of the user's, once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import SettingsError
from mia_batch.finetuning.making import Made, Making, made_of
from mia_batch.models.adapter import weights_source
from mia_batch.observer import Observer
from mia_batch.storage import is_url

if TYPE_CHECKING:
    from mia_batch.finetuning.recipe import Recipe

__all__ = ["finetune", "why_no_finetuning"]

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
    observer: Observer | None = None,
) -> Made:
    """Fine-tune a causal language model on texts; the same request again makes nothing.

    Parameters
    ----------
    base
        Model to start from, a folder or a hub name.
    data
        Texts, in any format of an audit's input. Where it says which texts are members, only those
        are learnt, so that an audit of the same file has the truth.
    out
        Folder of the model, an adapter or a whole checkpoint; it must not exist. ``training.json``
        in it says what it was made of, and the losses.
    recipe
        How it is tuned.
    revision
        Hub revision of the base.
    text_column
        Column of the texts; by default the one that an audit takes.
    member_column
        Column that says which texts are members, likewise.
    observer
        Is told of each epoch; by default nobody is.

    Returns
    -------
    Made
        Where it is, and its losses.

    Raises
    ------
    RequestError
        If data or base cannot be used, or a package is missing.
    RunFolderError
        If ``out`` holds something else or cannot be written.
    EngineError
        If training fails; given again, the same request goes on from the last epoch.
    """
    if (reason := why_no_finetuning(with_privacy=recipe.epsilon is not None)) is not None:
        raise SettingsError(reason)
    if is_url(out):
        msg = f"'out' is {str(out)!r}: a model can be made on a disk only; copy it from there"
        raise SettingsError(msg)
    observer = observer or Observer()
    given = {"text": text_column, "member": member_column}
    names = ColumnNames(**{part: name for part, name in given.items() if name is not None})
    documents = read_documents(str(data), names).documents
    there = documents.filter(pl.col("text").str.contains(r"\S"))
    texts = there.select("text", "member").collect(engine="streaming")
    what = f"{texts.height:,} texts"
    if texts["member"].is_not_null().any():
        members = texts.filter("member")
        what = f"{members.height:,} members of {what}"
        texts = members
    if recipe.n_held_out(texts.height):
        what += f", {recipe.n_held_out(texts.height):,} of them held out"
    place = Path(out).absolute()
    start, start_revision = weights_source(base, revision)
    named = start if start == base else f"{start}, the base of the adapter {base},"
    observer.stage(f"tuning {named} on {what}: {recipe.steps(texts.height):,} steps")
    making = Making(
        base=start, revision=start_revision, texts=texts["text"].to_list(), recipe=recipe
    )
    made = made_of(making, place, observer.stage)
    observer.stage(f"{out} {'holds the model' if made.is_new else 'was made before'}")
    return made


def why_no_finetuning(*, with_privacy: bool = False) -> str | None:
    """Say which package is missing; None where models can be tuned, and with privacy if asked."""
    needed = (*_NEEDED, "dp_accounting") if with_privacy else _NEEDED
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"tuning a model needs {' and '.join(missing)}: install it with "
        f"pip install 'mia-batch[{'privacy' if with_privacy else 'finetune'}]'"
    )
