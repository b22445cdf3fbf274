"""Samples and targets to the features table: the one place where candidates meet references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.kernels import GROUPS, fields, pair_features
from mia_batch.schemas import Features

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia_batch.kernels import Group, WordRule
    from mia_batch.targets.plan import Preset

__all__ = ["build_features", "groups_of", "inputs_of"]

_KEYS = ("target_id", "model", "view", "view_index", "sample_index")


def groups_of(columns: Iterable[str]) -> tuple[Group, ...]:
    """Name the groups of `kernels.pair_features` that have these columns, in their order."""
    wanted = set(columns)
    found = {group for group in GROUPS if wanted & _columns(group)}
    found |= {group for group in GROUPS if wanted & {f"{name}_matched" for name in _columns(group)}}
    if any(name.endswith("_matched") for name in wanted):
        found.add("matched")
    return tuple(group for group in GROUPS if group in found)


def _columns(group: Group) -> set[str]:
    """Columns that a group adds, those of cut candidates aside."""
    return {field.name for field in fields([group]).fields} - {
        field.name for field in fields([]).fields
    }


def inputs_of(preset: Preset) -> tuple[list[str], list[str]]:
    """Name the columns of the samples and of the targets table that `build_features` reads."""
    samples = [*_KEYS, "candidate", "n_tokens", "short"]
    targets = ["target_id", "reference"]
    if preset == "default":
        return samples, targets
    return [*samples, "prompt"], [*targets, "prefix", "n_words"]


def build_features(
    samples: pl.DataFrame,
    targets: pl.DataFrame,
    *,
    words: WordRule,
    preset: Preset,
    text_length: int | None,
    groups: Iterable[Group],
) -> pl.DataFrame:
    """Compare each candidate with its target's reference.

    Parameters
    ----------
    samples
        Rows of the samples table, those of one target in the order of ``sample_index``, with at
        least the columns that `inputs_of` names.
    targets
        Rows of the targets table, at least those that ``samples`` belongs to, and such columns.
    words
        How text is split into words.
    preset
        ``default`` compares the candidate as it is; ``samia`` cuts it from prompt and candidate
        as the authors' code does.
    text_length
        For ``samia``: nominal number of words of a target; None = each target's own.
    groups
        Groups of `mia_batch.kernels.pair_features`: what the attacks need, and nothing else.

    Returns
    -------
    DataFrame
        Rows of the features table, in the order of ``samples``; the numbers are null where there
        is no candidate or no reference.

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
        msg = f"word rule is {words!r}, but preset 'samia' scores by 'space'; use that rule"
        raise SettingsError(msg)
    candidate = pl.col("candidate") if preset == "default" else _authors_candidate(text_length)
    parts = targets.lazy().select(inputs_of(preset)[1])
    pairs = samples.lazy().join(parts, on="target_id", how="left", maintain_order="left")
    numbers = pair_features(candidate, pl.col("reference"), words=words, groups=groups)
    return (
        pairs.select(*_KEYS, "n_tokens", "short", numbers.alias("numbers"))
        .unnest("numbers")
        .select(*Features.column_names(), pl.exclude(Features.column_names()))
        .collect(engine="in-memory")
    )


def _authors_candidate(text_length: int | None) -> pl.Expr:
    """Words of prompt and candidate behind half of the nominal length, joined by single spaces."""
    prompt = pl.coalesce("prompt", "prefix")
    words = (prompt + pl.col("candidate")).str.split(" ").list.filter(pl.element() != "")
    n_words = pl.col("n_words") if text_length is None else pl.lit(text_length)
    n_cut = (n_words * 0.5).round(mode="half_to_even").cast(pl.UInt32)
    return words.list.slice(n_cut).list.join(" ")
