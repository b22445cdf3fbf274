from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.features import build_features, groups_of
from mia_batch.kernels import Group, fields
from mia_batch.schemas import Features
from tests import frames, reference_scores

GROUPS: tuple[Group, ...] = ("unigrams", "ngrams", "zlib", "matched")
NUMBERS = [field.name for field in fields(GROUPS).fields]


def default_features(candidate: str | None, reference: str | None) -> dict[str, Any]:
    built = build_features(
        frames.samples([candidate]),
        frames.units(frames.targets({"reference": reference})),
        words="whitespace",
        preset="default",
        text_length=None,
        groups=GROUPS,
    )
    return built.row(0, named=True)


def authors_features(
    candidate: str | None,
    *,
    text_length: int | None = None,
    prompt: str | None = None,
    **target: Any,
) -> dict[str, Any]:
    built = build_features(
        frames.samples([{"candidate": candidate, "prompt": prompt}]),
        frames.units(frames.targets(target)),
        words="space",
        preset="samia",
        text_length=text_length,
        groups=GROUPS,
    )
    return built.row(0, named=True)


def test_one_pair_counted_by_hand():
    row = default_features("the cat sat on the mat and the dog", "on the mat the cat")
    assert row["words_candidate"] == 9
    assert row["words_reference"] == 5
    assert [row[f"overlap_{n}"] for n in range(1, 6)] == [5, 3, 1, 0, 0]
    assert row["words_candidate_matched"] == 5  # the cat sat on the
    assert [row[f"overlap_{n}_matched"] for n in range(1, 6)] == [4, 2, 0, 0, 0]


def test_columns_are_those_of_the_schema():
    built = build_features(
        frames.samples(["a b", None]),
        frames.units(frames.targets({"reference": "a"})),
        words="whitespace",
        preset="default",
        text_length=None,
        groups=GROUPS,
    )
    base = Features.column_names()
    Features.validate(built.select(base))
    assert built.columns == [*base, *(name for name in NUMBERS if name not in base)]


@pytest.mark.parametrize(("candidate", "reference"), [(None, "a b"), ("a b", None)])
def test_numbers_are_null_without_candidate_or_reference(candidate, reference):
    row = default_features(candidate, reference)
    assert {row[name] for name in NUMBERS} == {None}
    assert row["n_tokens"] == 1


def test_sides_never_swap():
    row = default_features("a a a b", "a c")
    swapped = default_features("a c", "a a a b")
    assert (row["words_candidate"], row["words_reference"]) == (4, 2)
    assert (swapped["words_candidate"], swapped["words_reference"]) == (2, 4)
    assert (row["words_candidate_matched"], swapped["words_candidate_matched"]) == (2, 2)


def test_a_candidate_without_its_prompt_is_not_cut():
    assert default_features(" c d e f", "c d e f")["overlap_1_matched"] == 4


def test_rows_keep_their_order_and_are_joined_by_key_not_by_position():
    texts = frames.targets({"reference": "a"}, {"reference": "b"}, {"reference": "c"})
    built = build_features(
        frames.samples(["a", "x"], ["b", "b"], ["x", "c"]),
        frames.units(texts.reverse()),
        words="whitespace",
        preset="default",
        text_length=None,
        groups=GROUPS,
    )
    assert built["target_id"].to_list() == [frames.target_id(n) for n in (0, 0, 1, 1, 2, 2)]
    assert built["sample_index"].to_list() == [0, 1, 0, 1, 0, 1]
    assert built["overlap_1"].to_list() == [1, 0, 1, 1, 0, 1]


def test_authors_cut_by_hand():
    row = authors_features(" c\td e\nf  g", prefix="a b", reference="c\td x", n_words=4)
    assert row["words_candidate"] == 3  # "c\td", "e\nf", "g": a b are cut, white space stays
    assert row["words_reference"] == 2
    assert row["overlap_1"] == 1


@pytest.mark.parametrize(("n_words", "kept"), [(1, 6), (2, 5), (3, 4), (5, 4), (7, 2), (12, 0)])
def test_authors_cut_rounds_half_to_even(n_words, kept):
    row = authors_features(" c d e f", prefix="a b", reference="c", n_words=n_words)
    assert row["words_candidate"] == kept


def test_authors_cut_by_the_nominal_length_not_the_texts_own():
    row = authors_features(" c d e f", text_length=8, prefix="a b", reference="c", n_words=2)
    assert row["words_candidate"] == 2


def test_authors_cut_starts_in_the_decoded_prompt_where_it_differs():
    row = authors_features(" c d", prompt="a-b", prefix="a b", reference="c d", n_words=4)
    assert row["words_candidate"] == 1


def test_authors_candidate_may_be_empty():
    row = authors_features("", prefix="a b", reference="c d", n_words=4)
    assert row["words_candidate"] == 0
    assert row["zlib_candidate"] == 8
    assert (
        authors_features(None, prefix="a b", reference="c d", n_words=4)["words_candidate"] is None
    )


def test_authors_cut_needs_their_word_rule():
    with pytest.raises(SettingsError, match=r"'whitespace'.*'samia'.*'space'"):
        build_features(
            frames.samples(["a"]),
            frames.units(frames.targets({"reference": "a"})),
            words="whitespace",
            preset="samia",
            text_length=None,
            groups=GROUPS,
        )


SPACED = st.text(st.sampled_from("ab é\n\t 漢"), max_size=60)


@given(
    prompt=SPACED,
    candidate=SPACED,
    n_words=st.integers(0, 30),
    nominal=st.none() | st.integers(0, 30),
)
def test_authors_cut_equals_its_reference(prompt, candidate, n_words, nominal):
    row = authors_features(
        candidate, prompt=prompt, text_length=nominal, prefix="", reference="a é", n_words=n_words
    )
    words = reference_scores.authors_words(
        prompt + candidate, n_words if nominal is None else nominal
    )
    assert row["words_candidate"] == len(words)
    assert row["overlap_1"] == reference_scores.overlap(words, ["a", "é"], 1)
    if reference_scores.CLASSIC_ZLIB:
        assert row["zlib_candidate"] == reference_scores.compressed(words)


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        ({"words_candidate", "words_reference"}, ()),
        ({"overlap_3", "words_reference"}, ("ngrams",)),
        ({"overlap_1_matched", "zlib_candidate_matched"}, ("unigrams", "zlib", "matched")),
        ({"words_candidate_matched"}, ("matched",)),
        ({"covered_12", "lcs_words"}, ("lcs", "coverage")),
    ],
)
def test_only_the_groups_that_have_the_columns_are_made(columns, groups):
    assert groups_of(columns) == groups


def test_empty_tables_give_an_empty_table():
    built = build_features(
        frames.samples(),
        frames.units(frames.targets()),
        words="space",
        preset="samia",
        text_length=None,
        groups=GROUPS,
    )
    assert built.height == 0
    assert set(NUMBERS) < set(built.columns)
