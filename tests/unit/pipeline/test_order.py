"""The order of asking an endpoint, and what is said of one that changes meanwhile."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import polars as pl
import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.lot import lot_numbers
from mia_batch.pipeline.results import load_results
from mia_batch.report.sentences import sentences
from tests.conftest import REPOSITORY
from tests.hostile_server import Asked, HostileServer, Reply, TinyModel, failure
from tests.processes import listening, wait_until
from tests.runs import audit, rescore, said_of, written

N_TARGETS, N_OTHERS = 10, 40
Version = Callable[[int], str | None]


class Versioned(TinyModel):
    """Names a version of itself by how often it was asked for samples before."""

    def __init__(self, version: Version, name: Version = lambda _: "tiny") -> None:
        super().__init__()
        self.version, self.name, self.n_asked = version, name, 0

    def _document(self, request: Asked, n: int) -> dict[str, Any]:
        number = self.n_asked
        self.n_asked += not request.is_probe
        own_fields = {
            "system_fingerprint": self.version(number),
            "model": self.name(number),
        }
        return super()._document(request, n) | own_fields


def texts_of(n: int, seed: int) -> list[str]:
    dice = Random(seed)
    words = [f"word{number}" for number in range(300)]
    return [" ".join(dice.choices(words, k=24)) for _ in range(n)]


@pytest.fixture
def settings(tmp_path):
    targets = pl.DataFrame({"text": texts_of(N_TARGETS, 0)})
    comparison = pl.DataFrame({"text": texts_of(N_OTHERS, 1)})
    return {
        "input": written(tmp_path, targets),
        "non_members": written(tmp_path, comparison, "others"),
        "non_members_known": "made here",
        "model": "tiny",
        "preset": "matched",
        "samples": 1,
        "report": False,
        "max_concurrency": 1,
    }


def audit_model(settings, run_folder, model: TinyModel, **changed):
    with HostileServer(model) as server:
        run = audit(
            **settings | {"base_url": server.url, "out": str(run_folder)} | changed
        )
        return run, [request.prompt for request in server.asked if not request.is_probe]


def in_order(run):
    targets = run["targets"]
    return targets[lot_numbers(targets["target_id"], 0).argsort()]["prefix"].to_list()


def asked_first(run, prompts: list[str]) -> list[str]:
    """Prefixes by when they were first given; an answer that goes on has a longer prompt."""
    prefixes = {*run["targets"]["prefix"]}
    return [*dict.fromkeys(prompt for prompt in prompts if prompt in prefixes)]


def test_texts_of_both_roles_are_asked_in_one_order_drawn_by_lot(settings, tmp_path):
    run, prompts = audit_model(settings, tmp_path / "run", Versioned(lambda _: "fp"))
    assert asked_first(run, prompts) == in_order(run)
    assert run.manifest.evidence["order"] == "lot_v1"
    assert run["scores"]["target_id"].equals(run["targets"]["target_id"])
    responses = run["responses"]
    assert responses["place"].unique(maintain_order=True).to_list() == [*range(50)]
    assert responses["sent"].is_sorted()
    assert responses.select(
        "system_fingerprint", "served_model", "block"
    ).unique().rows() == [("fp", "tiny", 0)]
    assert "responses.parquet" in run.manifest.custody["files"]
    again, _ = audit_model(settings, tmp_path / "again", Versioned(lambda _: "fp"))
    assert again.manifest.custody["root"] == run.manifest.custody["root"]
    assert not (tmp_path / "run" / "order.parquet").exists()


class Stopping(Versioned):
    """Takes no key any more after some answers, until it is asked once more."""

    def __call__(self, request: Asked) -> Reply:
        if not request.is_probe and self.n_asked == 20:
            self.n_asked += 1
            return failure(401, "the key has been taken back")
        return super().__call__(request)


def test_a_run_that_was_stopped_goes_on_in_its_order(settings, tmp_path):
    with HostileServer(Stopping(lambda _: "fp")) as server:
        same_settings = settings | {
            "base_url": server.url,
            "out": str(tmp_path / "run"),
        }
        with pytest.raises(EngineError, match="the key has been taken back"):
            audit(**same_settings)
        run = audit(**same_settings)
        prompts = [request.prompt for request in server.asked if not request.is_probe]
    assert asked_first(run, prompts) == in_order(run)
    assert run["responses"]["place"].unique(maintain_order=True).to_list() == [
        *range(50)
    ]


def test_a_service_that_changes_is_said_first_and_no_text_is_reported(
    settings, tmp_path
):
    model = Versioned(lambda number: "fp_a" if number < 20 else "fp_b")
    run, prompts = audit_model(settings, tmp_path / "run", model)
    change = (
        f"20 answers of version fp_a, then {len(prompts) - 20} answers of version fp_b"
    )
    clause = f"the service changed while it was asked ({change})"
    assert run.answer == f"No answer: {clause}."
    assert said_of(run)[0].startswith(
        f"T{clause[1:]}, so the scores are of no single model."
    )
    verdicts = run["verdicts"]
    assert verdicts.select(
        "p_value", "q_value", "value", "low", "high"
    ).null_count().row(0) == ((verdicts.height,) * 5)
    assert set(verdicts["reason"]) == {f"withheld: {clause}"}
    rescored = rescore(run.folder, anyway=True)
    assert rescored.answer.startswith(
        f"T{clause[1:]}; exploratory: none of 10 texts stands out"
    )
    assert rescored["verdicts"]["p_value"].count() > 10
    assert not rescored["verdicts"]["planned"].any()
    assert next(iter(sentences(load_results(rescored)))).endswith(
        "What follows is exploratory and no evidence of training."
    )


@pytest.mark.parametrize(
    ("version", "name", "sentence_part"),
    [
        (
            lambda number: f"fp_{Random(number).randrange(2)}",
            lambda _: "tiny",
            "2 versions in turn",
        ),
        (lambda _: None, lambda number: "tiny" if number else "tiny-2", None),
    ],
)
def test_versions_in_turn_turn_no_answer(
    settings, tmp_path, version, name, sentence_part
):
    run, _prompts = audit_model(settings, tmp_path / "run", Versioned(version, name))
    assert "No answer" not in run.answer
    assert run["verdicts"]["p_value"].count() > 10
    of_versions = run["findings"].filter(check="order", statistic="n_versions")[
        "verdict"
    ][0]
    if sentence_part is not None:
        assert of_versions == "in_turn"
        assert sum(sentence_part in sentence for sentence in said_of(run)) == 1


def test_texts_that_are_added_later_meet_another_version(settings, tmp_path):
    model = Versioned(lambda _: "fp_a")
    with HostileServer(model) as server:
        same_settings = settings | {
            "base_url": server.url,
            "out": str(tmp_path / "run"),
        }
        audit(**same_settings)
        written(tmp_path, pl.DataFrame({"text": texts_of(N_OTHERS + 4, 1)}), "others")
        grown = audit(**same_settings)
        assert grown["verdicts"]["p_value"].count() > 10
        model.version = lambda number: "fp_b" if number % 2 else "fp_a"
        written(tmp_path, pl.DataFrame({"text": texts_of(N_OTHERS + 12, 1)}), "others")
        again = audit(**same_settings)
    assert again["targets"].height == N_TARGETS + N_OTHERS + 12
    assert again.answer.startswith(
        "No answer: the service changed while it was asked ("
    )


@pytest.fixture
def drifting_service(tmp_path):
    """Address of the shared service of which answers become worse after 150 requests."""
    case = REPOSITORY.parent / "shared" / "cases" / "drift-service"
    if not case.is_dir():
        pytest.skip("the folder of inputs that failed, ../shared/cases, is not there")
    subprocess.run([sys.executable, case / "drift_make.py"], cwd=tmp_path, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    files = "drift-t.parquet,drift-n.parquet"
    server = subprocess.Popen(
        [sys.executable, case / "drift_server.py", str(port), files, "150", "fp"],
        cwd=tmp_path,
        env=os.environ | {"DRIFT": ".35,.15"},
    )
    wait_until(lambda: listening(server.pid), "the service listens")
    yield f"http://127.0.0.1:{port}/v1"
    server.kill()
    server.wait()


def test_a_service_that_becomes_worse_reports_no_text(
    drifting_service, settings, tmp_path
):
    texts = {
        "input": str(tmp_path / "drift-t.parquet"),
        "non_members": str(tmp_path / "drift-n.parquet"),
    }
    run = audit(
        **settings
        | texts
        | {
            "base_url": drifting_service,
            "out": str(tmp_path / "run"),
        }
    )
    assert run.answer.startswith("No answer: the service changed while it was asked (1")
    assert run["verdicts"]["p_value"].null_count() == run["verdicts"].height
    moved = run["findings"].filter(check="order", verdict="moves")
    assert "comparison texts" in moved["subject"]
