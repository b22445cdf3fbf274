"""Languages of targets and non-members."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch.diagnostics.languages import language_difference

ENGLISH = "It was a bright cold day in April, and the clocks of the town were striking thirteen."
FRENCH = "Longtemps, je me suis couché de bonne heure, et parfois mes yeux se fermaient si vite."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたか頓と見当がつかぬ。"


def sides(targets, nulls, *, group=None):
    rows = [(text, True) for text in targets] + [(text, False) for text in nulls]
    return pl.LazyFrame(
        {
            "target_id": [f"{number:032x}" for number in range(len(rows))],
            "target": [text for text, _ in rows],
            "asked": [asked for _, asked in rows],
            "document_id": pl.Series([None] * len(rows), dtype=pl.String),
            "group": pl.Series(group or [None] * len(rows), dtype=pl.String),
        }
    )


def test_shares_and_their_distance_by_hand():
    found = language_difference(
        sides([ENGLISH, ENGLISH, FRENCH, JAPANESE], [ENGLISH, FRENCH]), label="asked"
    )
    assert found is not None
    assert found.targets == {"en": 0.5, "fr": 0.25, "ja": 0.25}
    assert found.nulls == {"en": 0.5, "fr": 0.5, "ja": 0}
    assert found.distance == pytest.approx((0 + 0.25 + 0.25) / 2)
    assert found.sentence.startswith(
        "Languages of targets: en 50%, fr 25%, ja 25%; of non-members: en 50%, fr 50%; 25% would"
    )


def test_other_languages_are_no_chance():
    found = language_difference(sides([FRENCH] * 20, [ENGLISH] * 20), label="asked")
    assert found is not None
    assert (found.distance, found.p_value) == (1, 0.001)


def test_texts_of_one_book_are_one_unit():
    """Two books against two: a third of the ways to choose sides lie as far apart."""
    texts = sides([FRENCH] * 10, [ENGLISH] * 10, group=[f"b{n // 5}" for n in range(20)])
    found = language_difference(texts, label="asked")
    assert found is not None
    assert found.p_value == pytest.approx(1 / 3, abs=0.06)


def test_the_same_languages_are_alike():
    texts = [ENGLISH, FRENCH] * 5
    found = language_difference(sides(texts, texts), label="asked")
    assert found is not None
    assert (found.distance, found.p_value) == (0, 1)


@pytest.mark.parametrize("nulls", [[], [None], ["1984 ..."]])
def test_a_side_without_letters_is_not_compared(nulls):
    assert language_difference(sides([ENGLISH], nulls), label="asked") is None
