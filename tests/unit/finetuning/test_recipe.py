from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.finetuning.recipe import RECIPES, Recipe, recipe_field
from mia_batch.settings import Settings


@given(st.integers(0, 5000), st.floats(0, 0.9), st.integers(1, 300), st.integers(1, 20))
def test_held_out_texts_and_steps_are_counted(n_texts, held_out, batch_size, epochs):
    recipe = Recipe(held_out=held_out, batch_size=batch_size, epochs=epochs)
    n = recipe.n_held_out(n_texts)
    assert 0 <= n <= max(0, n_texts - 1)
    assert (n > 0) == (held_out > 0 and n_texts > 1)
    batches = len(range(0, n_texts - n, batch_size))
    assert recipe.steps(n_texts) == epochs * batches
    assert n in (ceil(held_out * n_texts), max(0, n_texts - 1))


def test_everything_that_decides_what_comes_out_is_described():
    assert Recipe(**Recipe(rank=3, seed=2).described()) == Recipe(rank=3, seed=2)


def test_early_stopping_would_look_at_texts_without_privacy():
    assert Recipe(epsilon=8.0).held_out == 0
    with pytest.raises(SettingsError, match="early stopping looks at held-out texts"):
        Recipe(epsilon=8.0, held_out=0.1)


def test_settings_of_an_audit_and_defaults_of_commands_are_those_of_a_recipe():
    fields = Settings.model_fields
    own = {"tuning_rate": "learning_rate", "tuning_batch": "batch_size", "tuning_rank": "rank"}
    for name, of_recipe in own.items():
        assert fields[name].default == getattr(Recipe(), of_recipe)
        assert fields[name].metadata == recipe_field(of_recipe).metadata != []
    assert [recipe_field("epochs", each).default for each in RECIPES] == [4, 10, 5, 40, 5]
