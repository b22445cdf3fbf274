"""Recipes, and who learns which texts."""

from math import ceil
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from mia_batch.errors import SettingsError
from mia_batch.pipeline.stages.evidence import assign_halves
from mia_batch.recipes import MOST_SHADOWS, RECIPES, Recipe, in_half, recipe_field
from mia_batch.settings import Settings
from mia_batch.views import RunModel


@given(st.integers(0, 5000), st.floats(0, 0.9), st.integers(1, 300), st.integers(1, 20))
def test_held_out_texts_and_steps_are_counted(n_texts, held_out, batch_size, epochs):
    recipe = Recipe(held_out=held_out, batch_size=batch_size, epochs=epochs)
    n = recipe.n_held_out(n_texts)
    assert 0 <= n <= max(0, n_texts - 1)
    assert (n > 0) == (held_out > 0 and n_texts > 1)
    batches = len(range(0, n_texts - n, batch_size))
    assert recipe.steps(n_texts) == epochs * batches
    assert n in (ceil(held_out * n_texts), max(0, n_texts - 1))


def test_settings_of_an_audit_and_defaults_of_commands_are_those_of_a_recipe():
    fields = Settings.model_fields
    defaults = {
        "tuning_rate": "learning_rate",
        "tuning_batch": "batch_size",
        "tuning_rank": "rank",
    }
    for name, of_recipe in defaults.items():
        assert fields[name].default == getattr(Recipe(), of_recipe)
        assert fields[name].metadata == recipe_field(of_recipe).metadata != []
    assert [
        recipe_field("epochs", recipe_class).default for recipe_class in RECIPES
    ] == [
        4,
        10,
        5,
        1,
        40,
        5,
    ]


def test_early_stopping_would_look_at_texts_without_privacy():
    assert Recipe(epsilon=8.0).held_out == 0
    with pytest.raises(SettingsError, match="early stopping looks at held-out texts"):
        Recipe(epsilon=8.0, held_out=0.1)


NAMES = [f"text {number}" for number in range(2000)]
ALMOST_NEVER = 1e-9


@given(
    st.lists(st.text(max_size=20), max_size=30),
    st.integers(0, 2**40),
    st.integers(1, 512),
)
def test_each_text_is_in_exactly_half_of_an_even_number_of_models(names, seed, pairs):
    learnt = [in_half(names, shadow, seed) for shadow in range(2 * pairs)]
    for of_text in zip(*learnt, strict=True):
        assert sum(of_text) == pairs


def test_a_text_is_learnt_or_not_whatever_other_texts_there_are():
    """So a larger corpus, or more models, change none of the earlier halves."""
    alone = [in_half([name], 5, 1)[0] for name in NAMES]
    assert in_half(NAMES, 5, 1) == alone
    assert in_half(NAMES[::-1], 5, 1) == alone[::-1]


def test_halves_are_a_fair_coin_of_their_own_for_each_pair_seed_and_text():
    n = len(NAMES)
    low, high = (binom.ppf(share, n, 0.5) for share in (ALMOST_NEVER, 1 - ALMOST_NEVER))
    halves_of = {
        (shadow, seed): in_half(NAMES, shadow, seed)
        for shadow in (0, 2, 14, 16, MOST_SHADOWS - 2)
        for seed in (0, 1)
    }
    for learnt in halves_of.values():
        assert low <= sum(learnt) <= high
    rows = list(halves_of.values())
    for i, row in enumerate(rows):
        for other_row in rows[:i]:
            assert (
                low <= sum(a == b for a, b in zip(row, other_row, strict=True)) <= high
            )


def read_trained(**columns):
    """Join texts with whether the first shadow model learns them."""
    n = len(columns["target"])
    usual = {"target_id": [f"{row:032x}" for row in range(n)], "role": ["target"] * n}
    rows = pl.DataFrame(usual | columns)
    run = SimpleNamespace(scan=lambda _: rows.lazy())
    audit: Any = SimpleNamespace(run=run, settings=SimpleNamespace(seed=0))
    return assign_halves(audit, RunModel.shadow(0)).join(rows, on="target_id")


def test_windows_of_a_document_and_equal_texts_go_together():
    n = range(300)
    trained_targets = read_trained(
        document_id=[f"d{row // 3}" if row < 150 else f"e{row}" for row in n],
        window_index=[row % 3 if row < 150 else 0 for row in n],
        n_windows=[3 if row < 150 else 1 for row in n],
        role=["target"] * 290 + ["canary"] * 10,
        target=[
            *(f"text {row}" if row < 150 else f"twice {row // 2}" for row in n[:-1]),
            None,
        ],
    )
    assert trained_targets.height == 299
    assert not trained_targets.filter(role="canary")[
        "trained"
    ].any()  # no model learns these
    trained_targets = trained_targets.filter(role="target")
    assert (
        trained_targets.group_by("target")
        .agg(pl.col("trained").n_unique())["trained"]
        .max()
        == 1
    )
    windows_of_documents = (
        trained_targets.filter(pl.col("n_windows") > 1)
        .group_by("document_id")
        .agg("trained")
    )
    assert windows_of_documents["trained"].list.n_unique().unique().to_list() == [1]
    assert 90 < trained_targets["trained"].sum() < 200


def test_a_window_that_several_documents_have_is_learnt_where_one_of_them_is():
    trained_targets = read_trained(
        document_id=[f"d{row // 2}" for row in range(40)],
        window_index=[0, 1] * 20,
        n_windows=[2] * 40,
        target=[f"text {row}" if row % 2 else "licence" for row in range(40)],
    )
    assert trained_targets.filter(target="licence")["trained"].all()
    other_targets = trained_targets.filter(pl.col("target") != "licence")["trained"]
    assert other_targets.any()
    assert not other_targets.all()
