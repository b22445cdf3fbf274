from __future__ import annotations

import pytest

from mia_batch.evidence.engines.masked import Gaps, neighbours, perturbations, word_spans
from mia_batch.prompts.views import sample_seed
from tests.checkpoints import TEXTS

LONG = " ".join(TEXTS[3].split()[:40])
TEXTS_OF_WORDS = [LONG, "The cat (sat)\ton  the mat…\n", "  two, words  ", "漢字 と かな"]


def make(kind, model, text, n, target_id="0" * 32, seed=0):
    return kind(model, text, n=n, seed=sample_seed(seed, target_id))


def words(text):
    return [text[start:end] for start, end in word_spans(text)]


def between(text):
    return Gaps(text, word_spans(text)).fill([""] * len(word_spans(text)))[0]


def changed(text, other):
    return [i for i, (a, b) in enumerate(zip(words(text), words(other), strict=True)) if a != b]


@pytest.mark.parametrize("kind", [neighbours, perturbations])
@pytest.mark.parametrize("text", TEXTS_OF_WORDS)
def test_only_words_change(masked_model, kind, text):
    made = make(kind, masked_model, text, 6)
    assert made.reason is None
    assert len(made.texts) == 6
    assert all(between(other) == between(text) for other in made.texts)


@pytest.mark.parametrize("kind", [neighbours, perturbations])
def test_the_same_seed_gives_the_same_and_another_something_else(masked_model, kind):
    first = make(kind, masked_model, LONG, 5)
    assert make(kind, masked_model, LONG, 5) == first
    assert make(kind, masked_model, LONG, 5, seed=1) != first
    assert make(kind, masked_model, LONG, 5, target_id="1" * 32) != first


@pytest.mark.parametrize("kind", [neighbours, perturbations])
def test_more_of_them_begin_with_the_fewer(masked_model, kind):
    fewer = make(kind, masked_model, LONG, 3).texts
    assert make(kind, masked_model, LONG, 7).texts[:3] == fewer


@pytest.mark.parametrize("kind", [neighbours, perturbations])
@pytest.mark.parametrize("text", ["", " ", "…!", "word", " word. "])
def test_a_text_without_two_words_has_none_and_a_reason(masked_model, kind, text):
    made = make(kind, masked_model, text, 5)
    assert made.texts == ()
    assert "fewer than two words" in made.reason


def test_each_neighbour_replaces_another_word(masked_model):
    texts = make(neighbours, masked_model, LONG, 20).texts
    places = [changed(LONG, other) for other in texts]
    assert all(len(place) == 1 for place in places)
    assert len({place for (place,) in places}) == 20
    assert all(
        words(LONG)[place].casefold() != words(other)[place].casefold()
        for other, (place,) in zip(texts, places, strict=True)
    )


def test_a_short_text_gets_further_replacements_of_its_words(masked_model):
    texts = make(neighbours, masked_model, "Big cats run", 8).texts
    assert len(set(texts)) == 8
    places = [changed("Big cats run", other) for other in texts]
    assert sorted(places[:3]) == [[0], [1], [2]]
    assert places[3:6] == places[:3]


def test_a_neighbour_has_the_likeliest_other_word(masked_model):
    for other in make(neighbours, masked_model, LONG, 5).texts:
        (place,) = changed(LONG, other)
        (row,) = masked_model.predict([Gaps(LONG, [word_spans(LONG)[place]])])[0]
        hidden = words(LONG)[place].casefold()
        ranked = sorted(zip(row, masked_model.words, strict=True), key=lambda pair: -pair[0])
        best = next(word for _, word in ranked if word.casefold() != hidden)
        assert words(other)[place] == best


def test_perturbations_hide_spans_of_two_words_apart(masked_model):
    n_words = len(words(LONG))
    for other in make(perturbations, masked_model, LONG, 20).texts:
        places = changed(LONG, other)
        assert 0 < len(places) <= 2 * -(-0.15 * n_words // 2)
        runs = "".join("x" if i in places else " " for i in range(n_words)).split()
        assert max(map(len, runs)) <= 2


def test_perturbations_are_drawn(masked_model):
    texts = make(perturbations, masked_model, "Big cats run", 30).texts
    assert len(set(texts)) > 15
