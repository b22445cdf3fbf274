"""Marked books: where forms may change, what a draw publishes, and what is refused."""

import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from mia_batch.corpus import commitment, draw, read_canaries
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.sets import marks
from mia_batch.observer import Observer
from tests.unit.pipeline.conftest import Listener

_SENTENCES = [
    "They walked toward the harbour and did not speak.",
    "Perhaps the tide had turned among the rocks.",
    "He knew that she could not come.",
    "The boats were red, white and blue.",
]


class Marked(NamedTuple):
    book: Path
    key: Path
    marked: Path


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A book of sentences in a drawn order, its key, and what was drawn by it."""
    folder, random = tmp_path_factory.mktemp("book"), Random(0)
    text = "\r\n".join(f"{random.choice(_SENTENCES)} So {n} went." for n in range(300))
    (folder / "book.txt").write_bytes(text.encode())
    made = Marked(*(folder / name for name in ("book.txt", "key.jsonl", "marked.txt")))
    assert marks.prepare(made.book, made.key, random=random) == 26
    lodged = marks.compute_lodged_hash(made.key)
    assert marks.publish(made.book, made.key, 7, made.marked) == 26
    # The draw changes nothing of what was committed to
    assert marks.compute_lodged_hash(made.key) == lodged
    return made


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "They went toward it. Towards it!",
            [("toward", "towards"), ("Towards", "Toward")],
        ),
        (
            "Nobody. He didn\u2019t see.",
            [("Nobody", "No one"), ("didn\u2019t", "did not")],
        ),
        (
            (
                "Hadn't they? He had not a little hope, for so it will be, for all his"
                " pains."
            ),
            [],
        ),
        ("It\u2019s late and he did not see.", [("did not", "didn\u2019t")]),
        ("He knew she came, and I know that he did.", [("", "that "), ("that ", "")]),
        ("Not all her life, all of her days.", [("", "of "), ("of ", "")]),
        (
            "It was red, pink, white and blue. It was red, pink, white, and blue.",
            [("", ","), (",", "")],
        ),
        ("The sun, red and still. It was red, white and blue.", []),
        (
            'He said \u201cI cannot.\u201d and "I do not." and `is not`, not among us.',
            [("among", "amongst")],
        ),
        (
            "# Toward the end\n\nToward the End\n\n    is not\n\nIt is not.",
            [("is not", "isn't")],
        ),
        ("```\nis not\n```\nuntowardly nobodyelse", []),
        ("They came till the soil was dry, to till the soil.", []),
        ("He sang from start to finish.", []),
        ("He sat upon the wall, once upon a time.", [("upon", "on")]),
        ("He sat on the wall. Upon this he fell.", [("Upon", "On")]),
        (
            "It looked as though he slept, and as bad as if he did.",
            [("as though", "as if")],
        ),
        ("In the house which he built, in which he was.", [("which", "that")]),
        (
            "Here he had never seen it, and she never had a cat.",
            [("had never", "never had")],
        ),
        (
            "At last he went. Last he went. In the morning, we left.",
            [("", ","), (",", "")],
        ),
        (
            "So. He went home, and she slept. When he went, and she slept, I sang.",
            [(",", "")],
        ),
        (
            "So. It was late; and the sun, which was low; and the moon.",
            [("; and", ", and")],
        ),
        ("It was, of course, a cat.", [(", of course,", " of course")]),
        (
            (
                "\u201cGo,\u201d said the old man. \u201cGo!\u201d cried Mr. Smith, laughing."
                " \u201cGo,\u201d said Ann, my aunt. \u201cGo,\u201d Ann said: no."
            ),
            [
                ("said the old man", "the old man said"),
                ("cried Mr. Smith", "Mr. Smith cried"),
                ("Ann said", "said Ann"),
            ],
        ),
        (
            (
                "\u201cWho?\u201d Nothing answered. \u201cGo.\u201d Ann said: no."
                " \u201cWhy?\u201d thought I."
            ),
            [],
        ),
        ("They saw\nthat she had\nnever\nslept.", [("that ", "")]),
    ],
)
def test_places_by_hand(text, found):
    places = marks.find_places(text, "en")
    assert [
        (text[place.start : place.end], place.alternative) for place in places
    ] == found


def test_editions_of_any_rules_are_compared():
    text = "A red cat there never\nhad slept long, so he left."
    other = "A blue cat there had never\nslept long so he left it."
    places = [*marks.compare(text, other)]
    assert marks.build_edition(text, 0, len(text), places, [True] * 4) == other
    assert [(text[start:end], form) for start, end, form in places] == [
        ("red", "blue"),
        ("never\nhad ", "had never\n"),
        (",", ""),
        ("", " it"),
    ]


def test_a_draw_publishes_one_edition_of_each_window_and_changes_nothing_else(book):
    text, marked = (path.read_bytes().decode() for path in (book.book, book.marked))
    sets, at = read_canaries(book.key), 0
    editions = []
    for each in sets:
        one, other = each.texts
        forms = [
            [text[p.start : p.end] for p in marks.find_places(text, "en")]
            for text in each.texts
        ]
        assert all(a != b for a, b in zip(*forms, strict=True))
        at = marked.index(each.texts[each.published], at)
        editions.append(each.published)
        assert one not in text or other not in text
    assert {*editions} == {0, 1}
    back = {
        each.texts[each.published]: name
        for each, name in zip(sets, map(str, range(26)), strict=True)
    }
    rest = marked
    for edition, name in back.items():
        rest = rest.replace(edition, name, 1)
    start, end = (int(n) for n in sets[0].name.split()[2].split("-"))
    assert rest.replace("0", text[start:end], 1).startswith(text[: end + 1])
    assert marked.count("\r\n") == text.count("\r\n")
    # Again, and nothing else is drawn
    assert marks.publish(book.book, book.key, 7, book.marked) == 26
    assert book.marked.read_bytes().decode() == marked


def test_what_an_editor_left_is_counted(book, tmp_path):
    counts = marks.count_forms(book.marked, book.key)
    n = counts["drawn"]
    assert counts == {"drawn": n, "other": 0, "lost": 0}
    assert n == 321
    observer = Listener()
    asked = marks.build_audit(
        book.marked, book.key, observer, model="m", out=str(tmp_path / "run")
    )
    assert (asked.canaries, asked.max_windows_per_document) == (str(book.key), 1)
    assert asked.attacks == ("loss_v1",)
    assert observer.sentences == [
        f"of {n} places of the mark {n} stand as drawn, 0 in the other form, and 0 are"
        " not found"
    ]
    edited = tmp_path / "edited.txt"
    edited.write_bytes(book.marked.read_bytes().replace(b"towards", b"toward"))
    found = marks.count_forms(edited, book.key)
    n_edited = book.marked.read_text("utf-8").count("towards")
    assert sum(found.values()) == n
    assert n_edited / 2 < found["other"] + found["lost"] < 4 * n_edited
    marks.build_audit(edited, book.key, observer, model="m", out=str(tmp_path / "run"))
    assert observer.sentences[-1].startswith("much of the mark is gone") == (
        found["drawn"] < 0.9 * n
    )


def test_what_cannot_be_marked_is_refused(book, tmp_path):
    text, key, out = tmp_path / "text.txt", tmp_path / "k.jsonl", tmp_path / "out.txt"

    def refuses(match, content, error=CorpusError, **how):
        text.write_bytes(content)
        with pytest.raises(error, match=match):
            marks.prepare(text, how.pop("key", key), **how)
        assert not key.exists()

    refuses("is empty; give the text of the book", b" \n")
    refuses("is no plain text in UTF-8", b"\xff\xfe")
    refuses(
        "has 1 windows of 128 words .* no test of fewer than 10", b"They did not go."
    )
    refuses("give one of en, de", b"Perhaps", SettingsError, language="xx")
    refuses("ends in .jsonl", b"Perhaps", SettingsError, key=tmp_path / "key.txt")
    with pytest.raises(SettingsError, match="exists; give --seed to publish by it"):
        marks.prepare(book.book, book.key)
    text.write_text("They did not go. " * 99, "utf-8")
    with pytest.raises(
        CorpusError, match=r"does not fit .*: it was made of another text"
    ):
        marks.publish(text, book.key, 7, out)
    with pytest.raises(SettingsError, match="drawn with the seed 7, and a second draw"):
        marks.publish(book.book, book.key, 8, out)
    with pytest.raises(CorpusError, match="places are not there in either form"):
        marks.build_audit(text, book.key, Observer(), model="m")
    for content in ("{}", "no json", json.dumps([1])):
        key.write_text(content, "utf-8")
        with pytest.raises(CorpusError, match=r"is no key|cannot be read as a key"):
            marks.publish(book.book, key, 7, out)
    texts = ["one", "two"]
    line: dict[str, Any] = {
        "set": "a",
        "texts": texts,
        "commitment": commitment("a", texts),
        "seed": 1,
    }
    line["published"] = draw(line["commitment"], 2, 1)
    key.write_text(json.dumps(line), "utf-8")  # canaries, but of no book
    with pytest.raises(
        CorpusError, match="is no key; give the file that mia-batch mark wrote"
    ):
        marks.build_audit(text, key, Observer(), model="m")
    assert not out.exists()


def test_a_forecast_promises_only_what_the_lower_limit_gives():
    assert marks.forecast_sentence(20).startswith(
        "nothing can be promised: the book has too few"
    )
    # Of 500 windows: 0.21 * 22.36 - 3.09 = 1.61 at 16 copies, whose normal probability
    # is 0.946.
    sentence = marks.forecast_sentence(500)
    assert sentence.startswith(
        "a model that learnt the book 16 times or more is found, with power 0.9"
    )
    assert "16: 95% to 100%" in sentence
    assert "8: 0% to 100%" in sentence
    assert marks.forecast_sentence(400).startswith(
        "a model that learnt the book 32 times"
    )
