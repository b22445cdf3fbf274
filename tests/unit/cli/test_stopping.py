"""Signals, sent to the real command while it works."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from mia_batch.cli.main import command_line
from tests import runs
from tests.checkpoints import TEXTS
from tests.conftest import REPOSITORY
from tests.counting import counting_engine
from tests.forked import forked_command
from tests.processes import COMMAND, HANGS, children, wait_until, wait_until_gone

DEVNULL = Path(os.devnull)


@pytest.fixture(scope="module")
def requests_path(tmp_path_factory):
    """Where the counting engine notes what it is asked."""
    with counting_engine(tmp_path_factory.mktemp("counting")) as notes:
        yield notes


@pytest.fixture
def hold_path(requests_path):
    """While it is there, the engine answers all of a block and a part of the next."""
    path = requests_path.with_name("held")
    path.write_text("96")  # of 64 a block
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def corpus(checkpoint, requests_path, tmp_path_factory):
    """A folder with texts for three blocks, and settings of an engine that starts in a moment."""
    folder = tmp_path_factory.mktemp("stop it")
    words = " ".join(TEXTS).split()
    texts = [" ".join(words[start : start + 16]) for start in range(0, 16 * 3 * 64, 16)]
    pl.DataFrame({"text": texts}).write_parquet(folder / "the corpus.parquet")
    (folder / "mia-batch.toml").write_text(
        f'model = "{checkpoint}"\nengine = "counting"\nreport = false\n'
        'attacks = "longest_block_v1"\n[sampling]\nsamples = 2\n'
    )
    return folder


@pytest.fixture(scope="module")
def undisturbed(corpus):
    """Tables of a run that nothing stopped."""
    run = runs.audit(
        config=corpus / "mia-batch.toml",
        input=str(corpus / "the corpus.parquet"),
        out=str(corpus / "undisturbed"),
    )
    return runs.tables_of(run.folder)


@contextmanager
def running(command, folder):
    """The command at work; it and what it has started must be gone afterwards."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def stop(process, number):
    """Exit code, last line, and processes that were started, of which nothing is left."""
    started = children(process.pid)
    process.send_signal(number)
    stdout, err = process.communicate(timeout=HANGS)
    for child in started:
        wait_until_gone(child)
    assert stdout == ""
    assert "Traceback" not in err
    *_, message, command = err.splitlines()
    assert message.startswith("mia-batch: stopped; what is complete is kept")
    return process.returncode, command.strip(), started


def test_a_run_that_is_stopped_ends_as_one_that_never_was(
    corpus, hold_path, undisturbed
):
    command = [*COMMAND, "--input", "the corpus.parquet", "--out", "a run"]
    with running(command, corpus) as process:
        wait_until(lambda: any(corpus.glob("a run/samples/*.parquet")), "a part")
        code, printed, started = stop(process, signal.SIGINT)
    hold_path.unlink()
    assert code == 1
    assert started
    assert printed == shlex.join(command)
    assert not (corpus / "a run" / "scores.parquet").exists()
    with forked_command(command[len(COMMAND) :], DEVNULL, DEVNULL, cwd=corpus) as again:
        again.wait(HANGS)
    assert again.poll() == 0
    assert runs.tables_of(corpus / "a run") == undisturbed


DISK = """
import shutil, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if subprocess.run("mount -t tmpfs -o size=4m none disk", shell=True).returncode:
    sys.exit(77)

import mia_batch
from tests.processes import wait_until


def audit():
    try:
        mia_batch.audit("the corpus.parquet", config="mia-batch.toml", out="disk/run")
    except mia_batch.RunFolderError as error:
        return str(error)
    return "done"


run = Path("disk/run")
with ThreadPoolExecutor() as pool:
    full = pool.submit(audit)
    wait_until(lambda: full.done() or any(run.glob("samples/*.parquet")), "a part")
    subprocess.run("cp /dev/zero disk/ballast", shell=True, stderr=subprocess.DEVNULL)
    Path(sys.argv[1]).unlink()
    print(full.result())
print(len([*run.glob("samples/*")]))
subprocess.run("mount -o remount,ro disk", shell=True, check=True)
print(audit())
subprocess.run("mount -o remount,rw disk", shell=True, check=True)
Path("disk/ballast").unlink()
print(audit())
shutil.copytree(run, "after a full disk")
"""


def test_a_full_disk_and_a_read_only_one_are_said_and_survived(
    corpus, hold_path, undisturbed
):
    """On a disk of its own, which nobody else sees."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1), which gives a process disks of its own")
    (corpus / "disk").mkdir()
    script = [sys.executable, "-c", DISK, str(hold_path)]
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", *script],
        cwd=corpus,
        env=os.environ
        | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 77 or result.stderr.startswith("unshare: "):
        pytest.skip(
            f"this machine gives a process no disk of its own: {result.stderr.strip()}"
        )
    assert result.returncode == 0, result.stderr
    full, n_parts, read_only, again = result.stdout.splitlines()
    assert ".parquet cannot be written: No space left on device; make room or" in full
    assert 1 <= int(n_parts) < 3
    assert "disk/run cannot be written (Read-only file system); choose" in read_only
    assert again == "done"
    assert runs.tables_of(corpus / "after a full disk") == undisturbed


@pytest.mark.long
def test_a_run_whose_engine_is_still_starting_is_stopped(corpus):
    arguments = [
        "--input",
        "the corpus.parquet",
        "--out",
        "early",
        "--engine",
        "transformers",
    ]
    with running([*COMMAND, *arguments], corpus) as process:
        wait_until((corpus / "early" / "engine.log").exists, "the engine starts")
        wait_until(lambda: children(process.pid), "the engine's process")
        code, _, started = stop(process, signal.SIGTERM)
    assert (code, len(started)) == (1, 1)


def test_a_demo_that_is_stopped_in_training_starts_over_as_it_was_asked_to(tmp_path):
    arguments, err = ["demo", "--folder", "it's mine", "--fresh"], tmp_path / "err"
    with forked_command(arguments, DEVNULL, err, cwd=tmp_path) as process:
        wait_until(
            lambda: err.exists() and "training a" in err.read_text(), "the training"
        )
        os.kill(process.pid, signal.SIGTERM)
    assert process.poll() == 1
    assert err.read_text().splitlines()[-1].strip() == shlex.join(
        ["mia-batch", *arguments]
    )


STUCK = """
import ctypes
from contextlib import suppress
from mia_batch.cli.main import Stopping

lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(lock)
with Stopping(["a", "b c"]).listening():
    with suppress(KeyboardInterrupt):
        print(flush=True)
        libc.pthread_mutex_lock(lock)  # for ever, and no signal ends it
    libc.pthread_mutex_lock(lock)
"""


def test_who_is_stopped_while_it_is_imported_says_so_in_one_line():
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'mia_batch.cli.help': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "import mia_batch.cli"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (
        1,
        b"mia-batch: stopped before it began\n",
    )


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_stops_all_but_what_nohup_began(tmp_path, ignored):
    # The tests themselves may have been begun by nohup
    action = "SIG_IGN" if ignored else "SIG_DFL"
    prologue = f"import signal; signal.signal(signal.SIGHUP, signal.{action})\n"
    with running([sys.executable, "-c", prologue + REPHRASED], tmp_path) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        last = signal.SIGTERM if ignored else signal.SIGHUP
        assert stop(process, last)[:2] == (1, "a 'b c'")


def test_too_little_memory_is_said_before_libraries_fail_for_it():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
    )
    code += "from mia_batch.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    stderr = result.stderr.decode()
    assert (result.returncode, stderr.count("\n")) == (1, 1)
    assert stderr.endswith(
        "the limit of this shell is 524,288 KiB: raise it with `ulimit -v`\n"
    )


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]])
def test_a_main_thread_that_cannot_be_interrupted_stops_nobody(tmp_path, signals):
    with running([sys.executable, "-c", STUCK], tmp_path) as process:
        process.stdout.readline()
        for number in signals[:-1]:
            process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        assert stop(process, signals[-1])[:2] == (1, "a 'b c'")


REPHRASED = """
import signal
from mia_batch.cli.main import Stopping

with Stopping(["a", "b c"]).listening():
    try:
        print(flush=True)
        signal.pause()
    except KeyboardInterrupt:
        raise ValueError from None
"""


def test_what_libraries_make_of_the_interrupt_does_not_matter(tmp_path):
    with running([sys.executable, "-c", REPHRASED], tmp_path) as process:
        process.stdout.readline()
        assert stop(process, signal.SIGINT)[:2] == (1, "a 'b c'")


def test_the_command_line_is_what_can_be_typed_again(monkeypatch, tmp_path):
    script = tmp_path / "mia-batch"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "--input", "a b"])
    assert command_line() == [str(script), "--input", "a b"]
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert command_line() == ["mia-batch", "--input", "a b"]
    monkeypatch.setattr(sys, "argv", [str(Path("x") / "__main__.py"), "attacks"])
    assert command_line() == sys.orig_argv
