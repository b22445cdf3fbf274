"""Formats of canaries: the paper's seven, and those of a user's file."""

import json

import pytest

from mia_batch.errors import SettingsError
from mia_batch.privacy.data import Format, paper_formats, read_formats

WORDS = ["apple", "bread", "chair", "dream", "eagle"]


def test_the_seven_of_table_4():
    formats = {each.name: each for each in paper_formats(WORDS, 0)}
    assert {name: each.size for name, each in formats.items()} == {
        "name": 960,
        "city": 90,
        "email": 3840,
        "phone_number": 10**5,
        "letters": 26**6,
        "one_word": 5,
        "three_words": 125,
    }
    phone = formats["phone_number"]
    assert phone.text(90584) == "My phone number is 9 0 5 8 4. You can call me by this number."
    assert formats["letters"].text(1) == "The letters are a a a a a b. It is my password."
    assert formats["name"].text(25) == "My name is Alan Baker"
    assert formats["three_words"].template.endswith(" {}")
    assert len(formats["three_words"].template.split()) == 5  # four fixed words and the blank
    assert formats["city"].question == "Where do you live?"


@pytest.mark.parametrize("each", paper_formats(WORDS, 0), ids=lambda each: each.name)
def test_numbers_give_different_canaries(each):
    numbers = range(min(each.size, 2000))
    assert len({each.text(number) for number in numbers}) == len(numbers)


def test_a_file_of_formats(tmp_path):
    path = tmp_path / "formats.json"
    pin = {"name": "pin", "template": "PIN: {}", "slots": [["1", "2"]] * 4, "between": ""}
    path.write_text(json.dumps([pin]))
    assert read_formats(path) == (
        Format(name="pin", template="PIN: {}", question="", slots=[["1", "2"]] * 4, between=""),
    )
    assert read_formats(path)[0].text(5) == "PIN: 1212"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nonsense", "Expecting value"),
        ("[]", "it holds none"),
        ('[{"name": "a"}]', "missing"),
        ('[{"name": "a", "template": "x", "slots": [["1", "2"]]}]', "not exactly one {}"),
        ('[{"name": "a", "template": "{}", "slots": [["1", "1"]]}]', "or with one twice"),
        ('[{"name": "a", "template": "{}", "slots": [["1"]]}]', "only be filled in one way"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, reason):
    path = tmp_path / "formats.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"formats.json holds no formats of canaries") as caught:
        read_formats(path)
    assert reason in str(caught.value)
