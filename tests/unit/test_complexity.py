from __future__ import annotations

import math
from functools import partial

import polars as pl
import pytest

from mia_batch import _native
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernels import approximate_entropy, lempel_ziv_complexity

KERNELS = [partial(lempel_ziv_complexity, bins=3), partial(approximate_entropy, m=1, r=0.8)]


def of(kernel, values, dtype=pl.Float64):
    return pl.DataFrame({"x": [values]}, {"x": pl.List(dtype)}).select(kernel("x")).item()


def test_words_by_hand():
    """Levels 99, 0, 0, 99, 99, 99 are symbols 1, 0, 0, 1, 1, 1: words 1, 0, 01 and 11."""
    values = [0.0, -9.0, -9.0, 0.0, 0.0, 0.0]
    assert of(partial(lempel_ziv_complexity, bins=2), values) == 4 / 6
    assert of(partial(lempel_ziv_complexity, bins=2), [*values, -9.0]) == 4 / 7  # 0 is known


def test_levels_are_cut_a_second_time():
    """-1 is level 66 of 99 and of three parts the second; -0.9 is level 70, and in the third."""
    kernel = partial(lempel_ziv_complexity, bins=3)
    assert of(kernel, [-3.0, -1.0, -3.0, -1.0, 0.0]) == 4 / 5  # 0, 1, 01, 2
    assert of(kernel, [-3.0, -0.9, -3.0, -0.9, 0.0]) == 3 / 5  # 0, 2, 02, and a 2


def test_entropy_by_hand():
    """0, 1, 0, 0: three of four are alike, one is alone; none of 01, 10, 00 is like another."""
    found = of(partial(approximate_entropy, m=1, r=0.8), [0.0, -1.0, 0.0, 0.0])
    phi = (3 * math.log(3 / 4) + math.log(1 / 4)) / 4, math.log(1 / 3)
    assert found == pytest.approx(phi[0] - phi[1])


def test_as_far_as_the_tolerance_is_alike():
    """Half are 0 and half -1: the deviation is 0.5."""
    values = [0.0, -1.0, -1.0, 0.0, -1.0, 0.0]
    assert of(partial(approximate_entropy, m=2, r=2.0), values) == 0
    assert of(partial(approximate_entropy, m=2, r=1.999), values) > 0


@pytest.mark.parametrize("value", [0.0, -0.1, -7.25])
def test_equal_values_are_least_complex(value):
    assert of(KERNELS[0], [value] * 11) == 4 / 11  # 0, 00, 000, 0000, and one left
    assert of(KERNELS[1], [value] * 11) == 0


def test_a_number_above_0_counts_as_0():
    assert of(KERNELS[0], [-3.0, 1e-7, -3.0, 0.0, -1.0]) == of(
        KERNELS[0], [-3.0, 0.0, -3.0, 0.0, -1.0]
    )
    assert of(KERNELS[0], [1.0, 2.0, 3.0]) == of(KERNELS[0], [0.0] * 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_gives_null(kernel, bad):
    assert of(kernel, [-1.0, bad, -2.0, -3.0]) is None


@pytest.mark.parametrize("kernel", KERNELS)
def test_nulls_are_left_out(kernel):
    values = [-1.0, -2.0, 0.0, -1.0, -1.0]
    assert of(kernel, [None, *values[:2], None, *values[2:]]) == of(kernel, values)
    assert of(kernel, [None, None, None]) is None
    assert of(kernel, None) is None
    assert of(kernel, []) is None


def test_too_few_values_have_no_entropy():
    kernel = partial(approximate_entropy, m=8, r=0.8)
    assert of(kernel, [-1.0, -2.0] * 4 + [-1.0]) is None
    assert of(kernel, [-1.0, -2.0] * 5) is not None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_types_chunks_and_engines_change_nothing(kernel, engine):
    lists = [[-1.0, 0.0, -2.5, -1.0], None, [0.0] * 5, []]
    parts = [pl.DataFrame({"x": [each]}, {"x": pl.List(pl.Float32)}) for each in lists * 9]
    chunks = pl.concat(parts, rechunk=False).lazy()
    found = chunks.select(kernel("x")).collect(engine=engine)["x"]
    assert found.dtype == pl.Float64
    assert found.to_list() == [of(kernel, each) for each in lists] * 9
    nothing = pl.DataFrame({"x": [None, None]}).select(kernel("x"))["x"]
    assert nothing.to_list() == [None, None]
    assert pl.DataFrame({"x": [[None]]}).select(kernel("x")).item() is None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("column", [pl.lit("a"), pl.lit(1.0), pl.lit(["a"], pl.List(pl.String))])
def test_what_is_no_list_of_numbers_is_refused(kernel, column):
    with pytest.raises(SchemaMismatchError, match="must be a column of lists of numbers, not"):
        pl.select(kernel(column))


def test_the_native_functions_refuse_other_columns():
    for column in (pl.Series(["a"]), pl.Series([[1, 2]]), pl.Series([1.0])):
        with pytest.raises(TypeError, match="logprobs must be an Arrow column of large lists"):
            _native.lempel_ziv_complexity(column, bins=3)
        with pytest.raises(TypeError, match="values must be an Arrow column of large lists"):
            _native.approximate_entropy(column, m=2, r=0.8)


@pytest.mark.parametrize("bins", [0, 2**32, -1, 2.5, "3"])
def test_impossible_bins_are_refused(bins):
    with pytest.raises(SettingsError, match=r"bins is .*; use a whole number of 1 to"):
        lempel_ziv_complexity("x", bins=bins)


@pytest.mark.parametrize(
    ("m", "r"), [(0, 0.8), (2.5, 0.8), (2, -0.1), (2, math.nan), (2, math.inf)]
)
def test_impossible_templates_are_refused(m, r):
    with pytest.raises(SettingsError, match=r"^(m|r) is .*; use a"):
        approximate_entropy("x", m=m, r=r)
