from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.masked import Gaps, MaskedModel, word_spans
from tests.checkpoints import (
    BOS_ID,
    EOS_ID,
    TEXTS,
    change,
    save_masked_checkpoint,
    times,
)

LONG = " ".join(TEXTS[3].split()[:60])
SHORT = "The cat sat on the mat."


def hide(text, *words):
    return Gaps(text, [word_spans(text)[word] for word in words])


def test_words_are_whole_tokens_without_signs(masked_model):
    assert "the" in masked_model.words
    assert "," not in masked_model.words
    assert all(word == word.strip(" ,.") for word in masked_model.words)


def test_a_short_text_as_the_library_reads_it(masked_model):
    (found,) = masked_model.predict([hide(SHORT, 1, 5)])
    ids = masked_model._tokenizer("The<mask> sat on the<mask>.")["input_ids"]
    assert ids[0] == BOS_ID
    assert ids[-1] == EOS_ID
    places = [i for i, token in enumerate(ids) if token == masked_model._tokenizer.mask_token_id]
    with torch.inference_mode():
        logits = masked_model._model(torch.tensor([ids])).logits[0]
    expected = logits.log_softmax(dim=-1)[places][:, masked_model._word_ids].numpy()
    assert len(places) == 2
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_texts_and_gaps_do_not_depend_on_their_batch(masked_model):
    """Long ones in pieces of the context beside short ones, padded."""
    n_words = len(word_spans(LONG))
    texts = [hide(LONG, 0, n_words // 2, n_words - 1), hide(SHORT, 0), hide(LONG, n_words - 1)]
    together = masked_model.predict(texts)
    assert [of.shape for of in together] == [(n, len(masked_model.words)) for n in (3, 1, 1)]
    for of, text in zip(together, texts, strict=True):
        (alone,) = masked_model.predict([text])
        np.testing.assert_allclose(of, alone, rtol=1e-4)


def test_a_text_that_has_the_mask_itself(masked_model):
    (found,) = masked_model.predict([hide("a <mask> is <mask>", 2)])
    assert np.isfinite(found).all()


def test_no_texts(masked_model):
    assert masked_model.predict([]) == []


def test_a_model_that_does_not_fit_is_refused(checkpoint, tmp_path):
    with pytest.raises(SettingsError, match=r"masked_model.*no-such-model.*cannot be loaded"):
        MaskedModel.load(str(tmp_path / "no-such-model"))
    with pytest.raises(SettingsError, match=r"masked_model.*cannot be loaded"):
        MaskedModel.load(str(checkpoint))


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    folder = save_masked_checkpoint(tmp_path)
    settings = folder / "tokenizer_config.json"
    kept = {k: v for k, v in json.loads(settings.read_text()).items() if k != "mask_token"}
    settings.write_text(json.dumps(kept))
    with pytest.raises(SettingsError, match="no mask token"):
        MaskedModel.load(str(folder))


def test_weights_that_are_no_numbers_are_named(tmp_path):
    folder = change(save_masked_checkpoint(tmp_path), times(float("nan"), "attention.self.query"))
    name = r"bert\.encoder\.layer\.0\.attention\.self\.query\.(weight|bias)"
    with pytest.raises(SettingsError, match=f"not finite numbers .* in {name}; give another chec"):
        MaskedModel.load(str(folder))


def test_a_tokenizer_that_loses_its_mask_is_an_error(masked_model):
    blind = MaskedModel(masked_model._model, masked_model._tokenizer)
    blind._tokenizer = Lossy(masked_model._tokenizer)
    with pytest.raises(EngineError, match="mask token"):
        blind.predict([hide(SHORT, 1)])


class Lossy:
    """Writes something else where the mask was."""

    mask_token = "lost"
    pad_token_id = None

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.mask_token_id = tokenizer.mask_token_id

    def __call__(self, texts, **options):
        return self._tokenizer(texts, **options)


def test_a_vocabulary_without_words_is_refused(masked_model):
    model = deepcopy(masked_model._model)
    model.config.vocab_size = 2  # the special tokens
    with pytest.raises(SettingsError, match="no token of it is a word"):
        MaskedModel(model, masked_model._tokenizer)
