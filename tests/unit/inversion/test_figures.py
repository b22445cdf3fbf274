"""Who is auxiliary, and what is counted as recovered: by hand and from the papers."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from mia_batch.errors import CorpusError
from mia_batch.extras.privacy.inversion.figures import (
    add_auxiliary,
    build_figures,
    count_inferred,
    count_overlaps,
    names_in,
    numbers_in,
    sentence,
)
from mia_batch.extras.privacy.inversion.models import infer_attributes

ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from([None, *"uvwxyz"])),
    min_size=2,
    max_size=40,
)


def dealt(rows, seed=0):
    texts = pl.DataFrame(
        rows, schema={"text": pl.String, "group": pl.String}, orient="row"
    )
    return add_auxiliary(texts, 0.4, seed)


def possible(rows):
    try:
        return dealt(rows)
    except CorpusError:
        reject()


def reference_clusters(rows):
    """Merge rows of one text or one group until nothing changes."""
    code, previous = list(range(len(rows))), None
    while code != previous:
        previous = list(code)
        for (i, (text, group)), (j, (other_text, of_other)) in product(
            enumerate(rows), repeat=2
        ):
            if text == other_text or (group is not None and group == of_other):
                code[i] = code[j] = min(code[i], code[j])
    return code


@given(ROWS)
def test_groups_and_equal_texts_go_together(rows):
    sides_table = possible(rows)
    expected = reference_clusters(rows)
    pairs = set(zip(expected, sides_table["cluster"], strict=True))
    assert len(pairs) == len(set(expected)) == sides_table["cluster"].n_unique()
    sides = sides_table.group_by("cluster").agg(pl.col("auxiliary").n_unique())
    assert sides["auxiliary"].max() == 1


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_plays_no_part(rows, random):
    sides_table = possible(rows)
    side_by_row = dict(zip(rows, sides_table["auxiliary"], strict=True))
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert dict(zip(shuffled, dealt(shuffled)["auxiliary"], strict=True)) == side_by_row


def test_the_share_is_that_of_the_texts_and_one_group_cannot_be_dealt_out():
    rows = [(f"text {i}", None) for i in range(1000)]
    auxiliary = dealt(rows)["auxiliary"]
    assert auxiliary.sum() == 400
    assert (dealt(rows, seed=1)["auxiliary"] != auxiliary).any()
    with pytest.raises(
        CorpusError, match=r"the texts are 1 groups, .* give texts of more groups"
    ):
        dealt([("a", "x"), ("b", "x")])


VOCABULARY = "abcdefgh"
TEXTS = st.text(VOCABULARY, min_size=1, max_size=8)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12)


def encode(texts):
    """A tokenizer of one token a letter or space, without special tokens."""
    return [[ord(letter) for letter in text] for text in texts]


def words(texts):
    return [[int.from_bytes(word.encode()) for word in text.split()] for text in texts]


def found_of(pairs, encode=encode):
    true, recovered = zip(*pairs, strict=True)
    return count_overlaps(true, recovered, encode)


def test_shared_units_by_hand():
    true = "Yesterday the cat met the dog of Tom in 1984."
    recovered = "Today the cat of Tom and Ann met the cat in 84, 1984"
    counts = found_of([(true, recovered)], words).row(0, named=True)
    assert {unit: (*figures.values(),) for unit, figures in counts.items()} == {
        "tokens": (10, 13, 7, False),
        "token_sets": (9, 11, 6, False),
        "names": (1, 2, 1, False),
        "numbers": (1, 2, 1, False),
    }
    # An end of text that the released code appends to both sides is nothing that was
    # recovered, and the same tokens in another order are no exact match.
    counts = found_of([("abc", "de"), ("ab", "ba"), ("ab", "ab")])[
        "tokens"
    ].struct.unnest()
    assert counts.rows() == [(3, 2, 0, False), (2, 2, 2, False), (2, 2, 2, True)]


@given(PAIRS)
@settings(max_examples=20)
def test_sets_are_counted_as_scikit_learn_does_it_for_geia(pairs):
    """``eval_classification.py``: a row of zeros and ones over the vocabulary for each text."""
    rows = np.zeros((2, len(pairs), len(VOCABULARY)), int)
    for i, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            rows[side, i, [VOCABULARY.index(letter) for letter in text]] = 1
    table = build_figures(_four(found_of(pairs)), pl.Series(range(len(pairs))), 0)
    mine = table.filter(
        pl.col("versus").is_null(), method="inverter", unit="token_sets"
    )
    for metric in (precision_score, recall_score, f1_score):
        (value,) = mine.filter(metric=metric.__name__.removesuffix("_score"))["value"]
        assert value == pytest.approx(metric(rows[0], rows[1], average="micro"))


def _four(counts):
    return dict.fromkeys(("inverter", "nearest", "shuffled", "unconditional"), counts)


@pytest.mark.parametrize(
    ("text", "names", "numbers"),
    [
        (
            "Then Mr. Darcy met Elizabeth Bennet.",
            ["Mr", "Darcy", "Elizabeth", "Bennet"],
            [],
        ),
        ("She left. Tom stayed; Ann, too.", ["Ann"], []),
        ('"Oh, Tom!" said Ann. "Where is Bob?"', ["Tom", "Ann", "Bob"], []),
        ("I did not know O'Neil, I'm sure", ["O'Neil"], []),
        ("I did not know O\u2019Neil", ["O'Neil"], []),
        ("my iPhone cost 1,200.50 in 2007.", [], ["1,200.50", "2007"]),
        ("\u00a1Hola! \u00bfD\u00f3nde est\u00e1 \u00c1ngela?", ["\u00c1ngela"], []),
        ("", [], []),
    ],
)
def test_names_and_numbers(text, names, numbers):
    counts = pl.DataFrame({"text": [text]}).select(
        names=names_in(pl.col("text")), numbers=numbers_in(pl.col("text"))
    )
    assert counts.row(0) == (names, numbers)


def test_figures_by_hand():
    """Two texts of 3 and 1 tokens, 2 and 4 recovered, 2 and 1 of them shared."""
    inverter = found_of([("abc", "ab"), ("a", "aefg")])
    nothing_shared = found_of([("abc", "h"), ("a", "h")])
    by_method = {
        "inverter": inverter,
        "nearest": nothing_shared,
        "shuffled": nothing_shared,
        "unconditional": nothing_shared,
    }
    table = build_figures(by_method, pl.Series([7, 9]), 5)
    tokens = table.filter(unit="tokens", method="inverter")
    values = dict(
        tokens.filter(pl.col("versus").is_null()).select("metric", "value").rows()
    )
    assert values == {"precision": 3 / 6, "recall": 3 / 4, "f1": 6 / 10, "exact": 0.0}
    gaps = tokens.filter(metric="f1", versus="nearest")
    assert gaps["value"].to_list() == [0.6]
    assert set(table["n_unscored"]) == {5}
    assert set(tokens["reason"]) == {
        "an interval needs 4 independent groups of texts of one size, these are worth 2"
    }
    names = table.filter(pl.col("versus").is_null(), unit="names", metric="recall")
    assert set(names["value"]) == {None}
    assert set(names["reason"]) == {"there is nothing to take a share of"}


@pytest.mark.parametrize(
    ("inverter", "nearest", "shuffled", "words"),
    [
        (
            3,
            1,
            0,
            "give away words of texts that the attacker never saw. It is a lower bound",
        ),
        (
            2,
            3,
            0,
            "nothing shows that it gives back more than a search among known texts",
        ),
        (1, 0, 2, "nothing shows that it reads the embeddings at all"),
    ],
)
def test_the_sentence_says_what_is_shown(inverter, nearest, shuffled, words):
    def recover_tokens(level, turn):
        """Texts of 4 tokens, of which so many come back, each of them a group."""
        shared = [level + (i % turn == 0) for i in range(60)]
        return found_of(
            [("abcd", "abcd"[:n_tokens] + "hhhh"[n_tokens:]) for n_tokens in shared]
        )

    by_method = {
        "inverter": recover_tokens(inverter, 2),
        "nearest": recover_tokens(nearest, 3),
    }
    by_method |= dict.fromkeys(
        ("shuffled", "unconditional"), recover_tokens(shuffled, 5)
    )
    table = build_figures(by_method, pl.Series(range(60)), 0)
    assert words in sentence(table, 40)
    assert "trained on 40 auxiliary texts" in sentence(table, 40)


def test_attributes_by_hand():
    """Two of three that have one are inferred right; the fourth has none and does not count."""
    true = pl.Series(["red", "blue", "red", None])
    counts = count_overlaps(["a"] * 4, ["a"] * 4, lambda texts: [[1]] * len(texts))
    guesses_by_method = {
        "inverter": ["red", "red", "red", "red"],
        "unconditional": ["blue"] * 4,
    }
    guesses_by_method |= {
        "nearest": ["red", "blue", "blue", "blue"],
        "shuffled": ["blue"] * 4,
    }
    guesses = {
        method: counts.with_columns(attribute=count_inferred(true, pl.Series(guess)))
        for method, guess in guesses_by_method.items()
    }
    table = build_figures(guesses, pl.Series(range(4)), 0)
    right = table.filter(pl.col("versus").is_null(), unit="attribute", metric="exact")
    values = dict(right.select(pl.col("method").cast(str), "value").iter_rows())
    assert values == pytest.approx(
        {"inverter": 2 / 3, "nearest": 2 / 3, "shuffled": 1 / 3, "unconditional": 1 / 3}
    )
    assert right["n_texts"].to_list() == [3] * 4
    conclusion = sentence(table, 9)
    assert (
        "infers the attribute of 0.667 of them; the most frequent one is that of 0.333."
        in conclusion
    )


@pytest.mark.parametrize(("shift", "smallest_share"), [(5.0, 0.95), (0.0, 0.0)])
def test_an_attribute_that_embeddings_hold_is_inferred_and_no_other(
    shift, smallest_share
):
    rng = np.random.default_rng(0)
    labels = pl.Series(["a", "b", "c"] * 60 + [None] * 20)
    vectors = rng.normal(size=(200, 8)).astype(np.float32)
    vectors[np.arange(180), np.arange(180) % 3] += shift
    inversion_stub: Any = SimpleNamespace(
        embeddings=vectors[60:], recipe=SimpleNamespace(seed=0)
    )
    guesses = infer_attributes(labels[60:], inversion_stub, vectors[:60], np.arange(60))
    right = {
        method: (guess == labels[:60]).to_numpy().mean()
        for method, guess in guesses.items()
    }
    assert right["inverter"] >= smallest_share
    assert right["nearest"] >= 0.9 * smallest_share
    assert right["unconditional"] == pytest.approx(1 / 3)
    for method in ("shuffled", *(() if smallest_share else ("inverter", "nearest"))):
        assert right[method] < 1 / 3 + 0.2
