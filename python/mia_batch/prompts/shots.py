"""Prompts that put texts of known membership before the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BETWEEN", "Shots", "after_shots", "choose_shots"]

BETWEEN = "\n\n"
"""What stands between a text and what is before it."""
_IS_SHOT = "the text is one of those that are put before others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """What stands before every target of a run: the shots, an empty line after each."""

    context: str
    texts: frozenset[str]
    n_shots: int
    n_tokens: int


def after_shots(targets: pl.DataFrame, *, shots: Shots) -> pl.DataFrame:
    """Put the shots before each target; a shot itself is not asked about."""
    is_shot = pl.col("target").is_in(sorted(shots.texts))
    return targets.select(
        "target_id",
        cut=pl.lit(0),
        context=pl.when(~is_shot).then(pl.lit(shots.context)),
        reason=pl.when(is_shot).then(pl.lit(_IS_SHOT)),
    )


def choose_shots(
    texts: Sequence[str],
    *,
    room: int,
    count_tokens: Callable[[Sequence[str]], Sequence[int]],
    setting: str,
) -> Shots:
    """Take as many shots as fit into ``room`` tokens, from the first on; empty texts are left out.

    Every target of a run has the same context, so that their scores compare. ``room`` is what the
    model can read less the longest target. Xie et al. (2024), arXiv:2406.15968; the authors' code
    joins the shots without anything between, and makes room for a target of average length.

    Raises `SettingsError`, which names ``setting``, if there is no shot or not even the first fits.
    """
    found = None
    context, n_tokens = "", 0
    there = [text for text in texts if text.strip()]
    for n_shots, text in enumerate(there, start=1):
        context += text + BETWEEN
        (n_tokens,) = count_tokens([context])
        if n_tokens > room:
            break
        found = Shots(
            context=context, texts=frozenset(there[:n_shots]), n_shots=n_shots, n_tokens=n_tokens
        )
    if found is not None:
        return found
    if not context:
        msg = f"setting {setting!r}: there is no text in it; give at least one"
    else:
        msg = (
            f"setting {setting!r}: the first text has {n_tokens:,} tokens, but the model's context "
            f"leaves room for {max(room, 0):,} before the longest target; give shorter texts or "
            "shorter targets"
        )
    raise SettingsError(msg)
