"""A text in lower case."""

from __future__ import annotations

__all__ = ["lowercase"]


def lowercase(text: str) -> str:
    """Put a text in lower case.

    Parameters
    ----------
    text
        The text.

    Returns
    -------
    str
        Unicode's lower case of every letter, as the authors' code has it.

    References
    ----------
    Carlini et al. (2021), arXiv:2012.07805, section 5.2.
    """
    return text.lower()
