"""A view and its attack as one file of another package, as the documentation shows them."""

import json
import os
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mia_batch import plugins
from mia_batch.errors import SettingsError
from mia_batch.views import find_view_type
from tests.checkpoints import (
    TEXTS,
    byte_level_tokenizer,
    save_checkpoint,
    save_tokenizer,
)
from tests.conftest import REPOSITORY
from tests.docs.test_examples import blocks
from tests.processes import COMMAND

PAGE = REPOSITORY / "docs" / "own-attack.md"
SHOWN_TEXTS = [" ".join(text.split()[:12]) for text in TEXTS[:6]]


def install_shown_package(folder: Path) -> None:
    """Write the file that the page shows, and what an installer writes beside it."""
    code_by_title = {block.title: block.code for block in blocks(PAGE)}
    (folder / "recognition.py").write_text(code_by_title["recognition.py"])
    about = folder / "recognition-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: recognition\nVersion: 1.0\n"
    )
    (about / "entry_points.txt").write_text(
        "[mia_batch.views]\nrecognition = recognition:recognition\n"
        "[mia_batch.attacks]\nrecognition = recognition:recognition_v1\n"
    )


def save_answering_checkpoint(folder: Path) -> Path:
    """Write a random model whose tokenizer has Yes and No as one token each."""
    save_checkpoint(folder)
    tokenizer = byte_level_tokenizer([*TEXTS[:20], *[" Yes No"] * 200])
    save_tokenizer(tokenizer, folder)
    return folder


def compute_score(folder: Path, text: str) -> float:
    """Return log P(Yes) - log P(No) after the question, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = f"Do you know this text?\n\n{text}\n\nAnswer:"
    yes, no = (
        tokenizer(answer, add_special_tokens=False)["input_ids"][0]
        for answer in (" Yes", " No")
    )
    with torch.no_grad():
        logits = model(**tokenizer(question, return_tensors="pt")).logits[0, -1]
    return float(logits[yes] - logits[no])


def run_command(folder: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": f"{folder}:{REPOSITORY / 'python'}"}
    finished = subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_question_of_another_package_is_asked_scored_and_resumed(tmp_path):
    install_shown_package(tmp_path)
    checkpoint = save_answering_checkpoint(tmp_path / "model")
    corpus = pl.DataFrame({"text": SHOWN_TEXTS, "member": [True, False] * 3})
    corpus.write_parquet(tmp_path / "corpus.parquet")
    assert "1 pass" in run_command(tmp_path, "attacks", "recognition_v1")
    audit = ["--input", "corpus.parquet", "--model", str(checkpoint), "--out", "run"]
    audit += ["--attacks", "recognition_v1,loss_v1", "--engine", "transformers"]
    audit.append("--anyway")  # the random model reads no text well
    run_command(tmp_path, *audit)
    scores = pl.read_parquet(tmp_path / "run" / "scores.parquet")
    targets = pl.read_parquet(tmp_path / "run" / "targets.parquet")
    rows = scores.join(targets.select("target_id", "target"), on="target_id")
    expected = [compute_score(checkpoint, text) for text in rows["target"]]
    assert rows["recognition_v1"].to_list() == pytest.approx(expected, abs=1e-4)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["passes"]["target recognition"] == len(SHOWN_TEXTS)
    run_command(tmp_path, *audit)  # asks nothing again
    again = json.loads((tmp_path / "run" / "run.json").read_text())
    assert again["passes"] == manifest["passes"]


def test_a_view_that_is_none_is_refused(monkeypatch):
    added = {"broken": "json:dumps", "No-Name": "mia_batch.views:VIEW_TYPES"}
    points = [
        EntryPoint(name, value, "mia_batch.views") for name, value in added.items()
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    for name in added:
        with pytest.raises(SettingsError, match="must be a ViewType with a lower-case"):
            find_view_type(name)
    with pytest.raises(SettingsError, match=r"the views are continuation, .*, broken"):
        find_view_type("absent")
