from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mia_batch.evidence.engines.imports import kept_for_good

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


def test_what_was_imported_is_left_out_and_garbage_is_collected_again():
    with kept_for_good():
        assert not gc.isenabled()
        made: list[object] = [[]]
    assert gc.isenabled()
    assert not any(one is made for one in gc.get_objects())


def test_an_import_that_fails_leaves_the_collector_at_work():
    with pytest.raises(ImportError), kept_for_good():
        raise ImportError
    assert gc.isenabled()


def tokenizer_of(checkpoint: Path, *first: str) -> list[str]:
    """A tokenizer's digest and class, whether that took torch, and whether torch can be had."""
    lines = [
        *first,
        "import sys",
        "from mia_batch.evidence import Tokenizer, identify_model",
        f"tokenizer = Tokenizer.load({str(checkpoint)!r})",
        f"model = identify_model({str(checkpoint)!r}, None)",
        "print(tokenizer.digest, type(tokenizer._tokenizer), model.digest, model.max_model_len)",
        "print('torch' in sys.modules)",
        "import torch",
        "print(torch.arange(3).sum().item())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_where_no_model_runs_the_same_tokenizer_comes_without_torch(checkpoint):
    alone = ("from mia_batch.evidence import run_no_model_here", "run_no_model_here()")
    same, *plain = tokenizer_of(checkpoint)
    assert plain == ["True", "3"]
    assert tokenizer_of(checkpoint, *alone) == [same, "False", "3"]
    assert tokenizer_of(checkpoint, *alone, "import torch") == [same, "True", "3"]
