"""Long extraction from an endpoint that recites a part of one book."""

from __future__ import annotations

import shutil
from random import Random

import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command
from mia_batch.errors import EngineError, SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, plan
from mia_batch.pipeline.finished import draw_again
from mia_batch.pipeline.stages.views import answers_of
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, TinyModel

KNOWN = slice(128, 512)
"""The words of the first book that the endpoint recites, but for every 40th."""
ASKED = 160
"""The first of them that is asked for: the prefix of a window is half of its 64 words."""


def words(seed, n=1000):
    dice = Random(seed)
    return [f"{dice.choice('abcdefgh')}{dice.randrange(400)}é" for _ in range(n)]


class Reciting(TinyModel):
    """Goes on with the book where it knows it, else as the tiny model does."""

    def text(self, prompt, seed):
        said, known = prompt.split(), words("first")[KNOWN]
        recited = [word if at % 40 else "Oops" for at, word in enumerate(known)]
        ends = (at for at in range(3, len(known)) if known[at - 3 : at] == said[-3:])
        start = next(ends, len(known))
        others = super().text(prompt, seed).split() * 12
        return "".join(f" {word}" for word in (recited[start:] + others)[:70])


@pytest.fixture(autouse=True, scope="module")
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "x")
        yield


def settings_in(folder):
    names = ["first", "second"]
    texts = ["\n".join(words(name)) for name in names]
    pl.DataFrame({"document_id": names, "text": texts}).write_parquet(folder / "c.parquet")
    return {
        "input": str(folder / "c.parquet"),
        "model": MODEL,
        "preset": "matched",
        "samples": 1,
        "window_words": 64,
        "extract": True,
        "report": False,
        "out": str(folder / "run"),
    }


@pytest.fixture
def settings(tmp_path):
    return settings_in(tmp_path)


def tables(run):
    return [run.scan(name).collect() for name in ("extraction", "extracted_documents")]


def walked(run):
    return sorted(run.path("samples").glob("*.target-walk-*"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An audit, the number of requests that it took, and the server, which goes on."""
    with HostileServer(Reciting()) as server:
        settings = settings_in(tmp_path_factory.mktemp("finished")) | {"base_url": server.url}
        run = mia_batch.audit(**settings)
        yield settings, run, len(server.asked), server


@pytest.fixture
def recited(finished, tmp_path):
    """A copy of the audit, the number of requests until now, and the server."""
    settings, run, _, server = finished
    shutil.copytree(run.folder, tmp_path / "run")
    copied = settings | {"out": str(tmp_path / "run")}
    return copied, Run(tmp_path / "run"), len(server.asked), server


def test_what_a_model_recites_comes_out_and_nothing_of_what_it_never_saw(recited):
    text = "\n".join(words("first"))
    stretches, documents = tables(recited[1])
    of_first = stretches.filter(document_id="first").rows(named=True)
    places = {at for row in of_first for at in range(row["start"], row["end"])}
    asked = text.index("\n".join(words("first")[ASKED : KNOWN.stop]))
    known = range(asked, asked + len("\n".join(words("first")[ASKED : KNOWN.stop])))
    assert len(places & set(known)) >= 0.99 * len(known)
    assert not places - set(known)
    for row in of_first:
        assert len(text[row["start"] : row["end"]].split()) == row["n_words"]
    unseen = stretches.filter(document_id="second")
    assert unseen.select(pl.col("n_words", "n_verbatim").sum()).row(0) == (0, 0)
    assert (unseen["n_rounds"].to_list(), (unseen["start"] == unseen["end"]).all()) == (
        [1] * 3,
        True,
    )
    n_words, n_right = KNOWN.stop - ASKED, len([n for n in range(32, 384) if n % 40])
    first, second = documents.rows(named=True)
    assert (first["coverage"], first["longest_words"]) == (n_words / 1000, n_words)
    assert first["near_verbatim_recall"] == n_right / 1000 == stretches["n_verbatim"].sum() / 1000
    assert 0.33 < first["bmc_5"] <= n_right / 1000
    assert (first["bmc_5_others"], first["n_others"]) == (0, 1)
    runs = [range(40 * n, 40 * n + 40) for n in range(10)]  # between words that it says wrong
    shared = [len({*run} & {*range(33, 384)}) - 1 for run in runs]
    assert len(first["passages_20"]) == sum(n >= 20 for n in shared)
    assert (first["passages_50"], second["passages_20"]) == ([], [])
    for place in first["passages_20"]:
        assert len(text[place["start"] : place["end"]].split()) >= 20
    row = recited[1]["rollup"].filter(key="first").row(0, named=True)
    assert (row["n_passages_50"], row["passages_from"]) == (0, "samples and walks")
    assert row["n_passages_20"] == len(first["passages_20"])
    assert [second[name] for name in ("coverage", "bmc_5", "longest_words")] == [0, 0, 0]


def test_a_run_goes_on_where_it_was_killed(recited):
    """What was said before is not asked for again; the tables come out the same."""
    settings, run, n_asked, server = recited
    before, prompts = tables(run), run["prompts"].filter(view="walk")
    assert set(prompts["context"]) <= {asked.prompt for asked in server.asked}
    lost = walked(run)[1::2]
    n_lost = sum(pl.read_parquet(path).height for path in lost)
    for path in (*lost, run.folder / "journal.sqlite"):
        path.unlink()
    again = mia_batch.audit(**settings)
    assert all(map(pl.DataFrame.equals, tables(again), before))
    assert len(server.asked) == n_asked + n_lost > n_asked
    assert again["prompts"].filter(view="walk").equals(prompts)


def test_the_budget_ends_walks_and_more_goes_on(finished, recited):
    settings, run, n_asked, server = recited
    other = settings | {"out": f"{run.folder}-2", "extract_tokens": 6, "extract_starts": 1}
    little = mia_batch.audit(**other)
    assert tables(little)[0].select("walk", "n_rounds", "n_tokens").rows() == [(0, 1, 6)] * 2
    more = mia_batch.audit(**other | {"extract_tokens": 2000, "extract_starts": 3})
    assert all(map(pl.DataFrame.equals, tables(more), tables(run)))
    assert len(server.asked) == n_asked + finished[2]


class Wavering(Reciting):
    """Recites after some seeds only, and never the most likely words."""

    def text(self, prompt, seed):
        return super().text(prompt if seed % 3 == 1 else "", seed)


def test_where_the_most_likely_words_lead_nowhere_walks_are_drawn(settings):
    with HostileServer(Wavering()) as server:
        settings = settings | {"base_url": server.url, "extract_starts": 6, "max_failed": 1.0}
        greedy = tables(mia_batch.audit(**settings))[0]
        n_drawn = tables(mia_batch.audit(**settings | {"extract_draws": 1}))[0].height
        more = mia_batch.audit(**settings | {"extract_draws": 3})
        n_asked = len(server.asked)
        for part in walked(more) + sorted(more.path("samples").glob("*.target-drawn_walk-*")):
            part.unlink()
        again = mia_batch.audit(**settings | {"extract_draws": 3})
        assert len(server.asked) == n_asked  # all of it is in the journal
        still = {"extract_draws": 1, "temperature": 0, "out": f"{more.folder}-3"}
        with pytest.raises(SettingsError, match="'extract_draws' draws words; at temperature 0"):
            mia_batch.audit(**settings | still)
        at_once = mia_batch.audit(**settings | {"extract_draws": 3, "out": f"{more.folder}-2"})
    assert all(map(pl.DataFrame.equals, tables(again), tables(at_once)))
    found = tables(at_once)[0].sort("draw").group_by("document_id", "target_id").agg("n_words")
    tried = dict(zip(found["target_id"], found["n_words"].to_list(), strict=True))
    assert all(not any(words[:-1]) for words in tried.values())  # nothing follows what came out
    assert any(words[-1] and len(words) > 1 for words in tried.values())
    of_second = found.filter(document_id="second")["n_words"].list.len()
    assert of_second.to_list() == [4] * 6
    assert greedy["draw"].max() == 0
    assert greedy.height < n_drawn


def test_the_cost_limit_holds_for_walks(settings):
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        mia_batch.audit(**settings | {"extract": False})
        n_asked = len(server.asked)
        prices = {"price_in": 0, "price_out": 1, "max_cost": (6 * n_asked + 50) / 1e6}
        with pytest.raises(EngineError, match="same command with a higher 'max_cost'"):
            mia_batch.audit(**settings | prices)
        assert len(server.asked) == n_asked
        whole = mia_batch.audit(**settings)
        alone = mia_batch.audit(**settings | {"out": f"{whole.folder}-2"})
    assert all(map(pl.DataFrame.equals, tables(whole), tables(alone)))


def test_what_stands_before_the_strongest_window_comes_out_too(recited):
    """Of one start, in the one window where no word is wrong, the whole stretch comes out."""
    settings, run, *_ = recited
    one = mia_batch.audit(**settings | {"out": f"{run.folder}-2", "extract_starts": 1})
    stretches, documents = tables(one)
    starts = stretches.filter(pl.col("n_words") > 0, document_id="first")["start"].to_list()
    assert len(starts) > 1
    assert starts == sorted(starts, reverse=True)
    whole = tables(run)[1]
    assert documents["coverage"].to_list() == whole["coverage"].to_list() == [0.352, 0.0]
    assert stretches.filter(document_id="second").height == 1


def test_scores_do_not_depend_on_walks(recited):
    settings, run, *_ = recited
    without = mia_batch.audit(**settings | {"out": f"{run.folder}-2", "extract": False})
    assert run["scores"].equals(without["scores"])
    assert not without.path("extraction").exists()
    again = mia_batch.audit(**settings | {"attacks": "samia_matched_v1"})
    assert again["scores"]["n_samples"].equals(without["scores"]["n_samples"])


def test_what_is_refused_or_foreseen(settings, tmp_path):
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        said = dict(plan(load_settings(settings)))
        assert said["extraction"] == "of 2 documents, each at most 2,000 tokens and a round"
        unnamed = pl.DataFrame({"text": [" ".join(words("first"))]})
        unnamed.write_parquet(tmp_path / "unnamed.parquet")
        with pytest.raises(SettingsError, match="'extract' needs documents with names; add a col"):
            mia_batch.audit(**settings | {"input": str(tmp_path / "unnamed.parquet")})


def test_walks_are_shown_and_drawn_again(recited):
    settings, run, *_ = recited
    samples = run["samples"].filter(view="walk")
    drawn = draw_again(run, samples, Observer(), base_url=settings["base_url"])
    assert drawn["again"].equals(drawn["candidate"], null_equal=True)
    target_id = samples["target_id"][0]
    answers = answers_of(run, run["targets"].filter(target_id=target_id)).filter(view="walk")
    asked = run["prompts"].filter(view="walk", target_id=target_id).sort("view_index")
    assert answers.select("context", "text").equals(asked.select("context", "text"))
    assert answers["seed"].null_count() == answers.height
    shown = CliRunner().invoke(command, ["show", str(run.folder), target_id], env={"COLUMNS": "99"})
    assert "walk, target model" in shown.stdout
    prefixes = [line for line in shown.stdout.splitlines() if line.startswith("prefix")]
    assert len(prefixes) == 1 + asked.height
