"""Long extraction from an endpoint that recites a part of one book."""

from __future__ import annotations

from random import Random

import polars as pl
import pytest

import mia_batch
from mia_batch.errors import SettingsError
from mia_batch.pipeline import plan
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


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    names = ["first", "second"]
    texts = ["\n".join(words(name)) for name in names]
    pl.DataFrame({"document_id": names, "text": texts}).write_parquet(tmp_path / "c.parquet")
    return {
        "input": str(tmp_path / "c.parquet"),
        "model": MODEL,
        "preset": "matched",
        "samples": 1,
        "window_words": 64,
        "extract": True,
        "out": str(tmp_path / "run"),
    }


def tables(run):
    return [run.scan(name).collect() for name in ("extraction", "extracted_documents")]


def walked(run):
    return sorted(run.path("samples").glob("*.target-walk-*"))


@pytest.fixture
def recited(settings):
    """An audit, the number of requests that it took, and the server, which goes on."""
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        run = mia_batch.audit(**settings)
        yield settings, run, len(server.asked), server


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
    assert [second[name] for name in ("coverage", "bmc_5", "longest_words")] == [0, 0, 0]


def test_a_run_goes_on_where_it_was_killed(recited):
    """What was said before is not asked for again; the tables come out the same."""
    settings, run, n_asked, server = recited
    before, prompts = tables(run), run.prompts.filter(view="walk")
    assert set(prompts["context"]) <= {asked.prompt for asked in server.asked}
    lost = walked(run)[1::2]
    n_lost = sum(pl.read_parquet(path).height for path in lost)
    for path in (*lost, run.folder / "journal.sqlite"):
        path.unlink()
    again = mia_batch.audit(**settings)
    assert all(map(pl.DataFrame.equals, tables(again), before))
    assert len(server.asked) == n_asked + n_lost > n_asked
    assert again.prompts.filter(view="walk").equals(prompts)


def test_the_budget_ends_walks_and_more_goes_on(recited):
    settings, run, n_asked, server = recited
    other = settings | {"out": f"{run.folder}-2", "extract_tokens": 6, "extract_starts": 1}
    little = mia_batch.audit(**other)
    assert tables(little)[0].select("walk", "n_rounds", "n_tokens").rows() == [(0, 1, 6)] * 2
    more = mia_batch.audit(**other | {"extract_tokens": 2000, "extract_starts": 3})
    assert all(map(pl.DataFrame.equals, tables(more), tables(run)))
    assert len(server.asked) == 2 * n_asked


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
    assert run.scores.equals(without.scores)
    assert not without.path("extraction").exists()
    again = mia_batch.audit(**settings | {"attacks": "samia_matched_v1"})
    assert again.scores["n_samples"].equals(without.scores["n_samples"])


def test_what_is_refused_or_foreseen(settings, tmp_path):
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        said = dict(plan(load_settings(settings)))
        assert said["extraction"] == "of 2 documents, each at most 2,000 tokens and a round"
        unnamed = pl.DataFrame({"text": [" ".join(words("first"))]})
        unnamed.write_parquet(tmp_path / "unnamed.parquet")
        with pytest.raises(SettingsError, match="'extract' needs documents with names; add a col"):
            mia_batch.audit(**settings | {"input": str(tmp_path / "unnamed.parquet")})
