"""Inverts an embedder: trains a decoder on auxiliary texts and attacks the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.extras.privacy.inversion import figures
from mia_batch.extras.privacy.inversion.decoders import (
    check_context,
    decoder_tokenizer,
    write_new_decoder,
)
from mia_batch.extras.privacy.inversion.models import (
    Embedded,
    InverterConfig,
    attack,
    embed_all,
    infer_attributes,
    open_embedder,
)
from mia_batch.extras.tune.jobs import TrainedModel, train_or_load, why_no_finetuning
from mia_batch.models.checkpoint_tokens import CheckpointCodec
from mia_batch.models.tokens import Tokenizer
from mia_batch.observer import Observer
from mia_batch.recipes import RECIPES, Recipe
from mia_batch.schemas import Inversion, InversionTexts
from mia_batch.tables import sink, system_errors, write_text

__all__ = ["Inverted", "invert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """What an inversion found.

    Attributes
    ----------
    folder
        Where its tables are.
    texts
        The table `InversionTexts`: what each method gave back of each text under
        attack.
    figures
        The table `Inversion`: precision, recall, F1 and exact matches, with intervals.
    sentence
        What the figures say, and what they do not.
    """

    folder: Path
    texts: pl.DataFrame
    figures: pl.DataFrame
    sentence: str


def invert(
    *,
    data: Path | str,
    embedder: str | ClientSettings,
    out: Path | str,
    revision: str | None = None,
    decoder: str | None = None,
    recipe: Recipe | None = None,
    share: float = 0.4,
    seed: int = 0,
    text_column: str | None = None,
    group_column: str | None = None,
    attribute_column: str | None = None,
    observer: Observer | None = None,
) -> Inverted:
    """Measure how much of a text its embedding gives back to a decoder that is trained for it.

    The attacker of GEIA (Li et al. 2023, arXiv:2305.03010): who holds embeddings of
    private texts, may ask the embedder, and has auxiliary texts of the same kind. The
    same request again goes on where it stopped, and makes nothing twice.

    Parameters
    ----------
    data
        Texts, in any format of an audit's input, such as sentences.
    embedder
        A checkpoint (causal, masked, encoder-decoder; an adapter), whose last hidden
        states are averaged over the tokens of a text; a folder that
        sentence-transformers saved, which embeds as that library does; or an
        OpenAI-compatible endpoint, asked at ``/embeddings``.
    out
        Folder of the tables ``texts.parquet`` and ``figures.parquet``, of
        ``summary.json``, of the embeddings, and of the decoder that was trained.
    revision
        Hub revision of the embedder.
    decoder
        Causal language model to start from. By default a small one is made, with the
        tokenizer of the embedder; an endpoint has none, so that a decoder must be
        named.
    recipe
        How the decoder is trained; by default ``RECIPES["inverter"]``,
        ``RECIPES["decoder"]`` of a named one. Texts of more than its ``max_tokens`` are
        left out, with the reason.
    share
        Share of the texts that are auxiliary, in (0, 1). Texts of one group, and equal
        texts, are on one side.
    seed
        Of who is auxiliary, of new weights and of the order of training.
    text_column
        Column of the texts; by default the one that an audit takes.
    group_column
        Column of the groups, likewise.
    attribute_column
        Column of what else is known of a text, such as its topic: a classifier of the
        auxiliary embeddings infers it of the others, too.
    observer
        Sees the stages; by default nobody does.

    Returns
    -------
    Inverted
        The tables, and a sentence. A figure is null with a reason where the data
        support none, and a text that cannot be attacked is a row with a reason.

    Raises
    ------
    RequestError
        If data, embedder or decoder cannot be used, or a package is missing.
    RunFolderError
        If ``out`` holds the decoder of another request, or cannot be written.
    EngineError
        If the endpoint cannot be asked, or training fails.
    """
    reason = why_no_finetuning()
    if reason is not None:
        raise SettingsError(reason)
    if not 0 < share < 1:
        raise SettingsError(
            f"'share' is {share:g}; give a share of auxiliary texts between 0 and 1"
        )
    observer = observer or Observer()
    folder = Path(out).absolute()
    recipe = replace(recipe or RECIPES["decoder" if decoder else "inverter"], seed=seed)
    if decoder is not None:
        tokenizer = decoder_tokenizer(decoder)
        check_context(decoder, recipe)
    elif isinstance(embedder, str):
        tokenizer = decoder_tokenizer(embedder, revision)
    else:
        raise SettingsError(
            "an endpoint has no tokenizer that a decoder could be made with; name a"
            " 'decoder'"
        )
    encode = Tokenizer(CheckpointCodec(tokenizer)).encode
    columns = {"text": text_column, "group": group_column}
    documents = _read_documents(data, columns, attribute_column)
    texts = figures.prepare_documents(documents, share, seed, encode, recipe.max_tokens)
    with system_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    untrained = folder / "untrained"
    if decoder is None:
        write_new_decoder(untrained, tokenizer, recipe.max_tokens, seed)
    texts, embeddings = _embed_texts(
        texts, embedder, revision, folder / "embeddings", observer
    )
    usable = texts.filter(pl.col("reason").is_null())
    auxiliary = usable.filter("auxiliary")
    n_attacked = usable.height - auxiliary.height
    if n_attacked == 0 or auxiliary.is_empty():
        reasons = texts["reason"].drop_nulls()
        raise CorpusError(
            f"{data} has no text that could be attacked or learnt ({reasons[0]})"
        )
    config = InverterConfig(
        base=decoder or str(untrained),
        revision=None,
        texts=auxiliary["text"].to_list(),
        recipe=recipe,
        embeddings=_stack_embeddings(embeddings, auxiliary),
    )
    n_steps = recipe.steps(auxiliary.height)
    observer.stage(
        f"training on {auxiliary.height:,} auxiliary texts: at most {n_steps:,} steps"
    )
    inverter = train_or_load(config, folder / "inverter", observer.stage, observer)
    observer.stage(f"attacking {n_attacked:,} texts")
    inverted = _attack_and_write(folder, texts, embeddings, encode, config, inverter)
    observer.stage(inverted.sentence)
    return inverted


def _read_documents(
    data: Path | str, columns: Mapping[str, str | None], attribute: str | None
) -> pl.DataFrame:
    """Read texts with their groups, and the attribute where a column of it is named."""
    names = ColumnNames(
        **{field: name for field, name in columns.items() if name is not None}
    )
    documents = read_documents(str(data), names).documents
    selected = [pl.col("document_id"), pl.col("group"), pl.col("text")]
    if attribute is not None:
        if attribute not in documents.collect_schema():
            raise CorpusError(f"{data} has no column {attribute!r} of an attribute")
        selected.append(pl.col(attribute).cast(pl.String).alias("attribute"))
    rows = documents.select(selected).collect(engine="streaming")
    return rows.with_row_index("row")


def _embed_texts(
    texts: pl.DataFrame,
    embedder: str | ClientSettings,
    revision: str | None,
    folder: Path,
    observer: Observer,
) -> tuple[pl.DataFrame, dict[str, Embedded]]:
    """Return embeddings by text, and the texts, where one that has none gets a reason."""
    usable = texts.filter(pl.col("reason").is_null())["text"].to_list()
    model = open_embedder(embedder, revision) if isinstance(embedder, str) else embedder
    embedded = embed_all(usable, model, folder, observer)
    embeddings = dict(zip(usable, embedded, strict=True))
    reasons = {
        text: result for text, result in embeddings.items() if isinstance(result, str)
    }
    new_reasons = pl.Series(map(reasons.get, texts["text"]), dtype=pl.String)
    return texts.with_columns(pl.coalesce("reason", new_reasons)), embeddings


def _stack_embeddings(
    embeddings: Mapping[str, Embedded], texts: pl.DataFrame
) -> NDArray[np.float32]:
    vectors: list[Any] = [embeddings[text] for text in texts["text"]]
    return np.stack(vectors)


def _attack_and_write(
    folder: Path,
    texts: pl.DataFrame,
    embeddings: Mapping[str, Embedded],
    encode: Callable[[Sequence[str]], list[list[int]]],
    config: InverterConfig,
    inverter: TrainedModel,
) -> Inverted:
    """Attack the texts that are not auxiliary; count what came back, and write the results."""
    is_usable = pl.col("reason").is_null()
    attacked = texts.filter(~pl.col("auxiliary"))
    usable = attacked.filter(is_usable)
    vectors = _stack_embeddings(embeddings, usable)
    cluster = usable["cluster"].to_numpy()
    recovered = attack(inverter.path, config, vectors, cluster)
    counts = {
        method: figures.count_overlaps(
            usable["text"].to_list(), recovered_texts, encode
        )
        for method, recovered_texts in recovered.items()
    }
    if "attribute" in texts.columns:
        attributes = texts.filter("auxiliary", is_usable)["attribute"]
        inferred = infer_attributes(attributes, config, vectors, cluster)
        for method, guesses in inferred.items():
            is_right = figures.count_inferred(usable["attribute"], guesses)
            counts[method] = counts[method].with_columns(attribute=is_right)
    n_unscored = attacked.height - usable.height
    figures_table = figures.build_figures(counts, usable["cluster"], n_unscored)
    texts_table = figures.build_texts_table(attacked, recovered, counts)
    n_auxiliary = len(config.texts)
    sentence = figures.sentence(figures_table, n_auxiliary)
    sink(texts_table, folder / "texts.parquet", InversionTexts)
    sink(figures_table, folder / "figures.parquet", Inversion)
    summary = {
        "sentence": sentence,
        "auxiliary": n_auxiliary,
        "made_from": config.made_from,
        "losses": inverter.losses,
        "figures": figures_table.to_dicts(),
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=2))
    return Inverted(
        folder=folder, texts=texts_table, figures=figures_table, sentence=sentence
    )
