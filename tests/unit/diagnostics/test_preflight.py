from collections import Counter
from itertools import pairwise
from math import log, sqrt
from pydoc_data.topics import topics

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.diagnostics import preflight
from mia_batch.diagnostics.preflight import (
    UNDECLARED,
    count_copies,
    near_duplicates,
    undeclared_rows,
    with_undeclared,
)
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.findings import DecisionRule, finding_rows
from mia_batch.inference.verdicts import planned_power
from mia_batch.report.sentences import undeclared_sentences
from tests.texts import king_james_books

WORDS = [f"w{i}" for i in range(40)]


def frame(*rows):
    """Texts with their label; ids are a, b, c ..."""
    texts, labels = zip(*rows, strict=True)
    ids = [chr(ord("a") + place) for place in range(len(rows))]
    schema = {"target_id": pl.String, "target": pl.String, "member": pl.Boolean}
    return pl.LazyFrame({"target_id": ids, "target": texts, "member": labels}, schema)


def test_a_run_of_13_words_is_found_on_both_sides_and_one_of_12_is_none():
    first, second = near_duplicates(
        frame(
            ("Once W0, w1\nw2. " + " ".join(WORDS[3:13]), True),
            (" ".join(WORDS[:12]), True),
            (" ".join(WORDS[20:34]), True),
            (
                "says: "
                + " ".join(WORDS[:14])
                + " and so on it goes for words and words",
                False,
            ),
            ("nothing of the kind at all in these nine words", False),
        )
    )
    assert (first.n_texts, first.n_long_run, first.n_high_overlap) == (3, 1, 2)
    assert first.n_concerned == 2
    assert first.share == pytest.approx(2 / 3)
    assert first.examples == [("a", "d"), ("b", "d")]
    assert (second.n_long_run, second.n_high_overlap) == (1, 0)
    assert second.examples == [("d", "a")]
    equal_texts = frame((" ".join(WORDS), True), (" ".join(WORDS), False))
    with_documents = equal_texts.with_columns(
        document_id=pl.concat_str("target_id", pl.lit(".txt"))
    )
    assert near_duplicates(with_documents)[0].examples == [("a.txt", "b.txt")]
    first, second = near_duplicates(
        frame(
            (" ".join([*WORDS[:12], "x", *WORDS[12:24]]), True),
            (" ".join(["y", *WORDS[:24]]), False),
        )
    )
    assert (first.n_long_run, second.n_long_run) == (0, 0)
    # 10 of 18 runs of 8 words are shared, on both sides.
    assert (first.n_concerned, second.n_concerned) == (0, 0)


@pytest.mark.parametrize(("n_more", "n_high"), [(3, 1), (4, 0)])
def test_overlap_is_high_from_70_percent_of_runs(n_more, n_high):
    """Of 7 + more runs of 8 words, 7 are shared."""
    long = " ".join(WORDS[: 14 + n_more])
    shared = " ".join(WORDS[:14])
    first, second = near_duplicates(frame((long, True), (shared, False)))
    assert (first.n_high_overlap, second.n_high_overlap) == (n_high, 1)


def test_what_cannot_be_or_is_not_compared_is_counted(monkeypatch):
    first, second = near_duplicates(
        frame(
            (None, True),
            ("a b c d e f g", True),
            (None, False),
            (" ".join(WORDS[:20]), None),
        )
    )
    assert (first.n_texts, first.n_short, second.n_texts) == (1, 1, 0)
    assert second.share is None
    assert first.share is None
    monkeypatch.setattr(preflight, "MAX_TEXTS_PER_SIDE", 2)
    shared_run = " ".join(WORDS[:13])
    first, _ = near_duplicates(
        frame(
            (shared_run, True),
            (shared_run, True),
            (shared_run, True),
            (shared_run, False),
        )
    )
    assert (first.n_texts, first.n_left_out, first.n_concerned) == (2, 1, 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["x", "y", "z", None]), st.sampled_from(["a", "b", None])
        )
    )
)
def test_copies_are_those_of_a_slow_search(rows):
    named_texts = [
        (text, group or place)
        for place, (text, group) in enumerate(rows)
        if text is not None
    ]
    slow = sum(
        any(
            text == other_text and name != elsewhere
            for other_text, elsewhere in named_texts
        )
        for text, name in named_texts
    )
    schema = {"target_id": pl.String, "target": pl.String, "group": pl.String}
    numbered = [(str(place), *row) for place, row in enumerate(rows)]
    assert count_copies(pl.LazyFrame(numbered, schema, orient="row")) == (
        len(named_texts),
        slow,
    )


LETTERS = "bcdfghklmnprstvz"
VOCABULARY = [f"{a}{b}{c}" for a in LETTERS for b in "aeiou" for c in LETTERS]


def words(rng, n, start=0, end=None):
    vocabulary = VOCABULARY[start:end]
    return " ".join(
        vocabulary[position] for position in rng.integers(0, len(vocabulary), n)
    )


def apart(n, seed=0):
    """Texts that have nothing in common."""
    rng = np.random.default_rng(seed)
    return [words(rng, 60) for _ in range(n)]


def book(n, seed=0):
    """Texts of which neighbours have a subject in common."""
    rng = np.random.default_rng(seed)
    return [
        f"{words(rng, 30)} {words(rng, 30, 20 * position, 20 * position + 80)}"
        for position in range(n)
    ]


def table(targets, nulls, **columns):
    n = len(targets) + len(nulls)
    rows = {
        "target_id": [f"{number:03}" for number in range(n)],
        "role": ["target"] * len(targets) + ["non_member"] * len(nulls),
        "member": pl.Series(
            [None] * len(targets) + [False] * len(nulls), dtype=pl.Boolean
        ),
        "group": pl.Series([None] * n, dtype=pl.String),
        "document_id": pl.Series([None] * n, dtype=pl.String),
        "window_index": [0] * n,
        "n_windows": [1] * n,
        "n_words": [60] * n,
        "target": targets + nulls,
    }
    return pl.LazyFrame(rows | columns)


def likeness(texts):
    likeness_of_texts = preflight.likeness(texts)
    assert likeness_of_texts is not None
    return likeness_of_texts


def slow_ratio(texts):
    """Neighbours' cosine over that of all pairs, by the definition of sublinear tf-idf."""
    counts = [Counter(text.split()) for text in texts]
    n_with = Counter(word for count in counts for word in count)
    idf = {word: log((1 + len(texts)) / (1 + n)) + 1 for word, n in n_with.items()}
    rows = [
        {word: (1 + log(n)) * idf[word] for word, n in count.items()}
        for count in counts
    ]

    def cosine(row, other_row):
        dot = sum(weight * other_row.get(word, 0) for word, weight in row.items())
        return dot / sqrt(
            sum(weight**2 for weight in row.values())
            * sum(weight**2 for weight in other_row.values())
        )

    near = np.mean([cosine(row, other_row) for row, other_row in pairwise(rows)])
    pairs = [(a, b) for a in range(len(rows)) for b in range(len(rows)) if a != b]
    return near / np.mean([cosine(rows[a], rows[b]) for a, b in pairs])


def test_neighbours_are_as_alike_as_the_definition_says_and_tell_by_their_order_alone():
    texts = book(20)
    measured_likeness = likeness(texts)
    assert measured_likeness.ratio == pytest.approx(slow_ratio(texts), rel=0.05)
    assert measured_likeness.p_value == 1 / 1000
    assert measured_likeness.is_one_book
    shuffled = np.random.default_rng(1).permutation(book(40)).tolist()
    assert not likeness(shuffled).is_one_book
    assert preflight.likeness(book(19)) is None


def test_texts_that_stand_alone_are_seldom_taken_for_a_book():
    likenesses = [likeness(apart(20, seed)) for seed in range(20)]
    assert not any(measured_likeness.is_one_book for measured_likeness in likenesses)
    p_values = [measured_likeness.p_value for measured_likeness in likenesses]
    assert 0.3 < np.mean(p_values) < 0.7


def test_parts_of_a_book_are_one_group_of_nulls():
    plan = DecisionRule(primary="a", level="target", null_set="-")
    before_grouping = table(apart(5, 1), book(40))
    grouped = with_undeclared(before_grouping)
    assert grouped.collect()["group"].to_list() == [None] * 5 + [UNDECLARED] * 40
    sets = read_comparison_sets(grouped)
    assert np.unique(sets.cluster[sets.nulls]).size == 1
    powers = [
        planned_power(comparison, plan) for comparison in (before_grouping, grouped)
    ]
    assert [comparison and comparison.n_null for comparison in powers] == [40, 1]
    assert with_undeclared(grouped).collect().equals(grouped.collect())


@pytest.mark.parametrize(
    "columns",
    [
        {"group": [None] * 5 + [str(number) for number in range(40)]},
        {"n_windows": [1] * 5 + [2] * 40},
        {"role": ["target"] * 45, "member": [True] * 5 + [False] * 40},
    ],
)
def test_groups_windows_and_labels_without_a_question_are_left_alone(columns):
    audited = table(apart(5, 1), book(40), **columns)
    assert with_undeclared(audited) is audited
    assert not list(undeclared_rows(audited))


def test_labelled_nulls_of_the_input_count_too_and_the_audited_texts_are_only_said():
    audited = table(book(20, 1), book(40), role=["target"] * 60)
    grouped = with_undeclared(audited)
    assert grouped.collect()["group"].is_null().sum() == 20
    findings = finding_rows("", undeclared_rows(grouped)).with_columns(
        check=pl.lit("undeclared_books")
    )
    first, second = undeclared_sentences(findings)
    assert first.startswith(
        "The non-members look like parts of one book, or of a few: neighb"
    )
    assert "(p = 0.001). They count as one group: give a column `group`" in first
    assert "The targets look like" in second
    assert "Each counts as an independent text" in second
    ungrouped_findings = finding_rows("", undeclared_rows(audited)).with_columns(
        check=pl.lit("undeclared_books")
    )
    assert "Each counts as an independent text" in next(
        undeclared_sentences(ungrouped_findings)
    )
    alone = finding_rows("", undeclared_rows(table(apart(20, 1), apart(40))))
    assert set(alone["verdict"]) == {"apart"}
    assert not list(undeclared_sentences(alone))


def test_real_books_are_found_and_real_texts_apart_are_not():
    for book in list(king_james_books().values())[:4]:
        words = book.split()[3000:]
        parts = [
            " ".join(words[position : position + 128])
            for position in range(0, 40 * 128, 128)
        ]
        assert likeness(parts).is_one_book
    assert not likeness([text[:800] for text in topics.values()]).is_one_book


CHANCE = log(4096)


def read_as(*losses, tokens=None):
    """Make a row of logprobs of each text, of 40 tokens that differ, with this loss."""
    numbers = tokens or [*range(40)]
    rows = [
        {"logprob": [-loss] * len(numbers), "token_ids": numbers} for loss in losses
    ]
    schema = {"logprob": pl.List(pl.Float32), "token_ids": pl.List(pl.UInt32)}
    return pl.DataFrame(rows, schema=schema)


@pytest.mark.parametrize(
    ("gains", "is_better"),
    [
        ([0.006, 0.02, -0.01, 0.008], False),  # what initial weights give
        ([0.05, 0.3, -0.1, 0.2], False),  # more than the margin by luck alone
        ([0.2, 0.3, 0.25, 0.22], True),
        ([-2.0, -3.0, 1.5, -2.0], True),  # one that is known well
        ([0.05], False),
        ([0.3], True),
        ([], False),
    ],
)
def test_a_loss_is_better_than_chance_by_a_margin_and_a_test(gains, is_better):
    p_value, better = preflight.test_chance(
        read_as(*(CHANCE - gain for gain in gains)), CHANCE
    )
    assert better == is_better
    assert (p_value is None) == (len(gains) < 2)


def test_tokens_that_repeat_the_one_before_show_nothing():
    repeated = read_as(CHANCE - 3, CHANCE - 2.9, tokens=[7] * 40)
    assert preflight.test_chance(
        repeated.with_columns(
            logprob=pl.concat_list(
                pl.lit([-CHANCE], pl.List(pl.Float32)), "logprob"
            ).list.head(40)
        ),
        CHANCE,
    ) == (None, False)


def test_where_tokens_have_no_numbers_all_of_them_count():
    unnamed = read_as(*(CHANCE - gain for gain in (0.4, 0.3, 0.35, 0.38))).with_columns(
        token_ids=None
    )
    assert preflight.test_chance(unnamed, CHANCE)[1]


def test_untrained_models_are_rarely_taken_for_trained_ones():
    # Of the gains of initial weights on a text: a mean of 0, a deviation of 0.05
    # between texts, and at worst the margin itself, common to all texts.
    random = np.random.default_rng(0)
    rejections = [
        preflight.test_chance(
            read_as(*(CHANCE - 0.1 - random.normal(0, 0.05, 12))), CHANCE
        )[1]
        for _ in range(400)
    ]
    assert sum(rejections) <= 10  # 4 are expected at 1 %
