"""Attacks applied to evidence, and what an attack must be."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import Attack, apply, find_unscored, get, score
from mia_batch.attacks.apply import count_rows, whole_targets
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.schemas import Scores, Unscored
from tests import frames, logprob_rows
from tests.frames import target_id

RECALL = get("samia_v1")
TRIGRAMS = get("samia_matched_n3_v1")


def pair(
    number: int, index: int, overlap: int | None, words: int | None = 4, **more: Any
) -> dict[str, Any]:
    return {
        "target_id": target_id(number),
        "sample_index": index,
        "words_candidate": 1,
        "words_reference": words,
        "overlap_1": overlap,
    } | more


def run(
    features: pl.DataFrame,
    targets: pl.DataFrame,
    *,
    samples: pl.DataFrame | None = None,
    attacks: Sequence[Attack] = (RECALL,),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores and missing scores, collected and checked against their schemas."""
    samples = frames.samples() if samples is None else samples
    scores = pl.concat(score(features.lazy(), targets.lazy(), attacks))
    unscored = find_unscored(
        scores.lazy(), samples.lazy(), targets.lazy(), attacks
    ).collect()
    Scores.validate(scores)
    Unscored.validate(unscored)
    return scores, unscored


def test_each_target_has_a_row_with_the_mean_and_the_number_of_its_candidates():
    """In the order of the targets; the fifth text is no target, and one has no features."""
    mixed = frames.features(pair(0, 0, 4), pair(2, 0, 3), pair(5, 0, 4), pair(0, 1, 2))
    scores, unscored = run(mixed, frames.targets({}, {}, {}).reverse())
    assert scores["target_id"].to_list() == [target_id(2), target_id(1), target_id(0)]
    assert scores["samia_v1"].to_list() == [3 / 4, None, (4 / 4 + 2 / 4) / 2]
    assert unscored["target_id"].to_list() == [target_id(1)]
    features = frames.features(
        *[pair(0, index, 1, short=index < 3) for index in range(10)],
        pair(1, 0, 1, short=None),
        pair(1, 1, None, words=None, words_candidate=None, short=None),
    )
    scores, _ = run(features, frames.targets({}, {}, {}))
    assert scores["n_samples"].to_list() == [10, 1, 0]
    assert scores["n_short"].to_list() == [3, 0, 0]


@pytest.mark.parametrize(
    ("lost", "least", "value"),
    [(1, 0.5, 1 / 4), (3, 0.5, 1 / 4), (4, 0.5, None), (4, 0.3, 1 / 4)],
)
def test_of_six_answers_an_attack_needs_the_share_that_it_names(lost, least, value):
    nothing = {"words": None, "words_candidate": None, "short": None}
    features = frames.features(
        *[pair(0, index, 1) for index in range(lost, 6)],
        *[pair(0, index, None, **nothing) for index in range(lost)],
        pair(1, 0, 3),
    )
    filtered = {
        "candidate": None,
        "reason": "the provider filtered the answer (safety)",
    }
    samples = frames.samples([filtered] * lost + ["a"] * (6 - lost), ["a"])
    attacks = [replace(RECALL, least=least)]
    scores, unscored = run(
        features, frames.targets({}, {}), samples=samples, attacks=attacks
    )
    assert scores["samia_v1"].to_list() == [value, 3 / 4]
    assert scores["n_samples"].to_list() == [6 - lost, 1]
    why = "too few answers; the first: the provider filtered the answer (safety)"
    assert unscored["reason"].to_list() == ([] if value else [why])


def test_columns_of_the_corpus_pass_through_at_the_end():
    targets = frames.targets({"member": True, "group": "g"}, {}).with_columns(
        row=pl.Series([7, 8]), year=pl.Series(["x", None])
    )
    scores, _ = run(frames.features(pair(0, 0, 4)), targets)
    assert scores.columns == [*Scores.column_names(), "samia_v1", "row", "year"]
    assert scores.select("member", "group", "row", "year").rows() == [
        (True, "g", 7, "x"),
        (None, None, 8, None),
    ]


def test_a_missing_score_is_null_and_has_its_reason():
    targets = frames.targets(
        {"reason": "the text is null"},
        {"reason": None},
        {},
        {},
        {"reason": "the text is null"},
    )
    samples = frames.samples(
        [],
        [
            {"reason": "second", "sample_index": 1},
            {"reason": "first", "sample_index": 0},
        ],
        [],
        [
            {"reason": "refused", "sample_index": 0},
            {"candidate": "a b", "sample_index": 1},
        ],
        [{"reason": "not asked", "sample_index": 0}],
    )
    features = frames.features(pair(3, 1, 1, words=2))
    scores, unscored = run(
        features, targets, samples=samples, attacks=[RECALL, TRIGRAMS]
    )
    assert scores["samia_v1"].to_list() == [None, None, None, 0.5, None]
    assert scores["samia_matched_n3_v1"].null_count() == 5
    assert unscored.rows() == [
        (target_id(0), "samia_v1", "the text is null"),
        (target_id(0), "samia_matched_n3_v1", "the text is null"),
        (target_id(1), "samia_v1", "first"),
        (target_id(1), "samia_matched_n3_v1", "first"),
        (target_id(2), "samia_v1", "no continuation was sampled"),
        (target_id(2), "samia_matched_n3_v1", "no continuation was sampled"),
        (target_id(3), "samia_matched_n3_v1", "the reference has fewer than 3 words"),
        (target_id(4), "samia_v1", "the text is null"),
        (target_id(4), "samia_matched_n3_v1", "the text is null"),
    ]


@pytest.mark.parametrize("at_once", [5, 1000])
def test_parts_in_any_order_give_the_same_bits(monkeypatch, at_once):
    """Ten samples first, seven more in later parts, then every row shuffled."""
    monkeypatch.setattr(apply, "_SAMPLES_AT_ONCE", at_once)
    monkeypatch.setattr(apply, "_TARGETS_AT_ONCE", at_once)
    draw = random.Random(0)
    texts = [
        [(draw.randrange(60), draw.randrange(60, 99)) for _ in range(17)]
        for _ in range(9)
    ]
    rows = [
        pair(number, index, overlap, words=words)
        for first, last in ((0, 10), (10, 17))
        for number, text in enumerate(texts)
        for index, (overlap, words) in list(enumerate(text))[first:last]
    ]
    expected = []
    for text in texts:
        total = 0.0
        for overlap, words in text:
            total += overlap / words
        expected.append(total / 17)
    for order in (rows, draw.sample(rows, len(rows))):
        scores, _ = run(frames.features(*order), frames.targets(*[{}] * len(texts)))
        assert scores["samia_v1"].to_list() == expected


def test_texts_are_not_read(tmp_path):
    def unreadable(*columns: str) -> list[pl.Expr]:
        def fail(_: pl.Series) -> pl.Series:
            raise AssertionError

        return [pl.col(column).map_batches(fail, pl.String) for column in columns]

    targets = (
        frames.targets({})
        .lazy()
        .with_columns(unreadable("target", "prefix", "reference"))
    )
    samples = (
        frames.samples(["a"]).lazy().with_columns(unreadable("candidate", "prompt"))
    )
    attacks = [RECALL, TRIGRAMS]
    scores = score(frames.features(pair(0, 0, 4)).lazy(), targets, attacks)
    pl.concat(scores).write_parquet(tmp_path / "scores.parquet")
    written = pl.scan_parquet(tmp_path / "scores.parquet")
    find_unscored(written, samples, targets, attacks).sink_parquet(
        tmp_path / "unscored.parquet"
    )
    assert written.collect()["samia_v1"].to_list() == [1.0]


@pytest.mark.parametrize(
    ("features", "targets", "sentence"),
    [
        (
            frames.features(pair(0, 0, 1), pair(1, 3, 1), pair(1, 0, 1), pair(1, 3, 2)),
            frames.targets({}, {}),
            f"sample_index 3 of target {target_id(1)} twice",
        ),
        (
            frames.features(),
            frames.targets({}).with_columns(samia_v1=pl.lit(1.0)),
            "column 'samia_v1', the name of an attack",
        ),
        (
            frames.features(pair(0, 0, 1)).drop("overlap_1"),
            frames.targets({}),
            (
                "'samia_v1' reads the column 'overlap_1', which rows of the view"
                " continuation "
            ),
        ),
    ],
)
def test_tables_that_are_refused(features, targets, sentence):
    with pytest.raises(SchemaMismatchError, match=sentence):
        run(features, targets)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_score_is_never_nan_or_infinite(value):
    wrong = Attack(
        name="wrong_v1", expr=pl.lit(value), source="none", undefined="it is no number"
    )
    given = frames.features(pair(0, 0, 1)), frames.targets({})
    scores, unscored = run(*given, samples=frames.samples(["a"]), attacks=[wrong])
    assert scores["wrong_v1"].to_list() == [None]
    assert unscored["reason"].to_list() == ["it is no number"]


def test_empty_tables_give_empty_tables():
    scores, unscored = run(
        frames.features(), frames.targets(), attacks=[RECALL, TRIGRAMS]
    )
    assert scores.height == unscored.height == 0


PROBE = ("target", "probe")


def words(name: str, **options: Any) -> Attack:
    return frames.attack(name, pl.col("words_reference").sum(), **options)


def test_an_attack_on_samples_sees_the_rows_that_it_reads():
    probe = {"view": "probe"}
    features = frames.features(
        pair(0, 0, 1, words=1),
        pair(0, 0, 1, words=10, **probe),
        pair(0, 0, 1, words=100, view="probe", view_index=1),
        pair(0, 0, 1, words=1000, model="reference"),
        pair(1, 0, 1, words=2),
    )
    samples = frames.samples(
        ["a"], ["a", {"view": "probe", "sample_index": 0, "reason": "no"}], []
    )
    attacks = [words("own_v1"), words("probe_v1", reads=(PROBE,))]
    both = words("both_v1", reads=(PROBE, ("target", "continuation")))
    targets = frames.targets({}, {}, {})
    scores, unscored = run(features, targets, samples=samples, attacks=[*attacks, both])
    assert scores["own_v1"].to_list() == [1.0, 2.0, None]
    assert scores["own_v1"].dtype == pl.Float64  # of whole numbers
    assert scores["probe_v1"].to_list() == [110.0, None, None]
    assert scores["both_v1"].to_list() == [111.0, 2.0, None]
    # Of the target model, of all views
    assert scores["n_samples"].to_list() == [
        3,
        1,
        0,
    ]
    assert unscored.rows() == [
        (target_id(1), "probe_v1", "no"),
        (target_id(2), "own_v1", "no continuation was sampled"),
        *((target_id(2), each.name, each.undefined) for each in (attacks[1], both)),
    ]
    alone, _ = run(features, targets, attacks=attacks[:1])
    assert alone["own_v1"].equals(scores["own_v1"])


def test_an_attack_on_log_probabilities_sees_the_rows_that_it_reads():
    logprobs = logprob_rows.table(
        {"target_id": target_id(0), "view": view, "n_bytes": n_bytes}
        for view, n_bytes in (("text", 1), ("lowercase", 10))
    )
    attacks = [
        frames.attack(
            f"bytes_{'_'.join(views)}_v1",
            pl.col("n_bytes").sum(),
            evidence="logprobs",
            reads=tuple(("target", view) for view in views),
        )
        for views in (["text"], ["lowercase"], ["text", "lowercase"])
    ]
    empty = frames.features().lazy()
    frame = score(empty, frames.targets({}).lazy(), attacks, logprobs=logprobs.lazy())
    scores = pl.concat(frame).select(attack.name for attack in attacks)
    assert scores.rows() == [(1.0, 10.0, 11.0)]


def regrouped(
    keys: list[tuple[int, int]], at_once: int, n_targets: int
) -> list[pl.DataFrame]:
    schema = {"row": pl.UInt32, "sample_index": pl.UInt32}
    batches = [
        pl.DataFrame(keys[start : start + at_once], schema=schema, orient="row")
        for start in range(0, max(len(keys), 1), at_once)
    ]
    counts = count_rows(batches, n_targets)
    found = [*whole_targets(batches, counts, ("sample_index",))]
    assert not counts.any()
    return [batch for batch in found if batch.height]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), unique=True),
    st.integers(1, 20),
)
def test_every_row_comes_once_and_sorted(keys, at_once):
    given_keys = [batch.rows() for batch in regrouped(keys, at_once, 6)]
    assert given_keys == [sorted(batch) for batch in given_keys]
    whole = [row for batch in given_keys for row in {row for row, _ in batch}]
    assert len(whole) == len({*whole})  # no target is split
    assert sorted(key for batch in given_keys for key in batch) == sorted(keys)


CALLED = pl.col("a").map_batches(lambda series: series, return_dtype=pl.Int64).max()


@pytest.mark.parametrize(
    ("expr", "name", "sentence"),
    [
        *(
            (pl.len(), name, r"needs a lower-case name .* such as mine_v1")
            for name in ("role", "Mine_v1", "a,b_v1", "mine", "_v1", "")
        ),
        (CALLED, "mine_v1", "'mine_v1' calls a Python function"),
        (pl.col("a") * 2, "mine_v1", "'mine_v1' must aggregate to one value"),
    ],
)
def test_what_is_no_attack_is_refused(expr, name, sentence):
    with pytest.raises(SettingsError, match=sentence):
        frames.attack(name, expr)


def test_evidence_that_does_not_feed_an_attack_is_refused():
    evidence = pl.LazyFrame({"a": [1.0], "c": [1]})
    frames.attack("mine_v1", pl.col("a").max()).check(evidence)
    missing = "'mine_v1' reads the column 'b', which rows of the view .* They have a, c"
    with pytest.raises(SchemaMismatchError, match=missing):
        frames.attack("mine_v1", (pl.col("a") + pl.col("b")).max()).check(evidence)
    with pytest.raises(
        SchemaMismatchError, match=r"values of type String, not numbers"
    ):
        frames.attack("mine_v1", pl.col("a").max().cast(pl.String)).check(evidence)
