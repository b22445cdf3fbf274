"""The demo's folder through its life: the real training runs, on few passages and steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

from mia_batch.demo import DemoFolder, prepare
from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the finished demo that a test may spoil."""
    return Path(shutil.copytree(made[1], tmp_path / "demo"))


@pytest.fixture
def no_torch(monkeypatch):
    """Make torch look uninstalled: nothing can be trained, so what succeeds was kept."""
    monkeypatch.setitem(sys.modules, "torch", None)


def content(folder):
    parts = DemoFolder.at(folder)
    return {p.name: p.read_bytes() for p in [parts.corpus, parts.config, *parts.model.iterdir()]}


def start(folder, settings):
    """Prepare in a process of its own that prints what it is told."""
    code = (
        "import sys; from pathlib import Path; from functools import partial; "
        "from mia_batch.demo import DemoSettings, prepare; "
        f"prepare(Path({str(folder)!r}), settings=DemoSettings(**{asdict(settings)!r}), "
        "notify=partial(print, flush=True))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_parts_are_named_by_the_folder(made):
    parts, folder, _ = made
    assert parts == DemoFolder(
        corpus=folder / "corpus.parquet",
        nonmember_shots=folder / "nonmember-shots.parquet",
        member_shots=folder / "member-shots.parquet",
        model=folder / "model",
        reference=folder / "reference",
        masked=folder / "masked",
        config=folder / "mia-batch.toml",
    )
    corpus = pl.read_parquet(parts.corpus)
    assert corpus.columns == ["document_id", "text", "member", "group"]
    assert (corpus.height, corpus["member"].sum()) == (16, 8)


def test_each_step_is_told_in_a_line(made):
    lines = made[2]
    assert lines[0].startswith("cut the documentation of 4 standard modules into 16 passages, 8 ")
    assert lines[1] == "trained a tokenizer of 300 tokens on all passages"
    assert lines[2].startswith("training a Llama of 0.0 million parameters on 8 members")
    assert lines[3].startswith("epoch 1 of 2: loss ")
    assert lines[4].startswith("epoch 2 of 2: loss ")
    assert lines[5].startswith("training a Llama of ")
    assert " on 16 passages (" in lines[5]
    assert lines[9].startswith("training a Bert of ")
    assert lines[13].startswith("made the models (")
    assert len(lines) == 14
    assert not any("\n" in line for line in lines)


def test_nothing_else_is_left_in_the_folder(made):
    names = {path.name for path in made[1].iterdir()}
    corpora = {"corpus.parquet", "nonmember-shots.parquet", "member-shots.parquet"}
    models = {"model", "reference", "masked"}
    assert names - {".demo.lock"} == corpora | models | {"mia-batch.toml", "demo.json"}


def test_the_ordinary_command_reads_the_settings(made):
    from mia_batch.settings import load_settings

    parts, folder, _ = made
    settings = load_settings({"config": parts.config})
    assert (settings.input, settings.model) == (str(parts.corpus), str(parts.model))
    assert settings.dtype == "float32"
    assert settings.folder.parent == folder


def test_record_says_what_made_it(made):
    record = json.loads((made[1] / "demo.json").read_text())
    assert record["made_by"] == "mia-batch demo"
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(record["packages"]) == {"tokenizers", "torch", "transformers"}
    assert {"corpus.parquet", "model/model.safetensors"} <= set(record["files"])


@pytest.mark.usefixtures("no_torch")
def test_kept_demo_needs_no_training_and_is_not_touched(made, copy, tiny):
    told: list[str] = []
    before = content(copy)
    prepare(copy, notify=told.append, settings=tiny)
    assert content(copy) == before
    assert len(told) == 1
    assert "kept" in told[0]


@pytest.mark.usefixtures("no_torch")
def test_edited_settings_are_kept_and_missing_ones_written(copy, tiny):
    config = copy / "mia-batch.toml"
    original = config.read_text()
    config.write_text(original + "samples = 2\n")
    prepare(copy, settings=tiny)
    assert tomllib.loads(config.read_text())["samples"] == 2
    config.unlink()
    prepare(copy, settings=tiny)
    assert config.read_text() == original


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "corpus.parquet").unlink(),
        lambda folder: (folder / "model" / "config.json").write_text("{}"),
        lambda folder: os.truncate(folder / "model" / "model.safetensors", 100),
        lambda folder: shutil.rmtree(folder / "model"),
    ],
    ids=["no corpus", "edited config", "cut weights", "no model"],
)
def test_spoiled_demo_is_made_anew(copy, tiny, spoil):
    spoil(copy)
    told: list[str] = []
    with pytest.raises(SettingsError, match=r"needs torch; run pip install 'mia-batch\[demo\]'"):
        prepare(copy, notify=told.append, settings=tiny)
    assert "unfinished, changed or of another version" in told[0]


@pytest.mark.usefixtures("no_torch")
def test_other_settings_or_fresh_make_anew(copy, tiny):
    with pytest.raises(SettingsError, match="needs torch"):
        prepare(copy)
    with pytest.raises(SettingsError, match="needs torch"):
        prepare(copy, settings=tiny, fresh=True)
    prepare(copy, settings=tiny)  # and until it is made, the old one stays


def test_killed_training_keeps_the_old_demo(copy, tiny, trainers):
    before = content(copy)

    def kill(line):
        if line.startswith("training"):
            (trainer,) = trainers(copy)
            os.kill(trainer, signal.SIGKILL)

    with pytest.raises(MiaBatchError, match="training of the demo's model was killed"):
        prepare(copy, fresh=True, notify=kill, settings=tiny)
    assert content(copy) == before
    assert not list(copy.glob(".making-*"))


def test_killed_demo_is_made_by_the_next_and_two_at_once_agree(copy, tiny, trainers):
    """The damaged demo is made anew, equal to the last bit; the user's own files stay."""
    before = content(copy)
    os.truncate(copy / "model" / "model.safetensors", 100)
    (copy / "notes.txt").write_text("mine")
    (copy / "model" / "notes.txt").write_text("mine")
    killed = start(copy, tiny)
    for line in killed.stdout:
        if line.startswith("trained a tokenizer"):
            break
    (trainer,) = trainers(copy)
    killed.kill()
    killed.wait()
    killed.stdout.close()
    two = [start(copy, tiny), start(copy, tiny)]
    outputs = [process.communicate()[0] for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert sum("training a Llama" in output for output in outputs) == 1
    assert (copy / "model" / "notes.txt").read_text() == (copy / "notes.txt").read_text() == "mine"
    (copy / "model" / "notes.txt").unlink()
    assert content(copy) == before
    assert not list(copy.glob(".making-*"))
    assert trainer not in trainers(copy)


@pytest.mark.parametrize("name", ["novel.txt", "demo.json", "corpus.parquet"])
def test_folders_with_other_things_are_refused_untouched(tmp_path, tiny, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(SettingsError, match="holds other things than a demo"):
        prepare(tmp_path, fresh=True, settings=tiny)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_file_in_place_of_the_folder_is_refused(tmp_path, tiny):
    (tmp_path / "demo").write_text("mine")
    for folder in (tmp_path / "demo", tmp_path / "demo" / "below"):
        with pytest.raises(RunFolderError, match="cannot be used: Not a directory; name another"):
            prepare(folder, settings=tiny)
    assert (tmp_path / "demo").read_text() == "mine"
