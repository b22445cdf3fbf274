"""Reference models that a run makes: whole audits with preset spv, and all that may go wrong."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import mia_batch
from mia_batch.finetuning import making
from mia_batch.pipeline.run import TABLES
from tests.checkpoints import (
    BOS_ID,
    CONTEXT,
    EOS_ID,
    TEXTS,
    byte_level_tokenizer,
    save_masked_checkpoint,
    save_tokenizer,
)
from tests.forked import ForkedTraining
from tests.unit.pipeline.conftest import Listener

if TYPE_CHECKING:
    from pathlib import Path

N_TEXTS = 16
MADE = ("self_prompt", "candidate", "shadow-0", "shadow-1")


@pytest.fixture(scope="module", autouse=True)
def quick_training():
    """Trainings are forked, as engines are."""
    named = {"Popen": ForkedTraining, "PIPE": None, "DEVNULL": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "subprocess", SimpleNamespace(**named))
        yield


def save_model(folder: Path, seed: int) -> str:
    """Write the smallest Llama, with the tokenizer of all of them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level_tokenizer()
    save_tokenizer(tokenizer, folder)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def texts(first: int, n: int, words: int = 20) -> list[str]:
    """Texts that differ; more of them are the same and more."""
    every = [" ".join(text.split()[:words]) for text in TEXTS]
    return every[first : first + n]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, Any]:
    """An audit whose run makes four models of one epoch."""
    folder = tmp_path_factory.mktemp("tuned")
    label = pl.int_range(pl.len()) % 2 == 0
    corpus = pl.DataFrame({"text": texts(0, N_TEXTS)}).with_columns(member=label)
    corpus.write_parquet(folder / "corpus.parquet")
    pl.DataFrame({"text": texts(20, 6)}).write_parquet(folder / "prompts.parquet")
    pl.DataFrame({"text": texts(30, 4)}).write_parquet(folder / "candidate.parquet")
    return {
        "input": str(folder / "corpus.parquet"),
        "model": save_model(folder / "model", 0),
        "reference_model": save_model(folder / "base", 1),
        "masked_model": str(save_masked_checkpoint(folder / "masked")),
        "prompts_from": str(folder / "prompts.parquet"),
        "candidate_from": str(folder / "candidate.parquet"),
        "preset": "spv",
        "engine": "transformers",
        "shadows": 2,
        "paraphrases": 2,
        "neighbours": 2,
        "prompt_tokens": 4,
        "generations": 8,
        "generation_tokens": 6,
        "tuning_rank": 2,
        "tuning_epochs": 1,
        "tuning_batch": 4,
        "tuning_rate": 0.1,
    }


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """The run, finished, and what it said; it is only read."""
    listener = Listener()
    out = str(tmp_path_factory.mktemp("finished") / "run")
    return mia_batch.audit(**settings, out=out, observer=listener), listener.sentences


def test_everything_is_there(finished):
    run, said = finished
    print(said)
    for name in TABLES:
        run.scan(name).collect()
    print(run.unscored, run.manifest.models)
    assert 0
