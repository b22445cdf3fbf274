"""Settings of an endpoint, and the most that a run can cost."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import Capabilities, ClientSettings
from mia_batch.evidence.endpoint.wire import Ledger, Tokens, money, most_prompt_tokens
from tests.unit.evidence.endpoint.asking import KEY


@pytest.mark.parametrize(
    "url", ["https://api.openai.com/v1", "http://[::1]:8000/v1/", "http://h", "http://h/@me/v1"]
)
def test_addresses(url):
    assert ClientSettings(base_url=url, model="m").base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8000/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://host:0",
        "http://host:99999/v1", "http://ho st/v1", "http://host/v1?key=x", "http://host/v1#x",
        "http://host/v1\n", "http://[::1/v1", "http://hö.de/v1",
    ],
)  # fmt: skip
def test_what_is_no_address(url):
    with pytest.raises(SettingsError, match=r"setting 'base_url' is .* write it like https://"):
        ClientSettings(base_url=url, model="m")


@pytest.mark.parametrize("host", ["host/v1", "host:port/v1"])
def test_an_address_does_not_carry_secrets_and_its_error_does_not_show_them(host):
    with pytest.raises(SettingsError, match="user name or password") as caught:
        ClientSettings(base_url=f"https://user:{KEY}@{host}", model="m")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["", *(KEY + end for end in "\n é\x00")])
def test_a_key_that_http_cannot_carry_is_refused_unseen(key):
    with pytest.raises(SettingsError, match="the API key is empty or has spaces") as caught:
        ClientSettings(base_url="http://host/v1", model="m", api_key=key)
    assert KEY not in str(caught.value)


def test_the_key_is_not_shown():
    settings = ClientSettings(base_url="http://host/v1", model="m", api_key=KEY)
    assert KEY not in repr(settings) + str(settings) + repr(
        settings.sample_identity(Capabilities())
    )
    assert settings.redact(f"wrong key {KEY}, {KEY}!") == "wrong key [key], [key]!"
    assert ClientSettings(base_url="http://host/v1", model="m").redact("as it is") == "as it is"
    short = ClientSettings(base_url="http://host/v1", model="m", api_key="e")
    assert short.redact("the server refuses") == "the server refuses"


@pytest.mark.parametrize("missing", ["price_in", "price_out"])
def test_a_limit_of_cost_needs_prices(missing):
    given: dict[str, Any] = {"max_cost": 1.0, "price_in": 1.0, "price_out": 1.0} | {missing: None}
    with pytest.raises(SettingsError, match=re.escape("give 'price_in' and 'price_out'")):
        ClientSettings(base_url="http://host/v1", model="m", **given)


# The most that a run can cost, and what it did.


def priced(**changed: Any) -> ClientSettings:
    given = {"price_in": 2.0, "price_out": 10.0, "max_cost": None} | changed
    return ClientSettings(base_url="http://host/v1", model="m", **given)


def test_a_cost_by_hand():
    assert money(priced(), Tokens(1048, 4000)) == pytest.approx((1048 * 2 + 4000 * 10) / 1e6)


def test_without_prices_there_are_tokens_but_no_money():
    settings = priced(price_out=None)
    assert money(settings, Tokens(1, 1)) is None
    ledger = Ledger(settings, Tokens(10, 10))
    assert ledger.spent is None
    assert ledger.fits(Tokens(10**9, 10**9))


def test_a_chat_instruction_is_part_of_every_prompt():
    settings = ClientSettings(
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
