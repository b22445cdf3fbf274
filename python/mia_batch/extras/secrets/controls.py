"""Controls: strings of the form of a secret that could have been it, drawn with the same chance.

A part that the context gives away, or that says what a string is (a country, a bank, an
area, a prefix), stays; other digits become digits, letters letters, names names of a
list, and check digits fit again. A string drawn so has the same form: the secret and
its controls can be exchanged, if chance made the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

from mia_batch.identifiers import find_identifiers, is_card, is_iban

__all__ = ["Form", "build_form", "draw_controls", "guess_kind", "load_names"]

_RUN = re.compile(r"[A-Za-z]+|[0-9]+")
_LONGEST_SHARED = {True: 3, False: 2}  # letters, digits: shorter runs are everywhere
# Digits of base 16, also in groups as in a UUID
_HEXADECIMAL = re.compile(
    r"(?<![0-9A-Za-z])(?=[0-9-]*[A-Fa-f])(?=[A-Fa-f-]*[0-9])"
    r"(?:[0-9a-f][0-9a-f-]{7,}|[0-9A-F][0-9A-F-]{7,})(?![0-9A-Za-z])"
)
_UUID = re.compile(
    r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-([1-8])[0-9A-Fa-f]{3}-([89ABab])[0-9A-Fa-f]{3}-"
)
# What says of which service a key is; of a token all but the signature
_PREFIX = re.compile(
    r"eyJ[\w-]+\.eyJ[\w-]+\.|(?:AKIA|ASIA|AIza)|(?:[A-Za-z]{2,12}[_-]){1,3}"
)
_PEM_EDGE = re.compile(r"-----[A-Z ]+-----(?:\s*[A-Za-z0-9+/]{16})?")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")
_WORD_OF_KEY = re.compile(r"[A-Z]?[a-z]{4,}")
_VOWEL = re.compile("[aeiouyAEIOUY]")
_CONSONANTS = re.compile("[^aeiouyAEIOUY]{4}")
_PHONE_STARTS = digits[2:]
_N_PHONE_DIGITS = 7  # the last ones, which are nobody's area
_N_CARD_DIGITS = 6  # the first ones, which are the issuer's
_N_ACCOUNT_LETTERS = 8  # the first ones of an IBAN: country, check digits, bank
_ATTEMPTS = 50  # draws for each control that is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a secret and its controls have in common.

    Attributes
    ----------
    secret
        The secret itself.
    kind
        Its kind: one of `mia_batch.identifiers.KINDS`, or ``"secret"``.
    choices
        For each character those that may stand there; a single one stays.
    names
        Where names stand that become other names: start and end.
    words
        Runs of letters that look like words, and are drawn letter by letter.
    """

    secret: str
    kind: str
    choices: tuple[str, ...]
    names: tuple[tuple[int, int], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether anything can be drawn."""
        return bool(self.names) or any(len(signs) > 1 for signs in self.choices)


def build_form(secret: str, kind: str, contexts: Iterable[str] = ()) -> Form:
    """Build the form of a secret, of which what a context gives away stays."""
    fixed = _find_fixed(secret, kind)
    for start, end in _find_shared(secret, contexts):
        fixed.update(range(start, end))
    choices = _choose_signs(secret)
    if kind == "phone":
        # Within a country, no part of a number begins with 1 by chance
        for match in re.finditer("[0-9]+", secret):
            first = match[0][0]
            choices[match.start()] = _PHONE_STARTS if first in _PHONE_STARTS else first
    for place in fixed:
        choices[place] = secret[place]
    names: list[tuple[int, int]] = []
    words: list[str] = []
    for match in _RUN.finditer(secret):
        place, end = match.span()
        if len(choices[place]) < 2 or not _is_word(match[0], kind):
            continue
        if kind == "email":
            names.append((place, end))
            choices[place:end] = match[0]
        else:
            words.append(match[0])
    return Form(
        secret=secret,
        kind=kind,
        choices=tuple(choices),
        names=tuple(names),
        words=tuple(words),
    )


def draw_controls(form: Form, n: int, random: Random) -> list[str]:
    """Draw controls, all different and none the secret: fewer where there are not as many."""
    controls: dict[str, None] = {}
    if not form.is_open:
        return []
    n_possible = prod(map(len, form.choices)) * len(load_names()) ** len(form.names)
    for _ in range(_ATTEMPTS * min(n, n_possible)):
        control = _draw(form, random)
        if control is not None and control != form.secret:
            controls[control] = None
        if len(controls) == n:
            break
    return [*controls]


def guess_kind(secret: str) -> str:
    """Return the kind of a whole string; ``"secret"`` where it looks like none."""
    identifiers = find_identifiers(secret)
    if len(identifiers) == 1:
        (identifier,) = identifiers
        if (identifier.start, identifier.end) == (0, len(secret)):
            return identifier.kind
    return "secret"


def _choose_signs(secret: str) -> list[str]:
    choices = [_choose_sign(sign) for sign in secret]
    for match in _RUN.finditer(secret):
        # A number keeps whether it begins with 0
        if match[0][0] in digits:
            choices[match.start()] = "0" if match[0][0] == "0" else digits[1:]
    for match in _HEXADECIMAL.finditer(secret):
        letters = "abcdef" if match[0].lower() == match[0] else "ABCDEF"
        for place in range(*match.span()):
            if secret[place].isalnum():
                choices[place] = digits if secret[place] in digits else letters
    for match in _UUID.finditer(secret):
        for place in (match.start(1), match.start(2)):  # which version it is
            choices[place] = secret[place]
    return choices


def _choose_sign(sign: str) -> str:
    for signs in (digits, ascii_lowercase, ascii_uppercase):
        if sign in signs:
            return signs
    return sign


def _find_fixed(secret: str, kind: str) -> set[int]:
    """Find the places that say what a string is, not which one."""
    numbers = [place for place, sign in enumerate(secret) if sign in digits]
    if kind == "phone":
        return {*range(len(secret))} - {*numbers[-_N_PHONE_DIGITS:]}
    if kind == "card":
        return {*numbers[:_N_CARD_DIGITS]}
    if kind == "iban":
        signs = [place for place, sign in enumerate(secret) if sign.isalnum()]
        return {*signs[:_N_ACCOUNT_LETTERS]}
    if kind == "email":
        return {*range(secret.rindex("@"), len(secret))}
    fixed: set[int] = set()
    if kind == "key":
        match = _PREFIX.match(secret)
        fixed.update(range(match.end() if match else 0))
        for edge in _PEM_EDGE.finditer(secret):
            fixed.update(range(*edge.span()))
    return fixed


def _find_shared(secret: str, contexts: Iterable[str]) -> list[tuple[int, int]]:
    """Find the runs of a secret that stand in what precedes it, from where anyone has them."""
    folded = [context.casefold() for context in contexts]
    shared: list[tuple[int, int]] = []
    for match in _RUN.finditer(secret):
        is_long = len(match[0]) >= _LONGEST_SHARED[match[0].isalpha()]
        run = match[0].casefold()
        if is_long and any(run in context for context in folded):
            shared.append(match.span())
    return shared


def _is_word(run: str, kind: str) -> bool:
    """Return whether letters look like a word or a name, not like drawn ones."""
    word = _WORD_OF_KEY if kind == "key" else _WORD
    return bool(
        word.fullmatch(run) and _VOWEL.search(run) and not _CONSONANTS.search(run)
    )


def _draw(form: Form, random: Random) -> str | None:
    """Draw a string of a form; None where check digits have other signs than the form."""
    signs = [random.choice(choices) for choices in form.choices]
    if form.kind == "card":
        return _fit_card(signs)
    if form.kind == "iban":
        return _fit_account(signs)
    for start, end in reversed(form.names):
        signs[start:end] = _draw_name(form.secret[start:end], random)
    return "".join(signs)


def _draw_name(name: str, random: Random) -> str:
    """Draw a name of the same class of lengths, as the name is written."""
    new_name = random.choice(_list_names(_bound_length(name)))
    if name.isupper():
        return new_name.upper()
    return new_name.capitalize() if name[0].isupper() else new_name


def _bound_length(name: str) -> int:
    return min(max(len(name), 4), 7)


@cache
def _list_names(length: int) -> Sequence[str]:
    return [name for name in load_names() if _bound_length(name) == length]


@cache
def load_names() -> Sequence[str]:
    """Load the names that stand for those of addresses."""
    text = files("mia_batch.extras.secrets").joinpath("names.txt").read_text("utf-8")
    return text.split()


def _fit_card(signs: list[str]) -> str | None:
    """Set the last digit to Luhn's."""
    for digit in digits:
        card = "".join([*signs[:-1], digit])
        if is_card(card):
            return card
    return None


def _fit_account(signs: list[str]) -> str | None:
    """Set the check digits, the third and fourth sign."""
    for number in range(2, 99):
        account = "".join([*signs[:2], f"{number:02}", *signs[4:]])
        if is_iban(account):
            return account
    return None
