from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.views.gaps import Gaps, word_spans


def test_by_hand():
    text = "I don't,  Zoë_2!"
    spans = word_spans(text)
    gaps = Gaps(text, spans)
    assert gaps.words() == ["I", "don", "t", "Zoë_2"]
    assert gaps.fill(["<m>"] * 4) == ("<m> <m>'<m>,  <m>!", [0, 4, 8, 14])
    assert Gaps(text, spans[1:2]).fill(["can"]) == ("I can't,  Zoë_2!", [2])


@given(text=st.text(), data=st.data())
def test_the_hidden_words_give_the_text_back_and_others_change_nothing_else(text, data):
    spans = [span for span in word_spans(text) if data.draw(st.booleans())]
    gaps = Gaps(text, spans)
    whole, starts = gaps.fill(gaps.words())
    assert whole == text
    assert starts == [start for start, _ in spans]
    masked, starts = gaps.fill(["\0\0"] * len(spans))
    assert [masked[start : start + 2] for start in starts] == ["\0\0"] * len(spans)
    back = Gaps(masked, [(start, start + 2) for start in starts]).fill(gaps.words())
    assert back[0] == text
