"""Foreign text on a page: all of it is seen, none of it is obeyed; numbers for people."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

__all__ = ["NO_VALUE", "cut", "interval", "number", "plain", "share", "visible"]

_MOST = 1_500
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls, marks that turn the direction of text, and signs without width."""
_CODE = Markup('<span class="code">{}</span>')
_CUT = Markup(' <span class="cut">{:,} more characters</span>')
_DIGITS = 3
NO_VALUE = "\N{EN DASH}"


def cut(text: str, most: int = _MOST, *, keep_end: bool = False) -> tuple[str, int]:
    """Keep the first ``most`` characters, or the last, and say how many are left out."""
    left_out = max(len(text) - most, 0)
    return (text[left_out:] if keep_end else text[:most]), left_out


def plain(text: str, most: int = _MOST) -> str:
    """Make hidden characters visible as ``[U+202E]``; what is cut off is counted."""
    shown, left_out = cut(text.replace("\r\n", "\n"), most)
    seen = _HIDDEN.sub(lambda found: f"[{_code(found[0])}]", shown)
    return f"{seen} [{left_out:,} more characters]" if left_out else seen


def visible(text: object, most: int = _MOST, *, note: bool = True) -> Markup:
    """Write text into a page, as `plain` does, with hidden characters set apart.

    Without ``note``, three dots stand for what is cut off.
    """
    shown, left_out = cut(str(text).replace("\r\n", "\n"), most)
    written = Markup(_HIDDEN.sub(lambda found: _CODE.format(_code(found[0])), str(escape(shown))))
    if not left_out:
        return written
    return written + (_CUT.format(left_out) if note else "…")


def _code(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def number(value: float | None, digits: int = _DIGITS) -> str:
    """Write a number with few digits, a count with its thousands apart; a dash for null."""
    if value is None:
        return NO_VALUE
    if isinstance(value, int):
        return f"{value:,}"
    small = 0 < abs(value) < 10.0**-digits
    return f"{value:.2g}" if small else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """Write a share in percent; only 0 and 1 themselves are 0 % and 100 %."""
    if value is None:
        return NO_VALUE
    if 0 < value < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a value and its interval, with as many digits as keep the two limits apart."""
    if value is None:
        return NO_VALUE
    if low is None or high is None:
        return f"{number(value)} (no interval)"
    digits = _DIGITS
    while low < high and digits < 9 and f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
