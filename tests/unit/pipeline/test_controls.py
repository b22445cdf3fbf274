"""Controls of what an endpoint recites: its own passages, a formula after anything, a quotation."""

from __future__ import annotations

import shutil
from random import Random
from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch.errors import SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, plan
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.finished import draw_again
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, TinyModel, failure

CONTROLS = ("unrelated_prefix", "unrelated_prefix_16_words", "other_document")


def words(seed, n=32):
    dice = Random(seed)
    return " ".join(f"{dice.choice('abcdefgh')}{dice.randrange(400)}é" for _ in range(n))


FORMULA = words("formula")
HALVES = {
    "known": (words("k1"), words("k2")),
    "formula": (words("f1"), FORMULA),
    "quoted": (words("q1"), words("q2")),
    "quoting": (words("z1"), f"So he said: {words('q2', 25).upper()}. {words('z2', 6)}"),
    "other": (words("o1"), words("o2")),
}
"""Both halves of each document; all of "quoted" comes out, but "quoting" has its words, too."""


class Reciting(TinyModel):
    """Goes on with what it knows after the last three words before it, else says the formula."""

    def text(self, prompt, seed):
        for name in ("known", "quoted"):
            prefix, reference = HALVES[name]
            if prompt.split()[-3:] == prefix.split()[-3:]:
                return f" {reference} and so on"
        return f" {FORMULA} and so on"


def documents(names=tuple(HALVES)):
    texts = [" ".join(HALVES[name]) for name in names]
    return pl.DataFrame({"document_id": names, "text": texts})


def settings_in(folder):
    documents().write_parquet(folder / "c.parquet")
    return {
        "input": str(folder / "c.parquet"),
        "model": MODEL,
        "preset": "matched",
        "samples": 2,
        "window_words": 64,
        "controls": True,
        "max_failed": 1.0,  # most prompts are answered alike
        "report": False,
        "out": str(folder / "run"),
    }


@pytest.fixture(autouse=True, scope="module")
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "x")
        yield


@pytest.fixture
def settings(tmp_path):
    return settings_in(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An audit, which is only read, and the server, which goes on."""
    with HostileServer(Reciting()) as server:
        settings = settings_in(tmp_path_factory.mktemp("finished")) | {"base_url": server.url}
        yield settings, mia_batch.audit(**settings), server


@pytest.fixture
def audited(finished, tmp_path):
    """A copy of the audit that a test may change."""
    settings, run, server = finished
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.copy(settings["input"], tmp_path / "c.parquet")
    copied = {"input": str(tmp_path / "c.parquet"), "out": str(tmp_path / "run")}
    return settings | copied, Run(tmp_path / "run"), server


def controls(run):
    """Rows of the table by document and control."""
    named = run["targets"].select("target_id", "document_id")
    rows = run.scan("controls").collect().join(named, on="target_id", how="left")
    return {(row["document_id"], row["control"]): row for row in rows.iter_rows(named=True)}


def test_what_comes_out_after_anything_or_stands_elsewhere_is_common(finished):
    _, run, _ = finished
    found = controls(run)
    assert [*found] == [
        (name, each) for name in ("known", "formula", "quoted") for each in CONTROLS
    ]
    longest = {key: row["longest_words"] for key, row in found.items()}
    assert [longest["known", each] for each in CONTROLS] == [0, 32, None]
    assert [longest["formula", each] for each in CONTROLS] == [32, 32, None]
    assert longest["quoted", "other_document"] == 25
    assert {key for key, row in found.items() if row["common"]} == {
        ("formula", "unrelated_prefix"),
        ("quoted", "other_document"),
    }
    assert found["quoted", "other_document"]["other_document"] == "quoting"
    assert found["known", "unrelated_prefix"]["n_samples"] == 2
    assert found["known", "unrelated_prefix"]["other_document"] in {*HALVES} - {"known"}
    assert found["known", "other_document"]["reason"].startswith("no other document has 20 words")
    assert all(
        (row["longest_words"] is None) == (row["reason"] is not None) for row in found.values()
    )


def test_prompts_are_those_of_other_documents(finished):
    _, run, server = finished
    prefixes = {" ".join(HALVES[name][0].split()): name for name in HALVES}
    asked = run["prompts"].filter(view="control").sort("target_id", "view_index")
    for target_id, rows in asked.group_by("target_id", maintain_order=True):
        own = run["targets"].filter(target_id=target_id[0]).row(0, named=True)
        alone, with_last = rows["context"]
        assert prefixes[alone] != own["document_id"]
        assert with_last == f"{alone} {' '.join(own['prefix'].split()[-16:])}"
        assert rows["text"].to_list() == [None, None]
    assert {*asked["context"]} <= {each.prompt for each in server.asked}
    assert run.manifest.controls == {
        "any": {"passages": 3, "common": 2},
        "unrelated_prefix": {"passages": 3, "repeated": 1},
        "unrelated_prefix_16_words": {"passages": 3, "repeated": 3},
        "other_document": {"passages": 3, "repeated": 1},
    }


def test_common_passages_are_no_evidence(settings, tmp_path):
    tails = pl.Series([words(f"tail of {name}", 64) for name in HALVES])
    longer = documents().with_columns(text=pl.col("text") + " " + tails)
    longer.write_parquet(settings["input"])
    names = ("key", "verdict", "longest_words", "share_verbatim", "share_near_verbatim", "n_common")
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        run = mia_batch.audit(**settings)
        other = settings | {"controls": False, "out": str(tmp_path / "other")}
        without = mia_batch.audit(**other)["rollup"]
        rolled = mia_batch.audit(**other | {"controls": True})["rollup"]
    assert run["rollup"].select(names).rows()[:3] == [
        ("known", "comes_out", 32, 0.5, 0.5, 0),
        ("formula", "cannot_tell", 0, 0, 0, 1),
        ("quoted", "cannot_tell", 0, 0, 0, 1),
    ]
    assert without.select(names).rows()[:3] == [
        (name, "comes_out", 32, 0.5, 0.5, None) for name in ("known", "formula", "quoted")
    ]
    assert rolled.equals(run["rollup"])


def test_a_run_goes_on_where_it_was_killed(audited):
    """What was said before is not asked for again; the table comes out the same."""
    settings, run, server = audited
    before, n_asked, root = (
        run.scan("controls").collect(),
        len(server.asked),
        verify(run.folder).root,
    )
    for path in run.path("samples").glob("*control*"):
        path.unlink()
    for name in ("journal.sqlite", "controls.parquet"):
        (run.folder / name).unlink()
    again = mia_batch.audit(**settings)
    assert len(server.asked) == n_asked + 6
    assert again.scan("controls").collect().equals(before)
    assert verify(run.folder).root == root
    assert len(server.asked) == n_asked + 6
    mia_batch.audit(**settings)
    assert len(server.asked) == n_asked + 6


def test_more_samples_and_texts_ask_for_what_is_missing(audited, tmp_path):
    settings, run, server = audited
    n_asked, prompts = len(server.asked), run["prompts"].filter(view="control")
    more = mia_batch.audit(**settings | {"samples": 3})
    assert len(server.asked) == n_asked + 5 + 6
    assert controls(more)["known", "unrelated_prefix"]["n_samples"] == 3
    names = ["new", *HALVES]
    texts = [f"{words('n1')} {FORMULA}", *documents()["text"]]
    pl.DataFrame({"document_id": names, "text": texts}).write_parquet(tmp_path / "c.parquet")
    grown = mia_batch.audit(**settings | {"samples": 3})
    assert len(server.asked) == n_asked + 5 + 6 + 1 + 2
    assert (
        grown["prompts"]
        .filter(view="control")
        .join(prompts, on="target_id", how="semi")
        .sort("target_id", "view_index")
        .equals(prompts.sort("target_id", "view_index"))
    )
    found = controls(grown)
    assert found["new", "other_document"]["other_document"] == "formula"
    assert found["formula", "other_document"]["other_document"] == "new"


def test_without_the_setting_nothing_is_asked_and_what_is_known_stays(audited, tmp_path):
    settings, run, server = audited
    n_asked, before = len(server.asked), run.manifest.controls
    again = mia_batch.audit(**settings | {"controls": False})
    assert (len(server.asked), again.manifest.controls) == (n_asked, before)
    other = settings | {"controls": False, "out": str(tmp_path / "other")}
    plain = mia_batch.audit(**other)
    assert not plain.path("controls").exists()
    assert plain.manifest.controls == {}
    assert plain["scores"].equals(run["scores"])
    added = mia_batch.audit(**other | {"controls": True})
    assert added.scan("controls").collect().equals(run.scan("controls").collect())
    assert added["scores"].equals(run["scores"])


def test_controls_are_drawn_again_and_verified(audited):
    settings, run, _ = audited
    controls = run["samples"].filter(view="control")
    drawn = draw_again(run, controls, Observer(), base_url=settings["base_url"])
    assert drawn.height == 12
    assert drawn["again"].equals(drawn["candidate"])
    assert "controls.parquet" in run.manifest.custody["tables"]
    path = run.path("controls")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert verify(run.folder).faults == [("controls.parquet", "changed")]


def test_documents_of_one_group_are_not_each_others_controls(settings):
    group = ["a", "b", "quote", "quote", "c"]
    documents().with_columns(group=pl.Series(group)).write_parquet(settings["input"])
    with HostileServer(Reciting()) as server:
        found = controls(mia_batch.audit(**settings | {"base_url": server.url}))
    assert found["quoted", "other_document"]["common"] is False
    assert found["quoted", "unrelated_prefix"]["other_document"] != "quoting"


def test_a_single_document_has_nothing_unrelated(settings):
    documents(["known"]).write_parquet(settings["input"])
    with HostileServer(Reciting()) as server:
        run = mia_batch.audit(**settings | {"base_url": server.url})
        found = controls(run)
        reason = "no document of another group has a prefix to put in its place"
        for control in CONTROLS[:2]:
            row = found["known", control]
            assert (row["n_samples"], row["longest_words"], row["reason"]) == (0, None, reason)
            assert row["common"] is None
        alone = found["known", "other_document"]
        assert alone["reason"] == "there is no document of another group"
        assert alone["common"] is None
        assert run["prompts"].filter(view="control").is_empty()
        mia_batch.audit(**settings | {"base_url": server.url})
        assert len(server.asked) == 1


def test_where_nothing_comes_out_there_is_nothing_to_control(settings):
    with HostileServer(TinyModel()) as server:
        run = mia_batch.audit(**settings | {"base_url": server.url})
    assert run.scan("controls").collect().is_empty()
    assert run.manifest.controls == {"any": {"passages": 0, "common": 0}}


def test_non_members_are_searched_too(settings, tmp_path):
    asked, others = documents(["known", "formula"]), documents(["quoting"])
    asked.vstack(documents(["quoted"])).write_parquet(settings["input"])
    others.write_parquet(tmp_path / "n.parquet")
    more: dict[str, Any] = {
        "non_members": str(tmp_path / "n.parquet"),
        "non_members_known": "unpublished",
        "anyway": True,  # one text to compare with names nobody
    }
    with HostileServer(Reciting()) as server:
        found = controls(mia_batch.audit(**settings | more | {"base_url": server.url}))
    assert found["quoted", "other_document"]["other_document"] == "quoting"
    assert {name for name, _ in found} == {"known", "formula", "quoted"}


def test_a_recording_is_searched_and_asks_nobody(settings, finished, tmp_path):
    _, run, _ = finished
    recorded: dict[str, Any] = {
        "samples_from": str(run.path("samples")),
        "out": str(tmp_path / "recorded"),
    }
    kept = {name: settings[name] for name in ("input", "preset", "window_words", "controls")}
    found = controls(mia_batch.audit(**kept, **recorded))
    row = found["known", "unrelated_prefix"]
    assert row["reason"] == "the samples are a recording: there is no model to ask"
    assert row["common"] is None
    assert found["quoted", "other_document"]["common"] is True


class Walked(TinyModel):
    """Recites the first document after three words of it, else says the beginning of the second."""

    def text(self, prompt, seed):
        known = words("long", 300).split()
        said = prompt.split()[-3:]
        at = next((n for n in range(3, 300) if known[n - 3 : n] == said), None)
        told = words("far", 96).split()[-64:] if at is None else known[at : at + 64]
        return "".join(f" {word}" for word in [*told, "and", "so", "on"])


def test_what_only_a_walk_gave_has_controls(settings, tmp_path):
    """Attacks at points see no passage; the walk's own first words are asked for, greedily."""
    texts = {"long": words("long", 300), "far": f"{words('far', 96)} {words('end', 96)}"}
    texts["unknown"] = words("unknown", 64)
    columns = {"document_id": [*texts], "text": [*texts.values()]}
    pl.DataFrame(columns).write_parquet(settings["input"])
    del settings["samples"], settings["preset"]
    more = {"attacks": "probe_first_word_v1", "probes": 2, "extract": True, "extract_starts": 1}
    with HostileServer(Walked()) as server:
        settings = settings | more | {"base_url": server.url}
        run = mia_batch.audit(**settings)
        other = settings | {"controls": False, "out": str(tmp_path / "other")}
        without = mia_batch.audit(**other)["rollup"]
        walks = run["samples"].filter(view="walk_control")
        drawn = draw_again(run, walks, Observer(), base_url=server.url)
    assert drawn["again"].equals(drawn["candidate"])
    found = controls(run)
    repeated = {key: row["longest_words"] for key, row in found.items()}
    assert [repeated["far", each] for each in CONTROLS] == [64, 64, None]
    assert repeated["long", "unrelated_prefix"] < 5
    assert repeated["long", "unrelated_prefix_16_words"] == 64
    assert found["long", "unrelated_prefix"]["n_samples"] == 1
    names = ("key", "verdict", "extracted_words", "extracted_share", "n_common")
    assert run["rollup"].select(names).rows()[:2] == [
        ("long", "comes_out", 268, 268 / 300, 0),
        ("far", "cannot_tell", 0, 0, 1),
    ]
    assert without.select(names).rows()[1] == ("far", "comes_out", 64, 64 / 192, None)
    assert run.manifest.failed["targets"] == 0


def test_a_reference_model_that_says_it_too_makes_it_common(settings, checkpoint):
    with HostileServer(Reciting()) as server:
        more = {"base_url": server.url, "reference_model": str(checkpoint)}
        found = controls(mia_batch.audit(**settings | more))
    row = found["known", "reference_model"]
    assert (row["n_samples"], row["common"], row["reason"]) == (2, False, None)
    assert row["longest_words"] < 5
    assert [control for name, control in found if name == "known"] == [
        *CONTROLS[:2],
        "reference_model",
        CONTROLS[2],
    ]


def test_what_fails_has_its_reason_and_marks_nothing(settings):
    """An endpoint that refuses what it never knew; asked again, it is left or tried as wanted."""

    class Refusing(Reciting):
        refuses_all = True

        def __call__(self, asked):
            own = [prefix for prefix, _ in HALVES.values()]
            known = asked.is_probe or asked.method == "GET" or asked.prompt in own[:2]
            if known or not self.refuses_all:
                return super().__call__(asked)
            return failure(400, "not for you")

    endpoint = Refusing()
    with HostileServer(endpoint) as server:
        settings = settings | {"base_url": server.url}
        documents(["known", "other"]).write_parquet(settings["input"])
        run = mia_batch.audit(**settings)
        row = controls(run)["known", "unrelated_prefix"]
        assert (row["n_samples"], row["longest_words"], row["common"]) == (0, None, None)
        assert "not for you" in row["reason"]
        assert run.manifest.controls["unrelated_prefix"] == {"passages": 0, "repeated": 0}
        assert run.manifest.failed["targets"] == 1  # the other text, not the controls
        endpoint.refuses_all = False
        again = controls(mia_batch.audit(**settings | {"retry_failed": True}))
        row = again["known", "unrelated_prefix"]
        assert (row["n_samples"], row["common"], row["reason"]) == (2, False, None)


def test_what_is_refused_or_foreseen(settings):
    with HostileServer(Reciting()) as server:
        settings = settings | {"base_url": server.url}
        said = dict(plan(load_settings(settings)))
        assert said["controls"] == ("of what comes out, at most 5 passages, 10 prompts, 20 samples")
        walked = {"preset": "default", "extract": True, "samples": None, "extract_starts": 2}
        said = dict(plan(load_settings(settings | walked)))
        assert said["controls"] == "of what comes out, at most 5 passages, 10 prompts, 10 samples"
        with pytest.raises(SettingsError, match="'controls' is about passages that come out, and"):
            mia_batch.audit(**settings | {"preset": "default"})
