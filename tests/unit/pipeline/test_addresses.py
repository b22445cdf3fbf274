"""Runs whose texts lie at an address: the same as of a copy, and what is recorded of them."""

import json
import os
import subprocess
import sys
import threading
from itertools import chain, count, repeat
from pathlib import Path

import obstore
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.corpus import ColumnNames, remote
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.privacy.data import read_rows
from mia_batch.extras.tune.jobs import learnt_texts
from mia_batch.pipeline.custody import verify
from mia_batch.settings import load_settings
from tests.checkpoints import TEXTS
from tests.file_server import Behaviour, FileServer, serve_data_set
from tests.runs import audit
from tests.s3 import BUCKET, KEY, SECRET
from tests.unit.pipeline.conftest import Listener

COMMIT = "89" * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts, some labelled, in two kinds of file; comparison texts; recorded continuations."""
    folder = tmp_path_factory.mktemp("texts")
    words = [text.split()[:40] for text in TEXTS[:30]]
    names = [f"text-{number}" for number in range(30)]
    texts = pl.DataFrame(
        {
            "document_id": names,
            "text": [" ".join(text_words) for text_words in words],
            "member": [True, False] * 15,
            "unused": range(30),
        }
    )
    texts.write_parquet(folder / "texts.parquet", row_group_size=7)
    texts.write_ndjson(folder / "texts.jsonl")
    recorded = [
        (name, " ".join(text_words[20 - number % 9 :]))
        for number, (name, text_words) in enumerate(zip(names, words, strict=True))
    ]
    table = pl.DataFrame(recorded, schema=["document_id", "candidate"], orient="row")
    table.write_parquet(folder / "made.parquet")
    return folder


@pytest.fixture(scope="module")
def running():
    with FileServer().running() as server:
        yield server


@pytest.fixture
def files(running, folder, monkeypatch):
    monkeypatch.setattr(remote, "pause", lambda _: None)
    running.behaviour = Behaviour()
    running.files.clear()
    for name in ("texts.parquet", "texts.jsonl"):
        running.files[f"/{name}"] = (folder / name).read_bytes()
    return running


def run_on(place, folder, run_folder, **settings):
    return audit(
        input=place,
        samples_from=str(folder / "made.parquet"),
        out=run_folder,
        **settings,
    )


def manifest(run):
    return json.loads((Path(run.folder) / "run.json").read_text())


@pytest.fixture(scope="module")
def roots(folder, tmp_path_factory):
    """Roots of runs on the disk, by the kind of file."""
    return {
        kind: manifest(
            run_on(str(folder / kind), folder, tmp_path_factory.mktemp("runs") / kind)
        )["custody"]["root"]
        for kind in ("texts.parquet", "texts.jsonl")
    }


@pytest.mark.parametrize("kind", ["texts.parquet", "texts.jsonl"])
@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(),
        Behaviour(has_ranges=False),
        Behaviour(cut_after=2000, n_cut=5),
        Behaviour(seconds_a_piece=0.01),
    ],
    ids=["ranges", "no ranges", "cut", "slow"],
)
def test_a_run_from_a_server_has_the_root_of_one_from_a_disk(
    files, folder, roots, tmp_path, kind, behaviour
):
    files.behaviour = behaviour
    run = run_on(f"{files.url}/{kind}", folder, tmp_path / "run")
    manifest_text = manifest(run)
    assert manifest_text["custody"]["root"] == roots[kind]
    (facts,) = manifest_text["addresses"]["input"].values()
    assert facts["address"] == f"{files.url}/{kind}"
    assert facts["size"] == (folder / kind).stat().st_size
    assert manifest_text["inputs"]["input"].keys() == {kind}


def test_a_run_from_the_hub_records_its_commit(
    files, folder, roots, tmp_path, monkeypatch, capsys
):
    from huggingface_hub import constants

    template = f"{files.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", files.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    content = (folder / "texts.parquet").read_bytes()
    serve_data_set(files, "org/texts", COMMIT, {"texts.parquet": content})
    place = "hf://datasets/org/texts/texts.parquet"
    manifest_text = manifest(run_on(place, folder, tmp_path / "run"))
    assert manifest_text["custody"]["root"] == roots["texts.parquet"]
    assert manifest_text["addresses"]["input"]["texts.parquet"] == {
        "address": f"hf://datasets/org/texts@{COMMIT}/texts.parquet",
        "size": len(content),
        "revision": COMMIT,
    }


@pytest.fixture(scope="module")
def server():
    from tests.s3 import s3_server

    with s3_server() as running:
        yield running


@pytest.mark.parametrize("pattern", ["corpus/texts.parquet", "corpus/*.parquet"])
def test_a_run_from_an_object_store_has_the_root_of_one_from_a_disk(
    server, folder, roots, tmp_path, monkeypatch, pattern
):
    for name, value in server.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    store = server.store("corpus")
    for name in ("texts.parquet", "texts.jsonl"):
        obstore.put(store, name, (folder / name).read_bytes())
    run = run_on(f"s3://{BUCKET}/{pattern}", folder, tmp_path / "run")
    manifest_text = manifest(run)
    assert manifest_text["custody"]["root"] == roots["texts.parquet"]
    facts = manifest_text["addresses"]["input"]["texts.parquet"]
    assert facts["address"] == f"s3://{BUCKET}/corpus/texts.parquet"
    assert facts["etag"]
    text = (Path(run.folder) / "run.json").read_text()
    assert KEY not in text
    assert SECRET not in text


# Going on, and checking.


def test_a_run_that_goes_on_says_that_its_texts_have_changed(files, folder, tmp_path):
    place = f"{files.url}/texts.jsonl"
    run_on(place, folder, tmp_path / "run")
    n_requests = len(files.requests)
    assert n_requests
    run_on(place, folder, tmp_path / "run")  # the server is asked again
    assert len(files.requests) > n_requests
    files.files["/texts.jsonl"] = (
        (folder / "texts.jsonl").read_bytes().replace(b"text-0", b"text-x")
    )
    listener = Listener()
    run_on(place, folder, tmp_path / "run", observer=listener)
    (sentence,) = [line for line in listener.sentences if "no longer" in line]
    assert sentence.startswith(f"input: {place} is no longer as this run read it (etag")


def test_a_run_that_is_killed_while_it_reads_goes_on_and_leaves_nothing(
    files, folder, roots, tmp_path
):
    content = (folder / "texts.parquet").read_bytes()
    is_reached, may_go_on = threading.Event(), threading.Event()
    n_answers = count(1)

    def answer():
        if next(n_answers) == 6:  # while the rows are read for the second time
            is_reached.set()
            may_go_on.wait()
        return content

    files.files["/texts.parquet"] = answer
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    arguments = [
        "--input",
        f"{files.url}/texts.parquet",
        "--out",
        str(tmp_path / "run"),
    ]
    arguments += ["--samples-from", str(folder / "made.parquet")]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "mia_batch", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert is_reached.wait(timeout=120)
        process.kill()
        process.wait()
        may_go_on.set()
    assert [*temporary.iterdir()] == []
    run = run_on(f"{files.url}/texts.parquet", folder, tmp_path / "run")
    assert manifest(run)["custody"]["root"] == roots["texts.parquet"]


@pytest.mark.parametrize("kind", ["texts.parquet", "texts.jsonl"])
def test_texts_that_change_between_checking_and_cutting_end_the_run(
    files, folder, roots, tmp_path, kind
):
    content = (folder / kind).read_bytes()
    # Three requests find the file, three or more check its rows
    answers = chain([content] * 7, repeat(content + b" "))
    files.files[f"/{kind}"] = lambda: next(answers)
    with pytest.raises(CorpusError) as refused:
        run_on(f"{files.url}/{kind}", folder, tmp_path / "run")
    assert f"/{kind} changed while it was read (" in str(refused.value)
    assert not (tmp_path / "run" / "targets.parquet").exists()
    files.files[f"/{kind}"] = content
    run = run_on(f"{files.url}/{kind}", folder, tmp_path / "run")
    assert manifest(run)["custody"]["root"] == roots[kind]


def test_data_of_tuned_models_may_lie_at_an_address(files):
    rows = read_rows(f"{files.url}/texts.parquet", ["text", "document_id"])
    assert rows.height == 30
    learnt, _ = learnt_texts(f"{files.url}/texts.jsonl", ColumnNames())
    assert len(learnt) == 15


def test_verify_asks_no_server_that_only_the_run_names(files, folder, tmp_path):
    place = f"{files.url}/texts.parquet"
    run_on(place, folder, tmp_path / "run")
    files.requests.clear()
    checked = verify(tmp_path / "run")
    assert checked.not_found == ["input/texts.parquet"]
    assert not files.requests
    checked = verify(tmp_path / "run", [place])
    assert (checked.not_found, checked.faults) == ([], [])
    assert files.requests
    checked = verify(tmp_path / "run", [folder])  # a copy
    assert (checked.not_found, checked.faults) == ([], [])
    files.files["/texts.parquet"] = (folder / "made.parquet").read_bytes()
    checked = verify(tmp_path / "run", [place])
    assert checked.faults == [("input/texts.parquet", "changed")]


def test_the_command_takes_addresses(files, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples_path = str(folder / "made.parquet")
    place = f"{files.url}/texts.jsonl"
    runner = CliRunner()
    result = runner.invoke(command, ["audit", place, "--samples-from", samples_path])
    assert result.exit_code == 0, result.output
    (run_folder,) = Path("runs").iterdir()
    assert run_folder.name == "texts-recorded"
    result = runner.invoke(command, ["verify", str(run_folder), "--input", place])
    assert result.exit_code == 0, result.output
    assert "not found" not in result.output


@pytest.mark.parametrize(
    "place",
    [
        "https://me:word@host/a.jsonl",
        "https://host/a.jsonl?X-Amz-Credential=word",
        "s3://bucket/a.jsonl?token=word",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(place):
    with pytest.raises(SettingsError) as refused:
        load_settings({"input": place, "model": "m"}, use_config=False)
    assert str(refused.value).startswith("input: an address has no user")
    assert "word" not in str(refused.value)
