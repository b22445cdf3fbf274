"""Runs beside this one that asked the same of the same model are found, named and recorded."""

from __future__ import annotations

import json
import os

import pytest

from mia_batch.observer import Observer
from mia_batch.pipeline.auditing import earlier_runs, plan, rescore
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.settings import load_settings
from tests.audits import audit_books, write_books

ATTACKS = ["samia_v1", "samia_zlib_v1"]


class Said(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.lines = []

    def stage(self, sentence):
        self.lines.append(sentence)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished run, alone in its folder of runs."""
    folder = tmp_path_factory.mktemp("earlier")
    write_books(folder)
    return audit_books(folder / "runs" / "first", folder, attacks=ATTACKS, report=False)


@pytest.fixture
def beside(first, tmp_path):
    """An audit that begins, and a function that lays a changed ``run.json`` beside it."""
    inputs = first.folder.parents[1]
    settings = load_settings(
        {
            "input": str(inputs / "books"),
            "samples_from": str(inputs / "made.parquet"),
            "out": str(tmp_path / "this"),
        }
    )
    stored = json.loads((first.folder / "run.json").read_text("utf-8"))

    def lay(name, *keys, value=None):
        content = json.loads(json.dumps(stored))
        if keys:
            of = content
            for key in keys[:-1]:
                of = of[key]
            of[keys[-1]] = value
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(content), "utf-8")

    audit = Audit.begin(settings, Observer())
    return audit, lay, lambda: earlier_runs(audit, stored["made"]["targets"]["input"])


def test_an_earlier_run_is_named_with_its_plan(first, beside):
    _, lay, found = beside
    assert found() == {}
    lay("one")
    plan = first.manifest.plan
    assert found() == {
        "one": {
            "begin": first.manifest.times["begin"],
            "plan": plan["sha256"],
            "primary": "samia_v1",
            "level": "target",
            "n_attacks": 2,
            "finished": True,
        }
    }
    assert "/" not in json.dumps(found())


@pytest.mark.parametrize(
    ("keys", "value", "facts"),
    [
        (("made", "targets", "input"), "0" * 64, None),
        (("models", "target", "source", "name"), "another", None),
        (("evidence", "recording"), "0" * 64, None),
        (("made",), [], None),
        (("models",), 3, None),
        (("plan",), {}, {"primary": "unknown", "finished": True}),
        (("custody",), {}, {"finished": False, "primary": "samia_v1"}),
        (("settings", "attacks"), None, {"n_attacks": None}),
        (("plan", "primary"), "a\x1b[2J\nb", {"primary": r"'a\x1b[2J\nb'"}),
        (("times", "begin"), {"at": 1}, {"begin": "unknown"}),
    ],
)
def test_other_texts_and_models_are_no_earlier_runs_and_odd_values_do_no_harm(
    beside, keys, value, facts
):
    _, lay, found = beside
    lay("one", *keys, value=value)
    if facts is None:
        assert found() == {}
    else:
        assert facts.items() <= found()["one"].items()


def test_what_is_hostile_is_passed_over(beside, tmp_path):
    audit, lay, found = beside
    lay("good")
    (tmp_path / "link").symlink_to(tmp_path / "good", target_is_directory=True)
    for name, content in (
        ("cut", b'{"made": {'),
        ("deep", b"[" * 200_000),
        ("large", b" " * (9 << 20)),
        ("odd", b"\xff\xfe{}"),
        ("text", b'"run"'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(content)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run.json").symlink_to(tmp_path / "good" / "run.json")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    (tmp_path / "folder" / "run.json").mkdir(parents=True)
    lay("this")  # its own folder
    assert list(found()) == ["good"]
    audit.settings = audit.settings.model_copy(update={"out": "s3://bucket/this"})
    assert found() == {}


def test_tries_are_said_first_and_recorded_and_change_no_table(first, tmp_path):
    inputs, said = first.folder.parents[1], Said()
    again = {"attacks": ATTACKS, "primary": "samia_zlib_v1"}
    folder = first.folder.parent / "second"
    run = audit_books(folder, inputs, observer=said, report=False, **again)
    sentence = (
        "1 other run of these texts and this model is next to this one: first (primary samia_v1, "
        "target). Each was another try, and p-values and q-values count none of them: multiplied "
        "by 2 (Bonferroni) they do."
    )
    assert said.lines[1] == sentence
    assert list(run.manifest.earlier) == ["first"]
    settings = load_settings(run.manifest.settings, use_config=False)
    assert sentence in conclusions(run, settings, ATTACKS)
    alone = audit_books(tmp_path / "alone", inputs, report=False, **again)
    assert run.manifest.custody["root"] == alone.manifest.custody["root"]
    root = first.manifest.custody["root"]
    audit_books(first.folder, inputs, attacks=ATTACKS, report=False)  # finished: nothing to do
    assert first.manifest.earlier == {}
    assert first.manifest.custody["root"] == root
    wanted = load_settings(settings.model_dump() | {"out": str(tmp_path / "other" / "third")})
    assert "earlier runs" not in dict(plan(wanted))
    wanted = load_settings(settings.model_dump() | {"out": str(folder.with_name("third"))})
    assert dict(plan(wanted))["earlier runs"].startswith("2 other runs of these texts")


def test_asking_anew_looks_again(first, tmp_path, beside):
    _, lay, _ = beside
    inputs = first.folder.parents[1]
    run = audit_books(tmp_path / "own", inputs, attacks=ATTACKS, report=False)
    lay("one")
    other = rescore(run.folder, primary="samia_zlib_v1", report=False)
    assert list(other.manifest.earlier) == ["one"]
    assert verify(run.folder).faults == []


def test_a_run_of_an_earlier_version_has_none(first, tmp_path):
    stored = json.loads((first.folder / "run.json").read_text("utf-8"))
    del stored["earlier"]
    (tmp_path / "run.json").write_text(json.dumps(stored), "utf-8")
    assert Run(tmp_path).manifest.earlier == {}
