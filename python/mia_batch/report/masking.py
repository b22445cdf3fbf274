"""What of texts may leave the house: whole passages, a few words, or lengths and hashes.

Addresses, telephone numbers, keys and accounts are masked unless that is switched off, in
names of documents, too. Numbers are the same whatever is shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, TypeVar

import polars as pl

from mia_batch.identifiers import find_identifiers, mask, write_mask

TextPolicy = Literal["all", "few-words", "none"]
Pieces = list[tuple[str, bool]]  # of a text in order, each with whether it is marked
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

NAME_COLUMNS = (
    *("document_id", "group", "title", "author", "key", "subject"),
    *("document", "other_document"),
)

_FEW_WORDS = 3
# The hash of a shorter text could be found by trying what it may be
_LEAST_WORDS_HASHED = 8
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Masking:
    """How much of the texts of corpus and model is shown."""

    texts: TextPolicy = "all"
    unmask: bool = False
    # What stands for names that have identifiers; None: they were not looked for
    names: Mapping[str, str] | None = field(default=None, compare=False)

    def write(self, text: str) -> str:
        """Write a text as far as it may be shown."""
        if self.texts == "all":
            return text if self.unmask else mask(text)
        words = text.split()
        if self.texts == "none" or len(words) <= _FEW_WORDS:
            return f"‹{_describe(text)}›"
        first_words = " ".join(words[:_FEW_WORDS])
        if not self.unmask:
            first_words = mask(first_words)
        return f"{first_words} … ‹{_describe(text)}›"

    def write_pieces(self, pieces: Sequence[tuple[str, bool]]) -> Pieces:
        """Write the pieces of a text, with identifiers masked that lie across two of them."""
        text = "".join(piece for piece, _ in pieces)
        if self.texts != "all":
            return [(self.write(text), False)] if text else []
        if self.unmask:
            return [*pieces]
        identifiers = find_identifiers(text)
        masked: Pieces = []
        start = 0
        for piece, is_marked in pieces:
            end = start + len(piece)
            written = ""
            position = start
            for identifier in identifiers:
                if identifier.end <= start or identifier.start >= end:
                    continue
                if identifier.start >= start:  # else the piece before has its mask
                    n = identifier.end - identifier.start
                    written += text[position : identifier.start]
                    written += write_mask(identifier.kind, n)
                position = min(identifier.end, end)
            masked.append((written + text[position:end], is_marked))
            start = end
        return [piece for piece in masked if piece[0]]

    def write_names(self, rows: Frame, columns: Iterable[str] = NAME_COLUMNS) -> Frame:
        """Write what rows call documents, groups and authors, as far as it may be shown."""
        if not self.names:
            return rows
        schema = rows.collect_schema()
        texts = [name for name in columns if schema.get(name) == pl.String]
        return rows.with_columns(pl.col(texts).replace(self.names))

    @property
    def originals(self) -> dict[str, str]:
        """Names that have identifiers, by what stands for them."""
        return {written: name for name, written in (self.names or {}).items()}

    def write_column(self, texts: pl.Series) -> pl.Series:
        """Write each text of a column; null stays null."""
        written = [None if text is None else self.write(text) for text in texts]
        return pl.Series(texts.name, written, dtype=pl.String)

    def hide_passages(self, findings: pl.DataFrame) -> pl.DataFrame:
        """Write the passages that stand in findings: what came out, and how answers begin."""
        is_passage = pl.col("statistic").is_in(["longest", "of_words"])
        has_text = (pl.col("check") == "verbatim") & is_passage
        has_text |= (pl.col("check") == "dress") & pl.col("reason").is_not_null()
        reason = self.write_column(findings["reason"])
        written = pl.when(has_text).then(reason).otherwise("reason")
        return findings.with_columns(reason=written)


MASKED = Masking()
"""What is shown where nobody has asked for more or less."""


def mask_names(names: Iterable[str]) -> dict[str, str]:
    """Return what stands for those names that have identifiers.

    Names that would be alike then have a number, by their order, so that they stay apart.
    """
    masks = {name: mask(name) for name in sorted({*names})}
    counts = Counter(masks.values())
    numbers: Counter[str] = Counter()
    written: dict[str, str] = {}
    for name, masked in masks.items():
        numbers[masked] += 1
        if masked == name:
            continue
        is_alone = counts[masked] == 1
        written[name] = masked if is_alone else f"{masked} ({numbers[masked]})"
    return written


def _describe(text: str) -> str:
    """Describe a text by its length, and by the beginning of its hash where it is long."""
    n = len(text.split())
    length = f"{n:,} {'word' if n == 1 else 'words'}, {len(text):,} characters"
    if n < _LEAST_WORDS_HASHED:
        return length
    return f"{length}, SHA-256 {sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"
