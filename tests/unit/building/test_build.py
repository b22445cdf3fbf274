"""Evaluation sets: who is in, what is thrown away, what is said."""

import json
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.extras.sets import build_set

_CUTOFF = date(2023, 1, 1)
_N_WORDS = 24


def texts(n, *, tell, generator):
    """Texts of words of one vocabulary, a quarter of them replaced by words of a class's own."""
    shape = n, _N_WORDS
    made = np.char.add("w", generator.integers(0, 300, shape).astype(str))
    if tell is not None:
        own = np.char.add(tell, generator.integers(0, 12, shape).astype(str))
        made = np.where(generator.random(shape) < 0.25, own, made)
    return [" ".join(row) for row in made]


def frame(n_plain, n_telling):
    """Documents of both classes: some alike, some with words of their class."""
    generator, rows = np.random.default_rng(0), []
    for tell in ("old", "new"):
        for kind, n, own in (("plain", n_plain, None), ("telling", n_telling, tell)):
            for number, text in enumerate(texts(n, tell=own, generator=generator)):
                rows.append((f"{tell}{kind}{number}", text, tell == "old"))
    return pl.DataFrame(rows, schema=["document_id", "text", "member"], orient="row")


def build(folder, documents=None, name="sets", **changed):
    """Build sets of some documents, or of those that were written before."""
    path = folder / "documents.parquet"
    if documents is not None:
        documents.write_parquet(path)
    given: dict[str, Any] = {
        "documents": path,
        "out": folder / name,
        "lengths": (_N_WORDS,),
    }
    return build_set(**given | changed)


ALL: dict[str, Any] = {
    "settings": ("original", "concatenated", "paraphrased"),
    "paraphrase_column": "rewritten",
}


@pytest.fixture(scope="module")
def repaired(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    documents = frame(300, 200).with_columns(
        rewritten=pl.col("text").str.to_uppercase()
    )
    return folder, build(folder, documents, **ALL)


def figures(built, stage, learnt_from, setting="original"):
    rows = built.tests.filter(stage=stage, learnt_from=learnt_from, setting=setting)
    return dict(rows.select("classifier", "roc_auc").iter_rows())


def test_repair_keeps_the_texts_that_are_alike(repaired):
    """The truth is known: 3 of 5 documents of each class are drawn alike."""
    _, built = repaired
    assert figures(built, "before", "the set")["blind_logistic_v1"] > 0.65
    kept = built.texts(_N_WORDS)
    is_plain = kept["from_document"].str.contains("plain")
    assert is_plain.mean() > 0.9
    assert kept.height > 250
    assert built.summary["sets"][0]["verdict"] == "not separable"
    assert max(figures(built, "after", "held out").values()) < 0.58
    # A pair is a member and a non-member; no document is in two pairs, none was held
    # out.
    assert kept.group_by("pair").agg(pl.col("member").sum(), n=pl.len()).select(
        (pl.col("member") == 1).all(), (pl.col("n") == 2).all()
    ).row(0) == (True, True)
    assert kept["from_document"].is_unique().all()
    assert kept["group"].to_list() == [f"pair {pair}" for pair in kept["pair"]]
    away = built.thrown_away
    assert not kept["from_document"].is_in(away["document_id"].implode()).any()
    counts = dict(away.group_by("reason").len().iter_rows())
    assert counts["held out to test the set"] == 2 * 167
    assert sum(counts.values()) + kept.height == 1000
    read = read_documents(
        built.path / f"original-{_N_WORDS}.parquet"
    ).documents.collect()
    assert read["member"].sum() == read["group"].n_unique() == kept.height // 2


def test_concatenated(repaired):
    """Both of a pair follow the same text, of a held-out non-member."""
    folder, built = repaired
    both = built.texts(_N_WORDS, "concatenated").with_columns(
        pl.col("text").str.split("\n\n").list.to_struct(fields=["context", "own"])
    )
    both = both.unnest("text")
    original = built.texts(_N_WORDS).select("pair", "member", "text")
    tests = [
        built.tests.filter(stage="after", setting=setting, learnt_from="held out").drop(
            "setting"
        )
        for setting in ("original", "concatenated")
    ]
    assert tests[0].equals(tests[1])
    joined = both.join(original, on=["pair", "member"])
    assert (joined["own"] == joined["text"]).all()
    assert (
        both.group_by("pair").agg(pl.col("context").n_unique())["context"] == 1
    ).all()
    held_out = built.thrown_away.filter(
        ~pl.col("member"), reason="held out to test the set"
    ).select("document_id")
    documents = pl.read_parquet(folder / "documents.parquet").join(
        held_out, on="document_id"
    )
    assert both["context"].is_in(documents["text"].implode()).all()


def test_paraphrases_are_tested_by_paraphrases(repaired):
    """They differ from the originals in case only, which no classifier of words sees."""
    _, built = repaired
    words = [
        "blind_naive_bayes_v1",
        "blind_logistic_v1",
        "blind_ngrams_v1",
        "blind_forest_v1",
    ]
    original, rewritten = (
        figures(built, "after", "held out", setting)
        for setting in ("original", "paraphrased")
    )
    assert [original[name] for name in words] == [rewritten[name] for name in words]


def test_again(repaired):
    folder, built = repaired
    again = build(folder, **ALL)
    assert not again.is_new
    assert again.summary == built.summary
    with pytest.raises(RunFolderError, match="other documents or settings"):
        build(folder, seed=1, **ALL)
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds no set"):
        build(folder, name="mine")
    assert [file.name for file in (folder / "mine").iterdir()] == ["notes.txt"]


def test_equal_seeds_give_equal_files(tmp_path):
    documents, found = frame(150, 50), {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        build(tmp_path, documents, name, seed=seed)
        found[name] = {
            file.name: file.read_bytes() for file in (tmp_path / name).iterdir()
        }
    assert found["one"] == found["same"]
    name = f"original-{_N_WORDS}.parquet"
    assert found["one"][name] != found["other"][name]


def test_dates(tmp_path):
    """Members are dated before the cutoff; what cannot be used has a reason each."""
    generator = np.random.default_rng(0)
    days = [_CUTOFF + timedelta(days=each) for each in [*range(-60, 0), *range(60)]]
    rows = pl.DataFrame(
        {
            "document_id": [f"d{each}" for each in range(len(days))],
            "text": texts(len(days), tell=None, generator=generator),
            "date": [str(day) for day in days],
        }
    )
    copied = rows["text"][5] + " more"
    odd = pl.DataFrame(
        {
            "document_id": ["undated", "copy", "empty", "short"],
            "text": [rows["text"][0][::-1], copied, " ", "w1 w2 w3"],
            "date": [None, "2023-03-01", "2022-01-01", "2022-01-01"],
        }
    )
    how = {"cutoff": _CUTOFF, "gap_days": 5, "lengths": (16, _N_WORDS), "repair": False}
    built = build(tmp_path, pl.concat([rows, odd]), **how)
    away = built.thrown_away
    found = {
        (row["document_id"], row["reason"], row["length"])
        for row in away.filter(~pl.col("document_id").str.contains(r"^d\d")).iter_rows(
            named=True
        )
    }
    assert found == {
        ("undated", "undated", None),
        ("copy", "copy of another document", None),
        ("empty", "no text", None),
        ("short", "too short", 16),
        ("short", "too short", _N_WORDS),
    }
    assert away.filter(document_id="copy")["other_document"].to_list() == ["d5"]
    near = away.filter(reason="near the cutoff")["document_id"].to_list()
    assert near == [f"d{each}" for each in range(55, 65)]
    kept = built.texts(16)
    assert (kept["member"] == (kept["date"] < _CUTOFF)).all()
    assert kept["member"].sum() == 55
    assert kept["text"][0] == " ".join(
        rows.filter(document_id=kept["from_document"][0])["text"][0].split()[:16]
    )


def test_paraphrases(tmp_path):
    documents = frame(60, 0).with_columns(rewritten=pl.col("text").str.to_uppercase())
    first = documents["document_id"][0]
    lost = pl.when(document_id=first).then(pl.lit("too short")).otherwise("rewritten")
    how = ALL | {"settings": ("paraphrased",), "lengths": (16,), "repair": False}
    built = build(tmp_path, documents.with_columns(rewritten=lost), **how)
    kept = built.texts(16, "paraphrased")
    assert kept.height == 119
    assert kept["text"].str.contains(r"^W[0-9W ]*$").all()
    away = built.thrown_away.filter(reason="no paraphrase of this length")
    assert away["document_id"].to_list() == [first]


def test_too_few_are_refused_in_one_sentence(tmp_path):
    """All documents tell their class, so that no pair is alike; nothing is written."""
    reason = r"matching leaves \d+ pairs of the others; with fewer than 46"
    with pytest.raises(CorpusError, match=reason):
        build(tmp_path, frame(0, 80))
    assert not (tmp_path / "sets").exists()


SPRING = pl.DataFrame({"text": ["a b", "c d"], "date": ["2022-01-01", "spring"]})
UNLABELLED = {"documents": SPRING}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"cutoff": _CUTOFF, "date_column": "text"},
            "has labels, and a cutoff is given",
        ),
        ({"columns": ColumnNames(text="body")}, "no column 'body'"),
        ({"lengths": (4,)}, "at least 8 words"),
        ({"lengths": ()}, "at least 8 words"),
        ({"settings": ("original", "reversed")}, "give some of original, paraphrased"),
        ({"settings": ("paraphrased",)}, "--paraphrase-column"),
        ({"gap_days": -1}, "must not be negative"),
        (
            {"source_column": "site"},
            "no column 'site'; name the source with --source-column",
        ),
        ({"out": "s3://bucket/sets"}, "on a disk only"),
        (UNLABELLED, "does not say who is a member"),
        (
            UNLABELLED | {"cutoff": _CUTOFF},
            "document 2: column 'date' is 'spring', no date",
        ),
    ],
)
def test_wrong_requests(tmp_path, request_, message):
    with pytest.raises((SettingsError, CorpusError), match=message):
        build(tmp_path, **{"documents": frame(5, 0)} | request_)
    assert not (tmp_path / "sets").exists()


def test_summary_is_a_page(repaired):
    _, built = repaired
    page = (built.path / "summary.md").read_text()
    assert json.loads((built.path / "summary.json").read_text()) == built.summary
    assert built.summary["sentences"][0] in page
    assert "| all |" not in page  # nothing was thrown away for all lengths
    assert f"| {_N_WORDS} | held out to test the set | 334 |" in page
