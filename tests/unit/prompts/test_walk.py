import numpy as np
import pytest

from mia_batch.walks import Text, Walk, Window, follow

BOOK = [f"w{at}" for at in range(200)]
NOTHING = np.zeros(0, bool)


def wrong(*places):
    return [word if at not in places else "x" for at, word in enumerate(BOOK[:64])]


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        (BOOK[:64], (64, 64, 64, True)),
        (wrong(1, 2, 3, 4, 5), (64, 64, 59, True)),
        (wrong(1, 2, 3, 4, 5, 6), (1, 1, 1, False)),
        (wrong(1, 2, 3, 4, 5, 21), (64, 64, 58, True)),  # never six in twenty
        (wrong(1, 2, 3, 4, 5, 20), (20, 20, 15, False)),
        (wrong(60, 61, 62, 63), (60, 60, 60, True)),
        (BOOK[:10] + BOOK[15:30], (25, 30, 25, True)),  # what is left out is missed
        (BOOK[:10] + BOOK[16:30], (10, 10, 10, False)),
        (["x"] * 3 + BOOK[5:30], (28, 30, 25, True)),
        ([*BOOK[:10], "x", "y", *BOOK[10:30]], (32, 30, 30, True)),
        (["x"] * 64, (0, 0, 0, False)),
        (["x"] * 3, (0, 0, 0, True)),
        ([], (0, 0, 0, True)),
    ],
)
def test_how_far_words_keep_to_a_book(generated, expected):
    step = follow(generated, BOOK, NOTHING)
    assert (
        step.n_generated,
        step.n_document,
        int(step.agrees.sum()),
        step.keeps,
    ) == expected


def test_misses_before_and_places_of_words():
    before = np.array([True] * 10 + [False] * 3 + [True])
    assert follow(wrong(0, 1), BOOK, before).keeps
    assert not follow(wrong(0, 1, 2), BOOK, before).keeps
    text = Text(" né  我们\nb ", "whitespace")
    assert text.words() == ["né", "我们", "b"]
    assert [text.head(n) for n in (0, 1, 3, 9)] == ["", " né", " né  我们\nb", ""]
    assert text.between(1, 3) == "  我们\nb"
    assert Text("", "whitespace").words() == []


def test_a_walk_by_hand():
    """Rounds of 64 words; a word left out between two rounds moves what is asked next."""
    document = Text(" ".join(BOOK), "whitespace")
    window = Window(target_id="t", target_row=0, start=3, prefix="w1 w2", n_words=4)
    walk = Walk(window, document)
    assert walk.build_prompt()["context"] == "w1 w2"
    assert walk.build_prompt()["text"] == " " + " ".join(BOOK[3:67])
    walk.add_answer(" " + " ".join([*BOOK[3:65], "x", "x"]) + " more", "length", 70)
    assert (walk.next_word, walk.n_words, walk.ended) == (67, 62, False)
    assert walk.build_prompt()["context"] == "x x"
    walk.add_answer(" " + " ".join(BOOK[68:133]), None, 70)
    assert (walk.next_word, walk.n_words, walk.n_verbatim, walk.ended) == (
        132,
        129,
        126,
        False,
    )
    walk.add_answer(" no" * 64, "length", 70)
    assert (walk.ended, walk.n_words, walk.n_rounds, walk.n_tokens) == (
        True,
        129,
        3,
        210,
    )
    assert document.text[walk.stretch.start : walk.stretch.stop] == " ".join(
        BOOK[3:132]
    )
    nothing = Walk(window, document)
    nothing.add_answer(None, None, 0)
    assert (nothing.ended, nothing.n_words, list(nothing.stretch)) == (True, 0, [])


def test_an_answer_that_was_cut_may_end_within_a_word():
    document = Text(" ".join(BOOK), "whitespace")
    window = Window(target_id="t", target_row=0, start=0, prefix="w0", n_words=4)
    walk = Walk(window, document)
    walk.add_answer(" " + " ".join(BOOK[1:31]) + " w", "length", 20)
    assert (walk.next_word, walk.n_words, walk.ended) == (31, 30, False)
    walk.add_answer(" " + " ".join(BOOK[31:41]), "stop", 10)
    assert (walk.next_word, walk.n_words, walk.ended) == (41, 40, True)
    silent = Walk(window, document)
    silent.add_answer("w", "length", 1)
    assert (silent.ended, silent.generated) == (True, "")
