"""Features of samples and their references: numbers, similarity, rarity."""

from collections import Counter
from itertools import pairwise
from math import log
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import _native
from mia_batch.errors import SettingsError
from mia_batch.features import build_features, find_groups, similarity
from mia_batch.kernels import Group, RarityTable, fields
from mia_batch.schemas import Features
from tests import frames, reference_scores
from tests.reference_scores import ngrams

GROUPS: tuple[Group, ...] = ("unigrams", "ngrams", "zlib", "matched")
NUMBERS = [field.name for field in fields(GROUPS).fields]


def built(
    samples: Any, *targets: dict[str, Any], reverse: bool = False, **changes: Any
) -> Any:
    table = frames.targets(*targets)
    options: dict[str, Any] = {
        "words": "whitespace",
        "preset": "default",
        "text_length": None,
    }
    prompts = frames.units(table.reverse() if reverse else table)
    return build_features(
        frames.samples(*samples), prompts, groups=GROUPS, **options | changes
    )


def authors_features(
    candidate: str | None,
    *,
    text_length: int | None = None,
    prompt: str | None = None,
    **target: Any,
) -> dict[str, Any]:
    sample = {"candidate": candidate, "prompt": prompt}
    options: dict[str, Any] = {
        "words": "space",
        "preset": "samia",
        "text_length": text_length,
    }
    row: dict[str, Any] = built([[sample]], target, **options).row(0, named=True)
    return row


def test_columns_are_those_of_the_schema_and_rows_are_joined_by_key():
    found = built([["a b", None]], {"reference": "a"})
    base = Features.column_names()
    Features.validate(found.select(base))
    assert found.columns == [*base, *(name for name in NUMBERS if name not in base)]
    for candidate, reference in (("a b", None), (None, "a b")):
        row = built([[candidate]], {"reference": reference}).row(0, named=True)
        assert {row[name] for name in NUMBERS} == {None}
        assert row["n_tokens"] == 1
    nothing = built([], words="space", preset="samia")
    assert nothing.height == 0
    assert set(NUMBERS) < set(nothing.columns)
    samples = [["a", "x"], ["b", "b"], ["x", "c"]]
    found = built(samples, *({"reference": text} for text in "abc"), reverse=True)
    assert found["target_id"].to_list() == [
        frames.target_id(n) for n in (0, 0, 1, 1, 2, 2)
    ]
    assert found["sample_index"].to_list() == [0, 1, 0, 1, 0, 1]
    assert found["overlap_1"].to_list() == [1, 0, 1, 1, 0, 1]


def test_authors_cut_starts_in_the_decoded_prompt_and_needs_their_word_rule():
    row = authors_features(
        " c d", prompt="a-b", prefix="a b", reference="c d", n_words=4
    )
    assert row["words_candidate"] == 1
    row = authors_features("", prefix="a b", reference="c d", n_words=4)
    assert row["words_candidate"] == 0
    assert row["zlib_candidate"] == 8
    assert (
        authors_features(None, prefix="a b", reference="c d", n_words=4)[
            "words_candidate"
        ]
        is None
    )
    with pytest.raises(SettingsError, match=r"'whitespace'.*'samia'.*'space'"):
        built([["a"]], {"reference": "a"}, preset="samia")


SPACED = st.text(st.sampled_from("ab é\n\t 漢"), max_size=60)


@given(
    prompt=SPACED,
    candidate=SPACED,
    n_words=st.integers(0, 30),
    nominal=st.none() | st.integers(0, 30),
)
def test_authors_cut_equals_its_reference(prompt, candidate, n_words, nominal):
    row = authors_features(
        candidate,
        prompt=prompt,
        text_length=nominal,
        prefix="",
        reference="a é",
        n_words=n_words,
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
        (
            {"overlap_1_matched", "zlib_candidate_matched"},
            ("unigrams", "zlib", "matched"),
        ),
        ({"words_candidate_matched"}, ("matched",)),
        ({"covered_12", "lcs_words"}, ("lcs", "coverage")),
    ],
)
def test_only_the_groups_that_have_the_columns_are_made(columns, groups):
    assert find_groups(columns) == groups


WORDS = st.sampled_from(["", "dog", "cat", "whale,", "né", "漢字", "the"])


def cosines(*pairs: tuple[str | None, str | None]) -> list[float | None]:
    frame = pl.DataFrame(pairs, schema={"c": pl.String, "r": pl.String}, orient="row")
    expr = similarity(pl.col("c"), pl.col("r"), words="whitespace")
    return frame.select(expr).unnest("similarity")["similarity"].to_list()


def test_words_of_like_meaning_are_nearer_and_an_empty_text_is_like_nothing():
    like, unlike, same = cosines(
        ("king", "queen"), ("king", "carrot"), (" dog barks", "dog sleeps")
    )
    assert same == pytest.approx(1.0)  # only the first words count
    assert like is not None
    assert unlike is not None
    assert 0 < unlike + 0.2 < like < 1
    assert cosines(("", "dog"), ("dog", " "), (None, "dog"), ("dog", None)) == [
        0,
        0,
        None,
        None,
    ]


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
def test_it_is_symmetric_and_the_same_whatever_the_batch(pairs):
    together = cosines(*pairs)
    assert together == [cosines(pair)[0] for pair in pairs]
    assert together == cosines(*(pair[::-1] for pair in pairs))
    for (one, other), found in zip(pairs, together, strict=True):
        assert found == pytest.approx(1.0 if one == other and one else found)


TEXTS = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)
ROWS = st.lists(st.tuples(st.integers(0, 3), TEXTS, TEXTS), min_size=1, max_size=8)
FIELDS = ("rarity_leading", "rarity_1", "rarity_2", "rarity_3")


def table(rows: list[tuple[int, str, str]]) -> RarityTable:
    frame = pl.DataFrame(
        [
            (group, candidate)
            for group, candidate, _ in sorted(rows, key=lambda row: row[0])
        ],
        schema={"row": pl.UInt32, "candidate": pl.String},
        orient="row",
    )
    n_groups = frame["row"].n_unique()
    return RarityTable.count([frame], n_groups=n_groups, words="whitespace")


def weighed(
    counted: RarityTable, candidate: str | None, reference: str | None
) -> dict[str, float]:
    pair = pl.DataFrame(
        {"c": [candidate], "r": [reference]}, schema={"c": pl.String, "r": pl.String}
    )
    found: dict[str, float] = pair.select(
        counted.weigh("c", "r", words="whitespace")
    ).item()
    return found


def by_definition(rows, group: int, candidate: str, reference: str) -> list[float]:
    """Sums over shared n-grams of ln(T / (1 + df)), df among the candidates of other groups."""
    groups = {each for each, _, _ in rows}
    said = {
        each: {
            gram
            for other, text, _ in rows
            if other == each
            for n in (1, 2, 3)
            for gram in ngrams(text.split(), n)
        }
        for each in groups
    }

    def weight(gram: tuple[str, ...]) -> float:
        return log(
            len(groups) / (1 + sum(gram in said[other] for other in groups - {group}))
        )

    true = reference.split()
    cut = candidate.split()[: len(true)]
    leading = 0.0
    for left, right in zip(cut, true, strict=False):
        if left != right:
            break
        leading += weight((left,))
    sums = [leading]
    for n in (1, 2, 3):
        shared: Counter[tuple[str, ...]] = ngrams(cut, n) & ngrams(true, n)
        sums.append(sum(count * weight(gram) for gram, count in shared.items()))
    return sums


@given(ROWS)
def test_weights_are_those_of_the_definition(rows):
    counted = table(rows)
    for group, candidate, reference in rows:
        found = weighed(counted, candidate, reference)
        wanted = by_definition(rows, group, candidate, reference)
        assert [found[name] for name in FIELDS] == pytest.approx(wanted, abs=1e-12)


@given(ROWS, TEXTS)
def test_a_stored_table_weighs_as_before(rows, text):
    counted = table(rows)
    stored = counted.rows("target", "probe")
    again = RarityTable.from_rows(stored)
    if stored.height:  # a table of nothing knows no groups
        assert weighed(again, text, text) == weighed(counted, text, text)


def test_of_another_runs_table_the_text_is_one_more():
    rows = table([(0, "a", ""), (1, "b", "")]).rows("target", "probe")
    other = RarityTable.from_rows(rows, is_counted=pl.lit(value=False))
    found = weighed(other, "a c", "a c")
    assert found["rarity_1"] == pytest.approx(log(3 / 2) + log(3 / 1))


@given(st.lists(TEXTS, min_size=1, max_size=9), st.data())
def test_neither_order_nor_the_borders_of_batches_change_a_bit(texts, data):
    frame = pl.DataFrame({"row": range(len(texts)), "candidate": texts})
    cuts = data.draw(st.lists(st.integers(0, len(texts)), max_size=3).map(sorted))
    pieces = [frame[a:b] for a, b in pairwise([0, *cuts, len(texts)])]
    shuffled = frame[data.draw(st.permutations(range(len(texts))))]
    counts = []
    for batches in ([frame], pieces, [shuffled]):
        native = _native.RarityTable(6)  # so few entries that n-grams share them
        for batch in batches:
            groups = batch["row"].cast(pl.UInt32).rechunk()
            native.add(batch["candidate"].rechunk(), groups, words="whitespace")
        counts.append(pl.Series(native.counts()).to_list())
    assert counts[0] == counts[1] == counts[2]


def test_colliding_n_grams_of_several_samples_count_once_for_a_group():
    """Of two entries, each is said in both groups, so every weight is that of the definition."""
    native = _native.RarityTable(1)
    rows = pl.DataFrame(
        {"row": [0, 0, 1], "candidate": ["a b c d", "e f g h", "i j k l m n"]}
    )
    native.add(rows["candidate"], rows["row"].cast(pl.UInt32), words="whitespace")
    assert pl.Series(native.counts()).to_list() == [2, 2]
    assert weighed(RarityTable(native, 2), "a b", "a b")["rarity_1"] == 0
    apart = RarityTable(native, 2, pl.lit(value=False))
    assert weighed(apart, "a b", "a b")["rarity_1"] == 0  # ln(3 / (1 + 2))


def test_nothing_shared_weighs_exactly_nothing():
    counted = table([(0, "a", "")])
    for pair in ((None, "a"), ("a", None)):
        assert weighed(counted, *pair) is None
    found = weighed(counted, "a", "b")
    assert {str(number) for number in found.values()} == {"0.0"}  # never -0.0
