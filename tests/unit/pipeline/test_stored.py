"""Runs whose folder lies in an object store."""

import json
from itertools import count
from typing import Any

import obstore
import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command, main
from mia_batch.errors import RunFolderError
from mia_batch.extras.store import copies as leases
from mia_batch.extras.store.copies import Lease, Store
from mia_batch.observer import Observer
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.dry_run import plan
from mia_batch.settings import load_settings
from tests.checkpoints import TEXTS
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.runs import audit, audit_books
from tests.s3 import KEY, SECRET
from tests.unit.pipeline.conftest import Listener


@pytest.fixture
def inputs(recorded_books):
    """Books, a recording, and a run of them in an ordinary folder."""
    return recorded_books


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def tables(contents):
    return {
        name: content for name, content in contents.items() if name.endswith(".parquet")
    }


def stop_writing_after(monkeypatch, n):
    """The store takes this many more files, then refuses."""
    put, number = Store.put, count()

    def limited(self, name, path):
        if next(number) >= n:
            msg = f"{self.url} cannot be used: it is full"
            raise RunFolderError(msg)
        return put(self, name, path)

    monkeypatch.setattr(Store, "put", limited)


def recorded(monkeypatch, method):
    """Names of the files of which the store is asked for something."""
    names: list[str] = []
    store_method = getattr(Store, method)

    def recording(self, name, path):
        names.append(name)
        return store_method(self, name, path)

    monkeypatch.setattr(Store, method, recording)
    return names


def refusal(url, inputs, **settings):
    try:
        audit_books(url, inputs, **settings)
    except RunFolderError as error:
        return str(error)
    return None


def test_the_tables_are_those_of_a_folder_and_asked_again_or_dry_nothing_is_stored(
    inputs, on_machine, server, url, run, monkeypatch
):
    stored_run = audit_books(url, inputs)
    contents_held, contents_before = server.contents(run), server.contents(run)
    assert json.loads(contents_held.pop(".lock"))["session"] == ""
    assert tables(contents_held) == tables(files(inputs / "run"))
    assert contents_held == files(stored_run.folder)
    assert contents_held.keys() == files(inputs / "run").keys()
    names = recorded(monkeypatch, "put")
    audit_books(url, inputs)
    assert names == []  # a finished run is left as it is
    assert server.contents(run).keys() == contents_before.keys()
    settings = {
        "input": str(inputs / "books"),
        "samples_from": str(inputs / "made.parquet"),
    }
    contents_held = server.contents(run)
    on_machine("two")
    assert dict(plan(load_settings(settings | {"out": url})))["documents"].startswith(
        "2"
    )
    assert server.contents(run) == contents_held


@pytest.mark.parametrize("then", ["one", "two"])
def test_a_store_that_fails_stops_the_run_and_any_machine_goes_on(
    then, inputs, on_machine, server, url, run, monkeypatch
):
    """Whatever the store had by then."""
    for n in count(1 if then == "one" else 4, 8):
        with monkeypatch.context() as patch:
            stop_writing_after(patch, n)
            on_machine("one")
            address = f"{url}-{n}"
            if (refusal_said := refusal(address, inputs)) is None:
                break
        assert (
            refusal_said
            == f"{address} cannot be used: it is full; the same command goes on"
        )
        on_machine(then)
        again = audit_books(address, inputs)
        contents_held = server.contents(f"{run}-{n}")
        assert tables(contents_held) == tables(files(inputs / "run"))
        assert {
            name: contents_held[name] for name in contents_held if name != ".lock"
        } == files(again.folder)
        assert verify(address).faults == []
    assert n > 15


def test_a_copy_that_was_left_behind_follows_and_never_overwrites(
    inputs, on_machine, server, url, run
):
    on_machine("one")
    run_left = audit_books(url, inputs, samples=1)
    on_machine("two")
    audit_books(url, inputs, samples=2)
    contents_held = server.contents(run)
    on_machine("one")
    assert run_left["samples"].height == 2
    opened_run = mia_batch.Run(f"{url}/")
    assert opened_run.folder == run_left.folder
    assert files(opened_run.folder) == {
        name: contents_held[name] for name in contents_held if name != ".lock"
    }
    assert audit_books(url, inputs, samples=2)["samples"].height == 4
    assert tables(server.contents(run)) == tables(contents_held)


def test_answers_that_the_store_has_not_are_kept_here_until_another_machine_wrote(
    inputs, on_machine, server, url, run
):
    """A killed run wrote its journal in place, and misses files that the store has already."""
    stored_run = audit_books(url, inputs, samples=1)
    journal, wal = (
        stored_run.folder / "journal.sqlite",
        stored_run.folder / "journal.sqlite-wal",
    )
    journal.write_bytes(b"older, as the store has it")
    audit_books(url, inputs, samples=1)
    assert server.contents(run)[journal.name] == journal.read_bytes()
    wal.write_bytes(b"newer, only here")
    whole = files(stored_run.folder)
    for name in ("scores.parquet", "run.json"):
        (stored_run.folder / name).unlink()
    assert files(mia_batch.Run(url).folder) == whole
    journal.write_bytes(b"newer, only here")
    assert files(mia_batch.Run(url).folder) == whole | {
        journal.name: b"newer, only here"
    }
    on_machine("two")
    audit_books(url, inputs, samples=1)
    contents_held = server.contents(run)
    on_machine("one")
    opened_run = mia_batch.Run(url)
    assert files(opened_run.folder) == {
        name: contents_held[name] for name in contents_held if name != ".lock"
    }
    assert journal.read_bytes() == b"older, as the store has it"


def test_one_run_at_a_time(inputs, on_machine, server, url):
    refusal_line = (
        f"{url} is held by another live run; wait for it, or choose another --out for"
        " another audit"
    )
    second: list[str] = []

    class Asking(Observer):
        def stage(self, sentence):
            if not second:
                for machine in ("one", "two"):
                    on_machine(machine)
                    with pytest.raises(RunFolderError) as refused:
                        audit_books(url, inputs)
                    second.append(str(refused.value))
                with pytest.raises(
                    RunFolderError, match="is held by a live run, so it has no root"
                ):
                    verify(url)
                on_machine("one")

    audit_books(url, inputs, observer=Asking())
    assert second == [refusal_line, refusal_line]
    on_machine("two")
    assert verify(url).faults == []


def test_a_run_that_was_taken_over_stops(
    inputs, on_machine, server, url, run, monkeypatch
):
    monkeypatch.setattr(leases, "_SECONDS", 0.0)
    new_leases: list[Lease] = []

    class Taking(Observer):
        def stage(self, sentence):
            if not new_leases:
                new_leases.append(Lease.take(Store.open(url), None))
                monkeypatch.setattr(leases, "_SECONDS_OF_TRUST", 0.0)

    with pytest.raises(RunFolderError, match="may have been taken over by another run"):
        audit_books(url, inputs, observer=Taking())
    new_leases[0].release()
    assert json.loads(server.contents(run)[".lock"])["copy"] == new_leases[0].copy


def test_credentials_are_nowhere(inputs, on_machine, server, url, run, tmp_path):
    heard = Listener()
    audit_books(url, inputs, observer=heard)
    result = CliRunner().invoke(command, ["report", url, "--format", "md"])
    with server.refusing_all(), pytest.raises(RunFolderError) as refused:
        audit_books(url, inputs, observer=heard)
    written_bytes = [
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    ]
    text_said = "\n".join(
        [
            *heard.sentences,
            result.output,
            repr(refused.value),
            str(refused.value.__cause__),
        ]
    )
    assert result.exit_code == 0
    for content in (*written_bytes, *server.contents(run).values(), text_said.encode()):
        assert KEY.encode() not in content
        assert SECRET.encode() not in content


def test_commands_take_an_address_where_they_take_a_folder(
    inputs, on_machine, server, url, run
):
    arguments = [
        "--input",
        str(inputs / "books"),
        "--samples-from",
        str(inputs / "made.parquet"),
    ]
    result = CliRunner().invoke(command, [*arguments, "--out", url])
    assert result.exit_code == 0, result.output
    assert url in result.stdout.replace("\n", "")
    on_machine("two")
    root = verify(inputs / "run").root
    target = mia_batch.Run(inputs / "run")["targets"]["target_id"][0]
    audit_books(f"{url}-second", inputs)
    for command_given, text_shown in {
        ("verify", url): root,
        ("show", url, target): target,
        ("report", url, "--format", "csv"): "0.txt",
        (
            "score",
            url,
            "--attacks",
            "samia_matched_v1",
            "--replace",
        ): "samia_matched_v1",
    }.items():
        result = CliRunner().invoke(command, list(command_given))
        assert result.exit_code == 0, result.output
        assert text_shown in result.output
    result = CliRunner().invoke(command, ["compare", url, f"{url}-second"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(command, ["report", url])
    assert result.exit_code == 0, result.output
    on_machine("three")
    assert verify(url).faults == []
    assert mia_batch.Run(url).manifest.made["scores"]["attacks"] == ["samia_matched_v1"]


def test_an_address_without_a_run_is_said_and_left_alone(
    on_machine, server, url, run, monkeypatch, capsys
):
    with pytest.raises(RunFolderError, match="holds no run"):
        _ = mia_batch.Run(url).manifest
    for command_name, status in {"report": 1, "score": 1, "verify": 2}.items():
        monkeypatch.setattr("sys.argv", ["mia-batch", command_name, url])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == status
        message = (
            f"{url} holds no run: there is no run.json in it; give the folder of a run"
        )
        assert capsys.readouterr().err == f"mia-batch: {message}\n"
    assert server.contents(run) == {}


def test_answers_that_were_paid_for_come_back_on_another_machine(
    on_machine, server, url, run, tmp_path
):
    prices = {"price_in": 0.0, "price_out": 1e6, "max_concurrency": 1}
    texts = [" ".join(text.split()[:40]) for text in TEXTS[:6]]
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "corpus.parquet")
    audit_settings: dict[str, Any] = {
        "input": str(tmp_path / "corpus.parquet"),
        "model": MODEL,
        "preset": "matched",
    }
    with HostileServer(TinyModel()) as endpoint:
        audit_settings |= prices | {"base_url": endpoint.url, "out": url, "samples": 3}
        with pytest.raises(mia_batch.EngineError, match="max_cost= is 400"):
            audit(**audit_settings, max_cost=400.0)
        first = len(endpoint.asked)
        on_machine("two")
        finished_run = audit(**audit_settings, max_cost=1e6)
        paid = [
            (a.prompt, a.fields["seed"], a.fields["max_tokens"]) for a in endpoint.asked
        ]
    assert 0 < first < len(paid)
    assert len(set(paid)) == len(paid)
    contents_held = server.contents(run)
    assert (
        contents_held["journal.sqlite"]
        == (finished_run.folder / "journal.sqlite").read_bytes()
    )
    assert verify(url).faults == []


def test_all_pages_of_parts_are_listed_and_fetched(
    on_machine, server, url, run, monkeypatch
):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "20")  # of a page
    store = server.store(run)
    parts = {
        f"samples/block-{n:05d}.target-continuation-0.parquet": b"%d" % n
        for n in range(50)
    }
    for name, content in parts.items():
        obstore.put(store, name, content)
    assert files(mia_batch.Run(url).folder) == parts
    obstore.delete(store, [name for name in parts if name.endswith("7.parquet")])
    obstore.put(store, "samples/block-00001.target-continuation-0.parquet", b"other")
    fetched = recorded(monkeypatch, "fetch")
    assert files(mia_batch.Run(url).folder) == server.contents(run)
    assert fetched == ["samples/block-00001.target-continuation-0.parquet"]


def test_a_cache_that_cannot_be_written_is_said(
    on_machine, server, url, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        RunFolderError, match=r"set XDG_CACHE_HOME to a folder that can be written"
    ):
        mia_batch.Run(url)
