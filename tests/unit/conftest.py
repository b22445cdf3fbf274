"""A user with no rights; a store, and machines that know it."""

import os
import resource
from contextlib import contextmanager

import pytest


@pytest.fixture
def without_privileges():
    """As a context: what this process may open is what file permissions allow."""

    @contextmanager
    def nobody():
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)

    return nobody


@pytest.fixture
def limit_files():
    """Lets no file of this process grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def server():
    from tests.s3 import s3_server

    with s3_server() as running:
        yield running


@pytest.fixture
def run(request):
    """Name of a run that no other test has."""
    return request.node.name.translate(str.maketrans("[]/", "---"))


@pytest.fixture
def url(run):
    from tests.s3 import BUCKET

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
