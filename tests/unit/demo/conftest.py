"""A library of generated documentation, and settings that train in seconds."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from filelock import FileLock

from mia_batch.demo import DemoFolder, DemoSettings, prepare


@pytest.fixture(scope="session")
def tiny():
    return DemoSettings(
        n_passages=16, per_group=4, vocabulary=300, hidden=32, head=32, layers=1, epochs=2
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Ten modules of 700 random words each, which fail when they are imported."""
    folder = tmp_path_factory.mktemp("library")
    generator = random.Random(5)
    for number in range(10):
        words = [f"w{generator.randrange(10**6)}" for _ in range(700)]
        source = f'"""{" ".join(words)}"""\nraise RuntimeError\n'
        (folder / f"module{number}.py").write_text(source)
    return folder


@pytest.fixture(scope="session")
def made(tiny, shared_folder):
    """A finished demo, its folder and its lines of progress; made once for all workers."""
    folder, progress = shared_folder / "made" / "demo", shared_folder / "made.json"
    with FileLock(shared_folder / "made.lock"):
        if not progress.exists():
            lines: list[str] = []
            prepare(folder, notify=lines.append, settings=tiny)
            progress.write_text(json.dumps(lines))
    return DemoFolder.at(folder), folder, json.loads(progress.read_text())


@pytest.fixture(scope="session")
def trainers():
    """Process ids of the training programs at work in a folder."""

    def find(folder):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"mia_batch.demo.train" in command and os.fsencode(folder) in command:
                found.append(int(process.name))
        return found

    return find
