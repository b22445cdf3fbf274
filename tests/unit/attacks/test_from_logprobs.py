import math
import zlib
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch import second
from mia_batch.attacks import Attack, get, names
from mia_batch.attacks.attack import CHOICE
from mia_batch.attacks.from_logprobs import SERIES_COLUMNS, with_series
from tests import logprob_rows
from tests.logprob_rows import LISTS, SCHEMA, TUNED, second_scores
from tests.reference_scores import CLASSIC_ZLIB, likeness_of_answers

NAMES = [
    name
    for name in names()
    if get(name).evidence == "logprobs"
    and CHOICE not in get(name).reads  # see test_choices.py
]
VIEWS = sorted({view for name in NAMES for view in get(name).reads})
TARGET = ("target", "text")
REFUSED = dict.fromkeys(LISTS) | {"reason": "the text is empty"}

LOG_2 = math.log(2)

# Probabilities 1/2, 1/4, 1/8 after an unscored token; ten bytes.
TEXT: dict[str, Any] = {
    "view": "text",
    "n_bytes": 10,
    "zlib_size": 18,
    "token_ids": [5, 6, 5, 6],
    "logprob": [None, -LOG_2, -2 * LOG_2, -3 * LOG_2],
    "vocabulary_mean": [None, -1.0, -1.5, -2.5],
    "vocabulary_variance": [None, 4.0, 1.0, 0.0],
    "top_logprob": [None, -LOG_2, -LOG_2, -LOG_2 / 2],
    "rank": [None, 1, 2, 4],
    "log_inverse_frequency": [1.0, 0.01, 4.0, 9.0],
}
OTHERS: list[dict[str, Any]] = [
    {"view": "lowercase", "logprob": [None, -4 * LOG_2]},
    {"view": "repeated", "logprob": [-LOG_2, 0.0]},
    {"view": "swapped", "view_index": 0, "logprob": [None, -LOG_2, -5 * LOG_2]},
    {"view": "swapped", "view_index": 1, "logprob": [-LOG_2, -2 * LOG_2]},
    {"view": "swapped", "view_index": 2, **REFUSED},
    {"view": "nonmember_shots", "logprob": [-3 * LOG_2, -5 * LOG_2]},
    {"view": "member_shots", "logprob": [-2 * LOG_2]},
    {"model": "reference", "view": "text", "n_bytes": 10, "token_ids": [5, 6, 5, 6]}
    | {"logprob": [-LOG_2, -2 * LOG_2, -6 * LOG_2, -7 * LOG_2]},
    {"view": "neighbour", "view_index": 0, "logprob": [None, -3 * LOG_2, -5 * LOG_2]},
    {"view": "neighbour", "view_index": 1, **REFUSED},
    {"view": "neighbour", "view_index": 2, "logprob": [None, -2 * LOG_2]},
    {"view": "perturbation", "view_index": 0, "logprob": [-3 * LOG_2, -3 * LOG_2]},
    {"view": "perturbation", "view_index": 1, "logprob": [None, -5 * LOG_2]},
    {"view": "answers", "view_index": 0, "logprob": [-LOG_2, -LOG_2]}
    | {"vocabulary_mean": [-3.0, -4.0]},
    {"view": "answers", "view_index": 1, "logprob": [-LOG_2, -LOG_2, -LOG_2]}
    | {"vocabulary_mean": [-4.0, -3.0, -12.0]},
    {"view": "extraction", "logprob": [-LOG_2, 0.0], "support_mass": [-LOG_2 / 2, 0.0]}
    | {"rank": [1, 1]},
    *(
        {"view": "probe", "view_index": n, "logprob": [-n * LOG_2]}
        | {"vocabulary_mean": [-4 * LOG_2 if n < 3 else None]}
        for n in range(11)
    ),
    {"view": "probe", "view_index": 11, **REFUSED},
]
ROOT_2 = math.sqrt(2)
BY_HAND = {
    "probe_centred_v1": 3 * LOG_2,  # 4, 3 and 2
    "probe_loss_v1": -5 * LOG_2,  # of eleven points, one more was refused
    "probe_min_k_20_v1": -9.5 * LOG_2,  # 2.2 points: two
    "loss_v1": -2 * LOG_2,
    "perplexity_v1": -4.0,
    "loss_zlib_v1": -2 * LOG_2 / 18,
    "lowercase_difference_v1": 2 * LOG_2,
    "lowercase_ratio_v1": -0.5,
    "min_k_20_v1": -3 * LOG_2,  # 0.6 of a token: one
    "min_k_60_v1": -3 * LOG_2,  # 1.8 tokens: one
    "min_k_plus_plus_20_v1": -2 * LOG_2 + 1.5,  # the last token has no variance
    "min_k_plus_plus_60_v1": -2 * LOG_2 + 1.5,
    "gap_k_20_v1": -LOG_2,  # of 0 and -log 2: fewer tokens with variance than a window
    "gap_k_20_window_6_v1": -LOG_2,
    "pdr_loss_v1": -10 / 9 * LOG_2,  # 1, 2 and 3 times weights 1, 2/3 and 1/3
    "pdr_min_k_20_v1": -LOG_2,  # the last token, weight 1/3
    "pdr_min_k_plus_plus_20_v1": 2 / 3 * (-2 * LOG_2 + 1.5),
    "pac_v1": (4 + 1) / 2 * LOG_2 - 2 * LOG_2,
    "aeca_v1": (
        # 0.005, 1, 1.125
        math.sqrt((0.996666667**2 + 0.126666667**2 + 1.123333333**2) / 3)
        - LOG_2 * math.sqrt(2 / 3)
    ),
    # The first token counts 2
    "reference_difference_v1": ((-8 * LOG_2 + 16 * LOG_2) / 10),
    "reference_token_difference_v1": 2 * LOG_2,
    "reference_ratio_v1": -0.5,
    "recall_prefix_v1": 2.0,
    "con_recall_prefix_v1": (4 - 0.5 * 2) / 2,
    "repeated_difference_v1": -1.5 * LOG_2,  # a loss of log 2 / 2 behind itself
    "codec_v1": 1.0,  # -4 log 2 after the shots, -2 log 2 alone
    "neighbour_difference_v1": -2 * LOG_2 + 3 * LOG_2,
    "neighbour_ratio_v1": -2 / 3,
    "detect_gpt_v1": (-2 + 4) / ROOT_2,
    # Tokens 6 and 5, scored first as the second and third
    "dc_pdd_v1": ((0.005 + 0.01) / 2),
    "extraction_v1": -LOG_2,
    "extraction_n_50_v1": 0.0,
    "extraction_n_90_v1": -math.log(math.log(0.1) / math.log(0.5)),
    "extraction_top_k_v1": -LOG_2 / 2,
    "extraction_top_k_n_50_v1": 0.0,
    "extraction_top_k_n_99_v1": -math.log(math.log(0.01) / math.log(1 - 1 / ROOT_2)),
    "extraction_greedy_v1": 1.0,
    "extraction_run_v1": 1.0,  # ranks 1, 2, 4
    "rank_v1": -7 / 3,
    "log_rank_v1": -LOG_2,
    "top_1_share_v1": 1 / 3,
    "entropy_v1": -5 / 3,
    # (3, 4, 0) and (4, 3, 12), two tokens and three
    "self_critique_v1": (3 * 4 + 4 * 3) / (5 * 13) * 2 / 3,
    "answer_entropy_v1": -(3 + 4) / 2,
    "losses_below_1_v1": 1 / 3,  # 0.69, 1.39, 2.08
    "losses_below_2_v1": 2 / 3,
    "losses_below_3_v1": 1.0,
    "losses_below_previous_v1": 0.0,
    "loss_slope_v1": -LOG_2,
    "low_losses_from_end_40_v1": -2 / 3,  # the first of three is below 1
    # 6, 5, 6 of those with a log-probability
    "loss_by_diversity_v1": (-2 * LOG_2 / (2 / 3)),
    "loss_complexity_3_v1": -1.0,  # levels 99, 50, 0 are symbols 2, 1, 0
}


def scores(*rows, of=NAMES):
    (found,) = logprob_rows.scores(logprob_rows.table(rows), of)
    return found


def test_only_the_first_200_log_probabilities_are_compared_with_each_other():
    series = [-0.25, -3.0, -1.0, -2.0, -3.0, -0.5, -1.0, -4.0] * 25
    short = scores({"view": "text", "logprob": [None, *series]})
    long = scores({"view": "text", "logprob": [None, *series, -9.0, 0.0, -3.0]})
    for name in ("loss_complexity_3_v1", "loss_complexity_5_v1", "loss_entropy_v1"):
        assert long[name] == short[name] is not None
    assert long["loss_by_diversity_v1"] is None  # nobody knows the tokens
    assert long["low_losses_from_end_50_v1"] != short["low_losses_from_end_50_v1"]


def test_by_hand():
    found = scores(TEXT, *OTHERS)
    for name, value in BY_HAND.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-7), name


def test_each_attack_says_what_it_needs():
    for name in NAMES:
        attack = get(name)
        assert attack.reads
        assert not attack.whole_candidates
        assert set(attack.columns) <= {*SCHEMA, *SERIES_COLUMNS}
        assert attack.source.split(" (arXiv:")[0][-4:].isdecimal()
        reference = any(role == "reference" for role, _ in attack.reads)
        assert ("reference_model" in attack.settings) == reference


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_series_with_a_broken_number_is_not_compared(bad):
    found = scores({"view": "text", "logprob": [-1.0, -2.0] * 6 + [bad]})
    assert found["loss_complexity_4_v1"] is None
    assert found["loss_entropy_v1"] is None


def test_series_are_made_of_the_rows_that_attacks_read_alone():
    mine = Attack(
        name="mine_v1",
        expr=pl.col("complexity_4").filter(pl.col("view") == "lowercase").first(),
        evidence="logprobs",
        reads=(("target", "lowercase"),),
        source="none",
        undefined="never",
    )
    table = logprob_rows.table([TEXT, *OTHERS]).lazy()
    made = with_series(table, [mine]).collect()
    assert made.columns == [*SCHEMA, "complexity_4"]
    assert made.filter(pl.col("complexity_4").is_not_null())["view"].to_list() == [
        "lowercase"
    ]
    assert with_series(table, [get("loss_v1")]) is table


@pytest.mark.parametrize("missing", [None, math.inf, math.nan])
def test_a_token_that_decoding_leaves_out_gives_no_score_under_top_k(missing):
    row = {
        "view": "extraction",
        "logprob": [-1.0, -2.0],
        "support_mass": [-0.1, missing],
    }
    found = scores(row)
    assert found["extraction_v1"] == -3.0
    assert found["extraction_top_k_v1"] is None
    assert found["extraction_top_k_n_50_v1"] is None


def test_the_best_stretch_and_the_longest_recited_one():
    """60 tokens: ten of 2 nats, 49 of 1/4, one of 1/2; ranks 1 but for the ninth and the 40th."""
    logprob = [None, *[-2.0] * 10, *[-0.25] * 49, -0.5]
    rank = [None, *[1] * 8, 2, *[1] * 30, 7, *[1] * 20]
    found = scores({"view": "text", "logprob": logprob, "rank": rank})
    assert found["extraction_best_50_v1"] == -49 * 0.25 - 0.5
    assert found["extraction_run_v1"] == 30
    broken = scores(
        {"view": "text", "logprob": [*logprob[:30], None, *logprob[31:]], "rank": rank}
    )
    # 29 tokens before the gap, 30 behind it
    assert broken["extraction_best_50_v1"] is None
    assert broken["extraction_run_v1"] == 20
    recited = {"view": "text", "logprob": [0.0] * 50, "rank": [1] * 50}
    assert scores(recited)["extraction_run_v1"] == 50
    assert scores(recited)["extraction_best_50_v1"] == 0.0


@pytest.mark.parametrize("log_p", [0.0, -1e-9, -1.0, -29.9, -30.1, -700.0, -3000.0])
def test_samples_needed_from_certainty_to_what_never_happens(log_p):
    """Logarithms agree where the probability itself would be 0 or 1."""
    found = scores({"view": "extraction", "logprob": [log_p]})
    exact = float(np.float32(log_p))
    for percent in (50, 90, 99):
        reference = second.minus_log_samples(exact, percent)
        assert found[f"extraction_n_{percent}_v1"] == pytest.approx(
            reference, rel=1e-9, abs=1e-9
        )


def test_gaps_are_smoothed_over_windows():
    """Gaps of 1, 2, 9, 3, 0 and 0 deviations: windows of three have means 4, 14/3, 4 and 1."""
    row = {"view": "text", "vocabulary_variance": [None, 4.0, *[1.0] * 5]}
    row |= {"logprob": [None, -3.0, -3.0, -9.5, -4.0, -0.5, -1.0]}
    row |= {"top_logprob": [None, -1.0, -1.0, -0.5, -1.0, -0.5, -1.0]}
    found = scores(row)
    assert found["gap_k_20_v1"] == pytest.approx(-14 / 3)
    assert found["gap_k_20_window_6_v1"] == -15 / 6
    # As of an old run
    assert scores(row | {"top_logprob": None})["gap_k_20_v1"] is None


def test_models_that_cut_a_text_differently_are_compared_by_bytes_alone():
    ours = {"view": "text", "n_bytes": 4, "token_ids": [1, 2], "logprob": [-1.0, -3.0]}
    theirs = {"model": "reference", "view": "text", "n_bytes": 4}
    theirs |= {"token_ids": [7, 8, 9, 9], "logprob": [-2.0] * 4}
    found = scores(ours, theirs)
    assert found["reference_difference_v1"] == 1.0
    assert found["reference_ratio_v1"] == -0.5
    assert found["reference_token_difference_v1"] is None
    unknown = scores(ours | {"token_ids": None}, theirs)
    assert unknown["reference_token_difference_v1"] is None


def test_equal_perturbations_have_no_spread():
    rows = [
        {"view": "perturbation", "view_index": n, "logprob": [-0.1]} for n in range(7)
    ]
    assert scores(TEXT, *rows)["detect_gpt_v1"] is None
    assert scores(TEXT, *rows[:1])["detect_gpt_v1"] is None


@pytest.mark.parametrize("n_tokens", [(1, 1), (1, 7), (5, 2), (30, 30), (300, 211)])
def test_likeness_of_answers_is_that_of_the_paper(n_tokens):
    draw = Random(sum(n_tokens))
    curves = [[draw.randrange(1, 64) / 8 for _ in range(n)] for n in n_tokens]
    answers = [
        {"view": "answers", "view_index": index, "logprob": [-1.0] * len(curve)}
        | {"vocabulary_mean": [-entropy for entropy in curve]}
        for index, curve in enumerate(curves)
    ]
    (found,) = logprob_rows.scores(logprob_rows.table(answers), ["self_critique_v1"])
    assert found["self_critique_v1"] == pytest.approx(likeness_of_answers(*curves))
    same = [answers[0], answers[0] | {"view_index": 1}]
    (found,) = logprob_rows.scores(logprob_rows.table(same), ["self_critique_v1"])
    assert found["self_critique_v1"] == pytest.approx(1.0)


def test_an_answer_without_any_doubt_has_no_direction():
    sure = {"view": "answers", "logprob": [-0.0] * 3, "vocabulary_mean": [0.0] * 3}
    other = {"view": "answers", "logprob": [-1.0], "vocabulary_mean": [-1.0]}
    for pair in ((sure, other), (other, sure), (sure, sure)):
        rows = [row | {"view_index": index} for index, row in enumerate(pair)]
        assert scores(*rows)["self_critique_v1"] is None
    assert scores(other)["self_critique_v1"] is None  # the second was not read


def test_what_members_look_like_scores_higher():
    """A text learnt by heart against one that is new, all else equal."""

    def learnt(logprob, rank):
        row = TEXT | {"logprob": [None, *logprob], "rank": [None, *rank]}
        return scores(
            row
            | {
                "vocabulary_mean": [None, *logprob],
                "vocabulary_variance": [None] + [1.0] * 3,
            },
            *OTHERS,
        )

    member, other = (
        learnt([-0.1, -0.2, -0.1], [1, 1, 1]),
        learnt([-2.0, -3.0, -5.0], [3, 4, 9]),
    )
    of_text = [name for name in {*NAMES} - {*TUNED} if TARGET in get(name).reads]
    excepted = {
        "min_k_plus_plus",
        "surprising",
        "con_recall",
        "low_losses",
        "loss_entropy",
    }
    excepted.add("extraction_best")  # of 50 tokens
    for name in of_text:
        if not name.startswith(tuple(excepted)):
            assert member[name] >= other[name], name


SEVERAL = dict.fromkeys(
    ("neighbour", "swapped", "perturbation", "paraphrase", "noise"), 4
)
SEVERAL |= {"probe": 12, "answers": 2}
GRID = range(-160, 1), 8  # sums of few are exact


@st.composite
def rows(draw):
    """One text and its rows: some views absent, some refused, columns not computed."""
    found = []
    computed = {
        column for column in LISTS if column == "logprob" or draw(st.booleans())
    }
    numbers = {
        "token_ids": (range(10), None),
        "vocabulary_variance": (range(41), 8),
        "support_mass": (range(-3, 1), 8),
        "log_inverse_frequency": (range(41), 1024),
        "rank": (range(1, 50_001), None),
    }
    random = Random(draw(st.integers(0, 2**32)))  # drawing each number takes minutes
    text = "".join(random.choices("abcdé ", k=random.randint(1, 99)))
    sizes = {
        "n_bytes": len(text.encode()),
        "zlib_size": len(zlib.compress(text.encode())),
    }
    for role, view in VIEWS:
        several = SEVERAL.get(view, 4 if role == "shadow" else 1)
        for index in range(draw(st.integers(0, several))):
            row = {"model": role, "view": view, "view_index": index} | sizes
            row["trained"] = draw(st.sampled_from([None, True, False]))
            if draw(st.integers(0, 5)) == 0:
                found.append(row | REFUSED)
                continue
            n = draw(
                st.sampled_from(
                    [0, 1] if view == "probe" else [0, 1, 2, 3, 5, 8, 20, 55]
                )
            )
            unscored = draw(st.booleans())
            for column in computed:
                of, part = numbers.get(column, GRID)
                values: list[Any] = [
                    each / part if part else each for each in random.choices(of, k=n)
                ]
                if n and unscored and column != "token_ids":
                    values[0] = None
                row[column] = values
            found.append(row)
    return text, found


@settings(max_examples=12)  # planning the formulas is what takes time, not the texts
@given(targets=st.lists(rows(), min_size=6, max_size=12))
def test_every_attack_equals_its_reference(targets):
    tagged = [
        row | {"target_id": f"t{n}"} for n, (_, of) in enumerate(targets) for row in of
    ]
    frame = logprob_rows.table(tagged)
    found = logprob_rows.raw_scores(frame, NAMES).rows_by_key(
        "target_id", named=True, unique=True
    )
    known = [name for name in NAMES if CLASSIC_ZLIB or "zlib" not in name]
    for (number,), of in frame.group_by("target_id"):
        wanted = second_scores(of.to_dicts(), known, targets[int(number[1:])][0])
        for name, value in wanted.items():
            ours = found[number][name]
            if ours is not None and not math.isfinite(ours):
                ours = None  # as a run has it: a loss of 0 below the line
            approximate = (
                None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)
            )
            assert ours == approximate, name


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_rows_of_other_targets_and_their_order_change_nothing(engine):
    own = logprob_rows.table([TEXT, *OTHERS])
    other = own.with_columns(
        target_id=pl.lit("u"), logprob=pl.col("logprob").list.reverse()
    )
    alone = logprob_rows.raw_scores(own, NAMES)
    mixed = pl.concat([other, own.reverse(), own.clear()])
    together = logprob_rows.raw_scores(mixed, NAMES, engine=engine).filter(
        target_id="t"
    )
    for name in NAMES:
        if alone[name][0] is None:
            assert together[name][0] is None
        else:
            assert together[name][0] == pytest.approx(alone[name][0], rel=1e-12), name


@pytest.mark.parametrize(
    "row",
    [
        REFUSED,
        {"logprob": []},
        {"logprob": [None]},
        {"logprob": [None], "token_ids": [1]},
    ],
)
def test_without_a_scored_token_every_attack_is_null(row):
    """Raw: the expressions themselves give null, not NaN."""
    views = [{**row, "model": role, "view": view} for role, view in VIEWS]
    found = (
        logprob_rows.raw_scores(logprob_rows.table(views), NAMES)
        .drop("target_id")
        .row(0)
    )
    assert set(found) == {None}


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_broken_number_is_never_a_score(bad):
    rows = [
        {
            "model": role,
            "view": view,
            **{column: [bad, bad, -1.0] for column in LISTS[1:-1]},
        }
        for role, view in VIEWS
    ]
    values = scores(*rows).values()
    assert all(value is None or math.isfinite(value) for value in values)
    assert scores(*rows)["loss_v1"] is None
