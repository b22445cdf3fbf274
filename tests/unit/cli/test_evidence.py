"""mia-batch show: a target, its scores, and the answers beside the true text."""

from __future__ import annotations

import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command
from mia_batch.errors import RequestError, RunFolderError

TEXT = "one two three four five six seven eight nine ten eleven twelve"
HOSTILE = "\x1b[31m <script>[bold] \u202e evil\nseven eight nine ten"
TRUE = " seven eight nine ten eleven twelve"


def audit(folder, recorded, **settings):
    pl.DataFrame(recorded, schema=["prefix", "candidate"], orient="row").write_parquet(
        folder / "made.parquet"
    )
    documents = {"document_id": ["\x07a", "b"], "text": [TEXT, "short"], "group": ["shelf", None]}
    pl.DataFrame(documents).write_parquet(folder / "corpus.parquet")
    return mia_batch.audit(
        input=str(folder / "corpus.parquet"),
        samples_from=str(folder / "made.parquet"),
        out=folder / "run",
        **settings,
    )


def show(run, target_id, *options, width="120"):
    arguments = ["show", str(run.folder), target_id, *options]
    result = CliRunner().invoke(command, arguments, standalone_mode=False, env={"COLUMNS": width})
    if result.exception is not None:
        raise result.exception
    return [line.rstrip() for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    prefix = "one two three four five six"
    recorded = [(prefix, HOSTILE), (prefix, "other"), (prefix, " x" * 10_000 + TRUE)]
    settings = {"attacks": ["samia_matched_v1", "longest_block_v1"]}
    return audit(tmp_path_factory.mktemp("show"), recorded, **settings)


def test_a_target_is_shown_with_its_answers(run):
    target_id = run["targets"]["target_id"][0]
    lines = show(run, target_id[:5])
    assert lines[:9] == [
        f"target            {target_id}",
        "document          \ufffda",
        "group             shelf",
        "window            1 of 1",
        "characters        0 to 62 of the document",
        "role              target",
        f"samia_matched_v1  {run['scores']['samia_matched_v1'][0]:.4g}",
        "longest_block_v1  3.333",
        "",
    ]
    assert "prefix  one two three four five six" in lines
    at = lines.index(
        "continuation 0, sample 0, recorded; longest shared run: 4 words, 20 characters"
    )
    left, right = (
        " ⟦seven eight nine ten⟧ eleven twelve",
        "\ufffd[31m <script>[bold] \ufffd evil↵⟦seven eight nine ten⟧",
    )
    assert lines[at + 1 : at + 3] == [f"{'true continuation':61}model", f"{left:61}{right}"]
    assert "continuation 0, sample 1, recorded; no word is shared" in lines


def test_of_long_texts_what_is_near_the_shared_run_is_shown(run):
    text = "\n".join(show(run, run["targets"]["target_id"][0]))
    assert f"({20_000 - 4000:,} characters before)" in " ".join(text.split())
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_target_without_answers_says_why(run):
    lines = show(run, run["targets"]["target_id"][1])
    assert any(line.startswith("not sampled       the text is too short") for line in lines)
    assert any(line.startswith("longest_block_v1  no score: ") for line in lines)
    assert lines[-1] == "no samples were drawn of it"


@pytest.mark.parametrize(
    ("beginning", "sentence"), [("", "several targets begin with ''"), ("x", "no target whose")]
)
def test_the_beginning_must_be_that_of_one_target(run, beginning, sentence):
    with pytest.raises(RequestError, match=sentence):
        show(run, beginning)


def test_what_is_no_run_or_a_recording_is_refused(run, tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        show(type(run)(tmp_path), "a")
    with pytest.raises(RequestError, match="came from a recording"):
        show(run, run["targets"]["target_id"][0], "--again")


def test_probes_are_a_line_each(tmp_path):
    words = TEXT.split()
    answers = {8: " nine", 9: " ten eleven", 10: " no", 11: "[/] twelve"}
    recorded = [(" ".join(words[:at]), answer) for at, answer in answers.items()]
    run = audit(tmp_path, recorded, attacks=["probe_first_word_v1"], probes=4)
    target_id = run["targets"]["target_id"][0]
    lines = show(run, target_id)
    at = lines.index("probe, target model")
    assert [line.split() for line in lines[at + 1 :]] == [
        ["character", "true", "word", "model's", "word", "hit", "sample", "how"],
        ["39", "nine", "nine", "yes", "0", "recorded"],
        ["44", "ten", "ten", "eleven", "yes", "0", "recorded"],
        ["48", "eleven", "no", "no", "0", "recorded"],
        ["55", "twelve", "[/]", "twelve", "no", "0", "recorded"],
    ]
