"""A store, and machines that know it."""

from __future__ import annotations

import pytest

from tests.s3 import BUCKET, s3_server


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def run(request):
    """Name of a run that no other test has."""
    return request.node.name.translate(str.maketrans("[]/", "---"))


@pytest.fixture
def url(run):
    return f"s3://{BUCKET}/{run}"


@pytest.fixture
def on_machine(server, tmp_path, monkeypatch):
    """From here on this is the machine of that name: it has a cache of its own."""

    def at(name):
        for variable, value in server.environment(tmp_path / name).items():
            monkeypatch.setenv(variable, value)
        return tmp_path / name

    at("one")
    return at
