"""From rows of the targets table to texts that a model shall see: what a view's ``make`` may be.

Each function takes targets and a range of ``view_index``, and yields one list of texts per target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.scoring.view import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

__all__ = ["NO_FURTHER", "changed", "extraction", "given", "pick"]

NO_FURTHER = "the text has no further neighbour"
"""Why a view of several texts has no more of one target."""


def changed(
    targets: pl.DataFrame, _indices: range, *, change: Callable[[str], str]
) -> Iterator[list[Seen]]:
    """Yield each text as a function changes it."""
    for text in targets["target"]:
        yield [Seen(text=change(text))]


def extraction(targets: pl.DataFrame, _indices: range) -> Iterator[list[Seen]]:
    """Put prefixes before references; halves that do not join to the target get a space between."""
    rows = targets.select("target", "prefix", "reference", "reason")
    for target, prefix, reference, reason in rows.iter_rows():
        if reason is not None:
            yield [Seen(text=None, reason=reason)]
        else:
            joined = reference if prefix + reference == target else f" {reference}"
            yield [Seen(text=joined, context=prefix)]


def given(targets: pl.DataFrame, indices: range, *, column: str) -> Iterator[list[Seen]]:
    """Yield the texts of a column of lists."""
    for texts in targets[column].to_list():
        yield pick(texts or (), indices, NO_FURTHER)


def pick(texts: Sequence[str | None], indices: range, reason: str) -> list[Seen]:
    """Take some of a target's texts; those that are not there have the reason."""
    found = [texts[index] if index < len(texts) else None for index in indices]
    return [Seen(text=text, reason=reason if text is None else None) for text in found]
