"""Sentences, from findings as checks make them and from rows of tables."""

from dataclasses import replace

import polars as pl
import pytest

from mia_batch.diagnostics.preflight import check_targets, uneven_findings
from mia_batch.inference.comparison import CollectionTest
from mia_batch.inference.findings import (
    earlier_findings,
    finding_rows,
    gate_findings,
    plan_findings,
    preregister,
    reported_findings,
)
from mia_batch.inference.sets import DatasetInference
from mia_batch.inference.verdicts import placebo_findings, power_findings, verdicts
from mia_batch.report.sentences import (
    CHECKS,
    RunResults,
    checks,
    copies_sentence,
    describe_excluded,
    duplicates_sentence,
    earlier_sentences,
    exchangeability_sentence,
    gate_sentence,
    label_sentence,
    labelled_sentences,
    one_sided_sentence,
    placebo_sentence,
    plan_sentence,
    power_sentences,
    preflight_sentences,
    set_sentences,
    uneven_sentence,
    unlabelled_sentences,
    weights_sentence,
    wrong_labels_sentence,
)
from mia_batch.schemas import Metrics, Verdicts
from tests.frames import table as typed
from tests.unit.inference.scored import plan, rows, table

WORDS = [f"w{i}" for i in range(40)]


def found_in(*texts):
    """Findings about rows of text, member and group."""
    schema = {"target": pl.String, "member": pl.Boolean, "group": pl.String}
    frame = pl.DataFrame(texts, schema, orient="row").with_row_index("target_id")
    frame = frame.with_columns(
        pl.col("target_id").cast(pl.String),
        role=pl.lit("target"),
        n_windows=pl.lit(1, pl.UInt32),
    )
    return check_targets(frame.lazy(), seed=0).findings


DUPLICATES = [
    ("Once W0, w1\nw2. " + " ".join(WORDS[3:13]), True, None),
    (" ".join(WORDS[:12]), True, None),
    (" ".join(WORDS[20:34]), True, None),
    ("says: " + " ".join(WORDS[:14]) + " and so on for words and words", False, None),
    ("nothing of the kind at all in these nine words", False, None),
]


@pytest.mark.parametrize(
    ("texts", "subject", "sentences"),
    [
        (
            DUPLICATES,
            "members",
            [
                "Near-duplicates (a run of 13 words, or 70% of the runs of 8 words,"
                " stands in the other set): 2 of 3 members, 66.7%, 1 of 2 non-members,"
                " 50.0%; for example 0 has words of 3."
            ],
        ),
        (DUPLICATES, "targets", []),
        ([("one two", True, None), ("three four", False, None)], "members", []),
    ],
)
def test_duplicates_of_both_classes_are_counted(texts, subject, sentences):
    assert [*duplicates_sentence(found_in(*texts), subject)] == sentences


@pytest.mark.parametrize(("n_texts", "n_copies"), [(100, 0), (300, 2), (2000, 20)])
def test_many_copies_are_warned_of(n_texts, n_copies):
    texts = ["same"] * n_copies + [f"text {row}" for row in range(n_texts - n_copies)]
    findings = found_in(*((text, None, f"g{row}") for row, text in enumerate(texts)))
    sentence = "".join(copies_sentence(findings))
    assert sentence.startswith("20 of 2,000 texts stand in another group") == (
        n_copies == 20
    )
    assert bool(sentence) == (n_copies == 20)


def test_a_run_that_was_stopped_before_its_plan_is_said_to_be_so():
    plans = {"a": ("loss_v1", "target"), "b": ("unknown", "unknown")}
    earlier_runs = {
        name: {"primary": primary, "level": level}
        for name, (primary, level) in plans.items()
    }
    (sentence,) = earlier_sentences(earlier_findings(earlier_runs))
    assert (
        ": a (primary loss_v1, target), b (stopped before its plan was made). The best"
        in sentence
    )
    assert "q-values of this attempt are multiplied by" in sentence
    (uncompared,) = earlier_sentences(earlier_findings(earlier_runs), compares=False)
    assert uncompared.endswith("The best of several runs looks better than it is.")


def test_texts_of_both_labels_are_said_to_be_wrong():
    texts = [("one text", True, None), ("one text", False, None), ("two", True, None)]
    texts += [("two", True, None), ("three", False, None)]
    doubled, *copies = copies_sentence(found_in(*texts))
    assert doubled.startswith(
        "1 text is labelled member in one row and non-member in another"
    )
    assert copies[0].startswith("4 of 5 texts stand in another group")
    assert len([*copies_sentence(found_in(*texts[1:]))]) == 1


def uneven(n, unscored, reason=None, kind=None):
    """What is said of n members, then as many non-members; rows without a score, by attack."""
    scores = pl.LazyFrame(
        {
            "target_id": [str(row) for row in range(2 * n)],
            "role": ["target"] * 2 * n,
            "group": pl.Series([None] * 2 * n, dtype=pl.String),
            "member": [row < n for row in range(2 * n)],
        }
        | {
            name: pl.Series(
                [None if row < n_unscored else 1.0 for row in range(2 * n)],
                dtype=pl.Float64,
            )
            for name, n_unscored in unscored.items()
        }
    )
    reasons = pl.LazyFrame(
        [(str(row), "a_v1", reason) for row in range(n) if reason],
        dict.fromkeys(("target_id", "attack", "reason"), pl.String),
        orient="row",
    )
    answers = [
        {"subject": "continuation", "statistic": name, "value": 9}
        for name in (kind, "cut")
    ]
    findings = [uneven_findings(scores, list(unscored), reasons)]
    (sentence,) = uneven_sentence(
        pl.concat([*findings, finding_rows("answers", answers if kind else [])])
    )
    return sentence


def test_uneven_scores_name_classes_and_their_reason():
    assert (
        "in one class: for 70 of 1,000 members (7.0%; mostly: the reference has no"
        " words) and 0 of 1,000 non-members (0.0%). AUC and other metrics then describe"
        " a selected subset" in uneven(1000, {"a_v1": 70}, "the reference has no words")
    )
    # Answers that would be the same again are not offered for another try.
    assert "memory. Leave" in uneven(1000, {"a_v1": 70}, kind="filtered")
    assert "memory. Ask again for what failed" in uneven(
        1000, {"a_v1": 70}, kind="failed"
    )
    unscored = dict.fromkeys(("a_v1", "b_v1", "c_v1", "d_v1", "e_v1"), 20)
    sentence = uneven(20, unscored | {"f_v1": 18, "g_v1": 18})
    assert sentence.startswith(
        "Scores by a_v1, b_v1, c_v1 and 2 more are missing more often in one"
    )
    assert "one class: for 20 of 20 members (100.0%) and" in sentence
    assert " Uneven, too: f_v1, g_v1. AUC " in sentence


def test_what_a_comparison_excludes():
    assert describe_excluded(0.58) == "AUC at most 0.58"
    assert (
        describe_excluded(0.997)
        == describe_excluded(None)
        == "too few texts to exclude any AUC"
    )


SEPARABLE = {"value": 0.99, "p_value": 0.005, "high": 1.0, "verdict": "separable"}
UNDECIDED = {"value": 0.5, "p_value": 0.7, "high": 0.71, "verdict": "undecided"}
ALIKE = {"value": 0.5, "p_value": 0.7, "high": 0.56, "verdict": "not separable"}
UNKNOWN = {"reason": "each class needs 5 groups; a text without a group is one"}
HOLDS = "What follows holds only if training is their only difference."


def blind(row, subject):
    strongest = (
        [{"statistic": "strongest", "verdict": "blind_year_v1"}]
        if "value" in row
        else []
    )
    baseline_rows = [{"statistic": "roc_auc"} | row, *strongest]
    return finding_rows(
        "blind_baseline",
        [{"subject": subject} | row_of_subject for row_of_subject in baseline_rows],
    )


@pytest.mark.parametrize(
    ("row", "verdict", "sentence"),
    [
        (
            SEPARABLE,
            "withheld",
            "(AUC 0.99 by blind_year_v1, p = 0.005), so a high score",
        ),
        (
            UNDECIDED,
            "doubtful",
            f"undecided (an AUC up to 0.71 is not excluded). {HOLDS}",
        ),
        (
            UNKNOWN,
            "doubtful",
            (
                "texts (each class needs 5 groups; a text without a group is one)."
                f" {HOLDS}"
            ),
        ),
        (ALIKE, "open", None),
    ],
)
def test_how_unlike_targets_and_nulls_are(row, verdict, sentence):
    findings = blind(row, "targets")
    gate = gate_findings(findings, exploratory=False)
    assert gate["verdict"].to_list() == [verdict]
    sentences = [*gate_sentence(pl.concat([findings, gate]))]
    assert len(sentences) == bool(sentence)
    assert (sentence or "") in "".join(sentences)
    if verdict == "withheld":
        assert (
            "p-values, lists, bounds and estimates are withheld. Give" in sentences[0]
        )


def test_of_alike_sets_it_is_said_what_is_excluded():
    (sentence,) = exchangeability_sentence(blind(ALIKE, "targets"))
    assert "an AUC above 0.56 is ruled out with 95 % confidence" in sentence


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            SEPARABLE,
            "by blind_year_v1, p = 0.005): attack figures are no evidence of memory.",
        ),
        (
            UNDECIDED,
            (
                "up to 0.71 is not excluded). Judge an attack by how far its AUC is"
                " above that of"
            ),
        ),
        (
            UNKNOWN,
            (
                "(each class needs 5 groups; a text without a group is one): attack"
                " figures alone are"
            ),
        ),
        (
            ALIKE,
            "look alike to classifiers that never see the model (AUC at most 0.56).",
        ),
    ],
)
def test_what_labels_are_worth_is_said_before_the_model_is_asked_too(row, words):
    findings = blind(row, "members")
    (sentence,) = label_sentence(findings)
    assert words in sentence
    assert [*preflight_sentences(findings)] == [sentence]


def combination(verdict):
    counts = {"n_members": 1200.0, "n_others": 30.0}.items()
    values = [{"statistic": name, "value": n, "verdict": verdict} for name, n in counts]
    return finding_rows("combination", values)


INFERRED = DatasetInference(
    n_learned=40,
    n_tested=(21, 19),
    test=CollectionTest(25.0, 0.0123, "permutation_of_9999"),
    paper_p_value=1e-5,
    weights={"loss_v1": 0.5},
)
CODEC = [
    {"subject": name, "statistic": "share", "value": value, "low": 0.1, "high": 0.75}
    for name, value in (("targets", 0.5), ("non-members", 0.25))
]


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (
            combination("calibration"),
            "from 1,200 calibration members and 30 calibration non-mem",
        ),
        (
            combination("all"),
            "learned from 1,200 known members and 30 other texts, for each text",
        ),
        (
            combination("too_few"),
            "combination_v1 has no scores: there are texts of fewer than 10",
        ),
        (
            INFERRED.findings(),
            (
                "learned on 40 groups, tested on 21 others against 19 outside the"
                " training data): p = 0.0123, exploratory; by the paper's own form,"
                " which takes texts of a group for independent, p = 1e-05. Both"
            ),
        ),
        (
            DatasetInference(n_learned=9, reason="there is none").findings(),
            "All attacks together (dataset inference): no p-value (there is none).",
        ),
        (
            finding_rows("codec", CODEC),
            (
                "(CoDeC): 50% of the targets (10% to 75%) and 25% of the non-members"
                " (10% to 75%), 95"
            ),
        ),
        (
            finding_rows(
                "codec", [row | {"value": None, "reason": "-"} for row in CODEC]
            ),
            None,
        ),
    ],
)
def test_what_all_scores_show_is_said_with_what_it_rests_on(findings, words):
    sentences = [*set_sentences(findings)]
    assert len(sentences) == bool(words)
    assert (words or "") in "".join(sentences)


NULLS = rows("non_member", [0.1 * index for index in range(9)])
BOOKS = [rows("target", [n / 10] * 2, document_id=f"b{n}") for n in (9, 8, 0)]
TOGETHER = "All groups together, by a_v1: "


@pytest.mark.parametrize(
    ("parts", "changes", "words_by_line"),
    [
        (
            [*BOOKS, rows("non_member", [0.0] * 39)],
            {"level": "group", "windows_per_group": 1, "q": 0.1},
            {0: "2 of 3 groups are reported at q = 0.1 ", 1: "Reported: b9, b8."},
        ),
        (
            [rows("target", [0.95, 0.05]), NULLS],  # each is a group
            {"level": "group", "q": 0.2},
            {0: "1 of 2 groups are reported at q = 0.2 ", -1: "The null: known."},
        ),
        (
            [rows("target", [0.5, 0.6], group="b"), NULLS],
            {"level": "group", "windows_per_group": 3},
            {
                0: (
                    "None of 1 groups is reported at q = 0.05 (a_v1,"
                    " Benjamini-Hochberg, against 0 independent units outside the"
                    " training data)"
                ),
                1: (
                    "1 group has no p-value, mostly because the group has 2 of 3"
                    " windows."
                ),
            },
        ),
        (
            [rows("target", [0.95]), NULLS],
            {"level": "collection", "null_set": "new."},
            {0: f"{TOGETHER}p = 0.1 (permutation_exact).", 1: "The null: new."},
        ),
        (
            [rows("target", [0.95]), NULLS],
            {"level": "collection", "windows_per_group": 2},
            {0: f"{TOGETHER}no p-value (no null group has 2 windows)."},
        ),
        (
            [
                rows("target", [0.9, 0.8], group="b"),
                rows("non_member", [0.1], group="c"),
            ],
            {},
            {
                1: (
                    f"{TOGETHER}p = 0.5 (permutation_exact; exploratory: the answer that"
                    " was planned is one for each text, not one for all)."
                )
            },
        ),
        (
            [rows("target", [0.9], n_words=5), rows("target", [None, 0.2]), NULLS],
            {"length_edges": (50,)},
            {
                1: "1 target has no p-value, mostly because the target has no score.",
                2: "1 target has nothing to be compared with and cannot be reported.",
            },
        ),
        (
            [rows("target", [5.0]), rows("non_member", [0.0] * 999)],
            {"q": 0.001},
            {0: ". On average at most 0.1 % of such a list are false."},
        ),
    ],
)
def test_what_is_asked_for_has_an_answer_or_a_reason(parts, changes, words_by_line):
    planned = plan(**changes)
    all_verdicts = pl.concat(verdicts(table(*parts).lazy(), ["a_v1"], planned)).lazy()
    lines = [
        *unlabelled_sentences(
            all_verdicts, reported_findings(all_verdicts, planned), planned
        )
    ]
    assert {
        line_number: words in lines[line_number]
        for line_number, words in words_by_line.items()
    } == dict.fromkeys(words_by_line, True)


def test_every_number_of_a_report_is_a_finding():
    all_verdicts = pl.concat(
        verdicts(table(rows("target", [0.95, None]), NULLS).lazy(), ["a_v1"], plan())
    )
    findings = reported_findings(all_verdicts.lazy(), plan())
    assert findings["subject"].unique().to_list() == ["target"]
    counts = {"n_tests": 2, "n_reported": 0, "smallest_q": 0.2, "n_null": 9}
    counts |= {"n_without_null": 0, "n_without_p": 1, "q": 0.05}
    assert dict(findings.select("statistic", "value").iter_rows()) == counts
    assert findings.filter(statistic="n_without_p")["reason"].to_list() == [
        "the target has no score"
    ]
    assert findings.filter(statistic="q")["verdict"].to_list() == ["bh"]
    assert reported_findings(all_verdicts.lazy(), plan(level="collection")).is_empty()


def power(n_targets, n_null, suffix=None, **changes):
    parts = ((role, n) for role, n in (("target", n_targets), ("non_member", n_null)))
    texts = [
        (
            rows(role, [0] * 4, group=f"{role} {index}{suffix}")
            if suffix
            else rows(role, [0])
        )
        for role, n in parts
        for index in range(n)
    ]
    return list(power_sentences(power_findings(table(*texts).lazy(), plan(**changes))))


GROUPS, COLLECTION = {"level": "group"}, {"level": "collection"}


@pytest.mark.parametrize(
    ("power_arguments", "changes", "sentence"),
    [
        (
            (27, 25, ".epub"),
            GROUPS,
            "25 comparison books single books can be named only if 21 of",
        ),
        (
            (27, 25, ".epub"),
            GROUPS,
            "name five of them, give at least 107, or ask --level coll",
        ),
        (
            (1000, 300),
            {},
            "only if 67 of your 1,000 stand out; to name five of them, give at lea",
        ),
        (
            (50, 18),
            GROUPS,
            "none of your 50 documents can be named at q = 0.05, whatever the sco",
        ),
        (
            (20, 199),
            {"q": 0.1},
            "texts a single one of your 20 texts can be named, if it stands",
        ),
        (
            (9, 100),
            {"length_edges": (50,)},
            "With at most 100 comparison texts of one length sing",
        ),
        (
            (9, 100),
            {"length_edges": (50,)},
            "to name one of them, give at least 179 of each len",
        ),
        (
            (1, 2, "!"),
            GROUPS,
            "your group cannot be named at q = 0.05, whatever the scores; to na",
        ),
        (
            (3, 30),
            COLLECTION,
            "p-value of your 3 documents together can be 0.00018 at best.",
        ),
        (
            (2, 3),
            COLLECTION,
            "With 3 comparison documents nothing can be shown at 0.05, for the p",
        ),
        (
            (2, 3),
            COLLECTION,
            "of your 2 documents together can be 0.1 at best: give at least 5.",
        ),
        (
            (2, 3, "!"),
            GROUPS | {"windows_per_group": 5},
            "None of your 2 groups can be compared:",
        ),
    ],
)
def test_what_can_be_shown_at_best_is_said_first(power_arguments, changes, sentence):
    assert sentence in power(*power_arguments, **changes)[0]


def test_what_standing_out_means_and_what_a_bound_needs_is_said_next():
    _, stands, bound = power(27, 25, ".txt", level="group")
    assert (
        "its p-value is then 0.038. The named ones form a list at q = 0.05"
        " (Benjamini-Ho" in stands
    )
    assert (
        bound
        == "If 6 of your 27 books score higher than every comparison book, at least one"
        " of them stands out beyond chance (95 % confidence)."
    )
    assert power(1, 0) == []


RECORDED_PLAN = {"samples": 5, "input": "1f", "non_member": "2e"}
OTHER_PLAN = {"samples": 6, "input": "1f", "calibration": "3d"}
LATER = "These answers are exploratory: scores had been made before"
PLANNED = (
    f"{LATER} they were asked for. The plan made before is in run.json (primary attack"
    " a_v1)."
)


@pytest.mark.parametrize(
    ("rests_on", "recorded", "changes", "n_changed", "sentence"),
    [
        (RECORDED_PLAN, RECORDED_PLAN, {}, 0, None),
        (
            OTHER_PLAN,
            RECORDED_PLAN,
            {},
            3,
            f"{PLANNED} Changed since: calibration, non_member, samples.",
        ),
        (RECORDED_PLAN, RECORDED_PLAN, {"primary": "b_v1"}, 0, PLANNED),
        (RECORDED_PLAN, None, {}, None, f"{LATER} any plan was recorded."),
    ],
)
def test_answers_that_were_not_planned_are_exploratory(
    rests_on, recorded, changes, n_changed, sentence
):
    findings = plan_findings(
        plan(**changes), preregister(plan(), recorded, ["a_v1"]), rests_on
    )
    assert findings["value"].to_list() == [n_changed] + [None] * (n_changed or 0)
    assert next(plan_sentence(findings), None) == sentence


def of_few(at_least, of_top, noun="document", n=4):
    """What is said of books that score n, n - 1, ..., the first named b0."""
    book = [rows("target", [n - k] * 2, document_id=f"b{k}") for k in range(n)]
    all_verdicts = pl.concat(verdicts(table(*book, NULLS).lazy(), ["a_v1"], plan()))
    numbers = {
        "n_null": 1040,
        "confidence": 0.95,
        "at_least": at_least,
        "of_top": of_top,
    }
    top = [
        {"subject": noun, "statistic": name, "value": n} for name, n in numbers.items()
    ]
    lines = unlabelled_sentences(all_verdicts.lazy(), finding_rows("top", top), plan())
    return "".join(line for line in lines if "highest-scoring" in line)


def test_so_many_of_the_highest_are_named():
    assert (
        of_few(2, 4)
        == "At least 2 of the 4 highest-scoring documents stand out beyond chance from"
        " 1,040 documents outside the training data (95 % confidence, a_v1): b0, b1,"
        " b2, b3. The bound does not say which 2 they are."
    )
    names_end = "b9, b10, b11 and 2 more. The bound does not say which 2 they are."
    assert of_few(2, 14, n=14).endswith(names_end)
    assert of_few(1, 2).startswith(
        "At least 1 of the 2 highest-scoring documents stands out"
    )
    assert of_few(3, 3).startswith("All 3 highest-scoring documents stand out")
    assert of_few(1, 1).startswith("The highest-scoring document stands out")
    assert of_few(3, 3, "text").endswith("(95 % confidence, a_v1).")
    assert not of_few(0, None)


@pytest.mark.parametrize(
    ("verdict", "method"), [("as_planned", ""), ("exploratory", "; exploratory")]
)
def test_all_attacks_together_have_one_sentence(verdict, method):
    all_verdicts = pl.concat(
        verdicts(table(rows("target", [0.1]), NULLS).lazy(), ["a_v1"], plan())
    ).lazy()
    largest = {
        "subject": "b_v1",
        "statistic": "largest",
        "p_value": 0.004,
        "verdict": verdict,
    }
    count = {"subject": "document", "statistic": "n_attacks", "value": 9}
    lines = unlabelled_sentences(
        all_verdicts, finding_rows("max_t", [largest, count]), plan()
    )
    assert (
        next(lines)
        == f"All 9 attacks together (largest rank sum, whole documents permuted{method}):"
        " p = 0.004, strongest: b_v1."
    )


SAME_TEST = "The same test on the reference model"
ONE_OF_FOUR = "reports 1 of 4 targets (smallest q 0.4)"
PLACEBOS = {
    "as_many": (
        SAME_TEST,
        ": what is found on the audited model is no evidence of its memory.",
    ),
    "fewer": (f"{SAME_TEST} (which cannot know these texts)", "."),
}


# Fmt: skip
@pytest.mark.parametrize(
    ("scores", "placebo", "changes", "verdict", "comparison"),
    [
        ([0.95] * 4, [0] * 4, {}, "fewer", "reports 0 of 4 targets (smallest q 1)"),
        (
            [0.95] * 4,
            [0.95, 0.95, 0, 0],
            {},
            "as_many",
            "reports 2 of 4 targets (smallest q 0.2)",
        ),
        ([0.95] * 4, [0.95, 0, 0, 0], {"q": 0.4}, "fewer", ONE_OF_FOUR),
        ([0.0] * 4, [0.95, 0, 0, 0], {"q": 0.4}, "as_many", ONE_OF_FOUR),
        (
            [0.9] * 2,
            [0.95] * 2,
            COLLECTION,
            "as_many",
            "has p = 0.0182 for all groups together",
        ),
        (
            [0.9] * 2,
            [0.0, 0.1],
            COLLECTION,
            "fewer",
            "has p = 0.982 for all groups together",
        ),
        ([0.9] * 2, [None] * 2, {}, "fewer", "reports 0 of 2 targets"),
    ],
)
def test_a_placebo_that_reports_half_as_many_warns(
    scores, placebo, changes, verdict, comparison
):
    planned = plan(**{"q": 0.2} | changes)
    frame = table(rows("target", scores), NULLS)
    placebo_scores = pl.Series(
        "placebo_of_a_v1", [*placebo, *(row["a_v1"] for row in NULLS)], pl.Float64
    )
    all_verdicts = pl.concat(verdicts(frame.lazy(), ["a_v1"], planned)).lazy()
    reported = reported_findings(all_verdicts, planned)
    rows_of = placebo_findings(
        frame.with_columns(placebo_scores).lazy(), planned, reported, None
    )
    assert rows_of["check"].unique().to_list() == ["placebo"]
    start, end = PLACEBOS[verdict]
    sentences = {name: [*placebo_sentence(rows_of, name)] for name in PLACEBOS}
    assert sentences == {name: [] for name in PLACEBOS} | {
        verdict: [f"{start} {comparison}{end}"]
    }


def test_a_placebo_without_scores_is_not_made():
    no_scores = pl.Series("placebo_of_a_v1", [None] * 10, pl.Float64)
    frame = table(rows("target", [0.9]), NULLS).with_columns(no_scores).lazy()
    findings = placebo_findings(frame, plan(), pl.DataFrame(), None)
    assert [*placebo_sentence(findings, "as_many")] == []
    assert [*placebo_sentence(findings, "fewer")] == [
        "The same test was not made on the reference model: the reference model has no"
        " answers that the primary attack can score."
    ]


@pytest.mark.parametrize(
    ("findings_rows", "words"),
    [
        (
            [
                {"statistic": "n_effective", "value": 31.25, "verdict": "used"},
                {"statistic": "n_null", "value": 100},
            ],
            (
                "100 of them count as 31.2. p-values then hold if the two sets differ"
                " only in training"
            ),
        ),
        (
            [
                {
                    "statistic": "n_effective",
                    "verdict": "no_overlap",
                    "reason": "too few are alike",
                }
            ],
            "Weights do not help: too few are alike.",
        ),
        ([], ""),
    ],
)
def test_weights_are_said_with_their_assumption_or_what_prevents_them(
    findings_rows, words
):
    sentences = [*weights_sentence(finding_rows("weights", findings_rows))]
    assert len(sentences) == bool(findings_rows)
    assert words in "".join(sentences)


def test_checks_say_what_they_found_or_that_they_were_not_made():
    findings, missing = (
        found_in(*DUPLICATES),
        {name: [sentences] for name, (_, _, sentences) in CHECKS.items()},
    )
    results = RunResults(
        Metrics.create_empty(), Verdicts.create_empty().lazy(), findings, plan()
    )
    assert checks(results) == missing
    reason = finding_rows(
        "placebo", [{"statistic": "n_reported", "reason": "it has no scores"}]
    )
    earlier_run = {
        "subject": "run-2",
        "statistic": "primary",
        "verdict": "loss_v1, planned",
    }
    earlier_runs = finding_rows("earlier_runs", [earlier_run])
    results = replace(results, findings=pl.concat([findings, reason, earlier_runs]))
    sentences = {
        name: lines for name, lines in checks(results).items() if lines != missing[name]
    }
    assert sentences == {
        "How often it was tried": [
            "1 other run of these texts and this model is known: run-2 (primary"
            " loss_v1, planned). The best of several runs looks better than it is:"
            " p-values and q-values of this attempt are multiplied by 6, and bounds and"
            " rates of members are withheld."
        ],
        "Placebo: the same test on another model": [
            "The same test was not made on the reference model: it has no scores."
        ],
    }


TURNED = (
    "Members score lower than non-members by c_v1. A higher score has to mean a member:"
    " if the attack is yours, turn its sign."
)


@pytest.mark.parametrize(
    ("low", "n", "sentences"),
    [
        (
            0.62,
            5,
            [
                "a_v1: AUC within quintiles of the score of blind_year_v1: 0.70, 0.70.",
                TURNED,
                (
                    "Best of 2 attacks and slices, corrected for trying all of them:"
                    " a_v1, AUC at least 0.62."
                ),
            ],
        ),
        (
            0.29,
            4,
            [
                TURNED,
                (
                    "None of 2 attacks and slices, corrected for trying all of them, is"
                    " shown to be better than chance."
                ),
            ],
        ),
    ],
)
def test_no_bound_below_chance_and_no_quintile_of_a_few_texts_is_printed(
    low, n, sentences
):
    quintile = {"attack": "a_v1", "metric": "roc_auc", "value": 0.7, "n_members": n}
    rows = [
        quintile | {"slice": f"blind quintile {place}", "n_nonmembers": 9}
        for place in (1, 2)
    ] + [
        {
            "attack": name,
            "slice": "all",
            "metric": "roc_auc_simultaneous",
            "low": lowest,
        }
        for name, lowest in (("a_v1", low), ("b_v1", 0.2))
    ]
    turned = {
        "attack": "c_v1",
        "slice": "all",
        "metric": "roc_auc",
        "value": 0.2,
        "high": 0.3,
    }
    rows += [
        turned,
        turned | {"attack": "blind_year_v1"},
        turned | {"attack": "d_v1", "high": 0.5},
    ]
    subject_columns = {"subject": "members", "statistic": "roc_auc"}
    auc = subject_columns | {
        "verdict": "undecided",
        "value": 0.5,
        "high": 0.7,
        "p_value": 0.4,
    }
    strongest = subject_columns | {"statistic": "strongest", "verdict": "blind_year_v1"}
    blind = finding_rows("blind_baseline", [auc, strongest])
    assert [*labelled_sentences(typed(Metrics, rows), blind, "a_v1")] == sentences


@pytest.mark.parametrize(
    ("members", "nonmembers", "unknown", "nulls", "alone"),
    [
        (5, 0, 0, 0, "members"),
        (5, 1, 0, 0, None),
        (0, 5, 0, 5, "non-members"),
        (5, 0, 3, 0, None),
        (0, 5, 3, 5, None),
        (5, 0, 0, 9, None),
    ],
)
def test_labels_of_one_class_are_said_to_compare_with_nothing(
    members, nonmembers, unknown, nulls, alone
):
    counts = {"n_unknown": unknown, "n_nulls": nulls, "n_canaries": 0}
    findings = finding_rows(
        "roles", [{"statistic": k, "value": v} for k, v in counts.items()]
    )
    row = {"attack": plan().primary, "slice": "all", "metric": "roc_auc"}
    row |= {"n_members": members, "n_nonmembers": nonmembers}
    results = RunResults(
        typed(Metrics, [row]), Verdicts.create_empty().lazy(), findings, plan()
    )
    lines = [*one_sided_sentence(results)]
    starts = [line.split(", so that there is nothing to compare")[0] for line in lines]
    assert starts == ([f"All texts are labelled as {alone}"] if alone else [])


def test_wrong_labels_widen_what_a_share_and_an_area_stand_for():
    auc_row = {"metric": "roc_auc", "attack": "a_v1", "slice": "all", "value": 0.9}
    (sentence,) = wrong_labels_sentence(typed(Metrics, [auc_row]), "a_v1")
    assert (
        "an AUC of 0.90 stands for 0.91 to 0.92; if 5 % are, for 0.92 to 0.94"
        in sentence
    )
    assert [*wrong_labels_sentence(Metrics.create_empty(), "a_v1")] == []
    row = {
        "attack": "a_v1",
        "level": "collection",
        "versus": "non_members",
        "estimate": "contamination_rate",
        "method": "fieller",
        "assumption": "assumes",
        "value": 0.2,
        "low": 0.1,
        "high": 0.3,
        "confidence": 0.95,
    }
    withheld = row | {"value": None, "low": 0.05, "high": 0.6, "reason": "limits hold"}
    all_verdicts = typed(Verdicts, [row, withheld | {"method": "duci"}]).lazy()
    lines = [*unlabelled_sentences(all_verdicts, finding_rows("top"), plan())]
    assert lines == [
        "Share of members among the targets: 20%, 95 % interval 10% to 30% (assumes).",
        (
            "That interval does not count wrong labels: if up to 2 % of the calibration"
            " labels of one kind are wrong, it is 10% to 31%; if up to 5 % are, 10% to"
            " 34%."
        ),
        (
            "Share of members among the targets: between 5% and 60% at 95 % confidence;"
            " limits hold (assumes)."
        ),
    ]
