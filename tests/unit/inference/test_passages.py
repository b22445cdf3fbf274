"""Passages that came out, counted where they stand in their documents."""

from __future__ import annotations

from tests.frames import features
from tests.unit.inference.summed import document, nulls, said, summed


def test_passages_that_overlap_in_the_document_are_one():
    """Two windows of 80 words whose second half is asked for; the second starts 20 words later."""
    words = [f"w{number:03}" for number in range(200)]

    def window(first):
        texts = {"prefix": (first, first + 40), "reference": (first + 40, first + 80)}
        cut = {name: " ".join(words[slice(*at)]) for name, at in texts.items()}
        return {**cut, "reference": f" {cut['reference']}", "start": 5 * first}

    rows = document("a", *[0.2] * 3, group="g"), document("b", 0.1, 0.1, group="g")
    windows = [row | window(first) for row, first in zip(rows[0], (0, 20, 100), strict=True)]
    said_words = [(40, 62), (61, 90), (140, 162), (165, 180)]
    told = [" ".join(words[slice(*at)]) for at in said_words]
    found = summed(
        *windows,
        *rows[1],
        *nulls(),
        evidence=features(said(0, 0, 22), said(1, 0, 29), said(2, 0, 22), said(3, 0, 2)),
        candidates=[[told[0], "x"], [told[1]], [f"{told[2]} x {told[3]}", None], ["y"]],
        extracted=[
            {
                "document_id": "a",
                "passages_20": [{"start": 5 * 161, "end": 5 * 179}, {"start": 900, "end": 990}],
                "passages_50": [{"start": 900, "end": 990}],
            }
        ],
    )
    named = ("key", "n_passages_20", "n_passages_50", "passages_from")
    assert found.select(named).rows() == [
        ("a", 3, 1, "samples and walks"),
        ("b", 0, 0, "samples"),
        ("g", 3, 1, "samples and walks"),
    ]


def test_a_long_passage_is_one_that_one_answer_gives_in_full():
    words = [f"w{number:03}" for number in range(120)]
    reference = " ".join(words)
    told = [" ".join(words[:40]), " ".join(words[30:70]), " ".join(words[60:115])]
    row = {"start": 0, "prefix": "", "reference": reference}
    asked, other = document("a", 0.2, 0.3)

    def counts(*candidates):
        longest = max(len(each.split()) for each in candidates)
        evidence = features(said(0, 0, longest))
        rows = asked | row, other, *nulls()
        found = summed(*rows, evidence=evidence, candidates=[candidates])
        return found.select("n_passages_20", "n_passages_50", "passages_from").row(0)

    assert counts(*told[:2]) == (1, 0, "samples")
    assert counts(*told) == (1, 1, "samples")
    assert counts(told[0], told[2]) == (2, 1, "samples")
