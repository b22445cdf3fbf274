"""A small version of the bench of book audits: two books, of which a model saw some passages."""

from __future__ import annotations

import pytest
from benches import book_splits
from benches.book_audit import measure, prepare
from benches.book_parts import Design
from benches.book_splits import Case

from tests.checkpoints import TEXTS

DESIGN = Design(
    words=64, windows=1, parts=40, skipped=0, often=120, seldom=40, n_seldom=6, others=20
)
CASES = (
    Case(members=6, others=14, nulls=39),
    Case(members=0, others=4, nulls=59),
)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    half = len(TEXTS) // 2
    texts = {"first": "\n".join(TEXTS[:half]), "second": "\n".join(TEXTS[half:])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book_splits, "SPLITS", 60)
        parts = prepare(folder, texts, DESIGN, {"hidden": 64, "layers": 1, "vocabulary": 1024})
        settings = {"engine": "transformers", "probes": 8, "report": False}
        return measure(folder, parts, DESIGN, CASES, **settings)


def test_false_discoveries_are_at_most_q(figures):
    for row in figures["splits"]:
        assert row["false_share"] <= row["most"] + 3 * row["standard_error"]


def test_parts_that_were_seen_are_reported(figures):
    assert figures["splits"][0]["right"] >= 4
