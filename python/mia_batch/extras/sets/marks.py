"""Books marked before publication: windows in two editions each, of which a draw publishes one.

The editions of a window differ at all of its places: the forms of the one are drawn,
the other has the other forms. Both are committed to, and a seed that is drawn later
publishes one of each, as of a set of canaries: so the key is a file of canaries, and an
audit with it the test. docs/mark.md says why its p-value is exact, what breaks it, and
what others do.
"""

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from hashlib import sha256
from itertools import accumulate, chain, takewhile
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple

import polars as pl

from mia_batch.corpus import commitment, draw, read_canaries
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.observer import Observer
from mia_batch.settings import Settings, load_settings
from mia_batch.tables import write_text

_WINDOW = 128  # words of a window
_FEWEST = 10  # windows: of fewer no p-value is below 0.001
_LARGEST = 64 << 20  # bytes of a book, which is held in memory several times
_ALIKE = 3  # words, spaces and marks that are the same in both editions after a place
_LONGEST = 64  # of a place in both editions together; beyond, all the rest differs
_AROUND = 20  # letters on each side, by which a place is found again
# Of a window: its book, language and place
_NAME = re.compile(r"[0-9a-f]{16} [a-z]+ \d+-\d+")
_LEVEL = 0.001  # of the test
_POWER = 0.9
_MOSTLY = 0.9  # a smaller share of places that stand as drawn is worth a warning
_CURLY = "\N{RIGHT SINGLE QUOTATION MARK}"
_TABLES = tomllib.loads(Path(__file__).with_name("variants.toml").read_text("utf-8"))
_PROTECTED = re.compile("|".join(_TABLES.pop("protected")), re.MULTILINE | re.DOTALL)

Alternatives = Callable[[str], str]
"""Gives the alternative to a form."""


class Place(NamedTuple):
    """A form in a text, and the other form that may stand there."""

    start: int
    end: int
    alternative: str


@cache
def _load_rules(language: str) -> list[tuple[re.Pattern[str], Alternatives]]:
    """Load patterns, each with what gives the alternatives to the forms that it matches."""
    if language not in _TABLES:
        raise SettingsError(
            f"--language is {language!r}; give one of {', '.join(_TABLES)}"
        )
    table = _TABLES[language]
    parts = {
        f"<{name}>": part.replace("\n", "") for name, part in table["parts"].items()
    }
    words: list[list[str]] = []
    for row in table["words"]:
        pairs = row["pairs"].split(",")
        words.extend(["", *pair.strip().split("/"), row["after"]] for pair in pairs)
    rules: list[tuple[re.Pattern[str], Alternatives]] = []
    for row in [*words, *table["rules"]]:
        preceding, form, other, following = (_fill(cell, parts) for cell in row)
        others = {form: other, other: form}
        if form and other:
            others |= {
                _capitalize(form): _capitalize(other),
                _capitalize(other): _capitalize(form),
            }
        choice = "|".join(map(re.escape, others)).replace("'", f"['{_CURLY}]")
        edge = r"\b" if form[:1].isalpha() else ""
        pattern = rf"{preceding}{edge}(?P<form>{choice})(?={following})"
        rules.append((re.compile(pattern), others.__getitem__))
    for row in table["one_way"]:
        preceding, form, other, following = (_fill(cell, parts) for cell in row)
        pattern = rf"{preceding}(?P<form>{form})(?={following})"
        rules.append((re.compile(pattern), partial(_replace, form, other)))
    for row in table["swaps"]:
        preceding, first, second, following = (_fill(cell, parts) for cell in row)
        orders = rf"(?:{first}) (?:{second})|(?:{second}) (?:{first})"
        pattern = rf"{preceding}(?P<form>{orders})(?={following})"
        swapped = re.compile(rf"({first}|{second}) ({first}|{second})")
        rules.append((re.compile(pattern), partial(swapped.sub, r"\2 \1")))
    return rules


def _fill(pattern: str, parts: dict[str, str]) -> str:
    """Put the parts of regular expressions that have a name where a pattern names them."""
    for name, part in parts.items():
        pattern = pattern.replace(name, part)
    return pattern


def _replace(form: str, other: str, written: str) -> str:
    """Replace a form by the other, with a capital where it has one."""
    replaced = re.sub(form, other, written)
    return _capitalize(replaced) if written[0].isupper() else replaced


def _capitalize(form: str) -> str:
    return form[0].upper() + form[1:]


def find_places(text: str, language: str) -> list[Place]:
    """Find where either of two forms may stand: not in quotations, code or headings."""
    searched = _PROTECTED.sub(_hide, text.replace("\r", " "))
    # A line that is only wrapped goes on in the next.
    searched = re.sub(r"(?<=[^ \n])\n(?=\S)", " ", searched)
    apostrophe = _CURLY if text.count(_CURLY) > text.count("'") else "'"
    candidates = []
    for pattern, find_alternative in _load_rules(language):
        for match in pattern.finditer(searched):
            start, end = match.span("form")
            if "\n" not in text[start:end]:
                form = match["form"].replace(_CURLY, "'")
                candidates.append(Place(start, end, find_alternative(form)))
    places: list[Place] = []
    for start, end, form in sorted(candidates):
        if not places or start > places[-1].end:
            places.append(Place(start, end, form.replace("'", apostrophe)))
    return places


def _hide(match: re.Match[str]) -> str:
    """Hide what is not changed, all but the end of a quotation, which a clause goes on after."""
    shown = match[0][-2:] if match[0][-1] in '"\u201d\u2019' else ""
    return "\0" * (len(match[0]) - len(shown)) + shown


def _cut_windows(text: str, language: str) -> Iterator[tuple[int, int, list[Place]]]:
    """Cut a text into windows of 128 words; those without a place are left out."""
    places = find_places(text, language)
    starts = [place.start for place in places]
    words = [word.span() for word in re.finditer(r"\S+", text)]
    for index in range(0, len(words), _WINDOW):
        window = words[index : index + _WINDOW]
        start, end = window[0][0], window[-1][1]
        inside = places[bisect_left(starts, start) : bisect_left(starts, end)]
        inside = [place for place in inside if place.end <= end]
        if inside:
            yield start, end, inside


def build_edition(
    text: str, start: int, end: int, places: Sequence[Place], changed: Sequence[bool]
) -> str:
    """Build the part of a text from ``start`` to ``end``, with some places changed."""
    pieces: list[str] = []
    for place, is_changed in zip(places, changed, strict=True):
        form = place.alternative if is_changed else text[place.start : place.end]
        pieces += [text[start : place.start], form]
        start = place.end
    return "".join([*pieces, text[start:end]])


def _read(book: Path) -> tuple[str, str]:
    """Read a book, and compute the digest by which its key knows it."""
    try:
        size = book.stat().st_size
        if size > _LARGEST:
            raise CorpusError(
                f"{book} has {size:,} bytes; mark its volumes or chapters one by one"
            )
        text = book.read_bytes().decode()
    except OSError as error:
        raise CorpusError(f"{book} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{book} is no plain text in UTF-8: {error}; convert it"
        ) from error
    if not text.strip():
        raise CorpusError(f"{book} is empty; give the text of the book")
    return text, sha256(text.encode()).hexdigest()[:16]


def _write_key(key: Path, windows: list[dict[str, Any]]) -> None:
    write_text(key, "".join(f"{json.dumps(window)}\n" for window in windows))


def prepare(
    book: Path, key: Path, language: str = "en", random: Random | None = None
) -> int:
    """Write the key of a book, before the draw, and count its windows."""
    text, digest = _read(book)
    random = random or SystemRandom()
    if key.suffix != ".jsonl":  # as an audit reads it
        raise SettingsError(f"--key is {key}; name a file that ends in .jsonl")
    if key.exists():
        raise SettingsError(
            f"{key} exists; give --seed to publish by it, or name another file"
        )
    windows = []
    for start, end, places in _cut_windows(text, language):
        changed = [random.random() < 0.5 for _ in places]
        unchanged = [not is_changed for is_changed in changed]
        texts = [
            build_edition(text, start, end, places, pattern)
            for pattern in (changed, unchanged)
        ]
        name = f"{digest} {language} {start}-{end}"
        windows.append(
            {"set": name, "texts": texts, "commitment": commitment(name, texts)}
        )
    if len(windows) < _FEWEST:
        raise CorpusError(
            f"{book} has {len(windows)} windows of {_WINDOW} words with a place where a"
            f" form can be chosen, and no test of fewer than {_FEWEST} can have p <"
            f" {_LEVEL:g}: it is too short, or --language is another"
        )
    _write_key(key, windows)
    return len(windows)


def read_sets(key: Path) -> list[dict[str, Any]]:
    """Read the windows of a key, each a set of canaries."""
    try:
        lines = key.read_text("utf-8").removesuffix("\n").split("\n")
        windows = [json.loads(line) for line in lines]
        is_key = all(
            _NAME.fullmatch(window["set"]) and len(window["texts"]) == 2
            for window in windows
        )
        if is_key:
            for window in windows:
                window["commitment"].encode()  # raises where it is no text
            return windows
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise CorpusError(f"{key} cannot be read as a key: {error!r}") from error
    raise CorpusError(f"{key} is no key; give the file that mia-batch mark wrote")


def compute_lodged_hash(key: Path) -> str:
    """Compute the SHA-256 of all commitments, one a line: what is lodged before the draw."""
    commitments = [window["commitment"] for window in read_sets(key)]
    return sha256("\n".join(commitments).encode()).hexdigest()


def publish(book: Path, key: Path, seed: int, marked: Path) -> int:
    """Draw the edition of each window, write the marked book, and note the draw in the key."""
    text, digest = _read(book)
    windows = read_sets(key)
    if marked.resolve() in {book.resolve(), key.resolve()}:
        raise SettingsError(
            f"--out is {marked}, which is not to be overwritten; name another file"
        )
    if {window["set"].split()[0] for window in windows} != {digest}:
        raise CorpusError(
            f"{key} does not fit {book}: it was made of another text; give that one"
        )
    previous_seed = windows[0].get("seed", seed)
    if previous_seed != seed:
        raise SettingsError(
            f"{key} was drawn with the seed {previous_seed}, and a second draw would"
            " make the test worthless; publish that one"
        )
    pieces: list[str] = []
    position = 0
    for window in windows:
        start, end = map(int, window["set"].split()[2].split("-"))
        window["seed"] = seed
        window["published"] = draw(window["commitment"], len(window["texts"]), seed)
        edition = window["texts"][window["published"]]
        pieces += [text[position:start], edition]
        position = end
    _write_key(key, windows)
    write_text(marked, "".join([*pieces, text[position:]]))
    return len(windows)


def count_forms(book: Path, key: Path) -> dict[str, int]:
    """Count the places of a published book that stand as drawn, as the other form, or not at all.

    A place is looked for with 20 letters before and after it.
    """
    read_sets(key)  # refuses other canaries
    pairs: list[tuple[str, str]] = []
    for canary in read_canaries(key):
        published = canary.texts[canary.published]
        for start, end, other in compare(published, canary.texts[1 - canary.published]):
            preceding = published[max(0, start - _AROUND) : start]
            following = published[end : end + _AROUND]
            pairs.append(
                (
                    _normalize(f"{preceding}{published[start:end]}{following}"),
                    _normalize(f"{preceding}{other}{following}"),
                )
            )
    content = pl.Series([_normalize(_read(book)[0])])
    forms = pl.Series([[*chain.from_iterable(pairs)]])
    present = {*content.str.extract_many(forms, overlapping=True)[0]}
    counts = {"drawn": 0, "other": 0, "lost": 0}
    for published, alternative in pairs:
        if published in present:
            counts["drawn"] += 1
        elif alternative in present:
            counts["other"] += 1
        else:
            counts["lost"] += 1
    return counts


def compare(text: str, other: str) -> Iterator[Place]:
    """List where an edition of a window differs from the other, whichever rules made them."""
    words, other_words = (re.findall(r"\w+|\W", edition) for edition in (text, other))
    starts = [0, *accumulate(map(len, words))]
    position = other_position = 0
    while position < len(words) or other_position < len(other_words):
        rest, other_rest = words[position:], other_words[other_position:]
        n_alike = sum(
            1 for _ in takewhile(_are_equal, zip(rest, other_rest, strict=False))
        )
        rest, other_rest = rest[n_alike:], other_rest[n_alike:]
        n_words, n_other_words = _count_differing(rest, other_rest)
        start = position + n_alike
        position = start + n_words
        if n_words or n_other_words:
            alternative = "".join(other_rest[:n_other_words])
            yield Place(starts[start], starts[position], alternative)
        other_position += n_alike + n_other_words


def _are_equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def _count_differing(words: list[str], other_words: list[str]) -> tuple[int, int]:
    """Count the words of both until they go on alike: the fewest of both together."""
    for total in range(min(len(words) + len(other_words), _LONGEST)):
        for n_words in range(total + 1):
            n_other_words = total - n_words
            following = words[n_words : n_words + _ALIKE]
            if following == other_words[n_other_words : n_other_words + _ALIKE]:
                return n_words, n_other_words
    return len(words), len(other_words)


def _normalize(text: str) -> str:
    """Join words by single spaces."""
    return " ".join(text.split())


# Mean standardised signed rank of a window by how often it was learnt, and its lower 95
# % limit, as measured on manuals-47m by loss_v1 (benches/mark.py).
_EFFECTS = {8: (0.34, 0.0), 16: (0.42, 0.21), 32: (0.79, 0.65)}


def forecast_sentence(n_windows: int) -> str:
    """Return from how many copies on the mark is found, or that nothing can be promised."""
    from scipy.special import ndtr, ndtri

    powers: list[str] = []
    enough_copies: list[int] = []
    for copies, effects in _EFFECTS.items():
        power, lower_power = (
            float(ndtr(effect * n_windows**0.5 + ndtri(_LEVEL))) for effect in effects
        )
        powers.append(f"{copies}: {lower_power:.0%} to {power:.0%}")
        if lower_power >= _POWER:
            enough_copies.append(copies)
    promise = "nothing can be promised: the book has too few places"
    if enough_copies:
        promise = (
            f"a model that learnt the book {enough_copies[0]} times or more is found"
        )
    return (
        f"{promise}, with power {_POWER:g} at p < {_LEVEL:g} (times learnt, power by the"
        f" effect's lower limit and by the effect: {'; '.join(powers)}; measured on one"
        " model of 47 million weights, on which 4 times or fewer left nothing to see;"
        " others may remember more or less)"
    )


def build_audit(
    book: Path, key: Path, observer: Observer, **settings: object
) -> Settings:
    """Build the settings of an audit with the key as canaries, once it fits the published book."""
    counts = count_forms(book, key)
    n_places = sum(counts.values())
    if counts["lost"] > n_places / 2:
        raise CorpusError(
            f"{key} does not fit {book}: {counts['lost']:,} of its {n_places:,} places"
            " are not there in either form; give the book as it was published, or its"
            " own key"
        )
    observer.stage(
        f"of {n_places:,} places of the mark {counts['drawn']:,} stand as drawn,"
        f" {counts['other']:,} in the other form, and {counts['lost']:,} are not found"
    )
    if counts["drawn"] < _MOSTLY * n_places:
        observer.stage(
            "much of the mark is gone: a large p-value says little, a small one is"
            " valid"
        )
    defaults = {
        "input": str(book),
        "canaries": str(key),
        "max_windows_per_document": 1,
        "evidence": "logprobs",
        "attacks": "loss_v1",
    }
    return load_settings(defaults | settings, use_config=False)
