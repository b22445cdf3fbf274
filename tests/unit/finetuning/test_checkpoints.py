"""Which checkpoint a training goes on from, and which ones are in its way."""

from __future__ import annotations

import json

import pytest

from mia_batch.finetuning.checkpoints import last_whole, stopped_after
from mia_batch.tables import digest
from tests.damage import damage


def save(folder, step, best):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text(f"weights {step}")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"best_global_step": best}))
    hashes = {path.name: digest(path) for path in checkpoint.iterdir()}
    (checkpoint / "sha256.json").write_text(json.dumps(hashes))


@pytest.mark.parametrize(
    ("best", "damaged", "last"),
    [
        (2, [], 10),
        (None, [], 10),
        (2, [10], 4),
        (None, [4, 10], 2),
        (2, [2], None),  # the later ones say that it is the best
        (None, [2], 10),
        (None, [2, 4, 10], None),
    ],
)
def test_what_cannot_be_gone_on_from_goes(best, damaged, last, tmp_path):
    """A later checkpoint that stayed would be taken for newer than what training writes anew."""
    for step in (2, 4, 10):
        save(tmp_path, step, best)
    for step in damaged:
        damage(tmp_path / f"checkpoint-{step}/weights", slice(-1, None))
    told: list[dict[str, object]] = []
    found = last_whole(tmp_path, lambda **values: told.append(values))
    name = f"checkpoint-{last}" if last else None
    assert (found.name if found else None) == name
    assert told == [{"damaged": f"checkpoint-{step}", "then": name} for step in damaged]
    left = {path.name for path in tmp_path.iterdir()}
    kept = {step for step in (2, 4, 10) if step not in damaged and last and step <= last}
    assert left == {f"checkpoint-{step}" for step in kept}


def test_a_checkpoint_that_was_cut_short_is_not_taken(tmp_path):
    save(tmp_path, 2, None)
    save(tmp_path, 4, None)
    (tmp_path / "checkpoint-4/sha256.json").unlink()  # written last
    told: list[dict[str, object]] = []
    assert last_whole(tmp_path, lambda **values: told.append(values)) == tmp_path / "checkpoint-2"
    assert told == [{"damaged": "checkpoint-4", "then": "checkpoint-2"}]
    assert last_whole(tmp_path / "nothing", lambda **_: None) is None


@pytest.mark.parametrize(("stopped", "epoch"), [(True, 3), (False, None)])
def test_a_checkpoint_says_whether_training_had_stopped(stopped, epoch, tmp_path):
    control = {"args": {"should_training_stop": stopped}}
    state = {"epoch": 3.0, "stateful_callbacks": {"TrainerControl": control}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert stopped_after(tmp_path) == epoch
