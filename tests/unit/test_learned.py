"""An attack that is learnt on other models: what it may know, and how its lead is measured."""

import numpy as np
import pytest
from benches.learned_fit import CLASSIFIERS, TOKEN_FIGURES, Asked, learn, measure_lead

from mia_batch.stats.intervals import auc_difference, roc_curve

N_TEXTS, N_TOKENS = 80, 12


def asked_model(seed: int, gain: float = 1.5) -> Asked:
    """Make up a model that has gained on the tokens of members."""
    draw = np.random.default_rng(seed)
    is_member = draw.permutation(np.arange(N_TEXTS) % 2 == 0)
    tokens = draw.normal(size=(N_TEXTS, len(TOKEN_FIGURES), N_TOKENS))
    tokens[is_member, -1] += gain
    return Asked(
        family=str(seed),
        name=str(seed),
        pool=str(seed),
        is_member=is_member,
        documents=[None] * N_TEXTS,
        scores={"a_v1": draw.normal(size=N_TEXTS) + is_member},
        figures={
            "text_mean": tokens[:, 0].mean(1),
            "gain_mean": tokens[:, -1].mean(1),
        },
        tokens=[*tokens],
    )


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_members_of_an_unseen_model_are_found_without_its_labels(kind):
    score = learn(kind, [asked_model(seed) for seed in range(4)], with_base=True)
    unseen = asked_model(9)
    scores = score(unseen)
    assert roc_curve(unseen.is_member, scores).area > 0.95
    relabelled = unseen._replace(is_member=~unseen.is_member)
    assert np.array_equal(score(relabelled), scores)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_without_a_base_no_gain_is_read(kind):
    score = learn(kind, [asked_model(seed) for seed in range(4)], with_base=False)
    unseen = asked_model(9)
    tokens = [numbers.copy() for numbers in unseen.tokens]
    for numbers in tokens:
        numbers[TOKEN_FIGURES.index("base") :] = np.nan
    figures = {"text_mean": unseen.figures["text_mean"]}
    alone = unseen._replace(tokens=tokens, figures=figures)
    assert np.array_equal(score(alone), score(unseen))


def test_labels_that_are_dealt_anew_stay_within_their_model():
    models = [asked_model(seed) for seed in range(2)]
    scores = [
        learn(
            "logistic regression",
            models,
            with_base=True,
            shuffle=np.random.default_rng(seed),
        )(models[0])
        for seed in range(2)
    ]
    assert not np.allclose(scores[0], scores[1])
    assert models[0].is_member.sum() == N_TEXTS // 2


def test_the_lead_of_one_model_is_that_of_delong():
    model = asked_model(0)
    other = np.random.default_rng(1).normal(size=N_TEXTS) + 0.5 * model.is_member
    lead = measure_lead([model], [model.scores["a_v1"]], [other])
    expected = auc_difference(model.is_member, model.scores["a_v1"], other)
    assert expected.interval is not None
    assert lead["lead"] == pytest.approx(expected.value)
    assert lead["low"] == pytest.approx(expected.interval.low, abs=1e-4)
    assert lead["high"] == pytest.approx(expected.interval.high, abs=1e-4)


def test_models_of_one_pool_give_no_more_texts():
    model = asked_model(0)
    other = np.random.default_rng(1).normal(size=N_TEXTS)
    once = measure_lead([model], [model.scores["a_v1"]], [other])
    twice = measure_lead([model] * 2, [model.scores["a_v1"]] * 2, [other] * 2)
    assert twice == pytest.approx(once)
    apart = [model, model._replace(pool="other")]
    of_two_pools = measure_lead(apart, [model.scores["a_v1"]] * 2, [other] * 2)
    width = once["high"] - once["low"]
    assert of_two_pools["high"] - of_two_pools["low"] == pytest.approx(width / 2**0.5)
