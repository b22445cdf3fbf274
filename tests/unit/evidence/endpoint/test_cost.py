"""The most that a run can cost, and what it did."""

from __future__ import annotations

from typing import Any

import pytest

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.settings import Ledger, Tokens, money, most_prompt_tokens


def priced(**changed: Any) -> EndpointSettings:
    given = {"price_in": 2.0, "price_out": 10.0, "max_cost": None} | changed
    return EndpointSettings(base_url="http://host/v1", model="m", **given)


def test_a_cost_by_hand():
    assert money(priced(), Tokens(1048, 4000)) == pytest.approx((1048 * 2 + 4000 * 10) / 1e6)


def test_without_prices_there_are_tokens_but_no_money():
    settings = priced(price_out=None)
    assert money(settings, Tokens(1, 1)) is None
    ledger = Ledger(settings, Tokens(10, 10))
    assert ledger.spent is None
    assert ledger.fits(Tokens(10**9, 10**9))


def test_a_chat_instruction_is_part_of_every_prompt():
    settings = EndpointSettings(
        base_url="http://host/v1", model="m", chat=True, chat_instruction="Go on: é"
    )
    assert most_prompt_tokens(settings, prompt_bytes=100, prompts=2) == 100 + 2 * (9 + 16)


def test_requests_in_flight_count_at_their_maximum():
    ledger = Ledger(priced(price_in=0.0, price_out=1e6, max_cost=10.0), Tokens(0, 1))
    states = [(ledger.idle, ledger.spent, most_that_fits(ledger))]
    ledger.reserve(Tokens(0, 6))
    states.append((ledger.idle, ledger.spent, most_that_fits(ledger)))
    ledger.settle(Tokens(0, 6), Tokens(0, 2))
    states.append((ledger.idle, ledger.spent, most_that_fits(ledger)))
    assert states == [(True, 1.0, 9), (False, 1.0, 3), (True, 3.0, 7)]


def most_that_fits(ledger: Ledger) -> int:
    return max(n for n in range(100) if ledger.fits(Tokens(0, n)))
