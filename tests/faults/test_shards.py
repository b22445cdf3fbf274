"""Shards of one run, in real processes: at once, stopped and killed, by two paths."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.parts import BLOCK_TARGETS, LOGPROB_BLOCK_TARGETS
from mia_batch.pipeline import Run, rescore
from mia_batch.pipeline.custody import verify
from tests.checkpoints import save_masked_checkpoint
from tests.damage import damage
from tests.faults.test_kills import write_corpus
from tests.forked import Forked, forked_command
from tests.processes import wait_until
from tests.runs import audit, tables_of

N_BLOCKS = 6


def start(
    settings: dict[str, Any], shard: str, log: Path, stops_in: str | None = None
) -> Forked:
    options = [
        (f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items()
    ]
    return forked_command(
        [*sum(options, ()), "--shard", shard], log, log, stops_in=stops_in
    )


def blocks(folder: Path) -> set[int]:
    return {int(path.name[6:14]) for path in folder.glob("block-*.parquet")}


def another_model(settings: dict[str, Any], folder: Path) -> str:
    """A copy of the model with one bit changed."""
    shutil.copytree(settings["model"], folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def check_refused(settings: dict[str, Any], folder: Path) -> None:
    """Shard 3/3 is alive and has begun: say what else may not be done, and change nothing."""
    run = Run(Path(settings["out"]))
    before, manifest = tables_of(run.folder), run.manifest
    model = another_model(settings, folder / "another")
    corpus = str(write_corpus(folder / "longer.parquet", N_BLOCKS + 1))
    held, other = (
        "is held by another live run; wait for it",
        "while other shards are at work in",
    )
    for given, error, words in (
        ({"shard": "3/3"}, RunFolderError, held),
        ({}, RunFolderError, held),
        (
            {"shard": "1/4"},
            RunFolderError,
            "is held by shard 3/3, and shard 1/4 would ask",
        ),
        (
            {"shard": "1/3", "model": model},
            SettingsError,
            "'source' of model 'target' was",
        ),
        ({"shard": "1/3", "seed": 1}, SettingsError, "'seed' was 0, is now 1"),
        (
            {"shard": "1/3", "input": corpus},
            RunFolderError,
            f"the texts are others .* {other}",
        ),
    ):
        with pytest.raises(error, match=words):
            audit(**settings | given)
    with pytest.raises(RunFolderError, match=held):
        rescore(run.folder)
    with pytest.raises(
        RunFolderError, match="is held by a live run, so it has no root"
    ):
        verify(run.folder)
    part = min(run.path("samples").glob("block-*"))
    damage(part, slice(4, 400))
    with pytest.raises(RunFolderError, match=f"a table is damaged .* {other}"):
        audit(**settings, shard="1/3")
    damage(part, slice(4, 400))  # once more is as before
    assert tables_of(run.folder) == before
    assert replace(run.manifest, times=manifest.times) == manifest


def test_three_at_once_one_killed_others_of_another_number_then_merged(
    checkpoint, tmp_path
):
    corpus = write_corpus(tmp_path / "corpus.parquet", N_BLOCKS)
    settings: dict[str, Any] = {
        "input": str(corpus),
        "model": str(checkpoint),
        "engine": "transformers",
        "dtype": "float32",
        "preset": "matched",
        "samples": 1,
        "out": str(tmp_path / "run"),
    }
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    third = start(settings, "3/3", log, stops_in="samples")
    try:
        with (
            start(settings, "1/3", log) as first,
            start(settings, "2/3", log) as second,
        ):
            wait_until(
                lambda: {2, 5} & blocks(run.path("samples")), "the third's first block"
            )
        assert (first.poll(), second.poll(), third.poll()) == (
            0,
            0,
            None,
        ), log.read_text()
        there = blocks(run.path("samples"))
        assert there - {2, 5} == {0, 1, 3, 4}
        assert len(there) == 5
        assert blocks(run.path("features")) >= {0, 1, 3, 4}
        check_refused(settings, tmp_path)
    finally:
        third.kill()
        third.wait()
    said = log.read_text()
    assert (
        said.count(
            f"of {N_BLOCKS * BLOCK_TARGETS:,} prompts are answered; the command without"
            " --shard"
        )
        == 2
    )
    audit(**settings, shard="2/2")
    assert blocks(run.path("samples")) >= {1, 3, 5}
    assert "scores" not in run.manifest.made
    audit(**settings)
    undisturbed = audit(**settings | {"out": str(tmp_path / "undisturbed")})
    assert tables_of(run.folder) == tables_of(undisturbed.folder)
    assert not [*run.folder.rglob(".*.tmp"), *run.folder.glob(".shard*")]

    root = run.manifest.custody["root"]
    audit(**settings, shard="1/5")
    assert verify(run.folder).root == root == undisturbed.manifest.custody["root"]
    assert verify(run.folder).faults == []


@pytest.mark.long
def test_log_probabilities_of_two_by_two_paths_and_what_a_manifest_counts(
    checkpoint, tmp_path
):
    """A masked model, texts put before others, and frequencies: some made by block, some for all.

    Numbers of texts in other batches differ by noise.
    """
    n_blocks = 1 + LOGPROB_BLOCK_TARGETS // BLOCK_TARGETS
    corpus = write_corpus(tmp_path / "corpus.parquet", n_blocks)
    shots = write_corpus(tmp_path / "shots.parquet", 1, n_words=4)
    settings: dict[str, Any] = {
        "input": str(corpus),
        "model": str(checkpoint),
        "masked_model": str(save_masked_checkpoint(tmp_path / "masked")),
        "engine": "transformers",
        "attacks": "min_k_20_v1,neighbour_difference_v1,recall_prefix_v1,dc_pdd_v1",
        "neighbours": 1,
        "nonmember_shots": str(shots),
        "shots": 2,
        "frequencies_from": str(corpus),
        "out": str(tmp_path / "run"),
    }
    (tmp_path / "mount").symlink_to(tmp_path)
    mounted = settings | {"out": str(tmp_path / "mount" / "run")}
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    with start(settings, "1/2", log) as first, start(mounted, "2/2", log) as second:
        pass
    assert (first.poll(), second.poll()) == (0, 0), log.read_text()
    named = {
        path.name[6:].partition(".attempt")[0]
        for path in run.path("logprobs").iterdir()
    }
    views = ("text", "neighbour", "nonmember_shots")
    assert named == {
        f"{n:08d}.target-{view}-00000-00001" for n in (0, 1) for view in views
    }

    passes, manifest = run.manifest.passes, run.manifest
    undisturbed = audit(**settings | {"out": str(tmp_path / "undisturbed")})
    assert passes == undisturbed.manifest.passes
    assert passes["target text"] == n_blocks * BLOCK_TARGETS
    audit(**settings)
    for name in ("evidence", "models", "inputs", "engines", "targets", "passes"):
        assert getattr(run.manifest, name) == getattr(undisturbed.manifest, name), name
    for name in ("samples of target", "logprobs of target", "prompts"):
        assert run.manifest.times["seconds"][name] >= manifest.times["seconds"][name]
    assert manifest.times["begin"] == run.manifest.times["begin"]
    for table in ("prompts", "logprobs", "scores"):
        made, expected = run.scan(table).collect(), undisturbed.scan(table).collect()
        assert_frame_equal(made, expected, rel_tol=1e-3, abs_tol=1e-4)
