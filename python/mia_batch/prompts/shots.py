"""Texts of known membership that stand before a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Shots", "choose_shots"]

_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """What stands before every target of a run.

    Attributes
    ----------
    context
        The shots, an empty line after each.
    n_shots
        How many there are.
    n_tokens
        Tokens of ``context``.
    """

    context: str
    n_shots: int
    n_tokens: int


def choose_shots(
    texts: Sequence[str],
    *,
    room: int,
    count_tokens: Callable[[Sequence[str]], Sequence[int]],
    setting: str,
) -> Shots:
    """Take as many shots as fit, from the first on.

    Every target of a run has the same context, so that their scores compare.

    Parameters
    ----------
    texts
        The shots in their order; empty ones are passed over. A target that is among those
        taken is not scored after them.
    room
        Most tokens of the context: what the model can read less the longest target and its
        special tokens.
    count_tokens
        Gives the number of tokens of each text.
    setting
        Which setting gave the shots, for the message.

    Returns
    -------
    Shots
        At least one shot.

    Raises
    ------
    SettingsError
        If there is no shot or not even the first fits.

    References
    ----------
    Xie et al. (2024), arXiv:2406.15968; the authors' code joins the shots without anything
    between, and makes room for a target of average length.
    """
    found = None
    context, n_tokens = "", 0
    for n_shots, text in enumerate(filter(str.strip, texts), start=1):
        context += text + _BETWEEN
        (n_tokens,) = count_tokens([context])
        if n_tokens > room:
            break
        found = Shots(context=context, n_shots=n_shots, n_tokens=n_tokens)
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
