"""Real fragments of few words, a model that embeds them, and a recipe that learns to invert it."""

from __future__ import annotations

import pytest
from benches.inversion import random, texts_of_books

from mia_batch.finetuning.recipe import Recipe

RECIPE = Recipe(
    method="full", epochs=9, learning_rate=4e-3, batch_size=16, max_tokens=24, patience=3
)


@pytest.fixture(scope="session")
def fragments(shared_data):
    """Runs of the commonest words of English books, 20 a group."""
    return texts_of_books("fragments", 4000, shared_data)


@pytest.fixture(scope="session")
def embedder(fragments, tmp_path_factory):
    """A causal model of random weights."""
    folder = tmp_path_factory.mktemp("embedder")
    random(folder, fragments["text"].to_list())
    return folder
