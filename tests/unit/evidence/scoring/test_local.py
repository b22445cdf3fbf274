"""Texts in, numbers of their tokens out, by a real engine: what precedes, strides, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from mia_batch.evidence.engine import EngineSpec
from mia_batch.evidence.process import ScorerProcess
from mia_batch.evidence.scorer import Scoring
from mia_batch.evidence.scoring import LocalScorer
from mia_batch.evidence.scoring.source import TextScoreRequest
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import CONTEXT, TEXTS, save_tokenizer

TEXT = " ".join(TEXTS[0].split()[:30])
LONG = " ".join(TEXTS[1].split()[:400])


@pytest.fixture(scope="module")
def engine(checkpoint, tmp_path_factory):
    spec = EngineSpec(engine="transformers", model=str(checkpoint), scoring=Scoring(moments=True))
    with ScorerProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
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
    return Tokenizer.load(str(folder))


def score(engine, tokenizer, *, strides=False, **request):
    scorer = LocalScorer(engine, tokenizer, strides=strides)
    scorer.submit(TextScoreRequest(request_id=7, key="k", **({"context": ""} | request)))
    (result,) = scorer.results()
    assert result.request_id == 7
    return result


def test_each_token_has_its_numbers_after_the_special_token(engine, tokenizer):
    result = score(engine, tokenizer, text=TEXT)
    assert result.scores.bos
    assert result.scores.token_ids.tolist() == tokenizer.encode([TEXT])[0]
    assert np.isfinite(result.scores.logprob).all()
    assert (result.scores.logprob < 0).all()
    assert len(result.scores.mean) == len(result.scores.token_ids) == len(result.scores.variance)
    assert result.scores.rank is None
    assert result.passes == 1


def test_without_a_special_token_the_first_token_has_none(engine, bare_tokenizer):
    result = score(engine, bare_tokenizer, text=TEXT)
    assert not result.scores.bos
    assert np.isnan(result.scores.logprob).tolist() == [
        place == 0 for place in range(len(result.scores.token_ids))
    ]


def test_a_text_after_another_is_scored_as_a_part_of_both(engine, tokenizer):
    context, text = TEXT[:50], TEXT[50:]
    whole = score(engine, tokenizer, text=TEXT).scores
    part = score(engine, tokenizer, context=context, text=text).scores
    n = len(part.token_ids)
    assert 0 < n < len(whole.token_ids)
    assert part.token_ids.tolist() == whole.token_ids[-n:].tolist()
    np.testing.assert_allclose(part.logprob, whole.logprob[-n:], atol=1e-5)


def test_only_so_many_tokens_of_context_and_text_are_looked_at(engine, tokenizer):
    context, text = TEXT[:60], TEXT[60:]
    (ids,) = tokenizer.encode([TEXT])
    n_text = len(tokenizer.encode_after(context, text)[2])
    cut = score(engine, tokenizer, context=context, text=text, context_tokens=3, text_tokens=4)
    assert cut.scores.token_ids.tolist() == ids[-n_text:][:4]
    whole = score(engine, tokenizer, context=context, text=text)
    assert not np.allclose(cut.scores.logprob, whole.scores.logprob[:4], atol=1e-3)
    none = score(engine, tokenizer, context=context, text=text, context_tokens=0, text_tokens=4)
    assert none.scores.token_ids.tolist() == cut.scores.token_ids.tolist()


def test_a_text_with_fewer_tokens_than_wanted_is_not_of_the_kind(engine, tokenizer):
    result = score(engine, tokenizer, context=TEXT, text=" word", text_tokens=50)
    assert (result.scores, result.asked, result.passes) == (None, False, 0)
    assert result.error.endswith("tokens, fewer than the 50 wanted")


def test_a_long_text_is_refused_or_scored_in_strides(engine, tokenizer):
    (ids,) = tokenizer.encode([LONG])
    refused = score(engine, tokenizer, text=LONG)
    assert refused.scores is None
    assert refused.error == (
        f"the text has {len(ids) + 1} tokens with what precedes it, the context {CONTEXT}"
    )
    result = score(engine, tokenizer, text=LONG, strides=True)
    assert result.passes == -(-len(ids) // (CONTEXT - 1)) > 1
    assert result.scores.token_ids.tolist() == ids
    assert np.isfinite(result.scores.logprob).all()


def test_strides_do_not_see_each_other(engine, bare_tokenizer):
    (ids,) = bare_tokenizer.encode([LONG])
    result = score(engine, bare_tokenizer, text=LONG, strides=True)
    unscored = np.flatnonzero(np.isnan(result.scores.logprob))
    assert unscored.tolist() == list(range(0, len(ids), CONTEXT))


def test_a_text_after_a_context_is_never_cut(engine, tokenizer):
    assert score(engine, tokenizer, context=TEXT, text=LONG, strides=True).scores is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "the text has no token"), ("a", "the text has one token, and nothing precedes it")],
)
def test_texts_without_anything_to_score(engine, bare_tokenizer, text, reason):
    assert score(engine, bare_tokenizer, text=text).error == reason
