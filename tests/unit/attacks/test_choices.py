"""DE-COP's scores: worked out by hand, against a reference, and with a model that says A."""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.attacks import get
from mia_batch.attacks.from_samples import CHOICE_LOGPROB_ATTACKS
from tests.logprob_rows import scores, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMES = [attack.name for attack in CHOICE_LOGPROB_ATTACKS]
ALWAYS_A = [-0.01, -6.0, -7.0, -8.0]

Orders = dict[int, list[float] | None]
"""Log-probabilities of the labels by order; None where there are none."""


def of_logprobs(
    orders: Mapping[int, Sequence[float] | None], *names: str
) -> dict[str, float | None]:
    rows = [
        {"view": "choice", "view_index": order, "logprob": logprobs}
        for order, logprobs in orders.items()
    ]
    (found,) = scores(table(rows), names or NAMES)
    return found


def of_answers(answers: Sequence[tuple[int, int | None]]) -> float | None:
    """``decop_v1`` of pairs of order and label."""
    frame = pl.DataFrame(answers, schema=["view_index", "choice"], orient="row")
    frame = frame.with_columns(model=pl.lit("target"), view=pl.lit("choice"))
    found: float | None = frame.select(get("decop_v1").expr).item()
    return found


def reference(orders: Mapping[int, Sequence[float] | None]) -> dict[str, float | None]:
    """The scores order by order, with nothing but loops."""
    probabilities = {}
    for order, logprobs in orders.items():
        if logprobs is not None:
            odds = np.exp(np.array(logprobs, np.float32).astype(float))
            probabilities[order] = odds / odds.sum()
    if {order % 4 for order in probabilities} != {0, 1, 2, 3}:
        return dict.fromkeys(NAMES)

    def over_labels(values: Mapping[int, float]) -> float:
        return fmean(
            fmean(value for order, value in values.items() if order % 4 == label)
            for label in range(4)
        )

    def highest(values: Mapping[int, np.ndarray]) -> float:
        return over_labels({order: each.argmax() == order % 4 for order, each in values.items()})

    means = [over_labels({order: p[i] for order, p in probabilities.items()}) for i in range(4)]
    logs = {order: np.array(each, np.float32) for order, each in orders.items() if each is not None}
    offsets = [
        over_labels({order: float(each[i]) for order, each in logs.items()}) for i in range(4)
    ]
    return {
        "decop_log_calibrated_v1": highest({order: each - offsets for order, each in logs.items()}),
        "decop_calibrated_v1": highest({order: p - means for order, p in probabilities.items()}),
        "decop_logprob_v1": highest(probabilities),
        "decop_probability_v1": over_labels({i: p[i % 4] for i, p in probabilities.items()}),
    }


def test_a_case_by_hand():
    """A is preferred always; less the means, 0.55, 0.15, 0.1 and 0.2, in one order wrongly."""
    shares = [
        [0.7, 0.1, 0.1, 0.1],
        [0.5, 0.3, 0.1, 0.1],
        [0.6, 0.1, 0.1, 0.2],
        [0.4, 0.1, 0.1, 0.4],
    ]
    found = of_logprobs(dict(enumerate(np.log(shares).tolist())))
    assert found["decop_calibrated_v1"] == (1 + 1 + 0 + 1) / 4
    assert found["decop_logprob_v1"] == (1 + 0 + 0 + 0) / 4
    assert found["decop_probability_v1"] == pytest.approx((0.7 + 0.3 + 0.1 + 0.4) / 4)


ROWS = st.one_of(st.none(), st.lists(st.floats(-9, 0, width=32), min_size=4, max_size=4))


@settings(max_examples=8)
@given(st.dictionaries(st.integers(0, 23), ROWS, min_size=4))
def test_scores_are_those_of_the_reference(orders: Orders):
    """Rounding may decide which of several labels is the highest."""
    found, wanted = of_logprobs(orders), reference(orders)
    close = _closest(orders) < 1e-9
    for name in NAMES if not close else ["decop_probability_v1"]:
        assert found[name] == pytest.approx(wanted[name], abs=1e-9)


def _closest(orders: Orders) -> float:
    """The least distance of two labels, calibrated or not, in any order."""
    p = np.array([np.exp(each) for each in orders.values() if each]).reshape(-1, 4)
    p /= p.sum(axis=1, keepdims=True)
    keys = np.array([order % 4 for order, each in orders.items() if each])
    gaps = [np.diff(np.sort(p, axis=1)).min(initial=1)]
    for values in (p, np.log(p)) if p.size else ():
        means = np.mean([values[keys == key].mean(axis=0) for key in {*keys}], axis=0)
        gaps.append(np.diff(np.sort(values - means, axis=1)).min(initial=1))
    return float(min(gaps))


@pytest.mark.parametrize(("n", "label"), [(4, 0), (8, 3), (24, 2)])
def test_one_that_always_gives_the_same_label_is_at_chance(n: int, label: int):
    assert of_answers([(order, label) for order in range(n)]) == 0.25
    always = ALWAYS_A[-label:] + ALWAYS_A[:-label]
    found = of_logprobs(dict.fromkeys(range(n), always))
    assert found == dict.fromkeys(NAMES, pytest.approx(0.25, abs=1e-12))


def test_a_preference_for_a_label_hides_what_the_model_knows_until_it_is_taken_off():
    known = {order: [*ALWAYS_A] for order in range(24)}
    for order, logprobs in known.items():
        logprobs[order % 4] += 0.005
    found = of_logprobs(known)
    assert found["decop_logprob_v1"] == 0.25
    assert found["decop_calibrated_v1"] == found["decop_log_calibrated_v1"] == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 23), st.one_of(st.none(), st.integers(0, 3))), max_size=60)
)
def test_the_share_of_right_answers_is_a_mean_over_labels(answers: list[tuple[int, int | None]]):
    by_label: dict[int, list[int]] = {label: [] for label in range(4)}
    for order, label in answers:
        if label is not None:
            by_label[order % 4].append(label == order % 4)
    whole = all(by_label.values())
    wanted = fmean(map(fmean, by_label.values())) if whole else None
    assert of_answers(answers) == pytest.approx(wanted)


@settings(max_examples=10)
@given(st.permutations([0.0, -1.0, -2.5, -4.5]), st.integers(0, 3), st.integers(1, 30))
def test_what_is_added_to_a_label_in_all_orders_is_taken_off_its_log_probabilities(
    first: list[float], label: int, added: int
):
    plain = {order: [*first[order:], *first[:order]] for order in range(4)}
    plain[0][0] += 0.3  # or all means would be equal, and ties everywhere
    plain[1][2] += 0.1
    raised = {order: [*each] for order, each in plain.items()}
    for each in raised.values():
        each[label] += added
        each[:] = (np.array(each) - np.logaddexp.reduce(each)).tolist()
    name = "decop_log_calibrated_v1"
    assert of_logprobs(plain, name) == of_logprobs(raised, name)


def test_one_that_answers_less_often_where_it_would_be_wrong_gains_nothing_from_a_label():
    """Always A, but half of the answers where D is right cannot be read."""
    answers = [(order, None if order % 8 == 7 else 0) for order in range(24)]
    assert of_answers(answers) == 0.25


def test_rows_of_other_views_and_models_do_not_count():
    own = {order: [0.0 if order % 4 == label else -9.0 for label in range(4)] for order in range(4)}
    rows = [{"view": "choice", "view_index": i, "logprob": each} for i, each in own.items()]
    others = [
        {"model": model, "view": view, "view_index": i, "logprob": [-1.0, -2.0]}
        for (model, view), i in product([("target", "text"), ("reference", "choice")], range(4))
    ]
    mixed, alone = (scores(table(some), NAMES) for some in (rows + others, rows))
    assert mixed == alone
    assert alone[0]["decop_logprob_v1"] == 1.0
