"""Symmetric paraphrases, against Algorithm 2 of SPV-MIA written with plain transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from mia_batch.evidence.engines.masked import MaskedModel, TokenText, _hide, paraphrases
from mia_batch.prompts.views import sample_seed
from tests.checkpoints import TEXTS

SEED = sample_seed(0, "0" * 32)
LONG = " ".join(TEXTS[3].split()[:60])
SHORT = " ".join(TEXTS[3].split()[:8])


@torch.inference_mode()
def algorithm_2(masked_model, text, pair, share):
    """One pair of texts, token by token as the paper has it; context 32, two special tokens."""
    model, tokenizer = masked_model._model.double(), masked_model._tokenizer
    rng = np.random.default_rng([3, SEED, pair])
    original = tokenizer.encode(text, add_special_tokens=False)
    usable = [
        token
        for token in range(len(tokenizer))
        if token not in tokenizer.all_special_ids
        and tokenizer.decode([token]).strip()
        and "\ufffd" not in tokenizer.decode([token])
    ]
    replaceable = [place for place, token in enumerate(original) if token in usable]
    rand = rng.random(len(replaceable))
    hidden = [place for place, value in zip(replaceable, rand, strict=True) if value < share]
    if not hidden:
        hidden = [replaceable[rng.integers(len(replaceable))]]
    masked = [tokenizer.mask_token_id if i in hidden else t for i, t in enumerate(original)]
    logits = []
    for start in range(0, len(masked), 30):
        ids = [tokenizer.bos_token_id, *masked[start : start + 30], tokenizer.eos_token_id]
        logits += model(torch.tensor([ids])).logits[0, 1:-1]
    matrix = model.get_input_embeddings().weight
    plus, minus = list(original), list(original)
    for place in hidden:
        p = logits[place].softmax(-1)[usable].numpy()
        plus[place] = int(rng.choice(usable, p=p / p.sum()))
        difference = matrix[plus[place]] - matrix[original[place]]
        mirrored = matrix[original[place]] - difference
        distances = [torch.dist(mirrored, matrix[token]).item() for token in usable]
        minus[place] = usable[int(np.argmin(distances))]
    masked_model._model.float()
    return [tokenizer.decode(ids) for ids in (plus, minus)]


def squeezed(text):
    return " ".join(text.split())


@pytest.mark.parametrize("text", [SHORT, LONG])
@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_pairs_are_those_of_algorithm_2(masked_model, one_thread, text, share):
    found = paraphrases(masked_model, text, n=6, seed=SEED, share=share).texts
    expected = [each for pair in range(3) for each in algorithm_2(masked_model, text, pair, share)]
    assert list(map(squeezed, found)) == list(map(squeezed, expected))
    assert len(set(found)) > 2


def test_the_nearest_to_a_mirrored_point_is_mostly_the_token_itself(masked_model):
    texts = paraphrases(masked_model, LONG, n=20, seed=SEED).texts
    assert sum(text == LONG for text in texts[1::2]) >= 8
    assert LONG not in texts[::2]


NAMES = ["<s>", "</s>", "<mask>", "<unk>", "a", "cat", "dog", "cow", "pig", "ox", "hog"]
PLACES = [(0, -90), (-1, 6), (7, 0), (-1, 0), (90, 90), (0, 0), (1, 0), (4, 0), (0, 3), (6.5, 0)]
PLACES += [(-1, 5)]


@pytest.fixture(scope="module")
def animals():
    """A model with two features that puts a dog everywhere; specials lie on mirrored points."""
    tokenizer = Tokenizer(models.WordLevel({n: i for i, n in enumerate(NAMES)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"}
    config = BertConfig(
        vocab_size=len(NAMES),
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=34,
        tie_word_embeddings=False,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.tensor(PLACES))
        model.cls.predictions.decoder.weight.zero_()
        model.cls.predictions.decoder.bias[NAMES.index("dog")] = 1e4
    return MaskedModel(model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks))


def test_three_words_by_hand(animals):
    """E(dog) = (1, 0).

    cat (0, 0): mirrored (-1, 0), nearest cat itself, at 1. cow (4, 0): (7, 0), nearest ox, at 0.5.
    pig (0, 3): (-1, 6), nearest hog, at 1.
    """
    made = paraphrases(animals, "cat,  cow pig", n=2, seed=SEED, share=1.0)
    assert made.texts == ("dog,  dog dog", "cat,  ox hog")
    again = paraphrases(animals, "dog dog", n=2, seed=SEED, share=1.0)
    assert again.texts == ("dog dog", "dog dog")


def test_a_token_that_stays_is_written_as_it_was():
    """An uncased tokenizer reads Dog as dog, which is what is put there."""
    tokenizer = Tokenizer(models.WordPiece({n: i for i, n in enumerate(NAMES)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    marks = {"mask_token": "<mask>", "unk_token": "<unk>"}
    config = BertConfig(
        vocab_size=len(NAMES), hidden_size=2, intermediate_size=2, num_attention_heads=1
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.decoder.bias[NAMES.index("dog")] = 1e4
    uncased = MaskedModel(model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks))
    plus, _ = paraphrases(uncased, "Dog COW\nPig", n=2, seed=SEED, share=1.0).texts
    assert plus == "Dog dog\ndog"


PIECES = ["[U]", "[M]", "a", "the", "cat", "##s", "dog", "."]


@pytest.fixture(scope="module")
def word_pieces():
    vocabulary = {name: i for i, name in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[U]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[U]", mask_token="[M]")
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=2, intermediate_size=2, num_attention_heads=1
    )
    return MaskedModel(BertForMaskedLM(config), fast).vocabulary


@pytest.mark.parametrize(
    ("place", "token", "expected"),
    [
        (1, "dog", "the dogs  the\ncat."),
        (1, "##s", "thess  the\ncat."),  # goes on with the word before it
        (2, "dog", "the cat dog  the\ncat."),  # begins a word of its own
        (3, "##s", "the cats s\ncat."),  # one space is the token's
        (4, "##s", "the cats  the\ns."),  # a line break is nobody's
        (5, "dog", "the cats  the\ncat dog"),
        (5, "##s", "the cats  the\ncats"),
        (0, "##s", "s cats  the\ncat."),
    ],
)
def test_pieces_of_words_join_as_the_tokenizer_writes_them(word_pieces, place, token, expected):
    cut = word_pieces.cut("the cats  the\ncat.")
    assert cut.places == list(range(6))
    written = word_pieces.written(PIECES.index(token), cut.token_ids[place])
    assert cut.replace([(place, *written)]) == expected


def test_what_is_not_replaced_stays_character_by_character():
    text = "\tOne  two,three\n\nfour "
    spans = [(1, 4), (6, 9), (9, 10), (10, 15), (17, 21)]
    cut = TokenText(text, [0] * 5, spans, list(range(5)))
    assert cut.replace([]) == text
    assert cut.replace([(1, "2", None), (3, "3", None)]) == "\tOne  2,3\n\nfour "
    assert cut.replace([(2, "&", True), (3, "3", True)]) == "\tOne  two & 3\n\nfour "


def test_bytes_of_a_character_and_special_tokens_are_never_replaced(masked_model):
    text = "</s>the 漢 <mask> of"
    vocabulary = masked_model.vocabulary
    cut = vocabulary.cut(text)
    assert "".join(text[slice(*cut.spans[place])] for place in cut.places) == "theof"
    special = masked_model._tokenizer.all_special_ids
    assert set(special).isdisjoint(vocabulary.ids.tolist())
    for other in paraphrases(masked_model, text, n=20, seed=SEED, share=1.0).texts:
        assert other.startswith("</s>")
        assert " 漢 <mask>" in other


def test_the_first_pairs_are_the_same_whatever_their_number(masked_model):
    fewer = paraphrases(masked_model, SHORT, n=6, seed=SEED).texts
    more = paraphrases(masked_model, SHORT, n=41, seed=SEED).texts
    assert (len(fewer), len(more)) == (6, 41)
    assert more[:6] == fewer
    assert paraphrases(masked_model, SHORT, n=6, seed=SEED + 65536).texts != fewer


@pytest.mark.parametrize("text", ["", " ", "\n\t", "漢", "e"])
def test_a_text_without_two_tokens_has_none_and_a_reason(masked_model, text):
    made = paraphrases(masked_model, text, n=4, seed=SEED)
    assert made.texts == ()
    assert made.reason == "the text has fewer than two tokens that could be replaced"


def test_each_token_is_hidden_with_the_share_as_its_probability():
    own = np.random.default_rng(0)
    counts = np.array([len(_hide(range(50), 0.2, own)) for _ in range(2000)])
    assert abs(counts.mean() - 10) < 4 * np.sqrt(50 * 0.2 * 0.8 / 2000)
    assert abs(counts.var() - 8) < 1
    assert {len(_hide(range(50), 1e-9, own)) for _ in range(20)} == {1}
    assert _hide([3, 5, 8], 1.0, own) == [3, 5, 8]
