from __future__ import annotations

from mia_batch.prompts.lowercase import lowercase


def test_every_letter_is_lowered():
    assert lowercase("Straße in ÅRHUS, 12 Ж.") == "straße in århus, 12 ж."
    assert lowercase("") == ""
