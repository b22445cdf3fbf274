"""International Standard Book Numbers."""

from __future__ import annotations

import re

__all__ = ["find_isbn"]

_WRITTEN = re.compile(r"(?:urn:)?(?:isbn(?:-1[03])?[:\s]*)?([\d][\d\s-]{8,15}[\dx])", re.IGNORECASE)


def find_isbn(identifier: str) -> str | None:
    """Return the 10 or 13 digits of an identifier that is a valid ISBN, without hyphens."""
    written = _WRITTEN.fullmatch(identifier.strip())
    if written is None:
        return None
    number = re.sub(r"[\s-]", "", written[1]).upper()
    digits = [10 if digit == "X" else int(digit) for digit in number]
    if len(digits) == 10:
        valid = sum(weight * digit for weight, digit in zip(range(10, 0, -1), digits, strict=True))
        return number if valid % 11 == 0 else None
    if len(digits) == 13 and number.isdecimal() and number.startswith(("978", "979")):
        return number if (sum(digits[::2]) + 3 * sum(digits[1::2])) % 10 == 0 else None
    return None
