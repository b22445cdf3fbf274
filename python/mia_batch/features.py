"""Features of samples and the true texts, for attacks to read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch import kernels
from mia_batch.errors import SettingsError
from mia_batch.prompts import CHOICE_FIELDS, read_choice
from mia_batch.schemas import Features
from mia_batch.targets import Preset

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["OTHER_GROUPS", "build_features", "feature_fields", "groups_of", "inputs_of"]


# How alike two words are in meaning, by embeddings that come with the package
# wordllama.

SIMILARITY_FIELDS = (pl.Field("similarity", pl.Float64()),)
_PACKAGE = "wordllama"
_SIZE = 256  # of an embedding


def why_no_similarity() -> str | None:
    """Say why words cannot be compared on this machine; None where they can."""
    if find_spec(_PACKAGE) is None:
        return (
            f"the package {_PACKAGE} is not installed (pip install 'mia-batch[petal]')"
        )
    return None


def similarity(
    candidate: pl.Expr, reference: pl.Expr, *, words: kernels.WordRule
) -> pl.Expr:
    """Cosine of the embeddings of the first words of candidate and reference."""
    # 1 for equal words and 0 where one of the texts has no word; the mean of its
    # tokens' embeddings.
    return pl.map_batches(
        [_first_word(text, words) for text in (candidate, reference)],
        lambda columns: (
            _cosines(*columns).alias("similarity").to_frame().to_struct("similarity")
        ),
        return_dtype=pl.Struct(list(SIMILARITY_FIELDS)),
        is_elementwise=True,
    ).alias("similarity")


def _first_word(text: pl.Expr, words: kernels.WordRule) -> pl.Expr:
    spans = kernels.word_spans(text, words=words).struct
    start = spans.field("starts").list.first()
    word = text.str.slice(start, spans.field("ends").list.first() - start)
    return pl.when(text.is_not_null()).then(word.fill_null(""))


def _cosines(one: pl.Series, other: pl.Series) -> pl.Series:
    said = pl.concat([one, other]).drop_nulls().unique()
    vectors = np.vstack([embed_words(said.to_list()), np.zeros(_SIZE, np.float32)])
    numbers = pl.int_range(said.len(), eager=True)
    left, right = (
        side.replace_strict(said, numbers, default=said.len(), return_dtype=pl.Int64)
        for side in (one, other)
    )
    cosines = np.einsum("ij,ij->i", vectors[left.to_numpy()], vectors[right.to_numpy()])
    there = one.is_not_null() & other.is_not_null()
    return pl.select(
        pl.when(there).then(pl.Series(cosines, dtype=pl.Float64))
    ).to_series()


def embed_words(said: list[str]) -> NDArray[np.float32]:
    """Make unit vectors of words, a row each; zeros of the empty one."""
    tokenizer, table = _load()
    means: NDArray[np.float32] = np.zeros((len(said), _SIZE), np.float32)
    cut = tokenizer.encode_batch(said, add_special_tokens=False)
    for row, encoded in zip(means, cut, strict=True):
        if encoded.ids:
            row[:] = table[encoded.ids].mean(0, dtype=np.float32)
    lengths = np.linalg.norm(means, axis=1, keepdims=True).astype(np.float32)
    np.divide(means, lengths, out=means, where=lengths > 0)
    return means


@cache
def _load() -> tuple[Tokenizer, NDArray[np.float16]]:
    """Read what lies in the package; importing it would change the log level of the process."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    found = find_spec(_PACKAGE)
    if found is None or found.submodule_search_locations is None:
        raise SettingsError(f"words cannot be compared: {why_no_similarity()}")
    folder = Path(found.submodule_search_locations[0])
    names = (
        "tokenizers/l2_supercat_tokenizer_config.json",
        "weights/l2_supercat_256.safetensors",
    )
    tokenizer = Tokenizer.from_file(str(folder / names[0]))
    return tokenizer, load_file(folder / names[1])["embedding.weight"]


# Samples to the features table: the one place where candidates meet the true texts.

_KEYS = ("target_id", "model", "view", "view_index", "sample_index")

TOKEN_FIELDS = (pl.Field("true_token", pl.UInt64()),)
OTHER_GROUPS = {
    "rarity": kernels.RARITY_FIELDS,
    "similarity": SIMILARITY_FIELDS,
    "choice": CHOICE_FIELDS,
    "token": TOKEN_FIELDS,
    # Whether the candidate has the true text
    "hidden": (pl.Field("has_text", pl.Boolean()),),
}
"""Groups of a run's features that `kernels.pair_features` does not know, with their columns."""


def true_token(reference: pl.Expr) -> pl.Expr:
    """Name a true text by the first 8 bytes of its BLAKE2b, as a struct; null where it is null."""

    def named(texts: pl.Series) -> pl.Series:
        said = texts.drop_nulls().unique()
        names = [blake2b(text.encode(), digest_size=8).digest() for text in said]
        numbers = pl.Series([int.from_bytes(name) for name in names], dtype=pl.UInt64)
        made = texts.replace_strict(said, numbers, default=None, return_dtype=pl.UInt64)
        return made.alias("true_token").to_frame().to_struct("token")

    return reference.map_batches(
        named, return_dtype=pl.Struct(list(TOKEN_FIELDS)), is_elementwise=True
    ).alias("token")


def feature_fields(groups: Iterable[str]) -> list[pl.Field]:
    """Give the columns of these groups."""
    wanted = set(groups)
    others = [
        field
        for group, more in OTHER_GROUPS.items()
        if group in wanted
        for field in more
    ]
    return [*kernels.fields(_kernel_groups(wanted)).fields, *others]


def _kernel_groups(groups: Iterable[str]) -> list[kernels.Group]:
    wanted = set(groups)
    return [group for group in kernels.GROUPS if group in wanted]


def groups_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Name the groups that have these columns, in their order."""
    wanted = set(columns)
    whole = {name.removesuffix("_matched") for name in wanted}
    always = len(kernels.fields([]).fields)  # which come first
    fields = {
        group: kernels.fields([group]).fields[always:] for group in kernels.GROUPS
    }
    others = {group: [*more] for group, more in OTHER_GROUPS.items()}
    names = {
        group: {each.name for each in more} for group, more in (fields | others).items()
    }
    names["matched"] = wanted - whole
    return tuple(group for group, own in names.items() if own & (wanted | whole))


def inputs_of(preset: Preset) -> tuple[list[str], list[str]]:
    """Name the columns of samples and of prompts that `build_features` reads."""
    samples = [*_KEYS, "candidate", "n_tokens", "short"]
    prompts = ["target_id", "view_index", "text"]
    if preset != "samia":
        return samples, prompts
    return [*samples, "prompt"], [*prompts, "context", "n_words"]


def build_features(
    samples: pl.DataFrame,
    prompts: pl.DataFrame,
    *,
    words: kernels.WordRule,
    preset: Preset,
    text_length: int | None,
    groups: Iterable[str],
    rarity: kernels.RarityTable | None = None,
) -> pl.DataFrame:
    """Compare each candidate with the text that follows its prompt.

    Parameters
    ----------
    samples
        Rows of the samples table, of one model and view, those of one prompt in the
        order of ``sample_index``, with at least the columns that `inputs_of` names.
    prompts
        The prompts that they continue, ``context`` and ``text`` whole, with such
        columns.
    words
        How text is split into words.
    preset
        ``default`` compares the candidate as it is; ``samia`` cuts it from prompt and
        candidate as the authors' code does.
    text_length
        For ``samia``: nominal number of words of a target; None = each target's own.
    groups
        Groups of `mia_batch.kernels.pair_features` and of `OTHER_GROUPS`: what the
        attacks need.
    rarity
        What shared n-grams are weighed by; without, the weighed columns are null. Its
        ``counted`` reads columns of ``prompts``.

    Returns
    -------
    DataFrame
        Rows of the features table, in the order of ``samples``; the numbers are null
        where there is no candidate or no reference.

    Raises
    ------
    SettingsError
        If the preset is ``samia`` and the word rule is not ``space``.

    References
    ----------
    Kaneko et al. (2024), "Sampling-based Pseudo-Likelihood for Membership Inference
    Attacks", equations 1 and 7; the cut is that of the authors' code.
    """
    if preset == "samia" and words != "space":
        raise SettingsError(
            f"word rule is {words!r}, but preset 'samia' scores by 'space'; use that"
            " rule"
        )
    candidate = (
        _authors_candidate(text_length) if preset == "samia" else pl.col("candidate")
    )
    counted = None if rarity is None else rarity.counted
    read = [] if counted is None else counted.meta.root_names()
    parts = prompts.lazy().select(*dict.fromkeys([*inputs_of(preset)[1], *read]))
    key = ["target_id", "view_index"]
    pairs = samples.lazy().join(parts, on=key, how="left", maintain_order="left")
    texts = candidate, pl.col("text")
    numbers = kernels.pair_features(*texts, words=words, groups=_kernel_groups(groups))
    structs = [numbers]
    if "similarity" in groups:
        structs.append(similarity(*texts, words=words))
    if "choice" in groups:
        structs.append(read_choice(candidate))
    if "hidden" in groups:
        has_text = candidate.str.contains(pl.col("text"), literal=True)
        structs.append(pl.struct(has_text=has_text).alias("hidden"))
    if "token" in groups:
        structs.append(true_token(pl.col("text")))
    if "rarity" in groups:
        nulls = pl.lit(None, pl.Struct(list(kernels.RARITY_FIELDS)))
        weighed = nulls if rarity is None else rarity.weigh(*texts, words=words)
        structs.append(weighed.alias("rarity"))
    return (
        pairs.select(*_KEYS, "n_tokens", "short", *structs)
        .unnest(*(each.meta.output_name() for each in structs))
        .select(*Features.column_names(), pl.exclude(Features.column_names()))
        .collect(engine="in-memory")
    )


def _authors_candidate(text_length: int | None) -> pl.Expr:
    """Words of prompt and candidate behind half of the nominal length, joined by single spaces."""
    prompt = pl.coalesce("prompt", "context")
    words = (
        (prompt + pl.col("candidate")).str.split(" ").list.filter(pl.element() != "")
    )
    n_words = pl.col("n_words") if text_length is None else pl.lit(text_length)
    n_cut = (n_words * 0.5).round(mode="half_to_even").cast(pl.UInt32)
    return words.list.slice(n_cut).list.join(" ")
