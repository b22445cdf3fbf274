"""Identifiers in texts (addresses, telephone numbers, keys, accounts), and what masks them.

Texts are hostile: from each place a pattern takes a bounded number of steps, so that the
time grows as the length of a text does. A mask says the kind and the length, and nothing
else of what it hides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import log2
from typing import Literal, NamedTuple, get_args

__all__ = [
    "KINDS",
    "Identifier",
    "Kind",
    "find_identifiers",
    "is_card",
    "is_iban",
    "mask",
    "write_mask",
]

Kind = Literal["key", "email", "iban", "card", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Identifier:
    """An identifier, as its place in a text.

    Attributes
    ----------
    kind
        ``"key"`` (a key of an interface, a token, a password that is assigned),
        ``"email"``, ``"iban"``, ``"card"`` or ``"phone"``.
    start, end
        Its characters are ``text[start:end]``.
    """

    kind: Kind
    start: int
    end: int


def find_identifiers(text: str, kinds: Collection[Kind] = KINDS) -> list[Identifier]:
    """Find the identifiers of a text, by what they look like.

    Numbers of accounts and cards are identifiers only where their check digits are
    right; a name in ordinary words is none.

    Parameters
    ----------
    text
        Any text.
    kinds
        Kinds that are looked for.

    Returns
    -------
    list[Identifier]
        In the order of the text; none overlaps another one.
    """
    searched = text.replace(_BLANK, _OTHER_BLANK)
    identifiers: list[Identifier] = []
    for pattern in _PATTERNS:
        if pattern.kind not in kinds:
            continue
        spans = _find_spans(pattern, searched)
        identifiers += [Identifier(pattern.kind, *span) for span in spans]
        searched = _blank(searched, spans)
    return sorted(identifiers, key=lambda identifier: identifier.start)


def mask(text: str, kinds: Collection[Kind] = KINDS) -> str:
    """Replace the identifiers of a text by their kind and length.

    Parameters
    ----------
    text
        Any text.
    kinds
        Kinds that are masked.

    Returns
    -------
    str
        The text, in which :func:`find_identifiers` finds nothing of these kinds.

    Examples
    --------
    >>> mask("Write to jane.roe@example.com.")
    'Write to ‹email, 20 characters›.'
    """
    pieces: list[str] = []
    position = 0
    for identifier in find_identifiers(text, kinds):
        length = identifier.end - identifier.start
        pieces += [
            text[position : identifier.start],
            write_mask(identifier.kind, length),
        ]
        position = identifier.end
    return "".join([*pieces, text[position:]])


def write_mask(kind: str, length: int) -> str:
    """Write what stands for a masked text of a kind, such as ‹email, 20 characters›."""
    return f"‹{kind}, {length} characters›"


def _find_spans(pattern: _Pattern, text: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    last_end = 0
    for match in pattern.expression.finditer(text):
        start, end = match.span("identifier")
        if start >= last_end and pattern.is_valid(text[start:end]):
            spans.append((start, end))
            last_end = end
    return spans


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end in spans:
        pieces += [text[position:start], _BLANK * (end - start)]
        position = end
    return "".join([*pieces, text[position:]])


def is_iban(text: str) -> bool:
    """Return whether the check digits of an account number are right (ISO 13616)."""
    account = text.replace(" ", "")
    digits = [str(int(sign, 36)) for sign in account[4:] + account[:4]]
    return int("".join(digits)) % 97 == 1


def is_card(text: str) -> bool:
    """Return whether a number begins as those of cards, and its last digit is Luhn's."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    is_right = (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
    return is_right and _ISSUERS.match(text) is not None


def _is_random(text: str) -> bool:
    """Return whether an assigned value has letters, digits and the entropy of a key."""
    if not (re.search("[0-9]", text) and re.search("[A-Za-z]", text)):
        return False
    counts = Counter(text).values()
    entropy = sum(count * log2(len(text) / count) for count in counts) / len(text)
    return entropy >= _LEAST_BITS


def _is_anything(_text: str) -> bool:
    return True


_BLANK = "\uf8ff"  # where an identifier was found, while others are looked for
_OTHER_BLANK = "\ufffd"
# What touches a mask is no identifier: else masking could make new ones
_BEFORE = rf"(?<!{_BLANK})(?<! characters›)"
_AFTER = rf"(?!{_BLANK}|‹\w{{1,9}}, [0-9])"
_LEAST_BITS = 3.0  # of entropy for each character
_ISSUERS = re.compile("4|5[0-9]|2[2-7]|3[0-9]|6")
_KEYS = (
    r"sk-[\w-]{20,200}+",
    r"gh[pousr]_[A-Za-z0-9]{36,255}+",
    r"github_pat_\w{22,255}+",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,250}+",
    r"[spr]k_(?:live|test)_[A-Za-z0-9]{16,250}+",
    r"hf_[A-Za-z0-9]{30,64}+",
    r"glpat-[\w-]{20,64}+",
    r"AIza[\w-]{35}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[\w-]{50,250}+",
    # A JSON web token
    r"eyJ[\w-]{10,4096}+\.eyJ[\w-]{10,4096}+\.[\w-]{10,4096}+",
)
_PEM = (
    r"-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----"
    r"(?:(?:\s|\\n){0,4}[A-Za-z0-9+/=]{16,4096}+){1,256}+"
    r"(?:(?:\s|\\n){0,4}[A-Za-z0-9+/=]{0,16}(?:\s|\\n){0,4}"
    r"-----END (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----)?"
)
_ASSIGNED = (
    r"(?i:key|secret|token|passw(?:or)?d|pwd)[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?"
    rf"(?=(?P<identifier>[\w+/=.~-]{{12,200}}+){_AFTER})"
)
_EMAIL = (
    r"[\w.%+-]{1,64}+@"
    r"(?:[^\W_](?:[\w-]{0,62}+)\.){1,8}[^\W\d_]{2,24}+(?![\w-])"
)
# Of each length, the countries whose accounts have it
_IBANS = {
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL",
    19: "MK SI",
    20: "AT BA EE KZ LT LU XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "PT",
    26: "IS TR",
    27: "FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB PL",
    29: "BR EG PS QA UA",
    30: "JO KW MU",
    31: "MT SC",
    32: "LC",
}
_IBAN = "|".join(
    rf"(?:{countries.replace(' ', '|')})[0-9]{{2}}(?: ?[A-Z0-9]){{{length - 4}}}"
    for length, countries in _IBANS.items()
)
_CARDS = (
    r"[0-9]{13,19}+",
    r"[0-9]{4}(?P<gap>[ -])(?:[0-9]{4}(?P=gap)){2}[0-9]{1,7}+",
    r"[0-9]{4}(?P<space>[ -])[0-9]{6}(?P=space)[0-9]{4,5}+",
)
# Not after a group of digits: what follows belongs to a longer number
_FIRST_GROUP = rf"(?<![0-9{_BLANK}] )(?<!characters› )"
_PHONES = (
    # With the code of a country; +1.23456789 is none
    rf"(?:\+|{_FIRST_GROUP}00)"
    r"(?![0-9]{1,3}\.[0-9]{4})[1-9](?:[ ()./-]{0,2}[0-9]){7,14}",
    r"\(0[1-9][0-9]{1,3}\)[ ]?[0-9]{2,4}(?:[ -]?[0-9]{2,4}){1,2}",
    r"\([2-9][0-9]{2}\)[ ]?[2-9][0-9]{2}[ -][0-9]{4}",
    r"[2-9][0-9]{2}(?P<dash>[.-])[2-9][0-9]{2}(?P=dash)[0-9]{4}",
    rf"{_FIRST_GROUP}0[1-9]"
    r"[0-9]{1,3}[ /-]{1,3}[0-9]{3,4}(?:[ -]?[0-9]{2,4}){1,2}",
)


def _compile(
    kind: Kind,
    expressions: str,
    edge: str = r"\w",
    is_valid: Callable[[str], bool] = _is_anything,
) -> _Pattern:
    """Compile a pattern that is tried from each place, and has none of ``edge`` around it."""
    whole = (
        rf"(?<![{edge}]){_BEFORE}"
        rf"(?=(?P<identifier>{expressions})(?![{edge}]){_AFTER})"
    )
    return _Pattern(kind, re.compile(whole), is_valid)


class _Pattern(NamedTuple):
    kind: Kind
    expression: re.Pattern[str]
    is_valid: Callable[[str], bool]


# In the order in which they are tried: a place is of the first that fits
_PATTERNS = (
    _Pattern("key", re.compile(rf"(?P<identifier>{_PEM})"), _is_anything),
    _compile("key", "|".join(_KEYS), r"\w-"),
    _Pattern("key", re.compile(_ASSIGNED), _is_random),
    _Pattern(
        "email",
        re.compile(rf"(?<![\w.%+-]){_BEFORE}(?P<identifier>{_EMAIL}){_AFTER}"),
        _is_anything,
    ),
    _compile("iban", _IBAN, is_valid=is_iban),
    _compile("card", "|".join(_CARDS), is_valid=is_card),
    _compile("phone", "|".join(_PHONES), is_valid=_is_anything),
)
