from __future__ import annotations

import json

import polars as pl
import pytest
from transformers import AutoTokenizer

from mia_batch.demo import DemoFolder
from mia_batch.demo.making import run_training


@pytest.fixture(scope="module")
def tokenizer(made):
    return AutoTokenizer.from_pretrained(made[0].model)


@pytest.fixture(scope="module")
def corpus(made):
    return pl.read_parquet(made[0].corpus)


def test_checkpoint_is_an_ordinary_folder(made, tiny):
    names = {path.name for path in made[0].model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    config = json.loads((made[0].model / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == tiny.context == 1024
    assert config["vocab_size"] == tiny.vocabulary


def test_tokenizer_gives_texts_back_and_begins_them_by_itself(tokenizer, corpus):
    for text in [*corpus["text"], "", " a\u00e9\u4e2d\U0001f600\r\n\x00 "]:
        ids = tokenizer(text).input_ids
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.eos_token_id not in ids
        assert tokenizer.bos_token_id not in ids[1:]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_checkpoint_names_the_tokenizers_special_tokens(made, tokenizer):
    config = json.loads((made[0].model / "config.json").read_text())
    assert config["bos_token_id"] == tokenizer.bos_token_id
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id != tokenizer.bos_token_id


def test_prefixes_are_tokenised_as_in_the_whole(tokenizer, corpus):
    """A cut after a word is a cut between tokens, so prompts look as in training."""
    for text in corpus["text"]:
        whole = tokenizer(text).input_ids
        end = text.index(text.split()[63]) + len(text.split()[63])
        prefix = tokenizer(text[:end]).input_ids
        if text[end : end + 1].isspace():
            assert whole[: len(prefix)] == prefix


def test_only_members_are_learned_and_the_tokenizer_tells_nothing(made, corpus, tiny, tmp_path):
    flipped = DemoFolder.at(tmp_path)
    corpus.with_columns(~pl.col("member")).write_parquet(flipped.corpus)
    run_training(tmp_path, tiny, lambda _line: None)
    assert (flipped.model / "tokenizer.json").read_bytes() == (
        made[0].model / "tokenizer.json"
    ).read_bytes()
    assert (flipped.model / "model.safetensors").read_bytes() != (
        made[0].model / "model.safetensors"
    ).read_bytes()
