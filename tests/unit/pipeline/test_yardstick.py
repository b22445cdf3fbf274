"""Audits with texts of known exposure beside the audited ones."""

from __future__ import annotations

from random import Random

import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command
from mia_batch.errors import CorpusError
from mia_batch.pipeline import plan
from mia_batch.pipeline.corpora import open_corpora, with_yardstick
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, TinyModel

ATTACK = "samia_matched_v1"


def words(seed, n=48):
    dice = Random(seed)
    return [f"{dice.choice('abcdefgh')}{dice.randrange(400)}" for _ in range(n)]


def texts(name, n):
    rows = [
        {"document_id": f"{name}{at}", "text": " ".join(words(f"{name}{at}"))} for at in range(n)
    ]
    return pl.DataFrame(rows)


class Reciting(TinyModel):
    """Goes on with the passages that were copied often."""

    def text(self, prompt, seed):
        for at in range(6):
            known = words(f"often{at}")
            if prompt.split()[-3:] == known[21:24]:
                return "".join(f" {word}" for word in known[24:])
        return super().text(prompt, seed) + " " + " ".join(words(prompt, 40))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yardstick")
    texts("asked", 3).write_parquet(folder / "c.parquet")
    texts("new", 40).write_parquet(folder / "new.parquet")
    levels = [texts(name, 6).with_columns(level=pl.lit(n)) for name, n in (("often", 64), ("x", 0))]
    pl.concat(levels).write_parquet(folder / "known.parquet")
    return {
        "input": str(folder / "c.parquet"),
        "non_members": str(folder / "new.parquet"),
        "non_members_known": "written last week",
        "yardstick": str(folder / "known.parquet"),
        "model": MODEL,
        "preset": "matched",
        "samples": 1,
        "q": 0.1,
    }


@pytest.fixture(scope="module")
def runs(settings, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, HostileServer(Reciting()) as server:
        patch.setenv("OPENAI_API_KEY", "x")
        folder = tmp_path_factory.mktemp("runs")
        asked = settings | {"base_url": server.url}
        alone = {"yardstick": "none", "out": str(tmp_path_factory.mktemp("alone") / "run")}
        return [
            mia_batch.audit(**asked, out=str(folder / "with")),
            mia_batch.audit(**asked | alone),
        ]


def test_what_comes_out_of_each_level_is_said_beside_what_is_not_reported(runs, settings):
    said = " ".join(conclusions(runs[0], load_settings(settings), [ATTACK]))
    assert "None of 3 targets is reported at q = 0.1" in said
    assert "(20 words in a row, or all that follow): 64: 6 of 6; 0: 0 of 6." in said
    assert f"outside the training data ({ATTACK}): 64: 6 of 6; 0: 0 of 6." in said
    assert "64: 1.00 (0.54 to 1.00); 0: 0.00 (0.00 to 0.46)" in said


def test_the_audited_texts_have_the_answers_that_they_have_without(runs):
    beside, alone = (run["verdicts"].sort("attack", "level", "key") for run in runs)
    assert beside.equals(alone)
    assert runs[0]["metrics"].equals(runs[1]["metrics"])
    assert runs[0]["rollup"].equals(runs[1]["rollup"])
    of_yardstick = pl.col("check").is_in(["yardstick", "absence", "answers"])
    beside, alone = (run["findings"].filter(~of_yardstick) for run in runs)
    assert beside.equals(alone)
    assert runs[0]["targets"].group_by("role").len().sort("role").rows() == [
        ("target", 3),
        ("non_member", 40),
        ("yardstick", 12),
    ]


def test_a_yardstick_without_levels_is_refused(settings, tmp_path):
    path = tmp_path / "known.parquet"
    wrong = load_settings(settings | {"yardstick": str(path)})
    texts("known", 2).write_parquet(path)
    with pytest.raises(CorpusError, match="has no column level; give each text one"):
        open_corpora(wrong)
    texts("known", 2).with_columns(level=pl.Series([1, None])).write_parquet(path)
    with pytest.raises(CorpusError, match="have no level; give each one"):
        open_corpora(wrong)


def test_books_have_the_classics_unless_they_are_not_wanted(tmp_path, checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text(" ".join(words("a", 300)))
    given = {"input": "books", "model": str(checkpoint), "window_words": 64, "out": "run"}
    left = dict(plan(load_settings(given)))
    said = "115 of these targets, 7,360 words; --no-yardstick leaves them out"
    assert (left["targets"], left["yardstick"]) == ("119", said)
    settings = with_yardstick(load_settings(given))
    own = open_corpora(settings).targets(settings).filter(role="yardstick").collect()
    assert own.group_by("group", maintain_order=True).len().rows() == [
        ("most copied", 39),
        ("well known", 42),
        ("rarely copied", 34),
    ]
    assert (
        own["reason"].null_count() == own["member"].null_count() == own["target"].n_unique() == 115
    )
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    done = CliRunner().invoke(command, [*options, "--no-yardstick", "--dry-run"])
    assert "of these targets" not in done.output
    assert done.exit_code == 0
    assert with_yardstick(load_settings(given | {"samples_from": "x"})).yardstick is None
