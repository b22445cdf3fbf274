"""Real fragments of few words, and a small recipe under which a decoder learns to invert them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import polars as pl
import pytest

from mia_batch.finetuning.recipe import Recipe

N_COMMON = 40
N_TEXTS = 1600
RECIPE = Recipe(
    method="full", epochs=24, learning_rate=4e-3, batch_size=16, max_tokens=24, patience=3
)


@pytest.fixture(scope="session")
def fragments(shared_data):
    """Fragments of English books made of the commonest words alone, 20 fragments a group."""
    found = []
    for book in ("dracula", "jane_eyre", "moby_dick", "frankenstein"):
        text = (shared_data / "books" / f"{book}.txt").read_text("utf-8").lower()
        words = re.findall(r"[a-z]+", text)
        common = {word for word, _ in Counter(words).most_common(N_COMMON)}
        ends = [-1, *(i for i, word in enumerate(words) if word not in common), len(words)]
        runs = [" ".join(words[a + 1 : b]) for a, b in pairwise(ends) if 4 <= b - a - 1 <= 6]
        different = list(dict.fromkeys(runs))[: N_TEXTS // 4]
        found += [(f"{book} {i // 20}", run) for i, run in enumerate(different)]
    rows = pl.DataFrame(found, schema=["group", "text"], orient="row")
    return rows.unique("text", keep="first", maintain_order=True)
