"""Embeddings held against those made one by one, without any padding."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from mia_batch.errors import SettingsError
from mia_batch.extras.privacy.inversion.models import Embedder, embed_all, open_embedder
from mia_batch.observer import Observer
from tests.adapters import save_gpt2
from tests.checkpoints import (
    byte_level_tokenizer,
    save_masked_checkpoint,
    save_tokenizer,
)
from tests.tuning import make

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["one", "a text of some more words", "It is 12.", "so it is, and so it will be"]


@pytest.fixture(scope="module")
def models(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedders")
    t5 = folder / "t5"
    save_tokenizer(byte_level_tokenizer(), t5, "$A </s>")
    config = T5Config(
        vocab_size=600,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        T5Model(config).save_pretrained(t5)
    return {
        "causal": checkpoint,
        "positions": save_gpt2(folder / "gpt2"),
        "masked": save_masked_checkpoint(folder / "masked"),
        "encoder-decoder": t5,
    }


KINDS = ["causal", "positions", "masked", "encoder-decoder"]


@torch.inference_mode()
def reference(model, text, *, padding=0):
    """Mean of the last hidden states of a text alone; with padding as the released code pools."""
    loaded = AutoModel.from_pretrained(model).eval()
    ids = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")["input_ids"]
    reads = loaded.get_encoder() if loaded.config.is_encoder_decoder else loaded
    padded = torch.nn.functional.pad(ids, (0, padding))
    return reads(input_ids=padded).last_hidden_state[0].mean(0).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_is_the_mean_over_the_tokens_of_the_text_alone(kind, models):
    embeddings = open_embedder(str(models[kind])).embed(TEXTS)
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        assert isinstance(embedding, np.ndarray)
        np.testing.assert_allclose(
            embedding, reference(models[kind], text), rtol=1e-4, atol=1e-5
        )


def test_a_text_longer_than_the_context_has_a_reason(models):
    long = "many words and more " * 20
    embeddings = open_embedder(str(models["masked"])).embed(["one", long])
    assert isinstance(embeddings[0], np.ndarray)
    assert isinstance(embeddings[1], str)
    assert embeddings[1].endswith("tokens, more than the 34 that the embedder reads")


def test_an_adapter_is_embedded_with_its_base(models, tmp_path):
    adapter = make(models["causal"], tmp_path / "tuned", method="lora")
    base, tuned = (
        open_embedder(str(model)) for model in (models["causal"], adapter.path)
    )
    assert base.identity != tuned.identity
    base_vectors, tuned_vectors = (
        np.stack(embedder.embed(["one"])) for embedder in (base, tuned)
    )
    assert np.abs(base_vectors - tuned_vectors).max() > 1e-3
    prefix = make(models["causal"], tmp_path / "prefix", method="prefix")
    with pytest.raises(SettingsError, match="is an adapter of virtual tokens"):
        open_embedder(str(prefix.path))


@pytest.fixture(scope="module")
def sentences(models, tmp_path_factory):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(models["masked"]), max_seq_length=32)
    transformer.tokenizer.pad_token = transformer.tokenizer.eos_token
    pool = Pooling(transformer.get_embedding_dimension(), "mean")
    folder = tmp_path_factory.mktemp("sentences") / "model"
    SentenceTransformer(modules=[transformer, pool], device="cpu").save(str(folder))
    return folder


def test_sentence_transformers_embeds_as_it_does_itself(sentences, models):
    from sentence_transformers import SentenceTransformer

    embeddings = open_embedder(str(sentences)).embed(
        [*TEXTS, "many words and more " * 20]
    )
    own_embeddings = SentenceTransformer(str(sentences), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(
        np.stack(embeddings[:-1]), own_embeddings, rtol=1e-5, atol=1e-6
    )
    by_transformers = open_embedder(str(models["masked"])).embed(TEXTS)
    np.testing.assert_allclose(
        own_embeddings, np.stack(by_transformers), rtol=1e-3, atol=1e-4
    )
    assert str(embeddings[-1]).endswith("more than the 32 that the embedder reads")


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="does not exist; give a checkpoint folder"):
        open_embedder(str(tmp_path / "nothing"))
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(
        SettingsError, match="cannot be loaded by sentence-transformers"
    ):
        open_embedder(str(tmp_path))


def counting(requested):
    """An embedder of letters that notes what it was asked."""

    def means(texts, rows):
        requested.extend(texts)
        return [np.array([len(row), 0.1], np.float32) for row in rows]

    return Embedder(
        "counting", lambda texts, **_: {"input_ids": [*map(list, texts)]}, 99, means
    )


def test_what_was_embedded_is_not_asked_for_again(tmp_path):
    texts = [f"text {i}" for i in range(100)]
    first: list[str] = []
    embeddings = embed_all(
        [*texts, "", "text 5"], counting(first), tmp_path, Observer()
    )
    assert first == texts
    assert embeddings[-2] == "the embedder's tokenizer finds no token in the text"
    assert np.array_equal(embeddings[-1], embeddings[5])
    assert np.array_equal(embeddings[5], np.array([6.0, 0.1], np.float32))
    second: list[str] = []
    again = embed_all([*texts, "", "text 5"], counting(second), tmp_path, Observer())
    assert second == []
    assert all(map(np.array_equal, again, embeddings))
    damaged = sorted(tmp_path.glob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-20])
    embed_all([*texts, ""], counting(second), tmp_path, Observer())
    assert 0 < len(second) <= 64
    assert not list(tmp_path.glob(".*"))
