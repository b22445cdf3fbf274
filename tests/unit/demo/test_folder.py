"""The demo's folder through its life: the real training runs, on few passages and steps."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from filelock import FileLock
from transformers import AutoTokenizer

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.extras.sets.demo import DemoFolder, DemoSettings, make_models, prepare
from tests.forked import Forked

TINY = DemoSettings(
    n_passages=16, per_group=4, vocabulary=300, hidden=32, head=32, layers=1, epochs=2
)


@pytest.fixture(scope="module")
def made(shared_folder):
    """A finished demo, its folder and its lines of progress; made once for all workers."""
    folder, progress = shared_folder / "made" / "demo", shared_folder / "made.json"
    with FileLock(shared_folder / "made.lock"):
        if not progress.exists():
            lines: list[str] = []
            prepare(folder, notify=lines.append, settings=TINY)
            progress.write_text(json.dumps(lines))
    return DemoFolder.at(folder), folder, json.loads(progress.read_text())


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made[1], tmp_path / "demo"))


@pytest.fixture
def no_torch(monkeypatch):
    """Make torch look uninstalled: nothing can be trained, so what succeeds was kept."""
    monkeypatch.setitem(sys.modules, "torch", None)


def content(folder):
    parts = DemoFolder.at(folder)
    return {
        p.name: p.read_bytes()
        for p in [parts.corpus, parts.config, *parts.model.iterdir()]
    }


def _prepare(folder, log, dies_at):
    def write(line):
        with log.open("a") as stream:
            stream.write(f"{line}\n")
        if dies_at is not None and line.startswith(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(folder, notify=write, settings=TINY)


def test_the_folder_has_what_the_ordinary_command_reads(made):
    parts, folder, _ = made
    corpora = ["corpus.parquet", "nonmember-shots.parquet", "member-shots.parquet"]
    names = [*corpora, "model", "reference", "masked", "mia-batch.toml"]
    corpus = pl.read_parquet(parts.corpus)
    assert corpus.columns == ["document_id", "text", "member", "group"]
    assert (corpus.height, corpus["member"].sum()) == (16, 8)
    there = {path.name for path in folder.iterdir()} - {".demo.lock"}
    assert there == {*names, "demo.json"}
    record = json.loads((folder / "demo.json").read_text())
    assert record["made_by"] == "mia-batch demo"
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(record["packages"]) == {"tokenizers", "torch", "transformers"}
    assert {"corpus.parquet", "model/model.safetensors"} <= set(record["files"])
    from mia_batch.settings import load_settings

    settings = load_settings({"config": parts.config})
    assert (settings.input, settings.model) == (str(parts.corpus), str(parts.model))
    assert settings.dtype == "float32"
    assert settings.folder.parent == folder


def test_each_step_is_said_in_a_line(made):
    lines = made[2]
    begins = [
        (
            "cut the documentation of 4 standard modules into 16 passages, 8 of them"
            " members"
        ),
        "trained a tokenizer of 300 tokens on all passages",
        "training a Llama of 0.0 million parameters on 8 members",
        *["epoch 1 of 2: loss ", "epoch 2 of 2: loss "],
        *["training a Llama of ", *["epoch "] * 3],
        *["training a Bert of ", *["epoch "] * 3],
        "made the models (",
    ]
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)
        assert "\n" not in line
    assert " on 16 passages (" in lines[5]


@pytest.mark.usefixtures("no_torch")
def test_a_kept_demo_is_not_touched_until_another_is_made(copy):
    lines: list[str] = []
    before = content(copy)
    prepare(copy, notify=lines.append, settings=TINY)
    (line,) = lines
    assert "kept" in line
    for settings, fresh in ((None, False), (TINY, True)):
        with pytest.raises(SettingsError, match="needs torch"):
            prepare(copy, settings=settings, fresh=fresh)
    assert content(copy) == before
    config = copy / "mia-batch.toml"
    edited = config.read_text() + "[sampling]\nsamples = 2\n"
    config.write_text(edited)
    prepare(copy, settings=TINY)
    assert config.read_text() == edited
    config.unlink()
    prepare(copy, settings=TINY)
    assert content(copy) == before


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "corpus.parquet").unlink(),
        lambda folder: os.truncate(folder / "model" / "model.safetensors", 100),
    ],
)
def test_a_spoiled_demo_is_made_anew(copy, spoil):
    spoil(copy)
    lines: list[str] = []
    with pytest.raises(
        SettingsError, match=r"needs torch; run pip install 'mia-batch\[demo\]'"
    ):
        prepare(copy, notify=lines.append, settings=TINY)
    assert "unfinished, changed or of another version" in lines[0]


def test_an_interrupted_training_keeps_the_old_demo(copy):
    before, threads = content(copy), torch.get_num_threads()

    def interrupt(line):
        if line.startswith("epoch"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(copy, fresh=True, notify=interrupt, settings=TINY)
    assert content(copy) == before
    assert not list(copy.glob(".making-*"))
    assert torch.get_num_threads() == threads


def test_killed_demo_is_made_by_the_next_and_two_at_once_agree(copy, tmp_path):
    """The damaged demo is made anew, equal to the last bit; the user's own files stay."""
    before = content(copy)
    os.truncate(copy / "model" / "model.safetensors", 100)
    (copy / "notes.txt").write_text("mine")
    (copy / "model" / "notes.txt").write_text("mine")
    logs = [tmp_path / name for name in ("killed", "one", "other")]
    with Forked(_prepare, copy, logs[0], "trained a tokenizer") as killed:
        pass
    assert killed.poll() == -signal.SIGKILL
    assert list(copy.glob(".making-*"))
    with (
        Forked(_prepare, copy, logs[1], None) as one,
        Forked(_prepare, copy, logs[2], None) as two,
    ):
        pass
    assert [one.poll(), two.poll()] == [0, 0]
    assert sum("training a Llama" in log.read_text() for log in logs[1:]) == 1
    assert (
        (copy / "model" / "notes.txt").read_text()
        == (copy / "notes.txt").read_text()
        == "mine"
    )
    (copy / "model" / "notes.txt").unlink()
    assert content(copy) == before
    assert not list(copy.glob(".making-*"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("novel.txt", "{}"), ("corpus.parquet", "{}")),
        *(("demo.json", each) for each in ("", "{", "[]", "null", '{"made_by": "me"}')),
        ("demo.json", '{"made_by": "mia-batch demo"}'),
    ],
)
def test_folders_with_other_things_are_refused_untouched(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match="holds other things than a demo"):
        prepare(tmp_path, fresh=True, settings=TINY)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "demo").write_text("mine")
    for folder in (tmp_path / "demo", tmp_path / "demo" / "below"):
        with pytest.raises(
            RunFolderError, match="cannot be used: Not a directory; name another"
        ):
            prepare(folder, settings=TINY)
    assert (tmp_path / "demo").read_text() == "mine"


def test_the_checkpoint_is_ordinary_and_its_tokenizer_gives_texts_back(made):
    model = made[0].model
    names = {path.name for path in model.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= names
    config = json.loads((model / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert config["architectures"] == ["LlamaForCausalLM"]
    sizes = config["max_position_embeddings"], config["vocab_size"]
    assert sizes == (TINY.context, TINY.vocabulary)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert (config["bos_token_id"], config["eos_token_id"]) == (bos, eos)
    assert bos != eos
    corpus = pl.read_parquet(made[0].corpus)
    for text in [*corpus["text"], "", " a\u00e9\u4e2d\U0001f600\r\n\x00 "]:
        ids = tokenizer(text).input_ids
        assert ids[0] == bos
        assert not {bos, eos} & {*ids[1:]}
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    for text in corpus[
        "text"
    ]:  # a cut after a word is a cut between tokens, as in training
        whole = tokenizer(text).input_ids
        end = text.index(text.split()[63]) + len(text.split()[63])
        prefix = tokenizer(text[:end]).input_ids
        if text[end : end + 1].isspace():
            assert whole[: len(prefix)] == prefix


def test_only_members_are_learned_and_the_tokenizer_tells_nothing(made, tmp_path):
    corpus = pl.read_parquet(made[0].corpus).with_columns(~pl.col("member"))
    make_models(corpus, tmp_path, TINY, lambda _line: None)
    one, other = made[0].model, DemoFolder.at(tmp_path).model
    for name, same in (("tokenizer.json", True), ("model.safetensors", False)):
        assert ((one / name).read_bytes() == (other / name).read_bytes()) == same
