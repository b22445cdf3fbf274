"""What endpoints say when they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.replies import read_refusal, shorten
from mia_batch.evidence.endpoint.transport import Reply
from tests.unit.evidence.endpoint.asking import KEY

SETTINGS = EndpointSettings(base_url="http://host/v1", model="m", api_key=KEY)


def refusal(content: Any, status: int = 400, **headers: str):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_refusal(Reply(status=status, headers=headers, body=body), SETTINGS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"error": {"message": "too long", "code": None}}, "too long"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"detail": [{"msg": "too long"}]}, "[{'msg': 'too long'}]"),
        ({"error": {}}, '{"error": {}}'),
        (b"<html><head><script>x()</script></head><h1>No\n entry</h1></html>", "No entry"),
        (b"", "no message"),
    ],
)
def test_every_usual_shape_is_read(content: Any, said: str):
    assert refusal(content).sentence == f"status 400: {said}"


def test_codes_are_kept_apart():
    found = refusal({"error": {"message": "pay", "type": "insufficient_quota", "code": None}}, 429)
    assert found.codes == {"insufficient_quota"}
    assert refusal(b"busy", 503).codes == frozenset()


def test_a_redirect_is_named_and_the_key_is_not():
    found = refusal(b"", 302, location=f"http://elsewhere/?key={KEY}")
    assert found.sentence == "status 302: a redirect to http://elsewhere/?key=[key]"
    assert KEY not in refusal({"error": {"message": f"{KEY} is wrong"}}, 401).sentence
    assert KEY not in refusal(f"{KEY} is wrong".encode(), 401).sentence


def test_foreign_text_becomes_one_short_line():
    assert shorten("a\n\t b\x1b[0m <b>c</b>") == "a b [0m c"
    assert shorten("x" * 1000) == "x" * 300 + " ..."
