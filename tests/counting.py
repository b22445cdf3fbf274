"""An engine of another package, which starts in a moment: it is found by its entry point."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mia_batch.evidence.engines import registry

COUNTING = '''
"""An engine of another package: tokens follow from what is asked, which is noted in a file.

While there is a file ``held``, it gives as many answers as stand there, and no more.
"""

import time
from hashlib import blake2b
from pathlib import Path

from mia_batch.evidence.engines.registry import EngineType
from mia_batch.evidence.request import Answer, Continuation, EngineInfo


class Counting:
    def __init__(self, spec):
        self.info = EngineInfo(
            engine="counting",
            version="1",
            device="cpu",
            dtype="float32",
            max_model_len=256,
            max_sequences=16,
        )
        self._asked = []
        self._answered = 0

    def submit(self, request):
        if request.key:  # else it is no evidence
            with Path(__file__).with_name("asked").open("a") as file:
                file.write(f"{request.key}\\n")
        self._asked.append(request)

    def step(self):
        time.sleep(0.003)  # so long a model would take
        request = self._asked.pop(0)
        while request.key and self._is_held():
            time.sleep(0.003)
        self._answered += bool(request.key)
        drawn = blake2b(f"{request.context_ids}".encode()).digest()[: request.max_tokens]
        given = Continuation(token_ids=[10 + byte for byte in drawn], finish_reason="stop")
        return [Answer(request_id=request.request_id, continuations=[given] * request.n)]

    def _is_held(self):
        try:
            return self._answered >= int(Path(__file__).with_name("held").read_text())
        except FileNotFoundError:
            return False

    def close(self):
        pass


engine = EngineType(name="counting", start="counting:Counting", on_cpu=lambda: True)
'''


@contextmanager
def counting_engine(folder: Path) -> Iterator[Path]:
    """Let this process, and all that it starts, know the engine; give the file of its notes."""
    (folder / "counting.py").write_text(COUNTING)
    info = folder / "counting-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: counting\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(
        "[mia_batch.engines]\ncounting = counting:engine\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv(
            "PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        )
        registry.engine_types.cache_clear()
        yield folder / "asked"
    registry.engine_types.cache_clear()
