"""Attacks on what a model says: by hand, and against references."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import log
from statistics import fmean, median
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.attacks import (
    defaults,
    families,
    find_unscored,
    get,
    names,
    score,
)
from mia_batch.attacks.from_samples import (
    CHOICE_LOGPROB_ATTACKS,
    MATCHED_RARITY_ATTACKS,
    PROBE_ATTACKS,
    with_expected,
)
from mia_batch.features import build_features
from mia_batch.kernels import GROUPS, RARITY_FIELDS, pair_features
from tests import frames, logprob_rows, reference_scores
from tests.reference_kernels import features as reference_features

FAMILY = [*defaults("matched")]
FAMILY += [attack.name for attack in families()["SaMIA"]]

# Reference: 4 words. Candidate 0: 5 words, of which the first 4 count when matched;
# candidate 1: 2.


def compared(targets: pl.DataFrame, candidates: Sequence[str], groups: Sequence[str]):
    options: dict[str, Any] = {
        "words": "whitespace",
        "preset": "default",
        "text_length": None,
    }
    units = frames.units(targets)
    return build_features(frames.samples(candidates), units, groups=groups, **options)


def scores(
    reference: str, candidates: Sequence[str], names: Sequence[str] = FAMILY
) -> dict[str, float | None]:
    """Scores of one target, by attack."""
    targets = frames.targets({"reference": reference})
    features = compared(targets, candidates, GROUPS)
    scored = pl.concat(
        score(features.lazy(), targets.lazy(), [get(name) for name in names])
    )
    return scored.select(names).row(0, named=True)


def test_an_empty_reference_gives_0_to_the_authors_and_null_where_matched():
    found = scores("", ["a b"])
    assert {
        found[name] for name in ("samia_v1", "samia_precision_v1", "samia_zlib_v1")
    } == {0.0}
    assert {found[name] for name in defaults("matched")} == {None}


WORDS = st.lists(st.sampled_from(["a", "b", "c", "é", "漢字"]), max_size=12).map(
    " ".join
)


@given(reference=WORDS, candidates=st.lists(WORDS, min_size=1, max_size=12))
def test_scores_lie_in_their_range_and_matched_ones_equal_their_reference(
    reference, candidates
):
    found = scores(reference, candidates)
    for name, value in found.items():
        assert value is None or 0 <= value <= (1 if "zlib" not in name else 1000)
    for name, value in reference_scores.matched_scores(reference, candidates).items():
        if reference_scores.CLASSIC_ZLIB or "zlib" not in name:
            assert found[name] == value


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("holes", [True, False])
def test_the_mean_adds_one_by_one_in_the_order_of_the_samples(engine, in_order, holes):
    """To the last bit, whatever the number of samples, the engine and the rows around them."""
    rng = np.random.default_rng(0)
    counts = [1, 2, 3, 7, 8, 9, 10, 16, 31, 64, 127, 128, 129, 1000, 100_000]
    row = np.repeat(np.arange(len(counts)), counts)
    words = rng.integers(1, 1000, row.size)
    shared = rng.integers(0, words + 1)
    pairs = pl.DataFrame({"row": row, "words_reference": words, "overlap_1": shared})
    if holes:  # every third row again, without evidence
        numbered = pairs.with_row_index("at")
        empty = numbered.gather_every(3).with_columns(words_reference=None)
        pairs = (
            pl.concat([numbered, empty], how="vertical_relaxed").sort("at").drop("at")
        )
    if not in_order:  # groups apart, each in its own order
        pairs = pairs.sort(pl.int_range(pl.len()).over("row"), maintain_order=True)
    means = (
        (pairs.lazy().set_sorted("row") if in_order else pairs.lazy())
        .group_by("row")
        .agg(mean=get("samia_v1").expr)
        .sort("row")
        .collect(engine=engine)
    )
    totals = [0.0] * len(counts)
    for at, count, of in zip(row, shared.tolist(), words.tolist(), strict=True):
        totals[at] += count / of
    assert means["mean"].to_list() == [
        total / m for total, m in zip(totals, counts, strict=True)
    ]


AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "": lambda values: sum(values) / len(values),
    "_max": max,
    "_median": median,
    "_min": min,
}
FAMILIES = ("rouge_", "ngram_coverage", "creativity", "longest_block", "near_verbatim")
CHOSEN = [name for name in names() if name.startswith(FAMILIES)]
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=25).map(
    " ".join
)


def expected(text: str, candidates: Sequence[str]) -> dict[str, float | None]:
    """Scores by the papers' formulas, from counts of the slow reference."""
    rows: list[Any] = [
        reference_features(each, text, "whitespace", GROUPS) for each in candidates
    ]
    n_reference = len(text.split())
    found: dict[str, float | None] = {}
    for kind, n in (*((str(n), n) for n in reference_scores.SIZES), ("l", 1)):
        values: dict[str, list[float]] = {"": [], "_precision": [], "_f1": []}
        for row in rows if n_reference >= n else ():
            shared = row["lcs_words" if kind == "l" else f"overlap_{n}"]
            recall = shared / (n_reference - n + 1)
            precision = shared / max(row["words_candidate"] - n + 1, 1)
            f1 = 2 * recall * precision / (recall + precision) if shared else 0.0
            for ending, value in zip(values, (recall, precision, f1), strict=True):
                values[ending].append(value)
        for ending, each in values.items():
            found[f"rouge_{kind}{ending}_v1"] = sum(each) / len(each) if each else None

    def longer(row: dict[str, int]) -> int:
        return max(row["words_candidate"], n_reference)

    terms: dict[str, Callable[[Any], float]] = {
        "ngram_coverage": lambda row: row["covered_3"] / row["words_candidate"],
        "ngram_coverage_reference": lambda row: row["covered_3"] / longer(row),
        "ngram_coverage_total": lambda row: (
            2 * row["covered_3"] / (row["words_candidate"] + longer(row))
        ),
        "creativity": lambda row: (
            sum(row[f"covered_{length}"] for length in range(2, 13))
            / row["words_candidate"]
        ),
        "longest_block": lambda row: row["longest_block_words"],
        "longest_block_chars": lambda row: row["longest_block_chars"],
        "longest_block_share": lambda row: row["longest_block_words"] / n_reference,
        "near_verbatim": lambda row: row["near_verbatim_words"] / n_reference,
    }
    for name, term in terms.items():
        for ending, aggregate in AGGREGATES.items():
            found[f"{name}{ending}_v1"] = aggregate([term(row) for row in rows])
    return found


# Columns of attacks that tell rows apart, or come from true tokens and hidden words.
COLUMNS_OF_PROMPTS = {"model", "view_index", "logprob", "true_token", "has_text"}
SAMPLED = [
    name
    for name in names()
    if get(name).evidence == "samples"
    and not COLUMNS_OF_PROMPTS.intersection(get(name).columns)
]


def test_candidates_that_are_missing_count_for_nothing():
    pairs = pl.DataFrame(
        {"candidate": [None, "a b c d x"], "reference": ["a b c d e f g"] * 2}
    )
    features = pairs.select(pair_features("candidate", "reference", groups=GROUPS))
    features = features.unnest("features").with_columns(
        n_tokens=pl.Series([0, 5], dtype=pl.UInt32)
    )
    features = features.with_columns(
        pl.Series(each.name, [None, 0.5]) for each in RARITY_FIELDS
    )
    scored = [get(name).expr.alias(name) for name in SAMPLED]
    with_missing, alone, missing = (
        rows.select(scored).row(0, named=True)
        for rows in (features, features[1:], features[:1])
    )
    assert with_missing == alone
    assert None not in alone.values()
    assert set(missing.values()) == {None}


@given(reference=TEXTS, candidates=st.lists(TEXTS, min_size=1, max_size=4))
def test_every_attack_equals_its_reference(reference, candidates):
    found, wanted = (
        scores(reference, candidates, CHOSEN),
        expected(reference, candidates),
    )
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == (
            None if value is None else pytest.approx(value, rel=1e-12)
        ), name


PROBES = [attack.name for attack in PROBE_ATTACKS]
ANSWERS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 1.0])
    ),
    min_size=1,
    max_size=6,
)


def scored(
    rows: list[dict[str, Any]],
    names: Sequence[str],
    tokens: Sequence[Mapping[str, Any]] = (),
) -> dict[str, float | None]:
    place = {"target_id": frames.target_id(0), "sample_index": 0}
    features = frames.features(*(place | {"words_candidate": 3} | row for row in rows))
    features = features.with_columns(
        pl.Series(name, [float(row.get(name, 0)) for row in rows])
        for name in ("rarity_leading", "rarity_1", "rarity_2", "similarity")
    )
    read = logprob_rows.table(
        {"target_id": frames.target_id(0), **row} for row in tokens
    )
    chosen, targets = [get(name) for name in names], frames.targets({}).lazy()
    table = pl.concat(score(features.lazy(), targets, chosen, logprobs=read.lazy()))
    return table.select(names).row(0, named=True)


def probe(index: int, model: str = "target", **numbers: Any) -> dict[str, Any]:
    place = {"model": model, "view": "probe", "view_index": index}
    return {**place, "words_reference": 3, **numbers}


@given(ANSWERS)
def test_scores_are_means_over_answers(answers):
    found = scored(
        [
            probe(index, leading_words=leading, rarity_leading=weight, rarity_1=shared)
            for index, (leading, weight, shared) in enumerate(answers)
        ],
        PROBES,
    )
    n = len(answers)
    assert found == pytest.approx(
        {
            "probe_leading_rarity_v1": sum(weight for _, weight, _ in answers) / 3 / n,
            "probe_first_word_v1": sum(leading > 0 for leading, _, _ in answers) / n,
            "probe_leading_v1": sum(leading / 3 for leading, _, _ in answers) / n,
            "probe_recall_rarity_v1": sum(shared for _, _, shared in answers) / 3 / n,
        }
    )


def test_a_text_without_an_answer_has_no_score():
    found = scored([{"view": "continuation", "words_reference": 3}], PROBES)
    assert set(found.values()) == {None}


def test_matched_attacks_weigh_continuations_by_hand():
    names = [attack.name for attack in MATCHED_RARITY_ATTACKS]
    rows = [
        {"words_reference": 4, "rarity_1": 2.0, "rarity_2": 0.9, "sample_index": 0},
        {"words_reference": 4, "rarity_1": 1.0, "rarity_2": 0.0, "sample_index": 1},
        probe(0, rarity_1=100.0),
    ]
    found = scored(rows, names)
    assert found == pytest.approx(
        {
            "samia_matched_rarity_v1": 3 / 4 / 2,
            "samia_matched_rarity_n2_v1": 0.9 / 3 / 2,
        }
    )
    assert scored([{"words_reference": 1}], names)["samia_matched_rarity_n2_v1"] is None


def test_a_reference_models_answers_are_subtracted_by_hand():
    rows = [
        probe(0, rarity_leading=6.0),
        probe(1, rarity_leading=0.0),
        probe(0, model="reference", rarity_leading=1.5),
        probe(1, model="reference", rarity_leading=1.5),
    ]
    found = scored(rows, ["probe_rarity_difference_v1", "probe_leading_rarity_v1"])
    assert found["probe_leading_rarity_v1"] == 6 / 3 / 2
    assert found["probe_rarity_difference_v1"] == 6 / 3 / 2 - 1.5 / 3
    alone = scored(rows[:2], ["probe_rarity_difference_v1"])
    assert alone["probe_rarity_difference_v1"] is None


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=5)
)
def test_log_hit_rates_are_those_of_the_definition(points):
    rows = [
        probe(index, sample_index=sample, leading_words=int(hit))
        for index, answers in enumerate(points)
        for sample, hit in enumerate(answers)
    ]
    found = scored(rows, ["probe_logprob_v1"])["probe_logprob_v1"]
    rates = [log((sum(answers) + 0.5) / (len(answers) + 1)) for answers in points]
    assert found == pytest.approx(sum(rates) / len(rates))


FLOOR = 1e-16
# Tenths: points that differ, but by next to nothing, give a line that no two programs
# agree on.
SIMILARITIES = st.integers(-10, 10).map(lambda tenths: tenths / 10)
LOGPROBS = st.floats(-20, 0, width=32)  # as tables hold them
POINTS = st.lists(
    st.tuples(SIMILARITIES, SIMILARITIES, LOGPROBS), min_size=2, max_size=6
)


def petal(points: list[tuple[float, float, float]]) -> float:
    """As the authors' code computes it: log similarities and a line by least squares."""
    own, surrogate = (
        [log(max(point[side], FLOOR)) for point in points] for side in (0, 1)
    )
    truth = [point[2] for point in points]
    if np.ptp(surrogate) == 0:
        return float(np.mean(truth))
    slope, intercept = np.polyfit(surrogate, truth, 1)
    return float(np.mean([slope * value + intercept for value in own]))


def of_points(
    points: Sequence[tuple[float, float, float]],
    name: str = "petal_v1",
    fitted: int | None = None,
) -> float | None:
    """The score where only some points have log-probabilities."""
    answers = [
        probe(index, model, similarity=point[side])
        for side, model in enumerate(("target", "reference"))
        for index, point in enumerate(points)
    ]
    tokens = [
        {
            "model": "reference",
            "view": "probe",
            "view_index": index,
            "logprob": [point[2], -1.0],
        }
        for index, point in enumerate(points[:fitted])
    ]
    return scored(answers, [name], tokens)[name]


@given(POINTS)
def test_it_is_the_line_of_least_squares(points):
    assert of_points(points) == pytest.approx(petal(points), rel=1e-6, abs=1e-6)
    own = fmean(log(max(similarity, FLOOR)) for similarity, _, _ in points)
    assert of_points(points, "petal_similarity_v1") == pytest.approx(own)


def test_points_without_a_log_probability_are_not_fitted():
    points = [(0.5, 1.0, -1.0), (0.25, 0.5, -3.0), (0.1, 0.2, -9.0)]
    slope = (-1.0 - -3.0) / (0 - log(0.5))
    wanted = -1 + slope * np.mean([log(point[0]) for point in points])
    assert of_points(points, fitted=2) == pytest.approx(wanted)


def test_hits_and_loss_add_up_by_hand():
    rows = [
        probe(0, rarity_leading=6.0),
        probe(1),
        probe(0, "reference", rarity_leading=50.0),
    ]
    tokens = [{"view": "text", "logprob": [None, -1.0, -3.0]}]
    found = scored(rows, ["probe_rarity_loss_v1"], tokens)
    assert found == {"probe_rarity_loss_v1": 2 / 2 - 4 / 2}


def test_what_is_missing_in_either_table_is_said():
    name = "probe_rarity_loss_v1"
    targets = frames.targets({}, {}, {})
    samples = frames.samples(["a"], [{"reason": "no answer"}], ["a"])
    samples = samples.with_columns(view=pl.lit("probe"))
    tokens = logprob_rows.table(
        {"target_id": frames.target_id(number), "view": "text", "reason": reason}
        for number, reason in enumerate(["no tokens", None, None])
    )
    scores = targets.select("target_id", n_samples=pl.lit(1)).with_columns(
        pl.lit(None, pl.Float64).alias(name)
    )
    found = find_unscored(
        scores.lazy(),
        samples.lazy(),
        targets.lazy(),
        [get(name)],
        logprobs=tokens.lazy(),
    ).collect()
    assert found["reason"].to_list() == ["no tokens", "no answer", get(name).undefined]


NAMES = [attack.name for attack in CHOICE_LOGPROB_ATTACKS]
ALWAYS_A = [-0.01, -6.0, -7.0, -8.0]

Orders = dict[int, list[float] | None]
"""Log-probabilities of the labels by order; None where there are none."""


def of_logprobs(
    orders: Mapping[int, Sequence[float] | None], *names: str
) -> dict[str, float | None]:
    rows = [
        {"view": "choice", "view_index": order, "logprob": logprobs}
        for order, logprobs in orders.items()
    ]
    (found,) = logprob_rows.scores(logprob_rows.table(rows), names or NAMES)
    return found


def of_answers(answers: Sequence[tuple[int, int | None]]) -> float | None:
    """``decop_v1`` of pairs of order and label."""
    frame = pl.DataFrame(answers, schema=["view_index", "choice"], orient="row")
    frame = frame.with_columns(model=pl.lit("target"), view=pl.lit("choice"))
    found: float | None = frame.select(get("decop_v1").expr).item()
    return found


def reference(orders: Mapping[int, Sequence[float] | None]) -> dict[str, float | None]:
    """The scores order by order, with nothing but loops."""
    probabilities = {}
    for order, logprobs in orders.items():
        if logprobs is not None:
            odds = np.exp(np.array(logprobs, np.float32).astype(float))
            probabilities[order] = odds / odds.sum()
    if {order % 4 for order in probabilities} != {0, 1, 2, 3}:
        return dict.fromkeys(NAMES)

    def over_labels(values: Mapping[int, float]) -> float:
        return fmean(
            fmean(value for order, value in values.items() if order % 4 == label)
            for label in range(4)
        )

    def highest(values: Mapping[int, np.ndarray]) -> float:
        return over_labels(
            {order: each.argmax() == order % 4 for order, each in values.items()}
        )

    means = [
        over_labels({order: p[i] for order, p in probabilities.items()})
        for i in range(4)
    ]
    logs = {
        order: np.array(each, np.float32)
        for order, each in orders.items()
        if each is not None
    }
    offsets = [
        over_labels({order: float(each[i]) for order, each in logs.items()})
        for i in range(4)
    ]
    return {
        "decop_log_calibrated_v1": highest(
            {order: each - offsets for order, each in logs.items()}
        ),
        "decop_calibrated_v1": highest(
            {order: p - means for order, p in probabilities.items()}
        ),
        "decop_logprob_v1": highest(probabilities),
        "decop_probability_v1": over_labels(
            {i: p[i % 4] for i, p in probabilities.items()}
        ),
    }


ROWS = st.one_of(
    st.none(), st.lists(st.floats(-9, 0, width=32), min_size=4, max_size=4)
)


@settings(max_examples=8)
@given(st.dictionaries(st.integers(0, 23), ROWS, min_size=4))
def test_scores_are_those_of_the_reference(orders: Orders):
    """Rounding may decide which of several labels is the highest."""
    found, wanted = of_logprobs(orders), reference(orders)
    close = _closest(orders) < 1e-9
    for name in NAMES if not close else ["decop_probability_v1"]:
        assert found[name] == pytest.approx(wanted[name], abs=1e-9)


def _closest(orders: Orders) -> float:
    """The least distance of two labels, calibrated or not, in any order."""
    p = np.array([np.exp(each) for each in orders.values() if each]).reshape(-1, 4)
    p /= p.sum(axis=1, keepdims=True)
    keys = np.array([order % 4 for order, each in orders.items() if each])
    gaps = [np.diff(np.sort(p, axis=1)).min(initial=1)]
    for values in (p, np.log(p)) if p.size else ():
        means = np.mean([values[keys == key].mean(axis=0) for key in {*keys}], axis=0)
        gaps.append(np.diff(np.sort(values - means, axis=1)).min(initial=1))
    return float(min(gaps))


@pytest.mark.parametrize(("n", "label"), [(4, 0), (8, 3), (24, 2)])
def test_one_that_always_gives_the_same_label_is_at_chance(n: int, label: int):
    assert of_answers([(order, label) for order in range(n)]) == 0.25
    always = ALWAYS_A[-label:] + ALWAYS_A[:-label]
    found = of_logprobs(dict.fromkeys(range(n), always))
    assert found == dict.fromkeys(NAMES, pytest.approx(0.25, abs=1e-12))


def test_a_preference_for_a_label_hides_what_the_model_knows_until_it_is_taken_off():
    known = {order: [*ALWAYS_A] for order in range(24)}
    for order, logprobs in known.items():
        logprobs[order % 4] += 0.005
    found = of_logprobs(known)
    assert found["decop_logprob_v1"] == 0.25
    assert found["decop_calibrated_v1"] == found["decop_log_calibrated_v1"] == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 23), st.one_of(st.none(), st.integers(0, 3))),
        max_size=60,
    )
)
def test_the_share_of_right_answers_is_a_mean_over_labels(
    answers: list[tuple[int, int | None]],
):
    by_label: dict[int, list[int]] = {label: [] for label in range(4)}
    for order, label in answers:
        if label is not None:
            by_label[order % 4].append(label == order % 4)
    whole = all(by_label.values())
    wanted = fmean(map(fmean, by_label.values())) if whole else None
    assert of_answers(answers) == pytest.approx(wanted)


def test_rows_of_other_views_and_models_do_not_count():
    own = {
        order: [0.0 if order % 4 == label else -9.0 for label in range(4)]
        for order in range(4)
    }
    rows = [
        {"view": "choice", "view_index": i, "logprob": each} for i, each in own.items()
    ]
    others = [
        {"model": model, "view": view, "view_index": i, "logprob": [-1.0, -2.0]}
        for (model, view), i in product(
            [("target", "text"), ("reference", "choice")], range(4)
        )
    ]
    mixed, alone = (
        logprob_rows.scores(logprob_rows.table(some), NAMES)
        for some in (rows + others, rows)
    )
    assert mixed == alone
    assert alone[0]["decop_logprob_v1"] == 1.0


# Next tokens, less what is expected of them.


def answers(hits: np.ndarray, tokens: np.ndarray) -> pl.LazyFrame:
    """Features of texts, a line each, at as many points: whether hit, and the true tokens."""
    n_texts, n_points = hits.shape
    place = pl.DataFrame({"text": np.repeat(np.arange(n_texts), n_points)})
    return place.lazy().select(
        target_id=pl.col("text").cast(pl.String).str.zfill(32),
        model=pl.lit("target"),
        view=pl.lit("token"),
        words_candidate=1,
        leading_characters=pl.Series(hits.ravel()).cast(pl.UInt32),
        characters_candidate=1,
        characters_reference=1,
        true_token=pl.Series(tokens.ravel(), dtype=pl.UInt64),
    )


def dealt(groups: np.ndarray, counted: np.ndarray) -> pl.DataFrame:
    names = [f"{text:032d}" for text in range(groups.size)]
    return pl.DataFrame({"target_id": names, "group": groups, "counted": counted})


def test_hits_less_expected_by_hand():
    """Token 1 is hit at 60 of 100 points of the one other group; token 2 is at none of them."""
    hits = np.zeros((2, 100), bool)
    hits[0, :60] = True
    tokens = np.ones((2, 100), int)
    hits[1, :2], tokens[1, 3:] = True, 2
    rows, of = answers(hits, tokens), dealt(np.array([0, 1]), np.array([True, False]))
    found = (
        with_expected(rows, of).filter(pl.col("target_id").str.ends_with("1")).collect()
    )
    # Token 1 occurs 103 times, token 2 97 times: the same octave
    share = (60 + 0.6) / (100 + 1)
    by_hand = {1: (60 + 30 * share) / 130, 2: share}
    assert dict(found.select("true_token", "expected_hits").unique().iter_rows()) == {
        token: pytest.approx(value) for token, value in by_hand.items()
    }
    own = pl.col("target_id").str.ends_with("0")
    alone = with_expected(rows, of).filter(own).collect()  # nobody else is counted
    assert alone["expected_hits"].null_count() == 100
    attack = get("token_hits_less_expected_v1")
    value = found.select(attack.expr).item()
    assert value == pytest.approx(0.02 - 0.03 * by_hand[1] - 0.97 * by_hand[2])
    assert alone.select(attack.expr).item() is None


@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    groups, n_points = rng.integers(0, 20, 40), 30
    tokens, hits = rng.geometric(0.15, (40, n_points)), rng.random((40, n_points)) < 0.4
    counted = rng.random(40) < 0.7
    found = with_expected(answers(hits, tokens), dealt(groups, counted)).collect()
    wanted = reference_scores.expected_hits(tokens, hits, groups, counted)
    assert found["expected_hits"].to_list() == pytest.approx(wanted.ravel().tolist())


@pytest.mark.parametrize(
    ("known", "least", "most"), [(0.0, 0.03, 0.055), (0.3, 0.3, 1.0)]
)
def test_p_values_hold_where_scores_rest_on_the_other_texts(known, least, most):
    """19 non-members and 10 targets, each a book of its own difficulty and words.

    Of targets that were never seen 5 % have a p-value of 0.05; of others more.
    """
    rng, n, targets, repeats = np.random.default_rng(5), 29, 10, 150
    below = []
    for _ in range(repeats):
        rare = 1000 + rng.choice(400, (n, 8))  # words of the book
        own = np.take_along_axis(rare, rng.integers(0, 8, (n, 40)), axis=1)
        tokens = np.where(rng.random((n, 40)) < 0.5, rng.geometric(0.1, (n, 40)), own)
        ease = rng.normal(0, 0.1, (n, 1)) + 0.6 * (rng.permutation(1500) / 1500)[tokens]
        ease[:targets] += known * (1 - ease[:targets])
        hits, counted = rng.random((n, 40)) < ease, np.arange(n) >= targets
        rows = with_expected(answers(hits, tokens), dealt(np.arange(n), counted))
        made = rows.group_by("target_id").agg(s=get("token_hits_less_expected_v1").expr)
        score = made.sort("target_id").collect()["s"].to_numpy()
        rank = (score[None, targets:] >= score[:targets, None]).sum(axis=1)
        below.append((1 + rank) / (n - targets + 1) <= 0.05)
    assert least < np.mean(below) < most


def test_a_hidden_word_counts_where_the_answer_has_it():
    targets = frames.targets({"reference": "Alice"})
    answers = ["It is Alice.", "Alice", "alice", "a cat"]
    features = compared(targets, answers, ["hidden"])
    assert features["has_text"].to_list() == [True, True, False, False]
    assert features.select(get("masked_hits_v1").expr).item() == 0.5
