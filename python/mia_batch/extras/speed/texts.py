"""The texts that a bench measures on, and a toy model where none is given."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from mia_batch import tables
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.extras.sets.demo import (
    DemoSettings,
    build_corpus,
    new_model,
    save,
    train_tokenizer,
)
from mia_batch.models.weights import quiet
from mia_batch.pipeline.corpora import build_windowing, open_corpora
from mia_batch.pipeline.request import fill_windows
from mia_batch.schemas import Targets
from mia_batch.settings import load_settings
from mia_batch.targets import build_targets

_MOST_TEXTS = 2048


class Texts(NamedTuple):
    """What is measured on."""

    n_all: int | None  # in the input, from which some are taken; None: not counted
    lengths: list[int]  # characters of those that are taken, in their order
    has_classes: bool


def write_texts(
    folder: Path,
    path: str | None,
    dataset: str | None = None,
    *,
    counts_all: bool = False,
) -> Texts:
    """Write texts of an input, or the demo's, in an order that is not the input's."""
    is_demo = path is None and dataset is None
    if is_demo:
        path = str(folder / "corpus.parquet")
        build_corpus(DemoSettings()).drop("member").write_parquet(path)
    given = {"input": path, "dataset": dataset, "model": "-"}
    settings = fill_windows(load_settings(given, use_config=False))
    corpus = open_corpora(settings).input
    windowing = build_windowing(settings)
    is_divided = pl.col("prefix").is_not_null()
    n_all = None
    if counts_all and not is_demo:
        all_targets = build_targets(corpus.documents, windowing).filter(is_divided)
        n_all = all_targets.select(pl.len()).collect(engine="streaming").item()
    if windowing.window is not None:
        most_windows = -(-_MOST_TEXTS // corpus.n_documents)
        windowing = replace(windowing, max_windows_per_document=most_windows)
    step = -(-corpus.n_documents // _MOST_TEXTS)
    numbered = corpus.documents.with_row_index("row")
    documents = numbered.filter(pl.col("row").hash(0) % step == 0).drop("row")
    built = build_targets(documents, windowing).select(Targets.column_names())
    targets = built.filter(is_divided).head(_MOST_TEXTS).collect()
    if targets.is_empty():
        name = dataset or path
        raise CorpusError(f"no text of {name} can be cut in two; give longer texts")
    # The first few are to be as long as all, and members and others by turns.
    targets = targets.sample(fraction=1, shuffle=True, seed=0)
    targets = targets.sort(pl.int_range(pl.len()).over("member"), maintain_order=True)
    tables.sink(targets.lazy(), folder / "targets.parquet", Targets)
    texts = targets.select("member", "group", document_id="target_id", text="target")
    empty = [column.name for column in texts if column.null_count() == texts.height]
    texts.drop(empty).write_parquet(folder / "texts.parquet")
    has_classes = targets["member"].drop_nulls().n_unique() == 2
    return Texts(n_all, targets["target"].str.len_chars().to_list(), has_classes)


def make_toy(folder: Path) -> str:
    reason = registry.find_missing_package(
        "demo", "tokenizers", "torch", "transformers"
    )
    if reason is not None:
        raise SettingsError(f"no model can be made here, because {reason}")
    settings = DemoSettings()
    texts = pl.read_parquet(folder / "texts.parquet")["text"]
    with quiet():
        tokenizer = train_tokenizer(texts, settings.vocabulary)
        model = new_model(
            tokenizer, settings, hidden=settings.hidden, layers=settings.layers
        )
        save(model, tokenizer, folder / "toy")
    return str(folder / "toy")
