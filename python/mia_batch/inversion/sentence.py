"""What an inversion says, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

__all__ = ["sentence"]


def sentence(found: pl.DataFrame, n_auxiliary: int) -> str:
    """Say what the figures show, and what they do not."""
    f1 = {row["method"]: row for row in _rows(found, None)}
    value = f1["inverter"]["value"]
    if value is None:
        return f"Nothing can be said of the embeddings: {f1['inverter']['reason']}."
    limits = _limits(f1["inverter"])
    lead = {row["method"]: row for row in _rows(found, "nearest")}["inverter"]
    gain = {row["method"]: row for row in _rows(found, "shuffled")}["inverter"]
    others = (f"{f1[name]['value']:.3f}" for name in ("nearest", "shuffled"))
    near, other = others
    said = (
        f"A decoder that was trained on {n_auxiliary:,} auxiliary texts and their embeddings gives "
        f"back tokens of the others with a micro F1 of {value:.3f}{limits}; the auxiliary text of "
        f"the nearest embedding has {near}, the decoder with the embedding of another text {other}."
    )
    if not _is_above(gain):
        return (
            f"{said} So nothing shows that it reads the embeddings at all, which does not prove "
            "that no attacker could."
        )
    if not _is_above(lead):
        return (
            f"{said} So it reads the embeddings, but nothing shows that it gives back more than a "
            "search among known texts; another attacker might."
        )
    return (
        f"{said} So the embeddings give away words of texts that the attacker never saw. It is a "
        "lower bound of what they hold: a larger decoder, or more texts, may give back more."
    )


def _rows(found: pl.DataFrame, versus: str | None) -> list[dict[str, Any]]:
    rows = found.filter(unit="tokens", metric="f1").to_dicts()
    return [row for row in rows if row["versus"] == versus]


def _is_above(difference: dict[str, Any]) -> bool:
    return difference["low"] is not None and difference["low"] > 0


def _limits(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return f" (no interval: {row['reason']})"
    return f" (95 % interval {row['low']:.3f} to {row['high']:.3f})"
