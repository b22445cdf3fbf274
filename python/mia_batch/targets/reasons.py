"""Why a target cannot be sampled: short sentences, as users read them."""

from __future__ import annotations

from typing import Final

__all__ = ["COPY", "EMPTY_TEXT", "NO_REFERENCE", "NULL_TEXT", "TOO_SHORT", "WORDLESS_PART"]

NULL_TEXT: Final = "the text is null"
EMPTY_TEXT: Final = "the text has no words"
TOO_SHORT: Final = "the text is too short to split: its prefix or its reference would have no word"
WORDLESS_PART: Final = "the given prefix or reference has no word"
NO_REFERENCE: Final = (
    "the text is shorter than the cut of the samia preset: nothing is left to compare"
)
COPY: Final = "the same passage as in earlier windows"
