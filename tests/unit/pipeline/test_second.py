"""The second implementation agrees with finished runs of every kind, and finds a changed number."""

import re
import shutil

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import attacks, second
from mia_batch.cli.main import command
from mia_batch.corpus import commitment, draw
from mia_batch.kernels import RarityTable
from mia_batch.second import (
    AnsweredPrompt,
    AuditedText,
    RunFiles,
    compare,
    distance,
    p_value,
    q_values,
)
from tests.checkpoints import TEXTS, save_checkpoint
from tests.runs import Finished, documents, finished, written
from tests.unit.pipeline.test_corpora import write_canaries
from tests.unit.pipeline.test_verdicts import (
    ATTACK,
    N_WORDS,
    NON_MEMBERS_KNOWN,
    Library,
)

N = 20
KINDS = (
    "texts",  # labelled, continuations
    "probes",  # labelled, next words weighed by rarity
    "views",  # both kinds of evidence of two models, texts around and before the text
    "walks",  # books at an endpoint
    "controls",  # passages at an endpoint
    "tuned",  # models that the run made
    "books",  # a recording, nothing known
    "named_run",  # attacks that are no defaults
)


def of_groups(folder):
    """Twelve books of three to six windows against ten; each book has other scores."""
    library = Library(folder)
    sizes = [3 + number % 4 for number in range(22)]
    books = [f"b{number}" for number, size in enumerate(sizes) for _ in range(size)]
    n = sum(sizes[:12])
    audited_books = library.write(
        "asked", [book < "b2" for book in books[:n]], group=books[:n]
    )
    outside = library.write("outside", [False] * (len(books) - n), group=books[n:])
    return library.audit(
        input=audited_books,
        non_members=outside,
        level="group",
        windows_per_group=3,
        seed=4,
        **NON_MEMBERS_KNOWN,
    )


def of_authors(folder):
    """Three books each by five authors, two of whom wrote a book together, against twenty."""
    library = Library(folder)
    audited_books = [f"b{number // 3:02}" for number in range(48)]
    writers = [f"Writer {number // 9}" for number in range(48)]
    writers[20] = "1, Writer; Writer 2"
    outside = [f"n{number // 3:02}" for number in range(180)]
    other_writers = [
        ["Anonymous", f"OTHER {number // 9}"][number % 20 > 2] for number in range(180)
    ]
    run = library.audit(
        input=library.write(
            "asked", [n < 12 for n in range(48)], group=audited_books, writer=writers
        ),
        non_members=library.write(
            "outside", [False] * 180, group=outside, writer=other_writers
        ),
        author_column="writer",
        level="collection",
        **NON_MEMBERS_KNOWN,
    )
    together = (
        run["verdicts"].filter(level="collection", attack=ATTACK).drop_nulls("p_value")
    )
    assert together.select("method", "n_null").row(0) == (
        "authors_permutation_exact",
        20,
    )
    return run


def of_labels(folder):
    """Labelled texts of a recording, some of one document."""
    library = Library(folder)
    labels = [number % 2 == 0 for number in range(40)]
    names = [f"d{number // 2}" for number in range(40)]
    return library.audit(
        input=library.write("asked", labels, label=labels, group=names)
    )


def of_non_members(folder):
    """Texts of unknown membership against texts known to be outside."""
    library = Library(folder)
    return library.audit(
        input=library.write("asked", [number < 8 for number in range(24)]),
        non_members=library.write("outside", [False] * 30),
        attacks="samia_matched_v1,samia_zlib_v1,samia_precision_n2_v1,rouge_2_v1",
        **NON_MEMBERS_KNOWN,
    )


def of_weights(folder, **level):
    """Texts that have one word more, not equally often in both sets; none is remembered."""
    library = Library(folder)

    def put(name, n, share):
        texts = []
        for also in np.random.default_rng(1).permutation(n) < n * share:
            words = library.text(remembered=False).split()
            if also:
                words.insert(1, "also")
                library.record(words, 0.2)
            texts.append(" ".join(words))
        books = (
            {"group": [f"{name}{number // 2}" for number in range(n)]} if level else {}
        )
        return library.put(name, texts, **books)

    share = 0.65 if level else 0.8  # groups differ more than their texts
    audited_path, outside = put("asked", 80, share), put("outside", 160, 0.4)
    return library.audit(
        input=audited_path,
        non_members=outside,
        attacks=ATTACK,
        **NON_MEMBERS_KNOWN,
        **level,
    )


def of_weighted_groups(folder):
    return of_weights(folder, level="group", windows_per_group=2)


def of_lots(folder):
    """Groups by the median of their windows, where equal scores are parted by lot."""
    library = Library(folder)
    audited_groups, outside = ([f"{name}{n // 3}" for n in range(60)] for name in "ab")
    return library.audit(
        input=library.write(
            "asked", [n < 8 for n in range(24)], group=audited_groups[:24]
        ),
        non_members=library.write("outside", [False] * 60, group=outside),
        level="group",
        ties="random",
        statistic="median",
        adjustment="by",
        **NON_MEMBERS_KNOWN,
    )


def of_lengths(folder):
    library = Library(folder)
    audited_path = library.write("asked", [number < 8 for number in range(24)])
    outside = library.write("outside", [False] * 60)
    return library.audit(
        input=audited_path,
        non_members=outside,
        length_edges="10,25",
        ties="random",
        **NON_MEMBERS_KNOWN,
    )


def of_canaries(folder):
    library, sets = Library(folder), []
    for number in range(3):
        texts = [
            [f"{number}.{number_in_set}.{word}" for word in range(N_WORDS)]
            for number_in_set in range(5)
        ]
        sets.append((f"set {number}", [" ".join(set_words) for set_words in texts]))
        published = draw(commitment(*sets[-1]), 5, 7)
        for number_in_set, set_words in enumerate(texts):
            library.record(set_words, 1 if number_in_set == published else 0.4)
    canaries = write_canaries(folder / "canaries.jsonl", *sets)
    return library.audit(input=library.write("asked", [False] * 3), canaries=canaries)


def of_rounds(folder):
    """Groups that are asked until they are decided, by words that the first round counts."""
    library = Library(folder)
    names = [f"book {number // 4:02}" for number in range(45 * 4)]
    return library.audit(
        input=library.write("asked", [n < 8 for n in range(24)], group=names[:24]),
        non_members=library.write("outside", [False] * 156, group=names[24:]),
        attacks="samia_matched_rarity_v1",
        level="group",
        stop_when_decided=True,
        q=0.2,
        **NON_MEMBERS_KNOWN,
    )


MADE = [
    *(of_authors, of_labels, of_non_members, of_weights, of_weighted_groups),
    *(of_lots, of_lengths, of_canaries, of_rounds),
]
FAMILIES = (
    *(
        "Next tokens",
        "Probes, drawn answers",
        "SaMIA, weighed by rarity",
        "PETAL",
        "DE-COP",
    ),
    *(
        "Masked words",
        "N-gram coverage",
        "Verbatim blocks",
        "ROUGE",
        "Log-probabilities at points",
    ),
    *(
        "DE-COP from log-probabilities",
        "Extraction",
        "Swapped words",
        "Token frequencies",
    ),
    *("Shots before the text", "Shapes of series of losses"),
)
NAMED = [attack.name for name in FAMILIES for attack in attacks.families()[name]]
NAMED.append("informia_v1")


def of_named(folder, checkpoint):
    """Attacks that are no defaults: swapped words, paraphrases to choose from, hidden words."""
    three = [
        [" ".join(TEXTS[30 + position].split()[:40]) for position in (n, n + 1, n + 2)]
        for n in range(6)
    ]
    corpus = documents(6).with_columns(paraphrases=pl.Series(three))
    shots = pl.DataFrame(
        {"text": [" ".join(text.split()[:9]) for text in TEXTS[20:24]]}
    )
    return {
        "input": written(folder, corpus),
        "model": str(checkpoint),
        "reference_model": str(save_checkpoint(folder / "reference", seed=1)),
        "frequencies_from": written(folder, documents(), "frequencies"),
        "nonmember_shots": written(folder, shots, "shots"),
        "shots": 1,
        "paraphrases_column": "paraphrases",
        "attacks": ",".join(
            attack_name
            for attack_name in NAMED
            if attack_name != "con_recall_prefix_v1"
        ),
        "samples": 8,
        "token_points": 24,
        "extraction_tokens": 6,
        "top_k": 0,
        "engine": "transformers",
        "probes": 4,
        "choice_orders": 4,
        "report": False,
    }


@pytest.fixture(scope="session")
def named_run(checkpoint, shared_folder) -> Finished:
    return finished(shared_folder, "named", lambda folder: of_named(folder, checkpoint))


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return of_groups(tmp_path_factory.mktemp("groups"))


@pytest.fixture(scope="module", params=[None, *MADE])
def group_run(request, groups, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("second")) if request.param else groups


def count_agreed(folder):
    """Compare drawn rows; return how many were equal, after everything was."""
    lines, is_equal = compare(folder, N)
    assert is_equal, "\n".join(lines)
    assert lines[-2] == "the root is equal"
    equal, n_drawn = re.findall(r"^(\d+) of (\d+) drawn rows are equal", lines[-1])[0]
    assert equal == n_drawn
    return int(equal)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_numbers_of_finished_runs_are_recomputed(kind, request):
    run = request.getfixturevalue(kind).run
    assert count_agreed(run.folder) == N


def test_p_and_q_values_of_recordings_are_recomputed(group_run):
    tested = (
        group_run["verdicts"].filter(pl.col("estimate").is_null()).drop_nulls("p_value")
    )
    assert {"target", "group"} & {*tested["level"]}
    assert count_agreed(group_run.folder) == N
    lines, _ = compare(group_run.folder, 10_000)  # all there is
    assert not [line for line in lines if " here" in line]


@pytest.mark.parametrize(
    ("table", "column", "level"),
    [
        ("scores", "samia_matched_v1", None),
        ("verdicts", "p_value", "target"),
        ("verdicts", "p_value", "group"),
        ("verdicts", "q_value", "group"),
        ("verdicts", "p_value", "collection"),
    ],
)
def test_a_changed_number_is_named_with_both_values(
    groups, tmp_path, table, column, level
):
    folder = shutil.copytree(groups.folder, tmp_path / "run")
    path = folder / f"{table}.parquet"
    rows = pl.read_parquet(path).with_row_index("row")
    level_of = pl.lit(value=True) if level is None else pl.col("level") == level
    row, value_before = rows.filter(pl.col(column).is_between(0.02, 0.9), level_of)[
        "row", column
    ].row(0)
    changed_value = (
        pl.when(pl.col("row") == row).then(value_before + 1e-6).otherwise(column)
    )
    rows.with_columns(changed_value.alias(column)).drop("row").write_parquet(path)
    lines, is_equal = compare(folder, 10_000)
    assert not is_equal
    assert "the root is ANOTHER" in lines
    column_said = "score" if level is None else column
    assert any(
        f"{column_said} is {value_before + 1e-6} in the run, {value_before}"[:-6]
        in line
        for line in lines
    )


def test_changed_figures_and_what_only_weights_change_are_named(
    texts, tmp_path, monkeypatch
):
    folder = shutil.copytree(texts.run.folder, tmp_path / "run")
    path, column = folder / "metrics.parquet", pl.col("value")
    rows = pl.read_parquet(path)
    is_area = (pl.col("metric") == "roc_auc") & (pl.col("slice") == "all")
    rows.with_columns(
        pl.when(is_area).then(column + 1e-6).otherwise(column)
    ).write_parquet(path)
    lines, is_equal = compare(folder, 10_000)
    assert not is_equal
    assert (
        len([line for line in lines if "of roc_auc labelled texts: value is" in line])
        >= 15
    )
    (tmp_path / "weights").mkdir()
    run = of_weights(tmp_path / "weights")
    monkeypatch.setattr(
        second, "fitted_odds", lambda x, label, audited_rows: np.ones(len(audited_rows))
    )
    second.compute_odds.cache_clear()
    lines, is_equal = compare(run.folder, 400)
    assert not is_equal
    assert len([line for line in lines if "p_value is" in line]) > 70


@pytest.mark.parametrize(
    ("kind", "attack", "name", "wrong"),
    [
        ("named_run", "pac", "polarized", lambda logprobs: second.lowest(30, logprobs)),
        ("named_run", "aeca", "without_nan", lambda values: values / 2),
        ("named_run", "creativity", "ngrams", lambda words, n: [0] * len(words)),
        ("named_run", "rouge_l_f1", "share", lambda part, _: part),
        ("named_run", "petal", "log", lambda value: value),
        ("tuned", "lira_online_fixed", "phi", lambda logprob: logprob),
        ("tuned", "lira_offline_fixed", "mean", max),
        ("tuned", "rmia", "mean", max),
        (
            "tuned",
            "wbc",
            "sliding_window_view",
            lambda values, n: values[: n + 1][None],
        ),
        ("tuned", "ez_mia", "differ", lambda gains: np.maximum(gains, 0.1)),
        ("named_run", "informia", "_NEAR_1", -5.0),
        ("tuned", "spv_semantic", "exp", lambda value: value),
        ("views", "min_k_20", "lowest", lambda percent, values: min(values)),
        ("views", "gap_k_20", "sliding_window_view", lambda values, n: values[None]),
        ("texts", "samia_matched", "ngrams", lambda words, n: [0] * len(words)),
    ],
)
def test_a_wrong_formula_is_found(kind, attack, name, wrong, request, monkeypatch):
    run, attack = RunFiles(request.getfixturevalue(kind).run.folder), f"{attack}_v1"
    scores = run.scores(attack)
    scored = {key: value for key, value in scores.items() if value is not None}
    # Where nothing matches, a wrong formula gives 0 as well
    largest = sorted(scored, key=lambda key: abs(scored[key]), reverse=True)[:6]

    def far():
        return [
            distance(
                second.recompute_score(run, attack, {"key": key})["score"], scored[key]
            )
            for key in largest
        ]

    assert max(far()) < 1e-9
    monkeypatch.setattr(second, name, wrong)
    assert max(far()) > 1e-6


class TextByHand(AuditedText):
    """A text of which models said this: answers, rows of log-probabilities."""

    def __init__(self, choices=(), rows=(), shadows=()):
        self.choices, self.logprob_rows, self.means = choices, rows, dict(shadows)

    def answers(self, view="continuation", model="target"):
        return [
            AnsweredPrompt(number, text, "", [], [])
            for number, text in enumerate(self.choices)
        ]

    def rows(self, table, model, view):
        if model == "shadow":
            kinds = [
                (kind == "in", mean)
                for kind, means in self.means.items()
                for mean in means
            ]
            return [{"logprob": [mean], "trained": trained} for trained, mean in kinds]
        return [
            {"view_index": number, "logprob": logprobs}
            for number, logprobs in enumerate(self.logprob_rows)
        ]


def score_by_hand(name, **parts_of_text):
    return second.compute_value(TextByHand(**parts_of_text), name)


def test_choices_by_hand():
    answers_said = ("A.", "B", "A dog is C", "D'Artagnan: D", "B")
    assert score_by_hand("decop", choices=answers_said) == (1 / 2 + 1 + 1 + 1) / 4
    assert score_by_hand("decop", choices=("A", "B or C", "C", "D")) is None
    # The model likes A. Means of labels are 0.55, 0.175, 0.125 and 0.15; in the second
    # row 0.6 is still more above its mean than 0.2, but as a ratio it is less.
    p = [
        [0.7, 0.1, 0.1, 0.1],
        [0.6, 0.2, 0.1, 0.1],
        [0.5, 0.2, 0.2, 0.1],
        [0.4, 0.2, 0.1, 0.3],
    ]
    rows = np.log(p).tolist()
    assert score_by_hand("decop_logprob", rows=rows) == 1 / 4
    assert score_by_hand("decop_probability", rows=rows) == pytest.approx(
        (0.7 + 0.2 + 0.2 + 0.3) / 4
    )
    assert score_by_hand("decop_calibrated", rows=rows) == 3 / 4
    assert score_by_hand("decop_log_calibrated", rows=rows) == 1


def test_shadow_models_and_weights_by_hand(monkeypatch):
    monkeypatch.setattr(second, "phi", np.asarray)
    shadow_parts = {"rows": [[3.0]], "shadows": {"in": [1.0, 3.0], "out": [-2.0, 2.0]}}
    # in: mean 2, variance 1; out: mean 0, variance 4
    assert score_by_hand("lira_online", **shadow_parts) == pytest.approx(
        9 / 8 - 1 / 2 + np.log(2)
    )
    assert score_by_hand("lira_offline", **shadow_parts) == 3 / 2
    nulls = [((0.1, 0), 0.5), ((0.9, 0), 0.25), ((np.inf, 0), 2.0)]
    assert p_value((0.9, 0), nulls, 0.75) == (0.75 + 2.25) / (0.75 + 2.75)


def test_series_by_hand():
    rows = [[-0.5, -2.0, -0.1, -3.0]]
    # 1 of 2 low ones in the last 3
    assert score_by_hand("low_losses_from_end_50", rows=rows) == -3 / 4
    assert score_by_hand("low_losses_from_end_40", rows=rows) == -1 / 4
    assert score_by_hand("losses_below_previous", rows=rows) == 1 / 3
    levels = [[-99.0, -66.0, -65.5, -33.0, -32.5, 0.0]]  # 0, 33, 34, 66, 67 and 99
    assert (
        score_by_hand("loss_complexity_3", rows=levels) == -4 / 6
    )  # 0, 01, 1, 2 and a 2
    assert score_by_hand("loss_entropy", rows=rows) is None
    assert score_by_hand("loss_entropy", rows=[[-1.0, -2.0] * 20]) < 0.01
    assert (
        score_by_hand("extraction_n_50", rows=[[np.log(0.5)]]) == 0
    )  # one sample suffices
    assert score_by_hand("extraction_n_99", rows=[[np.log(0.5)]]) == pytest.approx(
        -np.log(np.log2(100))
    )


def test_every_attack_is_known_but_for_those_that_say_why():
    recomputed = {f"{name}_v1" for name in second.SCORES}
    assert {*attacks.names()} - recomputed == {"combination_v1"}
    assert recomputed < {*attacks.names()}
    assert {*second.WHY_NOT} == {
        *("combination_v1", "dataset_inference_v1", "similarity", "others", "own"),
        *("rarity_from", "words", "zlib"),
    }


def test_what_is_not_known_is_said_and_no_agreement(books, tmp_path):
    folder = shutil.copytree(books.run.folder, tmp_path / "run")
    text = (folder / "run.json").read_text()
    names = books.run.manifest.made["scores"]["attacks"]
    for name in names:
        text = text.replace(f'"{name}"', f'"other_{name}"')
    (folder / "run.json").write_text(text)
    lines, is_equal = compare(folder, N)
    own_lines = [
        f"not recomputed: other_{name} ({second.WHY_NOT['own']})" for name in names
    ]
    assert own_lines == lines[: len(names)]
    assert lines[-1].startswith("0 of 0 drawn rows are equal")
    assert not is_equal


def test_the_command_says_so_and_fails_where_a_number_is_another(
    books, tmp_path, monkeypatch
):
    folder = str(books.run.folder)
    result = CliRunner().invoke(
        command, ["verify", folder, "--second", "20"], standalone_mode=False
    )
    assert result.return_value == 0
    assert "20 of 20 drawn rows are equal (largest relative difference" in result.output
    monkeypatch.setattr("mia_batch.second.zlib_size", lambda words: len([*words]) + 1)
    again = ["verify", folder, "--second", "500", "--seed", "1"]
    result = CliRunner().invoke(command, again, standalone_mode=False)
    assert result.return_value == 1
    assert re.search(
        r"samia_matched_zlib\w*_v1 of text \w+: score is [\d.]+ in the run",
        result.output,
    )


def test_q_values_by_hand():
    p = [0.01, 0.04, 0.03, None]
    # That of 0.03 is that of 0.04, which is lower.
    assert q_values(p, "bh") == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 1])
    assert q_values(p, "by")[0] == pytest.approx(0.04 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    # One of two tests beats all of 9 nulls: at q = 0.2 it is listed whatever the draw.
    tests = [second.WeightedTest(2.0, 0.1, 1.0), second.WeightedTest(0.0, 0.9, 1.0)]
    assert second.q_values_of_weighted(tests, 2, 9.0, 0.2, 0.9) == [0.2, 1.0]


@pytest.mark.parametrize("rule", ["whitespace", "rouge"])
def test_ngrams_are_counted_in_the_places_of_the_run(rule):
    text = "Né à l'Est, a b a b; c"
    rows = pl.DataFrame({"candidate": [text], "row": [0]})
    table = RarityTable.count([rows], n_groups=1, words=rule)
    words_of_text = second.split_words(text, rule)
    places = {
        second.find_place(ngram)
        for n in (1, 2, 3)
        for ngram in second.ngrams(words_of_text, n)
    }
    assert {*table.rows("target", "probe")["entry"]} == places
