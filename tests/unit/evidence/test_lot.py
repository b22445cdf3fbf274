"""The order of asking: it depends on the seed and the texts alone."""

from hashlib import sha256

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence import lot
from mia_batch.evidence.lot import in_order_of_asking, lot_numbers
from tests import frames

NAMES = [f"{number:032x}" for number in range(200)]


def order_of(names: list[str], seed: int = 0) -> list[str]:
    table = frames.targets(*[{"target": name} for name in names])
    table = table.with_columns(target_id=pl.Series(names))
    ordered = in_order_of_asking(table.lazy(), seed).collect()
    assert ordered["target"].to_list() == ordered["target_id"].to_list()
    return ordered["target_id"].to_list()


@given(st.permutations(NAMES[:12]), st.integers(0, 3))
def test_the_order_is_the_same_wherever_texts_stand_in_the_input(names, seed):
    assert order_of(names, seed) == order_of(NAMES[:12], seed)


def test_a_corpus_that_grows_keeps_the_order_of_its_texts(monkeypatch):
    monkeypatch.setattr(lot, "_TARGETS_AT_ONCE", 7)
    grown = order_of(NAMES[:60])
    assert [name for name in grown if name in NAMES[20:40]] == order_of(NAMES[20:40])
    assert grown != order_of(NAMES[:60], seed=1)


def test_texts_of_the_first_half_of_the_input_come_at_every_time():
    first = {*NAMES[:100]}
    places = [place for place, name in enumerate(order_of(NAMES)) if name in first]
    assert 90 < sum(places) / len(places) < 110
    by_hand = [
        int(sha256(f"order:7:{name}".encode()).hexdigest()[:16], 16) for name in "ab"
    ]
    assert lot_numbers(pl.Series(["a", "b"]), 7).tolist() == by_hand
