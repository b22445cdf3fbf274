"""Inverts an embedder: trains a decoder on auxiliary texts and attacks the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.extras.privacy.inversion import figures
from mia_batch.extras.privacy.inversion.decoders import (
    check_context,
    decoder_tokenizer,
    new_decoder,
)
from mia_batch.extras.privacy.inversion.models import (
    InverterMaking,
    attack,
    embed_all,
    infer,
    open_embedder,
)
from mia_batch.extras.tune.jobs import Made, made_of, why_no_finetuning
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
    if (missing := why_no_finetuning()) is not None:
        raise SettingsError(missing)
    if not 0 < share < 1:
        raise SettingsError(
            f"'share' is {share:g}; give a share of auxiliary texts between 0 and 1"
        )
    observer, folder = observer or Observer(), Path(out).absolute()
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
    encode = Tokenizer(tokenizer).encode
    read = _read(data, {"text": text_column, "group": group_column}, attribute_column)
    texts = figures.deal(read, share, seed, encode, recipe.max_tokens)
    with system_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if decoder is None:
        new_decoder(folder / "untrained", tokenizer, recipe.max_tokens, seed)
    texts, found = _embedded(texts, embedder, revision, folder / "embeddings", observer)
    usable = texts.filter(pl.col("reason").is_null())
    auxiliary, asked = usable.filter("auxiliary"), usable.filter(~pl.col("auxiliary"))
    if asked.is_empty() or auxiliary.is_empty():
        some = texts["reason"].drop_nulls()
        raise CorpusError(
            f"{data} has no text that could be attacked or learnt ({some[0]})"
        )
    making = InverterMaking(
        base=decoder or str(folder / "untrained"),
        revision=None,
        texts=auxiliary["text"].to_list(),
        recipe=recipe,
        embeddings=np.stack([found[text] for text in auxiliary["text"]]),
    )
    n_texts, n_steps = auxiliary.height, recipe.steps(auxiliary.height)
    observer.stage(
        f"training on {n_texts:,} auxiliary texts: at most {n_steps:,} steps"
    )
    made = made_of(making, folder / "inverter", observer.stage)
    observer.stage(f"attacking {asked.height:,} texts")
    inverted = _written(folder, texts, found, encode, making, made)
    observer.stage(inverted.sentence)
    return inverted


def _read(
    data: Path | str, given: Mapping[str, str | None], attribute: str | None
) -> pl.DataFrame:
    names = ColumnNames(
        **{part: name for part, name in given.items() if name is not None}
    )
    documents = read_documents(str(data), names).documents
    if attribute is not None and attribute not in documents.collect_schema():
        raise CorpusError(f"{data} has no column {attribute!r} of an attribute")
    known = (
        []
        if attribute is None
        else [pl.col(attribute).cast(pl.String).alias("attribute")]
    )
    rows = documents.select("document_id", "group", "text", *known).collect(
        engine="streaming"
    )
    return rows.with_row_index("row")


def _embedded(
    texts: pl.DataFrame,
    embedder: str | ClientSettings,
    revision: str | None,
    folder: Path,
    observer: Observer,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Embed texts by what they say; those that have no embedding get a reason."""
    asked = texts.filter(pl.col("reason").is_null())["text"].to_list()
    opened = (
        open_embedder(embedder, revision) if isinstance(embedder, str) else embedder
    )
    found = dict(zip(asked, embed_all(asked, opened, folder, observer), strict=True))
    reasons = {
        text: each if isinstance(each, str) else None for text, each in found.items()
    }
    of_embedder = pl.Series(map(reasons.get, texts["text"]), dtype=pl.String)
    return texts.with_columns(pl.coalesce("reason", of_embedder)), found


def _written(
    folder: Path,
    texts: pl.DataFrame,
    found: Mapping[str, Any],
    encode: Callable[[Sequence[str]], list[list[int]]],
    making: InverterMaking,
    made: Made,
) -> Inverted:
    """Attack the texts that are not auxiliary; count what came back, and write the results."""
    attacked = texts.filter(~pl.col("auxiliary"))
    asked = attacked.filter(pl.col("reason").is_null())
    embeddings = np.stack([found[text] for text in asked["text"]])
    cluster, inferred = asked["cluster"].to_numpy(), dict[str, pl.Series]()
    recovered = attack(made.path, making, embeddings, cluster)
    if "attribute" in texts.columns:
        known = texts.filter("auxiliary", pl.col("reason").is_null())["attribute"]
        inferred = infer(known, making, embeddings, cluster)
    true, n_auxiliary = asked["text"].to_list(), len(making.texts)
    counts = {
        method: figures.overlaps(true, said, encode)
        for method, said in recovered.items()
    }
    for method, guessed in inferred.items():
        attribute = figures.inferred(asked["attribute"], guessed)
        counts[method] = counts[method].with_columns(attribute=attribute)
    shared = figures.figures(counts, asked["cluster"], attacked.height - asked.height)
    given_back = figures.texts_table(attacked, recovered, counts)
    said = figures.sentence(shared, n_auxiliary)
    sink(given_back, folder / "texts.parquet", InversionTexts)
    sink(shared, folder / "figures.parquet", Inversion)
    summary = {
        "sentence": said,
        "auxiliary": n_auxiliary,
        "made_from": making.made_from,
    }
    summary |= {"losses": made.losses, "figures": shared.to_dicts()}
    write_text(folder / "summary.json", json.dumps(summary, indent=2))
    return Inverted(folder=folder, texts=given_back, figures=shared, sentence=said)
