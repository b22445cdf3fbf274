import math

import polars as pl
import pytest

from mia_batch.diagnostics.preflight import count_reasons, find_uneven_scores

LABELLED = pl.col("member").is_not_null()


def frame(n_members, n_nonmembers, *, group=None, **lost):
    """Scores of members, then non-members; ``lost``: which rows of each attack have none."""
    n = n_members + n_nonmembers
    columns = {
        name: [None if row in rows else float(row) for row in range(n)]
        for name, rows in lost.items()
    }
    return pl.LazyFrame(
        {
            "target_id": [f"{row:03d}" for row in range(n)],
            "group": pl.Series(group or [None] * n, dtype=pl.String),
            "member": [row < n_members for row in range(n)],
            **{
                name: pl.Series(values, dtype=pl.Float64)
                for name, values in columns.items()
            },
        }
    )


def uneven(scores, *attacks, **further):
    return find_uneven_scores(scores, LABELLED, [*(attacks or ("a_v1",))], **further)


def test_no_score_of_one_class_is_the_rarest_table_whichever_class_it_is():
    """Of the 10 choose 5 ways to lose five texts, two lose a whole class."""
    unevenness = uneven(frame(5, 5, a_v1=range(5)))
    assert unevenness.attacks == ("a_v1",)
    assert (unevenness.n_texts, unevenness.n_unscored) == ((5, 5), (5, 0))
    assert unevenness.p_value == pytest.approx(2 / math.comb(10, 5))
    assert unevenness.further_attacks == ()
    assert unevenness.difference == 1.0
    unevenness = uneven(frame(8, 12, a_v1=range(8, 18)))
    assert unevenness.n_unscored == (0, 10)
    assert unevenness.shares[1] == pytest.approx(10 / 12)
    # As unlikely is only the loss of all members and two others.
    tables = math.comb(12, 10) + math.comb(12, 2)
    assert unevenness.p_value == pytest.approx(tables / math.comb(20, 10))


@pytest.mark.parametrize("lost", [[], [0, 1, 5, 6], range(4), range(10)])
def test_what_chance_does_is_not_said(lost):
    """Four of five against none: 10 of the 10 choose 4 ways, p = 0.048."""
    assert uneven(frame(5, 5, a_v1=lost)) is None


def test_a_small_difference_is_not_said_however_sure():
    n, lost = 4000, range(39)
    assert uneven(frame(n, n, a_v1=lost)) is None
    unevenness = uneven(frame(n, n, a_v1=range(40)))
    assert unevenness.difference == pytest.approx(0.01)


def test_attacks_that_lack_the_same_are_one_test_and_the_largest_difference_leads():
    scores = frame(
        10,
        10,
        a_v1=[*range(8)],
        b_v1=[*range(10)],
        c_v1=[3],
        d_v1=[],
        e_v1=[*range(10)],
    )
    unevenness = uneven(scores, "a_v1", "b_v1", "c_v1", "d_v1", "e_v1")
    assert unevenness.attacks == ("b_v1", "e_v1")
    assert unevenness.further_attacks == ("a_v1",)
    assert unevenness.p_value == pytest.approx(3 * 2 / math.comb(20, 10))
    of_equal = uneven(scores, "e_v1", "b_v1")
    assert of_equal.attacks == ("e_v1", "b_v1")


def test_several_tests_need_more_than_one():
    """2 / 252 alone is enough; with two other sets of lost texts it is not."""
    scores = frame(5, 5, a_v1=range(5), b_v1=[0], c_v1=[9])
    assert uneven(scores) is not None
    assert uneven(scores, "a_v1", "b_v1", "c_v1") is None


def test_one_lost_book_is_one_loss_however_many_texts_it_has():
    """Ten books of ten texts a class, of which one member book is lost."""
    group = [f"book {row // 10}" for row in range(200)]
    scores = frame(100, 100, group=group, a_v1=range(10))
    apart = uneven(frame(100, 100, a_v1=range(10)))
    assert apart.p_value == pytest.approx(2 * math.comb(100, 10) / math.comb(200, 10))
    assert uneven(scores) is None
    # All of ten books against none: the counts divided by ten, as of single texts.
    whole = uneven(frame(100, 100, group=group, a_v1=range(100)))
    assert whole.n_unscored == (100, 0)
    assert whole.p_value == pytest.approx(2 / math.comb(20, 10))
    # A text of each book is no smaller a loss than of texts apart.
    lost = range(0, 100, 10)
    of_books = uneven(frame(100, 100, group=group, a_v1=lost))
    assert of_books == uneven(frame(100, 100, a_v1=lost))


def test_only_rows_that_count_are_compared_and_no_score_that_is_not_finite():
    scores = frame(15, 15, a_v1=range(5)).with_columns(
        member=pl.when(pl.int_range(pl.len()) % 3 < 2).then("member"),
        a_v1=pl.when(pl.int_range(pl.len()) < 15)
        .then(pl.Series([math.nan, math.inf, -math.inf] * 10))
        .otherwise("a_v1"),
    )
    unevenness = uneven(scores)
    assert (unevenness.n_texts, unevenness.n_unscored) == ((10, 10), (10, 0))


def test_reasons_are_those_of_attack_and_class_and_count_as_one_where_numbers_alone_differ():
    rows = [
        (f"{row:03d}", "a_v1", "too short" if row % 3 else "refused")
        for row in range(20)
    ]
    rows += [(f"{row:03d}", "b_v1", "another") for row in range(40)]
    rows += [("040", "a_v1", "beta"), ("041", "a_v1", "alpha")]
    unscored = pl.LazyFrame(rows, ["target_id", "attack", "reason"], orient="row")
    scores = frame(40, 40, a_v1=[*range(20), 40, 41])
    unevenness = uneven(scores, unscored=unscored)
    assert (unevenness.n_texts, unevenness.n_unscored) == ((40, 40), (20, 2))
    assert unevenness.reasons == ("too short", "alpha")
    pairs = [
        ("a", "the prefix has 10,587 tokens, the context 256"),
        ("b", "the prefix has 312.5 tokens, the context 256"),
        ("b", "status 400: no"),
        ("c", "status 400: no"),
        ("d", "status 400: no"),
        ("d", "status 400: no"),
        ("e", "the text is empty"),
    ]
    table = pl.LazyFrame(pairs, schema=["target_id", "reason"], orient="row")
    assert list(count_reasons(table).items()) == [
        ("status 400: no", 3),
        ("the prefix has … tokens, the context …", 2),
        ("the text is empty", 1),
    ]
