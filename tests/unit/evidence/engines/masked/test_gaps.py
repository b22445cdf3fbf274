from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.engines.masked import Gaps, word_spans


def hidden(gaps):
    return [gaps.text[start:end] for start, end in gaps.spans]


def test_by_hand():
    text = "I don't,  Zoë_2!"
    spans = word_spans(text)
    gaps = Gaps(text, spans)
    assert hidden(gaps) == ["I", "don't", "Zoë_2"]
    assert gaps.fill(["<m>"] * 3) == ("<m> <m>,  <m>!", [0, 4, 10])
    assert Gaps(text, spans[1:2]).fill(["can"]) == ("I can,  Zoë_2!", [2])


def test_signs_at_either_end_are_no_part_of_a_word_but_marks_are():
    text = "(e\u0301 दुनिया, …) [a-b] 漢字。 ¡3.14! _x_"
    assert hidden(Gaps(text, word_spans(text))) == ["e\u0301", "दुनिया", "a-b", "漢字", "3.14", "x"]


@given(text=st.text(), data=st.data())
def test_the_hidden_words_give_the_text_back_and_others_change_nothing_else(text, data):
    spans = [span for span in word_spans(text) if data.draw(st.booleans())]
    gaps = Gaps(text, spans)
    whole, starts = gaps.fill(hidden(gaps))
    assert whole == text
    assert starts == [start for start, _ in spans]
    masked, starts = gaps.fill(["\0\0"] * len(spans))
    assert [masked[start : start + 2] for start in starts] == ["\0\0"] * len(spans)
    back = Gaps(masked, [(start, start + 2) for start in starts]).fill(hidden(gaps))
    assert back[0] == text
