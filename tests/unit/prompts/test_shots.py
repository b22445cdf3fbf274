from __future__ import annotations

import pytest

from mia_batch.errors import SettingsError
from mia_batch.prompts.views import choose_shots


def count(texts):
    """A word is a token, and so is the end of a shot."""
    return [len(text.replace("\n\n", " end ").split()) for text in texts]


def choose(texts, room):
    return choose_shots(texts, room=room, count_tokens=count, setting="nonmember_shots")


@pytest.mark.parametrize(("room", "n_shots"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (99, 3)])
def test_as_many_as_fit_from_the_first_on(room, n_shots):
    texts = ["a b", " ", "c", "d e f"]
    found = choose(texts, room)
    assert found.n_shots == n_shots
    assert found.context == "".join(f"{text}\n\n" for text in ["a b", "c", "d e f"][:n_shots])
    assert found.n_tokens == count([found.context])[0] <= room


@pytest.mark.parametrize("room", [2, 0, -5])
def test_without_room_for_one_there_is_none(room):
    with pytest.raises(SettingsError, match=f"nonmember_shots.*3 tokens.*{max(room, 0)} before"):
        choose(["a b", "c"], room)


@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_without_texts_there_is_none(texts):
    with pytest.raises(SettingsError, match=r"nonmember_shots.*no text"):
        choose(texts, 99)
