"""The audit of unlearning: figures by hand, what it may say, and a whole study of tiny models."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.extras.study import study
from mia_batch.extras.study.min_k import build_figures, conclusions
from mia_batch.features import why_no_similarity
from tests.checkpoints import SMALLEST, TEXTS, save_checkpoint

NAMES = ["before", "after", "retrained"]


def build_scores(after_unlearning, retrained, cluster=None, **columns):
    """Texts of which some are scored as before, by one model and by the other."""
    n = len(after_unlearning)
    cluster = [str(number) for number in range(n)] if cluster is None else cluster
    return pl.DataFrame(
        {
            "cluster": cluster,
            "as_before_after": after_unlearning,
            "as_before_retrained": retrained,
            **columns,
        },
        schema_overrides={
            "as_before_after": pl.Float64,
            "as_before_retrained": pl.Float64,
        },
    ).with_columns(member=pl.lit(None, pl.Boolean))


def figures_of_texts(texts, names=NAMES):
    return build_figures({"texts": texts}, names)


def read_row(table, **columns):
    return table.filter(**columns).row(0, named=True)


def test_a_case_by_hand():
    """8 and 2 of 10: Clopper-Pearson 0.444 to 0.975 and 0.025 to 0.556, joined by their squares.

    The limits of 0.6 are 0.6 - sqrt(2) 0.356 and 0.6 + sqrt(2) 0.175.
    """
    learnt_less = build_scores(
        [1] * 8 + [0] * 2,
        [1] * 2 + [0] * 8,
        min_k_before=[-2.0, -2.5] * 5,
        min_k_after=[-3.0, -3.5, -3.2, -3.5, -3.0, -3.3, -3.0, -3.5, -3.0, -3.5],
        min_k_retrained=[-4.0, -4.5, -4.2, -4.5, -4.0, -4.3, -4.0, -4.5, -4.0, -4.5],
    )
    table = figures_of_texts(learnt_less)
    gap = read_row(table, set="all", measure="as_before", versus="retrained")
    assert gap["value"] == pytest.approx(0.6)
    assert (gap["low"], gap["high"]) == pytest.approx((0.0964, 0.8472), abs=2e-4)
    # After less before is -1 on average, retrained less before -2: half of it is gone.
    share = read_row(table, set="all", statistic="removed_share")
    assert share["value"] == pytest.approx(0.5)
    assert 0.45 < share["low"] < 0.5 < share["high"] < 0.55
    sets = {
        row["set"]: row["n"]
        for row in table.filter(measure="min_k").iter_rows(named=True)
    }
    assert sets == {"all": 10, "as before": 8, "others": 2}
    first, second = conclusions(table)
    assert (
        first
        == "6 of 10 texts are still remembered as before (95 %: 1 to 8): 8 of 10 texts"
        " are scored as before unlearning, and 2 by the retrained model, so that no"
        " more than 8 can be shown."
    )
    assert second.startswith(
        "texts, Min-20% Prob: 50% of what retraining would remove is gone"
    )


def test_without_a_retrained_model_a_score_as_before_is_no_memory():
    table = figures_of_texts(build_scores([1] * 9 + [0], [0] * 10), NAMES[:2])
    (sentence,) = conclusions(table)
    assert sentence.startswith(
        "9 of 10 texts are scored as before unlearning. Whether they are still "
    )
    assert "cannot be said without --retrained" in sentence


def test_what_cannot_be_measured_has_a_reason():
    nothing = figures_of_texts(build_scores([None] * 3, [None] * 3))
    assert [*conclusions(nothing)] == [
        "Nothing can be said of texts: no text is measured under every model."
    ]
    one_book = figures_of_texts(build_scores([1] * 9, [0] * 9, ["one book"] * 9))
    (sentence,) = conclusions(one_book)
    assert sentence.startswith(
        "Whether texts are still remembered cannot be said (an interval needs 4"
    )
    gap = read_row(one_book, versus="retrained")
    assert (gap["value"], gap["low"]) == (1, None)


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_model_that_never_learnt_them_is_rarely_said_to_remember(share, size):
    """Both models are alike; texts of a book of ``size`` are scored as before together."""
    rng = np.random.default_rng([size, int(100 * share)])
    false, n_books = 0, 40
    for _ in range(300):
        flags = rng.random((2, n_books, 1)) < share
        noisy = np.repeat(flags, size, axis=2) ^ (rng.random((2, n_books, size)) < 0.02)
        after_unlearning, retrained = noisy.reshape(2, -1).astype(float)
        cluster = [str(number // size) for number in range(n_books * size)]
        gap = read_row(
            figures_of_texts(build_scores(after_unlearning, retrained, cluster)),
            set="all",
            versus="retrained",
        )
        false += gap["low"] > 0
    assert false / 300 < 0.025 + 3 * (0.025 * 0.975 / 300) ** 0.5


@pytest.fixture(scope="module")
def inputs_path(tmp_path_factory):
    inputs_folder = tmp_path_factory.mktemp("unlearning")
    save_checkpoint(inputs_folder / "before", **SMALLEST)
    save_checkpoint(inputs_folder / "after", seed=1, initializer_range=1.0, **SMALLEST)
    texts = [" ".join(text.split()[:24]) for text in TEXTS[:6]]
    questions_column = {
        "question": [f"What is {text.split()[0]}?" for text in texts[:5]] + [None]
    }
    answers = {"answer": [" ".join(text.split()[:2]) for text in texts]}
    pl.DataFrame({"text": texts, **questions_column, **answers}).write_parquet(
        inputs_folder / "texts.parquet"
    )
    return inputs_folder


def test_a_whole_study(inputs_path, tmp_path):
    study_folder = tmp_path / "study"
    arguments = [
        "--input",
        inputs_path / "texts.parquet",
        "--before",
        inputs_path / "before",
        "--samples",
        "2",
    ]
    arguments += [
        "--model",
        inputs_path / "after",
        "--question-column",
        "question",
        "--out",
        study_folder,
    ]
    arguments += ["--engine", "transformers", "--no-report"]
    run = CliRunner()
    half = run.invoke(study, ["unlearning", *map(str, arguments)])
    assert "--question-column and --answer-column belong together" in half.output
    arguments += ["--answer-column", "answer"]
    foreseen = run.invoke(study, ["unlearning", *map(str, arguments), "--dry-run"])
    assert [
        line.split()[1] for line in foreseen.output.splitlines() if line[:4] == "run "
    ] == [*("texts-before", "texts-after", "questions-before", "questions-after")]
    assert not study_folder.exists()
    result = run.invoke(
        study, ["unlearning", *map(str, arguments)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "cannot be said without --retrained" in result.output
    texts, questions = (
        pl.read_parquet(study_folder / f"{part}.parquet")
        for part in ("texts", "questions")
    )
    assert (texts.height, questions.height) == (6, 5)
    # What the runs have: the scores whose ratio screens, and ROUGE-L as the attack of
    # that name.
    scores = pl.read_parquet(study_folder / "questions-after" / "scores.parquet")
    both_studies = questions.join(scores, on="target_id", validate="1:1")
    assert both_studies.height == 5
    assert both_studies["rouge_l_after"].to_list() == pytest.approx(
        both_studies["rouge_l_v1"].to_list()
    )
    assert (
        both_studies["min_k_after"].to_list() == both_studies["min_k_20_v1"].to_list()
    )
    ratio = (texts["min_k_after"] / texts["min_k_before"]).to_list()
    assert texts["ratio_after"].to_list() == ratio
    near = [1 / 1.15 <= share <= 1.15 for share in ratio]
    assert texts["as_before_after"].to_list() == near
    assert texts["rouge_l_before"].is_between(0, 1).all()
    assert why_no_similarity() is None
    assert texts["similarity_after"].is_between(-1, 1).all()
    table = pl.read_parquet(study_folder / "study.parquet")
    as_before = table.filter(part="texts", set="all", measure="as_before", run="after")
    assert as_before["value"].to_list() == [sum(near) / 6]
    chart = (study_folder / "study.svg").read_text("utf-8")
    assert [name in chart for name in ("texts, before: 6", "questions, after: 5")] == [
        True
    ] * 2


@pytest.mark.parametrize(
    ("after_unlearning", "first_words", "share"),
    [
        (0.5, "Texts are still remembered: 0 of 8", "0%"),
        (1.1, "Texts are still remembered, if less than before", "6%"),
        (
            12.0,
            "Unlearning went further than never having learnt the texts, and so marks",
            "121%",
        ),
        (9.9, "Nothing shows that texts are still remembered as before", "99%"),
        (10.4, "Nothing shows that texts are still remembered as before", "104%"),
    ],
)
def test_what_left_the_range_of_the_screen_is_judged_by_what_is_gone(
    after_unlearning, first_words, share
):
    """A score that was near 0 leaves that range long before the memory is gone."""
    spread = np.linspace(0, 0.1, 8)
    columns = {
        "min_k_before": -0.5 - spread,
        "min_k_after": -after_unlearning - spread[::-1],
        "min_k_retrained": -10 - spread,
    }
    first, second = conclusions(
        figures_of_texts(build_scores([0] * 8, [0] * 8, **columns))
    )
    assert first.startswith(first_words)
    assert (
        ": 0 of 8 texts are scored as before unlearning, and 0 by the retrained"
        in first
    )
    assert second.startswith(
        f"texts, Min-20% Prob: {share} of what retraining would remove is gone"
    )
