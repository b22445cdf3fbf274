"""Features of samples and the true texts, for attacks to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

__all__ = [
    "OTHER_GROUPS",
    "build_features",
    "feature_fields",
    "find_groups",
    "list_inputs",
]


# How alike two words are in meaning, by embeddings that come with the package
# wordllama.

SIMILARITY_FIELDS = (pl.Field("similarity", pl.Float64()),)
_PACKAGE = "wordllama"
_SIZE = 256  # of an embedding


def why_no_similarity() -> str | None:
    """Return why words cannot be compared on this machine; None where they can."""
    if find_spec(_PACKAGE) is None:
        return (
            f"the package {_PACKAGE} is not installed (pip install 'mia-batch[petal]')"
        )
    return None


def similarity(
    candidate: pl.Expr,
    reference: pl.Expr,
    *,
    words: kernels.WordRule,
) -> pl.Expr:
    """Compare the first words of candidate and reference by embeddings.

    The cosine of the means of their tokens' embeddings; 1 for equal words, and 0 where
    one of the texts has no word.
    """

    def compare(columns: Sequence[pl.Series]) -> pl.Series:
        cosines = _cosines(columns[0], columns[1]).alias("similarity")
        return cosines.to_frame().to_struct("similarity")

    return pl.map_batches(
        [_first_word(candidate, words), _first_word(reference, words)],
        compare,
        return_dtype=pl.Struct(list(SIMILARITY_FIELDS)),
        is_elementwise=True,
    ).alias("similarity")


def _first_word(text: pl.Expr, words: kernels.WordRule) -> pl.Expr:
    """Return the first word of a text: empty where it has none, null of null."""
    spans = kernels.word_spans(text, words=words).struct
    start = spans.field("starts").list.first()
    end = spans.field("ends").list.first()
    word = text.str.slice(start, end - start)
    return pl.when(text.is_not_null()).then(word.fill_null(""))


def _cosines(candidates: pl.Series, references: pl.Series) -> pl.Series:
    words = pl.concat([candidates, references]).drop_nulls().unique()
    rows = pl.int_range(words.len(), eager=True)
    null_vector = np.zeros(_SIZE, np.float32)
    vectors = np.vstack([embed_words(words.to_list()), null_vector])
    candidate_rows, reference_rows = (
        column.replace_strict(words, rows, default=words.len(), return_dtype=pl.Int64)
        for column in (candidates, references)
    )
    cosines = np.einsum(
        "ij,ij->i",
        vectors[candidate_rows.to_numpy()],
        vectors[reference_rows.to_numpy()],
    )
    has_both = candidates.is_not_null() & references.is_not_null()
    values = pl.Series(cosines, dtype=pl.Float64)
    return pl.select(pl.when(has_both).then(values)).to_series()


def embed_words(words: list[str]) -> NDArray[np.float32]:
    """Compute unit vectors of words, a row each; zeros of the empty one."""
    tokenizer, table = _load()
    vectors: NDArray[np.float32] = np.zeros((len(words), _SIZE), np.float32)
    encodings = tokenizer.encode_batch(words, add_special_tokens=False)
    for row, encoding in zip(vectors, encodings, strict=True):
        if encoding.ids:
            row[:] = table[encoding.ids].mean(0, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors


@cache
def _load() -> tuple[Tokenizer, NDArray[np.float16]]:
    """Read the package's files; importing it would change the process' log level."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise SettingsError(f"words cannot be compared: {why_no_similarity()}")
    folder = Path(spec.submodule_search_locations[0])
    tokenizer = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    weights = folder / "weights" / "l2_supercat_256.safetensors"
    table = load_file(weights)["embedding.weight"]
    return Tokenizer.from_file(str(tokenizer)), table


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
"""Columns of groups that `kernels.pair_features` does not know."""


def true_token(reference: pl.Expr) -> pl.Expr:
    """Hash a true text to the first 8 bytes of its BLAKE2b; null where it is null."""

    def hash_texts(texts: pl.Series) -> pl.Series:
        distinct = texts.drop_nulls().unique()
        digests = [blake2b(text.encode(), digest_size=8).digest() for text in distinct]
        numbers = [int.from_bytes(digest) for digest in digests]
        hashes = texts.replace_strict(
            distinct,
            pl.Series(numbers, dtype=pl.UInt64),
            default=None,
            return_dtype=pl.UInt64,
        )
        return hashes.alias("true_token").to_frame().to_struct("token")

    return reference.map_batches(
        hash_texts,
        return_dtype=pl.Struct(list(TOKEN_FIELDS)),
        is_elementwise=True,
    ).alias("token")


def feature_fields(groups: Iterable[str]) -> list[pl.Field]:
    """Return the columns of these groups."""
    names = set(groups)
    fields = [*kernels.fields(_kernel_groups(names)).fields]
    for group, other_fields in OTHER_GROUPS.items():
        if group in names:
            fields += other_fields
    return fields


def _kernel_groups(groups: Iterable[str]) -> list[kernels.Group]:
    names = set(groups)
    return [group for group in kernels.GROUPS if group in names]


def find_groups(columns: Iterable[str]) -> tuple[str, ...]:
    """Find the groups that have these columns, in their order."""
    requested = set(columns)
    whole = {name.removesuffix("_matched") for name in requested}
    n_common = len(kernels.fields([]).fields)  # fields of every group, which come first
    names_of_group: dict[str, set[str]] = {}
    for kernel_group in kernels.GROUPS:
        fields = kernels.fields([kernel_group]).fields[n_common:]
        names_of_group[kernel_group] = {field.name for field in fields}
    for group, other_fields in OTHER_GROUPS.items():
        names_of_group[group] = {field.name for field in other_fields}
    names_of_group["matched"] = requested - whole
    needed = requested | whole
    return tuple(group for group, names in names_of_group.items() if names & needed)


def list_inputs(preset: Preset) -> tuple[list[str], list[str]]:
    """List the columns of samples and of prompts that `build_features` reads."""
    samples = [*_KEYS, "candidate", "n_tokens", "short"]
    prompts = ["target_id", "view_index", "text"]
    if preset == "samia":
        samples += ["prompt"]
        prompts += ["context", "n_words"]
    return samples, prompts


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
        order of ``sample_index``, with at least the columns that `list_inputs` names.
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
        ``is_counted`` reads columns of ``prompts``.

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
    candidate = pl.col("candidate")
    if preset == "samia":
        candidate = _authors_candidate(text_length)
    _, prompt_columns = list_inputs(preset)
    if rarity is not None and rarity.is_counted is not None:
        prompt_columns += rarity.is_counted.meta.root_names()
    pairs = samples.lazy().join(
        prompts.lazy().select(*dict.fromkeys(prompt_columns)),
        on=["target_id", "view_index"],
        how="left",
        maintain_order="left",
    )
    texts = (candidate, pl.col("text"))
    kernel_groups = _kernel_groups(groups)
    structs = [kernels.pair_features(*texts, words=words, groups=kernel_groups)]
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
        if rarity is None:
            weights = pl.lit(None, pl.Struct(list(kernels.RARITY_FIELDS)))
        else:
            weights = rarity.weigh(*texts, words=words)
        structs.append(weights.alias("rarity"))
    struct_names = [struct.meta.output_name() for struct in structs]
    features = pairs.select(*_KEYS, "n_tokens", "short", *structs).unnest(struct_names)
    first = Features.column_names()
    return features.select(*first, pl.exclude(first)).collect(engine="in-memory")


def _authors_candidate(text_length: int | None) -> pl.Expr:
    """Join the words of prompt and candidate behind half of the nominal length."""
    prompt = pl.coalesce("prompt", "context")
    pieces = (prompt + pl.col("candidate")).str.split(" ")
    words = pieces.list.filter(pl.element() != "")
    n_words = pl.col("n_words") if text_length is None else pl.lit(text_length)
    n_cut = (n_words * 0.5).round(mode="half_to_even").cast(pl.UInt32)
    return words.list.slice(n_cut).list.join(" ")
