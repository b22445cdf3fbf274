"""The check that counts what a reader has to guess at."""

import subprocess
import sys

from tests.conftest import REPOSITORY

SCRIPT = [sys.executable, str(REPOSITORY / ".ci" / "words")]
PLAIN = "import os\n\nwidth = 2\nheight = 3\narea = width * height\n"


def run(folder, *arguments):
    return subprocess.run(
        [*SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def write_package(folder, code):
    package = folder / "python" / "mia_batch"
    package.mkdir(parents=True)
    (package / "module.py").write_text(code)


def test_names_that_say_nothing_are_listed_with_their_places(tmp_path):
    path = tmp_path / "named.py"
    path.write_text("_found = 1\nfor each in (1, 2):\n    n_found = each\n")
    listed = run(tmp_path, str(path)).stdout.splitlines()
    assert listed == [
        f"{path}: 5.0 tokens a line, 0.0% long lines, 66.7% of 3 names weak",
        f"{path}:1: '_found' doesn't say what it holds",
        f"{path}:2: 'each' doesn't say what it holds",
    ]


def test_a_package_within_the_bars_passes(tmp_path):
    write_package(tmp_path, PLAIN)
    checked = run(tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_dense_lines_long_lines_and_weak_names_are_refused(tmp_path):
    for number, code in enumerate(
        (
            "sums = [a + b for a in (1, 2) for b in (3, 4)]\n",
            f"{PLAIN}message = '{'x' * 90}'\n",
            f"{PLAIN}found = 1\n",
        )
    ):
        folder = tmp_path / str(number)
        write_package(folder, code)
        checked = run(folder)
        assert checked.returncode == 1
        assert "at most 8.0 tokens, 3% and 1%" in checked.stdout
