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
_LEVEL, _POWER = 0.001, 0.9
_MOSTLY = 0.9
_CURLY = "\N{RIGHT SINGLE QUOTATION MARK}"
_TABLES = tomllib.loads(Path(__file__).with_name("variants.toml").read_text("utf-8"))
_PROTECTED = re.compile("|".join(_TABLES.pop("protected")), re.MULTILINE | re.DOTALL)


class Place(NamedTuple):
    """A form in a text, and the other form that may stand there."""

    start: int
    end: int
    other: str


@cache
def _rules(language: str) -> list[tuple[re.Pattern[str], dict[str, str]]]:
    if language not in _TABLES:
        raise SettingsError(
            f"--language is {language!r}; give one of {', '.join(_TABLES)}"
        )
    table, rules = _TABLES[language], []
    words = [
        ["", *pair.strip().split("/"), of["after"]]
        for of in table["words"]
        for pair in of["pairs"].split(",")
    ]
    for before, *forms, after in [*words, *table["rules"]]:
        others = dict(zip(forms, forms[::-1], strict=True))
        if all(forms):
            others |= {
                k[0].upper() + k[1:]: v[0].upper() + v[1:] for k, v in others.items()
            }
        found = "|".join(
            re.escape(form).replace("'", f"['{_CURLY}]") for form in others
        )
        edge = r"\b" if forms[0][0].isalpha() else ""
        rules.append(
            (re.compile(rf"{before}{edge}(?P<form>{found})(?={after})"), others)
        )
    return rules


def places(text: str, language: str) -> list[Place]:
    """Find where either of two forms may stand: not in quotations, code or headings."""
    hidden = _PROTECTED.sub(lambda found: "\0" * len(found[0]), text.replace("\r", " "))
    apostrophe = _CURLY if text.count(_CURLY) > text.count("'") else "'"
    kept = list[Place]()
    for start, end, other in sorted(
        (*match.span("form"), others[match["form"].replace(_CURLY, "'")])
        for rule, others in _rules(language)
        for match in rule.finditer(hidden)
    ):
        if not kept or start > kept[-1].end:
            kept.append(Place(start, end, other.replace("'", apostrophe)))
    return kept


def _windows(text: str, language: str) -> Iterator[tuple[int, int, list[Place]]]:
    """Cut a text into windows of 128 words; those without a place are left out."""
    found = places(text, language)
    starts = [place.start for place in found]
    words = [word.span() for word in re.finditer(r"\S+", text)]
    for at in range(0, len(words), _WINDOW):
        start, end = words[at][0], words[at : at + _WINDOW][-1][1]
        own = found[bisect_left(starts, start) : bisect_left(starts, end)]
        if own := [place for place in own if place.end <= end]:
            yield start, end, own


def edition(
    text: str, start: int, end: int, places: Sequence[Place], others: Sequence[bool]
) -> str:
    parts = list[str]()
    for place, other in zip(places, others, strict=True):
        form = place.other if other else text[place.start : place.end]
        parts += [text[start : place.start], form]
        start = place.end
    return "".join([*parts, text[start:end]])


def _read(book: Path) -> tuple[str, str]:
    try:
        if (size := book.stat().st_size) > _LARGEST:
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


def prepare(
    book: Path, key: Path, language: str = "en", random: Random | None = None
) -> int:
    """Write the key of a book, before the draw, and count its windows."""
    (text, digest), random = _read(book), random or SystemRandom()
    if key.suffix != ".jsonl":  # as an audit takes it
        raise SettingsError(f"--key is {key}; name a file that ends in .jsonl")
    if key.exists():
        raise SettingsError(
            f"{key} exists; give --seed to publish by it, or name another file"
        )
    sets = []
    for start, end, of in _windows(text, language):
        first = [random.random() < 0.5 for _ in of]
        patterns = first, [not other for other in first]
        texts = [edition(text, start, end, of, each) for each in patterns]
        name = f"{digest} {language} {start}-{end}"
        sets.append(
            {"set": name, "texts": texts, "commitment": commitment(name, texts)}
        )
    if len(sets) < _FEWEST:
        raise CorpusError(
            f"{book} has {len(sets)} windows of {_WINDOW} words with a place where a"
            f" form can be chosen, and no test of fewer than {_FEWEST} can have p <"
            f" {_LEVEL:g}: it is too short, or --language is another"
        )
    write_text(key, "".join(f"{json.dumps(each)}\n" for each in sets))
    return len(sets)


def read_sets(key: Path) -> list[dict[str, Any]]:
    try:
        sets = [
            json.loads(line)
            for line in key.read_text("utf-8").removesuffix("\n").split("\n")
        ]
        if all(
            _NAME.fullmatch(each["set"]) and len(each["texts"]) == 2 for each in sets
        ):
            [each["commitment"].encode() for each in sets]
            return sets
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


def lodged(key: Path) -> str:
    """Return the SHA-256 of all commitments, one a line: what is lodged before the draw."""
    return sha256(
        "\n".join(each["commitment"] for each in read_sets(key)).encode()
    ).hexdigest()


def publish(book: Path, key: Path, seed: int, out: Path) -> int:
    """Draw the edition of each window, write the marked book, and note the draw in the key."""
    (text, digest), sets = _read(book), read_sets(key)
    if out.resolve() in {book.resolve(), key.resolve()}:
        raise SettingsError(
            f"--out is {out}, which is not to be overwritten; name another file"
        )
    if {each["set"].split()[0] for each in sets} != {digest}:
        raise CorpusError(
            f"{key} does not fit {book}: it was made of another text; give that one"
        )
    if (drawn := sets[0].get("seed", seed)) != seed:
        raise SettingsError(
            f"{key} was drawn with the seed {drawn}, and a second draw would make the"
            " test worthless; publish that one"
        )
    parts, at = list[str](), 0
    for each in sets:
        start, end = map(int, each["set"].split()[2].split("-"))
        each |= {
            "seed": seed,
            "published": draw(each["commitment"], len(each["texts"]), seed),
        }
        parts += [text[at:start], each["texts"][each["published"]]]
        at = end
    write_text(key, "".join(f"{json.dumps(each)}\n" for each in sets))
    write_text(out, "".join([*parts, text[at:]]))
    return len(sets)


def survival(book: Path, key: Path) -> dict[str, int]:
    """Count the places of a published book that stand as drawn, as the other form, or not at all.

    A place is looked for with 20 letters before and after it.
    """
    read_sets(key)  # refuses other canaries
    pairs = list[list[str]]()
    for each in read_canaries(key):
        text = each.texts[each.published]
        for start, end, other in places(text, each.name.split()[1]):
            before, after = (
                text[max(0, start - _AROUND) : start],
                text[end : end + _AROUND],
            )
            forms = text[start:end], other
            pairs.append([" ".join(f"{before}{form}{after}".split()) for form in forms])
    content = pl.Series([" ".join(_read(book)[0].split())])
    every = pl.Series([[*chain.from_iterable(pairs)]])
    stand = {*content.str.extract_many(every, overlapping=True)[0]}
    counts = dict.fromkeys(("drawn", "other", "lost"), 0)
    for drawn, changed in pairs:
        counts[
            "drawn" if drawn in stand else "other" if changed in stand else "lost"
        ] += 1
    return counts


# Mean standardised signed rank of a window by how often it was learnt, and its lower 95
# % limit, as measured on manuals-47m by loss_v1 (benches/mark.py).
_EFFECTS = {8: (0.24, 0.0), 16: (0.43, 0.18), 32: (0.67, 0.40), 64: (0.82, 0.74)}


def forecast_sentence(n_windows: int) -> str:
    """Say from how many copies on the mark is found, or that nothing can be promised."""
    from scipy.special import ndtr, ndtri

    powers, enough = list[str](), list[int]()
    for copies, effects in _EFFECTS.items():
        power, least = (
            float(ndtr(each * n_windows**0.5 + ndtri(_LEVEL))) for each in effects
        )
        powers.append(f"{copies}: {least:.0%} to {power:.0%}")
        enough += [copies] if least >= _POWER else []
    said = "nothing can be promised: the book has too few places"
    if enough:
        said = f"a model that learnt the book {enough[0]} times or more is found"
    return (
        f"{said}, with power {_POWER:g} at p < {_LEVEL:g} (times learnt, power by the"
        f" effect's lower limit and by the effect: {'; '.join(powers)}; measured on one"
        " model of 47 million weights, on which 4 times or fewer left nothing to see;"
        " others may remember more or less)"
    )


def audit_of(book: Path, key: Path, observer: Observer, **settings: object) -> Settings:
    """Ask for an ordinary audit with the key as canaries, once it fits the published book."""
    counts = survival(book, key)
    n = sum(counts.values())
    if counts["lost"] > n / 2:
        raise CorpusError(
            f"{key} does not fit {book}: {counts['lost']:,} of its {n:,} places are not"
            " there in either form; give the book as it was published, or its own key"
        )
    observer.stage(
        f"of {n:,} places of the mark {counts['drawn']:,} stand as drawn,"
        f" {counts['other']:,} in the other form, and {counts['lost']:,} are not found"
    )
    if counts["drawn"] < _MOSTLY * n:
        observer.stage(
            "much of the mark is gone: a large p-value says little, a small one is"
            " valid"
        )
    usual = {"input": str(book), "canaries": str(key), "max_windows_per_document": 1}
    usual |= {"evidence": "logprobs", "attacks": "loss_v1"}
    return load_settings(usual | settings, use_config=False)
