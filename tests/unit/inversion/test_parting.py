"""Who is auxiliary and who is attacked: nothing that hangs together is on both sides."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mia_batch.errors import CorpusError
from mia_batch.inversion.figures import part

ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from([None, *"uvwxyz"])),
    min_size=2,
    max_size=40,
)


def documents(rows):
    return pl.DataFrame(rows, schema={"text": pl.String, "group": pl.String}, orient="row")


def dealt(rows, share=0.4, seed=0):
    try:
        return part(documents(rows), share, seed)
    except CorpusError:
        assume(False)


def reference_clusters(rows):
    """Merge rows of one text or one group until nothing changes."""
    code = list(range(len(rows)))
    changed = True
    while changed:
        changed = False
        for i, (text, group) in enumerate(rows):
            for j, (other, of_other) in enumerate(rows):
                alike = text == other or (group is not None and group == of_other)
                if alike and code[i] != code[j]:
                    code[i] = code[j] = min(code[i], code[j])
                    changed = True
    return code


@given(ROWS)
def test_groups_and_equal_texts_go_together(rows):
    found = dealt(rows)
    expected = reference_clusters(rows)
    pairs = set(zip(expected, found["cluster"], strict=True))
    assert len(pairs) == len(set(expected)) == found["cluster"].n_unique()
    sides = found.group_by("cluster").agg(pl.col("auxiliary").n_unique())
    assert sides["auxiliary"].max() == 1


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_plays_no_part(rows, random):
    found = dealt(rows)
    known = dict(zip(rows, found["auxiliary"], strict=True))
    other = list(rows)
    random.shuffle(other)
    assert dict(zip(other, dealt(other)["auxiliary"], strict=True)) == known


def test_the_share_is_that_of_the_texts_and_the_seed_decides():
    rows = [(f"text {i}", None) for i in range(1000)]
    found = dealt(rows)["auxiliary"]
    assert found.sum() == 400
    assert (dealt(rows, seed=1)["auxiliary"] != found).any()


def test_texts_of_one_group_cannot_be_dealt_out():
    with pytest.raises(CorpusError, match=r"the texts are 1 groups, .* give texts of more groups"):
        part(documents([("a", "x"), ("b", "x")]), 0.4, 0)
