"""How much of a text is in what was recovered, unit by unit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.inversion.particulars import names_in, numbers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["UNITS", "overlaps"]

UNITS = ("tokens", "token_sets", "names", "numbers")


def overlaps(
    true: Sequence[str],
    recovered: Sequence[str],
    encode: Callable[[Sequence[str]], list[list[int]]],
) -> pl.DataFrame:
    """Count what texts and recovered texts share: a struct of each of `UNITS`, a row a pair.

    ``true``, ``recovered`` and ``shared`` count units of the pair, ``exact`` says whether they are
    the same in the same order. Tokens are those of ``encode``, without special tokens: an end of
    text that both sides have is nothing that was recovered. As multisets, and as sets, as the
    released code of GEIA counts them (``eval_classification.py``).
    """
    listed = [_listed(texts, encode) for texts in (true, recovered)]
    return pl.DataFrame(
        {
            unit: [_compared(*pair) for pair in zip(*(side[unit] for side in listed), strict=True)]
            for unit in UNITS
        },
        schema=dict.fromkeys(UNITS, _COUNTS),
    )


_COUNTS = pl.Struct(
    {"true": pl.UInt32, "recovered": pl.UInt32, "shared": pl.UInt32, "exact": pl.Boolean}
)


def _listed(
    texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]
) -> dict[str, list[list[str]] | list[list[int]]]:
    """List the units of each text."""
    column = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    text = pl.col("text")
    found = column.select(names=names_in(text), numbers=numbers_in(text))
    tokens = encode(texts)
    return {
        "tokens": tokens,
        "token_sets": [sorted(set(ids)) for ids in tokens],
        "names": found["names"].to_list(),
        "numbers": found["numbers"].to_list(),
    }


def _compared(true: list[str], recovered: list[str]) -> dict[str, int | bool]:
    shared = (Counter(true) & Counter(recovered)).total()
    exact = true == recovered
    return {"true": len(true), "recovered": len(recovered), "shared": shared, "exact": exact}
