"""Bases of two kinds, and each method's model of them, made once."""

from __future__ import annotations

from functools import cache

import pytest

from tests.adapters import save_gpt2
from tests.tuning import make

RATES = {"lora": 1e-2, "ia3": 3e-2, "prefix": 0.3, "p-tuning": 1e-2, "prompt": 1.0, "full": 3e-3}


@pytest.fixture(scope="session")
def bases(checkpoint, tmp_path_factory):
    return {"llama": checkpoint, "gpt2": save_gpt2(tmp_path_factory.mktemp("gpt2"))}


@pytest.fixture(scope="session")
def made(bases, tmp_path_factory):
    """A function that makes a model of a base with a method, the second time from memory."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def made(base, method):
        out = folder / f"{base}-{method}"
        return make(bases[base], out, method=method, epochs=6, learning_rate=RATES[method])

    return made
