"""Every byte of a finished run counts, two honest runs have one root, and earlier runs."""

import json
import os
import shutil
import subprocess
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from operator import getitem
from pathlib import Path

import pytest

from mia_batch import attacks
from mia_batch.errors import RequestError, RunFolderError
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import compute_root, verify
from mia_batch.pipeline.dry_run import plan
from mia_batch.pipeline.earlier_runs import list_earlier_runs
from mia_batch.pipeline.results import render_report
from mia_batch.pipeline.run import Run
from mia_batch.settings import load_settings
from tests.runs import audit_books, recorded_books, rescore, said_of, write_books
from tests.unit.pipeline.conftest import Listener


@pytest.fixture
def copied(recorded_books, tmp_path):
    shutil.copytree(recorded_books, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def flip(path, bit=3):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    path.write_bytes(data)


def test_an_untouched_run_is_well_and_a_changed_bit_of_any_file_is_found(
    recorded_books, copied
):
    run = Run(copied)
    checked = verify(copied)
    assert (checked.faults, checked.not_found) == ([], [])
    assert checked.root == run.manifest.custody["root"]
    files = [
        path for path in copied.rglob("*") if path.is_file() and path.name != ".lock"
    ]
    assert checked.n_files == len(files) + 3
    assert run.manifest.inputs["input"] == {
        name: sha256((recorded_books / "books" / name).read_bytes()).hexdigest()
        for name in ("0.txt", "1.txt")
    }
    for path in files:
        flip(path)
        changed = path.relative_to(copied).as_posix()
        assert verify(copied).faults == [(changed, "changed")]
        flip(path)
    path = copied / "run.json"
    text = path.read_bytes()
    for position in range(0, len(text), 211):
        for bit in (0, 5, 7):
            path.write_bytes(
                text[:position]
                + bytes([text[position] ^ (1 << bit)])
                + text[position + 1 :]
            )
            assert verify(copied).faults == [("run.json", "changed")]
    path.write_bytes(text.replace(b'"inputs"', b'"inputs" '))
    assert verify(copied).faults == [("run.json", "changed")]


def test_inputs_are_looked_for_where_they_were_and_where_they_are_said_to_be(
    copied, tmp_path
):
    flip(tmp_path / "books" / "1.txt")
    (tmp_path / "made.parquet").unlink()
    assert verify(copied).faults == []
    checked = verify(copied, [tmp_path / "books"])
    assert checked.faults == [("input/1.txt", "changed")]


def test_inputs_that_are_gone_are_not_found_and_no_fault(tmp_path):
    recorded_books(tmp_path)
    for name in ("books", "made.parquet"):
        (tmp_path / name).rename(tmp_path / f"{name} elsewhere")
    flip(tmp_path / "books elsewhere" / "1.txt")
    checked = verify(tmp_path / "run", [tmp_path])
    assert checked.faults == []
    assert sorted(checked.not_found) == [
        "input/0.txt",
        "input/1.txt",
        "samples_from/made.parquet",
    ]


def test_files_that_are_missing_added_or_replaced_by_links_are_named(copied):
    (copied / "scores.parquet").unlink()
    (copied / "notes.txt").touch()
    (copied / "samples" / "more.parquet").touch()
    real = copied.with_name("targets.parquet")
    (copied / "targets.parquet").rename(real)
    (copied / "targets.parquet").symlink_to(real)
    (copied / "home").symlink_to(copied.parent)
    os.mkfifo(copied / "pipe")
    assert verify(copied).faults == [
        ("targets.parquet", "a link instead of a file"),
        ("scores.parquet", "missing"),
        ("home", "added"),
        ("notes.txt", "added"),
        ("pipe", "added"),
        ("samples/more.parquet", "added"),
    ]


def test_parts_may_lie_on_another_disk(copied, tmp_path):
    (copied / "samples").rename(tmp_path / "disk")
    (copied / "samples").symlink_to(tmp_path / "disk")
    assert verify(copied).faults == []
    part = next((tmp_path / "disk").iterdir())
    flip(part)
    assert verify(copied).faults == [(f"samples/{part.name}", "changed")]


def test_a_file_that_may_not_be_read_is_named(copied, without_privileges):
    with tempfile.TemporaryDirectory() as open_to_all:  # tmp_path is closed to others
        Path(open_to_all).chmod(0o755)
        run = Path(shutil.copytree(copied, Path(open_to_all, "run")))
        (run / "scores.parquet").chmod(0)
        with without_privileges():
            checked = verify(run)
        assert checked.faults == [
            ("scores.parquet", "cannot be read: Permission denied")
        ]
        assert len(checked.not_found) == 3
        (run / "samples").chmod(0)
        with (
            without_privileges(),
            pytest.raises(RunFolderError, match="samples cannot be read"),
        ):
            verify(run)


def test_what_is_no_finished_run_is_refused(copied, tmp_path):
    (tmp_path / "empty").mkdir()
    messages = {
        tmp_path / "empty": "holds no run",
        tmp_path / "nowhere": "does not exist; give the",
    }
    for folder, message in (
        messages | {copied / "run.json": "is a file, no run; give the"}
    ).items():
        with pytest.raises(RequestError, match=message):
            verify(folder)
    assert not any((tmp_path / "empty").iterdir())
    path = copied / "run.json"
    manifest_fields = json.loads(path.read_text())
    del manifest_fields["custody"], manifest_fields["sha256"]
    path.write_text(json.dumps(manifest_fields))
    with pytest.raises(RunFolderError, match="has no root"):
        verify(copied)


def test_a_run_that_stops_on_its_way_has_no_root(recorded_books, copied, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    manifest = Run(recorded_books / "run").manifest
    with monkeypatch.context() as patch:
        patch.setattr("mia_batch.pipeline.stages.verdicts.sink_frames", stop)
        with pytest.raises(KeyboardInterrupt):
            rescore(copied, attacks=["rouge_1_v1"])
    with pytest.raises(RunFolderError, match="has no root"):
        verify(copied)
    again = rescore(copied, attacks=manifest.made["scores"]["attacks"])
    assert verify(copied).faults == []
    assert again.manifest.inputs == manifest.inputs


def test_scoring_anew_gives_another_root_and_keeps_the_inputs(
    copied, tmp_path, monkeypatch
):
    # What the file registers is forgotten
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    (tmp_path / "mine.py").write_text(
        "import polars as pl\nfrom mia_batch.attacks import Attack\nmine ="
        " Attack(name='custody_v1',"
        " expr=pl.col('words_candidate').max().cast(pl.Float64), source='mine',"
        " undefined='there is no candidate')\n"
    )
    first_manifest = Run(copied).manifest
    second_manifest = rescore(copied, attacks_from=str(tmp_path / "mine.py")).manifest
    assert second_manifest.custody["root"] != first_manifest.custody["root"]
    assert second_manifest.inputs.keys() - first_manifest.inputs.keys() == {
        "attacks_from"
    }
    assert verify(copied).faults == []
    flip(tmp_path / "mine.py")
    assert verify(copied).faults == [("attacks_from/mine.py", "changed")]


@pytest.mark.parametrize("moved", [False, True])
def test_two_honest_runs_have_one_root(recorded_books, tmp_path, moved):
    write_books(tmp_path)
    inputs = tmp_path if moved else recorded_books
    second_manifest = audit_books(tmp_path / "other", inputs).manifest
    assert (
        second_manifest.custody["root"]
        == Run(recorded_books / "run").manifest.custody["root"]
    )
    assert (
        audit_books(tmp_path / "other", inputs).manifest.custody
        == second_manifest.custody
    )


def test_time_stamps_of_the_root_are_no_added_files_and_are_named_in_the_report(copied):
    root = Run(copied).manifest.custody["root"]
    manifest_before = (copied / "run.json").read_bytes()
    (copied / "root.tsr").write_bytes(b"0x" + bytes.fromhex(root) + b"signed")
    (copied / "root.ots").write_bytes(sha256(root.encode()).digest())
    assert verify(copied).faults == []
    page = render_report(Run(copied))
    stamp_line = (
        "root.tsr (RFC 3161), SHA-256"
        f" {sha256((copied / 'root.tsr').read_bytes()).hexdigest()}"
    )
    assert f"{stamp_line}, of this root; root.ots (OpenTimestamps), SHA-256 " in page
    (copied / "root.ots").write_bytes(sha256(f"{root}\n".encode()).digest())
    (copied / "root.tsr").write_bytes(b"")
    assert verify(copied).faults == [("root.tsr", "a stamp of another root")]
    assert ", of ANOTHER root; root.ots" in render_report(Run(copied))
    (copied / "root.tsr").unlink()
    (copied / "root.tsr").symlink_to(copied / "run.json")
    assert verify(copied).faults == [("root.tsr", "a link instead of a file")]
    assert (copied / "run.json").read_bytes() == manifest_before


def test_stamps_stay_out_of_what_is_sealed_and_where_the_plan_was_lodged_too(
    recorded_books, copied
):
    first = Run(copied).manifest
    (copied / "root.tsr").write_bytes(b"")
    lodged_place = "with a notary, 1 May 2026"
    tables = [
        copied / f"{name}.parquet"
        for name in ("scores", "verdicts", "findings", "rollup")
    ]
    times_before = [path.stat().st_mtime_ns for path in tables]
    run = audit_books(copied, recorded_books, plan_lodged=lodged_place)
    assert run.manifest.custody["root"] == first.custody["root"]
    assert "root.tsr" not in run.manifest.custody["files"]
    assert run.manifest.plan == first.plan | {"lodged": lodged_place}
    assert [path.stat().st_mtime_ns for path in tables] == times_before
    assert lodged_place in (run.folder / "report.html").read_text("utf-8")
    assert audit_books(copied, recorded_books).manifest.plan["lodged"] == lodged_place


def test_the_root_can_be_made_with_sha256sum(tmp_path):
    names = ["a", "b c", "d\\e", "f\ng"]
    for name in names:
        (tmp_path / name).write_text(name)
    digests = {name: sha256(name.encode()).hexdigest() for name in names}
    lines = subprocess.run(
        ["sha256sum", *names], capture_output=True, cwd=tmp_path, check=True
    )
    assert (
        compute_root(dict(reversed(digests.items())))
        == sha256(lines.stdout).hexdigest()
    )


# Runs next to this one that asked the same of the same model.

ATTACKS = ["samia_v1", "samia_zlib_v1"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished run, alone in its folder of runs."""
    folder = tmp_path_factory.mktemp("earlier")
    write_books(folder)
    return audit_books(folder / "runs" / "first", folder, attacks=ATTACKS, report=False)


@pytest.fixture
def nearby(first, tmp_path):
    """An audit that begins, and a function that lays a changed ``run.json`` nearby it."""
    inputs = first.folder.parents[1]
    settings_given = {
        "input": str(inputs / "books"),
        "samples_from": str(inputs / "made.parquet"),
    }
    settings = load_settings(settings_given | {"out": str(tmp_path / "this")})
    manifest_fields = json.loads((first.folder / "run.json").read_text("utf-8"))

    def lay(name, *keys, value=None):
        content = deepcopy(manifest_fields)
        if keys[:1] == ("requests",):
            content |= dict.fromkeys(keys, value)
        elif keys:
            reduce(getitem, keys[:-1], content)[keys[-1]] = value
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(content), "utf-8")

    audit = Audit.begin(settings, Observer())
    return (
        audit,
        lay,
        lambda: list_earlier_runs(audit, manifest_fields["made"]["targets"]["input"]),
    )


def test_an_earlier_run_is_named_with_its_plan(first, nearby):
    _, lay, list_runs = nearby
    assert list_runs() == {}
    lay("one")
    facts = {"primary": "samia_v1", "level": "target", "n_attacks": 2, "finished": True}
    facts_of_first = {
        "begin": first.manifest.times["begin"],
        "plan": first.manifest.plan["sha256"],
    }
    facts_of_first["root"] = first.manifest.custody["root"]
    assert list_runs() == {"one": facts_of_first | facts}
    assert "/" not in json.dumps(list_runs())


@pytest.mark.parametrize(
    ("keys", "value", "facts"),
    [
        (("made", "targets", "input"), "0" * 64, None),
        (("models", "target", "source", "name"), "another", None),
        (("evidence", "recording"), "0" * 64, None),
        # It ended before anything was asked
        (
            ("requests", "plan", "custody"),
            {},
            None,
        ),
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
    nearby, keys, value, facts
):
    _, lay, list_runs = nearby
    lay("one", *keys, value=value)
    if facts is None:
        assert list_runs() == {}
    else:
        assert facts.items() <= list_runs()["one"].items()


def test_what_is_hostile_is_passed_over(nearby, tmp_path):
    audit, lay, list_runs = nearby
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
    assert list(list_runs()) == ["good"]
    remote_settings = audit.settings.model_copy(update={"out": "s3://bucket/this"})
    audit.request = replace(audit.request, settings=remote_settings)
    assert list_runs() == {}


def test_tries_are_said_first_and_recorded_and_change_no_table(first, tmp_path):
    inputs, listener = first.folder.parents[1], Listener()
    again = {"attacks": ATTACKS, "primary": "samia_zlib_v1"}
    folder = first.folder.parent / "second"
    run = audit_books(folder, inputs, observer=listener, report=False, **again)
    sentence = (
        "1 other run of these texts and this model is known: first (primary samia_v1,"
        " target). The best of several runs looks better than it is."
    )
    assert listener.sentences[1] == sentence
    assert list(run.manifest.earlier) == ["first"]
    assert sentence in said_of(run)
    settings = load_settings(run.manifest.settings, use_config=False)
    alone = audit_books(tmp_path / "alone", inputs, report=False, **again)
    assert run.manifest.custody["root"] == alone.manifest.custody["root"]
    root = first.manifest.custody["root"]
    # Finished: nothing to do
    audit_books(first.folder, inputs, attacks=ATTACKS, report=False)
    assert first.manifest.earlier == {}
    assert first.manifest.custody["root"] == root
    settings_wanted = load_settings(
        settings.model_dump() | {"out": str(tmp_path / "other" / "third")}
    )
    assert "earlier runs" not in dict(plan(settings_wanted))
    settings_wanted = load_settings(
        settings.model_dump() | {"out": str(folder.with_name("third"))}
    )
    assert dict(plan(settings_wanted))["earlier runs"].startswith(
        "2 other runs of these texts"
    )


def test_asking_anew_looks_again(first, tmp_path, nearby):
    _, lay, _ = nearby
    inputs = first.folder.parents[1]
    run = audit_books(tmp_path / "own", inputs, attacks=ATTACKS, report=False)
    lay("one")
    rescored = rescore(run.folder, primary="samia_zlib_v1", report=False, replace=True)
    assert list(rescored.manifest.earlier) == ["one"]
    assert verify(run.folder).faults == []


def test_a_run_of_an_earlier_version_has_none(first, tmp_path):
    manifest_fields = json.loads((first.folder / "run.json").read_text("utf-8"))
    del manifest_fields["earlier"]
    (tmp_path / "run.json").write_text(json.dumps(manifest_fields), "utf-8")
    assert Run(tmp_path).manifest.earlier == {}
