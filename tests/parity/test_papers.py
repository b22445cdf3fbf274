"""The SaMIA authors' procedure on real text equals its reference implementation to the last bit."""

import random

import polars as pl
import pytest

from mia_batch.attacks import families, score
from mia_batch.features import build_features
from mia_batch.schemas import Documents
from mia_batch.targets import Windowing, build_targets
from tests import frames, reference_scores
from tests.texts import king_james_passages

SAMIA = [attack.name for attack in families()["SaMIA"]]
ATTACKS = [
    name for name in SAMIA if reference_scores.CLASSIC_ZLIB or "zlib" not in name
]


N_TEXTS = 400


def regurgitation(text: str) -> str:
    words = text.split()
    return "".join(f" {word}" for word in words[int(len(words) * 0.5) :])


def continuations(
    texts: list[str], number: int, draw: random.Random
) -> list[dict[str, str]]:
    """Ten outputs such as a model gives, with all that makes splitting and cutting hard."""
    text = texts[number]
    prefix, rest = reference_scores.authors_prefix(text), regurgitation(text)
    words = rest.split()
    other = draw.choice(texts).split()
    mixed = draw.choices(words + other, k=draw.randrange(1, 400))
    gaps = draw.choices([" ", "  ", "\n", "\n\n", "\t", " \n "], k=len(words))
    return [
        {"candidate": rest},
        {"candidate": f"{rest} {' '.join(other)}"},
        {"candidate": " " + " ".join(draw.sample(words, len(words)))},
        {"candidate": " " + " ".join(mixed)},
        {
            "candidate": "".join(
                f"{gap}{word}" for gap, word in zip(gaps, words, strict=True)
            )
        },
        {"candidate": ""},
        {"candidate": "\n\n" + " ".join(other)},
        {"candidate": f" {words[0]}" * 200},
        # The tokenizer's own spaces
        {
            "candidate": rest,
            "prompt": prefix.replace(" ", "  ", 3),
        },
        # Two words fewer
        {
            "candidate": rest.upper(),
            "prompt": prefix.replace(" ", "\n", 2),
        },
    ]


def outputs(text: str, samples: list[dict[str, str]]) -> list[str]:
    prefix = reference_scores.authors_prefix(text)
    return [sample.get("prompt", prefix) + sample["candidate"] for sample in samples]


def authors_table(
    texts: list[str], sampled: list[list[dict[str, str]]], text_length: int | None
) -> pl.DataFrame:
    """Scores of the texts as a run with the preset ``samia`` makes them."""
    documents = frames.table(Documents, [{"text": text} for text in texts])
    windowing = Windowing(preset="samia", text_length=text_length)
    targets = build_targets(documents.lazy(), windowing).collect()
    number = pl.col("target_id").str.to_integer(base=16, dtype=pl.UInt32)
    samples = frames.samples(*sampled).with_columns(
        target_id=pl.lit(targets["target_id"]).gather(number)
    )
    features = build_features(
        samples,
        frames.units(targets),
        words="space",
        preset="samia",
        text_length=text_length,
        groups=("unigrams", "ngrams", "zlib"),
    )
    attacks = families()["SaMIA"]
    return pl.concat(score(features.lazy(), targets.lazy(), attacks))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("length", [64, 128])
@pytest.mark.parametrize("nominal", [True, False])
def test_real_texts(length, nominal, every):
    texts = king_james_passages(length, n=N_TEXTS)[::every]
    draw = random.Random(length)
    sampled = [continuations(texts, number, draw) for number in range(len(texts))]
    scored = authors_table(texts, sampled, length if nominal else None)
    assert scored["n_samples"].to_list() == [10] * len(texts)
    found = scored.select(ATTACKS).rows(named=True)
    for text, text_samples, row in zip(texts, sampled, found, strict=True):
        n_words = length if nominal else len(text.split())
        expected = reference_scores.authors_scores(
            text, outputs(text, text_samples), n_words
        )
        assert row == {name: expected[name] for name in ATTACKS}


def test_a_perfect_regurgitation_scores_exactly_one_at_n_1():
    text = king_james_passages(64, n=1)[0]
    scored = authors_table([text], [[{"candidate": regurgitation(text)}] * 3], None)
    n_words = len(text.split())
    n_reference = n_words - round(n_words * 0.5)
    assert scored["samia_v1"].item() == 1.0
    assert scored["samia_n2_v1"].item() == pytest.approx(
        (n_reference - 1) / n_reference
    )
