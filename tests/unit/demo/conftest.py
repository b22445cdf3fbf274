"""A library of generated documentation, and settings that train in seconds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mia_batch.demo import DemoSettings, prepare


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
def made(tiny, tmp_path_factory):
    """A finished demo, its folder and what was told."""
    told: list[str] = []
    folder = tmp_path_factory.mktemp("made") / "demo"
    return prepare(folder, notify=told.append, settings=tiny), folder, told


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
