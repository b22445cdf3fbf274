"""Targets cut from a book, and continuations recorded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from mia_batch.evidence.parts import RECORDED_BLOCK_TARGETS, FreshUnits, Missing, Parts
from mia_batch.evidence.replay import Recording
from mia_batch.prompts.views import View, continuation
from mia_batch.schemas import Documents, Samples
from mia_batch.targets import TargetPlan, build_targets
from tests.frames import table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.evidence.parts import Block

N_TARGETS = 1200
N_SAMPLES = 4
VIEW = View(model="target", name="continuation", make=continuation, columns=("prefix", "reference"))


@pytest.fixture(scope="session")
def words(shared_data) -> list[str]:
    book: str = (shared_data / "books" / "frankenstein.txt").read_text("utf-8")
    return book.split()


@pytest.fixture(scope="session")
def targets(words, tmp_path_factory) -> Path:
    """A targets table over three blocks; target 7 cannot be sampled."""
    texts = [" ".join(words[start : start + 30]) for start in range(0, 30 * N_TARGETS, 30)]
    texts[7] = "word"
    documents = table(
        Documents,
        [{"document_id": f"{number}", "text": text} for number, text in enumerate(texts)],
    )
    path: Path = tmp_path_factory.mktemp("replay") / "targets.parquet"
    build_targets(documents.lazy(), TargetPlan()).sink_parquet(path)
    return path


def recorded_blocks(targets: Path, samples: Path, n_samples: int) -> Iterator[Block]:
    """Ask for what is missing, in blocks as replay takes them."""
    parts = Parts(
        folder=samples,
        schema=Samples,
        model="target",
        view="continuation",
        block_targets=RECORDED_BLOCK_TARGETS,
    )
    return Missing(FreshUnits(pl.scan_parquet(targets), VIEW), parts, n_samples).blocks()


@pytest.fixture(scope="session")
def recorded(targets, words) -> pl.DataFrame:
    """Four continuations of every target, of 8 to 27 words."""
    table = pl.read_parquet(targets).filter(pl.col("reason").is_null())
    rows = [
        {
            "target_id": row["target_id"],
            "document_id": row["document_id"],
            "prefix": row["prefix"],
            "sample_index": index,
            "candidate": " ".join(words[place + index : place + 2 * index + 8 + place % 14]),
            "n_tokens": 10 + index,
            "finish_reason": "length" if place % 2 else "stop",
        }
        for place, row in enumerate(table.iter_rows(named=True))
        for index in range(N_SAMPLES)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def replay(targets, tmp_path):
    """Collect everything from a recording: the samples table and the counts."""

    def run(
        source: object, *, n_samples: int = N_SAMPLES, candidate_column: str = "candidate"
    ) -> tuple[pl.DataFrame, Recording]:
        recording = Recording.open(str(source), candidate_column=candidate_column)
        nothing = tmp_path / "no-samples"
        nothing.mkdir(exist_ok=True)
        blocks = recorded_blocks(targets, nothing, n_samples)
        found = recording.collect(targets, VIEW, blocks, tmp_path, "whitespace")
        parts = [samples for _, samples in found]
        assert not (tmp_path / "replay").exists()
        return pl.concat(parts), recording

    return run
