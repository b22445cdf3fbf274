"""Views: the forms of a target whose log-probabilities are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import polars as pl

    from mia_batch.schemas import ModelRole

__all__ = ["Seen", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One text that a model shall see, or why there is none.

    Attributes
    ----------
    text
        The text that is scored; null where there is none.
    context
        What precedes it, unscored.
    reason
        Why there is no text.
    """

    text: str | None
    context: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One form of every target.

    Attributes
    ----------
    role
        Which model sees it.
    name
        Name of the view, as in the logprobs table.
    n_texts
        Texts of this form per target.
    make
        From rows of the targets table and a range of ``view_index`` to texts, one list per target.
    context_tokens, text_tokens
        As in `TextScoreRequest`.
    wanted
        What is needed beside log-probabilities: names of `Scoring`, and ``log_inverse_frequency``.
    """

    role: ModelRole
    name: str
    make: Callable[[pl.DataFrame, range], Iterable[list[Seen]]]
    n_texts: int = 1
    context_tokens: int | None = None
    text_tokens: int | None = None
    wanted: frozenset[str] = frozenset()
