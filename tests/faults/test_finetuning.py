"""Fine-tunings that are killed, damaged, disturbed, or asked for what cannot be."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from functools import cache
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.tune import jobs
from tests.adapters import save_gpt2
from tests.bases import save_bases
from tests.checkpoints import save_masked_checkpoint
from tests.forked import Forked, forked_command
from tests.processes import COMMAND, wait_until
from tests.tuning import LEARNT, contents, die_saving, make

EPOCHS = 4
STEPS = 2  # of an epoch
HELD_OUT: dict[str, Any] = {
    "epochs": EPOCHS,
    "held_out": 0.2,
    "learning_rate": 3e-3,
    "patience": EPOCHS,
}


OVERFITTING = HELD_OUT | {
    "method": "full",
    "learning_rate": 0.1,
    # None has a token of another, so that what is learnt makes others less likely
    "texts": [" ".join(12 * letter) for letter in "abcdefgh"],
}


@pytest.fixture(scope="module")
def undisturbed(checkpoint, tmp_path_factory):
    @cache
    def by(method):
        out = tmp_path_factory.mktemp("undisturbed") / method
        make(checkpoint, out, method=method, **HELD_OUT)
        return contents(out)

    return by


def placed(model, out):
    out.mkdir()
    for file, held in model.items():
        (out / file).write_bytes(held)


def _make(base, out, n, at, changed):
    die_saving(n, at)
    make(base, out, **(HELD_OUT | changed))


def kill(base, out, n_epochs, at="its end", **changed):
    """Make a model by a process that is killed after some epochs."""
    with Forked(_make, base, out, n_epochs, at, changed) as process:
        pass
    assert process.poll() == -signal.SIGKILL
    assert not out.exists()


def epochs(said):
    return [
        int(each.split()[1])
        for each in said
        if each.startswith("epoch") and "kept" not in each
    ]


@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("lora", "its state"),
        pytest.param("p-tuning", "its weights", marks=pytest.mark.long),
    ],
)
def test_a_training_that_is_killed_goes_on(
    method, at, checkpoint, undisturbed, tmp_path
):
    """It goes on from the last checkpoint that is whole, not from one that was cut short."""
    out, saved = tmp_path / "model", tmp_path / ".model.work/checkpoints"
    kill(checkpoint, out, 2, at, method=method)
    assert {path.name for path in saved.iterdir()} == {
        f"checkpoint-{STEPS * n}" for n in (1, 2)
    }
    said: list[str] = []
    make(checkpoint, out, said.append, method=method, **HELD_OUT)
    assert epochs(said) == [2, 3, 4]
    assert contents(out) == undisturbed(method)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def finetune(base, data, out):
    given = {"base": base, "data": data, "out": out, "method": "lora", "epochs": EPOCHS}
    given |= {"learning-rate": 3e-3, "batch-size": 4, "rank": 4, "max-tokens": 32}
    given |= {"held-out": 0.2, "patience": EPOCHS}
    return ["finetune", *(f"--{name}={value}" for name, value in given.items())]


LONG = ("--epochs=1000", "--patience=1000")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.parquet"
    pl.DataFrame({"text": [*LEARNT, " ", None]}).write_parquet(path)
    return path


def _whole(state):
    return state.read_text().endswith("\n}\n")  # the trainer opens it empty


def test_a_command_killed_at_random_goes_on(checkpoint, undisturbed, data, tmp_path):
    asked = finetune(checkpoint, data, tmp_path / "model")
    work = tmp_path / ".model.work"
    with forked_command(asked, tmp_path / "out", tmp_path / "err") as process:
        wait_until(
            lambda: any(map(_whole, work.glob("checkpoints/*/trainer_state.json"))),
            "epoch 1",
        )
        process.kill()
    assert process.poll() == -signal.SIGKILL
    done = tmp_path / "done"
    with forked_command(asked, tmp_path / "out", done) as process:
        process.wait()
    assert process.poll() == 0, done.read_text()
    assert "epoch 1 of" not in done.read_text()
    assert contents(tmp_path / "model") == undisturbed("lora")
    assert not work.exists()


def test_the_same_request_again_trains_nothing(
    checkpoint, undisturbed, tmp_path, monkeypatch
):
    placed(undisturbed("lora"), tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(jobs, "_train", lambda *_: pytest.fail("something is trained"))
    again = make(checkpoint, tmp_path / "model", **HELD_OUT)
    assert not again.is_new
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    # Killed at the end
    (tmp_path / ".model.work/checkpoints/checkpoint-2").mkdir(parents=True)
    assert not make(checkpoint, tmp_path / "model", **HELD_OUT).is_new
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(
        RunFolderError, match=r"made of another recipe; choose another name, or"
    ):
        make(checkpoint, tmp_path / "model", seed=1, **HELD_OUT)
    with pytest.raises(RunFolderError, match=r"made of another texts"):
        make(checkpoint, tmp_path / "model", texts=LEARNT[1:], **HELD_OUT)


def test_what_is_left_of_another_making_is_not_gone_on_from(
    checkpoint, undisturbed, tmp_path
):
    kill(checkpoint, tmp_path / "model", 2, seed=1)
    said: list[str] = []
    make(checkpoint, tmp_path / "model", said.append, **HELD_OUT)
    assert epochs(said) == [1, 2, 3, 4]
    assert contents(tmp_path / "model") == undisturbed("lora")


@pytest.fixture(scope="module")
def overfitted(checkpoint, tmp_path_factory):
    """Of a model whose first epoch is its best: what came after it is of no use alone."""
    out = tmp_path_factory.mktemp("overfitted") / "model"
    losses = [
        row["held_out_loss"] for row in make(checkpoint, out, **OVERFITTING).losses
    ]
    assert losses.index(min(losses)) == 0
    return contents(out)


@pytest.mark.parametrize(
    "method", ["full", pytest.param("p-tuning", marks=pytest.mark.long)]
)
def test_a_training_killed_after_its_last_epoch_trains_no_more(
    method, checkpoint, tmp_path
):
    """It has stopped early, and had only to give the model its name."""
    early: dict[str, Any] = OVERFITTING | {"method": method, "patience": 1}
    n_epochs = len(make(checkpoint, tmp_path / "whole", **early).losses)
    assert n_epochs < EPOCHS
    kill(checkpoint, tmp_path / "model", n_epochs, **early)
    said: list[str] = []
    make(checkpoint, tmp_path / "model", said.append, **early)
    assert epochs(said) == []
    assert contents(tmp_path / "model") == contents(tmp_path / "whole")


def test_a_work_folder_that_was_moved_keeps_its_best_epoch(
    checkpoint, overfitted, tmp_path
):
    (tmp_path / "one").mkdir()
    kill(checkpoint, tmp_path / "one/model", EPOCHS - 1, **OVERFITTING)
    (tmp_path / "one").rename(tmp_path / "two")
    make(checkpoint, tmp_path / "two/model", **OVERFITTING)
    assert contents(tmp_path / "two/model") == overfitted


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "tokenizer.json", "training.json"]
)
def test_damage_of_a_finished_model_is_named(
    name, checkpoint, undisturbed, tmp_path, monkeypatch
):
    out = tmp_path / "model"
    placed(undisturbed("lora"), out)
    text = (out / name).read_bytes()
    at = text.index(b'"loss": ') + 8 if name == "training.json" else len(text) - 9
    (out / name).write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    before = contents(out)
    monkeypatch.setattr(jobs, "_train", lambda *_: pytest.fail("something is trained"))
    with pytest.raises(
        RunFolderError, match=rf"{name} was changed after it was made; delete .*mod"
    ):
        make(checkpoint, out, **HELD_OUT)
    assert contents(out) == before
    (out / name).unlink()
    with pytest.raises(
        RunFolderError, match=r"is missing; delete|holds no model that was made"
    ):
        make(checkpoint, out, **HELD_OUT)


def test_of_two_commands_at_once_one_makes_the_model(
    checkpoint, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs, "_SECONDS_FOR_OTHERS", 0.1)
    asked = [*finetune(checkpoint, data, tmp_path / "model"), *LONG]
    err = tmp_path / "err"
    with forked_command(asked, tmp_path / "out", err) as process:
        wait_until(lambda: err.exists() and "epoch 1 of" in err.read_text(), "an epoch")
        done = CliRunner().invoke(command, asked)
        assert isinstance(done.exception, RunFolderError)
        assert "is being made by another process; wait for it" in str(done.exception)
        assert process.poll() is None  # which is not disturbed
        n_said = err.read_text().count("epoch ")
        wait_until(lambda: err.read_text().count("epoch ") > n_said, "a further epoch")
        process.kill()
    assert not (tmp_path / "model").exists()


def invoke(**given):
    asked = [
        "finetune",
        *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()),
    ]
    done = CliRunner().invoke(command, asked)
    if isinstance(done.exception, MiaBatchError):
        return str(done.exception)
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.output


def test_what_cannot_be_is_refused_in_a_sentence(
    checkpoint, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs, "_train", lambda *_: pytest.fail("something is trained"))
    columns = pl.DataFrame(
        {"text": LEARNT, "member": [False] * len(LEARNT), "body": LEARNT}
    )
    columns.write_parquet(tmp_path / "none.parquet")
    columns.with_columns(member=pl.col("text") == LEARNT[0]).write_parquet(
        tmp_path / "one.parquet"
    )
    pl.DataFrame({"text": ["", " \n", None]}).write_parquet(tmp_path / "empty.parquet")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    masked = save_masked_checkpoint(tmp_path / "masked")
    gpt2 = save_gpt2(tmp_path / "gpt2")
    other = save_bases(tmp_path / "bases")["t5"]
    good = {"base": checkpoint, "data": data, "out": tmp_path / "model"}
    for changed, expected in [
        (
            {"data": tmp_path / "none.parquet"},
            "there are 0 texts to tune a model on; give at",
        ),
        (
            {"data": tmp_path / "one.parquet"},
            "there are 1 texts to tune a model on; give at",
        ),
        ({"data": tmp_path / "empty.parquet"}, "there are 0 texts to tune a model on"),
        ({"text_column": "nothing"}, "'nothing'"),
        ({"data": tmp_path / "nowhere.parquet"}, "nowhere.parquet"),
        ({"base": masked}, "is a masked model (BertForMaskedLM); give a causal"),
        ({"base": other}, "is of the kind 't5', which is not a causal language model"),
        ({"base": tmp_path / "nowhere"}, "nowhere' does not exist"),
        (
            {"base": gpt2, "method": "prefix", "rank": 255},
            "is too short for 255 virtual tokens",
        ),
        (
            {"base": gpt2, "method": "p-tuning", "rank": 999},
            "is too short for 999 virtual",
        ),
        (
            {"out": tmp_path / "file"},
            "is there already and holds no model that was made here",
        ),
        (
            {"out": tmp_path / "folder"},
            "is there already and holds no model that was made here",
        ),
        (
            {"out": tmp_path / "link"},
            "is there already and holds no model that was made here",
        ),
        ({"out": tmp_path / "file" / "in"}, "in cannot be written: Not a directory"),
        ({"out": "s3://bucket/model"}, "a model can be made on a disk only"),
        ({"max_tokens": 1}, "--max-tokens"),
        ({"epochs": 0}, "--epochs"),
        ({"held_out": "nan"}, "'--held-out': nan is no number"),
        ({"learning_rate": "nan"}, "'--learning-rate': nan is no number"),
    ]:
        assert expected in invoke(**good | changed), changed
    assert not (tmp_path / "model").exists()
    assert (tmp_path / "file").read_text() == "mine"
    assert not list(tmp_path.glob(".*.work"))


def test_members_alone_are_learnt(checkpoint, tmp_path):
    labelled = pl.DataFrame(
        {"text": LEARNT, "member": [n % 2 == 0 for n in range(len(LEARNT))]}
    )
    labelled.write_parquet(tmp_path / "labelled.parquet")
    given = {
        "base": checkpoint,
        "data": tmp_path / "labelled.parquet",
        "out": tmp_path / "model",
    }
    said = invoke(**given, epochs=1, rank=2, batch_size=99)
    record = json.loads((tmp_path / "model/training.json").read_text())
    assert record["n_texts"] == 4
    assert "4 members of 8 texts, 1 of them held out: 1 steps" in " ".join(said.split())
    assert "was made before" in " ".join(
        invoke(**given, epochs=1, rank=2, batch_size=99).split()
    )


DISK = """
mount -t tmpfs -o size=2m none disk || exit 77
head -c 1900000 /dev/zero > disk/ballast
COMMAND; echo $?
ls -A disk
cp -r disk/.model.work .
"""


@pytest.mark.long
def test_a_full_disk_is_said_and_survived(checkpoint, data, undisturbed, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1), which gives a process disks of its own")
    (tmp_path / "disk").mkdir()
    asked = shlex.join([*COMMAND, *finetune(checkpoint, data, "disk/model")])
    script = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        DISK.replace("COMMAND", asked),
    ]
    done = subprocess.run(
        script, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if done.returncode == 77 or done.stderr.startswith("unshare: "):
        pytest.skip(
            f"this machine gives a process no disk of its own: {done.stderr.strip()}"
        )
    assert done.stdout.split() == ["1", ".model.work", "ballast"], done.stderr
    assert "the disk is full; free some space" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    # Once there is room, from what was saved
    make(checkpoint, tmp_path / "model", **HELD_OUT)
    assert contents(tmp_path / "model") == undisturbed("lora")


def test_a_command_that_is_interrupted_ends(checkpoint, data, tmp_path):
    asked = [*finetune(checkpoint, data, tmp_path / "model"), *LONG]
    with forked_command(asked, tmp_path / "out", tmp_path / "err") as process:
        wait_until(
            lambda: [*(tmp_path / ".model.work").glob("checkpoints/*")], "a checkpoint"
        )
        os.kill(process.pid, signal.SIGINT)
    assert process.poll() == 1
    assert not (tmp_path / "model").exists()
    err = (tmp_path / "err").read_text()
    assert "mia-batch: stopped; what is complete is kept" in err
    assert "Traceback" not in err


def test_a_base_that_changes_is_another_base(checkpoint, tmp_path):
    base = shutil.copytree(checkpoint, tmp_path / "base")
    make(base, tmp_path / "model", epochs=1)
    (base / "generation_config.json").write_text('{"do_sample": true}')
    with pytest.raises(RunFolderError, match="made of another base"):
        make(base, tmp_path / "model", epochs=1)
    shutil.rmtree(base)
    with pytest.raises(SettingsError, match="does not exist"):
        make(base, tmp_path / "model", epochs=1)
