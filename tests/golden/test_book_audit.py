"""A small version of the bench of book audits: two books, of which a model saw some passages."""

import pytest
from benches import book_splits
from benches.book_audit import measure, prepare
from benches.book_parts import Design
from benches.book_splits import Case

from tests.texts import invent_text

DESIGN = Design(
    words=64,
    windows=1,
    parts=40,
    skipped=0,
    often=100,
    seldom=30,
    n_seldom=5,
    others=20,
)
CASES = (Case(members=10, others=10, nulls=59), Case(members=0, others=5, nulls=59))


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    # No part has much of another, so what is said of unseen ones is no memory
    texts = {name: invent_text(20_000, name) for name in ("first", "second")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book_splits, "SPLITS", 60)
        parts = prepare(
            folder, texts, DESIGN, {"hidden": 64, "layers": 1, "vocabulary": 1024}
        )
        settings = {"engine": "transformers", "probes": 8, "report": False}
        limits = {"many": (12, 4000)}
        return measure(
            folder, parts, DESIGN, cases=CASES, extraction=limits, **settings
        )


def test_parts_that_were_seen_are_reported_and_the_estimate_covers_their_share(figures):
    seen, unseen = figures["splits"]
    assert seen["right"] >= 9
    for case in (seen, unseen):
        assert case["false_share"] <= case["most"] + 3 * case["standard_error"]
    assert unseen["right"] == 0
    for case in figures["splits"]:
        assert case["beta_binomial_covers"] >= 0.95
        assert case["windows_covers"] >= 0.95
    assert figures["splits"][0]["beta_binomial_width"] < 0.8


def test_strips_and_stretches_show_what_the_model_saw_and_nothing_else(figures):
    of_books = figures["strips"]["books"]
    assert list(of_books) == ["first.txt", "second.txt"]
    assert min(of_books.values()) >= 0.95
    assert figures["recited"] >= 1
    found = figures["extraction_many"]
    assert found["of_what_follows"] >= 0.95
    assert found["of_unseen"] == 0
