"""Embeddings over HTTP, from an endpoint that misbehaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.embeddings import embed_at, vectors_of
from tests.embedding_server import EmbeddingServer, vector
from tests.hostile_server import HostileServer, Reply, failure
from tests.unit.evidence.endpoint.asking import NoJitter, settings_for

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = [["one", "two"], ["three"], ["four", "five", "six"]]


def asked_of(server: HostileServer) -> list[list[str]]:
    return [each.fields["input"] for each in server.asked + server.probes]


def ask(
    answer: EmbeddingServer, folder: Path, **changed: Any
) -> tuple[dict[int, Any], list[list[str]]]:
    found: dict[int, Any] = {}
    with HostileServer(answer) as server:
        settings = settings_for(server, **changed)
        embed_at(settings, BLOCKS, folder / "journal", found.__setitem__, rng=NoJitter())
    return found, asked_of(server)


def expected() -> dict[int, list[Any]]:
    return {
        number: [np.array(vector(text), np.float32).tolist() for text in block]
        for number, block in enumerate(BLOCKS)
    }


def plain(found: dict[int, Any]) -> dict[int, list[Any]]:
    return {
        number: [each if isinstance(each, str) else each.tolist() for each in block]
        for number, block in found.items()
    }


@pytest.mark.parametrize("concurrency", [1, 4])
def test_vectors_belong_to_their_texts(concurrency, tmp_path):
    found, asked = ask(EmbeddingServer(), tmp_path, max_concurrency=concurrency)
    assert plain(found) == expected()
    assert sorted(asked) == sorted(BLOCKS)


def test_refusals_that_pass_and_answers_of_no_use_are_asked_for_again(tmp_path):
    data = [{"index": 0, "embedding": [1.0, 2.0]}]
    bad = [
        failure(429, "slow down"),
        failure(503, "not now"),
        Reply(content=b'{"data": [{"in'),
        Reply(content={"data": data}),
    ]
    found, asked = ask(EmbeddingServer(*bad), tmp_path)
    assert plain(found) == expected()
    assert asked.count(BLOCKS[0]) == 5


def test_a_text_that_is_refused_does_not_take_its_block_along(tmp_path):
    found, asked = ask(EmbeddingServer(refuses="five"), tmp_path)
    reason = "the endpoint gives no embedding (status 400: maximum context length exceeded)"
    wanted = expected()
    wanted[2][1] = reason
    assert plain(found) == wanted
    assert [each for each in asked if len(each) == 1 and each != ["three"]] == [
        ["four"],
        ["five"],
        ["six"],
    ]


def test_a_key_that_is_refused_ends_all(tmp_path):
    with pytest.raises(EngineError, match=r"takes no more requests \(status 401: who are you"):
        ask(EmbeddingServer(*[failure(401, "who are you")] * 9), tmp_path)


def test_the_limit_of_cost_is_kept(tmp_path):
    prices = {"price_in": 1e6, "price_out": 0.0, "max_cost": 50.0}
    with pytest.raises(EngineError, match=r"setting 'max_cost' is 50, of which 9 is spent"):
        ask(EmbeddingServer(), tmp_path, **prices)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"index": 0}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": i, "embedding": [1.0]} for i in range(3)],
        [{"index": i, "embedding": [float("nan")]} for i in range(2)],
        [{"index": i, "embedding": ["a"]} for i in range(2)],
        [{"index": i, "embedding": 1.0} for i in range(2)],
        "data",
    ],
)
def test_what_is_no_vector_for_each_text(data):
    document = json.loads(json.dumps({"data": data}))
    assert isinstance(vectors_of(document, 2), str)
