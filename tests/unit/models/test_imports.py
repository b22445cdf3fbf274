from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mia_batch.models.imports import kept_for_good, without

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


def test_a_library_is_hidden_for_a_while():
    sys.modules.pop("colorsys", None)
    with without("colorsys"), pytest.raises(ModuleNotFoundError):
        import colorsys
    import colorsys

    with without("colorsys"):
        assert sys.modules["colorsys"] is colorsys
    assert sys.modules["colorsys"] is colorsys


def tokenizer_of(checkpoint: Path, *first: str) -> list[str]:
    """A tokenizer's digest and class, whether that took torch, and whether torch can be had."""
    lines = [
        *first,
        "import sys",
        "from mia_batch.models.tokens import Tokenizer",
        "from mia_batch.models.identity import identify_model",
        f"tokenizer = Tokenizer.load({str(checkpoint)!r})",
        f"model = identify_model({str(checkpoint)!r}, None)",
        "print(tokenizer.digest, type(tokenizer._tokenizer), model.digest, model.max_model_len)",
        "print('torch' in sys.modules)",
        "import torch",
        "print(torch.arange(3).sum().item())",
    ]
    printed, said = run(*lines)
    assert said == ""
    return printed.splitlines()


def run(*lines: str) -> tuple[str, str]:
    """What a Python program prints, and what it says beside."""
    asked = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_where_no_model_runs_the_same_tokenizer_comes_without_torch(checkpoint):
    alone = ("from mia_batch.models.imports import run_no_model_here", "run_no_model_here()")
    same, *plain = tokenizer_of(checkpoint)
    assert plain == ["True", "3"]
    assert tokenizer_of(checkpoint, *alone) == [same, "False", "3"]
    assert tokenizer_of(checkpoint, *alone, "import torch") == [same, "True", "3"]


def test_an_engine_starts_without_scikit_learn_which_can_be_had_afterwards(checkpoint):
    printed, _ = run(
        "import sys",
        "from mia_batch.evidence.engine import EngineSpec",
        "from mia_batch.evidence.engines import load_engine",
        f"load_engine(EngineSpec(engine='transformers', model={str(checkpoint)!r}))",
        "print('torch' in sys.modules, 'sklearn' in sys.modules)",
        "from sklearn.metrics import roc_auc_score",
        "print(roc_auc_score([0, 1], [0.0, 1.0]))",
    )
    assert printed.splitlines() == ["True False", "1.0"]
