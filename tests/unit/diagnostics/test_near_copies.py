"""Comparison texts that are near copies of each other count as one group."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest

from mia_batch.diagnostics.near_copies import (
    NEAR_COPIES,
    near_copy_rows,
    with_near_copies,
)
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.verdicts import verdicts
from mia_batch.report.sentences import near_copies_sentence
from tests.unit.diagnostics.test_preflight import apart, table
from tests.unit.inference.scored import plan


def changed(text, share, rng):
    """A copy in which so many words are others."""
    words = text.split()
    for place in rng.permutation(len(words))[: round(share * len(words))]:
        words[place] = f"other{rng.integers(1000)}"
    return " ".join(words)


def copies(n_texts, n_copies, share, seed=0):
    """Texts and copies of them in a random order, with the number of each one's original."""
    rng = np.random.default_rng(seed)
    originals = np.repeat(np.arange(n_texts), n_copies)
    texts = apart(n_texts, seed)
    changed_texts = [changed(texts[number], share, rng) for number in originals]
    order = rng.permutation(len(changed_texts))
    return [changed_texts[position] for position in order], originals[order]


@pytest.mark.parametrize("share", [0, 0.05, 0.1])
def test_copies_are_one_group_whatever_their_order(share):
    texts, originals = copies(20, 10, share)
    grouped = with_near_copies(table(apart(30, 1), texts)).collect()
    assert grouped.head(30)["group"].null_count() == 30
    groups = grouped.tail(200)["group"]
    assert groups.str.starts_with(NEAR_COPIES).sum() >= 190
    alike = {
        (group, int(number)) for group, number in zip(groups, originals, strict=True)
    }
    grouped_copies = [(group, number) for group, number in alike if group is not None]
    assert (
        len({group for group, _ in grouped_copies})
        == len({number for _, number in grouped_copies})
        == 20
    )


def test_groups_are_those_of_a_slow_comparison():
    texts, _ = copies(6, 3, 0.06, seed=3)
    runs = [
        {*zip(*(text.split()[start:] for start in range(3)), strict=False)}
        for text in texts
    ]
    groups = (
        with_near_copies(table(apart(3, 1), texts)).collect().tail(len(texts))["group"]
    )
    for first, second in combinations(range(len(texts)), 2):
        share = len(runs[first] & runs[second]) / min(
            len(runs[first]), len(runs[second])
        )
        assert not 0.05 < share < 0.5
        assert (groups[first] == groups[second]) == (share >= 0.5)


def test_texts_with_a_common_passage_stay_apart():
    passage = " ".join(apart(1, 7)[0].split()[:12])
    texts = [f"{text} {passage}" for text in apart(40, 2)]
    ungrouped = table(apart(5, 1), texts)
    assert with_near_copies(ungrouped) is ungrouped


def test_audited_copies_and_labels_without_a_question_are_left_alone():
    twice = apart(10, 1) * 2
    audited = table(twice, apart(10, 2))
    assert with_near_copies(audited) is audited
    labelled = table(apart(5), twice).with_columns(member=pl.col("role") == "target")
    assert with_near_copies(labelled) is labelled


def test_texts_of_two_words_have_no_copies():
    audited = table(apart(2), ["two words", "two words", "or one"])
    assert with_near_copies(audited) is audited


def test_groups_that_share_copies_become_one():
    text = apart(4, 5)
    ungrouped = table(apart(2), [text[0], text[1], text[0], text[2]])
    groups = pl.Series("group", [None, None, "a", "a", "b", "c"])
    group_names = (
        with_near_copies(ungrouped.with_columns(groups)).collect()["group"].to_list()
    )
    assert group_names == [None, None, *[f"{NEAR_COPIES}a"] * 3, "c"]


def test_a_text_is_compared_with_groups_of_copies():
    texts, _ = copies(19, 20, 0.05)
    grouped = with_near_copies(table(apart(2, 1), texts)).collect()
    scores = pl.Series("a_v1", [9.0, *np.zeros(grouped.height - 1)])
    all_verdicts = pl.concat(
        verdicts(grouped.with_columns(scores).lazy(), ["a_v1"], plan())
    )
    row = all_verdicts.filter(pl.col("estimate").is_null(), level="target").row(
        0, named=True
    )
    assert (row["n_null"], row["p_value"]) == (19, 1 / 20)


def test_the_sentence_counts_copies():
    texts, _ = copies(20, 10, 0.02)
    grouped = with_near_copies(table(apart(30, 1), [*texts, *apart(7, 9)]))
    rows = finding_rows("near_copies", near_copy_rows(grouped))
    (sentence,) = near_copies_sentence(rows)
    assert sentence.startswith(
        "200 of 207 comparison texts are near copies of each other, in 20 groups"
    )
    no_copies = near_copy_rows(with_near_copies(table(apart(3, 1), apart(9, 2))))
    assert [*near_copies_sentence(finding_rows("near_copies", no_copies))] == []
