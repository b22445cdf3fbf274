"""P-values of scores weighed by rarity are exact, whichever texts the weights rest on."""

import numpy as np
import polars as pl
import pytest

from mia_batch.attacks.from_samples import PROBE_ATTACKS
from mia_batch.inference.conformal import p_values, shared_weights
from mia_batch.kernels import RarityTable

LEADING_RARITY = PROBE_ATTACKS[0]
LEVELS = np.array([0.05, 0.1, 0.2, 0.5])
REPETITIONS = 60
POINTS = 16
WORDS = 2000
OWN_WORDS = 3  # of each group, such as the names in a book
SHARE_OF_OWN = 0.2
RIGHT = 0.4


def answers(sizes: list[int], rng: np.random.Generator) -> pl.DataFrame:
    """Texts of one source in groups: true words and what a model says, right as often for all."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    shape = (group.size, POINTS)
    often = 1 / np.arange(1, WORDS + 1)
    common = rng.choice(WORDS, shape, p=often / often.sum())
    own = WORDS + OWN_WORDS * group[:, None] + rng.integers(0, OWN_WORDS, shape)
    true = np.where(rng.random(shape) < SHARE_OF_OWN, own, common)
    other = rng.choice(WORDS, shape, p=often / often.sum())
    said = np.where(rng.random(shape) < RIGHT, true, other)
    texts = np.arange(group.size).repeat(POINTS)
    return pl.DataFrame(
        {
            "row": group.repeat(POINTS),
            "text": texts,
            "said": said.ravel(),
            "true": true.ravel(),
        }
    ).select(
        "row",
        "text",
        candidate=pl.col("said").cast(pl.String),
        true=pl.col("true").cast(str),
    )


def share_reported(
    targets: list[int], nulls: list[int], *, all_counted: bool
) -> np.ndarray:
    """P-values of the targets at or below each level, as a share; a line per repetition."""
    rng = np.random.default_rng(0)
    n_targets, sizes = sum(targets), [*targets, *nulls]
    weights = (
        shared_weights(np.repeat(np.arange(len(nulls)), nulls))
        if max(nulls) > 1
        else None
    )
    found = []
    for _ in range(REPETITIONS):
        rows = answers(sizes, rng)
        outside = pl.col("text") >= n_targets
        counted = rows if all_counted else rows.filter(outside)
        table = RarityTable.count(
            [counted], n_groups=counted["row"].n_unique(), words="whitespace"
        )
        if not all_counted:
            table = RarityTable(table.native, table.n_groups, outside)
        weighed = table.weigh("candidate", "true", words="whitespace")
        features = rows.select("text", weighed, words_reference=1).unnest("rarity")
        scores = features.group_by("text", maintain_order=True).agg(
            LEADING_RARITY.expr.alias("s")
        )
        score = scores["s"].to_numpy()
        p = p_values(score[:n_targets], score[n_targets:], weights=weights)
        found.append((p[:, None] <= LEVELS).mean(axis=0))
    return np.array(found)


@pytest.mark.parametrize(
    ("targets", "nulls", "all_counted"),
    [
        pytest.param([1] * 5, [1] * 39, True, id="texts of their own, all counted"),
        pytest.param([5] * 4, [5] * 19, True, id="groups of one size, all counted"),
        pytest.param([100], [1] * 39, False, id="a large group among single texts"),
        pytest.param([1] * 5, [10] * 19, False, id="single texts among large groups"),
        pytest.param([1, 5, 50], [1, 9] * 15, False, id="groups of all sizes"),
    ],
)
def test_a_level_is_not_passed_more_often_than_it_says(targets, nulls, all_counted):
    found = share_reported(targets, nulls, all_counted=all_counted)
    errors = found.std(axis=0) / REPETITIONS**0.5
    assert (found.mean(axis=0) <= LEVELS + 3 * errors).all()


def test_a_large_group_that_is_counted_would_be_reported_too_often():
    found = share_reported([100], [1] * 39, all_counted=True)
    errors = found.std(axis=0) / REPETITIONS**0.5
    assert (found.mean(axis=0) > LEVELS + 3 * errors).all()
