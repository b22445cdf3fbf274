from math import exp, sqrt
from random import Random

import polars as pl
import pytest
from scipy.stats import t

from mia_batch.inference.findings import finding_rows
from mia_batch.inference.memory import verbatim_runs
from mia_batch.inference.rollup import rollup, with_claim
from mia_batch.inference.verdicts import NO_NULL, verdicts
from mia_batch.schemas import ExtractedDocuments, Rollup, Targets
from mia_batch.tables import check
from tests.frames import features, table, target_id
from tests.frames import samples as answers
from tests.unit.inference.scored import plan

PLAN = plan(level="group", windows_per_group=2)
WALKED = {"coverage": 0.25, "bmc_5": 0.5, "bmc_5_others": 0.125}


def document(name, *scores, role="target", n_windows=None, further=None, **columns):
    """Windows of one document with their scores."""
    return [
        {
            "role": role,
            "document_id": name,
            "window_index": index,
            "n_windows": n_windows or len(scores),
            "a_v1": score,
            "title": f"title of {name}",
            **columns,
        }
        for index, score in enumerate(scores)
    ]


def nulls(n=25, role="non_member", **columns):
    """Documents outside the training data, two windows each: 0.00, 0.01, 0.02, ..."""
    return [
        row
        for number in range(n)
        for row in document(
            f"n{number}",
            number / 50,
            number / 50 + 0.01,
            role=role,
            member=False,
            **columns,
        )
    ]


def build_rollup(
    *rows,
    samples=3,
    of_plan=PLAN,
    blind_warns=False,
    evidence=None,
    extracted=(),
    candidates=(),
    with_others=False,
    columns=None,
    gate="open",
    reason=None,
):
    """The rollup of such windows, numbered in their order."""
    numbered = [
        {"target_id": target_id(number), **row} for number, row in enumerate(rows)
    ]
    extra = {"a_v1": pl.Float64, "title": pl.String, "extraction_v1": pl.Float64}
    frame = table(Targets, numbered, n_words=100).with_columns(
        pl.Series(name, [row.get(name) for row in rows], dtype)
        for name, dtype in extra.items()
    )
    frame = frame.with_columns(**{k: pl.Series(v) for k, v in (columns or {}).items()})
    all_verdicts = pl.concat(
        verdicts(frame.lazy(), ["a_v1"], of_plan, blind_warns=blind_warns)
    )
    evidence = features() if evidence is None else evidence
    rollup_table = rollup(
        frame.drop("a_v1", "extraction_v1").lazy(),
        frame.lazy(),
        verbatim_runs(frame.lazy(), evidence.lazy(), samples, "whitespace"),
        all_verdicts.lazy(),
        of_plan,
        extracted=table(ExtractedDocuments, list(extracted), **WALKED).lazy(),
        candidates=answers(*candidates).lazy(),
        samples=samples,
        words="whitespace",
        blind_warns=blind_warns,
        findings=finding_rows("gate", [{"verdict": gate, "reason": reason}]),
    )
    check(rollup_table, Rollup, name="rollup")
    return (
        rollup_table
        if with_others
        else rollup_table.filter(pl.col("level") != "outside")
    )


def sample_row(number, sample, longest, near=0, **changed):
    return {
        "target_id": target_id(number),
        "sample_index": sample,
        "longest_block_words": longest,
        "near_verbatim_words": near,
        **changed,
    }


OUTSIDE = "known to be outside the training data: others are compared with it"


def test_a_document_has_one_row_with_its_windows_and_their_mean():
    (row,) = build_rollup(
        *document("a", 0.2, 0.4, None, 0.9, n_windows=7), *nulls()
    ).to_dicts()
    assert (row["level"], row["key"], row["attack"]) == ("document", "a", "a_v1")
    assert (row["n_windows"], row["n_asked"], row["n_scored"]) == (7, 4, 3)
    half = t.ppf(0.975, 2) * sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2 / 3)
    interval = [row[name] for name in ("mean", "mean_low", "mean_high")]
    assert interval == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert row["title"] == "title of a"
    first, again, last = document("a", 0.2, None, 0.4)
    refused = document("b", 0.2, 0.4, None, reason="the text is too short")
    documents = build_rollup(first, again | {"role": "copy"}, last, *refused, *nulls())
    counts = documents.select("key", "n_windows", "n_asked", "n_scored").rows()
    assert counts == [("a", 3, 2, 2), ("b", 3, 2, 2)]


@pytest.mark.parametrize(
    ("scores", "mean"), [((0.5, None), None), ((None, None), None), ((0.5, 0.5), 0.5)]
)
def test_too_few_or_equal_scores_have_no_interval(scores, mean):
    row = build_rollup(*document("a", *scores), *nulls()).row(0, named=True)
    assert [row[name] for name in ("mean", "mean_low", "mean_high")] == [
        mean,
        None,
        None,
    ]


def test_groups_of_several_documents_come_after_the_documents_or_alone():
    documents = build_rollup(
        *document("a", 0.2, 0.4, group="x", author="1"),
        *document("b", 0.9, group="x"),
        *document("c", 0.3, 0.5, group="y"),
        *nulls(),
    )
    levels = ["document", "document", "document", "group"]
    assert documents["level"].to_list() == levels
    assert documents["key"].to_list() == ["a", "b", "c", "x"]
    assert documents["n_scored"].to_list() == [2, 1, 2, 3]
    assert documents["group"].to_list() == ["x", "x", "y", "x"]
    assert documents["title"].to_list() == [
        "title of a",
        "title of b",
        "title of c",
        None,
    ]
    assert documents["mean"].to_list() == pytest.approx([0.3, None, 0.4, 0.5])
    half = t.ppf(0.975, 2) * sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2 / 3)
    assert documents["mean_high"][3] == pytest.approx(0.5 + half)
    alone = document("a", 0.2), document("b", 0.4)
    assert build_rollup(*alone[0], *alone[1], *nulls()).is_empty()
    grouped = document("a", 0.2, group="x"), document("b", 0.4, group="x")
    documents = build_rollup(*grouped[0], *grouped[1], *nulls())
    assert documents.select("level", "key", "n_windows").rows() == [("group", "x", 2)]


def test_the_p_value_is_that_of_the_documents_cluster():
    documents = build_rollup(
        *document("a", 0.9, 0.8),
        *document("b", 0.1, 0.1, group="one book"),
        *document("c", 0.3, 0.5, group="two books"),
        *document("d", 0.3, 0.5, group="two books"),
        *document("e", 0.9),
        *nulls(),
    )
    by_key = {row["key"]: row for row in documents.iter_rows(named=True)}
    assert by_key["a"]["p_value"] == pytest.approx(1 / 26)
    # Means of nulls: 0.005 + 0.02 k; 20 of 25 are at least 0.1.
    assert by_key["b"]["p_value"] == pytest.approx(21 / 26)
    assert (by_key["c"]["p_value"], by_key["c"]["reason"]) == (
        None,
        "its group is tested as a whole",
    )
    assert by_key["two books"]["p_value"] is not None
    assert by_key["e"]["reason"] == "the group has 1 of 2 windows"
    assert [by_key[key]["reason"] for key in ("a", "b", "two books")] == [None] * 3


def test_the_verdicts():
    rows = (
        *document("a", 0.9, 0.8),
        *document("b", 0.1, 0.1),
        *document("c", 0.9),
        *nulls(),
    )
    documents = build_rollup(
        *rows, of_plan=plan(level="group", windows_per_group=2, q=0.2)
    )
    assert documents["verdict"].to_list() == [
        "known_better",
        "nothing_found",
        "cannot_tell",
    ]
    # At q = 0.05 one document above 25 others cannot be named; the other is below one
    # of them.
    documents = build_rollup(*rows)
    assert documents["verdict"].to_list() == [
        "above_all",
        "nothing_found",
        "cannot_tell",
    ]
    documents = build_rollup(*document("a", 0.485, 0.485), *rows[2:])
    assert documents["verdict"].to_list() == [
        "nothing_found",
        "nothing_found",
        "cannot_tell",
    ]
    group_plan = plan(level="group", windows_per_group=2, q=0.2)
    marked = build_rollup(*rows, of_plan=group_plan, gate="exploratory")
    assert marked["verdict"].to_list() == ["cannot_tell"] * 3
    withheld = build_rollup(
        *rows, of_plan=group_plan, gate="withheld", reason="the sets differ"
    )
    assert withheld["contamination_low"].count() == 0
    assert withheld["contamination_reason"].to_list() == ["the sets differ"] * 3
    evidence = features(
        *(sample_row(number, 0, words) for number, words in enumerate([5, 20, 19]))
    )
    documents = build_rollup(*rows, evidence=evidence)
    assert documents["verdict"].to_list() == [
        "comes_out",
        "nothing_found",
        "cannot_tell",
    ]


def test_a_document_of_which_a_stretch_was_extracted_comes_out():
    words = {"d1": 20, "d2": 19}
    documents = build_rollup(
        *(row for key in words for row in document(key, 0.1, 0.2, group="g")),
        extracted=[
            {"document_id": key, "longest_words": n} for key, n in words.items()
        ],
    )
    columns = (
        "key",
        "extracted_words",
        "extracted_share",
        "bmc_5",
        "bmc_5_others",
        "verdict",
    )
    assert documents.select(columns).rows() == [
        ("d1", 20, 0.25, 0.5, 0.125, "comes_out"),
        ("d2", 19, 0.25, 0.5, 0.125, "cannot_tell"),
        ("g", 20, None, None, None, "comes_out"),
    ]


def test_documents_of_known_membership():
    documents = build_rollup(
        *document("a", 0.9, 0.8, member=True), *nulls(3, role="target")
    )
    assert documents["key"].to_list() == ["a", "n0", "n1", "n2"]
    assert documents["reason"].to_list() == [None, OUTSIDE, OUTSIDE, OUTSIDE]
    assert documents["contamination_reason"].to_list()[1:] == [OUTSIDE] * 3
    assert documents["member"].to_list() == [True, False, False, False]


def test_documents_of_the_non_members_come_after_the_audited_ones():
    """Also where both have one name; what was extracted is of the audited one."""
    windows = document("a", 0.9, 0.8), document("a", 0.1, 0.3, role="non_member")
    documents = build_rollup(
        *windows[0],
        *windows[1],
        *nulls(),
        evidence=features(
            sample_row(0, 0, 5), sample_row(2, 1, 21, near=30), sample_row(3, 0, 4)
        ),
        extracted=[{"document_id": "a", "longest_words": 25}],
        with_others=True,
    )
    assert documents["level"].to_list() == ["document", "outside"] + ["outside"] * 25
    assert documents["member"].to_list() == [None] + [False] * 26
    row = documents.row(1, named=True)
    assert (row["key"], row["n_windows"], row["title"]) == ("a", 2, "title of a")
    assert (row["mean"], row["longest_words"]) == (pytest.approx(0.2), 21)
    assert (row["share_verbatim"], row["longest_target_id"]) == (0.5, target_id(2))
    assert (row["extracted_words"], row["passages_from"]) == (None, "samples")
    assert (row["reason"], row["contamination_reason"]) == (OUTSIDE, OUTSIDE)
    assert documents["verdict"].to_list() == ["comes_out"] * 2 + ["cannot_tell"] * 25
    single = [row | {"n_windows": 1} for row in nulls()[::2]]
    assert build_rollup(*windows[0], *single, with_others=True)["level"].to_list() == [
        "document"
    ]


def test_a_column_of_any_name_says_something_of_the_document():
    names = ("row", "document", "level", "outside", "walked", "labels")
    columns = {name: [f"{name} of {key}" for key in "aabb"] for name in names}
    rows = [*document("a", 0.2, 0.4), *document("b", 0.1, 0.3)]
    documents = build_rollup(*rows, columns=columns)
    for name in names:
        expected = (
            ["document"] * 2 if name == "level" else [f"{name} of a", f"{name} of b"]
        )
        assert documents[name].to_list() == expected


def test_what_cannot_be_tested_has_a_reason_and_what_has_no_name_its_first_windows():
    row = build_rollup(*document("a", 0.2, 0.4)).row(0, named=True)
    assert (row["reason"], row["verdict"]) == (NO_NULL, "cannot_tell")
    assert row["contamination_low"] is None
    assert row["contamination_reason"] == "0 null texts are too few, 1 are needed"
    single = document("a", 0.9, n_windows=5)
    null = [
        document(f"n{n}", 0.1, role="non_member", member=False)[0] for n in range(9)
    ]
    row = build_rollup(*single, *null, of_plan=plan()).row(0, named=True)
    assert (
        row["reason"] == "no document has two windows, so that texts are tested alone"
    )
    documents = build_rollup(
        *document(None, 0.2, 0.4), *document(None, 0.9, 0.8), *nulls()
    )
    assert documents["key"].to_list() == [target_id(0), target_id(2)]
    assert documents["p_value"].null_count() == 0


def test_verbatim_runs_are_of_the_first_samples_of_the_target_model_or_there_is_none():
    evidence = features(
        sample_row(0, 1, 20, near=20),
        sample_row(0, 0, 3),
        sample_row(1, 2, 25, near=3),
        sample_row(1, 1, 25, near=25),
        sample_row(2, 3, 99, near=99),  # a sample that was not asked for
        sample_row(2, 0, 50, view="probe"),
        sample_row(2, 0, 50, model="reference"),
        sample_row(2, 0, 19, near=24),
    )
    row = build_rollup(
        *document("a", 0.2, 0.4, 0.5, 0.6), *nulls(), evidence=evidence
    ).row(0, named=True)
    assert row["share_verbatim"] == pytest.approx(2 / 3)  # window 3 has no continuation
    assert row["share_near_verbatim"] == 1
    longest = (
        row["longest_words"],
        row["longest_target_id"],
        row["longest_sample_index"],
    )
    assert longest == (25, target_id(1), 1)
    names = [
        "longest_words",
        "longest_target_id",
        "longest_sample_index",
        "share_verbatim",
    ]
    names += ["n_passages_20", "n_passages_50", "passages_from"]
    without = features(sample_row(0, 0, 30)).drop(
        "longest_block_words", "near_verbatim_words"
    )
    for evidence, expected in (
        (features(sample_row(1, 0, 0)), (0, None, None, 0, 0, 0, "samples")),
        (features(), (None,) * 7),
        (without, (None,) * 7),
    ):
        row = build_rollup(*document("a", 0.2, 0.4), *nulls(), evidence=evidence)
        assert row.select(names).row(0) == expected


def test_probabilities_of_extraction_by_hand():
    """Of three windows with a score two have at least 0.001; a group has the highest of all."""
    rows = [
        row | {"extraction_v1": log_p, "group": "g"}
        for name, logs in (("a", (-0.5, -6.9, -7.0, None)), ("b", (-8.0, None)))
        for row, log_p in zip(document(name, *[0.5] * len(logs)), logs, strict=True)
    ]
    documents = build_rollup(*rows, *document("c", 0.5, 0.5), *nulls())
    assert documents.select(
        "key", "extraction_probability", "share_extractable"
    ).rows() == [
        ("a", pytest.approx(exp(-0.5)), pytest.approx(2 / 3)),
        ("b", pytest.approx(exp(-8.0)), 0.0),
        ("c", None, None),
        ("g", pytest.approx(exp(-0.5)), 0.5),
    ]


def test_a_share_is_claimed_of_what_is_on_the_list_of_the_run_alone():
    """On the list, off it twice, and off it with an estimate; the last has no bound."""
    rows = pl.DataFrame(
        {
            "q_value": [0.05, 0.06, None, 0.06, 0.01],
            "contamination": [None, None, None, 0.4, None],
            "contamination_low": [0.3, 0.2, 0.1, 0.2, None],
            "contamination_reason": ["a", "b", "c", None, "d"],
        }
    )
    with_claims = with_claim(rows, plan(q=0.05))
    assert with_claims["contamination_low"].to_list() == [0.3, 0, 0, 0, None]
    assert "contamination_low_alone" not in with_claims.columns
    assert with_claims["contamination"].to_list() == rows["contamination"].to_list()
    unlisted = (
        "it is not on the list that is reported, so that no share above 0 is claimed"
    )
    assert with_claims["contamination_reason"].to_list() == [
        "a",
        unlisted,
        unlisted,
        None,
        "d",
    ]
    # p = q = 1 / 26.
    windows = document("a", *[0.9] * 12), nulls()
    for q, listed in ((0.05, True), (0.03, False)):
        of_plan = plan(level="group", windows_per_group=2, q=q)
        row = build_rollup(*windows[0], *windows[1], of_plan=of_plan).row(0, named=True)
        assert (row["contamination_low"] > 0.5) == listed
        assert row["contamination_low"] > 0.5 or row["contamination_low"] == 0


UNFORESEEABLE = [f"w{number:03}" for number in Random(0).sample(range(1000), 200)]


def test_passages_that_overlap_in_the_document_are_one():
    """Two windows of 80 words whose second half is asked for; the second starts 20 words later."""
    words = UNFORESEEABLE

    def window(first):
        texts = {"prefix": (first, first + 40), "reference": (first + 40, first + 80)}
        cut_texts = {
            name: " ".join(words[slice(*span)]) for name, span in texts.items()
        }
        return {
            **cut_texts,
            "reference": f" {cut_texts['reference']}",
            "start": 5 * first,
        }

    rows = document("a", *[0.2] * 3, group="g"), document("b", 0.1, 0.1, group="g")
    windows = [
        row | window(first) for row, first in zip(rows[0], (0, 20, 100), strict=True)
    ]
    said_words = [(40, 62), (61, 90), (140, 162), (165, 180)]
    passages = [" ".join(words[slice(*span)]) for span in said_words]
    documents = build_rollup(
        *windows,
        *rows[1],
        *nulls(),
        evidence=features(
            sample_row(0, 0, 22),
            sample_row(1, 0, 29),
            sample_row(2, 0, 22),
            sample_row(3, 0, 2),
        ),
        candidates=[
            [passages[0], "x"],
            [passages[1]],
            [f"{passages[2]} x {passages[3]}", None],
            ["y"],
        ],
        extracted=[
            {
                "document_id": "a",
                "passages_20": [
                    {"start": 5 * 161, "end": 5 * 179},
                    {"start": 900, "end": 990},
                ],
                "passages_50": [{"start": 900, "end": 990}],
            }
        ],
    )
    columns = ("key", "n_passages_20", "n_passages_50", "passages_from")
    assert documents.select(columns).rows() == [
        ("a", 3, 1, "samples and walks"),
        ("b", 0, 0, "samples"),
        ("g", 3, 1, "samples and walks"),
    ]


def test_a_long_passage_is_one_that_one_answer_gives_in_full():
    words = UNFORESEEABLE[:120]
    reference = " ".join(words)
    passages = [" ".join(words[:40]), " ".join(words[30:70]), " ".join(words[60:115])]
    row = {"start": 0, "prefix": "", "reference": reference}
    audited, control = document("a", 0.2, 0.3)

    def counts(*candidates):
        longest = max(len(candidate.split()) for candidate in candidates)
        evidence = features(sample_row(0, 0, longest))
        rows = audited | row, control, *nulls()
        documents = build_rollup(*rows, evidence=evidence, candidates=[candidates])
        return documents.select("n_passages_20", "n_passages_50", "passages_from").row(
            0
        )

    assert counts(*passages[:2]) == (1, 0, "samples")
    assert counts(*passages) == (1, 1, "samples")
    assert counts(passages[0], passages[2]) == (2, 1, "samples")
