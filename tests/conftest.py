"""What all tests share: hypothesis profiles, real text, models, torch in one thread."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).parents[1]

os.environ["MIA_BATCH_JOURNAL"] = (
    "off"  # tests that are about it name a file of their own
)

_SLOW_MACHINES = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fast", deadline=None, max_examples=40, suppress_health_check=_SLOW_MACHINES
)
settings.register_profile("slow", settings.get_profile("fast"), max_examples=2000)
settings.load_profile("fast")  # pytest --hypothesis-profile=slow searches longer


def pytest_configure_node(node):
    """Workers of pytest-xdist fork engines from one process, which loads all libraries once."""
    from tests.forked import start_parent

    node.workerinput["parent"] = start_parent()


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        from tests.forked import use_parent

        use_parent(config.workerinput["parent"])


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # else each full collection goes through all libraries and tests again


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real text that lies next to the repository, where it does."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(
            "the folder of real text, ../shared/data, is not next to the repository"
        )
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Folder of this run of pytest that all its workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The demo's corpus and trained model, of texts that are the same for every Python."""
    from mia_batch.extras.sets.demo import DemoSettings, prepare
    from tests.texts import write_library

    library = tmp_path_factory.mktemp("library")
    folder = REPOSITORY / f"demo-of-tests-{write_library(library)[:8]}"
    # These passages have fewer tokens than documentation: 12 epochs are fewer steps.
    return prepare(folder, settings=DemoSettings(epochs=14), library=library)


@pytest.fixture(scope="session", autouse=True)
def few_repetitions():
    from tests.command.__main__ import repeat_little

    repeat_little()


_PROCESSES = "tests/unit/evidence/test_process.py::"
_START_TESTS = (
    f"{_PROCESSES}test_a_killed_worker_is_an_error_at_once",
    f"{_PROCESSES}test_an_engine_works_in_any_script_and_dies_with_it",
)
"""Tests whose engine is started as users' are, in a process that loads what it needs."""


@pytest.fixture(scope="session", autouse=True)
def quick_workers():
    """Engines' processes are forked where tests are about something else than how they start."""
    from mia_batch.evidence import process
    from tests.forked import forked_worker

    def spawn(connection, log):
        starts = os.environ["PYTEST_CURRENT_TEST"].startswith(_START_TESTS)
        return (started if starts else forked_worker)(connection, log)

    started = process._spawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_spawn", spawn)
        yield


@pytest.fixture(scope="session")
def checkpoint(shared_folder) -> Path:
    """A tiny random model with a tokenizer of its own; context 256 tokens."""
    from tests.checkpoints import save_checkpoint
    from tests.runs import made_once

    return made_once(shared_folder, "checkpoint", save_checkpoint)


@pytest.fixture(scope="session")
def recorded_books(shared_folder) -> Path:
    """Two books, a recording of continuations of them, and its finished run; only to be read."""
    from tests import runs

    return runs.made_once(shared_folder, "recorded books", runs.recorded_books)


@pytest.fixture(scope="session")
def masked_model(tmp_path_factory):
    """A tiny random masked model of BERT's kind; context 32 tokens."""
    from mia_batch.evidence.engines.masked import MaskedModel
    from tests.checkpoints import save_masked_checkpoint

    return MaskedModel.load(
        str(save_masked_checkpoint(tmp_path_factory.mktemp("masked")))
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch as in an engine's own process, and so that tests do not spin against each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
