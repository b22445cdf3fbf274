"""Laws of the tables that a report shows: shares, counts, intervals and strips."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.inference.findings import finding_rows
from mia_batch.inference.memory import verbatim_runs
from mia_batch.inference.rollup import rollup
from mia_batch.inference.verdicts import verdicts
from mia_batch.metrics import curves
from mia_batch.schemas import ExtractedDocuments, Samples, Targets
from tests.frames import attack, features, table, target_id
from tests.unit.inference.scored import plan

SCORES = st.one_of(st.none(), st.floats(-3, 3), st.sampled_from([0.0, 1.0]))
WINDOWS = st.lists(st.tuples(SCORES, st.integers(0, 40)), min_size=1, max_size=8)
DOCUMENTS = st.lists(
    st.tuples(
        st.sampled_from(["target", "non_member", "calibration"]),
        st.sampled_from([None, "g", "h"]),
        st.sampled_from([None, True, False]),
        WINDOWS,
    ),
    min_size=1,
    max_size=12,
)
SHARES = [
    "contamination_low",
    "contamination",
    "contamination_high",
    "share_verbatim",
    "share_near_verbatim",
    "p_value",
    "q_value",
]

ATTACK = attack("a_v1", pl.col("words_candidate").max())


def laid_out(documents):
    """Targets with scores, and features of one sample of every second window."""
    rows = [
        {
            "role": role,
            "group": group,
            "member": member,
            "document_id": f"d{number}",
            "window_index": 2 * index,  # every second window is asked about
            "n_windows": 2 * len(windows),
            "start": 20 * index,
            "target": "x" * 9,
            "a_v1": score,
            "run": run,
        }
        for number, (role, group, member, windows) in enumerate(documents)
        for index, (score, run) in enumerate(windows)
    ]
    numbered = [
        {"target_id": target_id(number), **row} for number, row in enumerate(rows)
    ]
    scores = table(Targets, numbered, n_words=9).with_columns(
        a_v1=pl.Series([row["a_v1"] for row in rows], dtype=pl.Float64)
    )
    found = [
        {"target_id": row["target_id"], "longest_block_words": row["run"]}
        for row in numbered[::2]
    ]
    return scores.lazy(), features(*found).lazy()


@settings(max_examples=20)
@given(DOCUMENTS)
def test_laws_of_the_rollup(documents):
    scores, evidence = laid_out(documents)
    of_plan = plan(level="group")
    made = pl.concat(verdicts(scores, ["a_v1"], of_plan)).lazy()
    targets = scores.drop("a_v1")
    extracted = ExtractedDocuments.create_empty(lazy=True)
    runs = verbatim_runs(targets, evidence, 1, "whitespace")
    found = rollup(
        *(targets, scores, runs, made, of_plan),
        extracted=extracted,
        candidates=Samples.create_empty(lazy=True),
        samples=1,
        words="whitespace",
        blind_warns=False,
        findings=finding_rows("gate"),
    )
    for row in found.iter_rows(named=True):
        assert row["n_scored"] <= row["n_asked"] <= row["n_windows"]
        assert all(row[name] is None or 0 <= row[name] <= 1 for name in SHARES)
        assert (row["mean_low"] is None) == (row["mean_high"] is None)
        assert (
            row["mean_low"] is None or row["mean_low"] < row["mean"] < row["mean_high"]
        )
        assert (row["contamination_low"] is None) == (row["contamination_high"] is None)
        if row["contamination_low"] is not None:
            assert row["contamination_low"] < row["contamination_high"]
        assert (row["contamination"] is None) == (
            row["contamination_reason"] is not None
        )
        assert (row["p_value"] is None) == (row["reason"] is not None)
        repeated = (row["longest_words"] or 0) >= 20
        assert (
            repeated
            == (row["verdict"] == "comes_out")
            == ((row["share_verbatim"] or 0) > 0)
        )


@settings(max_examples=20)
@given(DOCUMENTS)
def test_laws_of_the_curves(documents):
    scores, _ = laid_out(documents)
    found = pl.concat(curves(scores.drop("a_v1"), scores, [ATTACK], "a_v1", {}))
    assert found.select(pl.col("y").is_between(0, 1).all()).item()
    assert found.filter((pl.col("n") == 0) & pl.col("y").is_not_null()).is_empty()
    shares = (
        found.filter(curve="distribution").group_by("subject").agg(pl.col("y").sum())
    )
    assert all(abs(share - 1) < 1e-9 for share in shares["y"])
    strips = found.filter(curve="strip")
    assert strips.select(pl.col("x").is_between(0, 1, "left").all()).item()
    for strip in strips.partition_by("subject"):
        assert strip.select((pl.col("x").diff().drop_nulls() > 0).all()).item()
        assert strip["n"].sum() <= len(documents[int(strip["subject"][0][1:])][3])
    roc = found.filter(curve="roc")
    if roc.height:
        assert roc.select("x", "y").rows()[:: roc.height - 1] == [(0, 0), (1, 1)]
        assert roc.select(pl.col("x", "y").diff().min() >= 0).row(0) == (True, True)
