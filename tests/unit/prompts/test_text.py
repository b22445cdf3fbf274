from __future__ import annotations

from mia_batch.prompts.text import lowercase, text
from tests import frames


def test_every_letter_is_lowered():
    targets = frames.targets({"target": "Straße in ÅRHUS, 12 Ж."}, {"target": ""})
    made = lowercase(targets)
    assert made["text"].to_list() == ["straße in århus, 12 ж.", ""]
    assert made["context"].to_list() == ["", ""]


def test_a_whole_target_is_cut_before_its_first_byte():
    assert text(frames.targets({"target": "a"}))["cut"].to_list() == [0]
