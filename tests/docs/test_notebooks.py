"""The notebooks run as they stand, and print what stands in them."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from markupsafe import escape

import mia_batch
from docs.generate import notebooks, pictures
from mia_batch import SettingsError, observer
from mia_batch.pipeline.corpora import write_texts
from mia_batch.pipeline.custody import verify

REPOSITORY = Path(__file__).parents[2]
PATHS = sorted((REPOSITORY / notebooks.FOLDER).glob("*.ipynb"))
MACHINE_DEPENDENT = "fine-tuned"
"""Its figures depend on the processor; a cell of it checks what they show."""


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_stands_there(path, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    stored = json.loads(path.read_text("utf-8"))
    made = notebooks.run(path, tmp_path)
    printed, wanted = notebooks.printed(made), notebooks.printed(stored)
    assert [bool(each) for each in printed] == [bool(each) for each in wanted]
    if path.stem != MACHINE_DEPENDENT:
        assert printed == wanted


def test_a_page_shows_text_code_and_answers():
    page = notebooks.pages()["book"]
    assert page.startswith("# A book, in a notebook\n")
    assert (
        "```python\nprint(run.answer)\n```\n\n```text\nOf 3 books, 1 comes out" in page
    )
    assert (
        '<div class="mia-batch"><p><strong>Of 3 books, 1 comes out word for word'
        in page
    )
    assert all(path.stat().st_size < 30_000 for path in PATHS)


def test_the_picture_of_a_terminal_is_of_the_notebook_and_loads_nothing():
    drawn = (REPOSITORY / pictures.TERMINAL).read_text("utf-8")
    shown = unescape(re.sub(r"<[^>]+>", " ", drawn)).replace("\xa0", " ")
    notebook = json.loads(
        (REPOSITORY / notebooks.FOLDER / "book.ipynb").read_text("utf-8")
    )
    answer = next(
        text for text in notebooks.printed(notebook) if text.startswith("```text\nOf 3")
    )
    assert answer.splitlines()[1] in shown  # else: make pictures
    assert not re.search(r"url\((?!#)", drawn)


HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A run of a table of Python whose only document has markup for a name."""
    words = [f"word{n}" for n in range(60)]
    texts = pl.DataFrame({"document_id": [HOSTILE], "text": [" ".join(words)]})
    halves: dict[str, list[str]] = {"prefix": [], "candidate": []}
    for start in range(0, 60, 20):
        halves["prefix"].append(" ".join(words[start : start + 10]))
        halves["candidate"].append(" ".join(words[start + 10 : start + 20]))
    made: dict[str, Any] = {
        "recording": {"samples_from": halves},
        "texts": {"window_words": 20},
    }
    out = tmp_path_factory.mktemp("hostile") / "run"
    return mia_batch.audit(texts, out=out, **made), texts, made


def test_a_run_shows_its_answer_and_escapes_what_it_names(hostile_run):
    run, _, _ = hostile_run
    shown = run._repr_html_()
    assert str(escape(run.answer)) in shown
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td style=" in shown
    assert {*re.findall(r"<(\w+)", shown)} == {
        *("div", "p", "strong", "table", "thead", "tr", "th", "tbody", "td", "code")
    }
    assert repr(run) == f"Run({str(run.folder)!r}): {run.answer}"
    absent = mia_batch.Run(run.folder.parent / "no-run")
    assert "does not exist; give the folder of a run" in repr(absent)
    nothing = mia_batch.Run(run.folder.parent / "<b>")._repr_html_()
    assert nothing.startswith("<p>")
    assert "&lt;b&gt; does not exist; give the folder of a run" in nothing


def test_a_report_is_made_again_where_it_is_missing(hostile_run):
    run, _, _ = hostile_run
    page = run.report()
    assert page == run.folder / "report.html"
    before = page.read_bytes()
    page.unlink()
    assert run.report().read_bytes() == before
    assert verify(run.folder).faults == []


def test_a_table_of_python_is_kept_for_the_run_that_rests_on_it(hostile_run):
    run, texts, made = hostile_run
    stored = {path.name: path.read_bytes() for path in run.folder.glob("*.parquet")}
    assert mia_batch.audit(texts, out=run.folder, **made).folder == run.folder
    assert {
        path.name: path.read_bytes() for path in run.folder.glob("*.parquet")
    } == stored
    other = texts.with_columns(pl.col("text").str.to_uppercase())
    write_texts({"input": other, "out": run.folder})
    # And nothing changed
    assert [what for _, what in verify(run.folder).faults] == ["added"]


def test_a_table_that_python_cannot_export_is_refused_with_what_helps(tmp_path):
    class Pandas:
        def __arrow_c_stream__(self, requested_schema=None):
            raise ImportError("pyarrow is required")

    with pytest.raises(
        SettingsError,
        match=r"of type Pandas, .*\(pyarrow is required\); run `pip install",
    ):
        mia_batch.audit(
            Pandas(), out=tmp_path / "run", recording={"samples_from": "made.parquet"}
        )


class Line:
    """The line that a notebook shows."""

    def __init__(self):
        self.shown = []

    def update(self, data, *, raw):
        assert raw
        self.shown.append(data["text/plain"])


def test_progress_in_a_notebook_is_one_line(monkeypatch):
    clock, line, lines = [0.0], Line(), []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def display(_data, *, raw, display_id):
        assert raw
        assert display_id
        lines.append(line)
        return line

    watching = observer.NotebookObserver(display)
    watching.stage("40 targets\x1b[2J")
    with watching.progress("samples", done=10, left=1000):
        for _ in range(1000):
            clock[0] += 0.01
            watching.worked(1, 5)
    assert len(lines) == 1
    assert line.shown[0] == "40 targets\ufffd[2J"
    assert line.shown[1] == "samples: 10 of 1,010 prompts"
    assert line.shown[2] == "samples: 60 of 1,010 prompts, 250 tokens, about 10 s left"
    assert line.shown[-1] == "samples: 1,010 of 1,010 prompts"
    assert len(line.shown) < 25
    with watching.progress("samples", done=0, left=8, tokens=400):
        clock[0] += 1.0
        watching.worked(0, 100)
    assert line.shown[-1] == "samples: 0 of 8 prompts, 100 tokens, about 3 s left"
    assert type(observer.usual_observer()) is observer.Observer
