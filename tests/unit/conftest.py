"""A user with no rights."""

from __future__ import annotations

import os
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
