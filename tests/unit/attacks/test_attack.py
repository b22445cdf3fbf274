from __future__ import annotations

import polars as pl
import pytest

from mia_batch.attacks import Attack
from mia_batch.errors import SchemaMismatchError, SettingsError


def attack(expr: pl.Expr) -> Attack:
    return Attack(name="mine_v1", expr=expr, source="none", undefined="never")


def test_it_knows_the_columns_it_reads():
    assert attack((pl.col("b") / pl.col("a") + pl.col("b")).max()).columns == ("a", "b")


@pytest.mark.parametrize("name", ["role", "Mine_v1", "a,b_v1", "mine", "_v1", ""])
def test_a_name_that_is_no_name_of_an_attack_is_refused(name):
    with pytest.raises(SettingsError, match=r"needs a lower-case name .* such as mine_v1"):
        Attack(name=name, expr=pl.len(), source="none", undefined="never")


def test_a_python_function_is_refused():
    with pytest.raises(SettingsError, match="'mine_v1' calls a Python function"):
        attack(pl.col("a").map_batches(lambda series: series, return_dtype=pl.Int64).max())


def test_an_expression_of_many_values_is_refused():
    with pytest.raises(SettingsError, match="'mine_v1' must aggregate to one value"):
        attack(pl.col("a") * 2)


def test_missing_evidence_is_named():
    evidence = pl.LazyFrame({"a": [1], "c": [1]})
    attack(pl.col("a").max()).check(evidence)
    with pytest.raises(
        SchemaMismatchError, match=r"'mine_v1' needs the columns \['b'\].*\['a', 'c'\]"
    ):
        attack((pl.col("a") + pl.col("b")).max()).check(evidence)


def test_a_value_that_is_no_number_is_refused():
    evidence = pl.LazyFrame({"target_id": [1], "a": [1.0]})
    with pytest.raises(SchemaMismatchError, match=r"values of type String, not numbers"):
        attack(pl.col("a").max().cast(pl.String)).check(evidence)
