"""Parts of books, some of them to be seen by a model in training, others never."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Design", "others_of", "training_texts", "write_books"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is cut out of each book, and how often a model sees it."""

    words: int = 128  # of a window
    windows: int = 8  # of a part
    parts: int = 18  # of a book, one after the other
    skipped: int = 2048  # words at the book's beginning: titles and contents
    often: int = 100  # times that one part of every second book is seen
    seldom: int = 10  # times that some other parts of each book are seen
    n_seldom: int = 3  # how many
    others: int = 800  # windows of the books' rest, seen once

    @property
    def part_words(self) -> int:
        """Words of a part."""
        return self.words * self.windows


def write_books(texts: Mapping[str, str], folder: Path, design: Design) -> pl.DataFrame:
    """Write a stretch of each book, and draw how often each part of it is seen."""
    draw = Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (book, text) in enumerate(texts.items()):
        spans = _words(text)[design.skipped :][: design.parts * design.part_words]
        stretch = text[spans[0][0] : spans[-1][1]]
        (folder / f"{book}.txt").write_text(stretch, "utf-8")
        spans = _words(stretch)
        seen = [design.seldom] * design.n_seldom + [design.often] * (number % 2)
        times = seen + [0] * (design.parts - len(seen))
        draw.shuffle(times)
        for part, often in enumerate(times):
            of_part = spans[part * design.part_words :][: design.part_words]
            start, end = of_part[0][0], of_part[-1][1]
            rows.append((f"{book}.txt", part, often, start, end, stretch[start:end]))
    columns = ["book", "part", "times", "start", "end", "text"]
    parts = pl.DataFrame(rows, columns, orient="row")
    return parts.with_columns(name=pl.format("{} {}", "book", "part"))


def training_texts(parts: pl.DataFrame, design: Design) -> list[str]:
    """Cut each part as often as it is seen into pieces, which begin elsewhere each time."""
    draw = Random(0)
    return [
        piece
        for text, times in parts.select("text", "times").iter_rows()
        for _ in range(times)
        for piece in _pieces(text, design.words, draw.randrange(design.words))
    ]


def others_of(texts: Mapping[str, str], design: Design) -> list[str]:
    """Draw windows from what stands behind the stretches."""
    found: list[str] = []
    used = design.skipped + design.parts * design.part_words
    for text in texts.values():
        found += _pieces(text[_words(text)[used - 1][1] :], design.words, 0)
    return Random(0).sample(found, min(design.others, len(found)))


def _words(text: str) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(r"\S+", text)]


def _pieces(text: str, words: int, first: int) -> Iterator[str]:
    """Cut a text into pieces of so many words; the first piece may be shorter, as the last."""
    spans = _words(text)
    for start in range(first - words if first else 0, len(spans), words):
        run = spans[max(start, 0) : start + words]
        yield text[run[0][0] : run[-1][1]]
