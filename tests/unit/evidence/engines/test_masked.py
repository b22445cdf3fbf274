"""Variants of texts that a masked language model makes."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.masked import (
    Gaps,
    MaskedModel,
    TokenText,
    Variants,
    Vocabulary,
    _hide,
    neighbours,
    paraphrases,
    perturbations,
    word_spans,
)
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec, Request
from mia_batch.prompts import sample_seed
from tests.checkpoints import (
    BOS_ID,
    EOS_ID,
    TEXTS,
    change,
    save_checkpoint,
    save_masked_checkpoint,
    times,
)
from tests.engine_conformance import answers


def hidden(gaps):
    return [gaps.text[start:end] for start, end in gaps.spans]


def test_signs_at_either_end_are_no_part_of_a_word_but_marks_are():
    text = "I don't,  Zoë_2!"
    gaps = Gaps(text, word_spans(text))
    assert hidden(gaps) == ["I", "don't", "Zoë_2"]
    assert gaps.fill(["<m>"] * 3) == ("<m> <m>,  <m>!", [0, 4, 10])
    text = "(e\u0301 दुनिया, …) [a-b] 漢字。 ¡3.14! _x_"
    assert hidden(Gaps(text, word_spans(text))) == [
        "e\u0301",
        "दुनिया",
        "a-b",
        "漢字",
        "3.14",
        "x",
    ]


@given(text=st.text(), data=st.data())
def test_the_hidden_words_give_the_text_back_and_others_change_nothing_else(text, data):
    spans = [span for span in word_spans(text) if data.draw(st.booleans())]
    gaps = Gaps(text, spans)
    whole, starts = gaps.fill(hidden(gaps))
    assert whole == text
    assert starts == [start for start, _ in spans]
    masked, starts = gaps.fill(["\0\0"] * len(spans))
    assert [masked[start : start + 2] for start in starts] == ["\0\0"] * len(spans)
    back = Gaps(masked, [(start, start + 2) for start in starts]).fill(hidden(gaps))
    assert back[0] == text


LONG = " ".join(TEXTS[3].split()[:60])
SHORT = "The cat sat on the mat."


def hide(text, *words):
    return Gaps(text, [word_spans(text)[word] for word in words])


def test_a_short_text_as_the_library_reads_it(masked_model):
    assert "the" in masked_model.words
    assert all(word == word.strip(" ,.") for word in masked_model.words)
    (predicted,) = masked_model.predict([hide(SHORT, 1, 5)])
    ids = masked_model._tokenizer("The<mask> sat on the<mask>.")["input_ids"]
    assert ids[0] == BOS_ID
    assert ids[-1] == EOS_ID
    places = [
        i
        for i, token in enumerate(ids)
        if token == masked_model._tokenizer.mask_token_id
    ]
    with torch.inference_mode():
        logits = masked_model._model(torch.tensor([ids])).logits[0]
    expected = logits.log_softmax(dim=-1)[places][:, masked_model._word_ids].numpy()
    assert len(places) == 2
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def test_texts_and_gaps_do_not_depend_on_their_batch(masked_model):
    """Long ones in pieces of the context together with short ones, padded."""
    n_words = len(word_spans(LONG))
    texts = [
        hide(LONG, 0, n_words // 2, n_words - 1),
        hide(SHORT, 0),
        hide(LONG, n_words - 1),
    ]
    texts.append(hide("a <mask> is <mask>", 2))  # which has the mask itself
    assert masked_model.predict([]) == []
    together = masked_model.predict(texts)
    assert [predicted.shape for predicted in together] == [
        (n, len(masked_model.words)) for n in (3, 1, 1, 1)
    ]
    for predicted, text in zip(together, texts, strict=True):
        (alone,) = masked_model.predict([text])
        np.testing.assert_allclose(predicted, alone, rtol=1e-4)


def without_mask(folder):
    settings = folder / "tokenizer_config.json"
    settings_kept = {
        k: v for k, v in json.loads(settings.read_text()).items() if k != "mask_token"
    }
    settings.write_text(json.dumps(settings_kept))
    return folder


QUERY = r"bert\.encoder\.layer\.0\.attention\.self\.query\.(weight|bias)"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda folder: folder / "no-such-model",
            r"masked_model.*no-such-model.*cannot be loaded",
        ),
        (
            lambda folder: save_checkpoint(folder / "causal"),
            r"masked_model.*cannot be loaded",
        ),
        (lambda folder: without_mask(save_masked_checkpoint(folder)), "no mask token"),
        (
            lambda folder: change(
                save_masked_checkpoint(folder),
                times(float("nan"), "attention.self.query"),
            ),
            f"not finite numbers .* in {QUERY}; give another chec",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(made, words, tmp_path):
    with pytest.raises(SettingsError, match=words):
        MaskedModel.load(str(made(tmp_path)))


def test_a_tokenizer_that_loses_its_mask_is_an_error(masked_model):
    blind = MaskedModel(masked_model._model, masked_model._tokenizer)
    blind._tokenizer = Lossy(masked_model._tokenizer)
    with pytest.raises(EngineError, match="mask token"):
        blind.predict([hide(SHORT, 1)])
    model = deepcopy(masked_model._model)
    model.config.vocab_size = 2  # the special tokens
    with pytest.raises(SettingsError, match="no token of it is a word"):
        MaskedModel(model, masked_model._tokenizer)


class Lossy:
    """Writes something else where the mask was."""

    mask_token = "lost"
    pad_token_id = None

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.mask_token_id = tokenizer.mask_token_id

    def __call__(self, texts, **options):
        return self._tokenizer(texts, **options)


LONGER = " ".join(TEXTS[3].split()[:40])
TEXTS_OF_WORDS = [
    LONGER,
    "The cat (sat)\ton  the mat…\n",
    "  two, words  ",
    "漢字 と かな",
]


def make(kind, model, text, n, target_id="0" * 32, seed=0):
    return kind(model, text, n=n, seed=sample_seed(seed, target_id))


def words(text):
    return [text[start:end] for start, end in word_spans(text)]


def between(text):
    return Gaps(text, word_spans(text)).fill([""] * len(word_spans(text)))[0]


def changed(text, changed_text):
    return [
        i
        for i, (a, b) in enumerate(zip(words(text), words(changed_text), strict=True))
        if a != b
    ]


@pytest.mark.parametrize("kind", [neighbours, perturbations])
@pytest.mark.parametrize("text", TEXTS_OF_WORDS)
def test_only_words_change(masked_model, kind, text):
    neighbours_made = make(kind, masked_model, text, 6)
    assert neighbours_made.reason is None
    assert len(neighbours_made.texts) == 6
    assert all(
        between(neighbour) == between(text) for neighbour in neighbours_made.texts
    )


@pytest.mark.parametrize("kind", [neighbours, perturbations, paraphrases])
def test_the_same_seed_gives_the_same_first_ones_and_another_something_else(
    masked_model, kind
):
    first = make(kind, masked_model, LONGER, 6)
    assert make(kind, masked_model, LONGER, 6) == first
    more_texts = make(kind, masked_model, LONGER, 21).texts
    assert (len(more_texts), more_texts[:6]) == (21, first.texts)
    assert make(kind, masked_model, LONGER, 6, seed=1) != first
    assert make(kind, masked_model, LONGER, 6, target_id="1" * 32) != first


@pytest.mark.parametrize(
    ("kind", "noun", "texts"),
    [
        (neighbours, "words", ["", " ", "…!", "word", " word. "]),
        (perturbations, "words", ["", "word"]),
        (paraphrases, "tokens", ["", " ", "\n\t", "漢", "e"]),
    ],
)
def test_a_text_without_two_words_has_no_variants_and_a_reason(
    masked_model, kind, noun, texts
):
    for text in texts:
        views_made = make(kind, masked_model, text, 5)
        assert views_made == (
            (),
            f"the text has fewer than two {noun} that could be replaced",
        )


def test_each_neighbour_has_the_likeliest_other_word_in_another_place(masked_model):
    places_changed = []
    for neighbour in make(neighbours, masked_model, LONGER, 20).texts:
        (place,) = changed(LONGER, neighbour)
        places_changed.append(place)
        (row,) = masked_model.predict([Gaps(LONGER, [word_spans(LONGER)[place]])])[0]
        hidden = words(LONGER)[place].casefold()
        ranked = sorted(
            zip(row, masked_model.words, strict=True), key=lambda pair: -pair[0]
        )
        best = next(word for _, word in ranked if word.casefold() != hidden)
        assert words(neighbour)[place] == best
    assert len(set(places_changed)) == 20
    texts = make(neighbours, masked_model, "Big cats run", 8).texts
    assert len(set(texts)) == 8
    places = [changed("Big cats run", neighbour) for neighbour in texts]
    assert sorted(places[:3]) == [[0], [1], [2]]
    assert places[3:6] == places[:3]


def test_perturbations_hide_spans_of_two_words_apart(masked_model):
    n_words = len(words(LONGER))
    for perturbation in make(perturbations, masked_model, LONGER, 20).texts:
        places = changed(LONGER, perturbation)
        assert 0 < len(places) <= 2 * -(-0.15 * n_words // 2)
        runs = "".join("x" if i in places else " " for i in range(n_words)).split()
        assert max(map(len, runs)) <= 2
    texts = make(perturbations, masked_model, "Big cats run", 30).texts
    assert len(set(texts)) > 15  # they are drawn


# Symmetric paraphrases, against Algorithm 2 of SPV-MIA written with plain transformers.

SEED = sample_seed(0, "0" * 32)
BRIEF = " ".join(TEXTS[3].split()[:8])


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
    hidden = [
        place for place, value in zip(replaceable, rand, strict=True) if value < share
    ]
    if not hidden:
        hidden = [replaceable[rng.integers(len(replaceable))]]
    masked = [
        tokenizer.mask_token_id if i in hidden else t for i, t in enumerate(original)
    ]
    logits = []
    for start in range(0, len(masked), 30):
        ids = [
            tokenizer.bos_token_id,
            *masked[start : start + 30],
            tokenizer.eos_token_id,
        ]
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


@pytest.mark.parametrize("text", [BRIEF, LONG])
@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_pairs_are_those_of_algorithm_2(masked_model, one_thread, text, share):
    paraphrases_made = paraphrases(
        masked_model, text, n=6, seed=SEED, share=share
    ).texts
    expected = [
        paraphrase
        for pair in range(3)
        for paraphrase in algorithm_2(masked_model, text, pair, share)
    ]
    assert list(map(squeezed, paraphrases_made)) == list(map(squeezed, expected))
    assert len(set(paraphrases_made)) > 2


PIECES = ["[U]", "[M]", "a", "the", "cat", "##s", "dog", ".", "cow", "pig"]


@pytest.fixture(scope="module")
def word_pieces():
    """An uncased model that puts a dog everywhere."""
    vocabulary = {name: i for i, name in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[U]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[U]", mask_token="[M]"
    )
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=2,
        intermediate_size=2,
        num_attention_heads=1,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.decoder.bias[PIECES.index("dog")] = 1e4
    return MaskedModel(model, fast)


def test_a_token_that_stays_is_written_as_it_was(word_pieces):
    """The tokenizer reads Dog as dog, which is what is put there."""
    plus, _ = paraphrases(word_pieces, "Dog COW\nPig", n=2, seed=SEED, share=1.0).texts
    assert plus == "Dog dog\ndog"


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
def test_pieces_of_words_join_as_the_tokenizer_writes_them(
    word_pieces, place, token, expected
):
    vocabulary = word_pieces.vocabulary
    token_text = vocabulary.cut("the cats  the\ncat.")
    assert token_text.places == list(range(6))
    assert vocabulary.replace(token_text, [place], [PIECES.index(token)]) == expected


def test_what_is_not_replaced_stays_character_by_character():
    text = "\tOne  two,three\n\nfour "
    spans = [(1, 4), (6, 9), (9, 10), (10, 15), (17, 21)]
    token_text = TokenText(text, [0] * 5, spans, list(range(5)))
    vocabulary: Any = SimpleNamespace(_decoded=["x", "2", "3", " &", " 3"])
    assert Vocabulary.replace(vocabulary, token_text, [], []) == text
    assert (
        Vocabulary.replace(vocabulary, token_text, [1, 3], [1, 2])
        == "\tOne  2,3\n\nfour "
    )
    assert (
        Vocabulary.replace(vocabulary, token_text, [2, 3], [3, 4])
        == "\tOne  two & 3\n\nfour "
    )


def test_bytes_of_a_character_and_special_tokens_are_never_replaced(masked_model):
    text = "</s>the 漢 <mask> of"
    vocabulary = masked_model.vocabulary
    token_text = vocabulary.cut(text)
    assert (
        "".join(text[slice(*token_text.spans[place])] for place in token_text.places)
        == "theof"
    )
    special = masked_model._tokenizer.all_special_ids
    assert set(special).isdisjoint(vocabulary.ids.tolist())
    for paraphrase in paraphrases(masked_model, text, n=20, seed=SEED, share=1.0).texts:
        assert paraphrase.startswith("</s>")
        assert " 漢 <mask>" in paraphrase


def test_each_token_is_hidden_with_the_share_as_its_probability():
    rng = np.random.default_rng(0)
    counts = np.array([len(_hide(range(50), 0.2, rng)) for _ in range(2000)])
    assert abs(counts.mean() - 10) < 4 * np.sqrt(50 * 0.2 * 0.8 / 2000)
    assert abs(counts.var() - 8) < 1
    assert {len(_hide(range(50), 1e-9, rng)) for _ in range(20)} == {1}
    assert _hide([3, 5, 8], 1.0, rng) == [3, 5, 8]


# Variants of texts from a masked model in a process of its own.

MAKERS: dict[str, Callable[..., Variants]] = {
    "neighbour": neighbours,
    "perturbation": perturbations,
    "paraphrase": paraphrases,
}


def test_the_worker_gives_what_the_model_gives_here(masked_model, tmp_path, one_thread):
    texts = [" ".join(TEXTS[3].split()[:20]), "word"]
    requests = [
        Request(
            request_id=4 * number + view_number,
            kind="fills",
            view=view,
            text=text,
            n=4,
            seed=65536,
        )
        for number, text in enumerate(texts)
        for view_number, view in enumerate(MAKERS)
    ]
    shared = replace(requests[2], request_id=8, share=0.9)
    spec = EngineSpec(
        engine="masked",
        kind="fills",
        model=str(save_masked_checkpoint(tmp_path / "masked")),
    )
    with EngineProcess(spec, log=tmp_path / "engine.log") as engine:
        assert engine.info.device == "cpu"
        answer_by_id = answers(engine, [*requests, shared])
    for view_request in requests:
        expected_texts = MAKERS[view_request.view](
            masked_model, view_request.text, n=4, seed=65536
        )
        answer = answer_by_id[view_request.request_id]
        assert (
            tuple(continuation.text for continuation in answer.continuations)
            == expected_texts.texts
        )
        assert answer.error == expected_texts.reason
    assert answer_by_id[4].error is not None
    more_texts = paraphrases(masked_model, shared.text, n=4, seed=65536, share=0.9)
    assert (
        tuple(continuation.text for continuation in answer_by_id[8].continuations)
        == more_texts.texts
    )
