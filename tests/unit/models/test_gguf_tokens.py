"""Tokens as llama.cpp cuts them, beside transformers' own of the same vocabulary."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import BOS_ID, EOS_ID, TEXTS
from tests.gguf_files import find_smollm2, needs_llama_cpp, save_gguf

pytestmark = needs_llama_cpp


@pytest.fixture(scope="module")
def gguf(checkpoint, tmp_path_factory):
    return save_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "model.gguf")


@pytest.fixture(scope="module")
def tokenizers(checkpoint, gguf):
    return [Tokenizer.load(str(model)) for model in (gguf, checkpoint)]


WRITTEN = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)


def test_special_tokens_are_the_checkpoints(tokenizers):
    ours, theirs = tokenizers
    assert ours.encode_prompts(["a b"]) == theirs.encode_prompts(["a b"])
    assert ours.find_starts() == theirs.find_starts() == ([BOS_ID], [])
    assert (ours.end, ours.start_token, ours.vocabulary) == (EOS_ID, "<s>", 600)


def test_the_start_token_can_be_left_out(gguf, tokenizers):
    tokenizer = Tokenizer.load(str(gguf))
    tokenizer.toggle_start()
    assert tokenizer.encode_prompts(["a b"]) == tokenizers[1].encode(["a b"])


@given(WRITTEN, WRITTEN)
def test_texts_are_cut_and_joined_as_transformers_does_it(tokenizers, text, more):
    ours, theirs = tokenizers
    text = text.replace("<", "(")  # what spells a special token out is text for us
    assert ours.encode([text, more]) == theirs.encode([text, more])
    assert ours.encode_after(text, " x" + more) == theirs.encode_after(
        text, " x" + more
    )
    ids = ours.encode([text])[0]
    assert ours.decode_candidates(ids, [ids[:3], ids]) == theirs.decode_candidates(
        ids, [ids[:3], ids]
    )
    assert ours.keep_last(text, 3) == theirs.keep_last(text, 3)
    is_between = [tokenizer.find_token_ends(text) for tokenizer in tokenizers]
    places = range(len(text) + 1)
    assert [*map(is_between[0], places)] == [*map(is_between[1], places)]


def test_long_texts_and_single_tokens_are_the_same(tokenizers):
    ours, theirs = tokenizers
    assert ours.encode(TEXTS[:30]) == theirs.encode(TEXTS[:30])
    assert ours.ids_by_text == theirs.ids_by_text
    assert [ours.token_text(token) for token in (0, 1, 99)] == [
        theirs.token_text(token) for token in (0, 1, 99)
    ]


def test_a_special_token_that_a_text_spells_out_is_text(tokenizers):
    ours, _ = tokenizers
    ids = ours.encode(["</s>"])[0]
    assert EOS_ID not in ids
    assert ours.decode_candidates([], [ids])[1] == ["</s>"]
    assert ours.decode_candidates([], [[EOS_ID, *ids]])[1] == ["</s>"]


def test_a_tokenizer_goes_to_other_processes_by_its_file(tokenizers):
    ours, _ = tokenizers
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.encode(TEXTS[:3]) == ours.encode(TEXTS[:3])
    assert copy.digest == ours.digest


def test_a_real_tokenizer_gives_texts_back():
    tokenizer = Tokenizer.load(str(find_smollm2()))
    text = "We the People \N{EM DASH} caf\N{LATIN SMALL LETTER E WITH ACUTE}\n\n  1787"
    ids = tokenizer.encode([text])[0]
    assert tokenizer.decode_candidates(ids[:4], [ids[4:]]) == (
        "We the People \N{EM DASH}",
        [" caf\N{LATIN SMALL LETTER E WITH ACUTE}\n\n  1787"],
    )
    # Its file says that no start token is put before texts, and which it would be
    assert tokenizer.find_starts() == ([], [1])
    assert tokenizer.start_token == "<|im_start|>"


def test_a_vocabulary_that_llama_cpp_cannot_open_is_refused(gguf, tmp_path):
    content = gguf.read_bytes().replace(b"gpt2", b"gptX", 1)
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"model: llama.cpp cannot open .*gptX"):
        Tokenizer.load(str(path))
