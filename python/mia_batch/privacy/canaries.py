"""Which canaries a model learns, how often, and how far it prefers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.privacy.exposure import exposures, unlearnt_exposure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.privacy.formats import Format
    from mia_batch.privacy.plan import Plan
    from mia_batch.privacy.signals import Opened

__all__ = ["Inserted", "draw", "exposed", "words_of"]

_AT_ONCE = 4096
_SHORTEST_WORD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """Canaries of a format: the first ``n_learnt`` numbers are learnt, the rest compared."""

    format: Format
    numbers: tuple[int, ...]
    n_learnt: int
    repetitions: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield question and sentence of each row that is learnt: the i-th, i times as often."""
        for place, number in enumerate(self.numbers[: self.n_learnt], start=1):
            yield from [(self.format.question, self.format.text(number))] * (
                place * self.repetitions
            )


def draw(formats: Sequence[Format], plan: Plan) -> list[Inserted]:
    """Draw the canaries of each format, in an order that says nothing of them."""
    return [
        Inserted(
            format=each,
            numbers=tuple(_numbers(each, min(plan.candidates, each.size), [plan.seed, place])),
            n_learnt=min(plan.canaries, plan.candidates - 1, each.size // 2),
            repetitions=plan.repetitions,
        )
        for place, each in enumerate(formats)
    ]


def _numbers(wanted: Format, n: int, seed: list[int]) -> list[int]:
    """Draw numbers without replacement; where they are few among many, by drawing again."""
    rng = np.random.default_rng(seed)
    if wanted.size <= 4 * n:
        return list(map(int, rng.permutation(wanted.size)[:n]))
    found: dict[int, None] = {}
    while len(found) < n:
        found |= dict.fromkeys(map(int, rng.integers(wanted.size, size=n)))
    return list(found)[:n]


def exposed(opened: Opened, inserted: Sequence[Inserted], *, is_seq2seq: bool) -> pl.DataFrame:
    """Ask a model about all canaries: a row for each that it learnt."""

    def losses(each: Inserted, numbers: Sequence[int]) -> np.ndarray:
        texts = [each.format.text(number) for number in numbers]
        if is_seq2seq:
            found = opened.sums([each.format.question] * len(texts), texts)
        else:
            found = opened.sums(texts, [None] * len(texts))
        return found.fill_null(float("nan")).to_numpy()

    frames = []
    for each in inserted:
        learnt, others = each.numbers[: each.n_learnt], each.numbers[each.n_learnt :]
        pieces = (
            losses(each, others[start : start + _AT_ONCE])
            for start in range(0, len(others), _AT_ONCE)
        )
        found = exposures(losses(each, learnt), pieces, each.format.size)
        frames.append(
            found.select(
                pl.lit(each.format.name).alias("format"),
                pl.Series("canary", [each.format.text(number) for number in learnt]),
                pl.int_range(1, pl.len() + 1).alias("repetitions") * each.repetitions,
                pl.all(),
                pl.lit(len(others), pl.UInt32).alias("n_others"),
                pl.lit(unlearnt_exposure(len(others))).alias("unlearnt_exposure"),
            )
        )
    return pl.concat(frames)


def words_of(base: str, revision: str | None) -> list[str]:
    """Whole words of a tokenizer's vocabulary, in lower case and in order."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, revision=revision, trust_remote_code=False)
    found = {word.lstrip("\u0120\u2581") for word in tokenizer.get_vocab()}
    words = sorted(
        word
        for word in found
        if len(word) >= _SHORTEST_WORD and word.isascii() and word.isalpha() and word.islower()
    )
    if len(words) < 10:
        msg = (
            f"the tokenizer of {base!r} has {len(words)} words, too few for canaries of words; "
            "give formats of your own with --canary-formats"
        )
        raise SettingsError(msg)
    return words
