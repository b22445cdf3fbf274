"""Plain differences of two sets of texts: length, date, script, punctuation, digits.

Each is tested alone. A classifier that learns from few texts overlooks a difference
that a test of one number finds, and scores that grow with that number follow it.
"""

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from mia_batch.stats import Codes, Flags, Floats

# Begins the column of a number's ranks in the table ``blind``
PLAIN_COLUMN = "blind_plain_"

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
    features: pl.DataFrame,
    label: Flags,
    cluster: Codes,
) -> list[PlainDifference]:
    """Compare means over clusters by Mann and Whitney's test.

    Two-sided, corrected for ties.
    """
    from scipy.stats import mannwhitneyu

    # A cluster with texts of both labels is two units
    unit, unit_of_text = np.unique(2 * cluster + label, return_inverse=True)
    is_labelled = unit % 2 == 1
    n_texts = np.bincount(unit_of_text)
    differences = []
    for name in _NUMBERS:
        values = _read_number(features, name)
        means = np.round(np.bincount(unit_of_text, values) / n_texts, 9)
        if np.ptp(means) == 0:
            differences.append(PlainDifference(name, 0.5, 1.0))
            continue
        labelled = means[is_labelled]
        unlabelled = means[~is_labelled]
        test = mannwhitneyu(labelled, unlabelled, method="asymptotic")
        auc = float(test.statistic) / (labelled.size * unlabelled.size)
        differences.append(PlainDifference(name, auc, float(test.pvalue)))
    return differences


def plain_ranks(
    features: pl.DataFrame, differences: list[PlainDifference]
) -> dict[str, Floats]:
    """Rank each text by the numbers that differ: the share of texts below, in (0, 1)."""
    from scipy.stats import rankdata

    ranks: dict[str, Floats] = {}
    for difference in differences:
        if difference.differs:
            values = _read_number(features, difference.name)
            column = f"{PLAIN_COLUMN}{difference.name}"
            ranks[column] = (rankdata(values) - 0.5) / values.size
    return ranks


def _read_number(features: pl.DataFrame, name: str) -> Floats:
    column = features.select(_NUMBERS[name].cast(pl.Float64))
    values: Floats = column.to_series().to_numpy()
    return values
