"""Controls: they have the form of the secret, and where nothing was learnt the p-value is exact."""

import re
from collections import Counter
from hashlib import sha256
from random import Random

import numpy as np
import pytest

from mia_batch.extras.secrets.controls import build_form, draw_controls, guess_kind
from mia_batch.identifiers import find_identifiers, is_card, is_iban
from mia_batch.inference.controls import rank_among_controls

KEY = "sk-" + "proj-aB3dE6gH9jK2mN5p"  # in two, so that no scanner takes it for one
FORMS = [
    ("7421 9930", "secret", r"[1-9]\d{3} [1-9]\d{3}"),
    ("0042", "secret", r"0\d{3}"),
    ("X7Q9-wz31", "secret", r"[A-Z][1-9][A-Z][1-9]-[a-z]{2}[1-9]\d"),
    ("0e2f91ab77c0", "secret", r"\d[a-f]\d[a-f]\d\d[a-f]{2}\d\d[a-f]\d"),
    (
        "550e8400-e29b-41d4-a716-446655440000",
        "secret",
        r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}",
    ),
    (KEY, "key", r"sk-proj-[a-z][A-Z][1-9][a-z][A-Z]\w{11}"),
    ("+49 30 1234567", "phone", r"\+49 30 1\d{6}"),
    ("(555) 234-5678", "phone", r"\(555\) [2-9]\d\d-[2-9]\d{3}"),
    ("4111 1111 1111 1111", "card", r"4111 11\d\d \d{4} \d{4}"),
    ("DE89 3704 0044 0532 0130 00", "iban", r"DE\d\d 3704 0\d{3} \d{4} \d{4} \d\d"),
    ("jane.roe17@example.com", "email", r"[a-z]{3,4}\.[a-z]{3,4}[1-9]\d@example\.com"),
]


@pytest.mark.parametrize(("secret", "kind", "pattern"), FORMS)
def test_controls_have_the_form_of_the_secret(secret, kind, pattern):
    assert guess_kind(secret) == kind
    controls = draw_controls(build_form(secret, kind), 40, Random(3))
    assert len({*controls} - {secret}) == 40
    for control in [secret, *controls]:
        assert re.fullmatch(pattern, control), control
        if kind != "secret":
            assert [found.kind for found in find_identifiers(control)] == [kind]
    if kind == "card":
        assert all(map(is_card, controls))
    if kind == "iban":
        assert all(map(is_iban, controls))
    # Each control could be the secret: what may stand in its place is the same
    for control in controls:
        other_form = build_form(control, kind)
        assert _list_free(other_form) == _list_free(build_form(secret, kind))


def _list_free(form):
    """What may stand where something else may, and how long the names are."""
    names = [min(max(end - start, 4), 7) for start, end in form.names]
    if names:  # of several lengths, which move what follows
        return names
    return [(place, signs) for place, signs in enumerate(form.choices) if signs[1:]]


def test_what_the_context_gives_away_stays():
    form = build_form("jane.roe17@example.com", "email", ["Jane Roe, born 1990: "])
    assert form.names == ()
    controls = draw_controls(form, 20, Random(1))
    assert all(re.fullmatch(r"jane\.roe[1-9]\d@example\.com", one) for one in controls)
    whole = build_form("jane.roe@example.com", "email", ["Jane Roe: "])
    assert not whole.is_open
    assert draw_controls(whole, 9, Random(1)) == []
    year = build_form("1990-7731", "secret", ["Born in 1990, "])
    assert {one[:5] for one in draw_controls(year, 20, Random(1))} == {"1990-"}


def test_words_are_told_from_drawn_letters():
    assert build_form("correct horse", "secret").words == ("correct", "horse")
    assert build_form("xkqjw-7731", "secret").words == ()
    assert build_form(KEY, "key").words == ()
    assert build_form("jane@example.com", "email").names == ((0, 4),)


def test_fewer_controls_where_there_are_not_as_many():
    assert sorted(draw_controls(build_form("05", "secret"), 50, Random(2))) == [
        f"0{digit}" for digit in range(10) if digit != 5
    ]


def _score(text):
    """Any score of a text, with ties and with likings as models have them."""
    return sha256(text.encode()).digest()[0] // 8 + 3 * text.count("7")


@pytest.mark.parametrize("template", ["4821 7730", "a7-Kq93", "Kim.roe21@example.org"])
def test_p_values_are_uniform_where_nothing_was_learnt(template):
    random, n_controls, n_secrets = Random(11), 9, 1500
    kind = guess_kind(template)
    form = build_form(template, kind)
    ranks: Counter[int] = Counter()
    for _ in range(n_secrets):
        # Secret and controls of one form: ties are broken by lot, to see all ranks
        (secret,) = draw_controls(form, 1, random)
        controls = draw_controls(build_form(secret, kind), n_controls, random)
        scores = [_score(text) + random.random() for text in controls]
        rank = rank_among_controls(
            _score(secret) + random.random(), np.array(scores, dtype=np.float64)
        )
        assert rank is not None
        ranks[round(rank.p_value * (n_controls + 1))] += 1
    expected = n_secrets / (n_controls + 1)
    # Of chi-square with 9 degrees of freedom the 99.99 % quantile is 33.7
    statistic = sum((ranks[i] - expected) ** 2 / expected for i in range(1, 11))
    assert statistic < 33.7


def test_rank_counts_ties_against_the_secret():
    rank = rank_among_controls(2.0, np.array([1.0, 2.0, 3.0, np.nan]))
    assert rank is not None
    assert (rank.n_controls, rank.n_as_high, rank.p_value) == (3, 2, 3 / 4)
    assert rank.exposure == pytest.approx(2 - np.log2(3))
    assert rank.smallest == 1 / 4
    assert rank_among_controls(np.nan, np.array([1.0])) is None
    assert rank_among_controls(1.0, np.array([np.nan])) is None
