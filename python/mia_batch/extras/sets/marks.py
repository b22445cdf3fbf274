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
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain
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
_AROUND = 20  # letters on each side, by which a place is found again
# Of a window: its book, language and place
_NAME = re.compile(r"[0-9a-f]{16} [a-z]+ \d+-\d+")
_LEVEL = 0.001  # of the test
_POWER = 0.9
_MOSTLY = 0.9  # a smaller share of places that stand as drawn is worth a warning
_CURLY = "\N{RIGHT SINGLE QUOTATION MARK}"
_TABLES = tomllib.loads(Path(__file__).with_name("variants.toml").read_text("utf-8"))
_PROTECTED = re.compile("|".join(_TABLES.pop("protected")), re.MULTILINE | re.DOTALL)


class Place(NamedTuple):
    """A form in a text, and the other form that may stand there."""

    start: int
    end: int
    alternative: str


@cache
def _load_rules(language: str) -> list[tuple[re.Pattern[str], dict[str, str]]]:
    """Load patterns, each with the alternatives to the forms that it matches."""
    if language not in _TABLES:
        raise SettingsError(
            f"--language is {language!r}; give one of {', '.join(_TABLES)}"
        )
    table = _TABLES[language]
    words: list[list[str]] = []
    for row in table["words"]:
        pairs = row["pairs"].split(",")
        words.extend(["", *pair.strip().split("/"), row["after"]] for pair in pairs)
    rules = []
    for preceding, *forms, following in [*words, *table["rules"]]:
        alternatives = dict(zip(forms, forms[::-1], strict=True))
        if all(forms):
            alternatives |= {
                _capitalize(form): _capitalize(alternative)
                for form, alternative in alternatives.items()
            }
        escaped = [re.escape(form) for form in alternatives]
        choice = "|".join(form.replace("'", f"['{_CURLY}]") for form in escaped)
        edge = r"\b" if forms[0][0].isalpha() else ""
        pattern = rf"{preceding}{edge}(?P<form>{choice})(?={following})"
        rules.append((re.compile(pattern), alternatives))
    return rules


def _capitalize(form: str) -> str:
    return form[0].upper() + form[1:]


def find_places(text: str, language: str) -> list[Place]:
    """Find where either of two forms may stand: not in quotations, code or headings."""
    searched = _PROTECTED.sub(
        lambda match: "\0" * len(match[0]), text.replace("\r", " ")
    )
    apostrophe = _CURLY if text.count(_CURLY) > text.count("'") else "'"
    candidates = []
    for pattern, alternatives in _load_rules(language):
        for match in pattern.finditer(searched):
            form = match["form"].replace(_CURLY, "'")
            candidates.append(Place(*match.span("form"), alternatives[form]))
    places: list[Place] = []
    for start, end, form in sorted(candidates):
        if not places or start > places[-1].end:
            places.append(Place(start, end, form.replace("'", apostrophe)))
    return places


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
        text = canary.texts[canary.published]
        for start, end, alternative in find_places(text, canary.name.split()[1]):
            preceding = text[max(0, start - _AROUND) : start]
            following = text[end : end + _AROUND]
            pairs.append(
                (
                    _normalize(f"{preceding}{text[start:end]}{following}"),
                    _normalize(f"{preceding}{alternative}{following}"),
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


def _normalize(text: str) -> str:
    """Join words by single spaces."""
    return " ".join(text.split())


# Mean standardised signed rank of a window by how often it was learnt, and its lower 95
# % limit, as measured on manuals-47m by loss_v1 (benches/mark.py).
_EFFECTS = {8: (0.24, 0.0), 16: (0.43, 0.18), 32: (0.67, 0.40), 64: (0.82, 0.74)}


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
