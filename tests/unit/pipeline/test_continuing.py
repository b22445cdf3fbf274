"""The texts of highest scores of an endpoint: continued by default, as far as the money lasts."""

import polars as pl
import pytest

from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.wire import least_tokens
from tests.batch_service import read_requests, serve, write_answers
from tests.checkpoints import TEXTS
from tests.hostile_server import MODEL, HostileServer
from tests.runs import RecitingOneBook, audit, planned, said_of, words, written
from tests.unit.pipeline.conftest import Listener

PRICES = {"price_in": 0.0, "price_out": 1e6}  # 1 a token of output
NO_ANSWER = "Of 2 documents, whether the model knows these cannot be said"


@pytest.fixture
def books(tmp_path):
    """Settings of an audit of two books, of which one is recited, and the server."""
    texts = [" ".join(words(name, 512)[128:]) for name in ("first", "second")]
    table = pl.DataFrame({"document_id": ["first", "second"], "text": texts})
    with HostileServer(RecitingOneBook()) as server:
        settings = {
            "input": written(tmp_path, table),
            "model": MODEL,
            "base_url": server.url,
            "window_words": 64,
            "probes": 2,
            "max_concurrency": 1,
            "report": False,
            "out": str(tmp_path / "run"),
        }
        yield settings, server


def count_tokens(request):
    """Count the tokens of an answer as the client pays for it."""
    if request.method == "GET":
        return 0
    choices = RecitingOneBook()(request).content["choices"]
    return max(
        6 * len(choices), sum(least_tokens(choice["text"]) for choice in choices)
    )


def find_spent(run):
    """Return the money that a run has spent, at `PRICES`."""
    with Journal(run.folder / "journal.sqlite") as journal:
        return float(journal.spent().output + journal.spent(by_batch=True).output)


def list_continued(server):
    """List the prompts whose answers had room for more than a few words."""
    return [
        request.prompt for request in server.asked if request.fields["max_tokens"] > 8
    ]


@pytest.mark.parametrize("chat", [False, True])
def test_a_server_that_recites_a_book_is_found_out_by_default(books, chat):
    settings, server = books
    run = audit(**settings, chat=chat)
    assert run.answer == (
        "Of 2 documents, 1 comes out word for word, the longest passage 32 words in a row (first);"
        " 1 is not judged, for want of comparison texts."
    )
    assert run["samples"].filter(view="recital").height == 12
    assert run.manifest.settings["continue_strongest"] == 64
    assert run.manifest.continued == {"wanted": 12, "left": 0}
    assert run["findings"].filter(check="continued").is_empty()
    n_asked = len(server.asked)
    audit(**settings, chat=chat)
    assert len(server.asked) == n_asked
    assert "then" not in planned(settings | {"chat": chat})


def test_without_continuations_the_run_says_what_they_would_cost(books):
    settings, server = books
    prices = {"price_in": 1.0, "price_out": 1e5}
    run = audit(**settings, **prices, continue_strongest=0)
    assert list_continued(server) == []
    assert run.answer.startswith(NO_ANSWER)
    foreseen = planned(settings | prices)
    cost = foreseen["continuations, expected"].rpartition("cost: ")[2]
    most_cost = foreseen["continuations, at most"].rpartition("cost: ")[2]
    assert said_of(run)[0] == (
        "No text was continued, so it is not known whether any comes out word for word:"
        f" --continue-strongest 12 asks, for about {cost}, at most {most_cost}."
    )


def test_the_strongest_texts_are_continued_for_the_money_that_is_left(books, tmp_path):
    settings, server = books
    base = {**settings, **PRICES}
    scored = audit(**base | {"continue_strongest": 0, "out": str(tmp_path / "scored")})
    ranked = scored["scores"].sort(scored.manifest.plan["primary"], descending=True)
    n_scoring = len(server.asked)
    listener = Listener()
    n_probes = sum(
        count_tokens(request) for request in server.probes
    )  # which is enough for most of them
    limit = find_spent(scored) + n_probes
    run = audit(observer=listener, **base, max_cost=limit)
    continued = run["samples"].filter(view="recital")["target_id"].to_list()
    assert 0 < len(continued) < 12
    best = ranked.filter(pl.col("document_id") == "first")["target_id"][0]
    assert best in continued
    (no_more,) = (line for line in listener.sentences if "leaves no more" in line)
    assert no_more.startswith(f"{len(continued)} of 12 texts of highest scores are")
    sentence = next(line for line in said_of(run) if "--max-cost" in line)
    assert sentence.startswith(
        f"{len(continued)} of the 12 texts of highest scores were continued, because"
        " --max-cost leaves no more: a higher one continues the others, for about USD "
    )
    assert run.answer.startswith("Of 2 documents, 1 comes out word for word")
    run = audit(**base, max_cost=1e6)
    assert run["samples"].filter(view="recital").height == 12
    keys = [(request.prompt, request.fields["max_tokens"]) for request in server.asked]
    assert len(keys[n_scoring:]) == len(set(keys[n_scoring:]))  # nothing is paid twice
    assert not [line for line in said_of(run) if "--max-cost" in line]


def test_a_run_whose_money_is_spent_ends_with_what_it_has(books):
    settings, server = books
    scored = audit(**settings, **PRICES, continue_strongest=0)
    n_probes = len(server.probes)
    run = audit(**settings, **PRICES, max_cost=find_spent(scored) + 1.0)
    assert len(server.probes) == n_probes  # nobody is asked for nothing
    assert run["scores"].equals(scored["scores"])
    assert said_of(run)[0].startswith(
        "None of the 12 texts of highest scores was continued, because --max-cost"
    )


def test_what_is_written_to_files_is_chosen_once(books, tmp_path):
    settings, _ = books
    folder = tmp_path / "requests"
    batch = settings | PRICES | {"batch_price": 1.0, "requests_to": str(folder)}
    audit(**batch)
    answers = [write_answers(tmp_path / "1.jsonl", serve(folder, RecitingOneBook()))]
    batch["answers_from"] = answers
    limit = find_spent(audit(**batch, continue_strongest=0)) + 1500.0
    batch["max_cost"] = limit
    run = audit(**batch)
    n_written = len(read_requests(folder))
    assert 0 < n_written < 12
    assert run.manifest.continued["in_files"] == {"max_cost": limit, "n": n_written}
    while not run.manifest.custody:
        path = tmp_path / f"{len(answers) + 1}.jsonl"
        answers.append(write_answers(path, serve(folder, RecitingOneBook())))
        run = audit(**batch)
    continued = run["samples"].filter(view="recital")
    assert continued["target_id"].n_unique() == n_written
    assert run.manifest.continued["left"] == 12 - n_written
    assert run.answer.startswith("Of 2 documents, 1 comes out word for word")


def test_a_finished_run_of_before_pays_for_nothing_more(books):
    settings, server = books
    run = audit(**settings, continue_strongest=0)
    manifest = run.manifest
    manifest.settings["continue_strongest"] = None  # as endpoints had it
    manifest.continued = {}
    manifest.unchanged = ""
    manifest.write(run.folder)
    run = audit(**settings)
    assert list_continued(server) == []
    assert run.manifest.settings["continue_strongest"] is None


def test_an_engine_is_started_once_and_continues_what_it_has_scored(
    checkpoint, tmp_path
):
    listener = Listener()
    texts = pl.DataFrame(
        {"text": [*TEXTS[:4], "Amen"]}
    )  # one has nothing to go on with
    run = audit(
        input=written(tmp_path, texts),
        model=str(checkpoint),
        engine="transformers",
        report=False,
        out=str(tmp_path / "run"),
        observer=listener,
    )
    starts = [line for line in listener.sentences if line.startswith("starting")]
    assert len(starts) == 1
    assert listener.sentences.count("the same transformers goes on") == 1
    assert run["samples"].filter(view="recital").height == 4
    assert run.manifest.continued == {"wanted": 4, "left": 0}
