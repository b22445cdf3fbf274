"""AUC of the first samples and points, beside scores of these rows alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from mia_batch.attacks.attack import PROBE
from mia_batch.metrics import measure as module
from mia_batch.metrics.measure import growth
from tests import logprob_rows
from tests.frames import attack, features, target_id

N, MOST = 40, 11
RNG = np.random.default_rng(3)
MEMBER = RNG.random(N) < 0.5
SAID = RNG.poisson(3 + 2 * MEMBER[:, None], (N, MOST))
MEAN = attack("mean_v1", pl.col("words_candidate").mean())
AT_POINTS = attack("probe_v1", pl.col("words_candidate").mean(), reads=(PROBE,))


def scores(member=MEMBER, **columns):
    frame = pl.DataFrame({"target_id": [target_id(n) for n in range(N)], "member": member})
    return frame.with_columns(role=pl.lit("target"), **columns).lazy()


def rows(index, **columns):
    places = [(n, k) for n in range(N) for k in range(MOST)]
    RNG.shuffle(places)
    return [
        {"target_id": target_id(n), index: int(k), "words_candidate": int(SAID[n, k]), **columns}
        for n, k in places
    ]


EVIDENCE = {
    "samples": features(*rows("sample_index"), *rows("view_index", view=PROBE[1])).lazy(),
}


def expected(k):
    return pytest.approx(roc_auc_score(MEMBER, SAID[:, :k].mean(axis=1)))


def test_each_kind_grows_by_doubling_for_the_first_attack_that_reads_it_alone():
    other = attack("other_v1", pl.col("words_candidate").max())
    found = [*growth(scores(), EVIDENCE, [AT_POINTS, MEAN, other])]
    named = [frame.select("attack", "subject").unique().row(0) for frame in found]
    assert named == [("mean_v1", "samples"), ("probe_v1", "points")]
    for frame in found:
        steps = [1, 2, 4, 8, MOST]
        assert frame.select("x", "y", "n").rows() == [(k, expected(k), N) for k in steps]


def test_so_many_texts_of_each_class_count(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 5)
    (found,) = growth(scores(), EVIDENCE, [MEAN])
    assert found["n"].to_list() == [10] * 5


def test_what_is_not_scored_is_left_out():
    gone = pl.col("target_id") == target_id(0)
    rest = pl.when(gone & (pl.col("sample_index") == 0)).then(None)
    evidence = EVIDENCE["samples"].with_columns(
        words_candidate=rest.otherwise(pl.col("words_candidate"))
    )
    (found,) = growth(scores(), {"samples": evidence}, [MEAN])
    assert found["n"].to_list() == [N - 1] + [N] * 4


@pytest.mark.parametrize("member", [[True] * N, [False] * N, [None] * N])
def test_without_both_classes_there_is_none(member):
    assert [*growth(scores(pl.Series(member, dtype=pl.Boolean)), EVIDENCE, [MEAN])] == []


def test_one_sample_cannot_grow_and_mixed_attacks_have_no_index():
    single = EVIDENCE["samples"].filter(pl.col("sample_index") == 0, view="continuation")
    (found,) = growth(scores(), {"samples": single}, [MEAN])
    assert found.is_empty()
    mixed = attack("mixed_v1", pl.len(), reads=(PROBE, ("target", "continuation")))
    beside = attack("beside_v1", pl.len(), logprobs=(PROBE,))
    assert [*growth(scores(), EVIDENCE, [mixed, beside])] == []


def test_numbers_of_series_are_made_where_an_attack_reads_them():
    """Two words of two different values, one of two that are equal."""
    places = [(n, k) for n in range(N) for k in range(2)]
    table = logprob_rows.table(
        {"target_id": target_id(n), "view": PROBE[1], "view_index": k}
        | {"logprob": [-1.0, 0.0] if MEMBER[n] else [0.0, 0.0]}
        for n, k in places
    )
    words = attack("words_v1", pl.col("complexity_3").mean(), evidence="logprobs", reads=(PROBE,))
    (found,) = growth(scores(), {"logprobs": table.lazy()}, [words])
    assert found.select("x", "y").rows() == [(1, 1.0), (2, 1.0)]
