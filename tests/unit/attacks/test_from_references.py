"""Attacks on tuned models: SPV-MIA, base models token by token, shadow models."""

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.attacks import find_unscored, get, score
from mia_batch.errors import SchemaMismatchError
from tests import frames, logprob_rows
from tests.frames import target_id
from tests.logprob_rows import TUNED, second_scores

L = math.log(2)


def text(
    logprob: list[float | None], model: str = "target", **more: Any
) -> dict[str, Any]:
    row = {"model": model, "view": "text", "logprob": logprob}
    return row | {"token_ids": [*range(len(logprob))]} | more


def around(
    view: str, *halvings: float | None, model: str = "target"
) -> list[dict[str, Any]]:
    """Texts of a view with probabilities 1/2, 1/4, .. by number; None where one was refused."""
    return [
        {
            "model": model,
            "view": view,
            "view_index": n,
            "logprob": times and [None, -times * L],
        }
        for n, times in enumerate(halvings)
    ]


def shadow(
    number: int, logprob: float | None, *, trained: bool | None
) -> dict[str, Any]:
    numbers = None if logprob is None else [None, logprob]
    return {"model": "shadow", "view": "text", "view_index": number} | {
        "logprob": numbers,
        "trained": trained,
    }


def scores(*rows: dict[str, Any], of=tuple(TUNED)):
    (found,) = logprob_rows.scores(logprob_rows.table(rows), of)
    return found


SPV = [
    text([None, -2 * L]),  # 1/4
    text([None, -3 * L], "self_prompt"),  # 1/8
    text([None, -3.5 * L], "candidate"),
    *around("paraphrase", 3, 4, 1, None, 1, 2),  # the second pair is not whole
    *around("paraphrase", 2, 2, model="self_prompt"),
    *around("noise", None, 1, 2, 2),
    *around("noise", 3, 4, model="self_prompt"),
    *around("neighbour", 4, None, 2),
    *around("neighbour", 2, model="self_prompt"),
    *around("perturbation", 1, model="self_prompt"),
    *around("perturbation", 3, 3, 4),
]
SPV_BY_HAND = {
    "spv_semantic_v1": 1 / 4 - (1 / 8 + 1 / 16 + 1 / 2 + 1 / 4) / 4 + (1 / 4 - 1 / 8),
    "spv_embedding_v1": 1 / 4 - 1 / 4 + (3 / 32 - 1 / 8),
    "spv_neighbour_v1": 1 / 4 - 5 / 32 + (1 / 4 - 1 / 8),
    "spv_released_v1": 1 / 4 - 5 / 48 + (1 / 2 - 1 / 8),
    "spv_semantic_uncalibrated_v1": 1 / 64,
    "spv_embedding_uncalibrated_v1": 0.0,
    "spv_neighbour_uncalibrated_v1": 3 / 32,
    "self_prompt_difference_v1": L,
    "candidate_difference_v1": 1.5 * L,
}


def test_variation_by_hand():
    found = scores(*SPV, of=SPV_BY_HAND)
    for name, value in SPV_BY_HAND.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-7), name


def test_halves_of_pairs_are_no_pairs():
    """Of two texts side by side, 2n and 2n + 1 are a pair, not 2n - 1 and 2n."""
    rows = [text([None, -2 * L]), *around("paraphrase", None, 1, 1, None, 1)]
    assert scores(*rows)["spv_semantic_uncalibrated_v1"] is None
    left_out = [
        row for row in around("paraphrase", 1, 1, 2, 2, 3) if row["view_index"] != 1
    ]
    found = scores(text([None, -2 * L]), *left_out)
    assert found["spv_semantic_uncalibrated_v1"] == pytest.approx(0.0, abs=1e-7)


def test_long_texts_have_a_probability():
    """Their joint probability is 0 in floating point."""
    rows = [text([None, *[-3.0] * 5000]), *around("paraphrase", 8, 8)]
    found = scores(*rows)["spv_semantic_uncalibrated_v1"]
    assert found == pytest.approx(math.exp(-3) - 1 / 256)


def gains(*gain: float | None, rank: list[int | None] | None = None, **more: Any):
    """Rows of target and base model, whose log-probabilities differ by so much."""
    ours = [None if each is None else -10 + each for each in gain]
    return [text(ours, rank=rank, **more), text([-10.0] * len(gain), "reference")]


@pytest.mark.parametrize(
    ("gain", "rank", "wanted"),
    [
        ((None, 3, -1, 5), [None, 2, 7, 1], 3 / 4),  # the last guess is right
        ((2, -1, -5), [2, 2, 2], 2 / 8),
        ((2, 1), [2, 2], 1.0),  # nothing lost
        ((2, -1), [1, 1], 1.0),  # nothing wrong
        ((-2, -1), [2, 3], 0.0),
        ((0, 0, 5), [2, 3, 1], None),  # they agree
        ((2, -1), [None, None], None),
        ((2, -1), None, None),
        ((2, -6), [2, None], 1.0),
        ((None,), [None], None),
    ],
)
def test_the_error_zone_by_hand(gain, rank, wanted):
    assert scores(*gains(*gain, rank=rank))["ez_mia_v1"] == wanted


def test_informia_by_hand():
    """Twice as likely as under the other model: log 2, and KL((1/4, 3/4) || (1/2, 1/2))."""
    ours, theirs = text([None, -L, 0.0]), text([-L, -2 * L, 0.0], "reference")
    divergence = math.log(1 / 2) / 4 + 3 / 4 * math.log(3 / 2)
    found = scores(ours, theirs, of=("informia_v1",))["informia_v1"]
    # Certain under both: 0
    assert found == pytest.approx((L + divergence) / 2, abs=1e-7)


def test_rounding_is_no_difference():
    """A model against itself gains and loses a little on each token, at random."""
    rounded = [
        text([-1.0, -1.000001, -2.0], rank=[2] * 3),
        text([-1.000001, -1.0, -2.0], "reference"),
    ]
    assert scores(*rounded, of=("ez_mia_v1", "wbc_v1")) == {
        "ez_mia_v1": None,
        "wbc_v1": None,
    }
    assert scores(*gains(0, 0, 0, rank=[2] * 3))["wbc_v1"] is None


def test_tokens_are_compared_only_where_both_models_cut_alike():
    ours, theirs = gains(2, -1, 3, rank=[2, 2, 2])
    others = (
        theirs | {"token_ids": [7, 8, 9]},
        theirs | {"token_ids": [0, 1], "logprob": [-1.0, -1.0]},
        theirs | {"token_ids": None},
        theirs | {"logprob": None},
    )
    names = ("ez_mia_v1", "wbc_v1")
    for other in others:
        assert scores(ours, other, of=names) == dict.fromkeys(names)
    others_there = [text([-1.0] * 3, model) for model in ("self_prompt", "candidate")]
    assert scores(ours, theirs, *others_there, of=names) == scores(
        ours, theirs, of=names
    )
    assert scores(ours, theirs, of=names)["ez_mia_v1"] == 5 / 6


SHADOWS = [
    text([None, -L]),  # odds 1
    shadow(0, math.log(0.6), trained=True),
    shadow(1, math.log(0.4), trained=True),
    shadow(2, math.log(0.1), trained=False),
    shadow(3, math.log(0.3), trained=False),
    shadow(4, math.log(0.9), trained=None),  # nobody knows
    shadow(5, None, trained=True),  # refused
]


def test_equal_shadow_models_have_no_spread():
    rows = [text([None, -1.0]), *(shadow(n, -0.1, trained=n < 3) for n in range(6))]
    found = scores(*rows)
    assert found["lira_online_v1"] is found["lira_offline_v1"] is None
    assert found["lira_online_fixed_v1"] == pytest.approx(0.0, abs=1e-9)
    assert found["lira_offline_fixed_v1"] < 0


@pytest.mark.parametrize("certain", [0.0, -1e-12, -1e-8])
def test_a_text_known_by_heart_has_finite_odds(certain):
    """Beyond what float32 tells from 1, all are alike; none is NaN, infinite or last."""
    rows = [text([None, certain]), *SHADOWS[1:], shadow(9, certain, trained=True)]
    found, known = scores(*rows), scores(text([None, -1e-6]), *SHADOWS[1:])
    assert (
        found["lira_offline_v1"]
        == scores(text([None, 0.0]), *SHADOWS[1:])["lira_offline_v1"]
    )
    assert found["lira_offline_v1"] > known["lira_offline_v1"]
    assert None not in (found["lira_online_v1"], found["rmia_v1"])


def test_members_score_higher_under_every_attack():
    """The same rows but for the target's log-probability of the text."""
    others_there = [
        row
        for row in (*SPV, *SHADOWS)
        if row["view"] != "text" or row["model"] == "shadow"
    ]
    others = zip(
        ("reference", "self_prompt", "candidate"), (-1.0, -2.0, -3.0), strict=True
    )
    others_there += [text([None, logprob, -0.7], model) for model, logprob in others]
    member, other = (
        scores(text([None, logprob, logprob], rank=[None, 2, 3]), *others_there)
        for logprob in (-0.75, -3.0)
    )
    assert [name for name in TUNED if not member[name] > other[name]] == []


GRID = st.integers(-80, 0).map(lambda n: n / 8)


@st.composite
def rows(draw):
    """Rows of one target that are there for the most part, so that scores are."""
    n = draw(st.integers(1, 45))

    def numbers():
        return draw(st.lists(GRID, min_size=n, max_size=n))

    found = [
        text(numbers(), model)
        for model in ("target", "reference", "self_prompt", "candidate")
        if draw(st.integers(0, 7))
    ]
    if found and draw(st.integers(0, 7)):
        found[0]["rank"] = draw(
            st.lists(st.sampled_from([1, 2, 9]), min_size=n, max_size=n)
        )
    for row in found:
        if draw(st.integers(0, 3)) == 0:
            row["logprob"][0] = None
    for model in ("target", "self_prompt"):
        for view in ("paraphrase", "noise", "neighbour", "perturbation"):
            indices = draw(st.sets(st.integers(0, 7)))
            found += [
                {"model": model, "view": view, "view_index": each}
                | {"logprob": draw(st.none() | st.lists(st.none() | GRID, max_size=3))}
                for each in indices
            ]
    known = st.sampled_from([True, False, True, False, None])
    found += [
        shadow(each, draw(st.none() | GRID), trained=draw(known))
        for each in range(draw(st.integers(0, 8)))
    ]
    return draw(st.permutations(found))


@settings(max_examples=8)
@given(targets=st.lists(rows(), min_size=4, max_size=16))
def test_every_attack_equals_its_reference(targets):
    tagged = [
        row | {"target_id": f"t{number}"}
        for number, of in enumerate(targets)
        for row in of
    ]
    frame = logprob_rows.table(tagged)
    raw = logprob_rows.raw_scores(frame, TUNED)
    for (number,), of in frame.group_by("target_id"):
        (found,) = raw.filter(target_id=number).to_dicts()
        for name, wanted in second_scores(of.to_dicts(), TUNED).items():
            approximate = (
                None if wanted is None else pytest.approx(wanted, rel=1e-8, abs=1e-8)
            )
            assert found[name] == approximate, name


def run(*rows: dict[str, Any], names=("lira_online_v1", "rmia_offline_v1", "loss_v1")):
    """Scores and reasons as a run has them, of one target."""
    tagged = [row | {"target_id": target_id(0)} for row in rows]
    attacks, targets = [get(name) for name in names], frames.targets({})
    table = logprob_rows.table(tagged).lazy()
    found = pl.concat(
        score(frames.features().lazy(), targets.lazy(), attacks, logprobs=table)
    )
    why = find_unscored(
        found.lazy(), frames.samples().lazy(), targets.lazy(), attacks, logprobs=table
    )
    return (
        found.select(names).row(0, named=True),
        why.collect().select("attack", "reason").rows(),
    )


def as_recorded(row: dict[str, Any]) -> dict[str, Any]:
    """The row as it stands in a run: of a model with a number."""
    if row["model"] != "shadow":
        return row
    return row | {"model": f"shadow-{row['view_index']}", "view_index": 0}


@pytest.mark.parametrize("turn", [1, -1])
def test_shadow_models_of_a_run_are_one_model(turn):
    recorded = [as_recorded(row) for row in SHADOWS][::turn]
    found, why = run(*recorded)
    assert found == scores(*SHADOWS, of=tuple(found))
    assert why == []
    alone, _ = run(*recorded, names=("loss_v1",))
    assert alone["loss_v1"] == found["loss_v1"]


def test_a_shadow_model_that_is_there_twice_is_refused():
    recorded = [as_recorded(row) for row in SHADOWS]
    with pytest.raises(
        SchemaMismatchError, match="model shadow, view text, view_index 3 of"
    ):
        run(*recorded, as_recorded(SHADOWS[4]))


def test_the_reason_is_that_of_the_shadow_model():
    recorded = [as_recorded(row) for row in SHADOWS[:3]]
    found, why = run(*recorded)
    assert found["rmia_offline_v1"] is None
    assert dict(why)["rmia_offline_v1"].endswith(
        "no shadow model that was not tuned on the text has numbers of it"
    )
    refused = as_recorded(shadow(7, None, trained=False)) | {
        "reason": "the text is too long"
    }
    assert dict(run(*recorded, refused)[1])["rmia_offline_v1"] == "the text is too long"
