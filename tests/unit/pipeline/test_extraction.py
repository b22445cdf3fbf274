"""Long extraction from an endpoint that recites a part of a book, and controls of it."""

from contextlib import contextmanager

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import EngineError, SettingsError
from mia_batch.observer import Observer
from mia_batch.pipeline.results import draw_again
from mia_batch.pipeline.stages.questions import read_answers
from tests import runs
from tests.hostile_server import HostileServer, TinyModel, failure
from tests.runs import (
    FORMULA,
    HALVES,
    KNOWN,
    RecitingOneBook,
    RecitingPassages,
    halves,
    passage,
    planned,
    words,
    written,
)

ASKED = 160
"""The first word that is asked for: the prefix of a window is half of its 64 words."""
CONTROLS = ("unrelated_prefix", "unrelated_prefix_16_words", "other_document")


@pytest.fixture
def walk_settings(tmp_path):
    (tmp_path / "of walks").mkdir()
    return runs.of_walks(tmp_path / "of walks") | {"out": str(tmp_path / "walked")}


@pytest.fixture
def settings(tmp_path):
    return runs.of_controls(tmp_path) | {"out": str(tmp_path / "run")}


def tables(run):
    return [run.scan(name).collect() for name in ("extraction", "extracted_documents")]


def list_walks(run):
    return sorted(run.path("samples").glob("*.target-walk-*"))


def test_what_a_model_recites_comes_out_and_nothing_of_what_it_never_saw(walks):
    text = "\n".join(words("first", 1000))
    stretches, documents = tables(walks.run)
    of_first = stretches.filter(document_id="first").rows(named=True)
    places = {
        position for row in of_first for position in range(row["start"], row["end"])
    }
    first_asked = text.index("\n".join(words("first", 1000)[ASKED : KNOWN.stop]))
    known_places = range(
        first_asked,
        first_asked + len("\n".join(words("first", 1000)[ASKED : KNOWN.stop])),
    )
    assert len(places & set(known_places)) >= 0.99 * len(known_places)
    assert not places - set(known_places)
    for row in of_first:
        assert len(text[row["start"] : row["end"]].split()) == row["n_words"]
    unseen = stretches.filter(document_id="second")
    assert unseen.select(pl.col("n_words", "n_verbatim").sum()).row(0) == (0, 0)
    assert unseen["n_rounds"].to_list() == [1] * 3
    assert unseen["start"].equals(unseen["end"])
    n_words, n_right = KNOWN.stop - ASKED, len([n for n in range(32, 384) if n % 40])
    first, second = documents.rows(named=True)
    assert first["coverage"] == n_words / 1000
    assert (
        first["near_verbatim_recall"]
        == n_right / 1000
        == stretches["n_verbatim"].sum() / 1000
    )
    assert 0.33 < first["bmc_5"] <= n_right / 1000
    assert (first["bmc_5_others"], first["n_others"]) == (0, 1)
    # Between words that it says wrong
    runs = [range(40 * n, 40 * n + 40) for n in range(10)]
    shared = [len({*run} & {*range(33, 384)}) - 1 for run in runs]
    assert len(first["passages_20"]) == sum(n >= 20 for n in shared)
    # A stretch that has wrong words is no run
    assert first["longest_words"] == max(shared)
    assert (first["passages_50"], second["passages_20"]) == ([], [])
    for place in first["passages_20"]:
        assert len(text[place["start"] : place["end"]].split()) >= 20
    row = walks.run["rollup"].filter(key="first").row(0, named=True)
    assert (row["n_passages_50"], row["passages_from"]) == (0, "samples and walks")
    assert row["n_passages_20"] == len(first["passages_20"])
    assert [second[name] for name in ("coverage", "bmc_5", "longest_words")] == [
        0,
        0,
        0,
    ]


def test_walks_with_fewer_or_more_starts_tokens_and_without_them(walks, copied_of):
    """Of one start, in the one window where no word is wrong, the whole stretch comes out."""
    settings, run, prompts_asked = copied_of(walks)
    other_settings = settings | {
        "out": f"{run.folder}-2",
        "extract_tokens": 6,
        "extract_starts": 1,
    }
    little = runs.audit(**other_settings)
    assert (
        tables(little)[0].select("walk", "n_rounds", "n_tokens").rows()
        == [(0, 1, 6)] * 2
    )
    stretches, documents = tables(
        runs.audit(**other_settings | {"extract_tokens": 2000})
    )
    starts = stretches.filter(pl.col("n_words") > 0, document_id="first")[
        "start"
    ].to_list()
    assert len(starts) > 1
    assert starts == sorted(starts, reverse=True)
    assert (
        documents["coverage"].to_list()
        == tables(run)[1]["coverage"].to_list()
        == [0.352, 0.0]
    )
    assert stretches.filter(document_id="second").height == 1
    more_starts = runs.audit(
        **other_settings | {"extract_tokens": 2000, "extract_starts": 3}
    )
    assert all(map(pl.DataFrame.equals, tables(more_starts), tables(run)))
    assert len(prompts_asked) == walks.n_asked


class Wavering(RecitingOneBook):
    """Recites after some seeds only, and never the most likely words."""

    def text(self, prompt, seed):
        return super().text(prompt if seed % 3 == 1 else "", seed)


def test_where_the_most_likely_words_lead_nowhere_walks_are_drawn(walk_settings):
    with HostileServer(Wavering()) as server:
        settings = walk_settings | {
            "base_url": server.url,
            "extract_starts": 6,
            "max_failed": 1.0,
        }
        greedy = tables(runs.audit(**settings))[0]
        n_drawn = tables(runs.audit(**settings | {"extract_draws": 1}))[0].height
        more_draws = runs.audit(**settings | {"extract_draws": 3})
        n_asked = len(server.asked)
        for part in list_walks(more_draws) + sorted(
            more_draws.path("samples").glob("*.target-drawn_walk-*")
        ):
            part.unlink()
        again = runs.audit(**settings | {"extract_draws": 3})
        assert len(server.asked) == n_asked  # all of it is in the journal
        still = {"extract_draws": 1, "temperature": 0, "out": f"{more_draws.folder}-3"}
        with pytest.raises(
            SettingsError, match="extract_draws= draws words; at temperature 0"
        ):
            runs.audit(**settings | still)
        at_once = runs.audit(
            **settings | {"extract_draws": 3, "out": f"{more_draws.folder}-2"}
        )
    assert all(map(pl.DataFrame.equals, tables(again), tables(at_once)))
    of_drawn = (
        tables(at_once)[0]
        .sort("draw")
        .group_by("document_id", "target_id")
        .agg("n_words")
    )
    n_words_tried = dict(
        zip(of_drawn["target_id"], of_drawn["n_words"].to_list(), strict=True)
    )
    # Nothing follows what came out
    assert all(not any(words[:-1]) for words in n_words_tried.values())
    assert any(words[-1] and len(words) > 1 for words in n_words_tried.values())
    of_second = of_drawn.filter(document_id="second")["n_words"].list.len()
    assert of_second.to_list() == [4] * 6
    assert greedy["draw"].max() == 0
    assert greedy.height < n_drawn


def test_without_walks_scores_are_the_same_and_the_cost_limit_holds_for_them(
    walk_settings, walks
):
    with HostileServer(RecitingOneBook()) as server:
        settings = walk_settings | {"base_url": server.url}
        without = runs.audit(**settings | {"extract": False})
        assert without["scores"].equals(walks.run["scores"])
        assert not without.path("extraction").exists()
        n_asked = len(server.asked)
        prices = {"price_in": 0, "price_out": 1, "max_cost": (6 * n_asked + 50) / 1e6}
        with pytest.raises(EngineError, match="same command with a higher max_cost="):
            runs.audit(**settings | prices)
        assert len(server.asked) == n_asked
        whole = runs.audit(**settings)
    assert all(map(pl.DataFrame.equals, tables(whole), tables(walks.run)))


def test_what_is_refused_or_foreseen(walk_settings, settings, tmp_path):
    nowhere = {"base_url": "http://127.0.0.1:9/v1"}  # nobody listens
    controls_line = "of what comes out, at most 5 passages, 10 prompts, {} samples"
    extraction_line = planned(walk_settings | nowhere)["extraction"]
    assert extraction_line == "of 2 documents, each at most 2,000 tokens and a round"
    assert planned(settings | nowhere)["controls"] == controls_line.format(20)
    del settings["samples"]
    walked = {"preset": "default", "extract": True, "extract_starts": 2}
    assert planned(settings | nowhere | walked)["controls"] == controls_line.format(10)
    texts = pl.DataFrame({"text": [passage("first", 1000)]})
    unnamed = {"input": written(tmp_path, texts, "unnamed")}
    with HostileServer(TinyModel()) as server:
        address = {"base_url": server.url}
        for walk_change, changed, message in (
            (walk_settings, unnamed, "extract= needs documents with names; add a col"),
            (
                settings,
                {"preset": "default", "continue_strongest": 0},
                "controls= is about passages that come out, and",
            ),
        ):
            with pytest.raises(SettingsError, match=message):
                runs.audit(**walk_change | address | changed)


def test_walks_are_shown_and_drawn_again(walks, copied_of):
    settings, run, _ = copied_of(walks)
    samples = run["samples"].filter(view="walk")
    drawn_samples = draw_again(run, samples, Observer(), base_url=settings["base_url"])
    assert drawn_samples["again"].equals(drawn_samples["candidate"], null_equal=True)
    target_id = samples["target_id"][0]
    answers = read_answers(run, run["targets"].filter(target_id=target_id)).filter(
        view="walk"
    )
    walk_prompts = (
        run["prompts"].filter(view="walk", target_id=target_id).sort("view_index")
    )
    assert answers.select("context", "text").equals(
        walk_prompts.select("context", "text")
    )
    assert answers["seed"].null_count() == answers.height
    result = CliRunner().invoke(
        command, ["show", str(run.folder), target_id], env={"COLUMNS": "99"}
    )
    assert "walk, target model" in result.stdout
    prefixes = [
        line for line in result.stdout.splitlines() if line.startswith("prefix")
    ]
    assert len(prefixes) == 1 + walk_prompts.height


# Controls.


def rows_of(run):
    document_of_target = run["targets"].select("target_id", "document_id")
    rows = (
        run.scan("controls")
        .collect()
        .join(document_of_target, on="target_id", how="left")
    )
    return {
        (row["document_id"], row["control"]): row for row in rows.iter_rows(named=True)
    }


@pytest.fixture
def audited(controls, copied_of):
    return copied_of(controls)


@contextmanager
def controlled(settings, answer, texts=None, **changed):
    """Audit other texts, or with other settings; what the endpoint was asked."""
    if texts is not None:
        texts.write_parquet(settings["input"])
    with HostileServer(answer) as server:
        settings = settings | changed | {"base_url": server.url}
        yield settings, runs.audit(**settings), server.asked


def test_what_comes_out_after_anything_or_stands_elsewhere_is_common_by_prompts_of_other_documents(
    controls,
):
    controls_by_key = rows_of(controls.run)
    came_out = ("known", "formula", "quoted")
    assert [*controls_by_key] == [
        (name, control) for name in came_out for control in CONTROLS
    ]
    longest = {key: row["longest_words"] for key, row in controls_by_key.items()}
    assert [longest["known", control] for control in CONTROLS] == [0, 32, None]
    assert [longest["formula", control] for control in CONTROLS] == [32, 32, None]
    assert longest["quoted", "other_document"] == 25
    assert {key for key, row in controls_by_key.items() if row["common"]} == {
        ("formula", "unrelated_prefix"),
        ("quoted", "other_document"),
    }
    assert controls_by_key["quoted", "other_document"]["other_document"] == "quoting"
    assert controls_by_key["known", "unrelated_prefix"]["n_samples"] == 2
    assert controls_by_key["known", "unrelated_prefix"]["other_document"] in {
        *HALVES
    } - {"known"}
    assert controls_by_key["known", "other_document"]["reason"].startswith(
        "no other document has 20 words"
    )
    assert all(
        (row["longest_words"] is None) == (row["reason"] is not None)
        for row in controls_by_key.values()
    )
    run = controls.run
    prefixes = {" ".join(HALVES[name][0].split()): name for name in HALVES}
    control_prompts = (
        run["prompts"].filter(view="control").sort("target_id", "view_index")
    )
    for target_id, rows in control_prompts.group_by("target_id", maintain_order=True):
        own_target = run["targets"].filter(target_id=target_id[0]).row(0, named=True)
        alone, with_last = rows["context"]
        assert prefixes[alone] != own_target["document_id"]
        assert with_last == f"{alone} {' '.join(own_target['prefix'].split()[-16:])}"
        assert rows["text"].to_list() == [None, None]
    assert run.manifest.controls == {
        "any": {"passages": 3, "common": 2},
        "unrelated_prefix": {"passages": 3, "repeated": 1},
        "unrelated_prefix_16_words": {"passages": 3, "repeated": 3},
        "other_document": {"passages": 3, "repeated": 1},
    }


def test_common_passages_are_no_evidence(settings, tmp_path):
    tails = pl.Series([passage(f"tail of {name}", 64) for name in HALVES])
    longer = halves().with_columns(text=pl.col("text") + " " + tails)
    names = (
        "key",
        "verdict",
        "longest_words",
        "share_verbatim",
        "share_near_verbatim",
        "n_common",
    )
    with controlled(settings, RecitingPassages(), longer) as (control_settings, run, _):
        other_settings = control_settings | {
            "controls": False,
            "out": str(tmp_path / "other"),
        }
        without = runs.audit(**other_settings)["rollup"]
        rolled = runs.audit(**other_settings | {"controls": True})["rollup"]
    assert run["rollup"].select(names).rows()[:3] == [
        ("known", "comes_out", 32, 0.5, 0.5, 0),
        ("formula", "cannot_tell", 0, 0, 0, 1),
        ("quoted", "cannot_tell", 0, 0, 0, 1),
    ]
    assert without.select(names).rows()[:3] == [
        (name, "comes_out", 32, 0.5, 0.5, None)
        for name in ("known", "formula", "quoted")
    ]
    assert rolled.equals(run["rollup"])


def test_more_samples_and_texts_ask_for_what_is_missing(audited):
    settings, run, prompts_asked = audited
    prompts = run["prompts"].filter(view="control")
    more_samples = runs.audit(**settings | {"samples": 3})
    assert len(prompts_asked) == 5 + 6
    assert rows_of(more_samples)["known", "unrelated_prefix"]["n_samples"] == 3
    names = ["new", *HALVES]
    texts = [f"{passage('n1')} {FORMULA}", *halves()["text"]]
    pl.DataFrame({"document_id": names, "text": texts}).write_parquet(settings["input"])
    grown = runs.audit(**settings | {"samples": 3})
    assert len(prompts_asked) == 5 + 6 + 1 + 2
    key = ["target_id", "view_index"]
    kept_prompts = (
        grown["prompts"]
        .filter(view="control")
        .join(prompts, on="target_id", how="semi")
    )
    assert kept_prompts.sort(key).equals(prompts.sort(key))
    controls_by_key = rows_of(grown)
    assert controls_by_key["new", "other_document"]["other_document"] == "formula"
    assert controls_by_key["formula", "other_document"]["other_document"] == "new"


def test_without_the_setting_nothing_is_asked_and_what_is_known_stays(
    audited, tmp_path
):
    settings, run, prompts_asked = audited
    controls_before = run.manifest.controls
    again = runs.audit(**settings | {"controls": False})
    assert (prompts_asked, again.manifest.controls) == ([], controls_before)
    other_settings = settings | {"controls": False, "out": str(tmp_path / "other")}
    plain = runs.audit(**other_settings)
    assert not plain.path("controls").exists()
    assert plain.manifest.controls == {}
    assert plain["scores"].equals(run["scores"])
    added = runs.audit(**other_settings | {"controls": True})
    assert added.scan("controls").collect().equals(run.scan("controls").collect())
    assert added["scores"].equals(run["scores"])


def test_controls_are_drawn_again(audited):
    settings, run, _ = audited
    controls = run["samples"].filter(view="control")
    drawn_samples = draw_again(run, controls, Observer(), base_url=settings["base_url"])
    assert drawn_samples.height == 12
    assert drawn_samples["again"].equals(drawn_samples["candidate"])
    assert "controls.parquet" in run.manifest.custody["tables"]


def test_documents_of_one_group_are_not_each_others_controls(settings):
    texts = halves().with_columns(group=pl.Series(["a", "b", "quote", "quote", "c"]))
    with controlled(settings, RecitingPassages(), texts) as (_, run, _):
        controls_by_key = rows_of(run)
    assert controls_by_key["quoted", "other_document"]["common"] is False
    assert controls_by_key["quoted", "unrelated_prefix"]["other_document"] != "quoting"


def test_a_single_document_has_nothing_unrelated(settings):
    with controlled(settings, RecitingPassages(), halves(("known",))) as (
        control_settings,
        run,
        prompts_asked,
    ):
        runs.audit(**control_settings)
        assert len(prompts_asked) == 1
    controls_by_key = rows_of(run)
    reason = "no document of another group has a prefix to put in its place"
    for control in CONTROLS[:2]:
        row = controls_by_key["known", control]
        assert (row["n_samples"], row["longest_words"], row["reason"]) == (
            0,
            None,
            reason,
        )
        assert row["common"] is None
    alone = controls_by_key["known", "other_document"]
    assert alone["reason"] == "there is no document of another group"
    assert alone["common"] is None
    assert run["prompts"].filter(view="control").is_empty()


def test_where_nothing_comes_out_there_is_nothing_to_control(settings):
    with controlled(settings, TinyModel()) as (_, run, _):
        assert run.scan("controls").collect().is_empty()
        assert run.manifest.controls == {"any": {"passages": 0, "common": 0}}


def test_non_members_are_searched_too(settings, tmp_path):
    more_settings = {
        "non_members": written(tmp_path, halves(("quoting",)), "others"),
        "non_members_known": "unpublished",
        "anyway": True,  # one text to compare with names nobody
    }
    audited_halves = halves(("known", "formula", "quoted"))
    with controlled(settings, RecitingPassages(), audited_halves, **more_settings) as (
        _,
        run,
        _,
    ):
        controls_by_key = rows_of(run)
    assert controls_by_key["quoted", "other_document"]["other_document"] == "quoting"
    assert {name for name, _ in controls_by_key} == {"known", "formula", "quoted"}


def test_a_recording_is_searched_and_asks_nobody(settings, controls, tmp_path):
    recording_settings = {
        name: settings[name] for name in ("input", "preset", "window_words", "controls")
    }
    recording_settings |= {
        "samples_from": str(controls.run.path("samples")),
        "out": str(tmp_path / "recorded"),
    }
    controls_by_key = rows_of(runs.audit(**recording_settings))
    row = controls_by_key["known", "unrelated_prefix"]
    assert row["reason"] == "the samples are a recording: there is no model to ask"
    assert row["common"] is None
    assert controls_by_key["quoted", "other_document"]["common"] is True


class Walked(TinyModel):
    """Recites the first document after three words of it, else says the beginning of the second."""

    def text(self, prompt, seed):
        long_text = words("long", 300)
        last_words = prompt.split()[-3:]
        place = next(
            (n for n in range(3, 300) if long_text[n - 3 : n] == last_words), None
        )
        last_words = (
            words("far", 96)[-64:] if place is None else long_text[place : place + 64]
        )
        return "".join(f" {word}" for word in [*last_words, "and", "so", "on"])


def test_what_only_a_walk_gave_has_controls(settings, tmp_path):
    """Attacks at points see no passage; the walk's own first words are asked for, greedily."""
    texts = {
        "long": passage("long", 300),
        "far": f"{passage('far', 96)} {passage('end', 96)}",
    }
    texts["unknown"] = passage("unknown", 64)
    columns = pl.DataFrame({"document_id": [*texts], "text": [*texts.values()]})
    del settings["samples"], settings["preset"]
    more_settings = {
        "attacks": "probe_first_word_v1",
        "probes": 2,
        "extract": True,
        "extract_starts": 1,
    }
    with controlled(settings, Walked(), columns, **more_settings) as (
        settings_given,
        run,
        _,
    ):
        other_settings = settings_given | {
            "controls": False,
            "out": str(tmp_path / "other"),
        }
        without = runs.audit(**other_settings)["rollup"]
        walks = run["samples"].filter(view="walk_control")
        drawn_samples = draw_again(
            run, walks, Observer(), base_url=settings_given["base_url"]
        )
    assert drawn_samples["again"].equals(drawn_samples["candidate"])
    controls_by_key = rows_of(run)
    repeated = {key: row["longest_words"] for key, row in controls_by_key.items()}
    assert [repeated["far", control] for control in CONTROLS] == [64, 64, None]
    assert repeated["long", "unrelated_prefix"] < 5
    assert repeated["long", "unrelated_prefix_16_words"] == 64
    assert controls_by_key["long", "unrelated_prefix"]["n_samples"] == 1
    names = ("key", "verdict", "extracted_words", "extracted_share", "n_common")
    assert run["rollup"].select(names).rows()[:2] == [
        ("long", "comes_out", 268, 268 / 300, 0),
        ("far", "cannot_tell", 0, 0, 1),
    ]
    assert without.select(names).rows()[1] == ("far", "comes_out", 64, 64 / 192, None)
    assert run.manifest.failed["targets"] == 0


def test_a_reference_model_that_says_it_too_makes_it_common(settings, checkpoint):
    reference_settings = {"reference_model": str(checkpoint)}
    with controlled(settings, RecitingPassages(), **reference_settings) as (_, run, _):
        controls_by_key = rows_of(run)
    row = controls_by_key["known", "reference_model"]
    assert (row["n_samples"], row["common"], row["reason"]) == (2, False, None)
    assert row["longest_words"] < 5
    of_known = [control for name, control in controls_by_key if name == "known"]
    assert of_known == [*CONTROLS[:2], "reference_model", CONTROLS[2]]


def test_what_fails_has_its_reason_and_marks_nothing(settings):
    """An endpoint that refuses what it never knew; asked again, it is left or tried as wanted."""

    class Refusing(RecitingPassages):
        refuses_all = True

        def __call__(self, request):
            own_prefixes = [prefix for prefix, _ in HALVES.values()]
            is_answered = (
                request.is_probe
                or request.method == "GET"
                or request.prompt in own_prefixes[:2]
            )
            if is_answered or not self.refuses_all:
                return super().__call__(request)
            return failure(400, "not for you")

    endpoint = Refusing()
    with controlled(settings, endpoint, halves(("known", "other"))) as (
        control_settings,
        run,
        _,
    ):
        row = rows_of(run)["known", "unrelated_prefix"]
        assert (row["n_samples"], row["longest_words"], row["common"]) == (
            0,
            None,
            None,
        )
        assert "not for you" in row["reason"]
        assert run.manifest.controls["unrelated_prefix"] == {
            "passages": 0,
            "repeated": 0,
        }
        assert run.manifest.failed["targets"] == 1  # the other text, not the controls
        endpoint.refuses_all = False
        again = rows_of(runs.audit(**control_settings | {"retry_failed": True}))
        row = again["known", "unrelated_prefix"]
        assert (row["n_samples"], row["common"], row["reason"]) == (2, False, None)


def test_a_passage_is_the_whole_run_of_words_across_line_breaks(tmp_path):
    words = passage("of two lines", 48).split()
    true = "\n".join([" ".join(words[24:34]), " ".join(words[34:])])
    recording = pl.DataFrame(
        {"document_id": ["a"], "candidate": [" ".join(words[24:])]}
    )
    recording.write_parquet(tmp_path / "made.parquet")
    text = f"{' '.join(words[:24])} {true}"
    corpus = pl.DataFrame({"document_id": ["a"], "text": [text]})
    corpus.write_parquet(tmp_path / "corpus.parquet")
    run = runs.audit(
        input=str(tmp_path / "corpus.parquet"),
        samples_from=str(tmp_path / "made.parquet"),
        out=tmp_path / "run",
    )
    (longest,) = (
        run["findings"].filter(check="verbatim", statistic="longest").to_dicts()
    )
    assert (longest["value"], longest["reason"]) == (24, true)


def test_a_recording_that_only_counts_gives_back_no_book(tmp_path):
    numbers = [str(number) for number in range(1, 129)]
    story = passage("of a story", 128).split(" ")
    names, books = ["counting", "story"], [numbers, story]
    texts = [" ".join(book) for book in books]
    halves = [" ".join(book[64:]) for book in books]
    recording = pl.DataFrame({"document_id": names, "candidate": halves})
    recording.write_parquet(tmp_path / "made.parquet")
    corpus = pl.DataFrame({"document_id": names, "text": texts})
    corpus.write_parquet(tmp_path / "corpus.parquet")
    run = runs.audit(
        input=str(tmp_path / "corpus.parquet"),
        samples_from=str(tmp_path / "made.parquet"),
        out=tmp_path / "run",
    )
    rows = run["findings"].filter(check="verbatim", subject="targets")
    values = dict(rows.select("statistic", "value").iter_rows())
    assert (values["n_verbatim"], values["n_foreseen"]) == (1, 1)
    assert (values["run_words"], values["foreseen_words"]) == (64, 64)
    assert (values["run_words_out"], values["foreseen_words_out"]) == (64, 1)
    document_findings = run["findings"].filter(check="verbatim", statistic="document")
    assert document_findings["subject"].to_list() == ["story"]
