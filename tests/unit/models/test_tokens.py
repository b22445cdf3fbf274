from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from mia_batch.errors import SettingsError
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import (
    BOS_ID,
    EOS_ID,
    byte_level_tokenizer,
    change,
    metaspace_tokenizer,
    save_tokenizer,
)

if TYPE_CHECKING:
    from pathlib import Path

Pair = tuple[Tokenizer, Backend]


def loaded(backend: Backend, folder: Path, template: str = "<s> $A") -> Pair:
    save_tokenizer(backend, folder, template)
    return Tokenizer.load(str(folder), setting="tokenizer"), backend


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return loaded(byte_level_tokenizer(), tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return loaded(metaspace_tokenizer(), tmp_path_factory.mktemp("metaspace"))


def bare(pair: Pair, text: str) -> list[int]:
    return list(pair[1].encode(text, add_special_tokens=False).ids)


def test_prompts_start_as_the_tokenizer_starts_them(byte_level: Pair):
    tokenizer, _ = byte_level
    texts = ["import os", "", "naïve"]
    expected = [[BOS_ID, *bare(byte_level, text)] for text in texts]
    assert tokenizer.encode_prompts(texts) == expected


def test_no_token_is_added_where_the_tokenizer_adds_none(tmp_path: Path):
    pair = loaded(byte_level_tokenizer(), tmp_path, "$A")
    assert pair[0].encode_prompts(["import os", ""]) == [bare(pair, "import os"), []]


def test_a_prompt_does_not_end_the_text_where_the_tokenizer_appends_an_end(tmp_path: Path):
    pair = loaded(byte_level_tokenizer(), tmp_path, "<s> $A </s>")
    expected = [[BOS_ID, *bare(pair, "import os")], [BOS_ID]]
    assert pair[0].encode_prompts(["import os", ""]) == expected


def test_an_end_that_the_text_itself_has_stays(tmp_path: Path):
    pair = loaded(byte_level_tokenizer(), tmp_path, "$A </s>")
    assert pair[0].encode_prompts(["import</s>"]) == [[*bare(pair, "import"), EOS_ID]]


def test_counts_leave_special_tokens_out(byte_level: Pair):
    texts = ["import os", "", "for x in range(10): pass"]
    assert byte_level[0].count_tokens(texts) == [len(bare(byte_level, text)) for text in texts]


def test_measures_are_the_prompts_tokens_and_the_references_number(byte_level: Pair):
    tokenizer, _ = byte_level
    (measure,) = tokenizer.measure(["import os"], [" and sys"])
    assert measure.prompt_token_ids == [BOS_ID, *bare(byte_level, "import os")]
    assert measure.prompt_tokens == len(measure.prompt_token_ids)
    assert measure.reference_tokens == len(bare(byte_level, " and sys"))


def test_nothing_in_nothing_out(byte_level: Pair):
    assert byte_level[0].encode_prompts([]) == []
    assert byte_level[0].count_tokens([]) == []
    assert byte_level[0].decode_candidates([BOS_ID], []) == ("", [])


def test_a_text_beyond_the_tokenizers_own_limit_is_neither_cut_nor_warned_of(byte_level: Pair):
    text = "word " * 2000
    assert byte_level[0].count_tokens([text]) == [len(bare(byte_level, text))]


def test_truncation_and_padding_left_on_in_the_file_are_ignored(tmp_path: Path):
    backend = byte_level_tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    tokenizer, _ = loaded(backend, tmp_path)
    backend.no_truncation()
    backend.no_padding()
    expected = list(backend.encode("for x in range(10)", add_special_tokens=False).ids)
    assert tokenizer.encode_prompts(["for x in range(10)"]) == [[BOS_ID, *expected]]


@given(prompt=st.text(max_size=30), continuation=st.text(max_size=30))
def test_a_candidate_is_what_follows_the_prompt(byte_level: Pair, prompt: str, continuation: str):
    tokenizer, _ = byte_level
    (ids,) = tokenizer.encode_prompts([prompt])
    output = bare(byte_level, continuation)
    assert tokenizer.decode_candidates(ids, [output]) == (
        prompt,
        [continuation.rstrip("\N{REPLACEMENT CHARACTER}")],
    )


def test_special_tokens_leave_no_trace(byte_level: Pair):
    output = bare(byte_level, " os")
    prompt, candidates = byte_level[0].decode_candidates(
        [BOS_ID, *bare(byte_level, "import")], [[*output, EOS_ID], [EOS_ID], [BOS_ID, *output], []]
    )
    assert prompt == "import"
    assert candidates == [" os", "", " os", ""]


def test_a_character_cut_within_its_bytes_is_left_out_alone(
    byte_level: Pair,
):
    output = bare(byte_level, " day\N{SNOWMAN}")
    prompt = [BOS_ID, *bare(byte_level, "a cold")]
    _, candidates = byte_level[0].decode_candidates(prompt, [output[:-1], output])
    assert candidates == [" day", " day\N{SNOWMAN}"]


def test_a_character_begun_by_the_prompt_belongs_to_the_candidate(byte_level: Pair):
    snowman = bare(byte_level, "\N{SNOWMAN}")
    prompt = [BOS_ID, *bare(byte_level, "so cold "), *snowman[:1]]
    decoded, candidates = byte_level[0].decode_candidates(prompt, [snowman[1:]])
    assert decoded == "so cold \N{REPLACEMENT CHARACTER}"
    assert candidates == ["\N{SNOWMAN}"]


def test_the_space_before_the_first_word_of_a_candidate_is_kept(metaspace: Pair):
    tokenizer, backend = metaspace
    (prompt,) = tokenizer.encode_prompts(["the import"])
    whole = list(backend.encode("the import statement").ids)
    assert whole[: len(prompt)] == prompt
    alone = backend.decode(whole[len(prompt) :])
    assert alone == "statement"
    assert tokenizer.decode_candidates(prompt, [whole[len(prompt) :]]) == (
        "the import",
        [" statement"],
    )


def test_a_word_that_the_candidate_goes_on_with_has_no_space(metaspace: Pair):
    tokenizer, backend = metaspace
    (prompt,) = tokenizer.encode_prompts(["the im"])
    output = [i for i in [backend.token_to_id("t")] if i is not None]
    assert tokenizer.decode_candidates(prompt, [output]) == ("the im", ["t"])


@given(st.text(max_size=40), st.integers(0, 30))
def test_first_tokens_kept_are_those_of_the_text(byte_level: Pair, text: str, n_tokens: int):
    kept = byte_level[0].keep_first(text, n_tokens)
    assert text.startswith(kept)
    whole, found = bare(byte_level, text), bare(byte_level, kept)
    assert found[:n_tokens] == whole[:n_tokens]
    if len(whole) <= n_tokens:
        assert kept == text
    elif kept.isascii():  # tokens that share a character are not parted
        assert len(found) == n_tokens


def test_a_character_that_first_tokens_begin_is_kept_whole(byte_level: Pair):
    n_tokens = len(bare(byte_level, "cold ")) + 1
    assert byte_level[0].keep_first("cold \N{SNOWMAN} day", n_tokens) == "cold \N{SNOWMAN}"


def test_first_tokens_that_begin_a_text_have_no_space_before_them(metaspace: Pair):
    text = "the import statement"
    n_tokens = len(bare(metaspace, "the import"))
    assert metaspace[0].keep_first(text, n_tokens) == "the import"
    assert metaspace[0].keep_first(text, 0) == ""


def test_a_token_that_only_the_model_knows_has_no_text(byte_level: Pair):
    output = bare(byte_level, " os")
    decoded = byte_level[0].decode_candidates([BOS_ID], [[10**6, *output]])
    assert decoded == ("", [" os"])


def test_spaces_are_not_tidied(byte_level: Pair):
    odd = " do n't , really ?"
    decoded = byte_level[0].decode_candidates([BOS_ID], [bare(byte_level, odd)])
    assert decoded == ("", [odd])


def test_the_digest_tells_tokenizers_apart(byte_level: Pair, metaspace: Pair, tmp_path: Path):
    again, _ = loaded(byte_level_tokenizer(), tmp_path / "again")
    without_bos, _ = loaded(byte_level_tokenizer(), tmp_path / "without-bos", "$A")
    assert again.digest == byte_level[0].digest
    digests = {byte_level[0].digest, metaspace[0].digest, without_bos.digest}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {64}


def test_the_digest_does_not_change_with_use(byte_level: Pair, tmp_path: Path):
    fresh, _ = loaded(byte_level_tokenizer(), tmp_path)
    before = fresh.digest
    fresh.encode_prompts(["import os"])
    again = Tokenizer.load(str(tmp_path), setting="tokenizer")
    assert fresh.digest == before == again.digest


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"^setting 'model': the tokenizer of '.*' cannot be"):
        Tokenizer.load(str(tmp_path))


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"vocab_size": 599}, "has the token 599, and the model has 599 tokens"),
        ({"eos_token_id": 7}, r"ends texts with token 1, and the model's config\.json with 7"),
        ({"eos_token_id": [7, 9]}, r"ends texts with token 1, and the model's config\.json with 7"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(
    checkpoint: Path, tmp_path: Path, described: dict[str, Any], words: str
):
    folder = change(shutil.copytree(checkpoint, tmp_path / "model"), lambda own: own, **described)
    named = f"'model': the tokenizer of '{folder}' is of another model"
    with pytest.raises(SettingsError, match=f"{named}: it {words}; save the model's own"):
        Tokenizer.load(str(folder))


@pytest.mark.parametrize(
    "described",
    [
        {"vocab_size": 700},  # more than the tokenizer's
        {"eos_token_id": 2},  # the default of the architecture, never set
        {"eos_token_id": None},
        {"eos_token_id": [7, 1]},
        {"eos_token_id": 0},  # a special token, as that of a model which chats can be
    ],
)
def test_a_tokenizer_need_not_say_all_that_its_model_says(
    checkpoint: Path, tmp_path: Path, described: dict[str, Any]
):
    folder = change(shutil.copytree(checkpoint, tmp_path / "model"), lambda own: own, **described)
    own = AutoTokenizer.from_pretrained(folder)
    own.add_tokens(["<image>"])  # which the model cannot be given
    own.save_pretrained(folder)
    assert Tokenizer.load(str(folder)).vocabulary == 601


def test_a_broken_tokenizer_file_is_named(tmp_path: Path):
    save_tokenizer(byte_level_tokenizer(), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SettingsError, match="cannot be loaded"):
        Tokenizer.load(str(tmp_path))
