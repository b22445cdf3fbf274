"""Settings of an endpoint."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import Capabilities, EndpointSettings
from tests.unit.evidence.endpoint.asking import KEY


@pytest.mark.parametrize(
    "url", ["https://api.openai.com/v1", "http://[::1]:8000/v1/", "http://h", "http://h/@me/v1"]
)
def test_addresses(url: str):
    assert EndpointSettings(base_url=url, model="m").base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8000/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://host:0",
        "http://host:99999/v1", "http://ho st/v1", "http://host/v1?key=x", "http://host/v1#x",
        "http://host/v1\n", "http://[::1/v1", "http://hö.de/v1",
    ],
)  # fmt: skip
def test_what_is_no_address(url: str):
    with pytest.raises(SettingsError, match=r"setting 'base_url' is .* write it like https://"):
        EndpointSettings(base_url=url, model="m")


@pytest.mark.parametrize("host", ["host/v1", "host:port/v1"])
def test_an_address_does_not_carry_secrets_and_its_error_does_not_show_them(host: str):
    with pytest.raises(SettingsError, match="user name or password") as caught:
        EndpointSettings(base_url=f"https://user:{KEY}@{host}", model="m")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("end", ["\n", " ", "é", "\x00"])
def test_a_key_that_http_cannot_carry_is_refused_unseen(end: str):
    with pytest.raises(SettingsError, match="the API key is empty or has spaces") as caught:
        EndpointSettings(base_url="http://host/v1", model="m", api_key=KEY + end)
    assert KEY not in str(caught.value)


def test_an_empty_key_is_refused():
    with pytest.raises(SettingsError, match="API key is empty"):
        EndpointSettings(base_url="http://host/v1", model="m", api_key="")


def test_the_key_is_not_shown():
    settings = EndpointSettings(base_url="http://host/v1", model="m", api_key=KEY)
    assert KEY not in repr(settings) + str(settings) + repr(
        settings.sample_identity(Capabilities())
    )
    assert settings.redact(f"wrong key {KEY}, {KEY}!") == "wrong key [key], [key]!"
    assert EndpointSettings(base_url="http://host/v1", model="m").redact("as it is") == "as it is"
    short = EndpointSettings(base_url="http://host/v1", model="m", api_key="e")
    assert short.redact("the server refuses") == "the server refuses"


@pytest.mark.parametrize("missing", ["price_in", "price_out"])
def test_a_limit_of_cost_needs_prices(missing: str):
    given: dict[str, Any] = {"max_cost": 1.0, "price_in": 1.0, "price_out": 1.0} | {missing: None}
    with pytest.raises(SettingsError, match=re.escape("give 'price_in' and 'price_out'")):
        EndpointSettings(base_url="http://host/v1", model="m", **given)
