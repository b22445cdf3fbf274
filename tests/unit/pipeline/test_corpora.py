"""Reference sets, books, texts of Python: read, checked, and cut into targets."""

import json
from pathlib import Path

import polars as pl
import pytest
from lxml import html

from mia_batch import Run
from mia_batch import targets as reasons
from mia_batch.cli.main import audit_and_show
from mia_batch.corpus import commitment, draw
from mia_batch.errors import CorpusError, RequestError, SettingsError
from mia_batch.pipeline.corpora import open_corpora, write_texts
from mia_batch.pipeline.request import fill_windows
from mia_batch.schemas import Targets
from mia_batch.settings import load_settings
from tests.books import HEADER, page, write_epub
from tests.runs import audit, found, planned, written
from tests.unit.pipeline.conftest import Listener

SENTENCE = "{} one two three four five six seven eight nine"
CANARIES = ("s", ["h i", "j k"])


def write(path, names, **columns):
    texts = [SENTENCE.format(name) for name in names]
    pl.DataFrame({"text": texts, **columns}).write_parquet(path)
    return str(path)


@pytest.fixture
def input_path(tmp_path):
    return write(
        tmp_path / "asked.parquet", "abc", shelf=[1, 2, 3], group=["x", "x", "y"]
    )


def write_canaries(path, *sets):
    """Sets of canaries by name and texts, published as drawn."""
    lines = []
    for name, texts in sets:
        hashed = commitment(name, texts)
        fields = {"set": name, "texts": texts, "commitment": hashed, "seed": 7}
        lines.append(json.dumps(fields | {"published": draw(hashed, len(texts), 7)}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def open_inputs(input_path, **settings):
    origin = (
        {"non_members_known": "written last week"} if "non_members" in settings else {}
    )
    return open_corpora(
        load_settings({"input": input_path, "model": "m"} | origin | settings)
    )


def roles(corpora, **cut_settings):
    # No prompt is cut
    settings = {
        "input": "i",
        "model": "m",
        "evidence": "logprobs",
        **cut_settings,
    }
    targets = corpora.targets(load_settings(settings)).collect()
    Targets.validate(targets)
    return targets


def test_every_text_has_its_role_and_what_it_says_of_membership(input_path, tmp_path):
    targets = roles(
        open_inputs(
            input_path,
            non_members=write(
                tmp_path / "n.parquet", "de", shelf=[7, 8], group=["z", "z"]
            ),
            calibration=write(
                tmp_path / "c.parquet", "fg", label=[1, 0], group=["p", "q"]
            ),
            canaries=write_canaries(tmp_path / "k.jsonl", CANARIES),
        )
    )
    published = draw(commitment(*CANARIES), 2, 7)
    assert targets.select("role", "member", "shelf", "group").rows() == [
        ("target", None, 1, "x"),
        ("target", None, 2, "x"),
        ("target", None, 3, "y"),
        ("non_member", False, 7, "z"),
        ("non_member", False, 8, "z"),
        ("calibration", True, None, "p"),
        ("calibration", False, None, "q"),
        *(("canary", number == published, None, "s") for number in range(2)),
    ]
    assert targets.columns == [*Targets.column_names(), "shelf"]


def test_canaries_stay_whole_where_others_are_cut_into_windows(input_path, tmp_path):
    texts = [SENTENCE.format(name) for name in "hi"]
    corpora = open_inputs(
        input_path, canaries=write_canaries(tmp_path / "k.jsonl", ("s", texts))
    )
    counts = roles(corpora, window_words=5).group_by("role").len().sort("role")
    assert counts.rows() == [("target", 4), ("canary", 2), ("copy", 2)]


def test_columns_of_another_type_are_null_in_reference_sets(input_path, tmp_path):
    corpora = open_inputs(
        input_path, non_members=write(tmp_path / "n.parquet", "d", shelf=["high"])
    )
    assert roles(corpora).filter(role="non_member")["shelf"].to_list() == [None]


@pytest.mark.parametrize(
    ("setting", "columns", "message"),
    [
        (
            "non_members",
            {"member": [True, None]},
            "1 texts of .* are labelled as members",
        ),
        ("non_members", {"text": ["a b", None]}, "1 rows of .* have no text"),
        ("calibration", {"member": [True, None]}, "1 texts of .* have no membership"),
        ("calibration", {}, "2 texts of .* have no membership"),
    ],
)
def test_reference_sets_that_do_not_fit_are_refused(
    input_path, tmp_path, setting, columns, message
):
    path = written(tmp_path, pl.DataFrame({"text": ["d e", "f g"]} | columns), "others")
    with pytest.raises(CorpusError, match=f"{setting}: {message}"):
        open_inputs(input_path, **{setting: path})


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            {"non_members": "cd"},
            "is there as target and non_member; a text has one role",
        ),
        (
            {"non_members": "de", "calibration": "ef"},
            "is there as non_member and calibration",
        ),
    ],
)
def test_a_text_with_two_roles_is_refused(
    input_path, recorded, tmp_path, sets, message
):
    files = {
        setting: write(tmp_path / f"{setting}.parquet", names, label=[0] * len(names))
        for setting, names in sets.items()
    }
    with pytest.raises(SettingsError, match=message):
        audit(
            **recorded, input=input_path, non_members_known="written last week", **files
        )
    assert not list((tmp_path / "run").glob("*.parquet"))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("of", pl.Series([[1]] * 51), "'of' holds List"),
        ("of", pl.Series([b"x"] * 51), "'of' holds Binary"),
        ("of", pl.Series(range(51)), "'of' has 51 values"),
        ("page", pl.Series(range(51)), "has no column 'page', only document_id"),
    ],
)
def test_columns_that_make_no_slices_are_refused(tmp_path, column, values, message):
    labelled = write(
        tmp_path / "labelled.parquet", range(51), member=[True] * 51, of=values
    )
    with pytest.raises(RequestError, match=message):
        open_inputs(labelled, slice_by=column)


@pytest.fixture
def recorded(tmp_path):
    """Settings without an input: what was said after each sentence."""
    rows = [(f"{name} one two three four", " five") for name in "abcdexy"]
    recording = pl.DataFrame(rows, schema=["prefix", "candidate"], orient="row")
    return {
        "samples_from": written(tmp_path, recording, "made"),
        "out": str(tmp_path / "run"),
    }


def test_what_was_asked_to_be_set_aside_does_not_make_a_run_fail(recorded, tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    (books / "good.txt").write_text(SENTENCE.format("a"))
    for name in ("latin.txt", "arab.txt", "thai.txt"):
        (books / name).write_bytes(b"caf\xe9 " * 20)
    settings = recorded | {"input": str(books), "bad_input": "set-aside"}
    audit_and_show(load_settings(settings, use_config=False))  # which may exit
    assert Run(recorded["out"])["set_aside"].height == 3


def test_what_cannot_be_read_is_listed_said_and_under_the_root(recorded, tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    (books / "good.txt").write_text(SENTENCE.format("a"))
    (books / "latin.txt").write_bytes(b"caf\xe9 " * 20)
    (books / "broken.epub").write_bytes(b"no zip")
    for name in ("paper.pdf", "letter.docx", "second.pdf"):
        (books / name).write_bytes(b"x")
    listener, settings = Listener(), recorded | {"input": str(books)}
    with pytest.raises(
        CorpusError, match="; or set aside what cannot be read with bad_input="
    ):
        audit(**settings)
    settings["bad_input"] = "set-aside"
    run = audit(observer=listener, **settings)
    unread = {
        place.rpartition("/")[2]: reason
        for _, place, reason in run["set_aside"].iter_rows()
    }
    assert len(unread) == 5
    assert unread["latin.txt, line 1"] == "byte 0xe9 is not valid UTF-8"
    assert unread["paper.pdf"] == "files of kind .pdf are not read"
    sentence = (
        f"left out of input: {books}/paper.pdf and 1 more: files of kind .pdf are not"
        " read"
    )
    assert sentence in listener.sentences
    assert run.manifest.input["n_set_aside"] == 2
    assert "set_aside.parquet" in run.manifest.custody["tables"]
    root = run.manifest.custody["root"]
    (books / "broken.epub").unlink()
    again = audit(**settings)
    assert again["set_aside"].height == 4
    assert again.manifest.custody["root"] != root


def test_an_input_that_has_changed_is_said_and_another_is_refused(recorded, tmp_path):
    listener, source = Listener(), tmp_path / "c.parquet"
    settings = recorded | {"input": write(source, "abc")}
    audit(**settings)
    write(source, "bcde")
    audit(observer=listener, **settings)
    change = "2 targets are new, 1 are gone, 2 are kept; all are scored anew"
    assert f"the input is not the run's earlier one: {change}" in listener.sentences
    write(source, "xy")
    with pytest.raises(
        SettingsError, match="holds a run about other texts: none of its 4 targets"
    ):
        audit(**settings)


TEXTS = [SENTENCE.format(name) for name in "ab"]
TEXTS[1] *= 20  # longer than any name of a file


class Exported:
    """A table of another library."""

    def __arrow_c_stream__(self, requested_schema=None):
        return pl.DataFrame({"text": TEXTS}).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        [{"text": text, "n": n} for n, text in enumerate(TEXTS)],
        {"text": TEXTS},
        pl.DataFrame({"text": TEXTS}),
        pl.LazyFrame({"text": TEXTS}),
        pl.Series("body", TEXTS),
        Exported(),
    ],
    ids=["texts", "records", "columns", "frame", "lazy", "series", "arrow"],
)
def test_texts_of_python_are_written_into_the_runs_folder(tmp_path, texts):
    settings_written = write_texts(
        {"input": texts, "model": "owner/m", "out": tmp_path / "run"}
    )
    assert settings_written["input"] == tmp_path / "run" / "input.parquet"
    assert pl.read_parquet(settings_written["input"])["text"].to_list() == TEXTS
    assert write_texts(settings_written) == settings_written


def test_texts_of_python_name_the_run_by_what_they_are_and_a_path_object_is_a_path(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text_lists = (["a b"], ["a b"], ["a c"])
    first, same_folder, other_folder = (
        write_texts({"input": x, "model": "owner/m"})["out"] for x in text_lists
    )
    assert first == same_folder != other_folder
    assert first.name.startswith("table-")
    assert first.name.endswith("-m")
    path = tmp_path / "c.parquet"
    write(path, "a")
    assert load_settings(write_texts({"input": path, "model": "m"})).input == str(path)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "input= has no rows; give at least one text"),
        (pl.DataFrame({"text": []}), "input= has no rows; give at least one text"),
        (
            ["a.txt", "none.txt"],
            "input= is a list of files; give their folder, or a glob",
        ),
        ([Path("a.txt")], "input= is a list of files; give their folder, or a glob"),
        (
            ["no/b.txt", "none.csv"],
            "input= is a list of files; give their folder, or a glob",
        ),
        ([None, None], "input= has no text, only None; give at least one text"),
        (
            7,
            (
                "input= is of type int, which holds no texts; give a path, a list of"
                " strings, or a Da"
            ),
        ),
        (
            [1, 2],
            (
                "input= is of type list, which holds no texts; give a path, a list of"
                " strings"
            ),
        ),
        (
            "Is it a [long] text? " * 200,
            r"'Is it a .* is no path but looks like a text; give a fi",
        ),
    ],
)
def test_what_is_no_table_of_texts_is_refused(tmp_path, monkeypatch, texts, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    with pytest.raises(RequestError, match=message):
        audit(input=texts, model="m")


# Books, from the folder to the scores.


def text(name, n_words=640):
    return " ".join(f"{name}{number}" for number in range(n_words))


def targets_of(settings_given):
    settings = fill_windows(load_settings(settings_given))
    return open_corpora(settings).targets(settings).drop_nulls("target").collect()


@pytest.fixture
def books(tmp_path):
    """Settings of an audit of three books; the third repeats the first."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text(HEADER + text("a"))
    marks = "<sup><a href='#1'>1</a></sup><a href='#2'>[2]</a><i class='pagenum'>12</i>"
    write_epub(
        folder / "b.epub", {"x": page(f"<p>{text('b')}{marks}</p>")}, spine=["x", "y"]
    )
    (folder / "c.html").write_text(f"<p>{text('a')}<p>{text('c', 256)}")
    settings = {
        "input": str(folder),
        "out": str(tmp_path / "run"),
        "attacks": "samia_matched_v1",
    }
    recorded = targets_of(settings | {"samples_from": "recorded"}).select(
        "target_id", candidate="reference", sample_index=pl.lit(0)
    )
    return settings | {"samples_from": written(tmp_path, recorded, "recorded")}


def test_books_are_cut_into_windows_and_counted_once_and_the_report_says_so(books):
    listener = Listener()
    run = audit(**books, observer=listener)
    targets = run["targets"]
    assert targets["n_words"].drop_nulls().to_list() == [128] * 12
    by_book = targets.group_by("group", "title", maintain_order=True).len().rows()
    titles = ["The Raven Book and Other Poems", "The Title", None]
    assert by_book == [
        *zip(["a.txt", "b.epub", "c.html"], titles, [5, 5, 7], strict=True)
    ]
    copies = run["scores"].filter(pl.col("samia_matched_v1").is_null())["target_id"]
    assert (
        targets.filter(reason=reasons.COPY)["target_id"].to_list() == copies.to_list()
    )
    assert len(copies) == 5
    assert run.manifest.settings["window_words"] == 128
    assert listener.sentences[:3] == [
        f"{books['input']}: 3 documents, cut into windows of 128 words",
        "17 targets; 5 cannot be sampled: the same passage as in earlier windows",
        (
            "headers, licences, notes and tables of contents cut from 1 of 3 books:"
            f" {len(HEADER)} characters before the text, 0 after it; left out within"
            " the text: note marks (2), page numbers (1), missing pages (1)"
        ),
    ]
    words = {f"words_given_{name}": 64.0 for name in ("mean", "least", "most")}
    assert found(run, "prompts", subject="continuation") == {"n_prompts": 12.0} | words
    prompt_kinds = run["findings"].filter(check="prompts")["verdict"].unique().to_list()
    assert prompt_kinds == ["prefix_of_work"]
    report = html.fromstring((run.folder / "report.html").read_text("utf-8"))
    record_entries = {
        row.find("dt").text_content().split(" ", 1)[1]: row.find("dd").text_content()
        for row in report.xpath("//section[@id='record']//div[@data-entry]")
    }
    words_entry = record_entries["Words given, by kind of prompt"]
    assert "continuation, words_given_most: 64 (prefix_of_work)" in words_entry
    cut_entry = record_entries["Characters cut at the beginning of each text"]
    assert cut_entry.strip() == "in targets, column cut_start"
    rows = run["rollup"].select("key", "cut_start", "cut_end").rows()
    assert rows == [("a.txt", len(HEADER), 0), ("b.epub", 0, 0), ("c.html", 0, 0)]


def test_more_windows_are_added_to_those_that_there_are(books):
    few_windows = audit(**books, max_windows_per_document=1)
    samples_before, names = (
        few_windows["samples"],
        set(few_windows["targets"]["target_id"]),
    )
    assert len(names) == 3
    plan_lines = planned(books | {"max_windows_per_document": 3})
    assert (
        plan_lines["documents"]
        == "3, cut into windows of 128 words, at most 3 of a document"
    )
    assert plan_lines["targets"] == "9 of 17 windows"
    more_windows = audit(**books, max_windows_per_document=3)
    assert more_windows["targets"].height == 9
    assert (
        more_windows["samples"]
        .join(samples_before, on="target_id", how="semi")
        .equals(samples_before)
    )
    assert names < set(more_windows["targets"]["target_id"])


def test_books_have_p_values_of_their_own(books, tmp_path):
    (tmp_path / "new").mkdir()
    for number in range(19):
        (tmp_path / "new" / f"{number}.txt").write_text(text(f"n{number}x", 256))
    new = {
        "non_members": str(tmp_path / "new"),
        "non_members_known": "written last week",
    }
    settings = books | new | {"level": "group"}
    candidate = (
        pl.when(role="target").then("reference").otherwise(pl.lit("other words"))
    )
    recorded = targets_of(settings).select(
        "target_id", sample_index=pl.lit(0), candidate=candidate
    )
    run = audit(**settings | {"samples_from": written(tmp_path, recorded, "all")})
    book_verdicts = (
        run["verdicts"]
        .filter(level="group", attack="samia_matched_v1")
        .drop_nulls("p_value")
    )
    p = pytest.approx(1 / 20)
    assert sorted(book_verdicts.select("key", "p_value").rows()) == [
        (name, p) for name in ("a.txt", "b.epub", "c.html")
    ]


@pytest.mark.parametrize(
    ("changed", "length"),
    [
        ({"window_words": 64}, 64),
        ({"preset": "samia", "text_length": 32, "attacks": None}, 32),
    ],
)
def test_windows_may_be_of_another_length(books, changed, length):
    assert fill_windows(load_settings(books | changed)).window_words == length


def test_most_windows_need_windows(input_path):
    settings = load_settings(
        {"input": input_path, "model": "m", "max_windows_per_document": 2}
    )
    message = (
        r"^max_windows_per_document is 2 without window_words; set window_words too$"
    )
    with pytest.raises(SettingsError, match=message):
        fill_windows(settings)
