"""Plain differences of two sets of texts, one by one: length, date, script, punctuation, digits.

A classifier that learns from few texts overlooks a difference that a test of one number
finds, and scores that grow with that number follow it.
"""

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from mia_batch.stats import Codes, Flags, Floats

PLAIN_COLUMN = (  # begins the column of a number's ranks in the table ``blind``
    "blind_plain_"
)

_NUMBERS: Final = {
    "length": pl.col("surface").struct.field("words"),
    "date": pl.col("year"),  # the largest number that may be a year
    "script": pl.col("surface").struct.field("bytes"),
    "punctuation": pl.col("surface").struct.field("punctuation"),
    "digits": pl.col("surface").struct.field("digits"),
}
# Scores of most attacks follow the length, so that a test of it that errs in one of
# twenty alike audits is worth its cost. The others share such an error.
_LEVELS: Final = dict.fromkeys(_NUMBERS, 0.0125) | {"length": 0.05}


class PlainDifference(NamedTuple):
    """How the texts of a label differ from the others in one number."""

    name: str
    auc: float  # of the number; above 1/2 if it is larger where the label is true
    p_value: float

    @property
    def differs(self) -> bool:
        return self.p_value <= _LEVELS[self.name]


def plain_differences(
    seen: pl.DataFrame, label: Flags, cluster: Codes
) -> list[PlainDifference]:
    """Compare means over clusters by Mann and Whitney's test, two-sided, corrected for ties."""
    from scipy.stats import mannwhitneyu

    unit, of_text = np.unique(2 * cluster + label, return_inverse=True)
    is_labelled = unit % 2 == 1
    n_texts = np.bincount(of_text)
    found = []
    for name, number in _NUMBERS.items():
        values = seen.select(number.cast(pl.Float64)).to_series().to_numpy()
        means = np.round(np.bincount(of_text, values) / n_texts, 9)
        if np.ptp(means) == 0:
            found.append(PlainDifference(name, 0.5, 1.0))
            continue
        labelled, others = means[is_labelled], means[~is_labelled]
        test = mannwhitneyu(labelled, others, method="asymptotic")
        auc = float(test.statistic) / (labelled.size * others.size)
        found.append(PlainDifference(name, auc, float(test.pvalue)))
    return found


def plain_ranks(
    seen: pl.DataFrame, differences: list[PlainDifference]
) -> dict[str, Floats]:
    """Rank each text by the numbers that differ: the share of texts below, in (0, 1)."""
    from scipy.stats import rankdata

    ranks = {}
    for difference in differences:
        if difference.differs:
            values = (
                seen.select(_NUMBERS[difference.name].cast(pl.Float64))
                .to_series()
                .to_numpy()
            )
            below: Floats = (rankdata(values) - 0.5) / values.size
            ranks[f"{PLAIN_COLUMN}{difference.name}"] = below
    return ranks
