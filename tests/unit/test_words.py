"""The list of words that say too little."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("_OF_TEXTS = 1", "'_OF_': write what it is: OF_TEXTS is TEXT_COLUMNS"),
        ("n_told = 1", "'_told': write seen, shown, said"),
        ("x = 1  # which has been told", "'told': write seen, shown, said"),
        ("x = f'{1} lacks a name'", "'lacks': write has no, misses"),
        ("SECONDS_OF_TRUST = 'told from those of others'", None),
        ("hadamard = 'there are none'", None),
    ],
)
def test_a_word_that_says_too_little_is_named_with_its_place(tmp_path, line, said):
    path = tmp_path / "named.py"
    path.write_text(f"\n{line}\n")
    script = [sys.executable, REPOSITORY / ".ci" / "words", path]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (
        (0, "") if said is None else (1, f"{path}:2: {said}")
    )
