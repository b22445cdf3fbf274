"""Who learns which texts, and what is refused."""

import polars as pl
import pytest

from mia_batch.errors import CorpusError
from mia_batch.privacy.data import learnt_by, read_texts


def read(path, frame, **changed):
    frame.write_parquet(path / "texts.parquet")
    given = {"text": "text", "target": None, "group": None, "share": 0.6, "seed": 3} | changed
    return read_texts(path / "texts.parquet", **given)


def test_groups_stay_together_and_a_coin_decides(tmp_path):
    who = [f"person {number // 3}" for number in range(3000)]
    texts = pl.DataFrame({"text": [f"text {number}" for number in range(3000)], "who": who})
    found = read(tmp_path, texts, group="who")
    for column in ("part", "member"):
        assert found.group_by("group").agg(pl.col(column).n_unique())[column].max() == 1
    audited = found.filter(part="audited")
    assert audited["group"].n_unique() == 600
    assert audited["member"].mean() == pytest.approx(0.5, abs=3 * (0.25 / 600) ** 0.5)
    assert found.filter(part="auxiliary")["member"].null_count() == found.height - audited.height


def test_each_text_is_learnt_by_one_shadow_model_of_a_pair(tmp_path):
    found = read(tmp_path, pl.DataFrame({"text": [f"text {number}" for number in range(400)]}))
    audited = set(found.filter(part="audited")["id"])
    one, other = (set(learnt_by(found, number, 3)["id"]) for number in (0, 1))
    target = set(learnt_by(found, None, 3)["id"])
    assert one | other == audited
    assert not one & other
    assert target == set(found.filter("member")["id"])
    # The target's half is drawn apart from theirs.
    assert len(one & target) == pytest.approx(len(audited) / 4, abs=3 * (240 * 3 / 16) ** 0.5)


def test_equal_texts_are_one_group_where_none_is_given(tmp_path):
    texts = pl.DataFrame({"text": [f"text {number % 30}" for number in range(90)]})
    found = read(tmp_path, texts.with_columns(who=pl.lit(None, pl.String)), group="who")
    assert found["group"].n_unique() == 30


def test_equal_texts_of_different_groups_are_learnt_by_the_same_models(tmp_path):
    texts = [f"text {number // 2}" for number in range(200)]
    who = [f"person {number}" for number in range(200)]
    found = read(tmp_path, pl.DataFrame({"text": texts, "who": who}), group="who")
    for column in ("group", "part", "member"):
        assert found.group_by("text").agg(pl.col(column).n_unique())[column].max() == 1
    assert found["group"].n_unique() == 100


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([], "has no rows; give at least 20 texts"),
        (["a", "b"] * 30, "has 2 different texts or groups; give at least 20"),
        ([*map(str, range(30)), None], "row 31: nothing in column 'text'; leave such rows out"),
        ([" ", *map(str, range(30)), ""], "row 1 and 1 others: nothing in column 'text'"),
    ],
)
def test_what_is_refused(tmp_path, texts, reason):
    with pytest.raises(CorpusError, match=r"texts\.parquet") as caught:
        read(tmp_path, pl.DataFrame({"text": texts}, schema={"text": pl.String}))
    assert reason in str(caught.value)
