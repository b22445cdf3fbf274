"""Slow twins of the kernels, written from their definitions in plain Python, for clarity alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.kernels import fields
from tests import twins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mia_batch.kernels import Group, WordRule


SPLIT = {
    "whitespace": str.split,
    "space": lambda text: [word for word in text.split(" ") if word != ""],
}


def features(
    candidate: str | None, reference: str | None, rule: WordRule, groups: Iterable[Group]
) -> Mapping[str, int | None]:
    """Every field that ``pair_features`` gives for these groups, in its order."""
    names = list(fields(groups).to_schema())
    if candidate is None or reference is None:
        return dict.fromkeys(names)
    words, right = SPLIT[rule](candidate), SPLIT[rule](reference)
    cut = words[: len(right)]
    matched = of_candidate(cut, right)
    every = (
        {"words_reference": len(right)}
        | of_candidate(words, right)
        | {f"{name}_matched": number for name, number in matched.items()}
    )
    return {name: every[name] for name in names}


def of_candidate(words: Sequence[str], reference: Sequence[str]) -> dict[str, int | None]:
    return dict(
        {"words_candidate": len(words), "zlib_candidate": twins.compressed(words)}
        | {f"overlap_{n}": twins.overlap(words, reference, n) for n in twins.SIZES}
        | {"lcs_words": longest_common_subsequence(words, reference)}
    )


def longest_common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Lin (2004), section 3.1, by dynamic programming over the prefixes of both."""
    row = [0] * (len(right) + 1)
    for word in left:
        above, row = row, [0]
        for at, other in enumerate(right):
            row.append(above[at] + 1 if word == other else max(above[at + 1], row[at]))
    return row[-1]
