"""Texts in, numbers of their tokens out, by a real engine: what precedes, strides, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import CONTEXT, TEXTS, save_tokenizer

TEXT = " ".join(TEXTS[0].split()[:30])
LONG = " ".join(TEXTS[1].split()[:400])


MOMENTS = frozenset({"vocabulary_mean", "vocabulary_variance"})


@pytest.fixture(scope="module")
def engine(checkpoint, tmp_path_factory):
    spec = EngineSpec(
        engine="transformers", kind="logprobs", model=str(checkpoint), columns=MOMENTS
    )
    with EngineProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.load(str(checkpoint))


@pytest.fixture(scope="module")
def bare_tokenizer(tmp_path_factory, checkpoint):
    """The same without a special token before a text."""
    import tokenizers

    folder = tmp_path_factory.mktemp("bare")
    save_tokenizer(tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json")), folder, "$A")
    return Tokenizer.load(str(folder), setting="tokenizer")


def ask(engine, tokenizer, *, strides=False, **request):
    source = LocalSource(engine, tokenizer, strides=strides)
    source.submit(Request(request_id=7, kind="logprobs", columns=MOMENTS, **request))
    (result,) = source.results()
    assert result.request_id == 7
    return result


def test_each_token_has_its_numbers_after_the_special_token(engine, tokenizer):
    result = ask(engine, tokenizer, text=TEXT)
    assert result.bos
    assert result.tokens["token_ids"].tolist() == tokenizer.encode([TEXT])[0]
    assert np.isfinite(result.tokens["logprob"]).all()
    assert (result.tokens["logprob"] < 0).all()
    assert {len(values) for values in result.tokens.values()} == {len(result.tokens["token_ids"])}
    assert result.tokens.keys() > MOMENTS
    assert "rank" not in result.tokens
    assert result.passes == 1


def test_without_a_special_token_the_first_token_has_none(engine, bare_tokenizer):
    result = ask(engine, bare_tokenizer, text=TEXT)
    assert not result.bos
    assert np.isnan(result.tokens["logprob"]).tolist() == [
        index == 0 for index in range(len(result.tokens["token_ids"]))
    ]


def test_a_text_after_another_is_scored_as_a_part_of_both(engine, tokenizer):
    context, text = TEXT[:50], TEXT[50:]
    whole = ask(engine, tokenizer, text=TEXT).tokens
    part = ask(engine, tokenizer, context=context, text=text).tokens
    n = len(part["token_ids"])
    assert 0 < n < len(whole["token_ids"])
    assert part["token_ids"].tolist() == whole["token_ids"][-n:].tolist()
    np.testing.assert_allclose(part["logprob"], whole["logprob"][-n:], atol=1e-5)


def test_only_so_many_tokens_of_context_and_text_are_looked_at(engine, tokenizer):
    context, text = TEXT[:60], TEXT[60:]
    (ids,) = tokenizer.encode([TEXT])
    n_text = len(tokenizer.encode_after(context, text)[2])
    cut = ask(engine, tokenizer, context=context, text=text, context_tokens=3, text_tokens=4)
    assert cut.tokens["token_ids"].tolist() == ids[-n_text:][:4]
    whole = ask(engine, tokenizer, context=context, text=text)
    assert not np.allclose(cut.tokens["logprob"], whole.tokens["logprob"][:4], atol=1e-3)
    none = ask(engine, tokenizer, context=context, text=text, context_tokens=0, text_tokens=4)
    assert none.tokens["token_ids"].tolist() == cut.tokens["token_ids"].tolist()


def test_a_text_with_fewer_tokens_than_wanted_is_not_of_the_kind(engine, tokenizer):
    result = ask(engine, tokenizer, context=TEXT, text=" word", text_tokens=50)
    assert (result.tokens, result.asked, result.passes) == (None, False, 0)
    assert result.error.endswith("tokens, fewer than the 50 wanted")


def test_a_long_text_is_refused_or_scored_in_strides(engine, tokenizer):
    (ids,) = tokenizer.encode([LONG])
    refused = ask(engine, tokenizer, text=LONG)
    assert refused.tokens is None
    assert refused.error == (
        f"the text has {len(ids) + 1} tokens with what precedes it, the context {CONTEXT}"
    )
    result = ask(engine, tokenizer, text=LONG, strides=True)
    assert result.passes == -(-len(ids) // (CONTEXT - 1)) > 1
    assert result.tokens["token_ids"].tolist() == ids
    assert np.isfinite(result.tokens["logprob"]).all()


def test_strides_do_not_see_each_other(engine, bare_tokenizer):
    (ids,) = bare_tokenizer.encode([LONG])
    result = ask(engine, bare_tokenizer, text=LONG, strides=True)
    unscored = np.flatnonzero(np.isnan(result.tokens["logprob"]))
    assert unscored.tolist() == list(range(0, len(ids), CONTEXT))


def test_a_text_after_a_context_is_never_cut(engine, tokenizer):
    assert ask(engine, tokenizer, context=TEXT, text=LONG, strides=True).tokens is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "the text has no token"), ("a", "the text has one token, and nothing precedes it")],
)
def test_texts_without_anything_to_ask(engine, bare_tokenizer, text, reason):
    assert ask(engine, bare_tokenizer, text=text).error == reason
