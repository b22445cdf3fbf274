"""The front door of the benches: each is listed, and what a release runs is there."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from benches.__main__ import FOLDER, OF_A_RELEASE, list_benches, main

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("mia_batch", "numpy", "polars", "torch")


def test_each_bench_is_listed_with_its_own_line(capsys):
    benches = list_benches()
    with_parser = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
        if "ArgumentParser(" in path.read_text("utf-8")
    }
    assert with_parser <= benches.keys()
    assert {"gpu.card", "memory", "power_report"} <= benches.keys()
    assert not {"results", "pairs", "__main__"} & benches.keys()
    assert all(find_spec(f"benches.{name}") for name in benches)
    assert all(10 < len(sentence) <= 100 for sentence in benches.values())
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(benches) == len(set(benches.values()))
    starred = {line.split()[1] for line in lines if line.startswith("*")}
    assert starred == {name for name, *_ in OF_A_RELEASE} <= benches.keys()


def test_listing_them_loads_nothing_heavy():
    code = (
        "import sys; from benches.__main__ import main; main([])\n"
        f"assert not {{*{HEAVY}}} & {{*sys.modules}}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


def test_make_runs_those_of_a_release_in_order_until_one_fails(monkeypatch):
    calls: list[list[str]] = []

    def run(command, *, check):
        assert check
        calls.append(command)
        if len(calls) == 3:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        main(["run"])
    title, *program = calls[2][1:]
    assert title == f"{list_benches()['gpu.card']} --small"
    assert program == [sys.executable, "-m", "benches.gpu.card", "--small"]
    assert "python -m benches run" in (REPOSITORY / "Makefile").read_text("utf-8")
    with pytest.raises(SystemExit, match="python -m benches "):
        main(["else"])
