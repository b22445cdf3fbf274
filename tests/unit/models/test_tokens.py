import shutil
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

SNOWMAN, CUT = "\N{SNOWMAN}", "\N{REPLACEMENT CHARACTER}"


def loaded(backend, folder, template="<s> $A"):
    save_tokenizer(backend, folder, template)
    return Tokenizer.load(str(folder), setting="tokenizer"), backend


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return loaded(byte_level_tokenizer(), tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory):
    return loaded(metaspace_tokenizer(), tmp_path_factory.mktemp("metaspace"))


def bare(pair, text):
    return list(pair[1].encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("template", "text", "before"),
    [
        *(("<s> $A", text, [BOS_ID]) for text in ("import os", "", "naïve")),
        *(("$A", text, []) for text in ("import os", "")),
        # No end of the text
        *(("<s> $A </s>", text, [BOS_ID]) for text in ("import os", "")),
        ("$A </s>", "import</s>", []),  # but one that the text itself has
    ],
)
def test_prompts_start_as_the_tokenizer_starts_them(tmp_path, template, text, before):
    pair = loaded(byte_level_tokenizer(), tmp_path, template)
    expected = [*before, *bare(pair, text)]
    assert pair[0].encode_prompts([text]) == [expected]
    assert (expected[-1:] == [EOS_ID]) == text.endswith("</s>")


def test_counts_and_measures_leave_special_tokens_out(byte_level):
    tokenizer, _ = byte_level
    # Beyond its own limit
    texts = [
        "import os",
        "",
        "for x in range(10): pass",
        "word " * 2000,
    ]
    assert tokenizer.count_tokens(texts) == [
        len(bare(byte_level, text)) for text in texts
    ]
    (measure,) = tokenizer.measure(["import os"], [" and sys"])
    assert measure.prompt_token_ids == [BOS_ID, *bare(byte_level, "import os")]
    assert measure.prompt_tokens == len(measure.prompt_token_ids)
    assert measure.reference_tokens == len(bare(byte_level, " and sys"))
    assert (tokenizer.encode_prompts([]), tokenizer.count_tokens([])) == ([], [])
    assert tokenizer.decode_candidates([BOS_ID], []) == ("", [])


@given(
    words=st.lists(
        st.sampled_from(["import", "os.", "...", "naïve", "12", SNOWMAN, "</s>"])
    ),
    gaps=st.lists(
        st.sampled_from([" ", "\n\n", "  ", " \n", "\u00a0", "-", ""]), min_size=1
    ),
)
def test_a_prompt_has_the_same_tokens_whatever_goes_on_from_it(byte_level, words, gaps):
    texts = [""]
    for word, gap in zip(words, cycle(gaps), strict=False):
        texts += [texts[-1] + word, texts[-1] + word + gap]
    expected = [[BOS_ID, *bare(byte_level, text)] for text in texts]
    assert byte_level[0].encode_prompts(texts) == expected


def test_truncation_and_padding_left_on_in_the_file_are_ignored(tmp_path):
    backend = byte_level_tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    pair = loaded(backend, tmp_path)
    backend.no_truncation()
    backend.no_padding()
    expected = [BOS_ID, *bare(pair, "for x in range(10)")]
    assert pair[0].encode_prompts(["for x in range(10)"]) == [expected]


@given(prompt=st.text(max_size=30), continuation=st.text(max_size=30))
def test_a_candidate_is_what_follows_the_prompt(byte_level, prompt, continuation):
    tokenizer, _ = byte_level
    (ids,) = tokenizer.encode_prompts([prompt])
    output = bare(byte_level, continuation)
    assert tokenizer.decode_candidates(ids, [output]) == (
        prompt,
        [continuation.rstrip(CUT)],
    )


def test_candidates_are_what_a_reader_sees(byte_level):
    tokenizer, _ = byte_level

    def decoded(prompt, *outputs):
        return tokenizer.decode_candidates([BOS_ID, *prompt], outputs)

    prompt, output = bare(byte_level, "import"), bare(byte_level, " os")
    special: tuple[list[int], ...] = (
        [*output, EOS_ID],
        [EOS_ID],
        [BOS_ID, *output],
        [],
    )
    assert decoded(prompt, *special) == ("import", [" os", "", " os", ""])
    output, prompt = bare(byte_level, f" day{SNOWMAN}"), bare(byte_level, "a cold")
    cut = decoded(prompt, output[:-1], output)  # within the bytes of a character
    assert cut == ("a cold", [" day", f" day{SNOWMAN}"])
    snowman = bare(byte_level, SNOWMAN)  # begun by the prompt
    begun = decoded([*bare(byte_level, "so cold "), *snowman[:1]], snowman[1:])
    assert begun == (f"so cold {CUT}", [SNOWMAN])
    odd = " do n't , really ?"  # not tidied
    assert decoded([], bare(byte_level, odd)) == ("", [odd])
    # Only the model's
    assert decoded([], [10**6, *bare(byte_level, " os")]) == (
        "",
        [" os"],
    )


def test_the_space_before_the_first_word_of_a_candidate_is_kept(metaspace):
    tokenizer, backend = metaspace
    (prompt,) = tokenizer.encode_prompts(["the import"])
    whole = list(backend.encode("the import statement").ids)
    assert whole[: len(prompt)] == prompt
    output = whole[len(prompt) :]
    assert backend.decode(output) == "statement"  # alone
    assert tokenizer.decode_candidates(prompt, [output]) == (
        "the import",
        [" statement"],
    )
    (prompt,) = tokenizer.encode_prompts(["the im"])
    goes_on = [backend.token_to_id("t")]
    assert tokenizer.decode_candidates(prompt, [goes_on]) == ("the im", ["t"])


@given(st.text(max_size=40), st.integers(0, 30))
def test_first_tokens_kept_are_those_of_the_text(byte_level, text, n_tokens):
    kept = byte_level[0].keep_first(text, n_tokens)
    assert text.startswith(kept)
    whole, found = bare(byte_level, text), bare(byte_level, kept)
    assert found[:n_tokens] == whole[:n_tokens]
    if len(whole) <= n_tokens:
        assert kept == text
    elif kept.isascii():  # tokens that share a character are not parted
        assert len(found) == n_tokens


def test_first_tokens_end_with_whole_characters_and_have_no_space_before_them(
    byte_level, metaspace
):
    n_tokens = len(bare(byte_level, "cold ")) + 1
    assert (
        byte_level[0].keep_first(f"cold {SNOWMAN} day", n_tokens) == f"cold {SNOWMAN}"
    )
    n_tokens = len(bare(metaspace, "the import"))
    assert metaspace[0].keep_first("the import statement", n_tokens) == "the import"
    assert metaspace[0].keep_first("the import statement", 0) == ""


def test_the_digest_tells_tokenizers_apart_and_does_not_change_with_use(
    byte_level, metaspace, tmp_path
):
    again, _ = loaded(byte_level_tokenizer(), tmp_path / "again")
    without_bos, _ = loaded(byte_level_tokenizer(), tmp_path / "without-bos", "$A")
    assert again.digest == byte_level[0].digest
    again.encode_prompts(["import os"])
    read_again = Tokenizer.load(str(tmp_path / "again"), setting="tokenizer")
    assert again.digest == byte_level[0].digest == read_again.digest
    digests = {byte_level[0].digest, metaspace[0].digest, without_bos.digest}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {64}


@pytest.mark.parametrize("content", [None, "{"])
def test_a_tokenizer_that_is_not_there_or_broken_is_named(tmp_path, content):
    if content is not None:
        save_tokenizer(byte_level_tokenizer(), tmp_path)
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(
        SettingsError, match=r"^model: the tokenizer of '.*' cannot be l"
    ):
        Tokenizer.load(str(tmp_path))


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"vocab_size": 599}, "has the token 599, and the model has 599 tokens"),
        (
            {"eos_token_id": 7},
            r"ends texts with token 1, and the model's config\.json with 7",
        ),
        (
            {"eos_token_id": [7, 9]},
            r"ends texts with token 1, and the model's config\.json with 7",
        ),
        ({"vocab_size": 700}, None),  # more than the tokenizer's
        ({"eos_token_id": 2}, None),  # the default of the architecture, never set
        ({"eos_token_id": None}, None),
        ({"eos_token_id": [7, 1]}, None),
        # A special token, as that of a model which chats can be
        (
            {"eos_token_id": 0},
            None,
        ),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(
    checkpoint, tmp_path, described, words
):
    folder = change(
        shutil.copytree(checkpoint, tmp_path / "model"), lambda own: own, **described
    )
    if words is not None:
        named = f"model: the tokenizer of '{folder}' is of another model"
        with pytest.raises(
            SettingsError, match=f"{named}: it {words}; save the model's own"
        ):
            Tokenizer.load(str(folder))
        return
    own = AutoTokenizer.from_pretrained(folder)
    own.add_tokens(["<image>"])  # which the model cannot be given
    own.save_pretrained(folder)
    assert Tokenizer.load(str(folder)).vocabulary == 601
