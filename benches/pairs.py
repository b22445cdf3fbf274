"""Pairs of texts as samplers write them, made from real text beside the repository, seeded.

Candidates are shuffled sentences, chains that draw each word after the three before it
(after fewer where these leave no choice), and for one in twelve a loop of a few words
with a little noise, as models fall into. Half of all hold a verbatim span of their
reference.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from random import Random

__all__ = ["SAMPLES", "Prose", "make_pairs"]

DATA = Path(__file__).parents[2] / "shared" / "data"
SAMPLES = 10
"""Candidates of one reference."""
REFERENCE_WORDS = {16: 28, 32: 28, 64: 16, 128: 14, 256: 7, 512: 7}
"""Words of a reference, and how many of 100 have them."""
CANDIDATE_BYTES = (3000, 6200)
ORDER = 3


class Prose:
    """Real text to draw from."""

    def __init__(self) -> None:
        lines = [
            json.loads(line)["input"]
            for file in sorted((DATA / "wikimia").glob("*.jsonl"))
            for line in file.read_text("utf-8").splitlines()
        ]
        self.words = [word for line in lines for word in line.split()]
        self.sentences = [
            part for line in lines for part in re.split(r"(?<=[.!?]) ", line)
        ]

    @cached_property
    def followers(self) -> dict[tuple[str, ...], list[str]]:
        """Words that follow each run of up to three words."""
        found = defaultdict(list)
        for n in range(1, ORDER + 1):
            for *run, word in zip(
                *(self.words[at:] for at in range(n + 1)), strict=False
            ):
                found[tuple(run)].append(word)
        return found

    def reference(self, random: Random) -> list[str]:
        (n_words,) = random.choices([*REFERENCE_WORDS], [*REFERENCE_WORDS.values()])
        start = random.randrange(len(self.words) - n_words)
        return self.words[start : start + n_words]

    def candidate(
        self, random: Random, reference: list[str], *, looped: bool = False
    ) -> str:
        """A text of some 4.6 KB."""
        n_bytes = random.randint(*CANDIDATE_BYTES)
        kinds = [self._sentences, self._chain, self._loop]
        (kind,) = [self._loop] if looped else random.choices(kinds, [46, 46, 8])
        words = kind(random, n_bytes)
        if random.random() < 0.5:
            start, end = sorted(random.sample(range(len(reference) + 1), 2))
            at = random.randrange(len(words))
            words[at:at] = reference[start:end]
        ends = accumulate(len(word.encode()) + 1 for word in words)
        return " ".join(
            word for word, end in zip(words, ends, strict=True) if end <= n_bytes
        )

    def _sentences(self, random: Random, n_bytes: int) -> list[str]:
        words: list[str] = []
        while sum(map(len, words)) < n_bytes:
            words += random.choice(self.sentences).split()
        return words

    def _chain(self, random: Random, n_bytes: int) -> list[str]:
        words = random.choice(self.sentences).split()
        while len(words) < n_bytes // 4:
            runs = (
                self.followers.get(tuple(words[-n:]), []) for n in range(ORDER, 0, -1)
            )
            choice = next((run for run in runs if len(run) > 1), self.words)
            words.append(random.choice(choice))
        return words

    def _loop(self, random: Random, n_bytes: int) -> list[str]:
        piece = random.choice(self.sentences).split()[: random.randint(5, 40)]
        words = piece * (n_bytes // len(piece) + 1)
        noise = (
            random.choice(self.words) if random.random() < 0.01 else None for _ in words
        )
        return [new or old for new, old in zip(noise, words, strict=True)]


def make_pairs(
    prose: Prose, random: Random, n: int, *, looped: bool = False
) -> pl.DataFrame:
    """Columns ``candidate`` and ``reference``; the candidates of one reference stand together."""
    references = [prose.reference(random) for _ in range(n // SAMPLES)]
    rows = [
        (prose.candidate(random, reference, looped=looped), " ".join(reference))
        for reference in references
        for _ in range(SAMPLES)
    ]
    return pl.DataFrame(rows, ["candidate", "reference"], orient="row")
