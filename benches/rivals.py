"""Other implementations of what the kernels compute, each with our numbers in its own form."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import fast_rouge
import polars as pl
from rouge_score_rs import RougeScorer as RustRougeScorer

from mia_batch.extras.speed.ways import ROUGE, rouge_score
from mia_batch.kernels import pair_features

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia_batch.kernels import Group, WordRule

__all__ = ["RIVALS", "Rival"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What is timed on one side, what on the other, and how fast the other ought to be."""

    name: str
    package: str | None = None
    score: Callable[[list[str], list[str]], Any]
    """Takes candidates and references."""
    read: Callable[[Any], list[list[float]]]
    """Takes what ``score`` gives; gives a row of scores for each pair."""
    words: WordRule
    groups: Sequence[Group]
    scores: Sequence[pl.Expr]
    """The same scores from the numbers of these groups."""
    wanted: float
    """How many times as fast ours ought to be."""
    rounds: int = 75

    def ours(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Compute what is timed beside the rival."""
        features = pair_features(
            "candidate", "reference", words=self.words, groups=self.groups
        )
        return pairs.select(features)

    def differences(self, pairs: pl.DataFrame) -> tuple[int, float]:
        """Count the scores that differ in any bit, and give the largest difference."""
        ours = self.ours(pairs).unnest("features").select(*self.scores).rows()
        theirs = self.read(
            self.score(pairs["candidate"].to_list(), pairs["reference"].to_list())
        )
        both = zip(chain(*ours), chain(*theirs), strict=True)
        apart = [abs(one - other) for one, other in both if one != other]
        return len(apart), max(apart, default=0.0)


def samia(n_max: int) -> Callable[[list[str], list[str]], list[list[float]]]:
    """Make SaMIA times zlib for every n up to ``n_max`` (Kaneko et al. 2024, equations 5 and 7)."""

    def ngrams(words: list[str]) -> list[Counter[Any]]:
        more = (
            zip(*(words[at:] for at in range(n)), strict=False)
            for n in range(2, n_max + 1)
        )
        return [Counter(words), *map(Counter, more)]

    def score(candidates: list[str], references: list[str]) -> list[list[float]]:
        last, expected, rows = None, list[Counter[Any]](), []
        for candidate, reference in zip(candidates, references, strict=True):
            if reference != last:
                last, expected = reference, ngrams(reference.split())
            words = candidate.split()
            size = len(zlib.compress(" ".join(words).encode()))
            each = zip(expected, ngrams(words), strict=True)
            rows.append([size * (a & b).total() / a.total() for a, b in each])
        return rows

    return score


def rouge_score_rs(
    candidates: list[str], references: list[str]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = RustRougeScorer(ROUGE).score_batch(
        references, candidates
    )
    return rows


def rouge_rust(
    candidates: list[str], references: list[str]
) -> fast_rouge.BatchScoreResult:
    return fast_rouge.score_batch_flat(references, candidates)


def read_rows(rows: list[dict[str, Any]]) -> list[list[float]]:
    sides = [(name, side) for name in ROUGE for side in ("recall", "precision")]
    return [[getattr(row[name], side) for name, side in sides] for row in rows]


def read_columns(columns: fast_rouge.BatchScoreResult) -> list[list[float]]:
    names = ["rouge1", "rouge2", "rougeL"]
    sides = [f"{name}_{side}" for name in names for side in ("recall", "precision")]
    return [
        list(row)
        for row in zip(*(getattr(columns, side) for side in sides), strict=True)
    ]


def share(n: int, side: str) -> pl.Expr:
    """Share of the side's n-grams that both have; 0 where it has none."""
    n_ngrams = pl.col(f"words_{side}").cast(pl.Int64) - n + 1
    return (pl.col(f"overlap_{n}") / n_ngrams.clip(1)).alias(f"{side}_{n}")


def rouge(*sizes: int) -> list[pl.Expr]:
    sides = ("reference", "candidate")
    longest = [pl.col("lcs_words") / pl.col(f"words_{side}").clip(1) for side in sides]
    return [share(n, side) for n in sizes for side in sides] + [
        score.alias(side) for score, side in zip(longest, sides, strict=True)
    ]


def samia_zlib(n_max: int) -> list[pl.Expr]:
    return [
        share(n, "reference") * pl.col("zlib_candidate") for n in range(1, n_max + 1)
    ]


RIVALS = [
    Rival(
        name="plain Python SaMIA, N = 1, with zlib",
        score=samia(1),
        read=list,
        groups=["unigrams", "zlib"],
        words="whitespace",
        scores=samia_zlib(1),
        wanted=6,
    ),
    Rival(
        name="plain Python SaMIA, N = 1..5, with zlib (ours with LCS)",
        score=samia(5),
        read=list,
        groups=["unigrams", "ngrams", "zlib", "lcs"],
        words="whitespace",
        scores=samia_zlib(5),
        wanted=14,
    ),
    Rival(
        package="rouge-score",
        name="rouge-score, ROUGE-1..5 and L",
        score=rouge_score,
        read=read_rows,
        groups=["unigrams", "ngrams", "lcs"],
        words="rouge",
        scores=rouge(*range(1, 6)),
        wanted=250,
        rounds=3,
    ),
    Rival(
        package="rouge-score-rs",
        name="rouge-score-rs, ROUGE-1..5 and L",
        score=rouge_score_rs,
        read=read_rows,
        groups=["unigrams", "ngrams", "lcs"],
        words="rouge",
        scores=rouge(*range(1, 6)),
        wanted=2.5,
    ),
    Rival(
        package="rouge-rust",
        name="rouge-rust, ROUGE-1, 2 and L",
        score=rouge_rust,
        read=read_columns,
        groups=["unigrams", "ngrams", "lcs"],
        words="rouge",
        scores=rouge(1, 2),
        wanted=8,
    ),
]
