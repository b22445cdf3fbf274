"""How large a difference a comparison without the model excludes, in words."""

from __future__ import annotations

__all__ = ["excluded"]


def excluded(above: float | None) -> str:
    """Say which differences are excluded.

    Parameters
    ----------
    above
        The AUC above which they are; in [0.5, 1], null where there is none.

    Returns
    -------
    str
        The end of a sentence. An AUC that rounds to 1.00 excludes none.

    Examples
    --------
    >>> excluded(0.58), excluded(0.997)
    ('differences above AUC 0.58 are excluded', 'too few texts to exclude any difference')
    """
    limit = f"{1 if above is None else above:.2f}"
    if limit == "1.00":
        return "too few texts to exclude any difference"
    return f"differences above AUC {limit} are excluded"
