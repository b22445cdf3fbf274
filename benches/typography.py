"""What typography costs, and what it costs to undo it.

Words that agree before the first difference, of answers in plain letters with texts
that are printed otherwise; and the CPU time of features under the word rule ``folded``,
in those of ``script``. Both by form of the text.

    python -m benches.typography
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial
from pydoc_data.topics import topics
from random import Random
from statistics import mean, median

import polars as pl
from benches.kernels import take_turns

from mia_batch.kernels import WordRule, pair_features

FORMS: dict[str, Callable[[str], str]] = {
    "as typed": str,
    "decomposed": partial(unicodedata.normalize, "NFD"),
    "curly quotes": lambda text: text.replace("'", "\u2019").replace('"', "\u201d"),
    "ligatures, long s": lambda text: (
        text.replace("fi", "\ufb01").replace("fl", "\ufb02").replace("s", "\u017f")
    ),
}
WORDS, SHARE_RIGHT, ROUNDS = 64, 0.8, 9


def answers(texts: list[str]) -> list[str]:
    """Give each text back, each word with the same chance of being right."""
    draw = Random(0)
    return [
        " ".join(
            word if draw.random() < SHARE_RIGHT else "zzz" for word in text.split()
        )
        for text in texts
    ]


def numbers(pairs: pl.DataFrame, rule: WordRule) -> pl.Series:
    features = pair_features(
        "candidate", "reference", words=rule, groups=["unigrams", "leading"]
    )
    return pairs.select(features.struct.field("leading_words")).to_series()


def main() -> None:
    """Print a line for each form."""
    words = " ".join(topics.values()).replace("e", "\u00e9").split()
    typed = [
        " ".join(words[at : at + WORDS]) for at in range(0, len(words) - WORDS, WORDS)
    ]
    print(
        "form, leading words by script, by folded, CPU time by folded in that by script"
    )
    for name, form in FORMS.items():
        printed = [*map(form, typed)]
        pairs = pl.DataFrame({"candidate": answers(typed), "reference": printed})
        means = [mean(numbers(pairs, rule)) for rule in ("script", "folded")]
        same = pairs.with_columns(candidate=pl.Series([*map(form, answers(typed))]))
        ways = {rule: partial(numbers, same, rule) for rule in ("script", "folded")}
        seconds = take_turns(ways, ROUNDS)
        pairs_of_times = zip(seconds["folded"], seconds["script"], strict=True)
        ratio = median(one / other for one, other in pairs_of_times)
        print(f"{name}: {means[0]:.2f}, {means[1]:.2f}, {ratio:.2f}")


if __name__ == "__main__":
    main()
