from __future__ import annotations

from mia_batch.prompts.views import lowercase, pairs, repeated, text
from tests import frames


def test_every_letter_is_lowered():
    targets = frames.targets({"target": "Straße in ÅRHUS, 12 Ж."}, {"target": ""})
    made = lowercase(targets)
    assert made["text"].to_list() == ["straße in århus, 12 ж.", ""]
    assert made["context"].to_list() == ["", ""]


def test_a_whole_target_is_cut_before_its_first_byte():
    assert text(frames.targets({"target": "a"}))["cut"].to_list() == [0]


def test_a_target_stands_behind_itself():
    made = repeated(frames.targets({"target": "a b"}))
    assert made.select("context", "cut").rows() == [("a b\n\n", 0)]


def test_a_target_is_taken_twice_for_each_pair():
    targets = frames.targets({"target": "a"}, {"target": "b"})
    made = pairs(targets, n=2)
    one, other = targets["target_id"]
    expected = [(name, index) for name in (one, other) for index in range(4)]
    assert made.select("target_id", "view_index").rows() == expected
    assert made["cut"].to_list() == [0] * 8
    first = pairs(targets, n=1).rows()
    assert [row for row in made.rows() if row[2] < 2] == first  # more pairs are added
